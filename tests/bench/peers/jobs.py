"""What the peers written in Python run: a job that does nothing, and one that leaves a trace of having run to its end."""

import os
import time

EDGE = 20  # So many write when they ran: once a worker is warm, and at the end of a run.


def warm(count: int) -> int:
    """The first number whose time counts: until then interpreters and their compilers warm up."""
    return count // 5


def write(path: str, text: str) -> None:
    """One line in one write, so that lines of several processes stay whole."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (text + "\n").encode())
    os.close(file)


def noop(number: int, count: int, path: str) -> None:
    if warm(count) <= number < warm(count) + EDGE or number >= count - EDGE:
        write(path, repr(time.monotonic()))


def work(number: int, ms: int, path: str) -> None:
    time.sleep(ms / 1000)
    write(path, str(number))


def pace(number: int, began: float) -> None:
    """Keeps a submitter at PEER_RATE jobs a second, where that is set."""
    rate = float(os.environ.get("PEER_RATE") or 0)
    if rate:
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
