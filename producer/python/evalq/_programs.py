"""Entry points of the wheel's programs: each replaces this process with the compiled program."""

from __future__ import annotations

import os
import sys

from ._library import native_directory


def _run(name: str) -> None:
    directory = native_directory()
    if directory is None:
        raise SystemExit(f"{name}: this installation of the Python package holds no programs")
    path = os.path.join(directory, name)
    sys.stdout.flush()
    os.execv(path, [path, *sys.argv[1:]])


def evalq() -> None:
    _run("evalq")


def worker() -> None:
    _run("evalq-worker")


def logger() -> None:
    _run("evalq-logger")
