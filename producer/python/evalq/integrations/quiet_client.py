"""A client for the hooks of a trainer. Its calls never raise, and only ended() and close() wait."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Set

from .._client_session import StateDict
from ..client import Client
from ..result import Result

log = logging.getLogger("evalq")

_ASK_SECONDS = 1.0  # The time limit for ended_since() to ask the queue.


def default_run(output_dir: str) -> str:
    """$EVALQ_RUN, otherwise the directory's name with a hash of host, real path and time, so that a
    directory can be used for several runs. A resumed run takes its name from its checkpoint."""
    given = os.environ.get("EVALQ_RUN")
    if given:
        return given
    path = os.path.realpath(output_dir)
    text = f"{socket.gethostname()}:{path}:{time.time_ns()}"
    base = os.path.basename(path) or "run"
    return f"{base[:48]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class QuietClient:
    """A client whose calls never raise. If it cannot be opened, nothing is submitted, and one
    warning says so."""

    def __init__(self, open_client: Callable[[], Client]) -> None:
        self._open_client = open_client
        self._client: Optional[Client] = None
        self._warned: Set[str] = set()
        self._ended_as_of = -math.inf
        self._asking: Optional[threading.Thread] = None

    def open(self) -> None:
        """Opens the client, which starts its thread. This does not connect to Redis."""
        try:
            if self._client is None:
                self._client = self._open_client()
        except Exception as error:  # Training continues without evalq.
            self._warn("open", "evalq is off for this training: %s", error)

    @property
    def run(self) -> str:
        """The run's name in the queue; "" while no client is open."""
        return self._client.run if self._client is not None else ""

    def submit(self, path: str, step: int, suites: Sequence[str], **options: Any) -> bool:
        """Submits in microseconds. False: the submit was refused, and the log says why."""
        try:
            return self._client is not None and self._client.submit(
                path, step=step, suites=list(suites), **options
            )
        except Exception as error:
            self._warn("submit", "step %d was not submitted: %s", step, error)
            return False

    def submit_state_dict(
        self, state: StateDict, step: int, suites: Sequence[str], **options: Any
    ) -> bool:
        """Waits for one copy to host memory. False: no copy was made."""
        try:
            return self._client is not None and self._client.submit_state_dict(
                state, step=step, suites=list(suites), **options
            )
        except Exception as error:
            self._warn("snapshot", "step %d was not submitted: %s", step, error)
            return False

    def reserve_state_dict(self, state: Mapping[str, Any]) -> None:
        """Allocates memory for such snapshots on another thread."""
        try:
            if self._client is not None:
                self._client.reserve_state_dict(state)
        except Exception as error:
            self._warn("reserve", "the first snapshot will take longer: %s", error)

    def drain(self) -> List[Result]:
        """The results since the last call."""
        try:
            if self._client is None or not self._client.run:
                return []  # Only submit() opens the client again; this call comes too often.
            return list(self._client.results())
        except Exception as error:
            self._warn("results", "results cannot be read: %s", error)
            return []

    def ended(self, seconds: float) -> bool:
        """Waits at most so long. True: all submits are in Redis, and no job of the run is open."""
        if self._client is None:
            return True
        try:
            return self._client.ended(seconds)
        except Exception as error:
            self._warn("wait", "cannot ask the queue: %s", error)
            time.sleep(min(0.2, seconds))
            return False

    def ended_since(self, moment: float) -> bool:
        """Whether ended() was true at some time after moment (monotonic). Another thread asks."""
        if self._ended_as_of >= moment:
            return True
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask_ended, name="evalq-ended", daemon=True)
            self._asking.start()
        return False

    def _ask_ended(self) -> None:
        began = time.monotonic()
        if self.ended(_ASK_SECONDS):
            self._ended_as_of = began

    @property
    def reachable(self) -> bool:
        """Whether Redis answered the last call."""
        try:
            return self._client is not None and self._client.stats().connected
        except Exception:
            return False

    @property
    def unsent(self) -> bool:
        """Whether submits are unsent, because Redis is away or no root contains them."""
        try:
            return self._client is not None and self._client.stats().pending > 0
        except Exception:
            return False

    def close(self) -> None:
        """Sends what is ready, within a second. Weights in shared memory stay until the process
        ends."""
        client = self._client
        if client is None:
            return
        try:
            if self._asking is not None:
                self._asking.join(_ASK_SECONDS + 1)
            if client.stats().snapshots == 0:
                self._client = None
                client.close()
        except Exception as error:
            self._warn("close", "close: %s", error)

    def _warn(self, what: str, text: str, *values: Any) -> None:
        log.log(logging.DEBUG if what in self._warned else logging.WARNING, text, *values)
        self._warned.add(what)
