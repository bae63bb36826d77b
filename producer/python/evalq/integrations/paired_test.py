"""Asks `evalq compare` whether a step is significantly better than the best one so far.

The program reads the samples of both steps (docs/samples.md), so that a training decides by the
numbers that people see. It takes a tenth of a second for 10,000 items.
"""

from __future__ import annotations

import json
import logging
import subprocess
from typing import Any, Callable, Dict, Optional, Tuple

from .._programs import find_program
from .due_evaluations import Evaluation

log = logging.getLogger("evalq")

_SECONDS = 60.0  # The time limit; the samples may be on a slow file server.
_SIGNIFICANT = 0.05

Confirm = Callable[[int], Optional[bool]]  # Whether the new step is better than the given one.


class PairedTest:
    """The paired tests of one training, on rank 0. It warns once if samples cannot be compared."""

    def __init__(self, config: Optional[str]) -> None:
        self._config = config
        self._answers: Dict[Tuple[str, int, str, bool], Optional[bool]] = {}
        self._warned = False

    def confirm(self, evaluation: Evaluation, name: Optional[str], greater: bool) -> Confirm:
        """A function that compares the evaluation's step with another one by the metric `name`.
        None: they cannot be compared, so only the metric itself can decide."""

        def ask(best_step: int) -> Optional[bool]:
            key = (evaluation.job, best_step, name or "", greater)
            if key not in self._answers:
                try:
                    self._answers[key] = self._compare(evaluation, best_step, name, greater)
                except Exception as error:  # No error may reach the training.
                    self._warn(evaluation.step, error)
                    self._answers[key] = None
            return self._answers[key]

        return ask

    def _compare(
        self, evaluation: Evaluation, best_step: int, name: Optional[str], greater: bool
    ) -> bool:
        run, step, variant, suite = evaluation.job.partition("~")[0].split("/")
        task, metric = evaluation.sources[name or ""]
        words = [find_program("evalq"), "compare", f"{run}@{best_step}", f"{run}@{step}", "--json"]
        words += ["--suite", suite, "--variant", variant, "--task", task, "--metric", metric]
        if self._config:
            words += ["--config", str(self._config)]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise ValueError(said.splitlines()[-1] if said else f"exit code {done.returncode}")
        row: Any = json.loads(done.stdout)["metrics"][0]
        return bool(row["p"] < _SIGNIFICANT and (row["difference"] > 0) == greater)

    def _warn(self, step: int, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        log.log(
            level,
            "step %d: significant=True has no samples to compare, so the metric alone decides: %s",
            step,
            error,
        )
