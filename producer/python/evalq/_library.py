"""Loads libevalq with ctypes at its first use, and declares the structs and functions of
evalq.h."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any, Callable, List, Optional

OK, INVALID, FULL, TIMEOUT, UNAVAILABLE, NOT_FOUND, NOMEM, FORKED, BUG, BUSY = range(10)

NAMES = (
    "ok",
    "invalid",
    "full",
    "timeout",
    "unavailable",
    "not found",
    "out of memory",
    "forked",
    "bug",
    "busy",
)


class EvalqError(Exception):
    """An error that evalq reports, in one sentence. ``code`` is a status of evalq.h."""

    def __init__(self, message: str, code: int = INVALID) -> None:
        super().__init__(message)
        self.code = code


class Pair(ctypes.Structure):
    """struct evalq_pair."""

    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Options(ctypes.Structure):
    """struct evalq_options."""

    _fields_ = [
        ("url", ctypes.c_char_p),
        ("config", ctypes.c_char_p),
        ("queue", ctypes.c_char_p),
        ("run", ctypes.c_char_p),
        ("session_ms", ctypes.c_int64),
        ("ring_directory", ctypes.c_char_p),
        ("ring_bytes", ctypes.c_uint32),
        ("spool_bytes_max", ctypes.c_int64),
        ("pin_bytes_max", ctypes.c_int64),
        ("pin_disabled", ctypes.c_int),
        ("log_path", ctypes.c_char_p),
        ("quiet", ctypes.c_int),
        ("snapshot_host", ctypes.c_char_p),
        ("close_ms", ctypes.c_int64),
        ("reserved", ctypes.c_uint64 * 6),
    ]


class Checkpoint(ctypes.Structure):
    """struct evalq_checkpoint."""

    _fields_ = [
        ("path", ctypes.c_char_p),
        ("step", ctypes.c_int64),
        ("epoch", ctypes.c_double),
        ("suites", ctypes.c_char_p),
        ("variant", ctypes.c_char_p),
        ("policy", ctypes.c_char_p),
        ("format", ctypes.c_char_p),
        ("priority", ctypes.c_char_p),
        ("keep", ctypes.c_int),
        ("params", ctypes.POINTER(Pair)),
        ("param_count", ctypes.c_size_t),
        ("trackers", ctypes.POINTER(Pair)),
        ("tracker_count", ctypes.c_size_t),
        ("needs", ctypes.c_char_p),
        ("held", ctypes.c_char_p),
        ("reserved", ctypes.c_uint64 * 6),
    ]


class MetricView(ctypes.Structure):
    """struct evalq_metric_view."""

    _fields_ = [
        ("job", ctypes.c_char_p),
        ("task", ctypes.c_char_p),
        ("state", ctypes.c_char_p),
        ("reason", ctypes.c_char_p),
        ("variant", ctypes.c_char_p),
        ("suite", ctypes.c_char_p),
        ("step", ctypes.c_int64),
        ("key", ctypes.c_char_p),
        ("metric", ctypes.c_char_p),
        ("value", ctypes.c_double),
        ("n", ctypes.c_int64),
        ("finished_ms", ctypes.c_int64),
    ]


class StatsView(ctypes.Structure):
    """struct evalq_stats."""

    _fields_ = [
        ("submitted", ctypes.c_uint64),
        ("dropped", ctypes.c_uint64),
        ("sent", ctypes.c_uint64),
        ("refused", ctypes.c_uint64),
        ("pending", ctypes.c_uint64),
        ("unpinned", ctypes.c_uint64),
        ("submit_ns_total", ctypes.c_int64),
        ("submit_ns_max", ctypes.c_int64),
        ("connected", ctypes.c_int),
        ("reserved", ctypes.c_uint64 * 8),
    ]


METRIC_FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(MetricView))

# The functions of evalq.h that this package calls: name, type of the result, types of the
# arguments.
_HANDLE = ctypes.c_void_p
_SIGNATURES: "tuple[tuple[str, Any, List[Any]], ...]" = (
    ("open", ctypes.c_int, [ctypes.POINTER(Options), ctypes.POINTER(_HANDLE)]),
    ("close", None, [_HANDLE]),
    ("submit", ctypes.c_int, [_HANDLE, ctypes.POINTER(Checkpoint)]),
    ("flush", ctypes.c_int, [_HANDLE, ctypes.c_int]),
    ("poll", ctypes.c_int, [_HANDLE, METRIC_FN, ctypes.c_void_p, ctypes.c_int]),
    ("wait", ctypes.c_int, [_HANDLE, METRIC_FN, ctypes.c_void_p, ctypes.c_int]),
    (
        "best_metric",
        ctypes.c_int,
        [
            _HANDLE,
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_double),
            ctypes.POINTER(ctypes.c_int64),
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_int,
        ],
    ),
    ("withdraw_job", ctypes.c_int, [_HANDLE, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]),
    (
        "job",
        ctypes.c_int,
        [_HANDLE, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
    ),
    (
        "idle",
        ctypes.c_int,
        [_HANDLE, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int],
    ),
    ("stats", None, [_HANDLE, ctypes.POINTER(StatsView)]),
    ("error", ctypes.c_char_p, [_HANDLE]),
    ("run", ctypes.c_char_p, [_HANDLE]),
    ("version", ctypes.c_char_p, []),
)


def native_directory() -> Optional[str]:
    """The directory of the wheel that holds its library and programs; None in a source tree."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native")
    return path if os.path.isdir(path) else None


