"""Calls a user's evaluation function with as many arguments as it takes."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Mapping

_ARGUMENTS = ("checkpoint", "task", "report")


def adapted(function: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
    """Returns a function of (checkpoint, task, report) for one that takes the first one, the first
    two or all of these. If that one returns a single number, the number becomes a metric with the
    function's name.

    Raises TypeError if the function needs other arguments.
    """
    count = _argument_count(function)
    name = getattr(function, "__name__", "value").strip("<>")  # A lambda is called "<lambda>".

    def evaluate(*arguments: Any) -> Any:
        metrics = function(*arguments[:count])
        if isinstance(metrics, (Mapping, list, tuple, str)) or metrics is None:
            return metrics
        return {name: metrics}

    return evaluate


def _argument_count(function: Callable[..., Any]) -> int:
    """How many of _ARGUMENTS the function takes. A parameter with a default value counts only if
    it has the name of the argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return len(_ARGUMENTS)  # A built-in function does not tell.
    count = 0
    needed = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            count = len(_ARGUMENTS)
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            needed.append(parameter.name)
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            required = parameter.default is parameter.empty
            if count < len(_ARGUMENTS) and (required or parameter.name == _ARGUMENTS[count]):
                count += 1
            elif required:
                needed.append(parameter.name)
    if count == 0 or needed:
        has = f"needs {', '.join(needed)}" if needed else "takes no argument"
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"the function '{name}' {has}; evalq calls it with (checkpoint), (checkpoint, task) or"
            " (checkpoint, task, report)"
        )
    return count
