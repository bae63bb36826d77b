"""The types that an evaluation function gets: the checkpoint, the task and the report of progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

_REPORT_SECONDS = 0.2  # The shortest time between two reports of progress to the worker.


class EvalRetry(Exception):
    """Raise it if the evaluation may succeed when it is tried again, here or on another machine."""


class Cancelled(BaseException):
    """Raised in the function when its job is cancelled. It is not an Exception, so that the
    function's `except Exception` does not catch it."""


class Task(str):
    """One task of the suite. The string is its name; the attributes are the task's settings in the
    worker's configuration, all as text."""

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
        """The task's name, as a plain str."""
        return str(self)


@dataclass
class Checkpoint:
    """The checkpoint that the function evaluates. Functions that take a path accept this object too,
    such as open() and torch.load()."""

    path: str  #: A file or directory. If the suite has a `prepare`, this is its output.
    step: int
    run: str
    variant: str  #: "regular", "ema", or the name that was submitted.
    suite: str
    params: Dict[str, str]  #: The `params` of the submit.
    epoch: Optional[float] = None
    source: str = ""  #: The submitted checkpoint, before `prepare`.
    job: str = ""  #: The job's id.
    tags: Dict[str, str] = field(default_factory=dict)
    attempt: int = 1  #: 1 for the first attempt.
    shard: Optional[Tuple[int, int]] = None  #: (index, count) if the suite is sharded.
    scratch: str = ""  #: A directory for temporary files; it is removed after the attempt.
    _loaded: Optional[Dict[str, Any]] = field(default=None, repr=False, compare=False)

    def __fspath__(self) -> str:
        return self.path

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
        """Returns the weights as a dictionary of name to tensor, on the CPU.

        framework  "torch" or "numpy". Default: torch if it is installed, otherwise numpy. Without
                   this argument, the weights are loaded once for all tasks of the job.

        Reads safetensors and the files of torch.save(), DCP and DeepSpeed. No code in the file
        runs. It looks for a state dict under keys such as "state_dict" and "model". For a variant
        other than "regular", it looks under that variant's keys. The prefixes "module." and
        "_orig_mod." are removed if all names have them.

        Raises ValueError if there are no such weights, for example no EMA weights; ImportError if
        the framework is missing; OSError if a file cannot be read.
        """
        if framework is None and self._loaded is not None:
            return self._loaded
        from ._checkpoint.weights import load_weights

        loaded = load_weights(self.path, self.variant, framework)
        if framework is None:
            self._loaded = loaded
        return loaded


class Report:
    """Tells the worker the progress: report(done, total), in any unit. Call it as often as you
    like.

    If the job was cancelled, the call ends the evaluation.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], None],
        cancelled: Callable[[], bool],
        keeps_samples: bool = False,
    ) -> None:
        self._send = send
        self._cancelled = cancelled
        self._sent_at = 0.0
        self.note = ""  #: Set it to a sentence about the metrics; the result keeps it.
        #: Append a dict for each item: {"id": ..., "scores": {"acc": 1}, "output": ..., "target":
        #: ...}. A suite with `samples: true` keeps them; docs/samples.md lists the fields.
        self.samples: List[Mapping[str, Any]] = []
        self.keeps_samples = keeps_samples  #: Whether the suite has `samples: true`.

    def __call__(self, done: int = -1, total: int = -1, status: str = "") -> None:
        """done and total: -1 means unknown. status: a few words about the current activity."""
        if self._cancelled():
            raise Cancelled()
        now = time.monotonic()
        if now - self._sent_at < _REPORT_SECONDS:
            return
        self._sent_at = now
        line: Dict[str, Any] = {"type": "progress", "done": int(done), "total": int(total)}
        if status:
            line["status"] = status
        self._send(line)


Metrics = Mapping[str, Any]
Function = Callable[[Checkpoint, Task, Report], Metrics]
