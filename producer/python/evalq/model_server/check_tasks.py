"""Checks that the installed harness has some tasks, for `evalq suite add`.

    python -m evalq.model_server.check_tasks HARNESS TASK...

Exit codes: 0 if it has all of them; 3 if it lacks one, whose nearest name is then written to
standard error; 1 if the harness cannot be asked.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import List, NoReturn

from .config import Refused
from .harnesses import HARNESSES, check_task

NO_SUCH_TASK = 3


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"evalq: suite: {message}\n")
    sys.exit(code)


def main(words: List[str]) -> None:
    kind, names = words[0], words[1:]
    try:
        check_task("evalq", kind, HARNESSES, "harness")
        module = import_module(".harness_" + kind.replace("-", "_"), __package__)
    except Refused as error:
        _fail(str(error), NO_SUCH_TASK)
    try:
        known = module.known_tasks(os.getcwd(), names)
        for name in names:
            check_task(kind, name, known)
    except ImportError as error:
        _fail(f"{sys.executable} does not have the harness {kind}: {error}", 1)
    except Refused as error:
        _fail(str(error), NO_SUCH_TASK)


if __name__ == "__main__":
    main(sys.argv[1:])
