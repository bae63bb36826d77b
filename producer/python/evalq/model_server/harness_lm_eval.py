"""Runs lm-evaluation-harness inside this process. Its imports, tasks and requests are kept for all
checkpoints."""

from __future__ import annotations

import hashlib
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any, Dict, List

from .._harness_samples import of_lm_eval
from ..lm_eval import _read_definition, _TaskCache, metrics_of
from .config import Harness, Refused
from .harnesses import CONCURRENCY, Metrics, Target, check_options, check_task, write_samples
from .harnesses import Runner as Base

_OWN = {"bootstrap_iters", "system_instruction", "fewshot_as_multiturn", "random_seed",
        "numpy_random_seed", "torch_random_seed", "fewshot_random_seed",
        "confirm_run_unsafe_code"}  # fmt: skip


class Runner(Base):
    def __init__(self, harness: Harness) -> None:
        super().__init__(harness)
        self._lm_eval: Any = None
        self._tasks: Any = None
        self._lms: Dict[bool, Any] = {}  # The key: whether the model asks the chat endpoint.
        self._tokenizer = ""  # Digest of the tokenizer's files that the models have.

    def prepare(self) -> None:
        if self._tasks is not None:
            return
        try:
            import lm_eval
            from lm_eval.tasks import TaskManager

            for name in ("aiohttp", "requests", "tenacity"):
                # Packages of lm-eval[api]. The harness itself would report a missing one too late.
                import_module(name)
        except ImportError as error:
            raise Refused(
                f"lm-evaluation-harness cannot be used ({error}): pip install 'lm-eval[api]' for"
                f" {sys.executable}"
            ) from error
        check_options(self.harness, _OWN)
        manager = TaskManager(include_path=self.harness.path("include_path"))
        for name in self.harness.get("tasks", []):
            check_task("lm-evaluation-harness", str(name), list(manager.all_tasks))
        keep_requests()
        ask_no_machine()
        tasks = _TaskCache(manager)
        for name in self.harness.get("tasks", []):
            tasks.load([str(name)])
        self._lm_eval, self._tasks = lm_eval, tasks

    def run(self, target: Target, task: str) -> Metrics:
        self.prepare()
        results = self._lm_eval.simple_evaluate(
            model=self._aim(target, task),
            tasks=[task],
            task_manager=self._tasks,
            num_fewshot=self.harness.get("num_fewshot"),
            limit=self.harness.get("limit"),
            log_samples=target.logs_samples,
            apply_chat_template=bool(self.harness.get("chat", False)),
            gen_kwargs=self.harness.get("gen_kwargs"),
            **self.harness.own,
        )
        if target.samples is not None:
            write_samples(results.get("samples") or {}, target.samples)
        target.keep(lambda: of_lm_eval(results["samples"], target.cluster))
        return metrics_of(results, task)

    def _aim(self, target: Target, task: str) -> Any:
        """Returns the harness's model object for the server. The object and its tokenizer are used
        again as long as the tokenizer's files are the same.

        The chat endpoint gives no log-probabilities of a prompt. Tasks that need them use the
        other endpoint and apply the tokenizer's chat template themselves.
        """
        files = _read_definition(target.tokenizer)
        files.pop("config.json", None)
        digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
        if digest != self._tokenizer:
            self._lms, self._tokenizer = {}, digest
        chat = bool(self.harness.get("chat", False)) and _only_generates(self._tasks.load([task]))
        if chat not in self._lms:
            self._lms[chat] = _model(
                target, chat, int(self.harness.get("concurrency", CONCURRENCY))
            )
        lm = self._lms[chat]
        lm.aim(target, digest)
        if (
            self.harness.get("chat", False)
            and not chat
            and not getattr(lm.tokenizer, "chat_template", None)
        ):
            raise Refused(
                f"chat: true needs a chat template, and the tokenizer of '{target.tokenizer}' has"
                " none"
            )
        return lm


def _only_generates(loaded: Any) -> bool:
    """Whether no task that the TaskManager loaded, at any depth, needs log-probabilities."""
    if isinstance(loaded, dict):
        return all(_only_generates(value) for value in loaded.values())
    return getattr(loaded, "OUTPUT_TYPE", "generate_until") == "generate_until"


