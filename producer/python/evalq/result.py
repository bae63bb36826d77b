"""What comes back to training: results, the best checkpoint, counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Result:
    """One metric of one evaluated checkpoint; or, with ``task == ""``, the end of a job."""

    step: int
    suite: str
    variant: str
    task: str  #: "" for the end of a job: see state and reason.
    metric: str  #: "accuracy"; "" for an end.
    key: str  #: "eval/digits/accuracy"; "" for an end.
    value: float  #: NaN for an end.
    n: Optional[int]  #: Samples behind the value, where known.
    state: str  #: "done", "dead", "skipped" or "cancelled".
    reason: str
    job: str  #: RUN/STEP/VARIANT/SUITE
    finished_ms: int  #: Unix ms.

    @property
    def is_end(self) -> bool:
        """Whether this says that the job ended, rather than a value."""
        return self.task == ""


@dataclass(frozen=True)
class Best:
    """The best checkpoint so far by one metric."""

    metric: str
    value: float
    step: int
    path: Optional[str]  #: On this machine, where it is known; None where this process saved another step there since.


@dataclass(frozen=True)
class Stats:
    """What became of the submits of this client. A submit has one job a suite."""

    submitted: int  #: Accepted.
    dropped: int  #: No room in ring or spool.
    sent: int  #: Jobs acknowledged by Redis.
    refused: int  #: Jobs refused for good.
    pending: int  #: Not sent yet.
    unpinned: int  #: Sent without a pin.
    submit_ns_total: int  #: Spent in libevalq's submit on the callers' threads.
    submit_ns_max: int
    connected: bool
    snapshots: int  #: Snapshots in shared memory now.
    snapshots_dropped: int  #: Never evaluated: newer ones came first, or there was no room.
    results_dropped: int = 0  #: Never read: of results that nobody reads only the newest 20,000 are kept.


def better(value: float, than: float, mode: str) -> bool:
    """Whether value beats than, a number or NaN: NaN and infinite values never do, and any number
    beats NaN."""
    if not math.isfinite(value):
        return False
    return math.isnan(than) or (value > than if mode == "max" else value < than)
