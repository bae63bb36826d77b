"""The directory in shared memory that holds the snapshots of one training process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time

from .._library import EvalqError

_LOCK = ".lock"
_ABANDONED_SECONDS = 3600.0  # Workers may still read the snapshots of a dead training for so long.


def default_root() -> str:
    """The directory that the built-in root "shm" stands for."""
    return f"/dev/shm/evalq-{os.getuid()}"


class SnapshotDirectory:
    """One directory below root, created by create(). Not thread-safe.

    The process holds a lock on a file inside while it lives. Other processes of this user remove
    directories whose lock is free, because shared memory outlives a killed process.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.path = ""  #: "" before create() and after remove().
        self._lock_fd = -1

    def create(self) -> None:
        """Creates the directory, once. EvalqError: other users can write to root."""
        if self.path:
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.root, 0o700)
        info = os.stat(self.root)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise EvalqError(
                f"'{self.root}' belongs to another user, or others can write to it: remove it,"
                " or name another directory as root shm"
            )
        self._remove_abandoned()
        path = os.path.join(self.root, f"snapshots-{os.getpid()}-{time.time_ns():x}")
        os.mkdir(path, 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._lock_fd = os.open(os.path.join(path, _LOCK), flags, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        self.path = path

    def remove(self) -> None:
        """Removes the directory with all snapshots in it."""
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)
            self.release_lock()
            self.path = ""

    def release_lock(self) -> None:
        """Closes the lock file. A forked child must call it, because otherwise the lock would stay
        taken after the parent has died."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _remove_abandoned(self) -> None:
        """Removes the directories of processes that died, once no worker can be reading them."""
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if not name.startswith("snapshots-"):
                continue
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime < _ABANDONED_SECONDS:
                    continue
                fd = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Raises if the owner lives.
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(fd)
