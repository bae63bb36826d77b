"""Jobs lost and repeated by the queues that people know, and by evalq, under the same faults.

    python faults.py [JOBS [SEED [CASE...]]]        2000, 1, pause kill cut, or one queue's as cut:Celery; run.sh sets up what it needs

One producer submits 20 jobs a second of 200 ms, each until the queue says that it has it; two "machines" of four workers run them. While
it submits:
  pause  one machine, all its processes, is stopped for longer than the lease (10 s; Celery, which looks every 10 s only, 16 s)
  kill   one machine, all its processes, is killed every 4 s and started again
  cut    everything goes through a proxy that closes one connection in a hundred requests after Redis has carried the request out
         and before the reply
Lost: submitted, and never run to its end, though nothing has happened for as long as the queue says that it needs. Known: of
them, those that the queue still shows as waiting, running or failed. Repeated: run to its
end more than once. Reported twice: the queue itself has taken more than one completion (evalq: results recorded by the logger; BullMQ:
`completed` events; RQ: successful results; Celery keeps no such record). Settings: of each as it comes, and as its own pages
advise for jobs that must not be lost, with a lease of 3 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Dict, List, Tuple

from servers import BIN, Peer, Place, bullmq, celery, evalq, evalq_prepare, redis, rq, versions
from spent import tree

LEASE = "3"
RATE, MS, SLOTS = 20, 200, 4
CUT = "cut_reply:*:p=0.01"
RQ_SUCCESSES = """
local n = {}
for _, key in ipairs(redis.call('KEYS', 'rq:results:*')) do
    local count = 0
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
        for at = 1, #entry[2], 2 do
            if entry[2][at] == 'type' and entry[2][at + 1] == '1' then
                count = count + 1
            end
        end
    end
    n[#n + 1] = count
end
return n
"""


@dataclass
class Entry:
    """A queue in one of its settings."""

    peer: Peer
    workers: int  # Processes of a machine.
    quiet: float  # Seconds without anything happening after which a job is lost: more than its own timeouts together.
    pause: float = 10


ENTRIES = [
    Entry(evalq("evalq", LEASE), 1, 20),
    Entry(bullmq(SLOTS, LEASE, "BullMQ, stalled check 3 s, 5 stalls"), 1, 20),
    Entry(bullmq(SLOTS, "", "BullMQ as it comes"), 1, 80),
    Entry(rq(False, LEASE, "RQ, Retry(5), maintenance 3 s"), SLOTS, 150),
    Entry(rq(False, "", "RQ as it comes"), SLOTS, 30),
    Entry(celery(SLOTS, LEASE, "Celery, acks_late, reject on lost, visibility 3 s"), 1, 50, 16),
    Entry(celery(SLOTS, "", "Celery as it comes"), 1, 30, 16),
]


def send(pids: List[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Campaign:
    """One queue under one kind of fault."""

    def __init__(self, entry: Entry, case: str, jobs: int, seed: int, place: Place) -> None:
        self.entry, self.case, self.jobs, self.place = entry, case, jobs, place
        self.random = random.Random(seed)
        self.faults = 0
        self.struck: Dict[int, int] = {}  # Of each process that was killed or stopped, when it first was (CLOCK_MONOTONIC, ns).
        self.path = os.path.join(place.directory, "ran")
        self.port = place.port
        self.evalq = entry.peer.name == "evalq"
        self.proxy = None
        if case == "cut":
            words = [os.path.join(BIN, "fault_proxy"), "--listen", "0", "--to", str(place.port), "--seed", str(seed), CUT]
            self.proxy = place.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.port = int(self.proxy.stdout.readline().split()[1])
        if self.evalq:
            evalq_prepare(entry.peer, place, SLOTS, 3000)

    def start(self, words: List[str], **more: object) -> "subprocess.Popen[bytes]":
        return self.place.start(words, env={**self.entry.peer.environment(self.place, self.port), "PEER_RATE": str(RATE)}, **more)

    def machine(self) -> List["subprocess.Popen[bytes]"]:
        return [self.start(self.entry.peer.worker) for _ in range(self.entry.workers)]

    def ran(self) -> Counter:
        """Job's number to how often it ran to its end."""
        if not self.evalq:
            if not os.path.exists(self.path):
                return Counter()
            with open(self.path, encoding="ascii") as file:
                return Counter(int(line) for line in file.read().split())
        return Counter(job for job, _, _ in self.ends())

    def ends(self) -> List[Tuple[int, int, int]]:
        """Of each run of evalq's that came to its end: the job's number, the evaluator's process, and when (ns)."""
        log = os.path.join(self.place.directory, "noop.log")
        if not os.path.exists(log):
            return []
        with open(log, encoding="ascii") as file:
            fields = [line.split() for line in file.read().splitlines()]
        return [(int(each[0].split("/")[1]), int(each[2]), int(each[4])) for each in fields if each[4] != "0"]

    def explain(self) -> str:
        """How long before its process was struck a run of evalq's had ended that was repeated."""
        ends: Dict[int, List[Tuple[int, int]]] = {}
        for job, pid, ns in self.ends():
            ends.setdefault(job, []).append((ns, pid))
        before = [(self.struck[pid] - ns) / 1e6 for runs in ends.values() for ns, pid in sorted(runs)[:-1] if pid in self.struck]
        others = sum(len(runs) - 1 for runs in ends.values()) - len(before)
        if not before and not others:
            return ""
        before.sort()
        told = ", ".join(f"{ms:.0f}" for ms in before)
        return f"\n       ms from the end of a repeated run to the fault that struck its process: {told or '-'}; {others} whose process none struck"

    def reported(self) -> int:
        """Jobs of which the queue has taken more than one completion; -1: it keeps no record."""
        name = self.entry.peer.name
        if self.evalq:
            with open(os.path.join(self.place.directory, "results", "peer", "results.jsonl"), encoding="utf-8") as file:
                found = Counter(record["result_id"] for record in map(json.loads, file) if record.get("task"))
        elif name.startswith("BullMQ"):
            words = self.place.redis_call("XRANGE", "bull:peer:events", "-", "+").splitlines()
            found = Counter()
            for at, word in enumerate(words):  # Fields: event completed jobId ID ...
                if word == "completed" and words[at - 1] == "event" and "jobId" in words[at : at + 4]:
                    found[words[words.index("jobId", at) + 1]] += 1
        elif name.startswith("RQ"):
            found = Counter(dict(enumerate(int(word) for word in self.place.redis_call("EVAL", RQ_SUCCESSES, "0").split())))
        else:
            return -1
        return sum(count > 1 for count in found.values())

    def known(self) -> int:
        """Jobs that did not run to their end, but that the queue can still show: waiting, running, failed."""
        name = self.entry.peer.name
        if self.evalq:
            keys = [("ZCARD", "evalq:{main}:" + each) for each in ("leases", "delayed", "ended:dead", "ended:skipped", "ended:cancelled")]
        elif name.startswith("BullMQ"):
            keys = [("LLEN", "bull:peer:wait"), ("LLEN", "bull:peer:active"), ("ZCARD", "bull:peer:delayed"), ("ZCARD", "bull:peer:failed")]
        elif name.startswith("RQ"):
            keys = [("LLEN", "rq:queue:default"), ("ZCARD", "rq:wip:default"), ("ZCARD", "rq:failed:default"), ("ZCARD", "rq:scheduled:default")]
        else:
            keys = [("LLEN", "celery"), ("HLEN", "unacked")]
        return sum(int(self.place.redis_call(*words)) for words in keys)

    def harm(self, machines: List[List["subprocess.Popen[bytes]"]], submitting: "subprocess.Popen[bytes]") -> None:
        turn = 0
        while submitting.poll() is None and self.case != "cut":
            at = turn % len(machines)
            turn += 1
            time.sleep(self.random.uniform(3, 5) if self.case == "kill" else self.random.uniform(1, 3))
            pids = [pid for process in machines[at] for pid in tree(process.pid)]
            for pid in pids:
                self.struck.setdefault(pid, time.monotonic_ns())
            if self.case == "pause":
                send(pids, signal.SIGSTOP)
                time.sleep(self.entry.pause)
                send(pids, signal.SIGCONT)
            else:
                send(pids, signal.SIGKILL)
                for process in machines[at]:
                    self.place.end(process)
                machines[at] = self.machine()
            self.faults += 1

    def settle(self) -> Counter:
        """Once nothing has run for as long as the queue needs to find what was lost."""
        last, since = Counter(), time.monotonic()
        limit = time.monotonic() + 600
        while time.monotonic() - since < self.entry.quiet and time.monotonic() < limit:
            time.sleep(0.5)
            now = self.ran()
            if now != last:
                last, since = now, time.monotonic()
        return last

    def run(self) -> str:
        if self.evalq:
            self.start([os.path.join(BIN, "evalq-logger")])
        machines = [self.machine(), self.machine()]
        words = [*self.entry.peer.submit, "submit", "work", str(self.jobs), str(MS), self.path]
        submitting = self.start(words, log_name="producer.log", stdout=subprocess.PIPE)
        self.harm(machines, submitting)
        submitting.wait()
        if submitting.returncode != 0:
            with open(os.path.join(self.place.directory, "producer.log"), encoding="utf-8", errors="replace") as file:
                raise RuntimeError(f"{self.entry.peer.name}: the producer ended with {submitting.returncode}: {file.read()[-3000:]}")
        if self.proxy is not None:
            self.faults = self.cuts()
        ran = self.settle()
        lost, again = self.jobs - len(ran), sum(count > 1 for count in ran.values())
        twice, known = self.reported(), min(lost, self.known())
        per = 10000 / self.jobs
        return (
            f"{self.case:6} {self.entry.peer.name:52} {self.faults:>6} {lost * per:>8.0f} {known * per:>8.0f} {again * per:>9.0f}"
            f" {'-' if twice < 0 else f'{twice * per:.0f}':>9}   ({lost}, {again} of {self.jobs})"
        ) + (self.explain() if self.evalq else "")

    def cuts(self) -> int:
        """How many there were; there are no more from here on."""
        self.proxy.stdin.write(b"clear\ncounts\n")
        self.proxy.stdin.flush()
        count = 0
        for line in iter(self.proxy.stdout.readline, b"end\n"):
            words = line.split()
            count += int(words[3]) if words[0] == b"fault" else 0
        return count


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    cases = sys.argv[3:] or ["pause", "kill", "cut"]
    wanted = [(case.partition(":")[0], case.partition(":")[2]) for case in cases]
    chosen = [(case, entry) for case, name in wanted for entry in ENTRIES if entry.peer.name.startswith(name)]
    if not {case for case, _ in wanted} <= {"pause", "kill", "cut"} or not chosen:
        raise SystemExit(f"cases {' '.join(cases)}, expected some of: pause kill cut, or one of them and a queue, as cut:Celery")
    print(f"{versions()}\n{jobs} jobs, seed {seed}, AOF everysec, load {os.getloadavg()[0]:.1f}; per 10,000 jobs", flush=True)
    print(f"{'case':6} {'':52} {'faults':>6} {'lost':>8} {'known':>8} {'repeated':>9} {'reported twice':>9}", flush=True)
    lock = threading.Lock()

    def one(entry: Entry, case: str) -> None:
        try:
            with redis("everysec") as place:
                line = Campaign(entry, case, jobs, seed, place).run()
        except RuntimeError as error:
            line = f"{case:6} NOT MEASURED: {error}"
        with lock:
            print(line, flush=True)

    with ThreadPoolExecutor(4) as pool:  # Mostly they wait.
        for done in [pool.submit(one, entry, case) for case, entry in chosen]:
            done.result()


if __name__ == "__main__":
    main()
