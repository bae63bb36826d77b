"""Reads the results of one run on a thread of its own, so that training never waits for them."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from dataclasses import replace
from typing import Deque, Dict, Iterator, List, Optional, Tuple

from . import _library
from ._best_values import BestValues
from ._c_client import Handle
from ._variant_names import curve, curves
from .result import Best, Result

_POLL_CALL_MS = 1000
_POLL_SECONDS = 0.25  # Between two polls while jobs are open.
_POLL_IDLE_SECONDS = 2.0  # Between two polls after a while without results, or without Redis.
_UNREAD_MAX = 20000  # At most so many unread results are kept; the oldest are dropped.
_PATHS_MAX = 4000  # The paths of so many newest submits are kept.


class ResultReader:
    """Any thread may call any method. The reading thread ends after stop(), or when this object is
    garbage; then it closes the handle.

    Memory is bounded, even if nobody reads the results."""

    def __init__(self, log: Optional[logging.Logger]) -> None:
        self._log = log
        # The lock is reentrant, because a signal handler may submit in the middle of a submit.
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._reader: Optional[threading.Thread] = None
        self._arrived: Deque[Result] = deque()
        self.taken = 0  # Results since the start.
        self.dropped = 0  # How many of them were dropped before anybody read them.
        self._unlogged: List[Result] = []
        self._values: Dict[str, BestValues] = {}
        self._variants: Dict[str, str] = {}  # Metric key -> variant, which may have its own file.
        self._paths: Dict[Tuple[int, str], Optional[str]] = {}
        self._newest: Dict[str, int] = {}  # Path -> the step that was saved there last.

    def expect(self, step: int, variant: str, path: Optional[str]) -> None:
        """Notes a submitted checkpoint, so that its results are logged. path is None for weights
        that were not saved."""
        place = os.path.abspath(path) if path is not None else None
        with self._lock:
            self._paths[step, curve(variant)] = place
            if len(self._paths) > _PATHS_MAX:
                del self._paths[next(iter(self._paths))]  # The oldest submit.
            if place is not None:
                self._newest[place] = step
                if len(self._newest) > _PATHS_MAX:
                    del self._newest[next(iter(self._newest))]

    def start(self, handle: Handle) -> None:
        """Starts the thread that reads through the handle. A second call does nothing."""
        with self._lock:
            if self._reader is None and not self._stop.is_set():
                self._reader = threading.Thread(
                    target=_read,
                    args=(weakref.ref(self), handle, self._stop),
                    name="evalq-results",
                    daemon=True,
                )
                self._reader.start()

    @property
    def started(self) -> bool:
        """Whether start() was called."""
        return self._reader is not None

    def stop(self) -> None:
        """Stops the thread and returns when it no longer uses the handle."""
        self._stop.set()
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(_POLL_CALL_MS / 1000 + 1)

    def take(self, result: Result) -> None:
        """Stores one result that libevalq delivered."""
        self._arrived.append(result)
        with self._lock:
            self.taken += 1
            variant = self._submitted_as(result)
            if not result.is_end:
                path = self._paths.get((result.step, variant))
                self._variants[result.key] = variant
                values = self._values.setdefault(result.key, BestValues())
                values.take(result.step, result.value, path)
            if self._log is not None and (result.step, variant) in self._paths:
                self._unlogged.append(result)
        if len(self._arrived) > _UNREAD_MAX:
            self._drop()

    def _submitted_as(self, result: Result) -> str:
        """The variant as the training named it; the queue may have shortened the name. The caller
        holds the lock."""
        for name in curves(result.variant):
            if (result.step, name) in self._paths:
                return name
        return result.variant

    def _drop(self) -> None:
        """Drops the oldest unread result."""
        try:
            self._arrived.popleft()
        except IndexError:
            return  # Another thread drains them right now.
        with self._lock:
            self.dropped += 1
            first = self.dropped == 1
        if first and self._log is not None:
            self._log.warning(
                "nobody reads the results: the newest %d are kept; stats().results_dropped counts"
                " the dropped ones",
                _UNREAD_MAX,
            )

    def drain(self) -> Iterator[Result]:
        """Yields the results that arrived since the last drain."""
        while True:
            try:
                result = self._arrived.popleft()
            except IndexError:
                return
            yield result

    def best(self, metric: str, mode: str) -> Optional[Best]:
        """The best of all results that arrived. NaN never wins; the lower step wins a tie."""
        with self._lock:
            found = self._values[metric].best(mode) if metric in self._values else None
            if found is None:
                return None
            step, value, path = found
            path = self._paths.get((step, self._variants[metric]), path)
        return self.still_there(Best(metric, value, step, path))

    def metrics(self) -> List[str]:
        """The names of all metrics that arrived."""
        with self._lock:
            return sorted(self._values)

    def still_there(self, best: Best) -> Best:
        """The same result, without its path if another step was saved there since."""
        with self._lock:
            newest = self._newest.get(best.path or "", best.step)
        return best if newest == best.step else replace(best, path=None)

    def log(self) -> None:
        """Logs one line for each task that arrived, and for each job that ended without a
        result."""
        with self._lock:
            results, self._unlogged = self._unlogged, []
        tasks: Dict[Tuple[str, str], List[Result]] = {}
        for result in results:
            tasks.setdefault((result.job, result.task), []).append(result)
        for values in tasks.values():
            if self._log is not None:
                _log_task(self._log, values)


def _log_task(log: logging.Logger, values: List[Result]) -> None:
    first = values[0]
    # 50~2 is a second submit of step 50, with other weights.
    step = str(first.step) + "".join(first.job.partition("~")[1:])
    if not first.is_end:
        text = ", ".join(f"{value.metric}={value.value:.6g}" for value in values)
        log.info("step %s %s/%s (%s): %s", step, first.suite, first.task, first.variant, text)
    elif first.state != "done":
        asked = first.state == "cancelled" or first.reason.startswith("superseded")
        level = logging.INFO if asked else logging.WARNING
        reason = first.reason or "no reason given"
        text = "step %s: the evaluation by %s ended as %s: %s"
        log.log(level, text, step, first.suite, first.state, reason)


def _read(arrivals: "weakref.ref[ResultReader]", handle: Handle, stop: threading.Event) -> None:
    pause = _POLL_SECONDS
    while not stop.wait(pause):
        owner = arrivals()
        if owner is None:
            handle.close()
            return
        before = owner.taken
        code = handle.poll(owner.take, _POLL_CALL_MS)
        owner.log()
        quiet = code != _library.OK or owner.taken == before
        del owner
        pause = min(pause * 1.3, _POLL_IDLE_SECONDS) if quiet else _POLL_SECONDS
