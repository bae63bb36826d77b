"""A decorator for callback methods that must never raise into training."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

from .._arguments import sentence

log = logging.getLogger("evalq")


def guarded(hook: Callable[..., Any]) -> Callable[..., None]:
    """Makes a method that logs its exceptions and returns None. self._failed remembers the methods
    that failed, so that each is logged once. If self._refused is set, the method does nothing."""

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
                "%s failed, training continues: %s: %s",
                hook.__name__,
                type(error).__name__,
                sentence(error),
                exc_info=log.isEnabledFor(logging.DEBUG),
            )

    return guarded
