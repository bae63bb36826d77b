"""The Python side of a persistent evaluator, whose function stays warm between checkpoints.

A worker starts this program once per slot. The two exchange lines of JSON; docs/evaluators.md
describes them. Standard output carries the protocol, so everything that the function prints goes to
standard error, and from there into the log of the attempt.
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
import traceback
import unicodedata
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from ._evaluation import Cancelled, Checkpoint, EvalRetry, Function, Metrics, Report, Task
from ._user_function import adapted

_MESSAGE_BYTES_MAX = 2000
_METRIC_NAME_BYTES_MAX = 128
_TASK_METRICS_MAX = 256
_SAMPLES_BYTES_MAX = 512 << 10  # The longest line of samples. The worker accepts 1 MiB.
# A NUL in JSON. An even number of backslashes before it does not change its meaning.
_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
# A name such as "acc_stderr,none". worker/evaluators/result_files.c has the same rule.
_STD_ERROR_NAME = re.compile(r"[^,]+_stderr(_[^,]*)?(,|\Z)")


def serve(function: Callable[..., Any]) -> None:
    """Calls function(checkpoint, task, report) -> {metric: number} for each task of each
    checkpoint. The function may also take only (checkpoint) or (checkpoint, task), and may return
    one number, which becomes a metric with the function's name. Raises TypeError if it needs other
    arguments.

    Call it in a program that the worker's configuration names as a persistent evaluator. It returns
    when the worker ends. All calls come from this thread, one at a time; what the function keeps in
    variables stays warm.

    A metric "n" is the number of samples, and "acc_stderr" is the standard error of "acc". An
    exception ends the job with its message. EvalRetry, and errors of the machine such as running
    out of memory, have the job tried again.
    """
    function = adapted(function)
    in_fd, out_fd = os.dup(0), os.dup(1)
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)  # The function must not read the worker's lines from standard input,
    os.close(null_fd)
    sys.stdout.flush()
    os.dup2(2, 1)  # and must not write between ours on standard output.
    Server(function, in_fd, out_fd).run()


def recreated_after_failure(make: Callable[[], Function]) -> Function:
    """Returns a function that calls make()'s function, and calls make() again after each evaluation
    that failed or was cancelled: the user's objects may hold sums of the unfinished evaluation."""
    current: Optional[Function] = make()

    def make_again() -> Function:
        try:
            return make()
        except Exception as error:
            if _may_succeed_later(error):
                raise
            raise RuntimeError(
                "the factory cannot be called again, which is necessary after an evaluation that"
                f" failed or was cancelled: {type(error).__name__}: {error}"
            ) from error

    def evaluate(checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        nonlocal current
        if current is None:
            gc.collect()  # This frees the old model before there is a new one.
            current = make_again()
        function, current = current, None
        metrics = function(checkpoint, task, report)
        current = function
        return metrics

    return evaluate


def _checked_metrics(task: str, metrics: Any) -> Dict[str, Union[int, float, str]]:
    """The function's metrics in the form of the protocol. Raises what the worker would refuse, with
    a message that names the metric."""
    if not isinstance(metrics, Mapping):
        kind = type(metrics).__name__
        raise TypeError(
            f"task '{task}' returned {kind}, expected a number or a mapping of metric to number"
        )
    if not metrics:
        raise ValueError(f"task '{task}' returned no metric")
    numbers = {str(name): _number(str(name), value) for name, value in metrics.items()}
    count = 0
    for name in numbers:
        size = len(name.encode("utf-8", "surrogatepass"))
        control = any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name)
        if control or not 1 <= size <= _METRIC_NAME_BYTES_MAX:
            raise ValueError(
                f"task '{task}' returned a metric named {name[:60]!r} ({size} bytes), expected 1 to"
                f" {_METRIC_NAME_BYTES_MAX} bytes without control characters"
            )
        count += name != "n" and not _STD_ERROR_NAME.match(name)
    if count > _TASK_METRICS_MAX:
        raise ValueError(
            f"task '{task}' returned {count} metrics, allowed {_TASK_METRICS_MAX}: divide the task"
        )
    return numbers


def _number(name: str, value: Any) -> Union[int, float, str]:
    """The value as JSON has it, which writes NaN and the infinities as text."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        shape = tuple(getattr(value, "shape", ()))
        if math.prod(shape) != 1:
            kind = type(value).__name__
            raise TypeError(f"metric '{name}' is {kind} of shape {shape}, expected one number")
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    raise TypeError(f"metric '{name}' is {type(value).__name__}, expected a number")


def _plain(value: Any) -> Any:
    """A score that is a tensor or an array of one number, as json.dumps wants it."""
    if not hasattr(value, "item"):
        raise TypeError(f"a value is {type(value).__name__}, expected text or a number")
    return _number("score", value)


def _sample_json(sample: Mapping[str, Any]) -> bytes:
    """A sample as JSON. The worker's JSON has neither NUL nor half a surrogate pair, and a model
    may say both: they become U+FFFD and "?"."""
    text = json.dumps(sample, default=_plain, ensure_ascii=False).encode("utf-8", "replace")
    return _NUL.sub(lambda found: found[1] + "\ufffd".encode(), text)


def _may_succeed_later(error: BaseException) -> bool:
    """Whether another attempt may succeed, because the cause is the machine or the network."""
    if isinstance(error, (EvalRetry, MemoryError, ConnectionError, TimeoutError)):
        return True
    if isinstance(error, OSError):
        lasting = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
        return not isinstance(error, lasting)
    return type(error).__name__ == "OutOfMemoryError" or _breaks_process(error)


def _breaks_process(error: BaseException) -> bool:
    """Whether a new process is needed, because after this error every CUDA call fails."""
    text = str(error)
    causes = ("CUDA error", "CUBLAS_STATUS", "NCCL error")
    return isinstance(error, RuntimeError) and any(cause in text for cause in causes)


def _message(error: BaseException) -> str:
    """The exception's type and message in one line, and the place in the user's code that raised
    it. An exception with the attribute evalq_plain is one of evalq's own; its text is enough."""
    if getattr(error, "evalq_plain", False):
        return " ".join(str(error).split())[:_MESSAGE_BYTES_MAX]
    lines = traceback.format_exception_only(type(error), error)
    # The last line of a SyntaxError is its message; other messages may have several lines.
    text = " ".join((lines[-1] if isinstance(error, SyntaxError) else "".join(lines)).split())
    place = ""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not os.path.abspath(frame.filename).startswith(package):
            place = f" ({os.path.basename(frame.filename)}:{frame.lineno})"
            break
    return text[: _MESSAGE_BYTES_MAX - len(place)] + place


