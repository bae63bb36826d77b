"""One server as a process group of its own, which ends with this program however this program ends."""

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

OWNER = "EVALQ_MODEL_SERVER_OWNER"  # In the environment of a server and its children: whose they are.
_TAIL_LINES = 60
_PR_SET_PDEATHSIG = 1


class Process:
    """A running server. Started and stopped on one thread."""

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
            env={**environment, OWNER: _owner(parent), "SPT_NOENV": "1"},  # vLLM's engine would overwrite it with its title.
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
        """None while it runs; else how it ended."""
        code = self._popen.poll()
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"

    def exit_code(self) -> Optional[int]:
        return self._popen.poll()

    def last_lines(self, count: int = 4) -> str:
        """The end of its log that is worth showing: the last lines that look like errors, else the last lines."""
        self._reader.join(1.0 if self.ended() else 0.0)
        lines = [line for line in self.tail if line.strip()]
        errors = [line for line in lines if "rror" in line or "xception" in line]
        return " | ".join((errors or lines)[-count:])[-600:]

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Ends the whole group and waits until no member of it is left, so that its memory is free."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 30.0)):
            if not self._kill(number):
                break
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and self._group_lives():
                time.sleep(0.02)
        self._popen.poll()

    def kill_now(self) -> None:
        """From any thread; stop() must follow."""
        self._kill(signal.SIGKILL)

    def _group_lives(self) -> bool:
        self._popen.poll()  # A dead leader that nobody waited for is still a member.
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
    """When the process began, in ticks since the machine's start: with it, a number that was given again is told apart."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def _owner(pid: int) -> str:
    return f"{pid}:{_started(pid)}"


def _lives(owner: str) -> bool:
    pid, _, started = owner.partition(":")
    try:
        return _started(int(pid)) == started
    except (OSError, ValueError):
        return False


def end_orphans() -> int:
    """Kills servers of this user whose program is gone; how many processes that were."""
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
            continue  # It ended, or is another user's.
    return killed
