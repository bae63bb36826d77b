"""python -m evalq.serve_trainer MODULE:FACTORY, for the worker's configuration: see serve_trainer()."""

from __future__ import annotations

from ._runnable import also_function, run
from ._trainer import serve_trainer, trainer_function

__all__ = ["serve_trainer"]

if __name__ == "__main__":
    run("MODULE:FACTORY", trainer_function)
else:
    also_function(__name__, serve_trainer)