def _library_paths() -> List[str]:
    """The paths to try. The last one has no directory, so that the dynamic loader searches it."""
    chosen = os.environ.get("EVALQ_LIBRARY")
    if chosen:
        return [chosen]
    native = native_directory()
    packed = [os.path.join(native, "libevalq.so.1")] if native is not None else []
    return [*packed, "libevalq.so.1"]


class Library:
    """The loaded library. Its functions have their names of evalq.h without "evalq_client_"."""

    open: Callable[..., int]
    close: Callable[..., None]
    submit: Callable[..., int]
    flush: Callable[..., int]
    poll: Callable[..., int]
    wait: Callable[..., int]
    best_metric: Callable[..., int]
    withdraw_job: Callable[..., int]
    job: Callable[..., int]
    idle: Callable[..., int]
    stats: Callable[..., None]
    error: Callable[..., bytes]
    run: Callable[..., bytes]
    version: Callable[..., bytes]

    def __init__(self) -> None:
        self.path = ""
        handle: Optional[ctypes.CDLL] = None
        reasons = []
        # The helper for remote stores (evalq.fetch) needs the packages of this interpreter.
        os.environ.setdefault("EVALQ_PYTHON", sys.executable or "")
        for path in _library_paths():
            try:
                handle = ctypes.CDLL(path)
                self.path = path
                break
            except OSError as error:
                reasons.append(str(error))
        if handle is None:
            raise EvalqError(
                f"libevalq was not found ({'; '.join(reasons)}): install the evalq wheel, or set"
                " EVALQ_LIBRARY to libevalq.so.1"
            )
        for name, result, arguments in _SIGNATURES:
            function = getattr(handle, "evalq_client_" + name, None)
            if function is None:
                raise EvalqError(
                    f"{self.path} has no evalq_client_{name}: it is older than this package, or not"
                    " libevalq; set EVALQ_LIBRARY to the libevalq.so.1 of this version"
                )
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)


_lock = threading.Lock()
_library: Optional[Library] = None


def load() -> Library:
    """Returns the library, and loads it in the first call. Any thread may call it. EvalqError: it
    was not found, or it is older than this package."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = Library()
    return _library


def _replace_lock() -> None:
    """Call it in a forked child. A thread of the parent may have held the lock, and does not exist
    here."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_replace_lock)


def version() -> str:
    """The version of libevalq, such as "1.2.3"."""
    return load().version().decode()
