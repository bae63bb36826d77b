"""Runs Inspect (inspect_ai) inside this process. It uses the chat endpoint."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from typing import Any, Dict, List, Optional

from .._harness_samples import INSPECT_MEANS, of_inspect
from .config import Harness, Refused
from .harnesses import CONCURRENCY, Metrics, Target, check_options, check_task
from .harnesses import Runner as Base

_OURS = {
    "tasks",
    "model",
    "model_base_url",
    "model_args",
    "limit",
    "log_dir",
    "log_format",
    "log_samples",
    "display",
    "kwargs",
}
# There is one for the whole process, because Inspect keeps its hooks until the process ends.
_counter: Optional["_Counter"] = None


class _Counter:
    """Counts the samples and tokens of the running evaluation."""

    target: Optional[Target] = None
    done = 0
    total = -1

    def start(self, target: Target) -> None:
        self.target, self.done, self.total = target, 0, -1

    def tell(self, tokens: int = 0) -> None:
        if self.target is not None:
            self.target.progress(self.done, self.total, tokens=tokens)


class Runner(Base):
    def __init__(self, harness: Harness) -> None:
        super().__init__(harness)
        self._inspect: Any = None

    def prepare(self) -> None:
        if self._inspect is not None:
            return
        try:
            import inspect_ai
            import openai  # noqa: F401
            from inspect_ai.model import GenerateConfigArgs
        except ImportError as error:
            raise Refused(
                f"Inspect cannot be used ({error}): pip install inspect_ai openai for"
                f" {sys.executable}"
            ) from error
        known = set(signature(inspect_ai.eval).parameters) | set(GenerateConfigArgs.__annotations__)
        check_options(self.harness, known - _OURS)
        names = [str(name) for name in self.harness.get("tasks", [])]
        found = known_tasks(self.harness.directory, names)
        for name in names:
            check_task("Inspect", name, found)
        _hook()
        self._inspect = inspect_ai

    def run(self, target: Target, task: str) -> Metrics:
        self.prepare()
        assert _counter is not None
        _counter.start(target)
        try:
            log = self._evaluate(target, task)
        except BaseException as error:
            raise _innermost(error) from None
        finally:
            _counter.target = None
        if log.status != "success":
            said = log.error.message if log.error is not None else log.status
            raise RuntimeError(f"Inspect's evaluation of '{task}' ended with an error: {said}")
        target.keep(lambda: of_inspect(log))
        return metrics_of(log)

    def _evaluate(self, target: Target, task: str) -> Any:
        with tempfile.TemporaryDirectory(prefix="evalq-inspect-") as folder:
            # A task with cache=True must not reuse the answers of another checkpoint.
            os.environ["INSPECT_CACHE_DIR"] = os.path.join(folder, "cache")
            limit = self.harness.get("limit")
            return self._inspect.eval(
                _path(task, self.harness.directory),
                model=self._model(target),
                limit=None if limit is None else int(limit),
                display="none",
                log_dir=target.samples or folder,
                log_samples=target.logs_samples,
                **{
                    "log_realtime": False,
                    **(self.harness.get("gen_kwargs") or {}),
                    **self.harness.own,
                },
            )[0]

    def _model(self, target: Target) -> Any:
        from inspect_ai.model import GenerateConfig, get_model

        config = GenerateConfig(max_connections=int(self.harness.get("concurrency", CONCURRENCY)))
        name = f"openai-api/evalq/{target.model}"
        return get_model(
            name, config=config, base_url=target.url, api_key=target.key, memoize=False
        )


def _innermost(error: BaseException) -> BaseException:
    """Returns the error inside groups of errors. Inspect runs in task groups, which wrap a cancel
    in a BaseExceptionGroup."""
    while getattr(error, "exceptions", ()):
        parts = error.exceptions  # type: ignore[attr-defined]
        error = next((part for part in parts if not isinstance(part, Exception)), parts[0])
    return error


def metrics_of(log: Any) -> Metrics:
    """Returns the metrics of Inspect's log under Inspect's names. If there are several scorers, the
    names are SCORER/METRIC. "stderr" becomes "accuracy_stderr" or "mean_stderr"."""
    metrics: Dict[str, Any] = {}
    scores = log.results.scores
    for score in scores:
        prefix = f"{score.name}/" if len(scores) > 1 else ""
        mean = next((name for name in INSPECT_MEANS if name in score.metrics), None)
        for name, metric in score.metrics.items():
            name = f"{mean}_stderr" if name == "stderr" and mean is not None else name
            metrics[prefix + name] = metric.value
    metrics["n"] = log.results.completed_samples
    return metrics


def _path(task: str, directory: str) -> str:
    """Makes the path in FILE.py@TASK absolute; it is relative to the directory of evalq.yaml.
    PACKAGE/TASK stays as it is."""
    return os.path.join(directory, task) if task.partition("@")[0].endswith(".py") else task


def known_tasks(directory: str, names: List[str]) -> List[str]:
    """Returns the tasks of the installed packages and of the files that names has."""
    found = []
    words = {name.partition("@")[0] for name in names}
    for file in sorted(word for word in words if word.endswith(".py")):
        from inspect_ai import list_tasks

        folder, base = os.path.split(os.path.join(directory, file))
        if not os.path.exists(os.path.join(folder, base)):
            raise Refused(f"Inspect has no task '{file}': there is no such file in '{directory}'")
        found += [
            file,
            *(f"{file}@{task.name}" for task in list_tasks(base, root_dir=Path(folder))),
        ]
    if any(not word.endswith(".py") for word in words):
        from inspect_ai._util.registry import registry_find  # No public function lists them.

        for entry in entry_points(group="inspect_ai"):
            entry.load()
        found += [_info(task).name for task in registry_find(lambda info: info.type == "task")]
    return found


def _info(found: Any) -> Any:
    from inspect_ai._util.registry import registry_info

    return registry_info(found)


def _hook() -> None:
    """Registers hooks with Inspect that report the progress, once per process."""
    global _counter
    if _counter is not None:
        return
    from inspect_ai.hooks import Hooks, hooks

    counter = _counter = _Counter()

    @hooks(name="evalq_progress", description="Tells evalq how far the evaluation is.")
    class Told(Hooks):  # type: ignore[misc]
        async def on_task_start(self, data: Any) -> None:
            epochs = data.spec.config.epochs or 1
            limit = data.spec.config.limit
            samples = data.spec.dataset.samples or 0
            counter.total = epochs * (min(limit, samples) if isinstance(limit, int) else samples)
            counter.tell()

        async def on_sample_end(self, data: Any) -> None:
            counter.done += 1
            counter.tell()

        async def on_model_usage(self, data: Any) -> None:
            counter.tell(tokens=data.usage.output_tokens)
