"""Watches the server while a harness runs on the main thread. Reports the progress, and interrupts
the harness if the server fails."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from typing import Any, Callable, Optional, Tuple, Type

from .http import ServerError
from .servers import Server, log

TICK_SECONDS = 0.5
LOG_SECONDS = 10.0  # Time between two lines of progress in the log.
_HEALTH_TRIES = 3


class ServerLost(BaseException):
    """The server failed. It is raised on the main thread, in the middle of the harness. It is not
    an Exception, so that the harness's `except Exception` does not catch it."""


class Progress:
    """The progress of the harness, which may call this object from any thread."""

    def __init__(self) -> None:
        self.done = 0
        self.total = -1
        #: Generated tokens, as the answers count them. Used only if the server has no counters.
        self.tokens = 0

    def __call__(self, done: int, total: int = -1, tokens: int = 0) -> None:
        self.done, self.total = done, total
        self.tokens += tokens

    def words(self) -> str:
        return f"evaluating {self.done} of {self.total}" if self.total > 0 else "evaluating"


class Watch:
    """Use it as a context manager around the harness: `with Watch(...): ...`. If
    report(done, total, words) raises, the evaluation is cancelled."""

    def __init__(
        self,
        server: Server,
        progress: Progress,
        report: Callable[[int, int, str], None],
        hang_seconds: float,
    ) -> None:
        self._server = server
        self._progress = progress
        self._report = report
        self._hang_seconds = hang_seconds
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._inside = False
        self._main = threading.get_ident()
        self.reason = ""  #: Why the server failed; "" while it works.
        self.tokens = 0.0  #: Tokens that were generated since the harness began.
        # Requests and tokens at the last reading of the counters.
        self._counters: Optional[Tuple[float, float]] = None
        self._moved_at = self._asked_at = self._logged_at = 0.0
        self._thread = threading.Thread(target=self._run, name="evalq-watch", daemon=True)

    def __enter__(self) -> "Watch":
        # This signal ends a system call of the main thread.
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        self._inside = True
        self._moved_at = self._asked_at = time.monotonic()
        self._count()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()  # This comes first, so that the thread ends even if a line below raises.
        with self._lock:
            self._inside = False
        self._thread.join()
        self._count()

    def _run(self) -> None:
        failed_checks = 0
        while not self._stop.wait(TICK_SECONDS):
            try:
                self._report(self._progress.done, self._progress.total, self._words())
            except BaseException as error:
                # The job was cancelled. This repeats, because a callback of asyncio may swallow the
                # exception.
                self._raise(type(error))
                continue
            ended = self._server.process.ended() if self._server.process else "is gone"
            if ended:
                self._lose(
                    f"{self._server.name} {ended}:"
                    f" {self._server.process.last_lines() if self._server.process else ''}"
                )
                continue
            failed_checks = 0 if self._server.healthy() else failed_checks + 1
            stuck = time.monotonic() - self._moved_at > self._hang_seconds
            if failed_checks >= _HEALTH_TRIES or stuck:
                self._lose(
                    f"{self._server.name} "
                    + (
                        f"made no token within {self._hang_seconds:g} s"
                        if stuck
                        else "does not answer /health"
                    )
                )

    def _words(self) -> str:
        rate = self._count()
        words = self._progress.words() + (f", {rate:.0f} tokens/s" if rate >= 0 else "")
        now = time.monotonic()
        if rate > 0 and now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log(words)
        return words

    def _count(self) -> float:
        """Reads the server's counters. Returns the tokens per second since the last call, -1 if
        they are unknown."""
        try:
            requests, tokens, running = self._server.counters()
        except ServerError:
            return -1.0
        now, before = time.monotonic(), self._counters
        # A server without counters: only the suite's time limit ends a hang.
        silent = requests < 0
        if silent:
            requests, tokens = float(self._progress.done), float(self._progress.tokens)
        made = tokens - before[1] if before else 0.0
        rate = made / max(now - self._asked_at, 1e-3)
        if silent or (requests, tokens) != before or running <= 0:
            self._moved_at = now
        self.tokens += made
        self._counters, self._asked_at = (requests, tokens), now
        return -1.0 if silent and tokens == 0 else rate

    def _lose(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            log(reason)
            process = self._server.process
            if process is not None:
                process.kill_now()  # The requests of the harness then fail.
        self._raise(ServerLost)

    def _raise(self, kind: Type[BaseException]) -> None:
        with self._lock:
            if not self._inside or self._stop.is_set():
                return
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._main), ctypes.py_object(kind)
            )
            signal.pthread_kill(self._main, signal.SIGUSR1)
