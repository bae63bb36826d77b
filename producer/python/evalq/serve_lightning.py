"""Serves a module as a persistent evaluator: python -m evalq.serve_lightning MODULE:FACTORY.

The function serve_lightning() describes what FACTORY returns.
"""

from __future__ import annotations

from ._lightning_evaluator import make_lightning_evaluator, serve_lightning
from ._program_module import also_function, run

__all__ = ["serve_lightning"]

if __name__ == "__main__":
    run("MODULE:FACTORY", make_lightning_evaluator)
else:
    also_function(__name__, serve_lightning)
