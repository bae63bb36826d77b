"""What a no-op job costs the server, through the queues that people know and through evalq: figures that hold on a busy machine.

    python cost.py [JOBS]      800; run.sh sets up what it needs, and this also needs valgrind

The server runs under callgrind. Each queue submits and drains JOBS / 4 jobs, then JOBS with another server; what a job costs is the
difference, so that connecting and loading scripts fall away. Commands are INFO's commandstats: calls of scripts and functions,
and all other commands, those within scripts included. Instructions are of the whole server: sockets, parsing, Lua, commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any, Callable, ContextManager, Dict, Iterator, Tuple

import jobs
from servers import BIN, HERE, Peer, Place, beanstalkd, bullmq, celery, redis, rq, until, versions

sys.path.insert(0, os.path.dirname(HERE))
import callgrind  # noqa: E402

SCRIPTS = {"eval", "evalsha", "fcall"}
ASIDE = {"info", "type", "hello", "ping", "quit", "function|load", "client|setname", "client|setinfo"}  # Connecting, and our own looks.


class Bench:
    """One server under callgrind, and what each phase of count jobs cost it."""

    def __init__(self, place: Place, counter: callgrind.Counter, count: int) -> None:
        self.place, self.counter, self.count = place, counter, count
        self.costs: Dict[str, Tuple[int, int, int]] = {}

    def commands(self) -> Dict[str, int]:
        if "redis-server" not in self.place.processes[0].args:  # beanstalkd has no commands to count.
            return {}
        said = self.place.redis_call("INFO", "commandstats")
        return {name: int(calls) for name, calls in re.findall(r"^cmdstat_([^:]+):calls=(\d+)", said, re.M) if name not in ASIDE}

    def phase(self, name: str, work: Callable[[], Any]) -> None:
        before = self.commands()
        instructions = self.counter.count(self.place.processes[0].pid, work)
        calls = {name: calls - before.get(name, 0) for name, calls in self.commands().items()}
        scripts = sum(calls.get(name, 0) for name in SCRIPTS)
        self.costs[name] = (scripts, sum(calls.values()) - scripts, instructions)

    def program(self, phase: str, *words: str) -> None:
        words = (os.path.join(BIN, words[0]), *words[1:])
        self.phase(phase, lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))


def peer(one: Peer) -> Callable[[Bench], None]:
    def run(bench: Bench) -> None:
        place, path = bench.place, os.path.join(bench.place.directory, "ran")

        def ran() -> bool:
            if not os.path.exists(path):
                return False
            with open(path, encoding="ascii") as file:
                return len(file.read().split()) >= 2 * jobs.EDGE

        def submit() -> None:
            float(one.start_submit(place, place.port, "noop", bench.count, 0, path).communicate()[0])

        def drain() -> None:
            one.start_worker(place, place.port)
            until(ran, f"{one.name} drains {bench.count} jobs", 900)
            # BullMQ's last jobs are completed after they ran.
            until(lambda: place.redis_call("TYPE", "bull:peer:active").strip() == "none", f"{one.name} has completed them", 300)

        bench.phase("submit", submit)
        bench.phase("drain", drain)

    return run


def evalq(batch: str, verb: str) -> Callable[[Bench], None]:
    def run(bench: Bench) -> None:
        bench.program("submit", "evalq_noop", bench.place.url, "submit", str(bench.count), batch)
        bench.program("drain", "evalq_noop", bench.place.url, verb, str(bench.count))

    return run


def stalk(bench: Bench) -> None:
    for phase, verb in (("submit", "put"), ("drain", "drain")):
        bench.program(phase, "beanstalk_noop", str(bench.place.port), verb, str(bench.count))


Server = Callable[..., ContextManager[Place]]


def subjects() -> Iterator[Tuple[str, Server, Callable[[Bench], None]]]:
    yield "evalq, one a call; 16 slots", redis, evalq("1", "drain")
    yield "evalq, 100 a call; 16 slots, each with a result", redis, evalq("100", "publish")
    for one in (bullmq(50), bullmq(50, removed=True), bullmq(1), celery(2), rq(True)):
        yield one.name, redis, peer(one)
    yield "beanstalkd, 16 in flight", beanstalkd, stalk


def cost(server: Server, run: Callable[[Bench], None], count: int) -> Dict[str, Tuple[int, int, int]]:
    counter = callgrind.Counter()
    try:
        with server("off", counter.words) as place:
            bench = Bench(place, counter, count)
            run(bench)
            return bench.costs
    finally:
        counter.close()


def main() -> None:
    many = int(sys.argv[1]) // 64 * 64 if len(sys.argv) > 1 else 768
    few = many // 4
    if few < 100:
        raise SystemExit("at least 448 jobs")
    print(f"{versions()}\nwhat a job costs the server, by the difference of {few} and {many} jobs; AOF off", flush=True)
    print(f"{'':56} {'scripts':>8} {'other commands':>15} {'instructions':>13}", flush=True)
    for name, server, run in subjects():
        less, more = cost(server, run, few), cost(server, run, many)
        for phase in more:
            scripts, others, instructions = ((b - a) / (many - few) for a, b in zip(less[phase], more[phase]))
            print(f"{phase + ': ' + name:56} {scripts:>8.2f} {others:>15.2f} {instructions:>13,.0f}", flush=True)


if __name__ == "__main__":
    main()
