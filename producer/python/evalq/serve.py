"""Serves a function as a persistent evaluator: python -m evalq.serve MODULE:FUNCTION.

The worker's configuration names it like this:

    evaluators:
      mine:
        kind: persistent
        argv: [python3, -m, evalq.serve, "my_eval:evaluate"]
        directory: /home/me/project
"""

from __future__ import annotations

from typing import Any, Callable

from ._program_module import also_function, refuse, run
from ._evaluation import Checkpoint, EvalRetry, Function, Report, Task
from ._serving import serve
from ._user_function import adapted

__all__ = ["Checkpoint", "EvalRetry", "Function", "Report", "Task", "serve"]


def _adapted(function: Callable[..., Any]) -> Function:
    try:
        return adapted(function)
    except TypeError as error:
        refuse(str(error))


if __name__ == "__main__":
    run("MODULE:FUNCTION", _adapted)
else:
    also_function(__name__, serve)
