"""Callbacks and schedulers of Lightning that monitor val_loss, which evalq's workers measure while training goes on."""

from __future__ import annotations

import os
import subprocess
import unittest
from typing import Any, Dict

from pace import go_on
from peers import BIN, StackTest, needs, until, words

needs("torch", "lightning", "pytorch_lightning")

PROGRAM = "tiny_lightning.py"


class MonitorsTest(StackTest):
    def synchronous(self, **settings: Any) -> Dict[str, Any]:
        """The outcome of the same training with Lightning's own validation."""
        out, self.stack.out = self.stack.out, os.path.join(self.stack.directory, "synchronous")
        try:
            self.stack.start(PROGRAM, *words(limit_val_batches=1.0, **settings)).wait()
            return self.stack.outcome()
        finally:
            self.stack.out = out

    def assert_same_choice(self, found: Dict[str, Any], wanted: Dict[str, Any]) -> None:
        """The same files with the same scores, and no others."""
        self.assertEqual(sorted(found["kept"]), sorted(wanted["kept"]))
        self.assertEqual(found["files"], wanted["files"])
        for name, score in wanted["kept"].items():
            difference = abs(found["kept"][name] - score)
            self.assertTrue(difference <= 1e-5, f"{name}: {found['kept'][name]}, expected {score}")
        self.assertEqual(os.path.basename(found["best_model_path"]), os.path.basename(wanted["best_model_path"]))
        self.assertTrue(os.path.exists(found["best_model_path"]))

    def test_model_checkpoint_keeps_what_validation_here_would_have_kept(self) -> None:
        settings: Dict[str, Any] = {"max_epochs": 8, "top_k": 2, "checkpoint": {"monitor": "val_loss"}}
        settings["stopping"] = {"monitor": "val_loss", "patience": 100}
        self.stack.start(PROGRAM, *words(evalq={}, **settings)).wait()
        found, wanted = self.stack.outcome(), self.synchronous(**settings)
        self.assertEqual(found["step"], 80)
        self.assert_same_choice(found, wanted)
        self.assertTrue(abs(found["val_loss"] - wanted["val_loss"]) <= 1e-5, "the newest metric is there after fit()")

    def test_the_largest_and_saves_by_steps(self) -> None:
        checkpoint = {"monitor": "val_loss", "mode": "max"}
        settings: Dict[str, Any] = {"max_epochs": 5, "top_k": 3}
        # With validation here, a save by steps would be judged by the metric of the validation before it.
        wanted = self.synchronous(**settings, checkpoint=checkpoint)
        self.stack.start(PROGRAM, *words(evalq={}, checkpoint={**checkpoint, "every_n_train_steps": 10}, **settings)).wait()
        self.assert_same_choice(self.stack.outcome(), wanted)

    def test_early_stopping_and_a_plateau_judge_each_metric_at_its_step(self) -> None:
        # The validation loss of this data rises from the first epoch on.
        settings: Dict[str, Any] = {"max_epochs": 60, "plateau": {"patience": 0, "factor": 0.5}}
        settings["stopping"] = {"monitor": "val_loss", "patience": 2, "verbose": True}
        training = self.stack.start(PROGRAM, *words(evalq={}, pace=0.05, hold=45, **settings))
        # More results than its patience come at once; those after its decision change nothing.
        until(lambda: len(self.stack.evaluations()) == 4, "four epochs are evaluated")
        go_on(self.stack.out)
        training.wait()
        found, wanted = self.stack.outcome(), self.synchronous(**settings)
        self.assertLess(found["step"], 600)
        self.assertTrue(abs(found["stopper"]["best"] - wanted["stopper"]["best"]) <= 1e-5, found["stopper"])
        self.assertEqual(found["stopper"]["bad"], 2)
        self.assertLess(found["lr"], 0.01)

    def test_a_resumed_training_chooses_among_all(self) -> None:
        settings: Dict[str, Any] = {"max_epochs": 8, "top_k": 2, "last": True, "checkpoint": {"monitor": "val_loss"}}
        training = self.stack.start(PROGRAM, *words(evalq={}, hold=45, **settings))
        self.stack.wait_for_hold(45)
        training.kill()
        last = os.path.join(self.stack.out, "checkpoints", "last.ckpt")
        self.stack.start(PROGRAM, *words(evalq={}, resume=last, **settings)).wait()
        found, wanted = self.stack.outcome(), self.synchronous(**settings)
        self.assertEqual(sorted(found["kept"].values())[0], found["kept"][os.path.basename(found["best_model_path"])])
        best = os.path.basename(wanted["best_model_path"])
        self.assertEqual(os.path.basename(found["best_model_path"]), best)
        self.assertTrue(abs(found["kept"][best] - wanted["kept"][best]) <= 1e-5)

    def test_two_processes_choose_alike(self) -> None:
        settings: Dict[str, Any] = {"max_epochs": 4, "top_k": 1, "checkpoint": {"monitor": "val_loss"}}
        settings["stopping"] = {"monitor": "val_loss", "patience": 100}
        self.stack.start(PROGRAM, *words(evalq={}, devices=2, strategy="ddp", **settings)).wait()
        outcome = self.stack.outcome()
        self.assertEqual(len(outcome["kept"]), 1)
        self.assertEqual(outcome["files"], list(outcome["kept"]))

    def test_what_cannot_work_is_said_before_training(self) -> None:
        checkpoint = {"monitor": "val_los", "filename": "{epoch}-{val_los:.2f}"}
        settings: Dict[str, Any] = {"max_epochs": 2, "top_k": 1, "checkpoint": checkpoint}
        training = self.stack.start(PROGRAM, *words(evalq={}, **settings))
        training.wait()
        said = training.warnings()
        self.assertEqual(len([line for line in said if "show nan for val_los, which is not known" in line]), 1, said)
        self.assertEqual(len([line for line in said if "waits for val_los, which" in line]), 1, said)
        # Nobody knows which one is the best, so none is removed.
        self.assertEqual(self.stack.outcome()["files"], ["epoch=0-val_los=nan.ckpt", "epoch=1-val_los=nan.ckpt"])

    def test_the_logger_alone_says_what_it_cannot_give(self) -> None:
        settings: Dict[str, Any] = {"max_epochs": 1, "top_k": 1, "checkpoint": {"monitor": "val_loss"}}
        training = self.stack.start(PROGRAM, *words(logger_alone=True, **settings))
        training.wait()
        said = training.warnings()
        self.assertEqual(len([line for line in said if "EvalqLogger cannot give val_loss" in line]), 1, said)


