"""EvalqCallback(newest=True): a worker that has nothing else to do evaluates the newest weights, again and again."""

from __future__ import annotations

import csv
import os
import unittest
from typing import Dict

from pace import go_on
from peers import STEPS, TrainerStackTest, evaluated, needs, until, words

needs("torch", "transformers", "lightning")


class NewestTest(TrainerStackTest):
    def assert_between(self, found: Dict[int, float], wanted: Dict[int, float], due: "list[int]") -> None:
        """All due steps and some others, each with the number of its own weights."""
        between = sorted(set(found) - set(due))
        self.assertEqual(sorted(set(found) & set(due)), due)
        self.assertGreaterEqual(len(between), 3, between)
        for step, value in found.items():
            difference = abs(value - wanted[step])
            self.assertTrue(difference <= 1e-5, f"step {step}: {value}, expected {wanted[step]}")
        self.assertEqual(len(self.stack.evaluations()), len(found), "none was evaluated twice")

    def go_on_when_warm(self, step: int) -> None:
        """The training waits at the step until its evaluator has started, which may take longer than all its steps."""
        self.stack.wait_for_hold(step)
        until(self.stack.evaluations, "a first evaluation")
        go_on(self.stack.out)

    def test_lightning(self) -> None:
        settings = {"max_epochs": 12, "checkpoint": {"monitor": "val_loss"}, "top_k": 2}
        settings["stopping"] = {"monitor": "val_loss", "patience": 100}
        training = self.stack.start("tiny_lightning.py", *words(evalq={"newest": True}, pace=0.1, hold=11, **settings))
        self.go_on_when_warm(11)
        training.wait()
        found: Dict[int, float] = {}
        with open(os.path.join(self.stack.out, "csv", "version_0", "metrics.csv"), encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row.get("val_loss"):
                    found[int(row["step"]) + 1] = float(row["val_loss"])
        outcome = self.stack.outcome()
        self.stack.start("tiny_lightning.py", "reference=true", *words(max_epochs=12, each_step=True)).wait()
        wanted = {int(step): value for step, value in self.stack.outcome("reference.json").items()}
        due = list(range(10, 121, 10))
        self.assert_between(found, wanted, due)
        # Only due steps decide.
        best = sorted(due, key=lambda step: wanted[step])[:2]
        self.assertEqual(sorted(outcome["kept"]), sorted(f"epoch={step // 10 - 1}-step={step}.ckpt" for step in best))
        self.assertLess(outcome["stopper"]["bad"], len(due))

    def test_trainer(self) -> None:
        settings = dict(STEPS, save_steps=40, max_steps=120, save_total_limit=2, lr_scheduler_type="constant")
        wanted = {step: entry["eval_loss"] for step, entry in evaluated(self.every_step(settings)).items()}
        evalq = {"suites": "eval", "newest": True}
        training = self.stack.start("tiny_gpt2.py", *words(evalq=evalq, eval_steps=40, pace=0.1, hold=41, early=3, **settings))
        self.go_on_when_warm(41)
        training.wait()
        outcome = self.stack.outcome()
        found = {step: entry["eval_loss"] for step, entry in evaluated(outcome).items()}
        due = [40, 80, 120]
        self.assert_between(found, wanted, due)
        self.assertEqual(outcome["best_global_step"], min(due, key=lambda step: wanted[step]))

    def every_step(self, settings: "dict[str, object]") -> "dict[str, object]":
        return self.reference(**{**settings, "save_steps": 120, "eval_steps": 1})


if __name__ == "__main__":
    unittest.main(verbosity=2)
