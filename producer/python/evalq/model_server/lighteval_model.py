"""A model object for lighteval that asks the server.

Import this module only when lighteval is needed, because it imports lighteval.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Tuple
from urllib.parse import urlsplit

from lighteval.models.abstract_model import LightevalModel, ModelConfig
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.prompt_manager import PromptManager

from .config import Harness, Refused
from .harnesses import CONCURRENCY, Target
from .http import Http, ServerError

_REQUEST_SECONDS = 3600.0


class _NoCache:
    """Stands for lighteval's cache of answers, so that there is none."""

    def _init_registry(self, registry: Any) -> None:
        """lighteval passes the tasks to its cache."""


class Model(LightevalModel):  # type: ignore[misc]
    """lighteval's model interface on the server's HTTP API."""

    def __init__(self, harness: Harness, system_prompt: Any) -> None:
        self._harness = harness
        self._system_prompt = system_prompt
        self.config = ModelConfig(model_name="model")
        self._cache = _NoCache()
        self._chat = bool(harness.get("chat", False))

    def aim(self, target: Target, total: int) -> None:
        from transformers import AutoTokenizer

        self._target, self._total, self._done = target, total, 0
        self._http = Http(int(urlsplit(target.url).port or 0), target.key)
        self._tokenizer = AutoTokenizer.from_pretrained(target.tokenizer)
        self._prompts = PromptManager(
            use_chat_template=self._chat,
            tokenizer=self._tokenizer,
            system_prompt=self._system_prompt,
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
        """Calls work(doc) for each document, on several threads. It returns a response and the
        number of tokens."""
        pool = ThreadPoolExecutor(int(self._harness.get("concurrency", CONCURRENCY)))
        found = []
        try:
            for response, tokens in pool.map(work, docs):
                found.append(response)
                self._done += 1
                self._target.progress(self._done, self._total, tokens=tokens)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # A cancel does not wait for answers.
        return found

    def greedy_until(self, docs: List[Any]) -> List[Any]:
        return self._each(self._generate, docs)

    def _generate(self, doc: Any) -> Tuple[Any, int]:
        body: Dict[str, Any] = {"n": doc.num_samples, **(self._harness.get("gen_kwargs") or {})}
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
            ids = ids[-room:]  # lighteval also keeps the end of a prompt that is too long.
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
        """Returns for each choice its log-probability after the context, whether it is the greedy
        answer, and its tokens."""
        found = []
        for before, ids in zip(*self.tok_encode_pair(context, choices)):
            whole = (list(before) + list(ids))[-(self.max_length - 1) :]
            asked = {"prompt": whole, "max_tokens": 1, "logprobs": 1, "echo": True}
            told = self._ask("/completions", asked)["choices"][0]["logprobs"]
            part = slice(len(whole) - len(ids), len(whole))
            values, likeliest = told["token_logprobs"][part], told["top_logprobs"][part]
            greedy = all(value >= max(others.values()) for value, others in zip(values, likeliest))
            found.append((float(sum(values)), greedy, list(ids)))
        return found

    def loglikelihood_rolling(self, docs: List[Any]) -> List[Any]:
        raise Refused("evalq does not run lighteval's perplexity tasks: use those of lm-eval")
