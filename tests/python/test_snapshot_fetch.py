"""Snapshots that a worker on another host evaluates: it fetches them from the trainer over TCP. The other host is a
worker whose $EVALQ_BOOT_ID says that it shares no memory, and a network namespace with a cable of its own."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import unittest
from typing import Any, Dict, Tuple

from scene import BIN, DATA, NATIVE, PACKAGE, SceneTest, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

from evalq._tensors import read_safetensors

MODEL = os.path.join(DATA, "mlp_784_512_128_32_10.safetensors")
FETCHED = f"/dev/shm/evalq-{os.geteuid()}-fetched/jobs"

TRAINER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import evalq
from evalq._tensors import read_safetensors
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
    """One worker, on what counts as another host."""

    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.scene.variables = {"EVALQ_BOOT_ID": "another-host"}
        cls.scene.start_worker()

    def test_foreign_worker_gives_what_the_file_gives(self) -> None:
        with self.scene.client("foreign") as client:
            client.submit(self.scene.checkpoint("foreign/1.safetensors"), step=1, suites="quick")
            self.assertTrue(client.submit_state_dict(weights(), step=2, suites="quick"))
            self.assertTrue(client.wait(60))
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
            self.assertTrue(client.wait(60))
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


@unittest.skipIf(numpy is None, "numpy is not installed")
class ForbiddenTest(SceneTest):
    config = NATIVE.replace("worker:", "worker:\n  fetch_bytes_max: 0")
    workers = False

    def test_worker_that_may_not_fetch_connects_to_nobody(self) -> None:
        with self.scene.client("forbidden") as client:
            self.assertTrue(client.submit_state_dict(weights(), step=1, suites="quick"))
            self.assertTrue(client.flush(30))
            self.scene.variables = {"EVALQ_BOOT_ID": "another-host"}
            self.scene.start_worker()
            until(lambda: "worker.fetch_bytes_max is 0 here" in self.scene.log("evalq-worker"), "it says why")


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
            self.assertTrue(client.wait(60))
            state, reason = ends(client)[1]
        self.assertEqual(state, "skipped")
        self.assertRegex(reason, "^vanished: its producer at 127.0.0.1:[0-9]+ is no more$")
        self.assertIsNone(self.scene.processes[-1].poll())
        self.assertNotIn("sick", self.scene.log("evalq-worker"))


def start_trainer(made: Any, run: str, **variables: str) -> "subprocess.Popen[bytes]":
    """A trainer that has sent one snapshot, and goes on."""
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
