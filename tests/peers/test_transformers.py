"""EvalqCallback in a real transformers.Trainer: a tiny GPT-2 on tiny Shakespeare, two workers with serve_trainer."""

from __future__ import annotations

import json
import os
import sys
import unittest
from typing import Any, List

from pace import go_on
from peers import STEPS, TrainerStackTest, evaluated, needs, until, words

needs("torch", "transformers", "accelerate")

PROGRAM = "tiny_gpt2.py"


class TransformersTest(TrainerStackTest):
    def test_each_due_step_is_evaluated_once_and_the_best_is_loaded(self) -> None:
        # The learning rate is high and constant: the loss goes up and down, and the best is in the middle.
        settings = dict(STEPS, eval_steps=5, save_steps=5, max_steps=60, save_total_limit=1, learning_rate=0.06)
        settings["lr_scheduler_type"] = "constant"
        reference = self.reference(**settings)
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings)).wait()
        outcome = self.stack.outcome()
        self.assert_same_evaluations(outcome, reference)
        self.assertEqual(sorted(map(int, self.stack.evaluations())), list(range(5, 61, 5)))
        for name in ("best_global_step", "digest"):
            self.assertEqual(outcome[name], reference[name], name)
        self.assertLess(abs(outcome["best_metric"] - reference["best_metric"]), 1e-5)
        self.assertEqual(os.path.basename(outcome["best_model_checkpoint"]), f"checkpoint-{outcome['best_global_step']}")
        left = sorted(name for name in os.listdir(self.stack.out) if name.startswith("checkpoint-"))
        self.assertEqual(left, [f"checkpoint-{outcome['best_global_step']}"])
        self.assert_pins_are_released()

    def test_nothing_is_twice_and_nothing_missing_after_a_kill(self) -> None:
        # Due steps 5, 15, ... have no save: they are snapshots. Each of two kills falls behind one that was evaluated, before
        # its save; the resumed training comes to it again.
        settings = dict(STEPS, eval_steps=5, save_steps=10, max_steps=40, save_total_limit=2)
        reference = self.reference(**settings)
        for step, resume in ((15, False), (25, True)):
            training = self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, resume=resume, hold=step + 2, **settings))
            until(lambda: str(step) in self.stack.evaluations(), f"step {step} is evaluated")
            self.stack.wait_for_hold(step + 2)
            training.kill()
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, resume=True, **settings)).wait()
        outcome = self.stack.outcome()
        self.assert_same_evaluations(outcome, reference)
        self.assertEqual(sorted(map(int, self.stack.evaluations())), list(range(5, 41, 5)))
        self.assertEqual(outcome["best_global_step"], reference["best_global_step"])
        self.assertEqual(outcome["digest"], reference["digest"])

    def test_a_name_used_again_has_the_numbers_of_its_own_weights(self) -> None:
        settings = dict(STEPS, eval_steps=5, save_steps=5, max_steps=20, save_total_limit=1, learning_rate=0.06)
        first = self.stack.start(PROGRAM, *words(evalq={"suites": "eval", "run": "same"}, **settings))
        first.wait()
        self.assertNotIn("with other weights", "".join(first.warnings()))
        settings["learning_rate"] = 0.002
        reference = self.reference(**settings)
        again = self.stack.start(PROGRAM, *words(evalq={"suites": "eval", "run": "same"}, **settings))
        again.wait()
        self.assert_same_evaluations(self.stack.outcome(), reference)
        self.assertIn("step 5 of run 'same' was submitted before with other weights", "".join(again.warnings()))

    def test_epochs_are_honoured(self) -> None:
        settings = dict(STEPS, eval_strategy="epoch", save_strategy="epoch", num_train_epochs=3, save_total_limit=1)
        reference = self.reference(**settings)
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings)).wait()
        self.assert_same_evaluations(self.stack.outcome(), reference)
        self.assertEqual(len(self.stack.evaluations()), 3)

    def test_start_accumulation_and_epochs_are_honoured(self) -> None:
        settings = dict(STEPS, eval_strategy="epoch", save_strategy="epoch", num_train_epochs=2, save_total_limit=1)
        settings.update(eval_on_start=True, gradient_accumulation_steps=3)
        reference = self.reference(**settings)
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings)).wait()
        outcome = self.stack.outcome()
        self.assert_same_evaluations(outcome, reference)
        self.assertIn(0, evaluated(outcome))
        self.assertEqual(outcome["best_global_step"], reference["best_global_step"])

    def test_saves_of_the_best_alone(self) -> None:
        # The Trainer saves what is better than all before; here that is known later, so each due step is saved.
        settings = dict(STEPS, eval_steps=5, save_strategy="best", max_steps=40, save_total_limit=1, learning_rate=0.06)
        settings["lr_scheduler_type"] = "constant"
        reference = self.reference(**settings)
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings)).wait()
        outcome = self.stack.outcome()
        self.assert_same_evaluations(outcome, reference)
        self.assertIn(reference["best_global_step"], (None, outcome["best_global_step"]))  # None: Transformers 4.
        self.assertEqual(outcome["digest"], reference["digest"])
        left = [name for name in os.listdir(self.stack.out) if name.startswith("checkpoint-")]
        self.assertEqual(left, [f"checkpoint-{outcome['best_global_step']}"])

    def test_other_callbacks_see_the_same_events(self) -> None:
        settings = {"max_steps": 20, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 5, "save_steps": 10, "record": True}
        reference = self.reference(**settings)
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings)).wait()
        outcome = self.stack.outcome()

        def but_evaluation(events: List[str]) -> List[str]:
            return [event for event in events if event not in ("on_prediction_step", "on_evaluate", "on_log eval")]

        self.assertEqual(but_evaluation(outcome["events"]), but_evaluation(reference["events"]))
        for event in ("on_evaluate", "on_log eval"):
            self.assertEqual(outcome["events"].count(event), reference["events"].count(event), event)
        self.assertNotIn("on_prediction_step", outcome["events"])

    def test_what_training_sums_for_its_own_logs_is_not_lost(self) -> None:
        settings = {"max_steps": 60, "logging_steps": 20, "eval_strategy": "steps", "eval_steps": 5, "sums": True}
        training = self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, hold=10, pace=0.05, **settings))
        until(lambda: "5" in self.stack.evaluations(), "step 5 is evaluated")
        go_on(self.stack.out)
        training.wait()
        outcome = self.stack.outcome()
        self.assertEqual(len(evaluated(outcome)), 12)
        self.assertEqual([entry["batches"] for entry in outcome["log_history"] if "loss" in entry], [20, 20, 20])

    def test_without_a_strategy_each_save_is_evaluated(self) -> None:
        settings = {"save_strategy": "steps", "save_steps": 10, "max_steps": 30, "logging_steps": 10}
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings)).wait()
        self.assertEqual(sorted(evaluated(self.stack.outcome())), [10, 20, 30])

    def test_a_curve_has_the_name_that_the_trainer_itself_writes(self) -> None:
        from transformers.integrations.integration_utils import rewrite_logs

        settings = {"save_strategy": "steps", "save_steps": 10, "max_steps": 10, "logging_steps": 10}
        self.stack.start(PROGRAM, *words(evalq={"suites": "eval", "run": "named"}, **settings)).wait()
        for name in rewrite_logs({"eval_loss": 0.0, "eval_accuracy": 0.0}):
            best = until(lambda: self.best("named", name), f"{name} has a best checkpoint")
            self.assertEqual((best["metric"], best["step"]), (name, 10))

    def best(self, run: str, metric: str) -> Any:
        try:
            return json.loads(self.stack.evalq("best", run, metric, "--json"))
        except AssertionError:
            return None  # No result has passed through the logger yet.

    def test_ranks_submit_once_and_stop_together(self) -> None:
        # Nothing improves at a learning rate of nearly nothing by the accuracy.
        settings = dict(STEPS, eval_steps=3, save_steps=6, max_steps=400, early=2, pace=0.05, hold=10, learning_rate=1e-9)
        settings["metric_for_best_model"] = "accuracy"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        training = self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings), launcher=launcher)
        until(lambda: len(self.stack.evaluations()) == 3, "steps 3, 6 and 9 are evaluated")
        go_on(self.stack.out)
        training.wait()
        first, second = self.stack.outcome(), self.stack.outcome("outcome-1.json")
        self.assertLess(first["global_step"], 400)
        for name in ("global_step", "best_global_step", "best_metric", "best_model_checkpoint", "digest"):
            self.assertEqual(first[name], second[name], name)
        self.assertEqual(evaluated(first).keys(), evaluated(second).keys())
        evaluations = list(map(int, self.stack.evaluations()))
        self.assertEqual(len(evaluations), len(set(evaluations)))
        # Two evaluations in a row without an improvement were enough; what was under way by then still arrives.
        self.assertGreaterEqual(len(evaluated(first)), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