class WrongRootTest(StackTest):
    """A worker of another machine, which does not see the training's directory."""

    starts_up = False

    def setUp(self) -> None:
        super().setUp()
        self.stack.workers = 0
        self.stack.up()
        elsewhere = os.path.join(self.stack.directory, "elsewhere")
        os.mkdir(elsewhere)
        with open(os.path.join(self.stack.directory, "evalq.yaml"), encoding="utf-8") as file:
            text = file.read()
        with open(os.path.join(elsewhere, "evalq.yaml"), "w", encoding="utf-8") as file:
            file.write(text.replace(f"roots: {{work: {self.stack.directory}}}", f"roots: {{work: {elsewhere}}}"))
        with open(os.path.join(self.stack.state, "url"), encoding="utf-8") as file:
            address = {"EVALQ_URL": file.read().strip()}
        address["EVALQ_REDIS_PASSWORD_FILE"] = os.path.join(self.stack.state, "password")
        worker = subprocess.Popen([os.path.join(BIN, "evalq-worker")], cwd=elsewhere, env=self.stack.environment(**address))
        self.addCleanup(worker.wait)
        self.addCleanup(worker.terminate)

    def test_checkpoints_that_no_worker_finds_stay(self) -> None:
        settings: Dict[str, Any] = {"max_epochs": 3, "top_k": 1, "checkpoint": {"monitor": "val_loss"}}
        self.stack.start(PROGRAM, *words(evalq={}, **settings)).wait()
        self.assertEqual(len(self.stack.outcome()["files"]), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
