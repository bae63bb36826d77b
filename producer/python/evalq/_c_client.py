"""Wraps one open libevalq client in an object."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar, Union

from . import _arguments, _library
from ._library import EvalqError
from .result import Best, Result

_PATH_BYTES = 8192
_METRIC_BYTES = 256
_JOB_BYTES = 256
# These options may have any bytes; the caller has checked that they are paths.
_PATHS = ("config", "ring_directory", "log_path")
_CALL_MS_MAX = 2**31 - 1
_CLOSE_SECONDS = 2.0  # The longest time that close() waits for the calls of other threads.

Suites = Union[str, Sequence[str]]
Needs = Union[str, Mapping[str, Any]]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Submit:
    """The arguments of a submit, as libevalq takes them."""

    step: int
    suites: str
    variant: str
    policy: Optional[str]
    keep: bool
    priority: Optional[str]
    epoch: Optional[float]
    params: Dict[str, str]
    trackers: Dict[str, str]
    needs: Optional[str] = None

    @staticmethod
    def of(
        step: int,
        suites: Suites,
        variant: str,
        policy: Optional[str],
        keep: bool,
        priority: Optional[str],
        epoch: Optional[float],
        params: Optional[Mapping[str, Any]],
        trackers: Optional[Mapping[str, Any]],
        needs: Optional[Needs] = None,
    ) -> "Submit":
        """Checks the user's arguments; raises EvalqError if one has a wrong type."""
        return Submit(
            step=_arguments.whole("step", step),
            suites=_arguments.names("suites", suites),
            variant=_arguments.text("variant", variant),
            policy=_arguments.optional_text("policy", policy),
            keep=bool(keep),
            priority=_arguments.optional_text("priority", priority),
            epoch=_arguments.optional_number("epoch", epoch),
            params=_pairs("params", params),
            trackers=_pairs("trackers", trackers),
            needs=needs_text(needs),
        )


def needs_text(needs: Optional[Needs]) -> Optional[str]:
    """The needs in libevalq's form: "gpus=2,gpu_memory=40GiB,labels=a100+fast"."""
    if needs is None or isinstance(needs, str):
        return _arguments.optional_text("needs", needs)
    texts = _arguments.mapping("needs", needs)
    labels = texts.get("labels")
    if labels is not None and not isinstance(labels, str):
        texts["labels"] = "+".join(str(label) for label in labels)
    joined = ",".join(f"{key}={value}" for key, value in texts.items())
    return _arguments.text("needs", joined or "gpus=0")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list, tuple)):
        return json.dumps(value)
    return str(value)


