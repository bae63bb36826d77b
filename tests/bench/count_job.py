"""What one no-op job costs each process on its way: figures that repeat on a busy machine.

    python3 tests/bench/count_job.py [JOBS] [SLOTS]         needs redis-server, strace; EVALQ_TEST_BUILD: the build

Jobs one after another on an idle worker of one slot, AOF `always`; with SLOTS more than one, a backlog of JOBS on so many slots.
Counted a job: system calls of each process, of them those that make a file or directory, sync, or wake another process; commands
that clients sent to Redis. Waits for time (polls of an idle process) are left out of `calls`. The first job is not counted.
"""

from __future__ import annotations

import collections
import os
import re
import signal
import subprocess
import sys
import time
from typing import Counter, Dict, List

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import rows_worker  # noqa: E402
from scene import until  # noqa: E402

LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")
MAKES = ("mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "memfd_create")
SYNCS = ("fsync", "fdatasync", "sync_file_range", "syncfs")


def tree(pid: int) -> List[int]:
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            for child in file.read().split():
                found += tree(int(child))
    return found


def name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        program = file.read().strip()
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    if pid == os.getpid():
        return "client"
    return program if program not in ("evalq-worker", "exe") else "child" if b"child" in words else "supervisor"  # exec of /proc/self/exe.


def commands(here: rows_worker.Bench) -> Counter[str]:
    """Calls so far of what clients send; what functions call is not among them."""
    said = here.scene.redis_call("INFO", "commandstats").decode()
    found = collections.Counter({word: int(calls) for word, calls in re.findall(r"cmdstat_(\S+?):calls=(\d+)", said)})
    return collections.Counter({word: found[word] for word in ("fcall", "fcall_ro", "bzpopmin")})


class Trace:
    """strace of the processes while it is open."""

    def __init__(self, here: rows_worker.Bench) -> None:
        pids = [each for process in here.scene.processes for each in tree(process.pid)] + [here.scene.redis.pid, os.getpid()]
        self.path = os.path.join(here.scene.directory, "trace")
        self.mine = os.getpid()
        self.names: Dict[int, str] = {}
        words = ["strace", "-f", "-qq", "-e", "signal=none", "-s", "20000", "-o", self.path]
        for pid in pids:
            self.names.update({int(task): name(pid) for task in os.listdir(f"/proc/{pid}/task")})
            words += ["-p", str(pid)]
        self.process = subprocess.Popen(words)
        until(lambda: all(self.traced(each) for each in self.names), "strace is at work")

    @staticmethod
    def traced(task: int) -> bool:
        with open(f"/proc/{task}/status", encoding="ascii", errors="replace") as file:
            return "TracerPid:\t0\n" not in file.read()

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def counts(self) -> Dict[str, Counter[str]]:
        found: Dict[str, Counter[str]] = collections.defaultdict(collections.Counter)
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for line in file:
                self.take(line, found)
        return found

    def take(self, line: str, found: Dict[str, Counter[str]]) -> None:
        part = LINE.match(line)
        if not part or int(part[1]) == self.mine or part[2] == "restart_syscall":
            return  # Resumed, or the thread that only submits and looks.
        who, call, rest = self.names.get(int(part[1]), "other"), part[2], part[3]
        if call in ("poll", "epoll_wait", "clock_nanosleep") and re.search(r"= 0( \(Timeout\))?$", rest):
            return
        if who == "redis-server" and ("/proc/self/stat" in rest or "/proc/" in rest):
            return  # Its own timer.
        found[who]["calls"] += 1
        found[who]["makes"] += call in MAKES and "= -1" not in rest or (call == "openat" and "O_CREAT" in rest)
        found[who]["syncs"] += call in SYNCS
        found[who]["sends"] += call in ("sendto", "sendmsg") or (call in ("write", "writev") and who == "redis-server" and "\\r\\n" in rest)
        if who in ("supervisor", "client") and call == "sendto":
            for function in re.findall(r"evalq_v1_(\w+)|BZ(POPMIN)", rest):
                found["commands"][function[0] or "bzpopmin"] += 1


def measure(here: rows_worker.Bench, jobs: int, slots: int) -> None:
    here.ready()
    with here.scene.client("count") as client:
        client.submit(here.file("count", 0), step=0, suites="noop")
        until(lambda: len(here.ended()) > 1, "the first job of the client ends")
        time.sleep(0.3)
        before = commands(here)
        trace = Trace(here)
        for step in range(1, jobs + 1):
            client.submit(here.file("count", step), step=step, suites="noop")
            if slots == 1:
                until(lambda: len(here.ended()) > step + 1, "the job ends")
                time.sleep(0.1)
        until(lambda: len(here.ended()) > jobs + 1, "the jobs end")
        time.sleep(0.3)
        trace.close()
        sent = commands(here) - before
    print(f"{jobs} jobs, {slots} slots, AOF always; a job:")
    print(f"{'':14}{'calls':>8}{'makes':>8}{'syncs':>8}{'sends':>8}")
    found = trace.counts()
    for who in ("client", "redis-server", "supervisor", "child", "noop_evaluator", "other"):
        one = found.get(who, collections.Counter())
        print(f"{who:14}" + "".join(f"{one[what] / jobs:8.2f}" for what in ("calls", "makes", "syncs", "sends")))
    print("commands to Redis: " + ", ".join(f"{word} {count / jobs:.2f}" for word, count in sorted(found["commands"].items())))
    print("Redis counted: " + ", ".join(f"{word} {count / jobs:.2f}" for word, count in sorted(sent.items())))


def main() -> None:
    jobs, slots = (int(word) for word in (sys.argv[1:] + ["20", "1"][len(sys.argv) - 1 :]))
    with rows_worker.bench("always", slots) as here:
        measure(here, jobs, slots)


if __name__ == "__main__":
    main()
