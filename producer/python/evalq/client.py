"""The client for a training process.

It never raises into training unless you ask for it, and waits only in calls that take a timeout.
While Redis is away, libevalq keeps the submits and sends them later. Any thread may call any
method. After fork(), the child's first call opens its own client.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Union

from . import _arguments, _library, _training_guard
from ._client_session import ClientSession, StateDict
from ._c_client import Needs, Submit, Suites
from ._library import EvalqError
from .result import Best, Result, Stats

if TYPE_CHECKING:
    from ._snapshots.idle_requests import IdleRequest

_LIMIT_SECONDS = 86400.0
_SLICE_MS = 200  # A wait is cut into slices, so that Ctrl-C can end it.
_SILENT_SECONDS = 10.0  # A wait logs a line after so long.

Path = Union[str, "os.PathLike[str]"]


class Client(ClientSession):
    """Submits checkpoints of one run and brings their results back.

    url       Redis, as redis://HOST:PORT or unix://PATH. Default: as evalq's programs find it
              ($EVALQ_URL, ./.evalq/url, the configuration).
    run       Name of the training run. Default: $EVALQ_RUN, else made from host and working
              directory.
    queue     Default: $EVALQ_QUEUE, then the configuration's, then "main".
    config    Configuration file; its ``roots`` contain the checkpoints. Default: as evalq's
              programs.
    raise_errors  True: calls raise EvalqError instead of logging a warning and returning False.
    log       True: one line per submit, arrival and error through
              ``logging.getLogger("evalq")``; a Logger: through that one; False: nothing at all.
    pin       False: checkpoints are not pinned; a deleted one is not evaluated.
    snapshots How many state dicts may be in shared memory at the same time.
    snapshot_directory  Directory for them; the root "shm" of the configuration. Default:
              /dev/shm/evalq-UID.
    snapshot_host  This machine's name or address, which other workers use to fetch state dicts.
              Default: $EVALQ_SNAPSHOT_HOST, else the address that reaches Redis; "none": nobody
              can fetch.
    session_ms  When this session of the run began, unix ms. Default: the start of this process.
    ring_directory  Directory for unsent submits, on a local disk. Default: ~/.local/state/evalq.
    close_seconds  How long close() waits at most for ready submits to be sent.

    A wrong configuration never stops training: it is logged once, and every submit returns False.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        run: Optional[str] = None,
        *,
        queue: Optional[str] = None,
        config: Optional[Path] = None,
        raise_errors: bool = False,
        log: Union[bool, logging.Logger] = True,
        pin: bool = True,
        snapshots: int = 2,
        snapshot_directory: Optional[Path] = None,
        snapshot_host: Optional[str] = None,
        session_ms: Optional[int] = None,
        ring_directory: Optional[Path] = None,
        close_seconds: float = 10.0,
    ) -> None:
        _training_guard.refuse_in_evaluator()
        options: Dict[str, Any] = {
            "url": url,
            "run": run,
            "queue": queue,
            "session_ms": session_ms,
            "snapshot_host": snapshot_host,
        }
        super().__init__(options, log)
        self._raise_errors = raise_errors is not False and raise_errors is not None
        try:
            self._options["config"] = _arguments.optional_path("config", config)
            self._options["ring_directory"] = _arguments.optional_path(
                "ring_directory", ring_directory
            )
            self._options["pin_disabled"] = 0 if pin else 1
            limit = min(_arguments.seconds("close_seconds", close_seconds), _LIMIT_SECONDS)
            self._options["close_ms"] = max(1, int(1000 * limit))
            self._snapshot_directory = _arguments.optional_path(
                "snapshot_directory", snapshot_directory
            )
            self._snapshot_limit = max(1, _arguments.whole("snapshots", snapshots))
        except Exception as error:
            self._refused = f"Client: {_arguments.sentence(error)}"
        try:
            self._open()
        except Exception as error:  # Any error: training continues.
            self._fail(error, "nothing can be submitted, so nothing will be evaluated: ")

    # -- submitting

    def submit(
        self,
        path: Path,
        *,
        step: int,
        suites: Suites,
        variant: str = "regular",
        policy: Optional[str] = None,
        keep: bool = False,
        priority: Optional[str] = None,
        epoch: Optional[float] = None,
        params: Optional[Mapping[str, Any]] = None,
        trackers: Optional[Mapping[str, Any]] = None,
        held: Optional[Path] = None,
        needs: Optional[Needs] = None,
    ) -> bool:
        """Submits the checkpoint at path (a file or a directory); returns in microseconds.

        Call it after the save. If a save in the background still writes, the client waits until the
        checkpoint is complete. The client pins it within moments; then the training may delete it.

        suites    "quick", "quick,full" or ["quick", "full"]: names from the workers' configuration.
        variant   Which weights of the step: "regular", "ema", or your own name. Each variant has
                  its own curve.
        policy    "all" (default), "latest" (a newer checkpoint replaces queued older ones of the
                  suite) or "backfill" (keeps the curve even if evaluation is slower than training).
        keep      True: never replaced by a newer one. For final checkpoints and milestones.
        priority  "urgent", "high", "normal" (default) or "backfill".
        params    Passed to the evaluator as text.
        trackers  The tracker runs that get the results, such as {"wandb_run_id": ...}.
        held      A copy of path, such as hard links, that stays when path is deleted. The client
                  pins this copy.
        needs     Replaces the suite's needs, such as {"gpus": 2, "gpu_memory": "40GiB", "labels":
                  ["a100"]}, or the same as text. {}: only a slot.

        Returns True if accepted: the submit survives the death of this process and the absence of
        Redis.
        """
        try:
            submit = Submit.of(
                step, suites, variant, policy, keep, priority, epoch, params, trackers, needs
            )
            handle = self._open()
            name = _arguments.path("path", path)
            code = handle.submit(name, submit, _arguments.optional_path("held", held))
            if code != _library.OK:
                raise handle.failure(code)
        except Exception as error:  # Any error: training continues.
            return self._not_taken(error, step)
        self._submitted(submit, name)
        return True

    def submit_state_dict(
        self,
        state_dict: StateDict,
        *,
        step: int,
        suites: Suites,
        when: str = "now",
        variant: str = "regular",
        policy: Optional[str] = "latest",
        keep: bool = False,
        priority: Optional[str] = None,
        epoch: Optional[float] = None,
        params: Optional[Mapping[str, Any]] = None,
        trackers: Optional[Mapping[str, Any]] = None,
        needs: Optional[Needs] = None,
        metadata: Optional[Mapping[str, str]] = None,
    ) -> bool:
        """Submits weights that were never saved: they become a safetensors file in shared memory.

        The calling thread waits for one copy of the tensors to host memory; a background thread
        writes and submits. state_dict maps names to torch tensors or numpy arrays (nested mappings
        get dotted names; other values are left out), or is a function that returns such a mapping.
        At most ``snapshots`` are in shared memory: a new one replaces the oldest that no worker has
        claimed, and the log says so. Each is removed when its jobs have ended. Workers on this host
        read it in place; others fetch it from this process. metadata goes into the file's header.

        when      "now", or "idle": only if a worker of one of the suites has nothing else to do;
                  otherwise returns False in microseconds. Called at every step, it lets a spare GPU
                  evaluate the newest weights again and again. Each request of a worker gets one
                  snapshot.

        Returns True if the copy was made. A later error, such as a full /dev/shm, is logged once.
        """
        request: Optional[IdleRequest] = None
        try:
            if when != "now":
                request = self._idle_request(when, state_dict, suites, needs)
                if request is None:
                    return False
                requested = self._snapshot_store().requests.take(request)
                if requested is None:
                    return False
                suites = requested
            submit = Submit.of(
                step, suites, variant, policy, keep, priority, epoch, params, trackers, needs
            )
            metadata = _arguments.mapping("metadata", metadata)
            self._open()
            given = state_dict() if callable(state_dict) else state_dict
            self._snapshot_store().put(given, submit, metadata, request)
        except Exception as error:  # Any error: training continues.
            if request is not None:
                request.close()
            return self._not_taken(error, step)
        return True

    def reserve_state_dict(self, state_dict: Mapping[str, Any]) -> bool:
        """Allocates memory for a copy of such a state dict in the background.

        New memory can cost several times as much as the copy; without this call, the first
        submit_state_dict() waits for it.
        """
        try:
            self._open()
            self._snapshot_store().reserve(state_dict)
        except Exception as error:  # Any error: training continues.
            return self._fail(error)
        return True

    # -- results

    def results(self) -> Iterator[Result]:
        """Yields the results since the last call; never waits. The first call begins with all
        results of the run, also those of earlier processes. At most the newest 20,000 unread
        results are kept; stats() counts the rest."""
        try:
            self._start_reader()
        except Exception as error:  # Any error: training continues.
            self._fail(error)
        return self._results.drain()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until everything submitted is in Redis and no job of the run is open, or timeout
        seconds passed.

        Returns True if all jobs have ended; results() then has everything (the newest 20,000). It
        keeps waiting while Redis is away. Returns False as soon as only checkpoints are left that
        no root contains: they are submitted when the configuration has the root.
        """
        try:
            deadline = _deadline(timeout)
            handle = self._open()
            snapshots = self._snapshots
            if snapshots is not None and not snapshots.flush(deadline):
                text = "the timeout passed while a snapshot was being written"
                return self._fail(EvalqError(text, _library.TIMEOUT))
            silent = time.monotonic() + _SILENT_SECONDS
            while True:
                left = max(0.0, deadline - time.monotonic())
                last = left * 1000 < 2 * _SLICE_MS  # The last slice is long enough for an answer.
                code = handle.wait(self._results.take, int(left * 1000) if last else _SLICE_MS)
                self._results.log()
                if code == _library.OK:
                    return snapshots is None or self._all_rooted(snapshots)
                if code not in (_library.TIMEOUT, _library.UNAVAILABLE) or left <= 0:
                    raise handle.failure(code)
                if last and code == _library.TIMEOUT:
                    raise handle.failure(code)
                if self._log is not None and time.monotonic() >= silent:
                    text = "wait: jobs of run '%s' are still open: `evalq status` says why"
                    self._log.warning(text, self.run)
                    silent = math.inf
                if code == _library.UNAVAILABLE:
                    time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
        except Exception as error:  # Any error: training continues.
            return self._fail(error, "wait: ")

    def ended(self, timeout: float = 0.0) -> bool:
        """Like wait(), for repeated calls: logs nothing if the answer is no or unknown."""
        try:
            deadline = _deadline(timeout)
            snapshots = self._snapshots
            if snapshots is not None and not snapshots.flush(deadline):
                return False
            handle = self._open()
            left_ms = int(min(deadline - time.monotonic(), _LIMIT_SECONDS) * 1000)
            code = handle.wait(self._results.take, max(1, left_ms))
            # NOT_FOUND: no root contains the remaining checkpoints, so no result will come.
            return code in (_library.OK, _library.NOT_FOUND)
        except Exception as error:  # Any error: training continues.
            return self._fail(error, "wait: ")

    def best(
        self, metric: Optional[str] = None, mode: Optional[str] = None, *, timeout: float = 2.0
    ) -> Optional[Best]:
        """The best checkpoint so far; None if there is no result yet, or Redis does not answer. A
        metric that the run does not have is an error that names the existing ones.

        metric  "eval/digits/accuracy"; None: the first that the logger keeps.
        mode    "max" or "min": this client compares all results of regular weights that arrived;
                NaN and infinite values never win, the lower step wins a tie. None: the logger's
                answer, with the evaluator's direction.
        """
        try:
            metric = _arguments.optional_text("metric", metric)
            mode = _arguments.optional_text("mode", mode)
            limit_ms = int(1000 * min(_arguments.seconds("timeout", timeout), _LIMIT_SECONDS))
            if mode is None:
                handle = self._open()
                kept = handle.best(metric, limit_ms)
                if kept is None and metric:
                    missing = handle.failure(_library.NOT_FOUND)
                    # This is an error if the run has a best checkpoint by another metric.
                    if handle.best(None, limit_ms) is not None:
                        raise missing
                return self._results.still_there(kept) if kept is not None else None
            if mode not in ("max", "min") or not metric:
                raise EvalqError("mode is 'max' or 'min', and needs the name of a metric")
            handle = self._open()
            code = handle.poll(self._results.take, limit_ms)
            self._results.log()
            if code != _library.OK:
                raise handle.failure(code)
            found = self._results.best(metric, mode)
            names = self._results.metrics()
            if found is None and names and metric not in names:
                raise EvalqError(
                    f"run '{self.run}' has no metric '{metric}' so far, only: {', '.join(names)}"
                )
            return found
        except Exception as error:  # Any error: training continues.
            self._fail(error, "best: ")
            return None

    # -- the rest

    def stats(self) -> Stats:
        """Numbers since the client was opened. Never waits."""
        handle, snapshots = self._handle, self._snapshots
        views: List[_library.StatsView] = []
        if handle is not None and handle.pid == os.getpid():
            views.append(handle.stats())
        if snapshots is not None:
            views += snapshots.stats()

        def total(name: str) -> int:
            return sum(int(getattr(view, name)) for view in views)

        return Stats(
            submitted=total("submitted"),
            dropped=total("dropped"),
            sent=total("sent"),
            refused=total("refused"),
            pending=total("pending"),
            unpinned=total("unpinned"),
            submit_ns_total=total("submit_ns_total"),
            submit_ns_max=max([0] + [int(view.submit_ns_max) for view in views]),
            connected=any(view.connected for view in views),
            snapshots=snapshots.in_memory if snapshots is not None else 0,
            snapshots_dropped=snapshots.dropped if snapshots is not None else 0,
            results_dropped=self._results.dropped,
        )

    def flush(self, timeout: Optional[float] = None) -> bool:
        """Waits until everything submitted so far is in Redis. False: the timeout passed, or Redis
        is away."""
        try:
            deadline = _deadline(timeout)
            handle = self._open()
            snapshots = self._snapshots
            if snapshots is not None and not snapshots.flush(deadline):
                return False
            while True:
                left = deadline - time.monotonic()
                code = handle.flush(max(0, int(min(_SLICE_MS, left * 1000))))
                if code == _library.OK:
                    return True
                if code not in (_library.TIMEOUT, _library.UNAVAILABLE):
                    raise handle.failure(code)
                if left <= 0:
                    return False
        except Exception as error:  # Any error: training continues.
            return self._fail(error, "flush: ")


def _deadline(timeout: Optional[float]) -> float:
    if timeout is None:
        return math.inf
    return time.monotonic() + _arguments.seconds("timeout", timeout)
