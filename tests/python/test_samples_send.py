"""Samples that go from the worker to the logger through Redis (samples.send): they arrive whole,
once, and leave nothing behind; a full stream costs the samples and not the result."""

from __future__ import annotations

import gzip
import json
import os
import signal
import unittest
from typing import Any, Dict, List

from scene import NATIVE, SceneTest, until

# A command that keeps so many bytes of samples that no compression helps.
COMMAND = r"""
import base64, json, os
job = json.load(open(os.environ["EVALQ_JOB"]))
items = int(job["params"].get("items", "20"))
with open(os.path.join(os.path.dirname(os.environ["EVALQ_RESULT"]), "samples.jsonl"), "w") as file:
    for i in range(items):
        output = base64.b85encode(os.urandom(30000)).decode()
        file.write(json.dumps({"id": str(i), "scores": {"acc": i % 2}, "output": output}) + "\n")
json.dump({"acc": 0.5, "n": items}, open(os.environ["EVALQ_RESULT"], "w"))
"""

CONFIG = NATIVE.replace(
    "suites:",
    """
samples: {directory: $OUT/samples, send: true, stream_bytes: 2MiB, wait_seconds: 1}
logger: {directory: $OUT/results, sinks: [{kind: jsonl}]}
evaluators:
  quiz: {kind: command, argv: [$PYTHON, $OUT/quiz.py]}
suites:
  quiz: {evaluator: quiz, samples: true}
  plain: {evaluator: quiz}
""",
).replace("  quick:\n", "  quick:\n    samples: true\n").replace("worker:", "worker:\n  scratch: $OUT/scratch\n  lease_ms: 1000\n  heartbeat_ms: 200")

KEY = "evalq:{main}:samples"


