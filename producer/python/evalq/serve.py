"""python -m evalq.serve MODULE:FUNCTION: an evaluator in Python, for the worker's configuration.

    evaluators:
      mine: {kind: persistent, argv: [python3, -m, evalq.serve, "my_eval:evaluate"], directory: /home/me/project}
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from ._serving import Checkpoint, EvalRetry, Function, Report, Task, one_argument, resolve, serve

__all__ = ["Checkpoint", "EvalRetry", "Function", "Report", "Task", "serve"]


class _Module(types.ModuleType):
    """evalq.serve is a function to those who import evalq, and a module to those who import this."""

    def __call__(self, function: Function) -> None:
        serve(function)


def main() -> None:
    name = one_argument("evalq.serve", "MODULE:FUNCTION")
    out_fd = os.dup(1)
    os.dup2(2, 1)  # What imports print is not for the worker.
    function: Any = resolve(name)
    sys.stdout.flush()
    os.dup2(out_fd, 1)
    os.close(out_fd)
    serve(function)


if __name__ == "__main__":
    main()
else:
    sys.modules[__name__].__class__ = _Module
