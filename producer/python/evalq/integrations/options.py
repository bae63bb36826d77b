"""What users give to the adapters: of the right kind, or the adapter stays out of that training."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping

from .. import _checked
from .._library import EvalqError

log = logging.getLogger("evalq")


def _callable(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise EvalqError(f"{name} is {_checked.shown(value)}, expected a function")


def _flag(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        raise EvalqError(f"{name} is {_checked.shown(value)}, expected True, False or None")


def _count(name: str, value: Any) -> None:
    if value is not None and _checked.whole(name, value) < 1:
        raise EvalqError(f"{name} is {_checked.shown(value)}, expected 1 or more")


def _mode(name: str, value: Any) -> None:
    if value not in ("min", "max"):
        raise EvalqError(f"{name} is {_checked.shown(value)}, expected 'min' or 'max'")


def _suites(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (str, list, tuple, set, frozenset)):
        raise EvalqError(f"{name} is {_checked.shown(value)}, expected text or a list of texts")
    if value is not None:
        _checked.names(name, value)


_KINDS: Dict[str, Callable[[str, Any], Any]] = {
    "suites": _suites,
    "url": _checked.optional_text,
    "run": _checked.optional_text,
    "monitor": _checked.optional_text,
    "mode": _mode,
    "patience": _count,
    "wait": _checked.seconds,
    "saves": _flag,
    "newest": _flag,
    "names": _callable,
    "policy": _checked.optional_text,
    "priority": _checked.optional_text,
    "variant": _checked.text,
    "params": _checked.mapping,
    "trackers": _checked.mapping,
    "hold_seconds": _checked.seconds,
    "snapshots": _count,
    "queue": _checked.optional_text,
    "config": _checked.optional_path,
}


def refused(who: str, options: Mapping[str, Any]) -> bool:
    """Whether one of them is of the wrong kind, which is said once. Then who does nothing: the trainer is as without it."""
    for name, value in options.items():
        try:
            _KINDS[name](name, value)
        except Exception as error:  # Also what a value's own methods raise.
            log.warning("evalq is off for this training: %s: %s", who, _checked.sentence(error))
            return True
    return False


def suite_names(given: Any, default: str) -> List[str]:
    """Of text with commas, or a list; given "" or None: the default."""
    text = _checked.names("suites", given or default)
    return [name.strip() for name in text.split(",") if name.strip()]