def known_tasks(directory: str, names: List[str]) -> List[str]:
    from lm_eval.tasks import TaskManager

    return list(TaskManager().all_tasks)


def _model(target: Target, chat: bool, concurrency: int) -> Any:
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    base: Any = LocalChatCompletion if chat else LocalCompletionsAPI

    class Model(base):  # type: ignore[misc]
        """The harness's own model for a server, which can change to another address and counts the
        answers."""

        def aim(self, to: Target, digest: str) -> None:
            self._target, self._digest = to, digest
            self.model = to.model
            self.base_url = to.url + ("/chat/completions" if chat else "/completions")
            self.__dict__.pop("header", None)
            self._done = self._total = 0
            self._rolling = False

        @property
        def api_key(self) -> str:
            return self._target.key

        @property
        def tokenizer_name(self) -> str:
            return self._digest

        def evalq_answered(self) -> None:
            self._done += not self._rolling
            self._target.progress(self._done, self._total)

        async def amodel_call(self, *words: Any, **named: Any) -> Any:
            answer = await super().amodel_call(*words, **named)
            self.evalq_answered()
            return answer

        def model_call(self, *words: Any, **named: Any) -> Any:
            """The harness calls this with concurrency 1."""
            answer = super().model_call(*words, **named)
            self.evalq_answered()
            return answer

        def parse_generations(self, outputs: Any, **named: Any) -> Any:
            for output in outputs if isinstance(outputs, list) else [outputs]:
                tokens = int((output.get("usage") or {}).get("completion_tokens") or 0)
                self._target.progress(self._done, self._total, tokens=tokens)
            return super().parse_generations(outputs, **named)

        def generate_until(self, requests: List[Any], *words: Any, **named: Any) -> Any:
            self._total += len(requests)
            return super().generate_until(requests, *words, **named)

        def loglikelihood(self, requests: List[Any], *words: Any, **named: Any) -> Any:
            self._total += len(requests)
            return super().loglikelihood(requests, *words, **named)

        def loglikelihood_rolling(self, requests: List[Any], *words: Any, **named: Any) -> Any:
            """One document takes several requests, so documents are counted instead of answers."""
            self._total += len(requests)
            self._rolling = True
            try:
                return super().loglikelihood_rolling(requests, *words, **named)
            finally:
                self._rolling = False

        def _loglikelihood_tokens(self, *words: Any, **named: Any) -> Any:
            answer = super()._loglikelihood_tokens(*words, **named)
            if self._rolling:
                self._done += 1
                self._target.progress(self._done, self._total)
            return answer

    more = {} if chat else {"tokenizer": target.tokenizer, "tokenizer_backend": "huggingface"}
    return Model(
        base_url=target.url,
        model=target.model,
        num_concurrent=concurrency,
        max_length=target.length_max,
        **more,
    )


def ask_no_machine() -> None:
    """Removes two slow parts of the harness that change no number. At each evaluation it runs pip
    and git to describe the machine, which takes 3 s or more, and it compiles the templates of each
    item again."""
    from lm_eval import evaluator, utils

    evaluator.add_env_info = lambda storage: None
    evaluator.get_git_commit_hash = lambda: None
    if not hasattr(utils.env.from_string, "cache_info"):
        utils.env.from_string = lru_cache(maxsize=1024)(utils.env.from_string)


def keep_requests() -> None:
    """Makes each task object build its requests only once for the same settings, and removes the
    answers of the last evaluation from them."""
    from lm_eval.api.task import Task

    build = Task.build_all_requests
    if hasattr(build, "evalq_kept"):
        return

    def build_once(self: Any, **settings: Any) -> None:
        key = repr(
            sorted((name, value) for name, value in settings.items() if name != "chat_template")
        )
        key += repr(self.config.num_fewshot) + repr(self.config.generation_kwargs)
        if getattr(self, "evalq_built", None) != key or not self._instances:
            build(self, **settings)
            self.evalq_built = key
        for instance in self._instances:
            instance.resps = []
            instance.filtered_resps = {}

    build_once.evalq_kept = True  # type: ignore[attr-defined]
    Task.build_all_requests = build_once
