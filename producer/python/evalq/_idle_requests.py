"""Requests of idle workers for new weights. A thread sets them; the training takes them at its next step."""

from __future__ import annotations

import threading
from typing import Callable, Dict, List, Optional, Sequence, Tuple

Key = Tuple[str, str]  # Suites separated by commas, and needs as text ("": the suites' own needs).


class IdleRequest:
    """The requests for one kind of job. The training thread reads `suites` without a lock, because it is one assignment."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.suites: Optional[Sequence[str]] = None  #: The suites that an idle worker asked for; None: no open request.
        self.waits = True  #: Whether to ask the workers again; not while the last weights are on their way.

    def settle(self) -> None:
        """Call it when the weights are in the queue or were dropped: the workers are asked again."""
        self.waits = True


class IdleRequests:
    """All requests of one client. Each request of a worker gets at most one snapshot."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # Reentrant for signal handlers, as in ResultReader.
        self._asks: Dict[Key, IdleRequest] = {}

    def find(self, key: Key) -> Optional[IdleRequest]:
        return self._asks.get(key)

    def add(self, key: Key) -> IdleRequest:
        with self._lock:
            return self._asks.setdefault(key, IdleRequest(key))

    @property
    def waiting(self) -> bool:
        return any(ask.waits for ask in self._asks.values())

    def take(self, ask: IdleRequest) -> Optional[Sequence[str]]:
        """Takes the requested suites. None: another thread took them first."""
        with self._lock:
            suites, ask.suites = ask.suites, None
            return suites

    def look(self, idle: Callable[[str, str], List[str]]) -> bool:
        """Asks the workers about each waiting kind. Returns whether any worker is idle."""
        with self._lock:
            waiting = [ask for ask in self._asks.values() if ask.waits]
        found = False
        for ask in waiting:
            suites = idle(*ask.key)
            if suites:
                ask.waits = False
                ask.suites = suites
                found = True
        return found
