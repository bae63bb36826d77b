"""Serves a Trainer as a persistent evaluator: python -m evalq.serve_trainer MODULE:FACTORY.

The function serve_trainer() describes what FACTORY returns.
"""

from __future__ import annotations

from ._program_module import also_function, run
from ._trainer_evaluator import make_trainer_evaluator, serve_trainer

__all__ = ["serve_trainer"]

if __name__ == "__main__":
    run("MODULE:FACTORY", make_trainer_evaluator)
else:
    also_function(__name__, serve_trainer)
