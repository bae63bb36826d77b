"""The client that a training process holds.

It never raises into training (unless asked to), never waits except in the calls that take a timeout, and is
silent while Redis is away: submits are kept by libevalq and sent when it is back. Any thread may call any
method. After fork() the child's first call opens a client of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

from . import _library
from ._library import EvalqError

if TYPE_CHECKING:
    from .snapshot import Snapshots

_SLICE_MS = 200  # A wait is cut into these, so that Ctrl-C ends it.
_POLL_SECONDS = 0.25  # Between looks for results while jobs are open.
_POLL_IDLE_SECONDS = 2.0  # After nothing came for a while, or while Redis is away.
_POLL_CALL_MS = 1000
_PATH_BYTES = 8192

Suites = Union[str, Sequence[str]]
Path = Union[str, "os.PathLike[str]"]


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
    path: Optional[str]  #: On this machine, where it is known.


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
    snapshots: int  #: Held in shared memory now.
    snapshots_dropped: int  #: Never evaluated: newer ones came first, or there was no room.


@dataclass(frozen=True)
class _Submit:
    """The arguments of a submit, checked and as libevalq takes them."""

    step: int
    suites: str
    variant: str
    policy: Optional[str]
    keep: bool
    priority: Optional[str]
    epoch: Optional[float]
    params: Dict[str, str]
    trackers: Dict[str, str]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list, tuple)):
        return json.dumps(value)
    return str(value)


def _pairs(values: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    return {str(key): _text(value) for key, value in (values or {}).items()}


def _bytes(value: Optional[str]) -> Optional[bytes]:
    return None if not value else os.fsencode(value)


def _pair_array(values: Mapping[str, str]) -> "ctypes.Array[_library.Pair]":
    pairs = (_library.Pair * max(1, len(values)))()
    for at, (key, value) in enumerate(values.items()):
        pairs[at].key = key.encode()
        pairs[at].value = value.encode()
    return pairs


class _Handle:
    """One open libevalq client of this process."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.calls = _library.load()
        self.pid = os.getpid()
        self._pointer = ctypes.c_void_p()
        values = _library.Options()
        for name, value in options.items():
            if value is not None:
                setattr(values, name, os.fsencode(value) if isinstance(value, str) else value)
        code = self.calls.open(ctypes.byref(values), ctypes.byref(self._pointer))
        if code != _library.OK:
            raise self.failure(code)

    def failure(self, code: int) -> EvalqError:
        """The sentence of this thread's last call."""
        text = self.calls.error(None).decode(errors="replace")
        return EvalqError(text or _library.NAMES[code], code)

    def submit(self, path: str, submit: _Submit) -> int:
        """The code of libevalq; failure() has the sentence."""
        params, trackers = _pair_array(submit.params), _pair_array(submit.trackers)
        request = _library.Checkpoint(
            path=os.fsencode(path),
            step=submit.step,
            epoch=math.nan if submit.epoch is None else submit.epoch,
            suites=submit.suites.encode(),
            variant=_bytes(submit.variant),
            policy=_bytes(submit.policy),
            priority=_bytes(submit.priority),
            keep=1 if submit.keep else 0,
            params=params,
            param_count=len(submit.params),
            trackers=trackers,
            tracker_count=len(submit.trackers),
        )
        return self.calls.submit(self._pointer, ctypes.byref(request))

    def poll(self, take: Callable[[Result], None], timeout_ms: int) -> int:
        return self.calls.poll(self._pointer, _metric_fn(take), None, timeout_ms)

    def wait(self, take: Callable[[Result], None], timeout_ms: int) -> int:
        return self.calls.wait(self._pointer, _metric_fn(take), None, timeout_ms)

    def flush(self, timeout_ms: int) -> int:
        return self.calls.flush(self._pointer, timeout_ms)

    def best(self, metric: Optional[str], timeout_ms: int) -> Optional[Best]:
        value, step = ctypes.c_double(), ctypes.c_int64()
        path = ctypes.create_string_buffer(_PATH_BYTES)
        code = self.calls.best(
            self._pointer,
            _bytes(metric),
            ctypes.byref(value),
            ctypes.byref(step),
            path,
            len(path),
            timeout_ms,
        )
        if code == _library.NOT_FOUND:
            return None
        if code != _library.OK:
            raise self.failure(code)
        return Best(metric or "", value.value, step.value, os.fsdecode(path.value) or None)

    def withdraw(self, step: int, variant: str, suite: str, reason: str, timeout_ms: int) -> int:
        return self.calls.withdraw(
            self._pointer, step, variant.encode(), suite.encode(), reason.encode(), timeout_ms
        )

    def stats(self) -> _library.StatsView:
        view = _library.StatsView()
        self.calls.stats(self._pointer, ctypes.byref(view))
        return view

    def run(self) -> str:
        return self.calls.run(self._pointer).decode()

    def close(self) -> None:
        pointer, self._pointer = self._pointer, ctypes.c_void_p()
        self.calls.close(pointer)


