"""Tests when `evalq scan` treats a checkpoint of an unknown format as complete: when the suite's
marker exists, or after two seconds without a change. No worker runs; the test reads the queue."""

from __future__ import annotations

import json
import os
import threading
import unittest
from typing import Any, Dict

from scene import Scene, until

CONFIG = """
roots: {here: $OUT}
evaluators: {any: {argv: [$PYTHON, -c, pass]}}
suites:
  any: {evaluator: any}
  marked: {evaluator: any, ready: commit_success.txt}
  own: {tasks: [{name: text, type: perplexity, text: $OUT/text}]}
"""


class ScanTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.scene.write_config(CONFIG)
        self.scene.start_redis()
        self.write("text", b"text")

    def write(self, name: str, content: bytes) -> str:
        path = os.path.join(self.scene.out, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def scan(self, suite: str, code: int = 0) -> Dict[str, Any]:
        done = self.scene.evalq("scan", self.scene.out, "--run", "r", "--suite", suite, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        found = json.loads(done.stdout)
        found["checkpoints"] = {one["name"]: one["answer"] for one in found["checkpoints"]}
        self.said = done.stderr
        return dict(found)

    def test_any_format_is_taken_once_it_stays_the_same(self) -> None:
        names = ["step-1.gguf", "step_2.npz", "model-3.onnx", "net-4.h5", "net-5.keras", "t-6.msgpack", "m-7.nemo"]
        for name in names:
            self.write(name, b"\0" * 10)
        self.write("8/ocdbt.process_0/d/abc", b"weights")
        self.write("9/.empty", b"")
        os.mkdir(os.path.join(self.scene.out, "10"))
        found = self.scan("any")
        self.assertEqual(found["checkpoints"], {**dict.fromkeys([*names, "8", "9"], "queued"), "10": "incomplete"})
        self.assertEqual((found["submitted"], found["incomplete"], found["refused"]), (9, 1, 0))
        found = self.scan("any")
        self.assertEqual((found["submitted"], found["duplicates"]), (0, 9))

    def test_what_grows_waits(self) -> None:
        path = self.write("step-1.npz", b"more")
        stop = threading.Event()

        def grow() -> None:
            with open(path, "ab", buffering=0) as file:
                while not stop.wait(0.05):
                    file.write(b"more")

        writer = threading.Thread(target=grow)
        writer.start()
        try:
            found = self.scan("any")
            self.assertEqual((found["checkpoints"], found["submitted"]), ({"step-1.npz": "incomplete"}, 0))
        finally:
            stop.set()
            writer.join()
        self.assertEqual(self.scan("any")["checkpoints"], {"step-1.npz": "queued"})

    def test_watching_takes_it_when_it_has_stopped_to_change(self) -> None:
        self.scene.start("evalq", "scan", self.scene.out, "--run", "r", "--suite", "any", "--watch", "--plain")
        self.write("5/part", b"weights")
        until(lambda: self.scene.redis_call("EXISTS", "evalq:{main}:job:r/5/regular/any").strip() == b"1", "step 5 is submitted")

    def test_a_suite_waits_for_its_marker(self) -> None:
        self.write("3/weights", b"weights")
        self.assertEqual(self.scan("marked")["checkpoints"], {"3": "incomplete"})
        self.write("3/commit_success.txt", b"")
        self.assertEqual(self.scan("marked")["checkpoints"], {"3": "queued"})

    def test_the_native_evaluator_is_given_nothing_that_it_cannot_read(self) -> None:
        self.write("checkpoint-5/config.json", b"{}")
        found = self.scan("own", code=9)
        self.assertEqual((found["checkpoints"], found["submitted"]), ({"checkpoint-5": "refused"}, 0))
        self.assertIn("the suite 'own' cannot evaluate 'checkpoint-5': ", self.said)

    def test_a_marker_lies_in_the_checkpoint(self) -> None:
        for name in ("/etc/passwd", "../done"):
            self.scene.write_config(CONFIG.replace("commit_success.txt", name))
            done = self.scene.evalq("scan", self.scene.out, "--run", "r", "--suite", "marked")
            self.assertEqual(done.returncode, 8, done.stderr)
            self.assertIn(f'suites.marked.ready is "{name}", expected the name of a file', done.stderr)


if __name__ == "__main__":
    unittest.main()
