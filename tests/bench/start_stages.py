"""Where the time goes from a submit to the start of a persistent program on an idle worker: each hop and each process' own part.

    python3 tests/bench/start_stages.py [JOBS [off|everysec|always]]     needs redis-server and perf with its tracepoints (root);
                                                                         EVALQ_TEST_BUILD: the build

One job after another (bench_start), each after 20 ms in which nothing happened. perf's system call tracepoints stamp the five processes
on one clock, and cost each call about a microsecond. A hop is from the call that sends to the return of the call that waited for it. Below
stand bench_start's own rows, with the machine's limit. Where the machine is busy, `chrt -f 5` before the command leaves out the
others' turns on the processor, and with them what it costs to wake an idle one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import rows_worker  # noqa: E402
from count_job import name, tree  # noqa: E402
from scene import until  # noqa: E402

EVENT = re.compile(r"^\s*(\d+)/(\d+)\s+(\d+\.\d+):\s+raw_syscalls:sys_(enter|exit): NR (\d+)(.*)$")
READ, WRITE, POLL, WRITEV, SENDTO, RECVFROM, EPOLL_WAIT = 0, 1, 7, 20, 44, 45, 232  # Of x86-64.
SENDS = (WRITE, WRITEV, SENDTO)
WAITS = (READ, POLL, EPOLL_WAIT)
# Who does what, in order; a hop ends where a wait of the next process returns.
STAGES = (
    ("client", "sends", "client's send -> Redis awake"),
    ("redis-server", "wakes", "Redis: submit, to the wake marker sent"),
    ("redis-server", "sends", "marker -> supervisor awake"),
    ("supervisor", "wakes", "supervisor: to its claim sent"),
    ("supervisor", "sends", "claim -> Redis awake"),
    ("redis-server", "wakes", "Redis: claim, to its reply sent"),
    ("redis-server", "sends", "reply -> supervisor awake"),
    ("supervisor", "wakes", "supervisor: to the job's note sent"),
    ("supervisor", "sends", "note -> child awake"),
    ("child", "wakes", "child: fingerprint, to the program's line sent"),
    ("child", "sends", "line -> program awake"),
    ("noop_evaluator", "wakes", "program: to its start noted"),
    ("noop_evaluator", "sends", ""),
)


class Event(NamedTuple):
    who: str
    does: str  # sends: a call that sends begins; wakes: one that waits returns.
    at: float


def events(path: str, names: Dict[int, str]) -> Iterator[Event]:
    """Of the processes that are watched, in the order of time."""
    words = ["perf", "script", "-i", path, "-F", "pid,tid,time,event,trace", "--ns"]
    text = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    for line in text.splitlines():
        part = EVENT.match(line)
        if not part:
            continue
        call, enters = int(part[5]), part[4] == "enter"
        if call in SENDS and enters:
            yield Event(names[int(part[2])], "sends", float(part[3]))
        elif call in WAITS and not enters and not part[6].startswith((" = 0", " = -")):
            yield Event(names[int(part[2])], "wakes", float(part[3]))


def stages(found: List[Event], start: float) -> Optional[List[float]]:
    """When each stage of the job that started then began; None: a link of the chain is missing."""
    marks: List[float] = []
    at = len(found) - 1
    while at >= 0 and found[at].at > start:
        at -= 1
    # Backwards from the program's start: each link is the last of its kind before the one that it led to.
    at += 1
    if at == len(found) or found[at].who != "noop_evaluator":
        return None
    for who, does, _ in reversed(STAGES):
        while at >= 0 and (found[at].who, found[at].does) != (who, does):
            at -= 1
        if at < 0:
            return None
        marks.append(found[at].at)
        at -= 1
    return marks[::-1]


def watch(names: Dict[int, str], path: str) -> "subprocess.Popen[bytes]":
    """perf while it runs, at the usual priority, of these threads alone."""
    these = " || ".join(f"common_pid == {each}" for each in names)
    words = ["chrt", "-o", "0", "perf", "record", "-q", "-a", "-k", "mono", "-m", "1024", "-o", path]
    for event in ("raw_syscalls:sys_enter", "raw_syscalls:sys_exit"):
        words += ["-e", event, "--filter", these]
    process = subprocess.Popen(words)
    until(lambda: os.path.exists(path) and os.stat(path).st_size > 0, "perf is at work")
    return process


def report(rows: List[List[float]]) -> None:
    def line(what: str, spent: List[float]) -> None:
        spent.sort()
        print(f"{what:52}{1e6 * spent[len(spent) // 2]:9.0f}{1e6 * spent[len(spent) * 9 // 10]:9.0f}")

    print(f"{len(rows)} jobs, us{'p50':>46}{'p90':>9}")
    for at in range(len(STAGES) - 1):
        line(STAGES[at][2], [row[at + 1] - row[at] for row in rows])
    for what, kind in (("all hops", "sends"), ("all processes' own parts", "wakes")):
        line(what, [sum(row[at + 1] - row[at] for at in range(len(STAGES) - 1) if STAGES[at][1] == kind) for row in rows])
    line("client's send -> program's start", [row[-1] - row[0] for row in rows])


def main() -> None:
    words = sys.argv[1:] + ["100", "off"][len(sys.argv) - 1 :]
    with rows_worker.bench(words[1]) as here:
        here.ready()
        path = os.path.join(here.scene.directory, "perf.data")
        start = [os.path.join(rows_worker.BIN, "bench_start"), here.scene.url, "out", os.path.basename(here.one), here.log, words[0], "20"]
        with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as client:
            client.send_signal(signal.SIGSTOP)  # Until perf is at work.
            pids = [each for process in here.scene.processes for each in tree(process.pid)] + [here.scene.redis.pid]
            names = {int(task): name(pid) for pid in pids for task in os.listdir(f"/proc/{pid}/task")}
            perf = watch({**names, client.pid: "client"}, path)
            client.send_signal(signal.SIGCONT)
            said = client.communicate()[0]
        perf.send_signal(signal.SIGINT)
        perf.wait()
        found = list(events(path, {**names, client.pid: "client"}))
        rows = [stages(found, one.start) for one in here.attempts()]
    if not any(rows):
        raise SystemExit("perf saw no job whole: is it allowed to?")
    report([row for row in rows if row is not None])
    print("".join(line + "\n" for line in said.splitlines() if not re.search(r" max\t", line)), end="")


if __name__ == "__main__":
    main()