def _metric_fn(take: Callable[[Result], None]) -> Any:
    """take as a callback of libevalq; what it raises must not cross C, so it does not raise."""

    def on_metric(_context: Any, pointer: Any) -> None:
        view = pointer.contents
        task = view.task.decode(errors="replace")
        take(
            Result(
                step=view.step,
                suite=view.suite.decode(errors="replace"),
                variant=view.variant.decode(errors="replace"),
                task=task,
                metric=view.metric.decode(errors="replace"),
                key=view.key.decode(errors="replace"),
                value=view.value if task else math.nan,
                n=view.n if task and view.n >= 0 else None,
                state=view.state.decode(errors="replace"),
                reason=(view.reason or b"").decode(errors="replace"),
                job=view.job.decode(errors="replace"),
                finished_ms=view.finished_ms,
            )
        )

    return _library.METRIC_FN(on_metric)


def better(value: float, than: float, mode: str) -> bool:
    """Whether value beats than; NaN never does, and anything beats NaN."""
    if math.isnan(value):
        return False
    return math.isnan(than) or (value > than if mode == "max" else value < than)


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
    session_ms    When this life of the run began, unix ms. Default: this process's start.
    ring_directory    Where submits not yet sent are kept; a local disk. Default: ~/.local/state/evalq.

    A wrong configuration never stops training: it is logged once, and every submit returns False.
    """

    _handle: Optional[_Handle]
    _snapshots: "Optional[Snapshots]"

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
        session_ms: Optional[int] = None,
        ring_directory: Optional[Path] = None,
    ) -> None:
        self._options: Dict[str, Any] = {
            "url": url,
            "run": run,
            "queue": queue,
            "config": os.fspath(config) if config is not None else None,
            "session_ms": session_ms,
            "ring_directory": os.fspath(ring_directory) if ring_directory is not None else None,
            "pin_disabled": 0 if pin else 1,
        }
        self._raise_errors = raise_errors
        self._log: Optional[logging.Logger] = None
        if log is not False:
            self._log = log if isinstance(log, logging.Logger) else logging.getLogger("evalq")
        self._snapshot_limit = max(1, snapshots)
        self._snapshot_directory = os.fspath(snapshot_directory) if snapshot_directory is not None else None
        self._reset()
        _clients.add(self)
        try:
            self._open()
        except EvalqError as error:
            self._fail(error)

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

        True: accepted; it survives the death of this process and the absence of Redis.
        """
        try:
            submit = self._check(step, suites, variant, policy, keep, priority, epoch, params, trackers)
            handle = self._open()
            name = os.fspath(path)
            code = handle.submit(name, submit)
            if code != _library.OK:
                raise handle.failure(code)
        except Exception as error:  # Whatever it is, training goes on.
            return self._fail(error, f"step {step} was not submitted: ")
        self._submitted(submit, name)
        return True

    def submit_state_dict(
        self,
        state_dict: Mapping[str, Any],
        *,
        step: int,
        suites: Suites,
        variant: str = "regular",
        policy: Optional[str] = "latest",
        keep: bool = False,
        priority: Optional[str] = None,
        epoch: Optional[float] = None,
        params: Optional[Mapping[str, Any]] = None,
        trackers: Optional[Mapping[str, Any]] = None,
        metadata: Optional[Mapping[str, str]] = None,
    ) -> bool:
        """Has weights evaluated that were never saved: they become safetensors in shared memory.

        The calling thread is held for one copy of the tensors to host memory, no longer; a background thread
        writes and submits. state_dict maps names to torch tensors or numpy arrays (nested mappings get dotted
        names; other values are left out). At most ``snapshots`` lie in shared memory: for a new one the oldest
        that no worker has claimed is dropped, with its reason in the log. Each is removed when its jobs ended.
        Only workers of this host can claim it. metadata goes into the file's header.

        True: the copy was taken. Later trouble, such as a full /dev/shm, is logged once.
        """
        try:
            submit = self._check(step, suites, variant, policy, keep, priority, epoch, params, trackers)
            self._open()
            self._snapshot_store().put(state_dict, submit, metadata)
        except Exception as error:  # Whatever it is, training goes on.
            return self._fail(error, f"step {step} was not submitted: ")
        return True

    # -- results

    def results(self) -> Iterator[Result]:
        """What arrived since the last call; never waits. The first call begins with all the run has so far,
        including what earlier processes of the run submitted."""
        try:
            self._start_reader()
        except EvalqError as error:
            self._fail(error)
        return self._drain()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Until everything submitted is in Redis and no job of the run is open, or timeout seconds passed.

        True: all ended; results() has everything. An outage of Redis is waited out.
        """
        deadline = math.inf if timeout is None else time.monotonic() + max(0.0, timeout)
        try:
            handle = self._open()
            snapshots = self._snapshots
            if snapshots is not None and not snapshots.flush(deadline):
                return self._fail(EvalqError("the timeout passed while a snapshot was written", _library.TIMEOUT))
            while True:
                left = deadline - time.monotonic()
                code = handle.wait(self._take, max(0, int(min(_SLICE_MS, left * 1000))))
                self._log_arrivals()
                if code == _library.OK:
                    return True
                if code not in (_library.TIMEOUT, _library.UNAVAILABLE) or left <= 0:
                    raise handle.failure(code)
                if code == _library.UNAVAILABLE:
                    time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
        except EvalqError as error:
            return self._fail(error, "wait: ")

    def best(
        self, metric: Optional[str] = None, mode: Optional[str] = None, *, timeout: float = 2.0
    ) -> Optional[Best]:
        """The best checkpoint so far; None: no result yet, or it cannot be asked now.

        metric  "eval/digits/accuracy"; None: the first that the logger keeps.
        mode    "max" or "min": decided here, over all results of the run that arrived; regular weights count,
                NaN never wins, the lower step wins a tie. None: the logger's answer, whose direction comes from
                the evaluator.
        """
        try:
            if mode is None:
                return self._open().best(metric, int(timeout * 1000))
            if mode not in ("max", "min") or not metric:
                raise EvalqError("best: mode is 'max' or 'min', and needs the name of a metric")
            self._read(int(timeout * 1000))
            with self._lock:
                seen = dict(self._values.get(metric, {}))
                found: Optional[Tuple[int, float]] = None
                for step in sorted(seen):
                    if better(seen[step], math.nan if found is None else found[1], mode):
                        found = (step, seen[step])
                if found is None:
                    return None
                return Best(metric, found[1], found[0], self._paths.get(found[0]))
        except EvalqError as error:
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
            connected=bool(views) and bool(views[0].connected),
            snapshots=snapshots.held if snapshots is not None else 0,
            snapshots_dropped=snapshots.dropped if snapshots is not None else 0,
        )

    def flush(self, timeout: Optional[float] = None) -> bool:
        """Until everything submitted so far is in Redis. False: the timeout passed, or Redis is away."""
        deadline = math.inf if timeout is None else time.monotonic() + max(0.0, timeout)
        try:
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
        except EvalqError as error:
            return self._fail(error, "flush: ")

    def close(self) -> None:
        """Gives the background thread a second to send what is ready, then stops. What is not sent stays on
        disk for the next client of the run, or for ``evalq scan``. Snapshots that nobody claimed are dropped."""
        self._closed = True
        self._stop.set()
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(_POLL_CALL_MS / 1000 + 1)
        with self._lock:
            handle, self._handle = self._handle, None
            snapshots, self._snapshots = self._snapshots, None
        if snapshots is not None:
            snapshots.close()
        if handle is not None:
            handle.close()
        self._log_arrivals()

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
        """Nothing open: at first, and in a forked child, where other threads' locks may be held for ever."""
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._closed = False
        self._handle = None
        self._snapshots = None
        self._reader: Optional[threading.Thread] = None
        self._arrived: Deque[Result] = deque()
        self._unlogged: List[Result] = []
        self._values: Dict[str, Dict[int, float]] = {}
        self._paths: Dict[int, Optional[str]] = {}
        self._last_failure = ""

    def _check(
        self,
        step: int,
        suites: Suites,
        variant: str,
        policy: Optional[str],
        keep: bool,
        priority: Optional[str],
        epoch: Optional[float],
        params: Optional[Mapping[str, Any]],
        trackers: Optional[Mapping[str, Any]],
    ) -> _Submit:
        return _Submit(
            step=int(step),
            suites=suites if isinstance(suites, str) else ",".join(suites),
            variant=variant,
            policy=policy,
            keep=bool(keep),
            priority=priority,
            epoch=None if epoch is None else float(epoch),
            params=_pairs(params),
            trackers=_pairs(trackers),
        )

    def _open(self) -> _Handle:
        handle = self._handle
        if handle is not None:
            return handle
        with self._lock:
            if self._closed:
                raise EvalqError("the client is closed")
            if self._handle is None:
                self._handle = self._open_handle({})
            return self._handle

    def _open_handle(self, changes: Mapping[str, Any]) -> _Handle:
        """A libevalq client whose warnings become log lines."""
        options = dict(self._options, **changes)
        if self._log is None:
            return _Handle(dict(options, quiet=1))
        read_fd, write_fd = os.pipe()
        try:
            handle = _Handle(dict(options, log_path=f"/proc/self/fd/{write_fd}"))
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)  # libevalq opened its own; the pipe ends with it.
        threading.Thread(
            target=_log_warnings, args=(read_fd, self._log), name="evalq-warnings", daemon=True
        ).start()
        return handle

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

    def _submitted(self, submit: _Submit, path: Optional[str]) -> None:
        if submit.variant == "regular" or submit.step not in self._paths:
            self._paths[submit.step] = os.path.abspath(path) if path is not None else None
        if self._log is not None:
            what = path if path is not None else "state dict"
            self._log.info("step %d submitted (%s, %s): %s", submit.step, submit.suites, submit.variant, what)
        self._start_reader()

    def _start_reader(self) -> None:
        if self._reader is not None:
            return
        handle = self._open()
        with self._lock:
            if self._reader is None and not self._closed:
                self._reader = threading.Thread(
                    target=_read_results, args=(weakref.ref(self), handle, self._stop), name="evalq-results", daemon=True
                )
                self._reader.start()

    def _drain(self) -> Iterator[Result]:
        while True:
            try:
                result = self._arrived.popleft()
            except IndexError:
                return
            yield result

    def _read(self, timeout_ms: int) -> None:
        handle = self._open()
        code = handle.poll(self._take, timeout_ms)
        self._log_arrivals()
        if code != _library.OK:
            raise handle.failure(code)

    def _take(self, result: Result) -> None:
        self._arrived.append(result)
        with self._lock:
            if not result.is_end:
                self._values.setdefault(result.key, {})[result.step] = result.value
            if self._log is not None and result.step in self._paths:
                self._unlogged.append(result)

    def _log_arrivals(self) -> None:
        """One line per task that arrived, and per job that ended without a value."""
        with self._lock:
            results, self._unlogged = self._unlogged, []
        log = self._log
        tasks: Dict[Tuple[str, str], List[Result]] = {}
        for result in results:
            tasks.setdefault((result.job, result.task), []).append(result)
        for (_, task), values in tasks.items():
            first = values[0]
            if log is None or (task == "" and first.state == "done"):
                continue
            if task == "":
                level = logging.WARNING if first.state == "dead" else logging.INFO
                log.log(level, "step %d %s (%s): %s", first.step, first.state, first.suite, first.reason)
            else:
                text = ", ".join(f"{value.metric}={value.value:.6g}" for value in values)
                log.info("step %d %s/%s (%s): %s", first.step, first.suite, task, first.variant, text)

    def _fail(self, error: Exception, prefix: str = "") -> bool:
        if self._raise_errors:
            if isinstance(error, EvalqError):
                raise error
            raise EvalqError(str(error) or type(error).__name__) from error
        text = str(error) or type(error).__name__
        if self._log is not None:
            again = text == self._last_failure
            self._log.log(logging.DEBUG if again else logging.WARNING, "%s%s", prefix, text)
        self._last_failure = text
        return False


def _log_warnings(read_fd: int, log: logging.Logger) -> None:
    """libevalq's own warnings, until it closes its end."""
    with os.fdopen(read_fd, "r", errors="replace") as lines:
        for line in lines:
            text = line.strip()
            prefix = "evalq: warning: "
            log.warning("%s", text[len(prefix) :] if text.startswith(prefix) else text)


def _read_results(client: "weakref.ref[Client]", handle: _Handle, stop: threading.Event) -> None:
    """The reader's thread: so that results() never waits and arrivals are logged as they come."""
    pause = _POLL_SECONDS
    while not stop.wait(pause):
        owner = client()
        if owner is None:
            handle.close()
            return
        before = len(owner._arrived)
        code = handle.poll(owner._take, _POLL_CALL_MS)
        owner._log_arrivals()
        quiet = code != _library.OK or len(owner._arrived) <= before
        del owner
        pause = min(pause * 1.3, _POLL_IDLE_SECONDS) if quiet else _POLL_SECONDS


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _reset_all() -> None:
    for client in list(_clients):
        client._reset()


atexit.register(_close_all)  # Sends what is ready; the rest is on disk.
os.register_at_fork(after_in_child=_reset_all)
