"""Checks the options of the callbacks. If one is wrong, the callback does nothing in that
training."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping

from .. import _arguments
from .._library import EvalqError

log = logging.getLogger("evalq")


def _callable(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise EvalqError(f"{name} is {_arguments.shown(value)}, expected a function")


def _flag(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise EvalqError(f"{name} is {_arguments.shown(value)}, expected True, False or None")


def _count(name: str, value: Any) -> None:
    if value is not None and _arguments.whole(name, value) < 1:
        raise EvalqError(f"{name} is {_arguments.shown(value)}, expected 1 or more")


def _mode(name: str, value: Any) -> None:
    if value not in ("min", "max"):
        raise EvalqError(f"{name} is {_arguments.shown(value)}, expected 'min' or 'max'")


def _suites(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (str, list, tuple, set, frozenset)):
        raise EvalqError(f"{name} is {_arguments.shown(value)}, expected text or a list of texts")
    if value is not None:
        _arguments.names(name, value)


_KINDS: Dict[str, Callable[[str, Any], Any]] = {
    "suites": _suites,
    "url": _arguments.optional_text,
    "run": _arguments.optional_text,
    "monitor": _arguments.optional_text,
    "mode": _mode,
    "patience": _count,
    "wait": _arguments.seconds,
    "saves": _flag,
    "newest": _flag,
    "significant": _flag,
    "names": _callable,
    "policy": _arguments.optional_text,
    "priority": _arguments.optional_text,
    "variant": _arguments.text,
    "params": _arguments.mapping,
    "trackers": _arguments.mapping,
    "hold_seconds": _arguments.seconds,
    "snapshots": _count,
    "queue": _arguments.optional_text,
    "config": _arguments.optional_path,
}


def refused(who: str, options: Mapping[str, Any]) -> bool:
    """Whether an option has a wrong type; logs it once. The callback then does nothing, and the
    trainer runs without it."""
    for name, value in options.items():
        try:
            _KINDS[name](name, value)
        except Exception as error:  # A value's own methods may raise anything.
            log.warning("evalq is off for this training: %s: %s", who, _arguments.sentence(error))
            return True
    return False


def suite_names(given: Any, default: str) -> List[str]:
    """Suite names from text with commas or a list. "" or None: the default."""
    text = _arguments.names("suites", given or default)
    return [name.strip() for name in text.split(",") if name.strip()]
