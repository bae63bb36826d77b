"""The client that a training process holds.

It never raises into training (unless asked to), never waits except in the calls that take a timeout, and is
silent while Redis is away: submits are kept by libevalq and sent when it is back. Any thread may call any
method. After fork() the child's first call opens a client of its own.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Type, Union

from . import _checked, _library
from ._arrivals import Arrivals
from ._handle import Handle, Needs, Submit, Suites, needs_text
from ._library import EvalqError
from .result import Best, Result, Stats

if TYPE_CHECKING:
    from ._asks import Ask
    from .snapshot import Snapshots

_LIMIT_SECONDS = 86400.0
_SLICE_MS = 200  # A wait is cut into these, so that Ctrl-C ends it.
_SILENT_SECONDS = 10.0  # After these a wait says that it waits, and who knows why.

Path = Union[str, "os.PathLike[str]"]
StateDict = Union[Mapping[str, Any], Callable[[], Mapping[str, Any]]]


class Client:
    """Submits checkpoints of one run and brings their results back.

    url       Redis, as redis://HOST:PORT or unix://PATH. Default: as evalq's programs find it ($EVALQ_URL,
              ./.evalq/url, the configuration).
    run       Name of the training run. Default: $EVALQ_RUN, else made of host and working directory.
    queue     Default: $EVALQ_QUEUE, else the configuration's, else "main".
    config    Configuration file (its ``roots`` say where checkpoints lie). Default: as evalq's programs.
    raise_errors  True: calls raise EvalqError instead of logging a warning and returning False.
    log       True: one line per submit, arrival and error through ``logging.getLogger("evalq")``; a Logger:
              through that one; False: nothing at all.
    pin       False: checkpoints are evaluated where they lie, if they still do.
    snapshots How many state dicts may lie in shared memory at once.
    snapshot_directory    Where they lie; the root "shm" of the configuration. Default: /dev/shm/evalq-UID.
    snapshot_host The name or address by which workers on other machines reach this one, to fetch state dicts.
              Default: $EVALQ_SNAPSHOT_HOST, else the address by which Redis is reached; "none": nobody fetches.
    session_ms    When this life of the run began, unix ms. Default: this process's start.
    ring_directory    Where submits not yet sent are kept; a local disk. Default: ~/.local/state/evalq.
    close_seconds How long close() waits at most until everything that is ready was sent.

    A wrong configuration never stops training: it is logged once, and every submit returns False.
    """

    _handle: Optional[Handle]
    _snapshots: "Optional[Snapshots]"
    _refusals: int
    _last_refusal: str

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
        self._options: Dict[str, Any] = {
            "url": url,
            "run": run,
            "queue": queue,
            "session_ms": session_ms,
            "snapshot_host": snapshot_host,
        }
        self._refused: Optional[str] = None  # What is wrong with the arguments: nothing works then.
        self._snapshot_directory: Optional[str] = None
        self._raise_errors = raise_errors is not False and raise_errors is not None
        self._log: Optional[logging.Logger] = None
        if log is not False:
            self._log = log if isinstance(log, logging.Logger) else logging.getLogger("evalq")
        self._reset()
        _clients.add(self)
        try:
            self._options["config"] = _checked.optional_path("config", config)
            self._options["ring_directory"] = _checked.optional_path("ring_directory", ring_directory)
            self._options["pin_disabled"] = 0 if pin else 1
            self._options["close_ms"] = max(1, int(1000 * min(_checked.seconds("close_seconds", close_seconds), 86400.0)))
            self._snapshot_directory = _checked.optional_path("snapshot_directory", snapshot_directory)
            self._snapshot_limit = max(1, _checked.whole("snapshots", snapshots))
        except Exception as error:
            self._refused = f"Client: {_checked.sentence(error)}"
        try:
            self._open()
        except Exception as error:  # Whatever it is, training goes on.
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
        """Has the checkpoint at path (a file or a directory) evaluated; returns in microseconds.

        Call it once the checkpoint was written, or is being written by a save in the background: it is waited
        for. It is pinned, so that it may be deleted or rotated away as soon as the client had a moment.

        suites    "quick", "quick,full" or ["quick", "full"]: names from the workers' configuration.
        variant   Which weights of the step: "regular", "ema", or a name of your own; a curve of its own.
        policy    "all" (default), "latest" (a newer checkpoint makes queued older ones of the suite skipped) or
                  "backfill" (keeps the curve evenly resolved when evaluation is slower than training).
        keep      Never superseded by a newer one: final, milestone.
        priority  "urgent", "high", "normal" (default) or "backfill".
        params    Handed to the evaluator as text. trackers: {"wandb_run_id": ...}, where results belong.
        held      A copy of path (hard links, say) that stays when path is deleted: pinned in its place.
        needs     Instead of the suite's: {"gpus": 2, "gpu_memory": "40GiB", "labels": ["a100"]}, any of them, or the
                  same as text; {}: nothing but a slot.

        True: accepted; it survives the death of this process and the absence of Redis.
        """
        try:
            submit = Submit.of(step, suites, variant, policy, keep, priority, epoch, params, trackers, needs)
            handle = self._open()
            name = _checked.path("path", path)
            code = handle.submit(name, submit, _checked.optional_path("held", held))
            if code != _library.OK:
                raise handle.failure(code)
        except Exception as error:  # Whatever it is, training goes on.
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
        """Has weights evaluated that were never saved: they become safetensors in shared memory.

        The calling thread is held for one copy of the tensors to host memory, no longer; a background thread
        writes and submits. state_dict maps names to torch tensors or numpy arrays (nested mappings get dotted
        names; other values are left out), or is a function that returns such a mapping. At most ``snapshots`` lie
        in shared memory: for a new one the oldest that no worker has claimed is dropped, with its reason in the
        log. Each is removed when its jobs ended. Workers of this host read it there, others fetch it from this
        process. metadata goes into the file's header.

        when      "now", or "idle": only if a worker is free for one of the suites and found nothing else to do,
                  and then for those suites; else False, in microseconds. Called at every step, a spare GPU
                  evaluates the newest weights again and again. One snapshot for each time a worker asks.

        True: the copy was taken. Later trouble, such as a full /dev/shm, is logged once.
        """
        ask: Optional[Ask] = None
        try:
            if when != "now":
                ask = self._asked(when, state_dict, suites, needs)
                wanted = self._snapshot_store().asks.take(ask) if ask is not None else None
                if wanted is None:
                    return False
                suites = wanted
            submit = Submit.of(step, suites, variant, policy, keep, priority, epoch, params, trackers, needs)
            metadata = _checked.mapping("metadata", metadata)
            self._open()
            given = state_dict() if callable(state_dict) else state_dict
            self._snapshot_store().put(given, submit, metadata, ask)
        except Exception as error:  # Whatever it is, training goes on.
            if ask is not None:
                ask.settle()
            return self._not_taken(error, step)
        return True

    def reserve_state_dict(self, state_dict: Mapping[str, Any]) -> bool:
        """Has the memory for a copy of such a state dict made ready in the background, before it is needed.

        Touching new memory can cost several times a copy, and the first submit_state_dict() would wait for it.
        """
        try:
            self._open()
            self._snapshot_store().reserve(state_dict)
        except Exception as error:  # Whatever it is, training goes on.
            return self._fail(error)
        return True

    # -- results

    def results(self) -> Iterator[Result]:
        """What arrived since the last call; never waits. The first call begins with all the run has so far,
        including what earlier processes of the run submitted. Of what nobody reads the newest 20,000 are kept:
        one warning, and a count in stats()."""
        try:
            self._start_reader()
        except Exception as error:  # Whatever it is, training goes on.
            self._fail(error)
        return self._arrivals.drain()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Until everything submitted is in Redis and no job of the run is open, or timeout seconds passed.

        True: all ended; results() has everything (the newest 20,000 of it). An outage of Redis is waited out. False as soon as all that is
        left is a checkpoint beneath no root: it is submitted when the configuration has the root.
        """
        try:
            deadline = _deadline(timeout)
            handle = self._open()
            snapshots = self._snapshots
            if snapshots is not None and not snapshots.flush(deadline):
                return self._fail(EvalqError("the timeout passed while a snapshot was written", _library.TIMEOUT))
            silent = time.monotonic() + _SILENT_SECONDS
            while True:
                left = max(0.0, deadline - time.monotonic())
                last = left * 1000 < 2 * _SLICE_MS  # Not cut so short that it learns nothing.
                code = handle.wait(self._arrivals.take, int(left * 1000) if last else _SLICE_MS)
                self._arrivals.log()
                if code == _library.OK:
                    return snapshots is None or self._all_rooted(snapshots)
                if code not in (_library.TIMEOUT, _library.UNAVAILABLE) or left <= 0 or (last and code == _library.TIMEOUT):
                    raise handle.failure(code)
                if self._log is not None and time.monotonic() >= silent:
                    self._log.warning("wait: jobs of run '%s' are still open: `evalq status` says why", self.run)
                    silent = math.inf
                if code == _library.UNAVAILABLE:
                    time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
        except Exception as error:  # Whatever it is, training goes on.
            return self._fail(error, "wait: ")

    def ended(self, timeout: float = 0.0) -> bool:
        """As wait(), for those who ask again and again: without a word when the answer is no, or unknown."""
        try:
            deadline = _deadline(timeout)
            snapshots = self._snapshots
            if snapshots is not None and not snapshots.flush(deadline):
                return False
            handle = self._open()
            left_ms = int(min(deadline - time.monotonic(), _LIMIT_SECONDS) * 1000)
            code = handle.wait(self._arrivals.take, max(1, left_ms))
            return code in (_library.OK, _library.NOT_FOUND)  # What no root holds: nothing more will come of it.
        except Exception as error:  # Whatever it is, training goes on.
            return self._fail(error, "wait: ")

    def best(
        self, metric: Optional[str] = None, mode: Optional[str] = None, *, timeout: float = 2.0
    ) -> Optional[Best]:
        """The best checkpoint so far; None: no result yet, or it cannot be asked now. A metric that the run does not
        have is an error that names those it has.

        metric  "eval/digits/accuracy"; None: the first that the logger keeps.
        mode    "max" or "min": decided here, over all results of the run that arrived; regular weights count,
                NaN and infinite values never win, the lower step wins a tie. None: the logger's answer, whose
                direction comes from the evaluator.
        """
        try:
            metric = _checked.optional_text("metric", metric)
            mode = _checked.optional_text("mode", mode)
            limit_ms = int(1000 * min(_checked.seconds("timeout", timeout), _LIMIT_SECONDS))
            if mode is None:
                handle = self._open()
                kept = handle.best(metric, limit_ms)
                if kept is None and metric:
                    missing = handle.failure(_library.NOT_FOUND)
                    if handle.best(None, limit_ms) is not None:  # The run has a best, but not by this metric.
                        raise missing
                return self._arrivals.still_there(kept) if kept is not None else None
            if mode not in ("max", "min") or not metric:
                raise EvalqError("mode is 'max' or 'min', and needs the name of a metric")
            handle = self._open()
            code = handle.poll(self._arrivals.take, limit_ms)
            self._arrivals.log()
            if code != _library.OK:
                raise handle.failure(code)
            found = self._arrivals.best(metric, mode)
            names = self._arrivals.metrics()
            if found is None and names and metric not in names:
                raise EvalqError(f"run '{self.run}' has no metric '{metric}' so far, only: {', '.join(names)}")
            return found
        except Exception as error:  # Whatever it is, training goes on.
            self._fail(error, "best: ")
            return None

    # -- the rest

    @property
    def run(self) -> str:
        """The run's name as the queue has it; "" when the client could not be opened."""
        return self._handle.run() if self._handle is not None else ""

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
            connected=any(view.connected for view in views),  # Snapshots have a connection of their own.
            snapshots=snapshots.held if snapshots is not None else 0,
            snapshots_dropped=snapshots.dropped if snapshots is not None else 0,
            results_dropped=self._arrivals.dropped,
        )

    def flush(self, timeout: Optional[float] = None) -> bool:
        """Until everything submitted so far is in Redis. False: the timeout passed, or Redis is away."""
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
        except Exception as error:  # Whatever it is, training goes on.
            return self._fail(error, "flush: ")

    def close(self) -> None:
        """Waits until everything that is ready was sent, at most ``close_seconds``, then stops. A warning says how
        many submits are left. They stay on disk for the next client of the run, or for ``evalq scan``. Snapshots that
        nobody claimed are dropped."""
        self._closed = True
        self._arrivals.stop()
        with self._lock:
            handle, self._handle = self._handle, None
            snapshots, self._snapshots = self._snapshots, None
        if snapshots is not None:
            snapshots.close()
        if handle is not None:
            handle.close()
        self._arrivals.log()
        refused, self._refusals = self._refusals, 0
        if refused and self._log is not None:  # A word at the start is far away after days of training.
            self._log.warning("%d of the submits were not taken; the last: %s", refused, self._last_refusal)

    def __deepcopy__(self, memo: Any) -> "Client":
        """Itself: a model that holds a client can be copied, as averages of weights do."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("an evalq.Client cannot be pickled: open one in each process, with the same run")

    def __copy__(self) -> "Client":
        return self

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    # -- inside

    def _reset(self) -> None:
        """Nothing open."""
        self._lock = threading.RLock()
        self._closed = False
        self._handle = None
        self._snapshots = None
        self._arrivals = Arrivals(self._log)
        self._last_failure = ""
        self._refusals = 0  # Submits that were not taken.
        self._last_refusal = ""

    def _forked(self) -> None:
        """In the child: all is the parent's, and its locks may be held for ever."""
        snapshots = self._snapshots
        self._reset()
        if snapshots is not None:
            snapshots.forget()

    def _open(self) -> Handle:
        handle = self._handle
        if handle is not None:
            return handle
        with self._lock:
            if self._closed:
                raise EvalqError("the client is closed")
            if self._refused is not None:
                raise EvalqError(self._refused)
            if self._handle is None:
                self._handle = self._open_handle({})
            return self._handle

    def _open_handle(self, changes: Mapping[str, Any]) -> Handle:
        """A libevalq client whose warnings become log lines."""
        options = dict(self._options, **changes)
        if self._log is None:
            return Handle(dict(options, quiet=1))
        read_fd, write_fd = os.pipe()
        try:
            handle = Handle(dict(options, log_path=f"/proc/self/fd/{write_fd}"))
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)  # libevalq opened its own; the pipe ends with it.
        threading.Thread(
            target=_log_warnings, args=(read_fd, self._log), name="evalq-warnings", daemon=True
        ).start()
        return handle

    def _asked(
        self, when: str, state_dict: StateDict, suites: Suites, needs: Optional[Needs]
    ) -> "Optional[Ask]":
        """What a free worker asked for; None: nothing. The first call begins to ask the workers."""
        if when != "idle":
            raise EvalqError(f"when is {_checked.shown(when)}, expected now or idle")
        key = (_checked.names("suites", suites), needs_text(needs) or "")
        snapshots = self._snapshots
        ask = snapshots.asks.find(key) if snapshots is not None else None
        if ask is None:
            self._open()
            self._snapshot_store().ask(*key)
            if not callable(state_dict):
                self._snapshot_store().reserve(state_dict)
            return None
        return ask if ask.suites is not None else None

    def _snapshot_store(self) -> "Snapshots":
        with self._lock:
            if self._snapshots is None:
                from .snapshot import Snapshots

                self._snapshots = Snapshots(
                    open_handle=lambda: self._open_handle({"pin_disabled": 1, "run": self.run}),
                    limit=self._snapshot_limit,
                    submitted=self._submitted,
                    log=self._log,
                    directory=self._snapshot_directory,
                )
            return self._snapshots

    @staticmethod
    def _all_rooted(snapshots: "Snapshots") -> bool:
        """True, or EvalqError: the main handle does not know of those that lie beneath no root."""
        if snapshots.rootless > 0:
            raise EvalqError(
                f"{snapshots.rootless} of the snapshots lies beneath no root: submitted when the configuration has it,"
                f" roots: {{shm: {snapshots.root}}}",
                _library.NOT_FOUND,
            )
        return True

    def _submitted(self, submit: Submit, path: Optional[str]) -> None:
        self._arrivals.expect(submit.step, submit.variant, path)
        if self._log is not None:
            what = path if path is not None else "state dict"
            self._log.info("step %d submitted (%s, %s): %s", submit.step, submit.suites, submit.variant, what)
        self._start_reader()

    def _start_reader(self) -> None:
        if not self._arrivals.started:
            self._arrivals.start(self._open())

    def _not_taken(self, error: Exception, step: object) -> bool:
        prefix = f"step {_checked.shown(step)} was not submitted: "
        if not self._raise_errors:
            self._refusals += 1
            self._last_refusal = prefix + _checked.sentence(error)
        return self._fail(error, prefix)

    def _fail(self, error: Exception, prefix: str = "") -> bool:
        if self._raise_errors:
            if isinstance(error, EvalqError):
                raise error
            raise EvalqError(_checked.sentence(error)) from error
        text = _checked.sentence(error)
        if self._log is not None:
            again = text == self._last_failure
            self._log.log(logging.DEBUG if again else logging.WARNING, "%s%s", prefix, text)
        self._last_failure = text
        return False


def _deadline(timeout: Optional[float]) -> float:
    return math.inf if timeout is None else time.monotonic() + _checked.seconds("timeout", timeout)


def _log_warnings(read_fd: int, log: logging.Logger) -> None:
    """libevalq's own warnings, until it closes its end."""
    with os.fdopen(read_fd, "r", errors="replace") as lines:
        for line in lines:
            text = line.strip()
            prefix = "evalq: warning: "
            log.warning("%s", text[len(prefix) :] if text.startswith(prefix) else text)


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _all_forked() -> None:
    for client in list(_clients):
        client._forked()


atexit.register(_close_all)  # Sends what is ready; the rest is on disk.
os.register_at_fork(after_in_child=_all_forked)
