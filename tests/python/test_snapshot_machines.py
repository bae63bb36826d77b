"""Tests a snapshot between two machines: trainer and Redis are in one network namespace, and the
worker in another with its own /dev/shm. Needs root, ip(8) and unshare(1); it is skipped with a
reason otherwise."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import unittest
from typing import Dict

from scene import BIN, DEADLINE, NATIVE, Scene, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

from test_snapshot_fetch import ends, weights

CLONE_NEWNET = 0x40000000

# A machine waits for its cable, and then becomes evalq-worker.
MACHINE = """
mount -t tmpfs -o mode=1777 tmpfs /dev/shm || exit 9
echo > $READY
until ip link show evqn >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up; ip addr add 10.214.1.2/24 dev evqn; ip link set evqn up
until ip link show evqn | grep -q "state UP"; do sleep 0.02; done
exec "$@"
"""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def own_network() -> str:
    """Moves this process into a new network namespace. Returns why that failed, or ""."""
    if numpy is None:
        return "numpy is not installed"
    if os.geteuid() != 0:
        return "not root"
    if any(shutil.which(name) is None for name in ("ip", "unshare", "redis-server")):
        return "ip(8), unshare(1) or redis-server is not installed"
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
        return "no network namespace may be made here"
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        return "no namespace may be made here"
    made = subprocess.run(
        "ip link set lo up && ip link add evqx type veth peer name evqy && ip link del evqx",
        shell=True,
        capture_output=True,
        check=False,
    )
    return "" if made.returncode == 0 else "no veth pair can be made here"


class MachinesTest(unittest.TestCase):
    def setUp(self) -> None:
        reason = own_network()
        if reason:
            self.skipTest(reason)
        made = self.scene = Scene()
        self.addCleanup(made.close)
        made.write_config(NATIVE)

    def start_worker(self) -> "subprocess.Popen[bytes]":
        """The worker is on the other side of a cable."""
        made, ready = self.scene, os.path.join(self.scene.directory, "ready")
        with open(os.path.join(made.directory, "evalq-worker.log"), "ab") as log:
            process = subprocess.Popen(
                ["unshare", "--net", "--mount", "sh", "-c", MACHINE, "machine", os.path.join(BIN, "evalq-worker")],
                env={**made.environment(), "READY": ready},
                stdout=log,
                stderr=log,
            )
        made.processes.append(process)
        until(lambda: os.path.exists(ready) or process.poll() is not None, "the machine starts")
        run("ip", "link", "add", "evqh", "type", "veth", "peer", "name", "evqn", "netns", str(process.pid))
        run("ip", "addr", "add", "10.214.1.1/24", "dev", "evqh")
        run("ip", "link", "set", "evqh", "up")
        until(lambda: b"state UP" in subprocess.check_output(["ip", "link", "show", "evqh"]), "the cable carries")
        return process

    def test_worker_behind_a_cable_fetches(self) -> None:
        made = self.scene
        made.start_redis("--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no")
        made.url = "redis://10.214.1.1:6379"
        self.start_worker()
        with made.client("cable") as client:
            self.assertTrue(client.submit_state_dict(weights(), step=1, suites="quick"))
            until(lambda: client.stats().sent == 1, "the snapshot is submitted")
            place = made.message("cable/1/regular/quick")["snapshot"]["place"]
            # The client advertises the address that reaches Redis.
            self.assertRegex(place, "^10[.]214[.]1[.]1:[0-9]+$")
            self.assertTrue(client.wait(DEADLINE))
            values: Dict[str, float] = {r.metric: r.value for r in client.results() if not r.is_end}
            self.assertGreater(values["accuracy"], 0.9)
            # While the cable is cut, a job waits for the worker. It is evaluated when the cable is
            # connected again.
            run("ip", "link", "set", "evqh", "down")
            self.assertTrue(client.submit_state_dict(weights(), step=2, suites="quick"))
            run("ip", "link", "set", "evqh", "up")
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual(ends(client)[2][0], "done")


if __name__ == "__main__":
    unittest.main()
