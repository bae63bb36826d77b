"""Snapshots: weights that a training submits without saving them.

The training thread copies the weights once, to host memory. A background thread writes the copy as
a safetensors file into shared memory, submits the file, and removes it when its jobs have ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Mapping, Optional, Set, Tuple

from .. import _library
from .._arguments import sentence
from .._library import EvalqError
from .directory import SnapshotDirectory, default_root
from .idle_requests import IdleRequest, IdleRequests
from .state_copy import StateCopier, StateCopy, plan_layout, write_file

if TYPE_CHECKING:
    from .._c_client import Handle, Submit
    from ..result import Result

_CALL_MS = 1000  # The time limit of one call to libevalq.
_UNWRITTEN_BYTES_MAX = 256 << 20  # With policy "all", unwritten copies may use so much memory.
_CHECK_SECONDS = 0.25  # Between two checks for ended jobs. It grows to the next value
_CHECK_IDLE_SECONDS = 2.0  # while no job ends.
_RUN_CHECK_SECONDS = 2.0  # Between two checks whether the run has an open job. Each check
_RUN_CHECK_MS = 250  # takes at most so long.
_REQUEST_SECONDS = 0.1  # Between two checks for idle workers. It grows to the next value
_REQUEST_BUSY_SECONDS = 0.5  # while all workers are busy.
_CLOSE_SECONDS = 10.0


@dataclass
class _Snapshot:
    """One state dict, from its copy until its jobs have ended."""

    submit: "Submit"
    copy: Optional[StateCopy]  # None after the file was written.
    request: Optional[IdleRequest] = None  # The idle worker's request that this snapshot answers.
    path: str = ""
    open_jobs: Dict[str, Optional[str]] = field(default_factory=dict)  # Suite -> job id, if known.
    ended_jobs: Set[str] = field(default_factory=set)  # Jobs of the step that ended after submit.
    ends_since_ms: int = 0  # Ends before this time (unix ms) belong to earlier jobs.


class SnapshotStore:
    """The snapshots of one client. Any thread may call it; a thread of its own writes and submits.

    open_handle   Opens the libevalq client that submits the snapshots.
    limit         How many files may be in shared memory at the same time.
    on_submitted  Called by the background thread after each submit.
    log           Gets a warning for each dropped snapshot; None: nobody does.
    directory     Where the files are; None: the directory of the built-in root "shm".
    """

    def __init__(
        self,
        *,
        open_handle: "Callable[[], Handle]",
        limit: int,
        on_submitted: "Callable[[Submit, Optional[str]], None]",
        log: Optional[logging.Logger],
        directory: Optional[str] = None,
    ) -> None:
        self._open_handle = open_handle
        self._limit = limit
        self._on_submitted = on_submitted
        self._log = log
        self._directory = SnapshotDirectory(directory or default_root())
        self._handle: "Optional[Handle]" = None
        self._copier = StateCopier()
        self.requests = IdleRequests()
        self.dropped = 0
        # The condition guards the following fields.
        self._condition = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._unwritten: Deque[_Snapshot] = deque()
        self._writing = False
        self._submitted: List[_Snapshot] = []  # The oldest comes first.
        self._to_reserve: List[Tuple[int, bool]] = []  # Size in bytes, and whether it is pinned.
        self._closing = False
        self._next_run_check = 0.0  # Only the background thread uses it.

    # -- what the training thread calls

    def put(
        self,
        state_dict: Mapping[str, Any],
        submit: "Submit",
        metadata: Optional[Mapping[str, str]],
        request: Optional[IdleRequest] = None,
    ) -> None:
        """Copies the tensors, and returns; the caller may then change them.

        It replaces an unwritten copy of the same suites and variant. With policy "all", it does
        so only if memory is short. EvalqError: the weights cannot be submitted, or a newer step was
        submitted already.
        """
        layout = plan_layout(state_dict)
        with self._condition:
            self._drop_superseded(submit, layout.data_bytes)
        copy = self._copier.copy(layout, metadata)
        try:
            with self._condition:
                self._drop_superseded(submit, layout.data_bytes)  # Other threads may have copied.
                self._unwritten.append(_Snapshot(submit, copy, request))
                self._wake_thread()
        except EvalqError:
            copy.wait()
            self._copier.give(copy)
            raise

    def reserve(self, state_dict: Mapping[str, Any]) -> None:
        """Has the background thread allocate the memory for a copy of such a state dict."""
        layout = plan_layout(state_dict)
        with self._condition:
            self._to_reserve.append((layout.data_bytes, layout.on_gpu))
            self._wake_thread()

    def add_request(self, suites: str, needs: str) -> IdleRequest:
        """Has the background thread ask for workers that are idle and serve one of the suites."""
        with self._condition:
            request = self.requests.add((suites, needs))
            self._wake_thread()
            return request

    def flush(self, deadline: float) -> bool:
        """Waits until every copy was written and submitted to Redis. False: the deadline passed."""
        with self._condition:
            while self._unwritten or self._writing:
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

    def close(self) -> None:
        """Writes and sends what was copied, then removes all snapshots from shared memory."""
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
            for snapshot in self._submitted:
                if snapshot.open_jobs:
                    self._warn(
                        "step %d: the training ended before its state dict was evaluated; wait()"
                        " keeps it until then",
                        snapshot.submit.step,
                    )
            self._submitted.clear()
        self._directory.remove()

    def abandon(self) -> None:
        """Call it in a forked child, which owns neither the files nor their lock."""
        self._directory.release_lock()

    @property
    def reserved(self) -> int:
        """How many bytes of memory are ready for the next copy."""
        return self._copier.reserved

    @property
    def in_memory(self) -> int:
        """How many snapshots are in shared memory."""
        with self._condition:
            return len(self._submitted)

    @property
    def root(self) -> str:
        """The directory that the configuration must have as a root."""
        return self._directory.root

    @property
    def without_root(self) -> int:
        """How many submits wait because no root contains them. Call flush() before."""
        handle = self._handle
        if handle is None or handle.flush(0) != _library.OK:
            return 0
        return int(handle.stats().pending)

    def stats(self) -> List[_library.StatsView]:
        """The statistics of the store's libevalq client; [] before the first snapshot."""
        handle = self._handle
        return [handle.stats()] if handle is not None else []

    def _drop_superseded(self, submit: "Submit", size: int) -> None:
        """Drops the unwritten copies that the new submit replaces, or whose memory it needs. The
        caller holds the condition."""
        if self._closing:
            raise EvalqError("the client is closed")
        curve = (submit.variant, submit.suites)
        older = [
            waiting
            for waiting in self._unwritten
            if (waiting.submit.variant, waiting.submit.suites) == curve
        ]
        copies = [one.copy for one in self._unwritten]
        unwritten_bytes = sum(copy.data_bytes for copy in copies if copy is not None)
        if submit.policy == "all" and unwritten_bytes + size <= _UNWRITTEN_BYTES_MAX:
            older = []
        newest = max((one.submit.step for one in older), default=submit.step)
        if newest > submit.step:  # Another thread was faster.
            raise EvalqError(f"the weights of step {newest} were submitted first")
        if not older and len(self._unwritten) >= self._limit:
            older = [self._unwritten[0]]
        for snapshot in older:
            self._unwritten.remove(snapshot)
            self._drop(snapshot, f"step {submit.step} was submitted before it was written")

    def _wake_thread(self) -> None:
        """Starts the background thread, or wakes it. The caller holds the condition."""
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="evalq-snapshots", daemon=True)
            self._thread.start()
        self._condition.notify_all()

    # -- the background thread

    def _run(self) -> None:
        pause = _CHECK_SECONDS
        while True:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
                if not self._unwritten and not self._to_reserve and not self._closing:
                    self._condition.wait(self._next_pause(pause))
                last = self._closing and not self._unwritten
                snapshot = self._unwritten.popleft() if self._unwritten else None
                to_reserve, self._to_reserve = self._to_reserve, []
                self._writing = snapshot is not None
            try:
                if snapshot is not None:
                    self._store(snapshot)
                    pause = _CHECK_SECONDS
                else:
                    found = self._check(to_reserve, last)
                    pause = _CHECK_SECONDS if found else min(pause * 1.3, _CHECK_IDLE_SECONDS)
            except Exception as error:  # No error may end this thread.
                if snapshot is not None:
                    self._drop(snapshot, sentence(error))
            if last:
                return

    def _next_pause(self, pause: float) -> Optional[float]:
        """Seconds until the next check. None: there is nothing to check until somebody calls."""
        if self.requests.waiting:
            return min(max(_REQUEST_SECONDS, pause - _CHECK_SECONDS), _REQUEST_BUSY_SECONDS)
        return pause if self._submitted else None

    def _check(self, to_reserve: List[Tuple[int, bool]], last: bool) -> bool:
        """Does what is due while no copy waits. Returns whether a job ended or a worker is idle."""
        if not last:
            for size, pinned in to_reserve:
                self._copier.reserve(size, pinned)
            self._check_run()
        found = self._remove_ended()
        return (not last and self._check_workers()) or found

    def _check_workers(self) -> bool:
        """Asks for idle workers. Returns whether any worker is idle."""
        if not self.requests.waiting:
            return False
        handle = self._opened()
        return self.requests.ask(lambda suites, needs: handle.idle(suites, needs, _CALL_MS))

    def _opened(self) -> "Handle":
        if self._handle is None:
            self._handle = self._open_handle()
        return self._handle

    def _store(self, snapshot: _Snapshot) -> None:
        """Writes the file and submits it."""
        copy = snapshot.copy
        assert copy is not None
        handle = self._opened()
        self._remove_ended()
        if len(self._submitted) >= self._limit:
            self._withdraw_oldest(snapshot.submit.step)
        self._directory.create()
        submit = snapshot.submit
        variant = re.sub(r"[^A-Za-z0-9._-]", "-", submit.variant)[:32]
        name = f"{submit.step}-{variant}-{time.time_ns():x}.safetensors"
        path = os.path.join(self._directory.path, name)
        copy.wait()
        write_file(path, copy)
        self._copier.give(copy)
        snapshot.copy = None
        snapshot.path = path
        suites = [suite.strip() for suite in submit.suites.split(",")]
        snapshot.open_jobs = {suite: None for suite in suites if suite}
        if not self._read_earlier_ends(handle):
            snapshot.ends_since_ms = time.time_ns() // 1_000_000
        code = handle.submit(path, submit)
        if code != _library.OK:
            failure = handle.failure(code)
            os.unlink(path)
            raise failure
        with self._condition:
            self._submitted.append(snapshot)
        self._on_submitted(submit, None)

    def _read_earlier_ends(self, handle: "Handle") -> bool:
        """Reads all ends that arrived before a submit, so that the ends that arrive later belong to
        the new job. Returns whether all were read."""
        ends: List["Result"] = []

        def take(result: "Result") -> None:
            ends.append(result)
            self._take_end(result)

        while handle.poll(take, _CALL_MS) == _library.OK:
            if not ends:
                return True
            ends.clear()
        return False

    def _take_end(self, result: "Result") -> None:
        """Notes an ended job at the snapshots of its step."""
        if not result.is_end:
            return
        for snapshot in self._submitted:
            same_step = snapshot.submit.step == result.step
            if same_step and result.finished_ms >= snapshot.ends_since_ms:
                snapshot.ended_jobs.add(result.job)

    def _check_run(self) -> None:
        """Closes all jobs if no job of the run is open. A job that was evaluated by an earlier
        session of the run publishes no second end, so nothing else would release its snapshot."""
        handle = self._handle
        if handle is None or not self._submitted or self.requests.waiting:
            return
        if time.monotonic() >= self._next_run_check:
            if handle.wait(self._take_end, _RUN_CHECK_MS) == _library.OK:
                for snapshot in self._submitted:
                    snapshot.open_jobs.clear()
            self._next_run_check = time.monotonic() + _RUN_CHECK_SECONDS

    def _remove_ended(self) -> bool:
        """Removes the snapshots whose jobs have all ended. Returns whether there were any."""
        handle = self._handle
        if handle is None or not self._submitted:
            return False
        self._close_sent_requests(handle)
        handle.poll(self._take_end, _CALL_MS)
        self._close_ended_jobs(handle)
        ended = [snapshot for snapshot in self._submitted if not snapshot.open_jobs]
        for snapshot in ended:
            self._remove(snapshot)
        return bool(ended)

    def _close_ended_jobs(self, handle: "Handle") -> None:
        """Compares job ids, because other weights of the same step are other jobs."""
        for snapshot in self._submitted:
            for suite, job in list(snapshot.open_jobs.items()):
                if job is None:
                    job = snapshot.open_jobs[suite] = handle.job(snapshot.path, suite)
                if job == "" or job in snapshot.ended_jobs:
                    del snapshot.open_jobs[suite]

    def _close_sent_requests(self, handle: "Handle") -> None:
        """Lets idle workers ask again after the submits that answered them have reached Redis."""
        answers = [snapshot for snapshot in self._submitted if snapshot.request is not None]
        if answers and handle.stats().pending == 0:
            for snapshot in answers:
                self._close_request(snapshot)

    @staticmethod
    def _close_request(snapshot: _Snapshot) -> None:
        request, snapshot.request = snapshot.request, None
        if request is not None:
            request.close()

    def _remove(self, snapshot: _Snapshot) -> None:
        with contextlib.suppress(OSError):
            os.unlink(snapshot.path)
        with self._condition:
            if snapshot in self._submitted:
                self._submitted.remove(snapshot)

    def _withdraw_oldest(self, newer_step: int) -> None:
        """Drops the oldest snapshot that no worker evaluates. EvalqError: there is none."""
        handle = self._handle
        assert handle is not None
        reason = f"dropped from memory for step {newer_step}"
        for snapshot in list(self._submitted):
            if snapshot.submit.keep:
                continue
            for suite in sorted(snapshot.open_jobs):
                job = snapshot.open_jobs[suite]
                code = handle.withdraw_job(job, reason, _CALL_MS) if job else _library.NOT_FOUND
                if code == _library.OK:
                    del snapshot.open_jobs[suite]
                elif code not in (_library.BUSY, _library.NOT_FOUND):
                    failure = handle.failure(code)
                    raise EvalqError(f"{self._limit} snapshots wait already, and {failure}", code)
            if not snapshot.open_jobs:
                self._remove(snapshot)
                self._drop(snapshot, f"step {newer_step} needs its place")
                return
        raise EvalqError(
            f"all {self._limit} snapshots that are allowed are being evaluated, or must be kept"
        )

    def _drop(self, snapshot: _Snapshot, reason: str) -> None:
        self.dropped += 1
        copy, snapshot.copy = snapshot.copy, None
        if copy is not None:
            copy.wait()
            self._copier.give(copy)
        self._close_request(snapshot)
        self._warn("step %d: the snapshot was dropped: %s", snapshot.submit.step, reason)

    def _warn(self, text: str, *arguments: Any) -> None:
        if self._log is not None:
            self._log.warning(text, *arguments)
