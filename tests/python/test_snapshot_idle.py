"""Tests submit_state_dict(when="idle"): an idle worker asks, and the next step submits its weights.
The evaluator returns the values of the weights, so each result shows its step."""

from __future__ import annotations

import os
import time
import unittest
from typing import Any, Dict, List

from scene import DEADLINE, PACKAGE, SceneTest, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

CONFIG = f"""
roots:
  out: $OUT
evaluators:
  mine:
    kind: persistent
    argv: [$PYTHON, -m, evalq.serve, "my_eval:evaluate"]
    directory: $OUT
    env: {{PYTHONPATH: "{PACKAGE}"}}
suites:
  quick: {{evaluator: mine, tasks: [{{name: t}}]}}
  other: {{evaluator: mine, tasks: [{{name: t}}]}}
worker:
  devices: cpu
  threads: 1
"""

MY_EVAL = """
def evaluate(checkpoint, task, report):
    return {"step": float(checkpoint.load()["step"][0])}
"""

EVALUATIONS = 12


@unittest.skipIf(numpy is None, "numpy is not installed")
class IdleTest(SceneTest):
    config = CONFIG
    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        with open(os.path.join(cls.scene.out, "my_eval.py"), "w", encoding="utf-8") as file:
            file.write(MY_EVAL)

    def loop(self, client: Any, submits: int, **options: Any) -> "List[int]":
        """Trains until so many snapshots were taken. Each step adds one to the weights. Returns the
        steps that were taken."""
        taken: "List[int]" = []
        state = {"step": numpy.zeros(4, "f8")}

        def train() -> bool:
            state["step"] += 1
            step = int(state["step"][0])
            if client.submit_state_dict(state, step=step, suites="quick", when="idle", **options):
                taken.append(step)
            return len(taken) >= submits

        until(train, f"{submits} snapshots are asked for, got {len(taken)}")
        return taken

    def test_free_worker_evaluates_the_newest_weights_again_and_again(self) -> None:
        worker = self.scene.start_worker()
        with self.scene.client("loop") as client:
            taken = self.loop(client, EVALUATIONS)
            self.assertTrue(client.wait(DEADLINE))
            until(lambda: client.stats().snapshots == 0, "all are released")
            found: "Dict[int, float]" = {}
            states = []
            for result in client.results():
                if result.is_end:
                    states.append(result.state)
                else:
                    self.assertNotIn(result.step, found)
                    found[result.step] = result.value
            # There is one snapshot for each request; each was evaluated at once, and none was
            # superseded or dropped.
            self.assertEqual(states, ["done"] * EVALUATIONS)
            self.assertEqual(found, {step: float(step) for step in taken})
            self.assertEqual(client.stats().snapshots_dropped, 0)
        worker.terminate()
        worker.wait(DEADLINE)

    def test_no_idle_worker_returns_false_in_microseconds(self) -> None:
        with self.scene.client("nobody") as client:
            state = {"a": numpy.zeros(4, "f4")}
            calls = 2000
            self.assertFalse(client.submit_state_dict(state, step=0, suites="other", when="idle"))
            rounds = []
            for _ in range(10):
                began = time.perf_counter()
                for step in range(calls):
                    if client.submit_state_dict(state, step=step, suites="other", when="idle"):
                        self.fail("nobody asked")
                rounds.append((time.perf_counter() - began) / calls)
            each = min(rounds)  # On a busy machine some calls are slow, but not all.
            print(f"\nsubmit_state_dict(when='idle') with nobody free: {each * 1e6:.2f} us a call")
            self.assertTrue(each < 50e-6, each)
            self.assertEqual(client.stats().submitted, 0)

    def test_function_is_called_only_when_a_worker_asked(self) -> None:
        calls: "List[int]" = []

        def state() -> "Dict[str, Any]":
            calls.append(1)
            return {"step": numpy.ones(1, "f8")}

        with self.scene.client("lazy") as client:
            for step in range(100):
                self.assertFalse(client.submit_state_dict(state, step=step, suites="other", when="idle"))
            self.assertEqual(calls, [])
            worker = self.scene.start_worker()
            until(
                lambda: client.submit_state_dict(state, step=101, suites="other", when="idle"),
                "the worker that came asks",
            )
            self.assertEqual(len(calls), 1)
            self.assertTrue(client.wait(DEADLINE))
            worker.terminate()
            worker.wait(DEADLINE)

    def test_unknown_when_does_not_raise(self) -> None:
        with self.scene.client("when") as client, self.assertLogs("evalq", "WARNING") as logs:
            self.assertFalse(client.submit_state_dict({}, step=1, suites="quick", when="later"))
        self.assertIn("when is 'later', expected now or idle", logs.output[0])


if __name__ == "__main__":
    unittest.main()
