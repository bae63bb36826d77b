"""What significant=True decides in a training, with real samples files and `evalq compare`."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List
from unittest import mock

from samples_file import write_samples
from scene import BIN

from evalq.integrations.best import BestSoFar, beats
from evalq.integrations.due_evaluations import Evaluation
from evalq.integrations.paired_test import PairedTest

ITEMS = 400


class BeatsTest(unittest.TestCase):
    def test_both_must_agree(self) -> None:
        for value, answer, expected in (
            (2.0, True, True), (2.0, False, False), (2.0, None, True),
            (0.5, True, False), (1.0, True, False),
        ):  # fmt: skip
            asked: List[int] = []

            def confirm(step: int, asked: Any = asked, answer: Any = answer) -> Any:
                asked.append(step)
                return answer

            self.assertIs(beats(value, 7, (1.0, 5), True, confirm), expected, (value, answer))
            self.assertEqual(asked, [5] if value > 1.0 else [])  # It costs nothing otherwise.

    def test_best_so_far_stays_until_a_step_is_significantly_better(self) -> None:
        args = SimpleNamespace(greater_is_better=True, save_strategy="steps")
        names = ("best_metric", "best_global_step", "best_model_checkpoint")
        state = SimpleNamespace(**dict.fromkeys(names))
        best = BestSoFar(lambda step: f"checkpoint-{step}")
        steps = ((5, 0.1, None), (10, 0.2, False), (15, 0.3, True), (20, 0.4, False))
        for step, value, answer in steps:
            best.note(args, state, step, value, lambda _, answer=answer: answer)
        self.assertEqual((state.best_metric, state.best_global_step), (0.3, 15))
        self.assertEqual(state.best_model_checkpoint, "checkpoint-15")


class PairedTestTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="evalq-py-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.config = os.path.join(self.folder, "evalq.yaml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write("roots: {here: .}\nsamples: {directory: kept}\n")
        patch = mock.patch.dict(os.environ, PATH=BIN + os.pathsep + os.environ["PATH"])
        patch.start()
        self.addCleanup(patch.stop)
        self.test = PairedTest(self.config)

    def keep(self, step: int, right: int, job: str = "quiz") -> Evaluation:
        """The samples of a step whose first items are right."""
        name = f"run/{step}/regular/{job}"
        os.makedirs(os.path.join(self.folder, "kept", name))
        header = {"evalq_samples": 2, "job": name, "task": "math", "suite_digest": "0" * 32}
        header.update(data_digest="", weighted="")
        path = os.path.join(self.folder, "kept", name, "math.jsonl.gz")
        lines = []
        for item in range(ITEMS):
            scores = {"acc": int(item < right), "loss": float(item >= right)}
            lines.append(json.dumps({"id": str(item), "scores": scores}) + "\n")
        write_samples(path, json.dumps(header) + "\n", lines)
        sources = {"eval_acc": ("math", "acc"), "eval_loss": ("math", "loss")}
        return Evaluation(step, job, "regular", None, "done", "", job=name, sources=sources)

    def better(
        self, evaluation: Evaluation, than: int, name: str = "eval_acc", greater: bool = True
    ) -> Any:
        return self.test.confirm(evaluation, name, greater)(than)

    def test_answers_are_those_of_the_paired_test(self) -> None:
        self.keep(5, 100)
        # McNemar: 5 wins of 5 have p = 0.0625, 6 of 6 have 0.03125.
        self.assertIs(self.better(self.keep(10, 105), 5), False)
        better = self.keep(15, 106)
        self.assertIs(self.better(better, 5), True)
        self.assertIs(self.better(better, 5, "eval_loss", greater=False), True)
        self.assertIs(self.better(better, 5, "eval_loss", greater=True), False)
        self.assertIs(self.better(self.keep(20, 50), 5), False)  # Significantly worse.
        self.assertIs(self.better(self.keep(25, 106, "quiz~2"), 15), False)

    def test_each_pair_is_compared_once(self) -> None:
        self.keep(5, 100)
        evaluation = self.keep(10, 200)
        self.assertIs(self.better(evaluation, 5), True)
        with mock.patch("subprocess.run", side_effect=AssertionError("again")):
            self.assertIs(self.better(evaluation, 5), True)

    def test_what_cannot_be_compared_is_said_once(self) -> None:
        first, second = self.keep(5, 100), self.keep(10, 200)
        with self.assertLogs("evalq", "DEBUG") as logs:
            self.assertIsNone(self.better(first, 1))
            self.assertIsNone(self.better(second, 1))
            self.assertIsNone(self.better(second, 5, "eval_f1"))
            path = os.path.join(self.folder, "kept/run/10/regular/quiz/math.jsonl.gz")
            with open(path, "wb") as file:
                file.write(b"broken")
            self.assertIsNone(self.better(second, 5))
            with mock.patch.dict(os.environ, PATH="/nowhere"):
                self.assertIsNone(self.better(second, 7))
        levels: Dict[str, int] = {}
        for record in logs.records:
            levels[record.levelname] = levels.get(record.levelname, 0) + 1
        self.assertEqual(levels, {"WARNING": 1, "DEBUG": 4})
        said = logs.records[0].getMessage()
        self.assertIn("step 5: significant=True has no samples to compare", said)
        self.assertIn("run@1 has no samples of task math of suite quiz", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
