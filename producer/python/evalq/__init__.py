"""evalq evaluates the checkpoints of a training on other GPUs, while the training goes on.

    import evalq

    client = evalq.Client(run="digits")
    client.submit("out/step-100.safetensors", step=100, suites="quick")  # takes microseconds
    for result in client.results():                           # those that have arrived so far
        print(result.step, result.key, result.value)
    client.wait(timeout=600)

``evalq.serve(function)`` makes a Python function an evaluator that the worker keeps warm. See
docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._library import EvalqError, version
from .client import Client
from .result import Best, Result, Stats

if TYPE_CHECKING:
    from ._evaluation import Checkpoint, EvalRetry, Report, Task
    from ._serving import serve
    from ._lightning_evaluator import serve_lightning
    from ._trainer_evaluator import serve_trainer

__all__ = [
    "Best",
    "Checkpoint",
    "Client",
    "EvalRetry",
    "EvalqError",
    "Report",
    "Result",
    "Stats",
    "Task",
    "serve",
    "serve_lightning",
    "serve_trainer",
    "version",
]

# These names are imported at their first use, so that a training imports only the client.
_LAZY = {
    "serve": "_serving",
    "Checkpoint": "_evaluation",
    "EvalRetry": "_evaluation",
    "Report": "_evaluation",
    "Task": "_evaluation",
    "serve_trainer": "_trainer_evaluator",
    "serve_lightning": "_lightning_evaluator",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version()
    if name not in _LAZY:
        raise AttributeError(f"module 'evalq' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module("." + _LAZY[name], __name__), name)
    globals()[name] = value
    return value
