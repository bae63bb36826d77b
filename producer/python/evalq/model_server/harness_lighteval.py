"""Runs lighteval inside this process, with our own model object (lighteval_model.py).

lighteval's own client for servers stores answers on disk under the model's name, so it would return
the answers of an earlier checkpoint. It also counts a failed request as an empty answer.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any, Callable, Dict, List, Set

from .._harness_samples import of_lighteval
from .config import Harness, Refused
from .harnesses import Metrics, Target, check_options, check_task, write_samples
from .harnesses import Runner as Base
from .servers import log

_OWN = {
    "bootstrap_iters",
    "cot_prompt",
    "remove_reasoning_tags",
    "reasoning_tags",
    "load_tasks_multilingual",
    "system_prompt",
}
_left_out: Set[Any] = set()  # Files of tasks that cannot be imported; each is logged once.


class Runner(Base):
    def __init__(self, harness: Harness) -> None:
        super().__init__(harness)
        self._pipelines: Dict[str, Any] = {}  # Task -> its pipeline, which has its data.

    def prepare(self) -> None:
        try:
            import lighteval.pipeline  # noqa: F401
        except ImportError as error:
            raise Refused(
                f"lighteval cannot be used ({error}): pip install lighteval for {sys.executable}"
            ) from error
        check_options(self.harness, _OWN)
        known = _registry(self.harness.path("include_path"))
        for name in self.harness.get("tasks", []):
            check_task("lighteval", str(name).partition("|")[0], known)

    def run(self, target: Target, task: str) -> Metrics:
        from lighteval.logging.evaluation_tracker import EvaluationTracker

        if task not in self._pipelines:
            self.prepare()
            self._pipelines[task] = self._pipeline(task)
        pipeline = self._pipelines[task]
        with tempfile.TemporaryDirectory(prefix="evalq-lighteval-") as folder:
            pipeline.evaluation_tracker = EvaluationTracker(output_dir=folder, save_details=False)
            pipeline.evaluation_tracker.task_config_logger.log(pipeline.tasks_dict)
            pipeline.evaluation_tracker.general_config_logger.log_model_info(
                model_config=pipeline.model.config
            )
            pipeline.final_dict = None
            pipeline.model.aim(
                target, sum(len(documents) for documents in pipeline.documents_dict.values())
            )
            pipeline.evaluate()
            details = pipeline.evaluation_tracker.details if target.logs_samples else {}
            if target.samples is not None:
                write_samples(
                    {name.partition("|")[0]: items for name, items in details.items()},
                    target.samples,
                )
            target.keep(lambda: of_lighteval(details))
            metrics = dict(_metrics_of(pipeline.get_results()["results"], task))
        metrics["n"] = sum(len(documents) for documents in pipeline.documents_dict.values())
        return metrics

    def _pipeline(self, task: str) -> Any:
        from lighteval.logging.evaluation_tracker import EvaluationTracker
        from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters

        from .lighteval_model import Model

        own = self.harness.own
        limit = self.harness.get("limit")
        system_prompt = own.pop("system_prompt", None)
        parameters = PipelineParameters(
            launcher_type=ParallelismManager.NONE,
            custom_tasks_directory=self.harness.path("include_path"),
            max_samples=None if limit is None else int(limit),
            **own,
        )
        model = Model(self.harness, system_prompt)
        with tempfile.TemporaryDirectory(prefix="evalq-lighteval-") as folder:
            tracker = EvaluationTracker(output_dir=folder, save_details=False)
            return Pipeline(f"{_spec(task, self.harness)}", parameters, tracker, model=model)


def _spec(task: str, harness: Harness) -> str:
    return task if "|" in task else f"{task}|{int(harness.get('num_fewshot', 0))}"


def _registry(custom: Any) -> List[str]:
    from lighteval.tasks.registry import Registry

    for name in ("_load_from_files", "_load_from_subdirs"):
        if not hasattr(getattr(Registry, name), "evalq_load"):
            setattr(Registry, name, staticmethod(_load_what_can_be(getattr(Registry, name))))
    return list(Registry.load_all_task_configs(custom_tasks=custom))


def _load_what_can_be(load: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that skips the files of tasks that cannot be imported. Some of lighteval's
    own files need the network while they are imported."""

    def load_each(paths: List[Any], *words: Any) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for path in paths:
            try:
                found.update(load([path], *words))
            except Exception as error:
                if path not in _left_out:
                    why = f"{type(error).__name__}: {str(error)[:200]}"
                    log(f"lighteval's tasks of {path} are left out: {why}")
                _left_out.add(path)
        return found

    load_each.evalq_load = load  # type: ignore[attr-defined]
    return load_each


def known_tasks(directory: str, names: List[str]) -> List[str]:
    return _registry(None)


def _metrics_of(results: Dict[str, Dict[str, Any]], task: str) -> Dict[str, Any]:
    """Returns the metrics of the task. If the task has parts, these are lighteval's means over
    them."""
    name = task.partition("|")[0]
    own = [
        key for key in results if key.partition("|")[0].partition(":")[0] == name.partition(":")[0]
    ]
    means = [key for key in own if ":_average" in key]
    found = results[(means or own or ["all"])[0]]
    return {
        key: value
        for key, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
