"""Tests what a client keeps of its results: enough for all readers, in bounded memory."""

from __future__ import annotations

import logging
import math
import random
import signal
import tracemalloc
import unittest
from dataclasses import replace
from typing import Dict, List, Optional, Tuple
from unittest import mock

import scene  # noqa: F401  (finds the package)

from evalq import _result_reader
from evalq._result_reader import ResultReader
from evalq._best_values import BestValues
from evalq.result import Result, better


def result(step: int, value: float = 0.5, key: str = "eval/t/accuracy", generation: str = "") -> Result:
    return Result(
        step=step,
        suite="quick",
        variant="regular",
        task="t",
        metric=key.rsplit("/", 1)[1],
        key=key,
        value=value,
        n=10,
        state="done",
        reason="",
        job=f"run/{step}/regular/quick{generation}",
        finished_ms=1700000000000 + step,
    )


class ResultReaderTest(unittest.TestCase):
    def test_unread_results_are_bounded_counted_and_reported_once(self) -> None:
        log = logging.getLogger("evalq-test-arrivals")
        arrivals = ResultReader(log)
        with mock.patch.object(_result_reader, "_UNREAD_MAX", 100), self.assertLogs(log, "WARNING") as logs:
            for step in range(350):
                arrivals.take(result(step))
            self.assertEqual(arrivals.dropped, 250)
            self.assertEqual([one.step for one in arrivals.drain()], list(range(250, 350)))
            for step in range(350, 450):
                arrivals.take(result(step))
            self.assertEqual(arrivals.dropped, 250)  # The results are read now.
            arrivals.take(result(450))
        self.assertEqual((arrivals.taken, arrivals.dropped), (451, 251))
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertIn("nobody reads the results", logs.output[0])

    def test_without_a_log_unread_results_are_dropped_silently(self) -> None:
        arrivals = ResultReader(None)
        with mock.patch.object(_result_reader, "_UNREAD_MAX", 5):
            for step in range(10):
                arrivals.take(result(step))
        self.assertEqual(arrivals.dropped, 5)

    def test_memory_is_flat_whether_or_not_anybody_reads(self) -> None:
        quiet = logging.getLogger("evalq-test-flat")
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        for reads in (False, True):
            with mock.patch.object(_result_reader, "_UNREAD_MAX", 200), mock.patch.object(_result_reader, "_PATHS_MAX", 200):
                arrivals = ResultReader(quiet)
                held: List[int] = []
                tracemalloc.start()
                for step in range(8000):
                    arrivals.expect(step, "regular", f"/out/step-{step}.safetensors")
                    arrivals.take(result(step, step * 0.001))
                    arrivals.log()
                    if reads:
                        for _ in arrivals.drain():
                            pass
                    if step in (1999, 7999):
                        held.append(tracemalloc.get_traced_memory()[0])
                tracemalloc.stop()
            # 6,000 results of 100 bytes would be 600 kB.
            self.assertLess(held[1], held[0] + 100_000, f"reads: {reads}")

    def test_a_later_generation_is_logged_with_its_number(self) -> None:
        log = logging.getLogger("evalq-test-generations")
        arrivals = ResultReader(log)
        arrivals.expect(50, "regular", "/out/50")
        # The first generation comes from the run's history.
        with self.assertLogs(log, "INFO") as logs:
            arrivals.take(result(50, 0.5))
            arrivals.take(result(50, 0.25, generation="~2"))
            arrivals.log()
        said = [line.split("evalq-test-generations:")[1] for line in logs.output]
        self.assertEqual(said, ["step 50 quick/t (regular): accuracy=0.5", "step 50~2 quick/t (regular): accuracy=0.25"])

    def test_paths_of_the_latest_submits_are_known(self) -> None:
        arrivals = ResultReader(None)
        with mock.patch.object(_result_reader, "_PATHS_MAX", 3):
            arrivals.expect(1, "regular", "/out/1")
            arrivals.take(result(1, 0.9))
            for step in range(2, 9):
                arrivals.expect(step, "regular", f"/out/{step}")
                arrivals.take(result(step, 0.1 * step / 10))
        self.assertEqual(list(arrivals._paths), [(step, "regular") for step in (6, 7, 8)])
        best = arrivals.best("eval/t/accuracy", "max")
        assert best is not None
        self.assertEqual((best.step, best.path), (1, "/out/1"))  # The path came with the result.
        self.assertIsNone(arrivals.best("eval/t/none", "max"))

    def test_a_path_of_another_step_is_not_returned(self) -> None:
        arrivals = ResultReader(None)
        for step in (1, 2):
            arrivals.expect(step, "regular", "/out/last.pt")
            arrivals.expect(step, "ema", "/out/last.pt")  # Both steps use one file.
            arrivals.take(result(step, 0.9 if step == 1 else 0.1))
        for mode, step, path in (("max", 1, None), ("min", 2, "/out/last.pt")):
            best = arrivals.best("eval/t/accuracy", mode)
            assert best is not None
            self.assertEqual((best.step, best.path), (step, path))

    def test_path_is_that_of_the_variant(self) -> None:
        arrivals = ResultReader(None)
        keys = {"regular": "eval/t/accuracy", "ema": "eval_ema/t/accuracy"}
        for variant in keys:
            arrivals.expect(1, variant.replace("regular", ""), f"/out/{variant}")
        for variant, key in keys.items():
            arrivals.take(replace(result(1, key=key), variant=variant))
        for variant, key in keys.items():
            best = arrivals.best(key, "max")
            assert best is not None
            self.assertEqual(best.path, f"/out/{variant}")

    def test_a_variant_with_a_mapped_name_keeps_its_path(self) -> None:
        log = logging.getLogger("evalq-test-mapped")
        names = {  # evq_job_map_name() makes these names.
            "ema 0.999": "ema-0.999-8a8ddb21",
            "a-/b": "a-b-cac6faf2",
            "a/-b": "a--b-d6657fc7",
            "-- x": "--x-e412c11b",
            "//": "ede6fbc1",
            "éma": "-ma-82827cbd",
            "averaged over 22 layers / every one": "averaged-over-22-layers-1b08b92f",
            "ema-8a8ddb21": "ema-8a8ddb21",  # The variant's own path.
        }
        for step, (given, queued) in enumerate(names.items()):
            arrivals = ResultReader(log)
            arrivals.expect(step, given, "/out/own")
            arrivals.expect(step, "regular", "/out/regular")
            with self.assertLogs(log, "INFO") as logs:
                arrivals.take(replace(result(step, key="eval_x/t/accuracy"), variant=queued))
                arrivals.log()
            self.assertEqual(len(logs.output), 1)
            best = arrivals.best("eval_x/t/accuracy", "max")
            assert best is not None
            self.assertEqual(best.path, "/out/own", given)


