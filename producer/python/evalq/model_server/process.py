"""Runs one server in its own process group. The server ends with this program, even if this program
is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Deque, List, Mapping, Optional

# An environment variable of a server and its children. It names the program that started them.
OWNER = "EVALQ_MODEL_SERVER_OWNER"
_TAIL_LINES = 60
_PR_SET_PDEATHSIG = 1


class Process:
    """A running server. One thread starts and stops it."""

    def __init__(self, argv: List[str], environment: Mapping[str, str], secret: str) -> None:
        self._secret = secret
        self.tail: Deque[str] = deque(maxlen=_TAIL_LINES)
        libc = ctypes.CDLL(None, use_errno=True)
        parent = os.getpid()

        def child() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # The parent died before the line above.

        self._popen = subprocess.Popen(
            argv,
            # SPT_NOENV keeps vLLM's engine from overwriting the environment with its process title.
            env={**environment, OWNER: _owner(parent), "SPT_NOENV": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=child,
        )
        self._reader = threading.Thread(target=self._read, name="evalq-server-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ended(self) -> Optional[str]:
        """Says how the server ended. None: it runs."""
        code = self._popen.poll()
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"

    def exit_code(self) -> Optional[int]:
        return self._popen.poll()

    def last_lines(self, count: int = 4) -> str:
        """Returns the last lines of the log that look like errors. If none do, returns the last
        lines."""
        self._reader.join(1.0 if self.ended() else 0.0)
        lines = [line for line in self.tail if line.strip()]
        errors = [line for line in lines if "rror" in line or "xception" in line]
        return " | ".join((errors or lines)[-count:])[-600:]

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Ends the process group and waits until all its processes have ended and freed their
        memory."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 30.0)):
            if not self._kill(number):
                break
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and self._group_lives():
                time.sleep(0.02)
        self._popen.poll()

    def kill_now(self) -> None:
        """Kills the process group. Any thread may call it; stop() must follow."""
        self._kill(signal.SIGKILL)

    def _group_lives(self) -> bool:
        self._popen.poll()  # A dead leader stays in the group until somebody waits for it.
        return self._kill(0)

    def _kill(self, number: int) -> bool:
        try:
            os.killpg(self._popen.pid, number)
            return True
        except ProcessLookupError:
            return False

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for raw in self._popen.stdout:
            line = raw.decode(errors="replace").rstrip("\n").replace(self._secret, "***")
            self.tail.append(line)
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _started(pid: int) -> str:
    """Returns when the process began, in ticks since the machine's start. Together with the pid it
    identifies a process, because the kernel uses pids again."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def _owner(pid: int) -> str:
    """Returns the text that identifies the process: PID:START."""
    return f"{pid}:{_started(pid)}"


def _lives(owner: str) -> bool:
    pid, _, started = owner.partition(":")
    try:
        return _started(int(pid)) == started
    except (OSError, ValueError):
        return False


def end_orphans() -> int:
    """Kills this user's servers whose program has ended. Returns how many processes it killed."""
    mark = (OWNER + "=").encode()
    killed = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                found = [item for item in file.read().split(b"\0") if item.startswith(mark)]
            if found and not _lives(found[0][len(mark) :].decode()):
                os.kill(int(name), signal.SIGKILL)
                killed += 1
        except (OSError, UnicodeDecodeError):
            continue  # The process has ended, or belongs to another user.
    return killed
