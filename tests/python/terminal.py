"""Runs a program in a new pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from typing import Any, Dict

from scene import BIN, DEADLINE


class Terminal:
    """Runs evalq with these arguments in a terminal of 12 lines. `seen` has its output. The options
    are those of subprocess.Popen()."""

    def __init__(self, environment: Dict[str, str], *words: str, columns: int = 100, **options: Any) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 12, columns, 0, 0))
        self.process = subprocess.Popen(
            [os.path.join(BIN, "evalq"), *words],
            env=dict(environment, TERM="xterm"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            **options,
        )
        os.close(slave)
        self.seen = b""

    def wait_for(self, text: bytes) -> bytes:
        """Waits until the program prints text after the end of the last wait. Returns what it
        printed before."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise AssertionError(f"no {text!r} in {self.seen[-2000:]!r}")
            self.seen += os.read(self.master, 65536)
        before, _, self.seen = self.seen.partition(text)
        return before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