class SignalTest(unittest.TestCase):
    def test_a_signal_handler_can_submit_in_the_middle_of_a_submit(self) -> None:
        """A preempted training saves and submits in signal handlers."""
        arrivals = ResultReader(None)

        class Paths(Dict[Tuple[int, str], Optional[str]]):
            def __setitem__(self, key: Tuple[int, str], path: Optional[str]) -> None:
                super().__setitem__(key, path)
                if key[0] == 1:
                    signal.raise_signal(signal.SIGUSR1)

        def late(*_: object) -> None:
            raise TimeoutError("the handler waits for the call that it interrupted")

        arrivals._paths = Paths()
        handlers = {signal.SIGUSR1: lambda *_: arrivals.expect(2, "regular", "b"), signal.SIGALRM: late}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.alarm(20)
        try:
            arrivals.expect(1, "regular", "a")
        finally:
            signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, handler)
        self.assertEqual([step for step, _ in arrivals._paths], [1, 2])


class BestValuesTest(unittest.TestCase):
    def test_best_considers_all_values(self) -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        draw = random.Random(seed)
        for grain in (3, 50, 1 << 30):  # The values have many ties, some ties, or none.
            extremes, all_values = BestValues(), {}  # type: BestValues, Dict[int, float]
            for _ in range(5000):
                step = draw.randrange(3000)
                if step in all_values:
                    continue
                none = draw.choice([math.nan, math.inf, -math.inf])
                value = none if draw.random() < 0.1 else draw.randrange(grain) / grain
                all_values[step] = value
                extremes.take(step, value, f"/{step}")
                if draw.random() < 0.02:
                    self.check(extremes, all_values)
            self.check(extremes, all_values)
            self.assertLess(len(extremes), 300)

    def check(self, extremes: BestValues, values: Dict[int, float]) -> None:
        for mode in ("max", "min"):
            step, value = -1, math.nan
            for each in sorted(values):
                if math.isfinite(values[each]) and better(values[each], value, mode):
                    step, value = each, values[each]
            found = extremes.best(mode)
            self.assertEqual(found, None if step < 0 else (step, value, f"/{step}"))

    def test_a_second_evaluation_can_end_a_best(self) -> None:
        extremes = BestValues()
        for step in range(1000):
            extremes.take(step, step / 1000, None)
        for step in range(999, 959, -1):
            extremes.take(step, 0.5, None)
            self.assertEqual(extremes.best("max"), (step - 1, (step - 1) / 1000, None))
        extremes.take(959, math.nan, None)
        self.assertEqual(extremes.best("max"), (958, 0.958, None))
        extremes.take(0, math.nan, None)
        self.assertEqual(extremes.best("min"), (1, 0.001, None))


if __name__ == "__main__":
    unittest.main()
