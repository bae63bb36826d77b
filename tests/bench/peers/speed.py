"""No-op jobs a second through the queues that people know and through evalq, on the same Redis settings, in turns.

    python speed.py [JOBS [ROUNDS [MODE...]]]        5000, 3, off everysec always; run.sh sets up what it needs

Each round, for each queue: JOBS jobs are submitted, one call each, by one process (BullMQ with 100 in flight, as its own benchmarks do; the
others one after another; evalq and beanstalkd also as their clients batch). Then one worker is started and drains them; the
rate is that between the 21st job from the start and the 21st from the end. RQ's process a job gets a tenth.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Dict, Iterator, List, Tuple

from servers import BIN, SOURCE, Peer, Place, beanstalkd, bullmq, celery, redis, rq, until, versions

EDGE = 20

PEERS = [bullmq(50), bullmq(1), celery(2), rq(True), rq(False)]


Rates = Iterator[Tuple[str, float, float]]  # What, jobs a second, microseconds of the server's processor time a job.


class Cost:
    """Processor time of a place's server, its first process, since the last look."""

    def __init__(self, place: Place) -> None:
        self.pid, self.last = place.processes[0].pid, 0.0
        self.us(1)

    def us(self, jobs: int) -> float:
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        now = 1e6 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        spent, self.last = now - self.last, now
        return spent / jobs


def peer_rates(peer: Peer, mode: str, count: int) -> Rates:
    with redis(mode) as place:
        path, cost = os.path.join(place.directory, "ran"), Cost(place)
        submit = peer.start_submit(place, place.port, "noop", count, 0, path)
        yield f"{peer.name}: submit", count / float(submit.communicate()[0]), cost.us(count)
        peer.start_worker(place, place.port)

        def ran() -> List[float]:
            if not os.path.exists(path):
                return []
            with open(path, encoding="ascii") as file:
                return sorted(float(line) for line in file.read().split())

        until(lambda: len(ran()) >= 2 * EDGE, f"{peer.name} drains {count} jobs", 600)
        stamps, spent = ran(), cost.us(count)
        yield f"{peer.name}: drain", (count - 2 * EDGE) / (stamps[EDGE] - stamps[EDGE - 1]), spent


def said(*words: str) -> float:
    return float(subprocess.run([os.path.join(BIN, words[0]), *words[1:]], check=True, capture_output=True, text=True).stdout)


def evalq_rates(mode: str, count: int) -> Rates:
    for batch, name in ((1, "submit"), (100, "submit, 100 a call")):
        with redis(mode) as place:
            cost = Cost(place)
            yield f"evalq: {name}", count / said("evalq_noop", place.url, "submit", str(count), str(batch)), cost.us(count)
            drain = "drain" if batch == 1 else "publish"
            rate = count / said("evalq_noop", place.url, drain, str(count))
            yield "evalq, 16 slots: drain" + (", each with a result" if drain == "publish" else ""), rate, cost.us(count)


def beanstalkd_rates(mode: str, count: int) -> Rates:
    count = count // 16 * 16
    with beanstalkd(mode) as place:
        cost = Cost(place)
        for verb, name in (("put", "submit"), ("drain", "drain")):
            rate = count / said("beanstalk_noop", str(place.port), verb, str(count))
            yield f"beanstalkd, 16 in flight: {name}", rate, cost.us(count)


def measure(mode: str, count: int, rounds: int) -> Dict[str, List[Tuple[float, float]]]:
    rates: Dict[str, List[Tuple[float, float]]] = {}
    for _ in range(rounds):
        found = [*evalq_rates(mode, count)]
        for peer in PEERS:
            found += peer_rates(peer, mode, max(100, count // 10) if "a process a job" in peer.name else count)
        found += beanstalkd_rates(mode, count)
        for name, rate, us in found:
            rates.setdefault(name, []).append((rate, us))
    return rates


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    modes = sys.argv[3:] or ["off", "everysec", "always"]
    print(f"{versions()}\n{count} jobs, median of {rounds} rounds (lowest-highest), load {os.getloadavg()[0]:.1f}", flush=True)
    found = {}
    for mode in modes:
        rates = measure(mode, count, rounds)
        found[mode] = rates
        print(f"\nAOF {mode:48} jobs a second  (lowest-highest)   us of the server a job")
        middle = {name: [statistics.median(values) for values in zip(*each)] for name, each in rates.items()}
        for name, (rate, us) in sorted(middle.items(), key=lambda item: (item[0].split(": ")[1], item[0])):
            low, high = min(each[0] for each in rates[name]), max(each[0] for each in rates[name])
            print(f"{name:52} {rate:>13.0f}  ({low:.0f}-{high:.0f}) {us:>14.1f}")
        names = [name for name in rates if name.startswith("BullMQ") and name.endswith("drain")]
        ratio = middle["evalq, 16 slots: drain"][0] / max(middle[name][0] for name in names)
        cheaper = min(middle[name][1] for name in names) / middle["evalq, 16 slots: drain"][1]
        said_ = "reached" if ratio >= 2 else "MISSED"
        print(f"evalq, 16 slots, beside the better BullMQ: {ratio:.2f} times the rate (bar >= 2: {said_}), {cheaper:.2f} times less of Redis a job", flush=True)
    with open(os.path.join(SOURCE, "build", "bench", "peers.json"), "w", encoding="utf-8") as file:
        json.dump({"versions": versions(), "jobs": count, "load": os.getloadavg()[0], "rates": found}, file, indent=1)


if __name__ == "__main__":
    main()
