"""Tests snapshots that a worker on another host fetches over TCP. The other host is a worker with
another $EVALQ_BOOT_ID, so it does not use shared memory."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import socket
import subprocess
import sys
import threading
import unittest
from typing import Any, Dict, Tuple

from scene import BIN, DATA, DEADLINE, NATIVE, PACKAGE, SceneTest, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

from evalq._checkpoint.safetensors import read_safetensors

MODEL = os.path.join(DATA, "mlp_784_512_128_32_10.safetensors")
FETCHED = f"/dev/shm/evalq-{os.geteuid()}-fetched/jobs"

TRAINER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import evalq
from evalq._checkpoint.safetensors import read_safetensors
client = evalq.Client(run=sys.argv[3], ring_directory=sys.argv[4], log=False)
client.submit_state_dict(read_safetensors(sys.argv[2]), step=1, suites="quick")
client.flush(60)
print("sent", flush=True)
time.sleep(3600)
"""


def weights() -> "Dict[str, Any]":
    return read_safetensors(MODEL)


def ends(client: Any) -> "Dict[int, Tuple[str, str]]":
    return {result.step: (result.state, result.reason) for result in client.results() if result.is_end}


@unittest.skipIf(numpy is None, "numpy is not installed")
class ForeignTest(SceneTest):
    """A test with one worker that counts as on another host."""

    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.scene.variables = {"EVALQ_BOOT_ID": "another-host"}
        cls.scene.start_worker()

    def test_foreign_worker_gives_what_the_file_gives(self) -> None:
        with self.scene.client("foreign") as client:
            client.submit(self.scene.checkpoint("foreign/1.safetensors"), step=1, suites="quick")
            # By default, it would supersede the file's job if no worker has claimed that yet.
            self.assertTrue(client.submit_state_dict(weights(), step=2, suites="quick", policy="all"))
            self.assertTrue(client.wait(DEADLINE))
            values: "Dict[int, Dict[str, float]]" = {1: {}, 2: {}}
            for result in client.results():
                if not result.is_end:
                    values[result.step][result.key] = result.value
            self.assertGreater(values[1]["eval/digits/accuracy"], 0.9)
            self.assertEqual(values[1], values[2])
            until(lambda: client.stats().snapshots == 0, "the snapshot is released when its job ended")
            name = os.path.basename(self.scene.message("foreign/2/regular/quick")["path"])
            self.assertEqual(glob.glob(f"{FETCHED}/*/{name}"), [])

    def test_token_is_in_the_message_and_nowhere_else(self) -> None:
        with self.scene.client("secret") as client:
            self.assertTrue(client.submit_state_dict(weights(), step=1, suites="quick"))
            self.assertTrue(client.wait(DEADLINE))
            token = self.scene.message("secret/1/regular/quick")["snapshot"]["token"]
            self.assertEqual(len(token), 32)
            shown = subprocess.run(
                [os.path.join(BIN, "evalq"), "show", "secret/1/regular/quick", "--json"],
                env=self.scene.environment(),
                capture_output=True,
                check=True,
            ).stdout.decode()
            self.assertIn("another", self.scene.variables["EVALQ_BOOT_ID"])
            self.assertIn("checksum", shown)
            self.assertNotIn(token, shown)
        for root, _, names in os.walk(self.scene.directory):
            for name in names:
                if name.endswith((".log", ".json", ".txt")) and "redis" not in name:
                    with open(os.path.join(root, name), "rb") as file:
                        self.assertNotIn(token.encode(), file.read(), name)


class Relay:
    """A relay between the producer and its workers. The first `cuts` connections end after `after`
    bytes of the answer; with `stall`, they hang there instead."""

    stall = False

    def __init__(self, place: str, cuts: int, after: int) -> None:
        self.host, _, port = place.rpartition(":")
        self.port, self.cuts, self.after, self.connections = int(port), cuts, after, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.place = "127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                worker, _ = self.socket.accept()
            except OSError:
                return
            self.connections += 1
            with worker, contextlib.suppress(OSError):  # The file may disappear at any time.
                self.serve(worker)

    def serve(self, worker: socket.socket) -> None:
        with socket.create_connection((self.host, self.port), 10) as producer:
            producer.sendall(worker.recv(1024))
            left = self.after if self.connections <= self.cuts else 1 << 40
            while left > 0:
                piece = producer.recv(min(left, 1 << 16))
                if not piece:
                    break
                worker.sendall(piece)
                left -= len(piece)
            if self.stall and self.connections <= self.cuts:
                worker.recv(1)  # Wait until it is gone.

    def close(self) -> None:
        self.socket.close()


