"""python -m evalq.serve_lightning MODULE:FACTORY, for the worker's configuration: see serve_lightning()."""

from __future__ import annotations

from ._lightning import lightning_function, serve_lightning
from ._runnable import also_function, run

__all__ = ["serve_lightning"]

if __name__ == "__main__":
    run("MODULE:FACTORY", lightning_function)
else:
    also_function(__name__, serve_lightning)
