"""The types of what a training gets back: results, the best checkpoint, statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Result:
    """One metric of one evaluated checkpoint. If task is "", it is the end of a job instead."""

    step: int
    suite: str
    variant: str
    task: str  #: "" for the end of a job; state and reason say how it ended.
    metric: str  #: Such as "accuracy"; "" for an end.
    key: str  #: Such as "eval/digits/accuracy"; "" for an end.
    value: float  #: NaN for an end.
    n: Optional[int]  #: The number of samples; None if it is unknown.
    state: str  #: "done", "dead", "skipped" or "cancelled".
    reason: str
    job: str  #: RUN/STEP/VARIANT/SUITE
    finished_ms: int  #: Unix time in ms.

    @property
    def is_end(self) -> bool:
        """Whether this is the end of a job, not a metric."""
        return self.task == ""


@dataclass(frozen=True)
class Best:
    """The best checkpoint so far by one metric."""

    metric: str
    value: float
    step: int
    path: Optional[str]  #: On this machine. None: unknown, or another step was saved there since.


@dataclass(frozen=True)
class Stats:
    """Numbers of one client since it was opened. A submit becomes one job for each suite."""

    submitted: int  #: Submits that were accepted.
    dropped: int  #: Submits that were dropped because ring and spool were full.
    sent: int  #: Jobs that Redis has acknowledged.
    refused: int  #: Jobs that the queue has rejected permanently.
    pending: int  #: Jobs that were not sent yet.
    unpinned: int  #: Jobs that were sent without a pin.
    submit_ns_total: int  #: Time in libevalq's submit on the callers' threads, in ns.
    submit_ns_max: int  #: The longest of these calls, in ns.
    connected: bool
    snapshots: int  #: Snapshots that are in shared memory now.
    snapshots_dropped: int  #: Snapshots that were dropped before their evaluation.
    results_dropped: int = 0  #: Unread results that were dropped; the newest 20,000 are kept.


def better(value: float, than: float, mode: str) -> bool:
    """Whether value is better than the number than. NaN and infinite values are never better, and
    every number is better than NaN. mode is "max" or "min"."""
    if not math.isfinite(value):
        return False
    return math.isnan(than) or (value > than if mode == "max" else value < than)
