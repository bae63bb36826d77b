"""Runs lmms-eval inside this process. Its chat model for OpenAI's API and its tasks stay loaded."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Tuple

from .._harness_samples import of_lmms_eval
from ..lm_eval import metrics_of
from .config import Harness, Refused
from .harnesses import CONCURRENCY, Metrics, Target, check_options, check_task, write_samples
from .harnesses import Runner as Base
from .http import ServerError

_OWN = {"bootstrap_iters", "system_instruction", "fewshot_as_multiturn", "repeats", "max_tokens",
        "random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed",
        "model"}  # fmt: skip
_REQUEST_SECONDS = 3600.0


class Runner(Base):
    def __init__(self, harness: Harness) -> None:
        super().__init__(harness)
        self._lmms_eval: Any = None
        self._manager: Any = None
        self._tasks: Dict[str, Any] = {}  # The results of get_task_dict().
        self._lm: Any = None

    def prepare(self) -> None:
        if self._lmms_eval is not None:
            return
        try:
            import lmms_eval.evaluator
            import openai  # noqa: F401
            from lmms_eval.tasks import TaskManager
        except ImportError as error:
            raise Refused(
                f"lmms-eval cannot be used ({error}): pip install lmms_eval for {sys.executable}"
            ) from error
        check_options(self.harness, _OWN)
        self._manager = TaskManager(
            "ERROR", include_path=self.harness.path("include_path"), model_name="openai"
        )
        for name in self.harness.get("tasks", []):
            check_task("lmms-eval", str(name), self._manager.all_tasks)
        self._lmms_eval = lmms_eval
        self._keep_tasks()
        for name in self.harness.get("tasks", []):
            lmms_eval.evaluator.get_task_dict([str(name)], self._manager, "chat")

    def _keep_tasks(self) -> None:
        """Makes simple_evaluate() use the tasks again. It would otherwise make them and load their
        data at each call."""
        evaluator = self._lmms_eval.evaluator
        make = getattr(evaluator.get_task_dict, "evalq_make", evaluator.get_task_dict)

        def make_once(names: List[str], *words: Any) -> Any:
            key = repr((id(self), names))
            if key not in self._tasks:
                self._tasks[key] = make(names, *words)
            return dict(self._tasks[key])

        make_once.evalq_make = make  # type: ignore[attr-defined]
        evaluator.get_task_dict = make_once

    def run(self, target: Target, task: str) -> Metrics:
        self.prepare()
        self._keep_tasks()  # Another suite may have replaced them.
        if self._lm is None:
            self._lm = _model(
                int(self.harness.get("concurrency", CONCURRENCY)),
                dict(self.harness.own.get("model") or {}),
            )
        self._lm.aim(target)
        own = self.harness.own
        own.pop("model", None)
        gen_kwargs = self.harness.get("gen_kwargs")
        if isinstance(gen_kwargs, dict):
            gen_kwargs = ",".join(f"{name}={value}" for name, value in gen_kwargs.items())
        results = self._lmms_eval.evaluator.simple_evaluate(
            model=self._lm,
            tasks=[task],
            task_manager=self._manager,
            num_fewshot=self.harness.get("num_fewshot"),
            limit=self.harness.get("limit"),
            log_samples=target.logs_samples,
            gen_kwargs=gen_kwargs,
            **own,
        )
        if target.samples is not None:
            write_samples(results.get("samples") or {}, target.samples)
        metrics = metrics_of(results, task)
        target.keep(lambda: of_lmms_eval(results["samples"], metrics, target.cluster))
        return metrics


def known_tasks(directory: str, names: List[str]) -> List[str]:
    from lmms_eval.tasks import TaskManager

    return list(TaskManager("ERROR", model_name="openai").all_tasks)


def _model(concurrency: int, more: Dict[str, Any]) -> Any:
    """Returns lmms-eval's model object for the server. more: its settings, such as
    max_frames_num."""
    import openai
    from lmms_eval.models.chat.openai import OpenAICompatible

    class Model(OpenAICompatible):  # type: ignore[misc]
        def aim(self, target: Target) -> None:
            self._target, self._done, self._total = target, 0, 0
            self._failure: Tuple[str, int] = ("", 0)
            self.model_version = target.model
            client = openai.OpenAI(
                api_key=target.key, base_url=target.url, timeout=_REQUEST_SECONDS, max_retries=0
            )
            self._create = client.chat.completions.create
            # lmms-eval calls client.chat.completions.create().
            self.client = self.chat = self.completions = self

        def create(self, **asked: Any) -> Any:
            target = self._target
            try:
                answer = self._create(**asked)
            except openai.OpenAIError as error:
                self._failure = (str(error), int(getattr(error, "status_code", 0) or 0))
                raise
            if target is self._target:  # Otherwise the request belongs to a cancelled evaluation.
                self._done += 1
                tokens = getattr(answer.usage, "completion_tokens", 0) or 0
                target.progress(self._done, self._total, tokens=tokens)
            return answer

        def clean(self) -> None:
            """lmms-eval frees the model's memory after each evaluation, which takes seconds. Here
            the model is in another process."""

        def generate_until(self, requests: List[Any]) -> Any:
            """lmms-eval scores the text of an error as an answer. Here the evaluation fails."""
            self._total += len(requests)
            answers = super().generate_until(requests)
            if any(
                getattr(answer, "text", answer).startswith("[LMMS_EVAL_REQUEST_FAILED")
                for answer in answers
            ):
                message, status = self._failure
                raise ValueError(message) if 400 <= status < 500 else ServerError(message, status)
            return answers

    return Model(
        model_version="model", api_key="-", base_url="-", num_concurrent=concurrency, **more
    )
