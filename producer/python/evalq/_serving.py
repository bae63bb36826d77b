"""The Python side of the persistent evaluator: a function that stays warm between checkpoints.

The worker starts this program once per slot and speaks JSON lines with it (docs/evaluators.md). Standard output is
kept for the protocol: what the function prints goes to standard error, and so into the attempt's log.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import queue
import re
import sys
import threading
import time
import traceback
import unicodedata
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

_REPORT_SECONDS = 0.2  # At most so often is progress told.
_MESSAGE_BYTES = 2000
_NAME_BYTES = 128  # Of a metric.
_METRICS = 256  # Of a task.
_STD_ERROR = re.compile(r"[^,]+_stderr(_[^,]*)?(,|\Z)")  # The worker has the same rule: worker/evaluators/result_files.c.


class EvalRetry(Exception):
    """Raised by an evaluation that may succeed when tried again, here or elsewhere."""


class _Cancelled(BaseException):
    """The job is wanted no more. No Exception, so that `except Exception` lets it through."""


class Task(str):
    """One task of the suite: its name, with what the worker's configuration says of it, all as text."""

    type: str
    model: Dict[str, str]
    data: Dict[str, str]
    options: Dict[str, str]

    @classmethod
    def _of(cls, line: Mapping[str, Any]) -> "Task":
        task = cls(line["name"])
        task.type = line.get("type", "")
        task.model = dict(line.get("model") or {})
        task.data = dict(line.get("data") or {})
        task.options = dict(line.get("options") or {})
        return task

    @property
    def name(self) -> str:
        return str(self)


@dataclass
class Checkpoint:
    """What is to be evaluated."""

    path: str  #: File or directory; where a `prepare` ran, its output.
    step: int
    run: str
    variant: str  #: "regular", "ema", or the name that submit gave.
    suite: str
    params: Dict[str, str]
    epoch: Optional[float] = None
    source: str = ""  #: The checkpoint itself, before `prepare`.
    job: str = ""
    tags: Dict[str, str] = field(default_factory=dict)
    attempt: int = 1
    shard: Optional[Tuple[int, int]] = None  #: (index, count) where the suite is sharded.
    scratch: str = ""  #: A directory for files of this attempt, removed after it.
    _loaded: Optional[Dict[str, Any]] = field(default=None, repr=False, compare=False)

    @classmethod
    def _of(cls, line: Mapping[str, Any]) -> "Checkpoint":
        shard = line.get("shard")
        return cls(
            path=line["checkpoint"],
            step=line.get("step") or 0,
            run=line.get("run") or "",
            variant=line.get("variant") or "regular",
            suite=line.get("suite") or "",
            params=dict(line.get("params") or {}),
            epoch=line.get("epoch"),
            source=line.get("source") or line["checkpoint"],
            job=line.get("job") or "",
            tags=dict(line.get("tags") or {}),
            attempt=line.get("attempt") or 1,
            shard=(shard["index"], shard["count"]) if shard else None,
            scratch=line.get("scratch") or "",
        )

    def load(self, framework: Optional[str] = None) -> Dict[str, Any]:
        """The weights as a dictionary of name to tensor, on the CPU; loaded once, however many tasks ask.

        From safetensors (a file, a sharded directory) or what torch.save wrote (no code of it runs, and
        objects beside the weights are passed over); "state_dict", "model_state_dict" and "model" are looked into, for another variant than "regular" its
        own keys first; for "ema" a file of regular weights alone is refused. "module." and "_orig_mod." before every
        name are removed. framework: "torch", "numpy"; by default torch where it is installed.
        """
        if framework is not None or self._loaded is None:
            from ._weights import load_weights

            loaded = load_weights(self.path, self.variant, framework)
            if framework is not None:
                return loaded
            self._loaded = loaded
        return self._loaded


