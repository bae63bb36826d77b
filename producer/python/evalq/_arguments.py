"""Checks arguments from users' code. A wrong one raises EvalqError with one sentence that names
it."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, Mapping, Optional

from ._library import EvalqError

_INT64_MAX = 2**63 - 1
_SHOWN = 80


def shown(value: Any) -> str:
    """The value as text for a message; its type if repr() fails."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def sentence(error: BaseException) -> str:
    """The message of an exception, or its type."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def _wrong(name: str, value: Any, expected: str) -> EvalqError:
    return EvalqError(f"{name} is {shown(value)}, expected {expected}")


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    if "\0" in value:
        raise EvalqError(f"{name} holds a NUL byte: {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(name, value, "text that is Unicode") from None
    return value


def optional_text(name: str, value: Any) -> Optional[str]:
    return None if value is None else text(name, value)


def path(name: str, value: Any) -> str:
    """The path as text. Any name that a disk can hold is allowed."""
    try:
        found = os.fsdecode(value)
    except (TypeError, ValueError):
        raise _wrong(name, value, "a path") from None
    if "\0" in found:
        raise EvalqError(f"{name} holds a NUL byte: {shown(value)}")
    return found


def optional_path(name: str, value: Any) -> Optional[str]:
    return None if value is None else path(name, value)


def names(name: str, value: Any) -> str:
    """Text, or a list of texts joined by commas."""
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, (bytes, Mapping)):
        raise _wrong(name, value, "text or a list of texts")
    try:
        return ",".join(text(name, each) for each in value)
    except TypeError:
        raise _wrong(name, value, "text or a list of texts") from None


def whole(name: str, value: Any) -> int:
    """A whole number, also of numpy or torch, or a float without a fraction."""
    try:
        number = int(value)
        if isinstance(value, (str, bytes)) or number != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise _wrong(name, value, "a whole number") from None
    if not -_INT64_MAX <= number <= _INT64_MAX:
        raise _wrong(name, value, "a number of 64 bits")
    return number


def number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise ValueError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(name, value, "a number") from None


def optional_number(name: str, value: Any) -> Optional[float]:
    return None if value is None else number(name, value)


def seconds(name: str, value: Any) -> float:
    """A number of seconds that is not negative; inf means no limit."""
    found = number(name, value)
    if math.isnan(found):
        raise _wrong(name, value, "a number of seconds")
    return max(0.0, found)


def mapping(name: str, value: Any) -> Dict[Any, Any]:
    """A mapping as a dictionary. None becomes an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping of names to values")
    return dict(value)
