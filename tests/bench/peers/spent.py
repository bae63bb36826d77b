"""Processor time of processes, and how quiet a machine was."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from typing import List

TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> List[int]:
    """A process and all that it started, the oldest first."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children", encoding="ascii") as file:
                    found += [int(word) for word in file.read().split()]
    return found


def of_tree(pid: int) -> float:
    """Seconds of processor time of a process and all that it started so far, the ended ones that were waited for included."""
    ticks = 0
    for one in tree(pid):
        with contextlib.suppress(OSError), open(f"/proc/{one}/stat", encoding="ascii", errors="replace") as file:
            ticks += sum(map(int, file.read().rsplit(") ", 1)[1].split()[11:15]))
    return ticks / TICK


def of_children() -> float:
    """Seconds of processor time of the processes that ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Awake:
    """A busy loop a core that only runs where nothing else wants to, so that a virtual core is never halted; or nothing."""

    LOOP = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"

    def __init__(self, wanted: bool) -> None:
        cores = os.sched_getaffinity(0) if wanted else []
        self.loops: List["subprocess.Popen[bytes]"] = [
            subprocess.Popen([sys.executable, "-c", self.LOOP], start_new_session=True) for _ in cores
        ]

    def spent(self) -> float:
        return sum(of_tree(loop.pid) for loop in self.loops)

    def close(self) -> None:
        for loop in self.loops:
            loop.kill()
            loop.wait()


class Others:
    """Cores that the rest of the machine used, and that its host withheld, since the last look."""

    def __init__(self, awake: Awake) -> None:
        self.awake = awake
        self.last = self.now()

    def now(self) -> List[float]:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, steal = (int(word) / TICK for word in file.readline().split()[1:9])
        mine = resource.getrusage(resource.RUSAGE_SELF)
        own = of_children() + mine.ru_utime + mine.ru_stime + self.awake.spent()
        return [user + nice + system + irq + softirq - own, steal, os.times().elapsed]

    def cores(self) -> List[float]:
        """Used by others, withheld by the host."""
        now = self.now()
        used, stolen, seconds = (after - before for after, before in zip(now, self.last))
        self.last = now
        return [used / seconds, stolen / seconds] if seconds > 0 else [0.0, 0.0]