def _pairs(name: str, values: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    return {
        _arguments.text(name, str(key)): _arguments.text(name, _text(value))
        for key, value in _arguments.mapping(name, values).items()
    }


def _bytes(value: Optional[str]) -> Optional[bytes]:
    return None if not value else os.fsencode(value)


def _pair_array(values: Mapping[str, str]) -> "ctypes.Array[_library.Pair]":
    pairs = (_library.Pair * max(1, len(values)))()
    for at, (key, value) in enumerate(values.items()):
        pairs[at].key = key.encode()
        pairs[at].value = value.encode()
    return pairs


class Handle:
    """One open libevalq client of this process.

    Any thread may call any method at any time. libevalq's own close() must be the last call, so
    close() here waits for the calls of other threads; if they take too long, the last of them
    closes."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.calls = _library.load()
        self.pid = os.getpid()
        self._pointer = ctypes.c_void_p()
        # These are lists, because their methods are atomic. A lock could still be held in a forked
        # child, or by the thread that a signal handler interrupts.
        self._users: List[None] = []  # One entry for each call that has not returned.
        self._closing: List[ctypes.c_void_p] = []  # The client after close(), while it has users.
        values = _library.Options()
        kinds: Dict[str, Any] = {field[0]: field[1] for field in _library.Options._fields_}
        for name, value in options.items():
            if value is None:
                continue
            if kinds[name] is ctypes.c_char_p:  # ctypes would use a number as an address.
                text = value if name in _PATHS else _arguments.text(name, value)
                setattr(values, name, os.fsencode(text))
            else:
                setattr(values, name, _arguments.whole(name, value))
        code = self.calls.open(ctypes.byref(values), ctypes.byref(self._pointer))
        if code != _library.OK:
            raise self.failure(code)

    def failure(self, code: int) -> EvalqError:
        """The error message of this thread's last call."""
        text = self.calls.error(None).decode(errors="replace")
        return EvalqError(text or _library.NAMES[code], code)

    def submit(self, path: str, submit: Submit, held: Optional[str] = None) -> int:
        """Returns libevalq's code; failure() gives the message."""
        params, trackers = _pair_array(submit.params), _pair_array(submit.trackers)
        request = _library.Checkpoint(
            path=os.fsencode(path),
            step=submit.step,
            epoch=math.nan if submit.epoch is None or math.isinf(submit.epoch) else submit.epoch,
            suites=submit.suites.encode(),
            variant=_bytes(submit.variant),
            policy=_bytes(submit.policy),
            priority=_bytes(submit.priority),
            keep=1 if submit.keep else 0,
            needs=_bytes(submit.needs),
            params=params,
            param_count=len(submit.params),
            trackers=trackers,
            tracker_count=len(submit.trackers),
            held=_bytes(held),
        )
        return self._call(self.calls.submit, ctypes.byref(request))

    @staticmethod
    def _limit(timeout_ms: int) -> int:
        """The largest value that fits a C int, because ctypes would cut a larger one."""
        return min(timeout_ms, _CALL_MS_MAX)

    def poll(self, take: Callable[[Result], None], timeout_ms: int) -> int:
        return self._call(self.calls.poll, _metric_fn(take), None, self._limit(timeout_ms))

    def wait(self, take: Callable[[Result], None], timeout_ms: int) -> int:
        return self._call(self.calls.wait, _metric_fn(take), None, self._limit(timeout_ms))

    def flush(self, timeout_ms: int) -> int:
        return self._call(self.calls.flush, self._limit(timeout_ms))

    def best(self, metric: Optional[str], timeout_ms: int) -> Optional[Best]:
        value, step = ctypes.c_double(), ctypes.c_int64()
        path = ctypes.create_string_buffer(_PATH_BYTES)
        name = ctypes.create_string_buffer(_METRIC_BYTES)
        code = self._call(
            self.calls.best_metric,
            _bytes(metric),
            ctypes.byref(value),
            ctypes.byref(step),
            path,
            len(path),
            name,
            len(name),
            self._limit(timeout_ms),
        )
        if code == _library.NOT_FOUND:
            return None
        if code != _library.OK:
            raise self.failure(code)
        found_name = name.value.decode(errors="replace")
        return Best(found_name, value.value, step.value, os.fsdecode(path.value) or None)

    def withdraw_job(self, job: str, reason: str, timeout_ms: int) -> int:
        return self._call(self.calls.withdraw_job, job.encode(), reason.encode(), timeout_ms)

    def job(self, path: str, suite: str) -> Optional[str]:
        """The id of the path's job. "": there will be no job. None: it is not in Redis yet."""
        out = ctypes.create_string_buffer(_JOB_BYTES)
        code = self._call(self.calls.job, os.fsencode(path), suite.encode(), out, len(out))
        return out.value.decode() if code == _library.OK else None

    def idle(self, suites: str, needs: str, timeout_ms: int) -> List[str]:
        """The suites for which a worker is idle; this takes the worker's request. [] also if Redis
        does not answer."""
        out = ctypes.create_string_buffer(len(suites.encode()) + 1)
        code = self._call(
            self.calls.idle, suites.encode(), _bytes(needs), out, len(out), timeout_ms
        )
        return out.value.decode().split(",") if code == _library.OK else []

    def stats(self) -> _library.StatsView:
        view = _library.StatsView()
        self._call(self.calls.stats, ctypes.byref(view))
        return view

    def run(self) -> str:
        return self._call(self.calls.run).decode()

    def _call(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Calls a function of libevalq. After close(), the function gets no client."""
        self._users.append(None)  # Before the pointer is read, so that close() sees this call.
        try:
            return function(self._pointer, *arguments)
        finally:
            self._users.pop()
            self._close_unused()

    def close(self) -> None:
        pointer, self._pointer = self._pointer, ctypes.c_void_p()
        if pointer:
            self._closing.append(pointer)
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self._users and time.monotonic() < deadline:
            time.sleep(0.005)
        self._close_unused()

    def _close_unused(self) -> None:
        if self._closing and not self._users:
            with contextlib.suppress(IndexError):  # Another thread closes it.
                self.calls.close(self._closing.pop())


def _metric_fn(take: Callable[[Result], None]) -> Any:
    """Wraps take as a callback for libevalq. take must not raise, because an exception cannot pass
    through C."""

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
