"""Hooks of a guest."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

from .._checked import sentence

log = logging.getLogger("evalq")


def guarded(hook: Callable[..., Any]) -> Callable[..., None]:
    """A method that never raises into training; it gives None. The first failure of each is logged, by a set of
    names that self keeps in _failed. Nothing is done while self._refused."""

    @functools.wraps(hook)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> None:
        if self._refused:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            first = hook.__name__ not in self._failed
            self._failed.add(hook.__name__)
            log.log(
                logging.WARNING if first else logging.DEBUG,
                "%s failed, training goes on: %s: %s",
                hook.__name__,
                type(error).__name__,
                sentence(error),
                exc_info=log.isEnabledFor(logging.DEBUG),
            )

    return guarded
