"""What a training run is owed: the evaluations that are due, and those that arrived, in the order of their steps.

Results come as they like; trackers and early stopping want them by step. An evaluation is handed on when all
earlier ones of its suite and variant have ended, or after hold_seconds at most. Not for sharing between threads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from ..result import Result

Key = Tuple[str, str, int]  # Suite, variant, step.


@dataclass
class Evaluation:
    """One job that ended: a checkpoint, evaluated by one suite."""

    step: int
    suite: str
    variant: str
    epoch: Optional[float]
    state: str  #: "done", "dead", "skipped" or "cancelled".
    reason: str
    metrics: Dict[str, float] = field(default_factory=dict)  #: By the names that training uses.
    job: str = ""


@dataclass
class _Arrived:
    """What came of one job so far."""

    job: str
    results: List[Result] = field(default_factory=list)
    end: Optional[Result] = None
    ended_at: float = 0.0
    older: bool = False  # Of an earlier life of the run: perhaps of other weights.


class Ledger:
    """Names are made by name(result); a metric for which it returns None is left out."""

    def __init__(
        self,
        name: Callable[[Result], Optional[str]],
        hold_seconds: float = 60.0,
        since_ms: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._hold_seconds = hold_seconds
        self._since_ms = since_ms
        self._clock = clock
        self._open: Dict[Key, Optional[float]] = {}  # Due and not handed on, with the epoch.
        self._closed: Dict[Key, str] = {}  # Handed on, with the job that it was.
        self._epochs: Dict[Key, Optional[float]] = {}
        self._arrived: Dict[Key, _Arrived] = {}
        self._restored: Set[Key] = set()  # Due since an earlier life of the run: results of any age answer them.

    def due(self, step: int, suites: Iterable[str], variant: str, epoch: Optional[float]) -> None:
        """The checkpoint of step was, or will be, submitted. Again: nothing changes."""
        for suite in suites:
            key = (suite, variant, step)
            if key not in self._closed:
                self._open.setdefault(key, epoch)
                self._epochs[key] = self._open[key]

    def forget(self, step: int, suites: Iterable[str], variant: str) -> None:
        """It could not be submitted: nothing will come."""
        for suite in suites:
            self._open.pop((suite, variant, step), None)

    def take(self, result: Result, variant: str) -> None:
        """One result of the feed, in any order, of any life of the run. variant: as due() has it; the queue may name it
        otherwise."""
        key = (result.suite, variant, result.step)
        arrived = self._arrived.get(key)
        if arrived is None or arrived.job != result.job:
            # Another generation (JOB~2): the weights of the step changed. The newest counts.
            if arrived is not None and _generation(arrived.job) > _generation(result.job):
                return
            arrived = self._arrived[key] = _Arrived(result.job)
        asked = key in self._open or key in self._closed
        if key not in self._restored and (not asked or 0 < result.finished_ms < self._since_ms):
            arrived.older = True
        if result.is_end:
            arrived.end = result
            arrived.ended_at = self._clock()
            if key in self._closed and self._closed[key] != arrived.job:
                self._open[key] = self._epochs.get(key)  # Evaluated again: handed on again.
                del self._closed[key]
        else:
            arrived.results.append(result)

    def accept_older(self) -> None:
        """The queue has nothing open: what an earlier life of the run left is the answer to what is due."""
        for key in self._open:
            if key in self._arrived:
                self._arrived[key].older = False

    @property
    def older_waits(self) -> bool:
        """Whether accept_older() would change anything."""
        return any(key in self._arrived and self._arrived[key].older for key in self._open)

    def ready(self, flush: bool = False) -> List[Evaluation]:
        """Takes out what may be handed on now, in the order of steps. flush: do not wait for earlier ones."""
        now = self._clock()
        found: List[Key] = []
        barred: Set[Tuple[str, str]] = set()  # Flows with an earlier step that is still open.
        for key in sorted(self._open, key=lambda key: (key[2], key[0], key[1])):
            flow = key[:2]
            arrived = self._arrived.get(key)
            if arrived is None or arrived.end is None or arrived.older:
                barred.add(flow)
            elif flow not in barred or flush or now - arrived.ended_at >= self._hold_seconds:
                found.append(key)
        return [self._hand_on(key) for key in found]

    def pending(self) -> List[Tuple[int, str, str, Optional[float]]]:
        """(step, suite, variant, epoch) of what is due and has not come."""
        return [(key[2], key[0], key[1], epoch) for key, epoch in sorted(self._open.items())]

    def is_pending(self, step: int) -> bool:
        """Whether anything of the step is still to come."""
        return any(key[2] == step for key in self._open)

    def give_up(self) -> List[Tuple[int, str, str, Optional[float]]]:
        """Nothing more will come: what is still due, which then is due no more."""
        left = self.pending()
        self._open.clear()
        return left

    def restore(self, pending: Iterable[Any]) -> None:
        """Of an earlier life of the run: what pending() gave, through JSON."""
        for step, suite, variant, epoch in pending:
            self._restored.add((str(suite), str(variant), int(step)))
            self.due(int(step), [str(suite)], str(variant), epoch)

    def _hand_on(self, key: Key) -> Evaluation:
        arrived = self._arrived[key]
        epoch = self._open.pop(key)
        self._closed[key] = arrived.job
        end = arrived.end
        assert end is not None
        evaluation = Evaluation(key[2], key[0], key[1], epoch, end.state, end.reason, job=arrived.job)
        for result in arrived.results:
            name = self._name(result)
            if name is not None:
                evaluation.metrics[name] = result.value
        return evaluation


def _generation(job: str) -> int:
    number = job.rpartition("~")[2] if "~" in job else ""
    return int(number) if number.isdigit() else 1
