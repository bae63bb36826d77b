"""No-op jobs a second through the queues that people know and through evalq, on the same Redis settings, in turns.

    python speed.py [JOBS [ROUNDS [MODE...]]] [--quick] [--awake] [--json FILE]      20000, 3, off everysec always; run.sh sets up what it needs

Each round, for each queue: jobs are submitted, one call each, by one process (BullMQ with 100 in flight, as its own benchmarks do; the
others one after another; evalq and beanstalkd also as their clients batch). Then one worker is started and drains them; the rate is
that from the job at a fifth, when it is warm, to the 21st from the end. Celery gets a quarter of JOBS, RQ and evalq-worker with its
evaluator processes a tenth, RQ's process a job a hundredth; all a quarter of that with AOF always.

--quick: 1,000 jobs, one round, AOF off: does all work? --awake: a busy loop a core that runs only where nothing else wants to, for
a virtual core that is halted takes longer to wake than Redis works.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Tuple

import jobs
import spent
from servers import BIN, SOURCE, Peer, Place, beanstalkd, bullmq, celery, evalq, evalq_prepare, redis, rq, until, versions

BAR = 2
OURS = "evalq, 16 slots"
WORKER = evalq("evalq-worker, 16 evaluator processes")
BULLMQS = [bullmq(50), bullmq(50, removed=True), bullmq(1)]
PEERS = [(peer, 1) for peer in BULLMQS] + [(WORKER, 10), (celery(2), 4), (rq(True), 10), (rq(False), 100)]


@dataclass
class Row:
    """Jobs a second, and microseconds of processor time a job: the server's, and the client's with all its processes (0: not taken)."""

    rate: float
    server_us: float
    client_us: float


Rows = Iterator[Tuple[str, str, Row]]  # Of which queue, what it did.


class Trace:
    """The file in which a queue's jobs leave when they ran: some of them, or with evalq's worker all, at their start and at their end."""

    def __init__(self, peer: Peer, place: Place, count: int) -> None:
        every = peer is WORKER
        self.path = os.path.join(place.directory, "noop.log" if every else "ran")
        self.count, self.every = count, every
        self.warm = 2 * (jobs.warm(count) + jobs.EDGE) if every else jobs.EDGE
        self.whole = 2 * count if every else 2 * jobs.EDGE

    def lines(self) -> int:
        if not os.path.exists(self.path):
            return 0
        with open(self.path, "rb") as file:
            return file.read().count(b"\n")

    def rate(self) -> float:
        with open(self.path, encoding="ascii") as file:
            lines = file.read().splitlines()
        if self.every:
            starts = sorted(int(line.split()[3]) / 1e9 for line in lines if line.endswith(" 0"))
            first, last = starts[jobs.warm(self.count)], starts[-jobs.EDGE]
        else:
            stamps = sorted(map(float, lines))
            first, last = stamps[0], stamps[jobs.EDGE]
        return (self.count - jobs.EDGE - jobs.warm(self.count)) / (last - first)


def drained(peer: Peer, place: Place, count: int) -> Row:
    """Starts the worker; the processor's time is counted over the jobs between the two looks at their trace."""
    trace = Trace(peer, place, count)
    worker = peer.start_worker(place, place.port)
    pids = (place.processes[0].pid, worker.pid)
    until(lambda: trace.lines() >= trace.warm, f"{peer.name} is warm", 300)
    before, began = [spent.of_tree(pid) for pid in pids], time.monotonic()
    until(lambda: trace.lines() >= trace.whole, f"{peer.name} drains {count} jobs", 300)
    after, ended, rate = [spent.of_tree(pid) for pid in pids], time.monotonic(), trace.rate()
    server_us, client_us = (1e6 * (b - a) / (rate * (ended - began)) for a, b in zip(before, after))
    return Row(rate, server_us, client_us)


def peer_rows(peer: Peer, mode: str, count: int) -> Rows:
    with redis(mode) as place:
        if peer is WORKER:
            evalq_prepare(peer, place, 16, 15000)
        server = spent.of_tree(place.processes[0].pid)
        submit = peer.start_submit(place, place.port, "noop", count, 0, os.path.join(place.directory, "ran"))
        out, _ = submit.communicate(timeout=300)
        if peer is not WORKER:  # What its client does besides is measured by other benchmarks.
            yield peer.name, "submit", Row(count / float(out), 1e6 * (spent.of_tree(place.processes[0].pid) - server) / count, 0)
        yield peer.name, "drain", drained(peer, place, count)


