"""Stops a training that starts inside an evaluator.

An evaluator imports the module of the user's training program. If that program does not start its
training below `if __name__ == "__main__":`, the import would train again, into the same files.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Iterator

_importing = ""  # The module that this evaluator imports now.


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Surrounds the import of the user's module."""
    global _importing
    _importing = module
    try:
        yield
    finally:
        _importing = ""


def refuse_in_evaluator() -> None:
    """Call it where a training begins. Ends an evaluator that imports the user's module. The worker
    uses the last log line as the reason and does not try again."""
    if _importing:
        print(
            f"importing '{_importing}' starts the training: put the start below"
            ' `if __name__ == "__main__":`',
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(os.EX_DATAERR)
