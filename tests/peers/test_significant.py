"""significant=True in a real transformers.Trainer and in Lightning: a paired test of the samples decides the best model and early
stopping."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any, Dict, List, Optional

from pace import go_on
from peers import BIN, STEPS, StackTest, needs, until, words

needs("torch", "transformers", "accelerate", "lightning")

PROGRAM = "tiny_gpt2.py"
ITEMS = 1000
# Each evaluation has one more answer right than the one before, of other items; between 15 and 20 it is 200.
ANSWERS = f"""
import json, os, random
with open(os.environ["EVALQ_JOB"]) as file:
    job = json.load(file)
step = job["step"]
with open(os.path.join(os.path.dirname(__file__), "evaluations"), "a") as file:
    file.write(f"{{step}}\\n")
right = (300 if step < 20 else 500) + step // 5
known = set(random.Random(step).sample(range({ITEMS}), right))
folder = os.path.dirname(os.environ["EVALQ_RESULT"])
with open(os.path.join(folder, "samples.jsonl"), "w") as file:
    for item in range({ITEMS}):
        file.write(json.dumps({{"id": str(item), "scores": {{"accuracy": item in known}}}}) + "\\n")
with open(os.environ["EVALQ_RESULT"], "w") as file:
    json.dump({{"accuracy": right / {ITEMS}}}, file)
"""
CONFIG = """evaluators:
  answers: {{kind: command, argv: [python3, {answers}]}}
suites:
  kept: {{evaluator: answers, samples: true, tasks: [{{name: eval}}]}}
  lost: {{evaluator: answers, tasks: [{{name: eval}}]}}
"""
SETTINGS = dict(STEPS, metric_for_best_model="accuracy", eval_steps=5, save_steps=5, save_total_limit=1)


class SignificantTest(StackTest):
    starts_up = False

    def setUp(self) -> None:
        super().setUp()
        answers = os.path.join(self.stack.directory, "answers.py")
        with open(answers, "w", encoding="utf-8") as file:
            file.write(ANSWERS)
        path = os.path.join(self.stack.directory, "evalq.yaml")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        added = CONFIG.format(answers=answers)
        evaluators, suites = added.partition("suites:\n")[::2]
        text = text.replace("evaluators:\n", evaluators, 1).replace("suites:\n", "suites:\n" + suites, 1)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.stack.up()

    def train(self, suite: str, significant: bool, **settings: Any) -> Any:
        evalq: Dict[str, Any] = {"suites": suite, "significant": significant}
        training = self.stack.start(PROGRAM, *words(evalq=evalq, **{**SETTINGS, **settings}), **self.path())
        training.wait()
        return training

    def path(self) -> Dict[str, str]:
        return {"PATH": BIN + os.pathsep + os.environ["PATH"]}

    def best_is(self, step: int) -> Dict[str, Any]:
        outcome = self.stack.outcome()
        self.assertEqual(outcome["best_global_step"], step)
        self.assertEqual(os.path.basename(outcome["best_model_checkpoint"]), f"checkpoint-{step}")
        return outcome

    def train_until_it_stops(self, launcher: Optional[List[str]] = None) -> Any:
        evalq = {"suites": "kept", "significant": True}
        settings = words(evalq=evalq, **SETTINGS, max_steps=100, early=3, pace=0.1, hold=48)
        training = self.stack.start(PROGRAM, *settings, launcher=launcher, **self.path())
        # Of nine evaluations, at most one has no result yet.
        until(lambda: len(self.stack.evaluations()) == 9, "steps 5 to 45 are evaluated")
        go_on(self.stack.out)
        training.wait()
        return training

    def test_training_stops_when_nothing_gets_significantly_better(self) -> None:
        training = self.train_until_it_stops()
        outcome = self.best_is(20)
        self.assertEqual(outcome["best_metric"], 0.504)
        self.assertLess(outcome["global_step"], 100)
        logged = [entry["step"] for entry in outcome["log_history"] if "eval_accuracy" in entry]
        self.assertEqual(logged[:9], list(range(5, 50, 5)))
        self.assertNotIn("significant", "".join(training.warnings()))

    def test_all_ranks_take_the_decision_of_the_paired_test(self) -> None:
        self.train_until_it_stops([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])
        first, second = self.best_is(20), self.stack.outcome("outcome-1.json")
        self.assertEqual((first["rank"], second["rank"]), (0, 1))
        self.assertLess(first["global_step"], 100)
        for name in ("global_step", "best_global_step", "best_metric", "best_model_checkpoint", "digest"):
            self.assertEqual(first[name], second[name], name)

    def test_without_the_option_any_better_number_wins(self) -> None:
        self.train("kept", False, max_steps=45, early=3)
        self.assertEqual(self.best_is(45)["global_step"], 45)

    def test_without_samples_the_number_decides_and_one_warning_says_so(self) -> None:
        training = self.train("lost", True, max_steps=15)
        self.best_is(15)
        said = [line for line in training.warnings() if "significant" in line]
        self.assertEqual(len(said), 1, said)
        self.assertIn("significant=True has no samples to compare", said[0])
        self.assertIn("its suite does not have samples: true", said[0])

    def test_lightning_keeps_the_last_that_is_significantly_better(self) -> None:
        evalq = {"suites": "kept", "monitor": "accuracy", "mode": "max", "significant": True}
        self.stack.start("tiny_lightning.py", *words(max_epochs=5, evalq=evalq), **self.path()).wait()
        outcome = self.stack.outcome()
        self.assertEqual(outcome["best"]["step"], 20)
        self.assertIn("step=20.ckpt", outcome["best_model_path"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