class Report:
    """Tells the worker how far the evaluation is; call it as report(done, total). It also is where a cancelled
    evaluation ends."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None], cancelled: Callable[[], bool]) -> None:
        self._send = send
        self._cancelled = cancelled
        self._told = 0.0
        self.note = ""  #: A sentence on how the metrics came about, which is kept with the result.

    def __call__(self, done: int = -1, total: int = -1, status: str = "") -> None:
        if self._cancelled():
            raise _Cancelled()
        now = time.monotonic()
        if now - self._told < _REPORT_SECONDS:
            return
        self._told = now
        line: Dict[str, Any] = {"type": "progress", "done": int(done), "total": int(total)}
        if status:
            line["status"] = status
        self._send(line)


Metrics = Mapping[str, Any]
Function = Callable[[Checkpoint, Task, Report], Metrics]


@dataclass
class _Job:
    line: Mapping[str, Any]
    cancelled: bool = False
    running: bool = False
    ended: bool = False


def _number(name: str, value: Any) -> Union[int, float, str]:
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        shape = tuple(getattr(value, "shape", ()))
        if math.prod(shape) != 1:
            raise TypeError(f"metric '{name}' is {type(value).__name__} of shape {shape}, expected one number")
        value = value.item()  # A scalar of numpy or torch.
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    raise TypeError(f"metric '{name}' is {type(value).__name__}, expected a number")


def _check_names(task: str, numbers: Mapping[str, Any]) -> None:
    """What the worker would refuse, said where it comes from."""
    own = 0
    for name in numbers:
        size = len(name.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= _NAME_BYTES or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
            raise ValueError(
                f"task '{task}' returned a metric named {name[:60]!r} ({size} bytes), expected 1 to {_NAME_BYTES} bytes"
                " without control characters"
            )
        own += name != "n" and not _STD_ERROR.match(name)
    if own > _METRICS:
        raise ValueError(f"task '{task}' returned {own} metrics, allowed {_METRICS}: make them tasks of their own")


def _retry(error: BaseException) -> bool:
    """Whether the same may go well another time: what the machine, not the evaluation, is to blame for."""
    if isinstance(error, (EvalRetry, MemoryError, ConnectionError, TimeoutError)):
        return True
    if isinstance(error, OSError):
        return not isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError))
    return type(error).__name__ == "OutOfMemoryError" or _sick(error)


def _sick(error: BaseException) -> bool:
    """After some faults a CUDA context gives nothing but faults: the process must be replaced."""
    text = str(error)
    return isinstance(error, RuntimeError) and ("CUDA error" in text or "CUBLAS_STATUS" in text or "NCCL error" in text)


def _message(error: BaseException) -> str:
    """The exception's type and whole message in one line, and where in the user's code it was raised. One of our own is
    `evalq_plain`: its text says all."""
    if getattr(error, "evalq_plain", False):
        return " ".join(str(error).split())[:_MESSAGE_BYTES]
    lines = traceback.format_exception_only(type(error), error)
    # A message may have lines of its own, the first of which says what it is about; before a SyntaxError's stand others.
    text = " ".join((lines[-1] if isinstance(error, SyntaxError) else "".join(lines)).split())
    where = ""
    frames = traceback.extract_tb(error.__traceback__)
    ours = os.path.dirname(os.path.abspath(__file__))
    for frame in reversed(frames):
        if not os.path.abspath(frame.filename).startswith(ours + os.sep):
            where = f" ({os.path.basename(frame.filename)}:{frame.lineno})"
            break
    return text[: _MESSAGE_BYTES - len(where)] + where


def renewed(make: Callable[[], Function]) -> Function:
    """What make() gives; after an evaluation that was cut short it is made anew: what was summed by then lies in objects
    of the user's, and would be added to the next checkpoint's."""
    made: Optional[Function] = make()

    def again() -> Function:
        try:
            return make()
        except Exception as error:
            if _retry(error):
                raise
            raise RuntimeError(
                "the factory cannot be called again, as it is after an evaluation that failed or was cancelled:"
                f" {type(error).__name__}: {error}"
            ) from error

    def evaluate(checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        nonlocal made
        if made is None:
            gc.collect()  # The model that is replaced.
            made = again()
        function, made = made, None
        metrics = function(checkpoint, task, report)
        made = function
        return metrics

    return evaluate


class Server:
    """Takes jobs from one file descriptor, answers on another, calls the function in between on this thread."""

    def __init__(self, function: Function, in_fd: int, out_fd: int) -> None:
        self._function = function
        self._in_fd = in_fd
        self._out_fd = out_fd
        self._write_lock = threading.Lock()
        self._lock = threading.Lock()
        self._jobs: "queue.SimpleQueue[Optional[_Job]]" = queue.SimpleQueue()
        self._latest: Optional[_Job] = None
        self._thread_id = threading.get_ident()
        self._pid = os.getpid()

    def run(self) -> None:
        """Until the worker says exit or is gone."""
        threading.Thread(target=self._read, name="evalq-jobs", daemon=True).start()
        self._send({"type": "ready"})
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                answer, sick = self._work(job)
            except _Cancelled:  # It came when the work was just over.
                answer, sick = {"type": "error", "message": "cancelled", "final": True}, False
            self._send_of(job, answer)
            if sick:
                sys.exit("evalq.serve: this process is not used any further; the worker starts another")

    def _work(self, job: _Job) -> "Tuple[Dict[str, Any], bool]":
        checkpoint = Checkpoint._of(job.line)
        try:
            with self._lock:
                if job.cancelled:
                    raise _Cancelled()
                job.running = True
            for line in job.line["tasks"]:
                self._task(job, checkpoint, Task._of(line))
            return {"type": "done"}, False
        except _Cancelled:
            return {"type": "error", "message": "cancelled", "final": True}, False
        except Exception as error:
            traceback.print_exc()
            return {"type": "error", "message": _message(error), "final": not _retry(error)}, _sick(error)
        except SystemExit as error:
            traceback.print_exc()
            return {"type": "error", "message": f"the function ended the program: {error}", "final": True}, True
        finally:
            with self._lock:
                job.running = False
                job.ended = True
            checkpoint._loaded = None
            sys.stdout.flush()
            sys.stderr.flush()

    def _task(self, job: _Job, checkpoint: Checkpoint, task: Task) -> None:
        report = Report(lambda line: self._send_of(job, line), lambda: job.cancelled)
        metrics = self._function(checkpoint, task, report)
        if not isinstance(metrics, Mapping):
            raise TypeError(f"task '{task}' returned {type(metrics).__name__}, expected a mapping of metric to number")
        if not metrics:
            raise ValueError(f"task '{task}' returned no metric")
        numbers = {str(name): _number(str(name), value) for name, value in metrics.items()}
        _check_names(str(task), numbers)
        line: Dict[str, Any] = {"type": "task", "task": str(task), "metrics": numbers}
        if report.note:
            line["note"] = report.note
        self._send_of(job, line)

    def _send_of(self, job: _Job, line: Mapping[str, Any]) -> None:
        """A line that says of which job it is: a thread of the function's may speak when the next one has begun."""
        turn = job.line.get("turn")
        self._send(line if turn is None else {**line, "turn": turn})

    def _send(self, line: Mapping[str, Any]) -> None:
        if os.getpid() != self._pid:
            return  # A child that the function forked is not the one the worker speaks with.
        data = memoryview(json.dumps(line).encode() + b"\n")
        with self._write_lock:
            while data:
                data = data[os.write(self._out_fd, data) :]

    def _read(self) -> None:
        with os.fdopen(self._in_fd, "rb", closefd=False) as lines:
            for text in lines:
                line = json.loads(text)
                kind = line.get("type")
                if kind == "job":
                    job = _Job(line)
                    self._latest = job
                    self._jobs.put(job)
                elif kind == "cancel":
                    self._cancel()
                elif kind == "exit":
                    break
        self._jobs.put(None)
        self._cancel()

    def _cancel(self) -> None:
        job = self._latest
        if job is None:
            return
        with self._lock:
            job.cancelled = True
            if job.running:  # Raised at its next bytecode, so that it need not call report().
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(_Cancelled))


def serve(function: Function) -> None:
    """Evaluates with function(checkpoint, task, report) -> {metric: number} until the worker is done with it.

    Called by a program that a worker started as a persistent evaluator; returns when the worker says so. The
    function is called once for each task of each checkpoint, always on this thread; what it keeps in variables stays
    warm. A metric "n" is the number of samples, "acc_stderr" the standard error of "acc". An exception ends the job
    with its message; EvalRetry, or running out of memory, has it tried again.
    """
    in_fd, out_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # Nobody else reads what the worker says,
    os.close(null)
    sys.stdout.flush()
    os.dup2(2, 1)  # or writes where it listens.
    Server(function, in_fd, out_fd).run()
