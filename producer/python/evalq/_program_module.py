"""Makes evalq.serve and similar modules both programs (`python -m evalq.serve`) and functions
(`evalq.serve(fn)`)."""

from __future__ import annotations

import os
import sys
import traceback
import types
from importlib import import_module
from typing import Any, Callable, NoReturn

from . import _training_guard
from ._evaluation import Function
from ._serving import serve


def run(what: str, make: Callable[[Any], Function]) -> None:
    """Runs the program: serves make(object), where the only argument names the object as
    "module:attribute"."""
    arguments = sys.argv[1:]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        name = getattr(sys.modules["__main__"].__spec__, "name", sys.argv[0])
        refuse(f"usage: python -m {name} {what}")
    serve(quietly(lambda: make(_resolve(arguments[0]))))


def quietly(make: Callable[[], Function]) -> Function:
    """Calls make() with standard output redirected to standard error, because the worker reads
    standard output."""
    out_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        return make()
    except ImportError as error:
        traceback.print_exc()
        refuse(f"a module cannot be imported: {error}")
    finally:
        sys.stdout.flush()
        os.dup2(out_fd, 1)
        os.close(out_fd)


def refuse(message: str) -> NoReturn:
    """Ends an evaluator that can never start. The worker uses the last log line as the reason and
    does not try again."""
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(os.EX_DATAERR)


def also_function(module: str, function: Callable[[Any], None]) -> None:
    """Makes the module callable, because `import evalq.serve` replaces the function evalq.serve by
    this module."""

    class Module(types.ModuleType):
        def __call__(self, argument: Any) -> None:
            function(argument)

    sys.modules[module].__class__ = Module


def _resolve(name: str) -> Any:
    """Imports the named object. The working directory comes first on the path."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        refuse(f"expected MODULE:NAME, got '{name}'")
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())
    with _training_guard.importing(module):
        value: Any = import_module(module)
    for part in attribute.split("."):
        if not hasattr(value, part):
            refuse(f"the module '{module}' has no '{attribute}'")
        value = getattr(value, part)
    return value
