"""evalq's model for lm-evaluation-harness: the native engine answers log-likelihood requests.

    python -m evalq.lm_eval_model --model evalq --model_args pretrained=out/checkpoint-100 \\
        --tasks piqa

takes the arguments of the harness's own command. A program imports this module, and then calls
lm_eval.simple_evaluate(model="evalq", model_args={"pretrained": PATH}, ...).

The process that scores, its buffers and its tokenizer stay when load_checkpoint() loads the next
checkpoint.
"""

from __future__ import annotations

import os
from importlib import import_module
from itertools import groupby
from typing import Any, Callable, Dict, List, Optional

import lm_eval.models  # The harness adds its own models only to an empty registry.
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from ._native_scores import NativeScores, Score

_COMPUTE = {"auto": "auto", "float32": "fp32", "bfloat16": "bf16"}
_TEXTS_MAX = 1000  # Texts of one line.


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@register_model("evalq")
class EvalqLM(TemplateLM):  # type: ignore[misc]
    """Other arguments are model options of evalq (docs/models.md), such as base or family. Batches
    have the size that is fastest, so batch_size is not used."""

    def __init__(
        self,
        pretrained: str,
        variant: str = "regular",
        tokenizer: str = "",
        dtype: str = "auto",
        max_length: Optional[int] = None,
        prefix_token_id: Optional[int] = None,
        threads: int = 0,
        device: Optional[str] = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
        **model: Any,
    ) -> None:
        super().__init__()
        if dtype not in _COMPUTE:
            raise ValueError(f"dtype '{dtype}' is not one of {', '.join(_COMPUTE)}")
        self._options = {"compute": _COMPUTE[dtype]}
        if max_length is not None:
            self._options["length"] = str(max_length)
        self._model = {key: _word(value) for key, value in model.items()}
        self._named_tokenizer = os.path.abspath(tokenizer) if tokenizer else ""
        self._prefix = prefix_token_id
        words = ["--threads", str(threads)]
        if device not in (None, "cuda", "cuda:0"):  # The harness's command gives cuda:0 by default.
            words += ["--devices", str(device).replace("cuda:", "")]
        self._engine = NativeScores(words)
        self.load_checkpoint(pretrained, variant)

    def load_checkpoint(self, path: str, variant: str = "regular") -> None:
        """Evaluates these weights of the checkpoint at path from now on."""
        self._path, self._variant = path, variant
        self._tokenizer: Any = None
        self._loaded = self._load(self._prefix)
        self._reads_text = self._loaded["no_tokenizer"] == ""
        if not self._reads_text:  # The tokens come from Transformers.
            self._loaded = self._load(self.prefix_token_id)

    def _load(self, prefix: Optional[int]) -> Dict[str, Any]:
        data = {"tokenizer": self._named_tokenizer} if self._named_tokenizer else {}
        if prefix is not None:
            data["prefix"] = str(prefix)
        maps = {"model": self._model, "data": data, "options": self._options}
        return self._engine.load(self._path, self._variant, maps)

    def listen(self, listener: Optional[Callable[[int, int, str], None]]) -> None:
        """listener(done, total, doing) is called while weights are loaded and requests are scored.
        doing names what is counted."""
        self._engine.listener = listener

    def loglikelihood(self, requests: List[Any], disable_tqdm: bool = False) -> List[Score]:
        if not self._reads_text:
            scores: List[Score] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
            return scores
        numbered = enumerate(request.args for request in requests)
        # The choices of a question follow one another and have the same context.
        groups = groupby(numbered, lambda pair: (pair[1][0], pair[0] // _TEXTS_MAX))
        return self._engine.score(
            {"context": context, "texts": [args[1] for _, args in group]}
            for (context, _), group in groups
        )

    def _loglikelihood_tokens(self, requests: List[Any], **_: Any) -> List[Score]:
        return self._engine.score(
            {"context": context, "texts": [continuation]} for _, context, continuation in requests
        )

    def loglikelihood_rolling(self, requests: List[Any], disable_tqdm: bool = False) -> List[float]:
        texts = (request.args[0] for request in requests)
        scores = self._engine.score(
            {"texts": [text if self._reads_text else self.tok_encode(text)]} for text in texts
        )
        return [logprob for logprob, _ in scores]

    def generate_until(self, requests: List[Any], disable_tqdm: bool = False) -> List[str]:
        raise NotImplementedError(
            "evalq's native engine generates no text: evaluate generation tasks with an evaluator"
            " of kind model_server"
        )

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of Transformers. It is needed for chat templates, and for tokens if evalq
        cannot read the tokenizer itself."""
        if self._tokenizer is None:
            try:
                transformers: Any = import_module("transformers")
            except ImportError as error:
                raise ValueError(
                    f"the tokenizer of '{self._path}' needs Transformers ({error})"
                    f" {self._loaded['no_tokenizer']}"
                ) from error
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                self._named_tokenizer or self._path
            )
        return self._tokenizer

    @property
    def eot_token_id(self) -> int:
        token: int = self.tokenizer.eos_token_id
        return token

    @property
    def prefix_token_id(self) -> int:
        if self._prefix is not None:
            return self._prefix
        token: Optional[int] = self.tokenizer.bos_token_id
        return self.eot_token_id if token is None else token

    @property
    def max_length(self) -> int:
        length: int = self._loaded["context"]
        return length

    @property
    def tokenizer_name(self) -> str:
        return (self._named_tokenizer or self._path).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: Optional[bool] = None, **_: Any
    ) -> List[int]:
        """As the harness's own model for Transformers: a text that begins with the first token does
        not get a second one."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self.tokenizer.decode(self.prefix_token_id))
        tokens: List[int] = self.tokenizer.encode(string, add_special_tokens=add_special_tokens)
        return tokens

    def apply_chat_template(
        self, chat_history: List[Dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def get_model_info(self) -> Dict[str, Any]:
        return {f"evalq_{key}": self._loaded[key] for key in ("family", "compute", "device")}


if __name__ == "__main__":
    import_module("lm_eval.__main__").cli_evaluate()