def timed(place: Place, count: int, program: str, *words: str) -> Row:
    """A program of ours that does count jobs and prints the seconds."""
    server, client = spent.of_tree(place.processes[0].pid), spent.of_children()
    done = subprocess.run([os.path.join(BIN, program), *words], check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    server, client = spent.of_tree(place.processes[0].pid) - server, spent.of_children() - client
    return Row(count / float(done.stdout), 1e6 * server / count, 1e6 * client / count)


def evalq_rows(mode: str, count: int) -> Rows:
    for batch, name, verb, drain in (("1", "evalq", "drain", OURS), ("100", "evalq, 100 a call", "publish", OURS + ", each with a result")):
        with redis(mode) as place:
            yield name, "submit", timed(place, count, "evalq_noop", place.url, "submit", str(count), batch)
            yield drain, "drain", timed(place, count, "evalq_noop", place.url, verb, str(count))


def beanstalkd_rows(mode: str, count: int) -> Rows:
    count = count // 16 * 16
    with beanstalkd(mode) as place:
        for verb, name in (("put", "submit"), ("drain", "drain")):
            yield "beanstalkd, 16 in flight", name, timed(place, count, "beanstalk_noop", str(place.port), verb, str(count))


class Table:
    """All rounds of one AOF mode."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.rounds = 0
        self.rows: Dict[Tuple[str, str], Dict[int, Row]] = {}  # By round: one that went wrong leaves a gap.
        self.left_out: List[str] = []

    def take(self, name: str, rows: Callable[[], Rows]) -> None:
        """One queue's turn. That one of them fails must not cost the others' figures, but is said, and makes the exit status 1."""
        try:
            for queue, what, row in [*rows()]:
                self.rows.setdefault((what, queue), {})[self.rounds] = row
        except (Exception, SystemExit) as error:
            self.left_out.append(f"{name}, round {self.rounds}: {error!r}")

    def round(self, count: int) -> None:
        self.rounds += 1
        self.take("evalq", lambda: evalq_rows(self.mode, count))
        for peer, part in PEERS:
            self.take(peer.name, lambda: peer_rows(peer, self.mode, max(100, count // part)))
        self.take("beanstalkd", lambda: beanstalkd_rows(self.mode, count))

    def ratios(self) -> Dict[str, List[float]]:
        """evalq's drain beside each BullMQ's, round by round."""
        ours = self.rows.get(("drain", OURS), {})
        theirs = {peer.name: self.rows.get(("drain", peer.name), {}) for peer in BULLMQS}
        found = {name: [ours[at].rate / row.rate for at, row in rows.items() if at in ours] for name, rows in theirs.items()}
        return {name: ratios for name, ratios in found.items() if ratios}

    def show(self) -> None:
        print(f"\nAOF {self.mode:40} jobs a second (lowest-highest)   us a job: server  client")
        for (what, queue), rounds in sorted(self.rows.items(), reverse=True):
            rows = [*rounds.values()]
            rates = [row.rate for row in rows]
            server, client = (statistics.median(each) for each in zip(*((row.server_us, row.client_us) for row in rows)))
            said = f"{client:>7.1f}" if client else ""
            print(f"{what + ': ' + queue:44} {statistics.median(rates):>13,.0f}  ({min(rates):,.0f}-{max(rates):,.0f}) {server:>18.1f} {said}")
        for name, ratios in self.ratios().items():
            middle = statistics.median(ratios)
            bar = f"; bar >= {BAR}: {'reached' if middle >= BAR else 'MISSED'}" if ", 50 in flight" in name else ""
            print(f"{OURS} : {name} = {middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f}){bar}")
        for line in self.left_out:
            print(f"NOT MEASURED: {line}")
        sys.stdout.flush()

    def kept(self) -> Dict[str, Any]:
        rows = {f"{what}: {queue}": {at: vars(row) for at, row in rows.items()} for (what, queue), rows in self.rows.items()}
        return {"rows": rows, "ratios": self.ratios(), "left_out": self.left_out}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="?", type=int, default=20000)
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("modes", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--awake", action="store_true")
    parser.add_argument("--json", default=os.path.join(SOURCE, "build", "bench", "peers.json"))
    given = parser.parse_args()
    given.modes = given.modes or ["off"] + ([] if given.quick else ["everysec", "always"])
    if not set(given.modes) <= {"off", "everysec", "always"} or given.jobs < 100 or given.rounds < 1:
        parser.error("modes are off, everysec, always; at least 100 jobs, one round")
    if given.quick:
        given.jobs, given.rounds = 1000, 1
    return given


def main() -> None:
    given = arguments()
    awake = spent.Awake(given.awake)
    others = spent.Others(awake)
    kept: Dict[str, Any] = {**vars(given), "versions": versions(), "load": os.getloadavg(), "began": time.strftime("%Y-%m-%d %H:%M"), "found": {}}
    print(f"{kept['versions']}\n{given.jobs} jobs, median of {given.rounds} rounds{', cores kept awake' if given.awake else ''}", flush=True)
    print(f"load before the first round: {' '.join(f'{each:.1f}' for each in kept['load'])}", flush=True)
    failed = False
    try:
        for mode in given.modes:
            table, quiet = Table(mode), []
            for _ in range(given.rounds):
                table.round(given.jobs // 4 if mode == "always" else given.jobs)
                quiet.append(others.cores())
            table.show()
            said = ", ".join(f"{used:.2f} and {stolen:.2f}" for used, stolen in quiet)
            print(f"cores that others used, and that the host withheld, a round: {said}", flush=True)
            kept["found"][mode] = {**table.kept(), "others": quiet}
            failed = failed or bool(table.left_out)
            with open(given.json, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1)
    finally:
        awake.close()
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
