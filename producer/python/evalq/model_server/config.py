"""The settings of a model server and of a suite's harness in evalq.yaml.

The worker has already checked the names of the keys and the kinds of their values.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

VARIABLE = "EVALQ_MODEL_SERVER"


class Refused(Exception):
    """The configuration or the checkpoint is wrong, so the same job would fail again."""

    evalq_plain = True  # Its text is the whole message.


@dataclass
class Settings:
    """The map evaluators.NAME."""

    name: str
    directory: str  #: The directory of evalq.yaml, where relative paths start.
    kind: str = "vllm"  #: "vllm", "sglang" or "custom".
    python: str = "python3"  #: The interpreter that has the server.
    options: Dict[str, Any] = field(default_factory=dict)
    custom: Dict[str, Any] = field(default_factory=dict)
    start_seconds: float = 900.0
    #: A server that has requests but makes no token for this time counts as hung.
    hang_seconds: float = 300.0

    @classmethod
    def from_environment(cls) -> "Settings":
        text = os.environ.get(VARIABLE)
        if not text:
            raise Refused(
                f"${VARIABLE} is not set: this program is started by a worker, for an evaluator of"
                " kind model_server"
            )
        told = json.loads(text)
        given: Mapping[str, Any] = told["given"]
        settings = cls(
            name=told["name"],
            directory=told["directory"],
            kind=given.get("server") or "vllm",
            python=given.get("python") or "python3",
            options=dict(given.get("options") or {}),
            custom=dict(given.get("custom") or {}),
            start_seconds=float(given.get("start_seconds") or 900),
            hang_seconds=float(given.get("hang_seconds") or 300),
        )
        settings.python = program(settings.python, settings.directory)
        return settings

    def path(self, text: str) -> str:
        return os.path.join(self.directory, text)


@dataclass(frozen=True)
class Harness:
    """The map suites.NAME.harness."""

    kind: str
    directory: str
    options: Mapping[str, Any]  #: The whole map.
    text: str  #: The map as the worker sent it. Equal texts are equal harnesses.

    @classmethod
    def parse(cls, text: str) -> "Harness":
        told = json.loads(text)
        given = told["given"]
        return cls(kind=given["kind"], directory=told["directory"], options=given, text=text)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.options.get(key)
        return default if value is None else value

    @property
    def own(self) -> Dict[str, Any]:
        """The harness's own options, under the names that it gives them."""
        return dict(self.options.get("options") or {})

    def path(self, key: str) -> Optional[str]:
        value = self.get(key)
        return None if value is None else os.path.join(self.directory, str(value))


def program(word: str, directory: str) -> str:
    """Returns the path of a program. A name with a slash is relative to directory; another one is
    searched on the PATH."""
    if "/" in word:
        return os.path.join(directory, word)
    return shutil.which(word) or word


def server_words(options: Mapping[str, Any]) -> List[str]:
    """Converts options to words of a command line. {max_model_len: 4096, enforce_eager: true}
    becomes --max-model-len 4096 --enforce-eager."""
    words: List[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is False:
            words.append("--no-" + name.replace("_", "-"))
        elif isinstance(value, list):
            words += [flag, *(str(item) for item in value)]
        elif isinstance(value, dict):
            words += [flag, json.dumps(value)]
        elif value is not None:
            words += [flag, str(value)]
    return words
