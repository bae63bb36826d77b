"""python -m evalq.serve_trainer MODULE:FACTORY, for the worker's configuration: see serve_trainer()."""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Callable

from ._trainer import serve_trainer
from ._serving import one_argument, resolve

__all__ = ["serve_trainer"]


class _Module(types.ModuleType):
    """A function to those who import evalq, a module to those who import this."""

    def __call__(self, factory: Callable[[], Any]) -> None:
        serve_trainer(factory)


def main() -> None:
    name = one_argument("evalq.serve_trainer", "MODULE:FACTORY")
    out_fd = os.dup(1)
    os.dup2(2, 1)  # What imports and the factory print is not for the worker.
    made: Any = resolve(name)()
    sys.stdout.flush()
    os.dup2(out_fd, 1)
    os.close(out_fd)
    serve_trainer(lambda: made)


if __name__ == "__main__":
    main()
else:
    sys.modules[__name__].__class__ = _Module