@unittest.skipIf(numpy is None, "numpy is not installed")
class CutTest(SceneTest):
    workers = False

    def relay(self, client: Any, job: str, cuts: int, after: int) -> Relay:
        """Submits a snapshot whose message names a relay instead of the producer."""
        self.assertTrue(client.submit_state_dict(weights(), step=int(job.split("/")[1]), suites="quick"))
        self.assertTrue(client.flush(DEADLINE))
        relay = Relay(self.scene.message(job)["snapshot"]["place"], cuts, after)
        self.addCleanup(relay.close)
        script = (
            "local m = cmsgpack.unpack(redis.call('GET', KEYS[1])) m.snapshot.place = ARGV[1]"
            " return redis.call('SET', KEYS[1], cmsgpack.pack(m))"
        )
        self.scene.redis_call("EVAL", script, "1", "evalq:{main}:msg:" + job, relay.place)
        return relay

    def test_cut_transfers_continue_or_end_the_job_but_not_the_worker(self) -> None:
        self.scene.redis_call("HSET", "evalq:{main}:meta", "attempts_max", "1")
        self.scene.variables = {"EVALQ_BOOT_ID": "another-host"}
        with self.scene.client("cut") as client:
            some = self.relay(client, "cut/1/regular/quick", 3, 400000)
            worker = self.scene.start_worker()
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual(some.connections, 4)
            self.assertEqual(ends(client)[1][0], "done")
            self.scene.redis_call("HSET", "evalq:{main}:meta", "paused", "1")
            always = self.relay(client, "cut/2/regular/quick", 1000, 20)
            self.scene.redis_call("HSET", "evalq:{main}:meta", "paused", "0")
            self.assertTrue(client.wait(DEADLINE))
            state, reason = ends(client)[2]
            self.assertEqual((state, always.connections), ("dead", 5))
            self.assertRegex(reason, "^retry: the transfer of weights from 127.0.0.1:[0-9]+ broke")
            self.assertTrue(client.submit_state_dict(weights(), step=3, suites="quick"))
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual(ends(client)[3][0], "done")
        self.assertIsNone(worker.poll())
        self.assertEqual(self.scene.log("evalq-worker").count("event=child_ready"), 1)
        worker.terminate()
        worker.wait(DEADLINE)


    def test_files_that_a_killed_worker_fetched_are_removed(self) -> None:
        self.scene.redis_call("HSET", "evalq:{main}:meta", "attempts_max", "3")
        self.scene.variables = {"EVALQ_BOOT_ID": "another-host"}
        with self.scene.client("killed") as client:
            relay = self.relay(client, "killed/1/regular/quick", 1, 400000)
            relay.stall = True
            name = os.path.basename(self.scene.message("killed/1/regular/quick")["path"])
            worker = self.scene.start_worker()
            left = until(lambda: glob.glob(f"{FETCHED}/*/{name}"), "the worker fetches")
            self.assertEqual(len(left), 1)
            with open(f"/proc/{worker.pid}/task/{worker.pid}/children", encoding="ascii") as file:
                children = file.read().split()
            self.assertEqual(len(children), 1)
            os.kill(int(children[0]), signal.SIGKILL)
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual(ends(client)[1][0], "done")
            self.assertEqual(glob.glob(f"{FETCHED}/*/{name}"), [])
        worker.terminate()
        worker.wait(DEADLINE)


@unittest.skipIf(numpy is None, "numpy is not installed")
class ForbiddenTest(SceneTest):
    config = NATIVE.replace("worker:", "worker:\n  fetch_bytes_max: 0")
    workers = False

    def test_worker_that_may_not_fetch_connects_to_nobody(self) -> None:
        with self.scene.client("forbidden") as client:
            self.assertTrue(client.submit_state_dict(weights(), step=1, suites="quick"))
            self.assertTrue(client.flush(DEADLINE))
            self.scene.variables = {"EVALQ_BOOT_ID": "another-host"}
            self.scene.start_worker()
            until(lambda: "worker.fetch_bytes_max allows 0 here" in self.scene.log("evalq-worker"), "it says why")


@unittest.skipIf(numpy is None, "numpy is not installed")
class DeadTrainerTest(SceneTest):
    workers = False

    def test_snapshot_of_a_dead_trainer_ends_as_vanished(self) -> None:
        trainer = start_trainer(self.scene, "dead")
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        self.scene.variables = {"EVALQ_BOOT_ID": "another-host"}
        self.scene.start_worker()
        with self.scene.client("dead") as client:
            self.assertTrue(client.wait(DEADLINE))
            state, reason = ends(client)[1]
        self.assertEqual(state, "skipped")
        self.assertRegex(reason, "^vanished: the training process at 127.0.0.1:[0-9]+, ")
        self.assertIsNone(self.scene.processes[-1].poll())
        self.assertNotIn("sick", self.scene.log("evalq-worker"))


def start_trainer(made: Any, run: str, **variables: str) -> "subprocess.Popen[bytes]":
    """Starts a training that has submitted one snapshot and continues."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, PACKAGE, MODEL, run, made.ring],
        env={**made.environment(), **variables},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        if lines.readline() != b"sent\n":
            process.kill()
            raise AssertionError("the trainer did not send its snapshot")
    return process


if __name__ == "__main__":
    unittest.main()
