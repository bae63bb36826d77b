"""A client seen from a trainer's hook: no call raises, none but ended() and close() waits."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Set

from ..client import Client, StateDict
from ..result import Result

log = logging.getLogger("evalq")


def default_run(output_dir: str) -> str:
    """$EVALQ_RUN, else the directory's name and a hash of host, real path and the moment: a directory that is
    used again is another run. A resumed run takes its name from its checkpoint."""
    given = os.environ.get("EVALQ_RUN")
    if given:
        return given
    path = os.path.realpath(output_dir)
    text = f"{socket.gethostname()}:{path}:{time.time_ns()}"
    base = os.path.basename(path) or "run"
    return f"{base[:48]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Feed:
    """open() may fail, now and later: then nothing is submitted, which is said once."""

    def __init__(self, open_client: Callable[[], Client]) -> None:
        self._open_client = open_client
        self._client: Optional[Client] = None
        self._said: Set[str] = set()
        self._ended_as_of = -math.inf
        self._asking: Optional[threading.Thread] = None

    def open(self) -> None:
        """Opens the client, which starts its thread; connects to nothing."""
        try:
            if self._client is None:
                self._client = self._open_client()
        except Exception as error:  # A guest: training goes on without it.
            self._say("open", "evalq is off for this training: %s", error)

    @property
    def run(self) -> str:
        """The run as the queue names it; "" while nothing is open."""
        return self._client.run if self._client is not None else ""

    def submit(self, path: str, step: int, suites: Sequence[str], **options: Any) -> bool:
        """Microseconds. False: it was refused, and the log says why."""
        try:
            return self._client is not None and self._client.submit(path, step=step, suites=list(suites), **options)
        except Exception as error:
            self._say("submit", "step %d was not submitted: %s", step, error)
            return False

    def submit_state_dict(self, state: StateDict, step: int, suites: Sequence[str], **options: Any) -> bool:
        """Holds this thread for one copy to host memory. False: nothing was taken."""
        try:
            return self._client is not None and self._client.submit_state_dict(
                state, step=step, suites=list(suites), **options
            )
        except Exception as error:
            self._say("snapshot", "step %d was not submitted: %s", step, error)
            return False

    def reserve_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has memory for such snapshots made ready, on another thread."""
        try:
            if self._client is not None:
                self._client.reserve_state_dict(state)
        except Exception as error:
            self._say("reserve", "the first snapshot will take longer: %s", error)

    def drain(self) -> List[Result]:
        """What arrived since the last call."""
        try:
            if self._client is None or not self._client.run:
                return []  # Not open: submits try again, this is asked too often.
            return list(self._client.results())
        except Exception as error:
            self._say("results", "results cannot be read: %s", error)
            return []

    def ended(self, seconds: float) -> bool:
        """Waits at most so long. True: all that was submitted is in Redis, and no job of the run is open."""
        if self._client is None:
            return True
        try:
            return self._client.ended(seconds)
        except Exception as error:
            self._say("wait", "cannot ask the queue: %s", error)
            time.sleep(min(0.2, seconds))
            return False

    def ended_since(self, moment: float) -> bool:
        """As ended(), asked on another thread: True once it was so at some time after moment (monotonic)."""
        if self._ended_as_of >= moment:
            return True
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask_ended, name="evalq-ended", daemon=True)
            self._asking.start()
        return False

    def _ask_ended(self) -> None:
        began = time.monotonic()
        if self.ended(1.0):
            self._ended_as_of = began

    @property
    def reachable(self) -> bool:
        """Whether Redis answered when last asked."""
        try:
            return self._client is not None and self._client.stats().connected
        except Exception:
            return False

    @property
    def unsent(self) -> bool:
        """Whether submits are still here, for want of Redis or of a root."""
        try:
            return self._client is not None and self._client.stats().pending > 0
        except Exception:
            return False

    def close(self) -> None:
        """Sends what is ready within a second. Weights in shared memory stay until the process ends."""
        client = self._client
        if client is None:
            return
        try:
            if client.stats().snapshots == 0:
                self._client = None
                client.close()
        except Exception as error:
            self._say("close", "close: %s", error)

    def _say(self, what: str, text: str, *values: Any) -> None:
        log.log(logging.DEBUG if what in self._said else logging.WARNING, text, *values)
        self._said.add(what)
