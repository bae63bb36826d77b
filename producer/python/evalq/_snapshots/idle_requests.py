"""An idle worker asks the training for fresh weights; these are its open requests.

The snapshot thread sets them, and the training takes them at its next step.
"""

from __future__ import annotations

import threading
from typing import Callable, Dict, List, Optional, Sequence, Tuple

Key = Tuple[str, str]  # Suites separated by commas, and needs as text ("": the suites' own needs).


class IdleRequest:
    """The requests for one kind of job. The training thread reads `suites` without a lock, which is
    safe because only whole values are assigned."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.suites: Optional[Sequence[str]] = None  #: The suites that an idle worker asked for.
        self.waits = True  #: Whether to ask the workers; not while weights are on their way.

    def close(self) -> None:
        """Call it when the weights are in the queue or were dropped. The workers are asked
        again."""
        self.waits = True


class IdleRequests:
    """All requests of one client. Each request of a worker gets at most one snapshot."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal handler may submit in the middle of a submit.
        self._requests: Dict[Key, IdleRequest] = {}

    def find(self, key: Key) -> Optional[IdleRequest]:
        """The requests for key; None before add()."""
        return self._requests.get(key)

    def add(self, key: Key) -> IdleRequest:
        """Begins to ask workers about key. A second call returns the same object."""
        with self._lock:
            return self._requests.setdefault(key, IdleRequest(key))

    @property
    def waiting(self) -> bool:
        """Whether there is anything to ask the workers about."""
        return any(request.waits for request in self._requests.values())

    def take(self, request: IdleRequest) -> Optional[Sequence[str]]:
        """Takes the requested suites. None: another thread took them first."""
        with self._lock:
            suites, request.suites = request.suites, None
            return suites

    def ask(self, idle: Callable[[str, str], List[str]]) -> bool:
        """Asks the workers about each waiting kind. Returns whether any worker is idle."""
        with self._lock:
            waiting = [request for request in self._requests.values() if request.waits]
        found = False
        for request in waiting:
            suites = idle(*request.key)
            if suites:
                request.waits = False
                request.suites = suites
                found = True
        return found
