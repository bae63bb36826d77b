"""The state of an open Client from its opening to its close, also across fork().

It owns the handle of libevalq, the snapshots and the reader of results. Errors become log lines.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Type, TypeVar, Union

from . import _arguments, _library
from ._c_client import Handle, Needs, Submit, Suites, needs_text
from ._library import EvalqError
from ._result_reader import ResultReader

if TYPE_CHECKING:
    from ._snapshots.idle_requests import IdleRequest
    from ._snapshots.store import SnapshotStore

StateDict = Union[Mapping[str, Any], Callable[[], Mapping[str, Any]]]
Session = TypeVar("Session", bound="ClientSession")


class ClientSession:
    """The base of Client. Opens at the first use; a forked child opens its own."""

    _handle: Optional[Handle]
    _snapshots: "Optional[SnapshotStore]"
    _refusals: int
    _last_refusal: str

    def __init__(self, options: Dict[str, Any], log: Union[bool, logging.Logger]) -> None:
        self._options = options
        self._refused: Optional[str] = None  # The error in the arguments; then no call works.
        self._raise_errors = False
        self._snapshot_limit = 1
        self._snapshot_directory: Optional[str] = None
        self._log: Optional[logging.Logger] = None
        if log is not False:
            self._log = log if isinstance(log, logging.Logger) else logging.getLogger("evalq")
        self._reset()
        _clients.add(self)

    @property
    def run(self) -> str:
        """The run's name as the queue has it; "" when the client could not be opened."""
        return self._handle.run() if self._handle is not None else ""

    def close(self) -> None:
        """Waits until everything that is ready was sent, at most ``close_seconds``, then stops. A
        warning says how many submits are left. They stay on disk for the next client of the run, or
        for ``evalq scan``. Snapshots that nobody claimed are dropped."""
        self._closed = True
        self._results.stop()
        with self._lock:
            handle, self._handle = self._handle, None
            snapshots, self._snapshots = self._snapshots, None
        if snapshots is not None:
            snapshots.close()
        if handle is not None:
            handle.close()
        self._results.log()
        refused, self._refusals = self._refusals, 0
        if refused and self._log is not None:  # The first warning may be days old.
            text = "%d of the submits were not accepted; the last: %s"
            self._log.warning(text, refused, self._last_refusal)

    def __deepcopy__(self: Session, memo: Any) -> Session:
        """Returns itself, so that a model that holds a client can be copied. Averages of weights do
        that."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "an evalq.Client cannot be pickled: open one in each process, with the same run"
        )

    def __copy__(self: Session) -> Session:
        return self

    def __enter__(self: Session) -> Session:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _reset(self) -> None:
        """Sets the state of a client with nothing open."""
        self._lock = threading.RLock()
        self._closed = False
        self._handle = None
        self._snapshots = None
        self._results = ResultReader(self._log)
        self._last_failure = ""
        self._refusals = 0  # Submits that were not taken.
        self._last_refusal = ""

    def _forked(self) -> None:
        """Runs in a forked child: everything belongs to the parent, and its locks may never be
        released."""
        snapshots = self._snapshots
        self._reset()
        if snapshots is not None:
            snapshots.abandon()

    def _open(self) -> Handle:
        handle = self._handle
        if handle is not None:
            return handle
        with self._lock:
            if self._closed:
                raise EvalqError("the client is closed")
            if self._refused is not None:
                raise EvalqError(self._refused)
            if self._handle is None:
                self._handle = self._open_handle({})
            return self._handle

    def _open_handle(self, changes: Mapping[str, Any]) -> Handle:
        """A libevalq client whose warnings become log lines."""
        options = dict(self._options, **changes)
        if self._log is None:
            return Handle(dict(options, quiet=1))
        read_fd, write_fd = os.pipe()
        try:
            handle = Handle(dict(options, log_path=f"/proc/self/fd/{write_fd}"))
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)  # libevalq has its own descriptor, and its close ends the pipe.
        threading.Thread(
            target=_log_warnings, args=(read_fd, self._log), name="evalq-warnings", daemon=True
        ).start()
        return handle

    def _idle_request(
        self, when: str, state_dict: StateDict, suites: Suites, needs: Optional[Needs]
    ) -> "Optional[IdleRequest]":
        """The open request of an idle worker; None: there is none. The first call starts asking the
        workers."""
        if when != "idle":
            raise EvalqError(f"when is {_arguments.shown(when)}, expected now or idle")
        key = (_arguments.names("suites", suites), needs_text(needs) or "")
        snapshots = self._snapshots
        request = snapshots.requests.find(key) if snapshots is not None else None
        if request is None:
            self._open()
            self._snapshot_store().add_request(*key)
            if not callable(state_dict):
                self._snapshot_store().reserve(state_dict)
            return None
        return request if request.suites is not None else None

    def _snapshot_store(self) -> "SnapshotStore":
        with self._lock:
            if self._snapshots is None:
                from ._snapshots.store import SnapshotStore

                self._snapshots = SnapshotStore(
                    open_handle=lambda: self._open_handle({"pin_disabled": 1, "run": self.run}),
                    limit=self._snapshot_limit,
                    on_submitted=self._submitted,
                    log=self._log,
                    directory=self._snapshot_directory,
                )
            return self._snapshots

    @staticmethod
    def _all_rooted(snapshots: "SnapshotStore") -> bool:
        """Returns True, or raises EvalqError if no root contains a snapshot; the main handle does
        not know these."""
        if snapshots.without_root > 0:
            raise EvalqError(
                f"no root contains {snapshots.without_root} of the snapshots; add to the"
                f" configuration: roots: {{shm: {snapshots.root}}}",
                _library.NOT_FOUND,
            )
        return True

    def _submitted(self, submit: Submit, path: Optional[str]) -> None:
        self._results.expect(submit.step, submit.variant, path)
        if self._log is not None:
            what = path if path is not None else "state dict"
            text = "step %d submitted (%s, %s): %s"
            self._log.info(text, submit.step, submit.suites, submit.variant, what)
        self._start_reader()

    def _start_reader(self) -> None:
        if not self._results.started:
            self._results.start(self._open())

    def _not_taken(self, error: Exception, step: object) -> bool:
        prefix = f"step {_arguments.shown(step)} was not submitted: "
        if not self._raise_errors:
            self._refusals += 1
            self._last_refusal = prefix + _arguments.sentence(error)
        return self._fail(error, prefix)

    def _fail(self, error: Exception, prefix: str = "") -> bool:
        if self._raise_errors:
            if isinstance(error, EvalqError):
                raise error
            raise EvalqError(_arguments.sentence(error)) from error
        text = _arguments.sentence(error)
        if self._log is not None:
            again = text == self._last_failure
            self._log.log(logging.DEBUG if again else logging.WARNING, "%s%s", prefix, text)
        self._last_failure = text
        return False


def _log_warnings(read_fd: int, log: logging.Logger) -> None:
    """Logs libevalq's warnings until libevalq closes the pipe."""
    with os.fdopen(read_fd, "r", errors="replace") as lines:
        for line in lines:
            text = line.strip()
            prefix = "evalq: warning: "
            log.warning("%s", text[len(prefix) :] if text.startswith(prefix) else text)


_clients: "weakref.WeakSet[ClientSession]" = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _all_forked() -> None:
    for client in list(_clients):
        client._forked()


atexit.register(_close_all)  # Sends what is ready; the rest stays on disk.
os.register_at_fork(after_in_child=_all_forked)
