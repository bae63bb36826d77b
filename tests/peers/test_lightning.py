"""EvalqCallback and EvalqLogger in a real Lightning Trainer: an MLP 10-20-1, two workers with serve_lightning."""

from __future__ import annotations

import csv
import os
import unittest
from typing import Dict

from pace import go_on
from peers import Stack, StackTest, needs, until, words

needs("torch", "lightning", "pytorch_lightning")

import torch  # noqa: E402

PROGRAM = "tiny_lightning.py"


class LightningTest(StackTest):
    def logged(self) -> Dict[int, float]:
        """val_loss by step, as the trainer's own logger has it, all versions together: loggers count batches from 0, and have
        what validates after batch 9 at 9; see also test_curves."""
        found: Dict[int, float] = {}
        folder = os.path.join(self.stack.out, "csv")
        for version in sorted(os.listdir(folder)):
            with open(os.path.join(folder, version, "metrics.csv"), encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    if row.get("val_loss"):
                        found[int(row["step"]) + 1] = float(row["val_loss"])
        return found

    def assert_as_validate(self, steps: "list[int]") -> None:
        """Each is what trainer.validate() gives for that step's checkpoint, and nothing was evaluated twice."""
        logged = self.logged()
        self.assertEqual(sorted(logged), steps)
        self.assertEqual(len(self.stack.evaluations()), len(steps))
        reference = self.stack.start(
            "tiny_lightning.py", "reference=true", *words(max_epochs=max(steps) // 10)
        )
        reference.wait()
        for step, value in self.stack.outcome("reference.json").items():
            difference = abs(logged[int(step)] - value)
            self.assertTrue(difference <= 1e-5, f"step {step}: val_loss {logged[int(step)]}, expected {value}")

    def test_each_epoch_is_evaluated_once_and_the_best_is_kept(self) -> None:
        self.stack.start(PROGRAM, *words(max_epochs=8, evalq={"monitor": "val_loss"})).wait()
        self.assert_as_validate(list(range(10, 81, 10)))
        logged = self.logged()
        best = min(logged, key=lambda step: (logged[step], step))
        outcome = self.stack.outcome()
        # save_top_k=1 had removed it long before its metric was known.
        self.assertIn(f"step={best}.ckpt", outcome["best_model_path"])
        self.assertTrue(os.path.exists(outcome["best_model_path"]))
        self.assertEqual(outcome["loggers"], 1)

    def test_the_best_of_steps_that_are_saved_to_one_path(self) -> None:
        # Its validation loss rises from the first epoch on: the best is the one that all others were saved over.
        settings = words(max_epochs=5, filename="model", evalq={"monitor": "val_loss"})
        training = self.stack.start(PROGRAM, *settings, *words(hold=25, pace=0.05))
        self.stack.wait_for_hold(25)
        training.kill()
        path = os.path.join(self.stack.out, "checkpoints", "model.ckpt")
        self.stack.start(PROGRAM, *settings, *words(resume=path)).wait()
        self.assert_as_validate([10, 20, 30, 40, 50])  # Once each: none of another step's weights.
        logged = self.logged()
        best = min(logged, key=lambda step: (logged[step], step))
        self.assertLess(best, 50)
        outcome = self.stack.outcome()
        self.assertEqual((outcome["best"]["step"], outcome["best"]["path"]), (best, outcome["best_model_path"]))
        held = torch.load(outcome["best_model_path"], weights_only=True)
        self.assertEqual(held["global_step"], best)

    def test_the_other_import_name_and_saves_in_the_background(self) -> None:
        settings = words(max_epochs=5, asynchronous=True, top_k=-1, last=True, evalq={})
        self.stack.start(PROGRAM, *settings, EVALQ_LIGHTNING="pytorch_lightning").wait()
        self.assert_as_validate([10, 20, 30, 40, 50])

    def test_a_factory_of_either_import_name(self) -> None:
        for name in ("lightning.pytorch", "pytorch_lightning"):
            with self.subTest(factory=name):
                self.stack.close()
                self.stack = Stack(workers=1, EVALQ_LIGHTNING=name)
                self.addCleanup(self.stack.close)
                self.stack.up()
                self.stack.start(PROGRAM, *words(max_epochs=2, evalq={})).wait()
                self.assert_as_validate([10, 20])
                self.assertEqual(set(self.stack.evaluations()), {name})

    def test_the_logger_alone(self) -> None:
        self.stack.start(PROGRAM, *words(max_epochs=4, top_k=-1, logger_alone=True, pace=0.1)).wait()
        until(lambda: len(self.stack.evaluations()) == 4, "what was submitted is evaluated")

    def test_weights_are_taken_from_memory_without_a_model_checkpoint(self) -> None:
        self.stack.start(PROGRAM, *words(max_epochs=4, top_k=None, pace=0.05, evalq={"snapshots": 8})).wait()
        self.assert_as_validate([10, 20, 30, 40])

    def test_training_stops_after_patience(self) -> None:
        # The validation loss of this data rises from the first epoch on.
        settings = words(max_epochs=60, pace=0.05, hold=35, evalq={"monitor": "val_loss", "patience": 2})
        training = self.stack.start(PROGRAM, *settings)
        until(lambda: len(self.stack.evaluations()) == 3, "three epochs are evaluated")
        go_on(self.stack.out)
        training.wait()
        self.assertLess(self.stack.outcome()["step"], 600)

    def test_nothing_is_twice_and_nothing_missing_after_a_kill(self) -> None:
        settings = words(max_epochs=8, top_k=-1, evalq={"monitor": "val_loss"})
        training = self.stack.start(PROGRAM, *settings, *words(hold=45))
        self.stack.wait_for_hold(45)
        training.kill()
        saved = os.path.join(self.stack.out, "checkpoints")
        names = [name for name in os.listdir(saved) if name.endswith(".ckpt")]
        newest = max(names, key=lambda name: int(name.rpartition("=")[2].partition(".")[0]))
        self.stack.start(PROGRAM, *settings, *words(resume=os.path.join(saved, newest))).wait()
        self.assert_as_validate(list(range(10, 81, 10)))

    def test_ranks_submit_once(self) -> None:
        self.stack.start(PROGRAM, *words(max_epochs=3, devices=2, strategy="ddp", evalq={"monitor": "val_loss"})).wait()
        self.assertEqual(sorted(self.logged()), [5, 10, 15])
        self.assertEqual(len(self.stack.evaluations()), 3)

    def test_training_goes_on_when_nobody_answers(self) -> None:
        training = self.stack.start(PROGRAM, *words(max_epochs=2, evalq={"wait": 1}), EVALQ_URL="redis://127.0.0.1:1")
        training.wait()
        self.assertEqual(len([line for line in training.warnings() if "submits are kept" in line]), 1)
        self.assertEqual(self.stack.outcome()["step"], 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
