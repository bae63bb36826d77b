"""What free workers ask for: a flag for each kind of job, set by a thread, taken by training at its next step."""

from __future__ import annotations

import threading
from typing import Callable, Dict, List, Optional, Sequence, Tuple

Key = Tuple[str, str]  # Suites, separated by commas; needs as text, "": the suites' own.


class Ask:
    """One kind of job. The training thread reads `suites` without a lock: it is one assignment."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.suites: Optional[Sequence[str]] = None  #: Those a free worker asked for, until they are taken.
        self.waits = True  #: Whether to ask the workers; not while what they got last is on its way to them.

    def settle(self) -> None:
        """What was taken is in the queue, or came to nothing: the workers are asked again."""
        self.waits = True


class Asks:
    """Those of one client. At most one snapshot is made for each time that a worker asks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # As that of Arrivals.
        self._asks: Dict[Key, Ask] = {}

    def find(self, key: Key) -> Optional[Ask]:
        return self._asks.get(key)

    def add(self, key: Key) -> Ask:
        with self._lock:
            return self._asks.setdefault(key, Ask(key))

    @property
    def waiting(self) -> bool:
        return any(ask.waits for ask in self._asks.values())

    def take(self, ask: Ask) -> Optional[Sequence[str]]:
        """Which suites were asked for; None: another thread was quicker."""
        with self._lock:
            suites, ask.suites = ask.suites, None
            return suites

    def look(self, idle: Callable[[str, str], List[str]]) -> bool:
        """Asks the workers, for each kind that waits. Whether any is free."""
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
