"""Runs lighteval inside this process, with our own model object.

lighteval's own client for servers stores answers on disk under the model's name, so it would return
the answers of an earlier checkpoint. It also counts a failed request as an empty answer.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Set, Tuple
from urllib.parse import urlsplit

from .._harness_samples import of_lighteval
from .config import Harness, Refused
from .harnesses import CONCURRENCY, Metrics, Target, check_options, check_task, write_samples
from .harnesses import Runner as Base
from .http import Http, ServerError
from .servers import log

_OWN = {
    "bootstrap_iters",
    "cot_prompt",
    "remove_reasoning_tags",
    "reasoning_tags",
    "load_tasks_multilingual",
    "system_prompt",
}
_REQUEST_SECONDS = 3600.0
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

        own = self.harness.own
        limit = self.harness.get("limit")
        system_prompt = own.pop("system_prompt", None)
        parameters = PipelineParameters(
            launcher_type=ParallelismManager.NONE,
            custom_tasks_directory=self.harness.path("include_path"),
            max_samples=None if limit is None else int(limit),
            **own,
        )
        model = _model(self.harness, system_prompt)
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


def _model(harness: Harness, system_prompt: Any) -> Any:
    from lighteval.models.abstract_model import LightevalModel, ModelConfig
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.prompt_manager import PromptManager

    class NoCache:
        def _init_registry(self, registry: Any) -> None:
            """lighteval tells its cache of answers which tasks there are. Here is no cache."""

    class Model(LightevalModel):  # type: ignore[misc]
        def __init__(self) -> None:
            self.config = ModelConfig(model_name="model")
            self._cache = NoCache()
            self._chat = bool(harness.get("chat", False))

        def aim(self, target: Target, total: int) -> None:
            from transformers import AutoTokenizer

            self._target, self._total, self._done = target, total, 0
            self._http = Http(int(urlsplit(target.url).port or 0), target.key)
            self._tokenizer = AutoTokenizer.from_pretrained(target.tokenizer)
            self._prompts = PromptManager(
                use_chat_template=self._chat, tokenizer=self._tokenizer, system_prompt=system_prompt
            )

        @property
        def tokenizer(self) -> Any:
            return self._tokenizer

        @property
        def add_special_tokens(self) -> bool:
            return not self._chat  # A chat template brings its own.

        @property
        def max_length(self) -> int:
            return self._target.length_max

        def _ask(self, path: str, body: Dict[str, Any]) -> Any:
            body = {"model": self._target.model, "temperature": 0, **body}
            try:
                return self._http.ask("POST", "/v1" + path, body, _REQUEST_SECONDS)
            except ServerError as error:
                if 400 <= error.status < 500:
                    raise ValueError(str(error)) from None  # The request is wrong, not the server.
                raise

        def _each(self, work: Callable[[Any], Tuple[Any, int]], docs: List[Any]) -> List[Any]:
            """work(doc) gives a response and the number of tokens."""
            pool = ThreadPoolExecutor(int(harness.get("concurrency", CONCURRENCY)))
            found = []
            try:
                for response, tokens in pool.map(work, docs):
                    found.append(response)
                    self._done += 1
                    self._target.progress(self._done, self._total, tokens=tokens)
            finally:
                pool.shutdown(
                    wait=False, cancel_futures=True
                )  # A cancel does not wait for answers.
            return found

        def greedy_until(self, docs: List[Any]) -> List[Any]:
            return self._each(self._generate, docs)

        def _generate(self, doc: Any) -> Tuple[Any, int]:
            body: Dict[str, Any] = {"n": doc.num_samples, **(harness.get("gen_kwargs") or {})}
            if doc.num_samples > 1 and not body.get("temperature"):
                raise Refused(
                    f"harness.gen_kwargs needs a temperature: '{doc.task_name}' wants"
                    f" {doc.num_samples} different answers"
                )
            if doc.stop_sequences:
                body["stop"] = list(doc.stop_sequences)
            if self._chat:
                prompt: Any = self._prompts.prepare_prompt_api(doc)
                if doc.generation_size:
                    body["max_tokens"] = doc.generation_size
                answer = self._ask("/chat/completions", {"messages": prompt, **body})
                texts = [choice["message"]["content"] or "" for choice in answer["choices"]]
            else:
                prompt = self._prompts.prepare_prompt(doc)
                ids = self.tok_encode(prompt)
                room = max(1, self.max_length - 1 - int(doc.generation_size or 1))
                ids = ids[-room:]  # lighteval, too, keeps the end of a prompt that is too long.
                body["max_tokens"] = doc.generation_size or self.max_length - len(ids)
                answer = self._ask("/completions", {"prompt": ids, **body})
                texts = [choice["text"] for choice in answer["choices"]]
            return ModelResponse(input=prompt, text=texts), int(
                (answer.get("usage") or {}).get("completion_tokens") or 0
            )

        def loglikelihood(self, docs: List[Any]) -> List[Any]:
            return self._each(self._score, docs)

        def _score(self, doc: Any) -> Tuple[Any, int]:
            prompt = self._prompts.prepare_prompt(doc)
            scored = self._choices(prompt, doc.choices)
            response = ModelResponse(
                input=prompt,
                logprobs=[value for value, _, _ in scored],
                argmax_logits_eq_gold=[greedy for _, greedy, _ in scored],
                output_tokens=[ids for _, _, ids in scored],
            )  # fmt: skip
            if doc.unconditioned_query is not None:
                response.unconditioned_logprobs = [
                    value for value, _, _ in self._choices(doc.unconditioned_query, doc.choices)
                ]
            return response, 0

        def _choices(self, context: str, choices: List[str]) -> List[Tuple[float, bool, List[int]]]:
            """For each choice: its log-probability after the context, whether it is the greedy
            answer, its tokens."""
            found = []
            for before, ids in zip(*self.tok_encode_pair(context, choices)):
                whole = (list(before) + list(ids))[-(self.max_length - 1) :]
                asked = {"prompt": whole, "max_tokens": 1, "logprobs": 1, "echo": True}
                told = self._ask("/completions", asked)["choices"][0]["logprobs"]
                part = slice(len(whole) - len(ids), len(whole))
                values, likeliest = told["token_logprobs"][part], told["top_logprobs"][part]
                greedy = all(
                    value >= max(others.values()) for value, others in zip(values, likeliest)
                )
                found.append((float(sum(values)), greedy, list(ids)))
            return found

        def loglikelihood_rolling(self, docs: List[Any]) -> List[Any]:
            raise Refused("evalq does not run lighteval's perplexity tasks: use those of lm-eval")

    return Model()
