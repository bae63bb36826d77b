"""evalq: training writes a checkpoint and goes on; it is evaluated elsewhere.

    import evalq

    client = evalq.Client(run="digits")
    client.submit("out/step-100.safetensors", step=100, suites="quick")   # microseconds
    for result in client.results():                                      # whatever arrived
        print(result.step, result.key, result.value)
    client.wait(timeout=600)

An evaluator in Python, kept warm by the worker: ``evalq.serve(function)``; see docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._library import EvalqError, version
from .client import Best, Client, Result, Stats

if TYPE_CHECKING:
    from .local import LocalStack, local
    from .serve import Checkpoint, EvalRefused, EvalRetry, Job, Report, serve
    from .serve_lightning import serve_lightning
    from .serve_trainer import serve_trainer

__all__ = [
    "Best",
    "Checkpoint",
    "Client",
    "EvalRefused",
    "EvalRetry",
    "EvalqError",
    "Job",
    "LocalStack",
    "Report",
    "Result",
    "Stats",
    "local",
    "serve",
    "serve_lightning",
    "serve_trainer",
    "version",
]

# A trainer pays for the client alone; and `python -m evalq.serve` must not find itself imported.
_LAZY = {
    "local": "local",
    "LocalStack": "local",
    "serve": "serve",
    "Checkpoint": "serve",
    "EvalRefused": "serve",
    "EvalRetry": "serve",
    "Job": "serve",
    "Report": "serve",
    "serve_trainer": "serve_trainer",
    "serve_lightning": "serve_lightning",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version()
    if name not in _LAZY:
        raise AttributeError(f"module 'evalq' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module("." + _LAZY[name], __name__), name)
    globals()[name] = value  # Functions win over the submodules of the same name.
    return value