@dataclass
class _Job:
    """One job of the worker. The server's lock guards the flags."""

    line: Mapping[str, Any]
    cancelled: bool = False
    running: bool = False


class Server:
    """Reads jobs from in_fd and writes answers to out_fd. run() calls the function on its thread; a
    second thread reads, so that a job can be cancelled."""

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
        """Evaluates jobs until the worker ends. Raises SystemExit if the process became
        unusable."""
        threading.Thread(target=self._read, name="evalq-jobs", daemon=True).start()
        self._send({"type": "ready"})
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                answer, broken = self._evaluate(job)
            except Cancelled:  # It was raised just after the evaluation.
                answer, broken = _cancelled_answer(), False
            self._send_for(job, answer)
            if broken:
                sys.exit("evalq.serve: this process is unusable; the worker starts another one")

    def _evaluate(self, job: _Job) -> "Tuple[Dict[str, Any], bool]":
        """Returns the job's last line, and whether the process became unusable."""
        checkpoint = Checkpoint._of(job.line)
        try:
            with self._lock:
                if job.cancelled:
                    raise Cancelled()
                job.running = True
            for line in job.line["tasks"]:
                self._evaluate_task(job, checkpoint, Task._of(line))
            return {"type": "done"}, False
        except Cancelled:
            return _cancelled_answer(), False
        except Exception as error:
            traceback.print_exc()
            answer = _error_answer(_message(error), final=not _may_succeed_later(error))
            return answer, _breaks_process(error)
        except SystemExit as error:
            traceback.print_exc()
            return _error_answer(f"the function ended the program: {error}", final=True), True
        finally:
            with self._lock:
                job.running = False
            checkpoint._loaded = None
            sys.stdout.flush()
            sys.stderr.flush()

    def _evaluate_task(self, job: _Job, checkpoint: Checkpoint, task: Task) -> None:
        report = Report(
            lambda line: self._send_for(job, line),
            lambda: job.cancelled,
            bool(job.line.get("samples")),
        )
        metrics = self._function(checkpoint, task, report)
        numbers = _checked_metrics(str(task), metrics)
        line: Dict[str, Any] = {"type": "task", "task": str(task), "metrics": numbers}
        if report.samples and report.keeps_samples:
            fault = self._send_samples(job, str(task), report.samples)
            report.note = "; ".join(filter(None, (report.note, fault)))
        if report.note:
            line["note"] = report.note
        self._send_for(job, line)

    def _send_samples(self, job: _Job, task: str, samples: List[Mapping[str, Any]]) -> str:
        """Sends samples in lines that the worker accepts. Returns why it did not, or ""."""
        items: List[bytes] = []
        size = 0
        for number, sample in enumerate(samples):
            try:
                item = _sample_json(sample)
            except Exception as error:
                return f"samples were not kept: sample {number}: {error}"
            if len(item) > _SAMPLES_BYTES_MAX:
                return (
                    f"samples were not kept: sample {number} takes {len(item)} bytes, allowed"
                    f" {_SAMPLES_BYTES_MAX}"
                )
            if size + len(item) > _SAMPLES_BYTES_MAX:
                self._send_items(job, task, items)
                items, size = [], 0
            items.append(item)
            size += len(item) + 2
        self._send_items(job, task, items)
        return ""

    def _send_items(self, job: _Job, task: str, items: List[bytes]) -> None:
        line: Dict[str, Any] = {"type": "samples", "task": task}
        if job.line.get("turn") is not None:
            line["turn"] = job.line["turn"]
        head = json.dumps(line).encode()[:-1]
        self._write(head + b', "items": [' + b", ".join(items) + b"]}\n")

    def _send_for(self, job: _Job, line: Mapping[str, Any]) -> None:
        """Sends a line that names its job, because a thread that the function started may report
        after the next job has begun."""
        turn = job.line.get("turn")
        self._send(line if turn is None else {**line, "turn": turn})

    def _send(self, line: Mapping[str, Any]) -> None:
        self._write(json.dumps(line, default=_plain).encode() + b"\n")

    def _write(self, text: bytes) -> None:
        if os.getpid() != self._pid:
            return  # The worker expects lines from this process only, not from forked children.
        data = memoryview(text)
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
            if job.running:
                # This raises Cancelled in the function even if it never calls report().
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread_id), ctypes.py_object(Cancelled)
                )


def _error_answer(message: str, final: bool) -> Dict[str, Any]:
    return {"type": "error", "message": message, "final": final}


def _cancelled_answer() -> Dict[str, Any]:
    return _error_answer("cancelled", final=True)
