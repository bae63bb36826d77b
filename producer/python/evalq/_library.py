"""libevalq through ctypes: the shapes of evalq.h, found once, loaded at the first use."""

from __future__ import annotations

import ctypes
import os
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
    """What libevalq refused, in its own sentence. ``code`` is one of the numbers of evalq.h."""

    def __init__(self, message: str, code: int = INVALID) -> None:
        super().__init__(message)
        self.code = code


class Pair(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Options(ctypes.Structure):
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

# (name, result, arguments) of the functions of evalq.h that are used here.
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
    ("job", ctypes.c_int, [_HANDLE, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
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
    """Where the wheel keeps its library and programs; None in a source tree."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native")
    return path if os.path.isdir(path) else None


def _candidates() -> List[str]:
    named = os.environ.get("EVALQ_LIBRARY")
    if named:
        return [named]
    found = []
    native = native_directory()
    if native is not None:
        found.append(os.path.join(native, "libevalq.so.1"))
    return found + ["libevalq.so.1"]


class Library:
    """The loaded library; its functions without their prefix, typed."""

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
        for path in _candidates():
            try:
                handle = ctypes.CDLL(path)
                self.path = path
                break
            except OSError as error:
                reasons.append(str(error))
        if handle is None:
            raise EvalqError(
                "libevalq was not found (" + "; ".join(reasons) + "): install the evalq wheel, or set"
                " EVALQ_LIBRARY to libevalq.so.1"
            )
        for name, result, arguments in _SIGNATURES:
            function = getattr(handle, "evalq_client_" + name, None)
            if function is None:
                raise EvalqError(
                    f"{self.path} has no evalq_client_{name}: it is older than this package, or no libevalq; point"
                    " EVALQ_LIBRARY at the libevalq.so.1 that was built with it"
                )
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)


_lock = threading.Lock()
_library: Optional[Library] = None


def load() -> Library:
    """The library, loaded once. EvalqError: it cannot be found, or is older than this package."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = Library()
    return _library


def _forked() -> None:
    global _lock
    _lock = threading.Lock()  # Another thread of the parent may have been loading.


os.register_at_fork(after_in_child=_forked)


def version() -> str:
    """Version of the library."""
    return load().version().decode()
