"""Weights that are never saved: copied once to host memory on the training thread, written as safetensors into
shared memory and submitted by a thread of their own, removed when their jobs ended."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Mapping, Optional, Set, Tuple

from . import _library
from ._idle_requests import IdleRequest, IdleRequests
from ._arguments import sentence
from ._library import EvalqError
from ._state_copy import StateCopier, StateCopy, plan, write

if TYPE_CHECKING:
    from ._handle import Handle, Submit
    from .result import Result

_POLL_MS = 1000
_WAITING_BYTES = 256 << 20  # Of copies of one curve that wait for the writer, where each is wanted.
_LOOK_SECONDS = 0.25
_LOOK_IDLE_SECONDS = 2.0
_QUIET_SECONDS = 2.0  # Between questions whether anything of the run is open,
_QUIET_MS = 250  # each for so long.
_ASK_SECONDS = 0.1  # Between questions for free workers,
_ASK_IDLE_SECONDS = 0.5  # and while they are at work.
_CLOSE_SECONDS = 10.0
_ABANDONED_SECONDS = 3600.0  # Snapshots of a dead trainer may still be read for so long.
_LOCK = ".lock"


@dataclass
class _Snapshot:
    submit: "Submit"
    copy: Optional[StateCopy]
    ask: Optional[IdleRequest] = None  # Made because a worker asked.
    path: str = ""
    open_jobs: Dict[str, Optional[str]] = field(default_factory=dict)  # By suite: the id, once the queue has told it.
    ends: Set[str] = field(default_factory=set)  # Jobs of the step that ended since,
    since_ms: int = 0  # by the queue's clock, where those that ended before have not been read.


def default_directory() -> str:
    """The directory behind the built-in root "shm"."""
    return f"/dev/shm/evalq-{os.getuid()}"


class Snapshots:
    """The snapshots of one client. put() is the training thread's; everything else happens on a thread of its own."""

    def __init__(
        self,
        *,
        open_handle: "Callable[[], Handle]",
        limit: int,
        submitted: "Callable[[Submit, Optional[str]], None]",
        log: Optional[logging.Logger],
        directory: Optional[str] = None,
    ) -> None:
        self._open_handle = open_handle
        self._limit = limit
        self._submitted = submitted
        self._log = log
        self._root = directory or default_directory()
        self._directory = ""
        self._lock_fd = -1
        self._handle: "Optional[Handle]" = None
        self._copier = StateCopier()
        self.asks = IdleRequests()
        self._reserve: List[Tuple[int, bool]] = []  # Memory that is to be made ready.
        self._condition = threading.Condition()
        self._waiting: Deque[_Snapshot] = deque()  # Copied, not written yet.
        self._kept: List[_Snapshot] = []  # Written, oldest first.
        self._busy = False
        self._closing = False
        self._thread: Optional[threading.Thread] = None
        self._warned = False
        self._quiet_at = 0.0
        self.dropped = 0

    @property
    def reserved(self) -> int:
        """Bytes of memory that are ready for the next copy."""
        return self._copier.reserved

    @property
    def held(self) -> int:
        with self._condition:
            return len(self._kept)

    def stats(self) -> List[_library.StatsView]:
        handle = self._handle
        return [handle.stats()] if handle is not None else []

    # -- the training thread

    def put(
        self,
        state_dict: Mapping[str, Any],
        submit: "Submit",
        metadata: Optional[Mapping[str, str]],
        ask: Optional[IdleRequest] = None,
    ) -> None:
        """Copies the tensors; a copy of the same curve that the writer has not begun with is replaced, unless each is
        wanted (policy "all") and they are small."""
        planned = plan(state_dict)
        with self._condition:
            self._make_way(submit, planned.data_bytes)
        copy = self._copier.copy(planned, metadata)
        try:
            with self._condition:
                self._make_way(submit, planned.data_bytes)  # Other threads copied meanwhile.
                self._waiting.append(_Snapshot(submit, copy, ask))
                self._start()
        except EvalqError:
            copy.wait()
            self._copier.give(copy)
            raise

    def _make_way(self, submit: "Submit", size: int) -> None:
        """Drops what waits for the writer and is superseded, or has no room beside the new one; the condition is held."""
        if self._closing:
            raise EvalqError("the client is closed")
        curve = (submit.variant, submit.suites)
        same = [one for one in self._waiting if (one.submit.variant, one.submit.suites) == curve]
        waiting = sum(one.copy.data_bytes for one in self._waiting if one.copy is not None)
        if submit.policy == "all" and waiting + size <= _WAITING_BYTES:
            same = []
        newer = [one.submit.step for one in same if one.submit.step > submit.step]
        if newer:  # Another thread was ahead.
            raise EvalqError(f"the weights of step {max(newer)} came before they were taken")
        if not same and len(self._waiting) >= self._limit:
            same = [self._waiting[0]]
        for one in same:  # Writing is slower than training: the new one needs its memory.
            self._waiting.remove(one)
            self._drop(one, f"step {submit.step} came before it was written")

    def forget(self) -> None:
        """In a forked child: what lies in shared memory is the parent's, and so is its lock, which would outlive it here."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def reserve(self, state_dict: Mapping[str, Any]) -> None:
        """Has the memory of a copy made ready by the thread."""
        planned = plan(state_dict)
        with self._condition:
            self._reserve.append((planned.data_bytes, planned.on_gpu))
            self._start()

    def ask(self, suites: str, needs: str) -> IdleRequest:
        """Begins to ask for workers that are free for the suites."""
        with self._condition:
            ask = self.asks.add((suites, needs))
            self._start()
            return ask

    def _start(self) -> None:
        """Has the thread look; the condition is held."""
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._work, name="evalq-snapshots", daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def flush(self, deadline: float) -> bool:
        """Until every copy is written, submitted and in Redis."""
        with self._condition:
            while self._waiting or self._busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(min(left, 0.5))
            handle = self._handle
        while handle is not None:
            left = deadline - time.monotonic()
            code = handle.flush(max(0, int(min(200.0, left * 1000))))
            if code == _library.OK:
                break
            if left <= 0:
                return False
        return True

    @property
    def rootless(self) -> int:
        """How many jobs wait for a root of the configuration; asked after flush()."""
        handle = self._handle
        return int(handle.stats().pending) if handle is not None and handle.flush(0) == _library.OK else 0

    @property
    def root(self) -> str:
        """The directory that the configuration must have as a root."""
        return self._root

    def close(self) -> None:
        """Writes and sends what was copied, then removes every snapshot: shared memory outlives the process."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
        with self._condition:
            for snapshot in self._kept:
                if snapshot.open_jobs:
                    self._say(
                        "step %d: the trainer ended before its state dict was evaluated; wait() keeps it",
                        snapshot.submit.step,
                    )
            self._kept.clear()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = -1
            self._directory = ""

    # -- the thread

    def _work(self) -> None:
        pause = _LOOK_SECONDS
        while True:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
                if not self._waiting and not self._reserve and not self._closing:
                    self._condition.wait(self._pause(pause))
                leaving = self._closing and not self._waiting
                snapshot = self._waiting.popleft() if self._waiting else None
                reserve, self._reserve = self._reserve, []
                self._busy = snapshot is not None
            try:
                for size, on_gpu in reserve if snapshot is None and not leaving else ():
                    self._copier.reserve(size, on_gpu)
                if snapshot is not None:
                    self._store(snapshot)
                    pause = _LOOK_SECONDS
                else:
                    if not leaving:
                        self._look_whether_quiet()
                    found = self._release()
                    found = (not leaving and self._ask_workers()) or found
                    pause = _LOOK_SECONDS if found else min(pause * 1.3, _LOOK_IDLE_SECONDS)
            except Exception as error:  # Nothing here may end the thread: training goes on.
                if snapshot is not None:
                    self._drop(snapshot, sentence(error))
            if leaving:
                return

    def _pause(self, pause: float) -> Optional[float]:
        """Until the next look at what is kept, and for free workers; None: there is neither."""
        if self.asks.waiting:
            return min(max(_ASK_SECONDS, pause - _LOOK_SECONDS), _ASK_IDLE_SECONDS)
        return pause if self._kept else None

    def _ask_workers(self) -> bool:
        """Asks for idle workers after the last snapshot reached the queue. Returns whether any worker is idle."""
        if not self.asks.waiting:
            return False
        handle = self._opened()
        return self.asks.look(lambda suites, needs: handle.idle(suites, needs, _POLL_MS))

    def _opened(self) -> "Handle":
        if self._handle is None:
            self._handle = self._open_handle()
        return self._handle

    def _store(self, snapshot: _Snapshot) -> None:
        copy = snapshot.copy
        assert copy is not None
        handle = self._opened()
        self._release()
        if len(self._kept) >= self._limit:
            self._make_room(snapshot.submit)
        self._make_directory()
        submit = snapshot.submit
        variant = re.sub(r"[^A-Za-z0-9._-]", "-", submit.variant)[:32]
        path = os.path.join(self._directory, f"{submit.step}-{variant}-{time.time_ns():x}.safetensors")
        copy.wait()
        write(path, copy)
        self._copier.give(copy)
        snapshot.copy = None
        snapshot.path = path
        snapshot.open_jobs = {suite.strip(): None for suite in submit.suites.split(",") if suite.strip()}
        snapshot.since_ms = 0 if self._read_ends(handle) else time.time_ns() // 1_000_000
        code = handle.submit(path, submit)
        if code != _library.OK:
            failure = handle.failure(code)
            os.unlink(path)
            raise failure
        with self._condition:
            self._kept.append(snapshot)
        self._submitted(submit, None)

    def _make_directory(self) -> None:
        if self._directory:
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._root, 0o700)
        info = os.stat(self._root)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise EvalqError(f"'{self._root}' is not this user's alone: remove it, or name another as root shm")
        self._sweep()
        directory = os.path.join(self._root, f"snapshots-{os.getpid()}-{time.time_ns():x}")
        os.mkdir(directory, 0o700)
        self._lock_fd = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        self._directory = directory

    def _sweep(self) -> None:
        """Removes what trainers left that died without a word, once nobody can be reading it any more."""
        for entry in os.listdir(self._root):
            directory = os.path.join(self._root, entry)
            if not entry.startswith("snapshots-"):
                continue
            with contextlib.suppress(OSError):
                if time.time() - os.stat(directory).st_mtime < _ABANDONED_SECONDS:
                    continue
                fd = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # A locked file belongs to a living trainer.
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    os.close(fd)

    def _release(self) -> bool:
        """Removes the snapshots whose jobs have all ended. Whether any was."""
        handle = self._handle
        if handle is None or not self._kept:
            return False
        self._settle_asks(handle)
        handle.poll(self._ended, _POLL_MS)
        self._settle_jobs(handle)
        done = [snapshot for snapshot in self._kept if not snapshot.open_jobs]
        for snapshot in done:
            self._remove(snapshot)
        return bool(done)

    def _settle_jobs(self, handle: "Handle") -> None:
        """A snapshot is its own jobs': weights of the step that were submitted before or since may have others."""
        for snapshot in self._kept:
            for suite, job in list(snapshot.open_jobs.items()):
                if job is None:
                    job = snapshot.open_jobs[suite] = handle.job(snapshot.path, suite)
                if job == "" or job in snapshot.ends:
                    del snapshot.open_jobs[suite]

    def _settle_asks(self, handle: "Handle") -> None:
        """Workers are asked again when what they asked for is in Redis: claimed, it is no longer a mark of theirs."""
        asked = [snapshot for snapshot in self._kept if snapshot.ask is not None]
        if asked and handle.stats().pending == 0:
            for snapshot in asked:
                self._answer(snapshot)

    def _answer(self, snapshot: _Snapshot) -> None:
        ask, snapshot.ask = snapshot.ask, None
        if ask is not None:
            ask.settle()

    def _read_ends(self, handle: "Handle") -> bool:
        """Ends that are there already: those that come later are of what is submitted next. Whether all were read."""
        found: List["Result"] = []

        def take(result: "Result") -> None:
            found.append(result)
            self._ended(result)

        while handle.poll(take, _POLL_MS) == _library.OK:
            if not found:
                return True
            found.clear()
        return False

    def _look_whether_quiet(self) -> None:
        """Of weights that were evaluated before no end comes again: nothing of the run is open then."""
        handle = self._handle
        if handle is not None and self._kept and not self.asks.waiting and time.monotonic() >= self._quiet_at:
            if handle.wait(self._ended, _QUIET_MS) == _library.OK:
                for snapshot in self._kept:
                    snapshot.open_jobs.clear()
            self._quiet_at = time.monotonic() + _QUIET_SECONDS

    def _ended(self, result: "Result") -> None:
        if not result.is_end:
            return
        for snapshot in self._kept:
            if snapshot.submit.step == result.step and result.finished_ms >= snapshot.since_ms:
                snapshot.ends.add(result.job)

    def _remove(self, snapshot: _Snapshot) -> None:
        with contextlib.suppress(OSError):
            os.unlink(snapshot.path)
        with self._condition:
            if snapshot in self._kept:
                self._kept.remove(snapshot)

    def _make_room(self, newer: "Submit") -> None:
        """Drops the oldest that no worker has begun; EvalqError when there is none."""
        handle = self._handle
        assert handle is not None
        reason = f"dropped from memory for step {newer.step}"
        for snapshot in list(self._kept):
            submit = snapshot.submit
            if submit.keep:
                continue
            for suite in sorted(snapshot.open_jobs):
                job = snapshot.open_jobs[suite]
                code = handle.withdraw_job(job, reason, _POLL_MS) if job else _library.NOT_FOUND
                if code == _library.OK:
                    del snapshot.open_jobs[suite]
                elif code not in (_library.BUSY, _library.NOT_FOUND):
                    raise EvalqError(f"{self._limit} snapshots wait already, and {handle.failure(code)}", code)
            if not snapshot.open_jobs:
                self._remove(snapshot)
                self._drop(snapshot, f"step {newer.step} needs its room")
                return
        raise EvalqError(f"the {self._limit} snapshots that are allowed are being evaluated, or kept")

    def _drop(self, snapshot: _Snapshot, reason: str) -> None:
        self.dropped += 1
        copy, snapshot.copy = snapshot.copy, None
        if copy is not None:
            copy.wait()
            self._copier.give(copy)
        self._answer(snapshot)
        self._say("step %d: the snapshot was dropped: %s", snapshot.submit.step, reason)

    def _say(self, text: str, *arguments: Any) -> None:
        if self._log is not None:
            self._log.warning(text, *arguments)
