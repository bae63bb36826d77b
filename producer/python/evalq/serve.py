"""Serves a function as a persistent evaluator: python -m evalq.serve MODULE:FUNCTION.

The worker's configuration names it like this:

    evaluators:
      mine:
        kind: persistent
        argv: [python3, -m, evalq.serve, "my_eval:evaluate"]
        directory: /home/me/project
"""

from __future__ import annotations

from ._runnable import also_function, run
from ._serving import Checkpoint, EvalRetry, Function, Report, Task, serve

__all__ = ["Checkpoint", "EvalRetry", "Function", "Report", "Task", "serve"]

if __name__ == "__main__":
    run("MODULE:FUNCTION", lambda function: function)
else:
    also_function(__name__, serve)