class SendTest(SceneTest):
    config = CONFIG
    workers = False

    def setUp(self) -> None:
        self.scene.write_config(CONFIG)
        with open(os.path.join(self.scene.out, "quiz.py"), "w", encoding="utf-8") as file:
            file.write(COMMAND)
        self.addCleanup(self.end_programs)

    def end_programs(self) -> None:
        for process in self.scene.processes:
            process.kill()
            process.wait()
        self.scene.processes.clear()

    def submit(self, run: str, step: int, suite: str = "quiz", **params: str) -> Dict[str, Any]:
        path = self.scene.checkpoint(f"{run}-{step}.safetensors")
        words = [word for key, value in params.items() for word in ("--param", f"{key}={value}")]
        words += ["--run", run, "--step", str(step), "--suite", suite, "--wait", "--json"]
        done = self.scene.evalq("submit", path, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(json.loads(done.stdout)["results"][-1])

    def path(self, run: str, step: int, suite: str = "quiz", task: str = "quiz") -> str:
        return os.path.join(self.scene.out, "samples", run, str(step), "regular", suite, task + ".jsonl.gz")

    def pieces(self) -> int:
        return int(self.scene.redis_call("XLEN", KEY))

    def held(self) -> int:
        return int(self.scene.redis_call("HGET", "evalq:{main}:n", "samples_bytes").strip() or 0)

    def files(self, folder: str) -> List[str]:
        return [os.path.join(place, name) for place, _, names in os.walk(os.path.join(self.scene.out, folder)) for name in names]

    def assert_empty(self) -> None:
        until(lambda: self.pieces() == 0 and self.held() == 0, "no piece is left in Redis")
        left = [path for path in self.files("samples") if not path.endswith(".jsonl.gz")]
        left += [path for path in self.files("scratch") if ".jsonl" in path]
        self.assertEqual(left, [])

    def items(self, path: str) -> int:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return len(file.readlines()) - 2

    def test_files_arrive_with_the_digest_of_the_result(self) -> None:
        self.scene.start("evalq-logger")
        self.scene.start_worker()
        for suite, task, items in (("quiz", "quiz", 20), ("quick", "digits", 1000)):
            result = self.submit("arrive", 1, suite)
            path = self.path("arrive", 1, suite, task)
            until(lambda: os.path.exists(path), "the file arrives")
            self.assertEqual(os.path.getsize(path), result["samples_bytes"])
            self.assertNotIn("samples", result.get("note", ""))
            self.assertEqual(self.items(path), items)
        self.assertIn("samples_stored", self.scene.log("evalq-logger"))
        self.assert_empty()
        # The file's own last line proves that it is whole.
        done = self.scene.evalq("samples", "arrive", "--step", "1", "--suite", "quiz", "--json")
        self.assertEqual(len(json.loads(done.stdout)["samples"]), 20, done.stderr)

    def test_full_stream_costs_the_samples_and_not_the_result(self) -> None:
        self.scene.start_worker()  # No logger takes the pieces.
        kept = []
        for step in range(1, 5):
            result = self.submit("full", step, items="40")  # More than 1 MiB each.
            kept.append("samples_digest" in result)
            self.assertIn("acc", result["metrics"])
            if not kept[-1]:
                self.assertIn("samples were not kept: the stream of samples in Redis has no room", result["note"])
        self.assertEqual(kept, [True, False, False, False])
        self.assertLessEqual(self.held(), 2 << 20)
        self.scene.start("evalq-logger")
        until(lambda: os.path.exists(self.path("full", 1)), "the logger takes what is there")
        self.assert_empty()
        result = self.submit("full", 5, items="80")
        self.assertIn("samples were not kept: their file has", result["note"])
        self.assertIn("samples.stream_bytes allows 2097152", result["note"])

    def test_worker_heartbeats_while_it_waits_for_room(self) -> None:
        self.scene.write_config(CONFIG.replace("wait_seconds: 1", "wait_seconds: 600"))
        self.scene.start_worker()
        self.submit("wait", 1, items="40")
        path = self.scene.checkpoint("wait-2.safetensors")
        words = ("--run", "wait", "--step", "2", "--suite", "quiz", "--param", "items=40")
        self.assertEqual(self.scene.evalq("submit", path, *words).returncode, 0)
        job = "evalq:{main}:job:wait/2/regular/quiz"

        def beats() -> int:
            return int(self.scene.redis_call("HGET", job, "hb").strip() or 0)

        until(lambda: b"sends samples" in self.scene.redis_call("HGET", job, "status"), "it waits")
        before = beats()
        until(lambda: beats() > before + 10, "ten heartbeats, which are two leases")
        self.assertEqual(self.scene.redis_call("HGET", job, "attempts").strip(), b"1")
        self.scene.start("evalq-logger")
        for step in (1, 2):
            until(lambda: os.path.exists(self.path("wait", step)), "both files arrive")  # noqa: B023
        self.assert_empty()

    def test_pieces_of_a_killed_worker_are_dropped_and_the_file_arrives_once(self) -> None:
        self.scene.write_config(CONFIG.replace("wait_seconds: 1", "wait_seconds: 600"))
        worker = self.scene.start_worker()
        self.submit("killed", 1, items="40")
        # The first piece of the next file waits for room. It is let in, and then the worker dies.
        path = self.scene.checkpoint("killed-2.safetensors")
        words = ("--run", "killed", "--step", "2", "--suite", "quiz", "--param", "items=40")
        self.assertEqual(self.scene.evalq("submit", path, *words).returncode, 0)
        job = "evalq:{main}:job:killed/2/regular/quiz"
        until(lambda: b"sends samples" in self.scene.redis_call("HGET", job, "status"), "it waits")
        token = self.scene.redis_call("HGET", job, "token").strip().decode()
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        half = ("killed/2/regular/quiz", token, "quiz", "0" * 32, "1000", "0", "9999999999", "half")
        self.scene.redis_call("FCALL", "evalq_v1_samples_add", "1", "evalq:{main}:", *half)
        self.scene.start("evalq-logger")
        self.scene.start_worker()
        for step in (1, 2):
            until(lambda: os.path.exists(self.path("killed", step)), "both files arrive")  # noqa: B023
        self.assert_empty()
        self.assertIn("samples_dropped job=killed/2/regular/quiz", self.scene.log("evalq-logger"))
        self.assertEqual(self.items(self.path("killed", 2)), 40)

    def test_entries_that_are_no_pieces_are_removed(self) -> None:
        self.scene.redis_call("XADD", KEY, "*", "hello", "world")
        self.scene.start("evalq-logger")
        self.assert_empty()
        self.assertIn("it is not a piece of a samples file", self.scene.log("evalq-logger"))

    def test_samples_of_a_forgotten_run_are_not_stored(self) -> None:
        self.scene.start_worker()
        self.submit("forgotten", 1)
        self.assertEqual(self.scene.evalq("forget", "forgotten", "--yes").returncode, 0)
        self.scene.start("evalq-logger")
        self.assert_empty()
        self.assertFalse(os.path.exists(self.path("forgotten", 1)))

    def test_gate_waits_for_the_file_behind_the_result(self) -> None:
        self.scene.start("evalq-logger")
        self.scene.start_worker()
        for step in (1, 2):
            path = self.scene.checkpoint(f"gate-{step}.safetensors")
            words = ("--run", "gate", "--step", str(step), "--suite", "quick")
            self.assertEqual(self.scene.evalq("submit", path, *words).returncode, 0)
        words = ("--against", "gate@1", "--no-worse-than", "0.01", "--suite", "quick", "--task", "digits")
        done = self.scene.evalq("gate", "gate@2", *words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
