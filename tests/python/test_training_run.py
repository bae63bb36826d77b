"""Tests TrainingRun with a client that returns what the test prescribes."""

from __future__ import annotations

import time
import unittest
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, List
from unittest import mock

import scene  # noqa: F401  (finds the package)

from evalq.integrations.training_run import TrainingRun
from evalq.result import Result


def evaluation(step: int, variant: str, value: float) -> List[Result]:
    job = f"digits/{step}/{variant}/quick"
    given = dict(step=step, suite="quick", variant=variant, state="done", reason="", job=job, finished_ms=0)
    metric: Any = dict(given, task="t", metric="loss", key="eval/t/loss", value=value, n=1)
    end: Any = dict(given, task="", metric="", key="", value=float("nan"), n=None)
    return [Result(**metric), Result(**end)]


class WatchTest(unittest.TestCase):
    def watch(self, variant: str) -> TrainingRun:
        self.came: List[Result] = []
        client = mock.Mock(run="digits")
        client.submit.return_value = True
        client.results.side_effect = lambda: [self.came.pop(0) for _ in range(len(self.came))]
        client.stats.return_value = SimpleNamespace(pending=0, snapshots=0, connected=True)
        watch = TrainingRun(lambda: client, ["quick"], variant, lambda result: result.metric, 600.0, 60.0)
        self.addCleanup(watch.close)
        watch.open()
        return watch

    def test_a_variant_with_a_mapped_name_matches_what_was_due(self) -> None:
        for given, queued in (("ema 0.999", "ema-0.999-8a8ddb21"), ("ema", "ema"), ("", "regular")):
            with self.subTest(variant=given):
                watch = self.watch(given)
                watch.submit("/nowhere/step-5.pt", 5, None)
                self.came += evaluation(5, "another", 1.0) + evaluation(5, queued, 0.5)
                self.assertEqual([found.metrics for found in watch.look(now=True)], [{"loss": 0.5}])
                self.assertEqual(watch.pending(), [])

    def test_an_earlier_trainings_metric_is_not_used_for_new_weights(self) -> None:
        watch = self.watch("regular")
        watch.submit("/nowhere/step-5.pt", 5, None)
        old = [replace(result, finished_ms=1) for result in evaluation(5, "regular", 0.5)]
        new = [replace(result, job=result.job + "~2") for result in evaluation(5, "regular", 0.25)]
        self.came += old
        watch._client.ended_since = lambda moment: bool(self.came.extend(new) or True)  # type: ignore[method-assign]
        self.assertEqual([found.metrics for found in watch.look(now=True)], [{"loss": 0.25}])

    def test_the_last_wait_logs_its_limit_in_correct_grammar(self) -> None:
        watch = self.watch("regular")
        watch.submit("/nowhere/step-5.pt", 5, None)
        watch._client.ended = lambda seconds: False  # type: ignore[method-assign]
        with mock.patch("evalq.integrations.training_run._WAITING_SECONDS", -1.0), self.assertLogs("evalq", "WARNING") as logs:
            watch.last(time.monotonic(), 0.0)
        self.assertIn("1 evaluation is still open. This process ends as soon as they have, or after another 600 s", logs.output[0])


if __name__ == "__main__":
    unittest.main()
