"""The due evaluations of a training run, and their results in the order of steps.

Results arrive in any order; trackers and early stopping need them by step. An evaluation is ready
when all earlier ones of its suite and variant have ended, or after hold_seconds. Not thread-safe.
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
    metrics: Dict[str, float] = field(default_factory=dict)  #: The training's names -> values.
    job: str = ""
    #: The training's names -> the worker's names of task and metric.
    sources: Dict[str, Tuple[str, str]] = field(default_factory=dict)


@dataclass
class _Arrived:
    """The results of one job so far."""

    job: str
    results: List[Result] = field(default_factory=list)
    end: Optional[Result] = None
    ended_at: float = 0.0
    older: bool = False  # It is from an earlier session of the run, and may have other weights.


class DueEvaluations:
    """name(result) makes the name of a metric; None leaves the metric out."""

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
        self._open: Dict[Key, Optional[float]] = {}  # Due and not ready yet, with the epoch.
        self._closed: Dict[Key, str] = {}  # Done, with the id of the job.
        self._epochs: Dict[Key, Optional[float]] = {}
        self._arrived: Dict[Key, _Arrived] = {}
        self._restored: Set[Key] = set()  # Due since an earlier session: results of any age count.

    def due(self, step: int, suites: Iterable[str], variant: str, epoch: Optional[float]) -> None:
        """Notes that the step's checkpoint was or will be submitted. A second call changes
        nothing."""
        for suite in suites:
            key = (suite, variant, step)
            if key not in self._closed:
                self._open.setdefault(key, epoch)
                self._epochs[key] = self._open[key]

    def forget(self, step: int, suites: Iterable[str], variant: str) -> None:
        """Drops a step that could not be submitted."""
        for suite in suites:
            self._open.pop((suite, variant, step), None)

    def take(self, result: Result, variant: str) -> None:
        """Stores one result, in any order, from any session of the run. variant is the name that
        due() got; the queue may use another one."""
        key = (result.suite, variant, result.step)
        arrived = self._arrived.get(key)
        if arrived is None or arrived.job != result.job:
            # Another generation (JOB~2): the step's weights changed. The newest one counts.
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
                # It was evaluated again, so it becomes ready again.
                self._open[key] = self._epochs.get(key)
                del self._closed[key]
        else:
            arrived.results.append(result)

    def accept_older(self) -> None:
        """Call it when the queue has no open job: then results of an earlier session answer what is
        due."""
        for key in self._open:
            if key in self._arrived:
                self._arrived[key].older = False

    @property
    def older_waits(self) -> bool:
        """Whether accept_older() would change anything."""
        return any(key in self._arrived and self._arrived[key].older for key in self._open)

    def ready(self, flush: bool = False) -> List[Evaluation]:
        """Takes out the ready evaluations in the order of steps. flush: do not wait for earlier
        steps."""
        now = self._clock()
        found: List[Key] = []
        barred: Set[Tuple[str, str]] = set()  # Flows that have an earlier open step.
        for key in sorted(self._open, key=lambda key: (key[2], key[0], key[1])):
            flow = key[:2]
            arrived = self._arrived.get(key)
            if arrived is None or arrived.end is None or arrived.older:
                barred.add(flow)
            elif flow not in barred or flush or now - arrived.ended_at >= self._hold_seconds:
                found.append(key)
        return [self._finish(key) for key in found]

    def pending(self) -> List[Tuple[int, str, str, Optional[float]]]:
        """(step, suite, variant, epoch) of the open evaluations."""
        return [(key[2], key[0], key[1], epoch) for key, epoch in sorted(self._open.items())]

    def is_pending(self, step: int) -> bool:
        """Whether an evaluation of the step is open."""
        return any(key[2] == step for key in self._open)

    def give_up(self) -> List[Tuple[int, str, str, Optional[float]]]:
        """Gives up the open evaluations and returns them."""
        left = self.pending()
        self._open.clear()
        return left

    def restore(self, pending: Iterable[Any]) -> None:
        """Restores what pending() returned in an earlier session (it went through JSON)."""
        for step, suite, variant, epoch in pending:
            self._restored.add((str(suite), str(variant), int(step)))
            self.due(int(step), [str(suite)], str(variant), epoch)

    def _finish(self, key: Key) -> Evaluation:
        arrived = self._arrived[key]
        epoch = self._open.pop(key)
        self._closed[key] = arrived.job
        end = arrived.end
        assert end is not None
        suite, variant, step = key
        evaluation = Evaluation(
            step, suite, variant, epoch, end.state, end.reason, job=arrived.job
        )
        for result in arrived.results:
            name = self._name(result)
            if name is not None:
                evaluation.metrics[name] = result.value
                evaluation.sources[name] = (result.task, result.metric)
        return evaluation


def _generation(job: str) -> int:
    number = job.rpartition("~")[2] if "~" in job else ""
    return int(number) if number.isdigit() else 1
