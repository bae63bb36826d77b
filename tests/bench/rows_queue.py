"""Rows of the queue alone: its verbs, depth, memory, waiting workers, and the submit call of the client library."""

from __future__ import annotations

import re

from figures import MODES, Options, Rows, Said, quantiles, run, told  # noqa: F401

VERB = re.compile(r"^(\S.*?)\s+(\d+)\s+(\d+)-(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)$")
VERB_BARS = {
    ("submit, pipeline 64, hiredis by hand", "off"): ">= 80000",
    ("claim 16, complete 16, shared/queue/queue.h", "off"): ">= 40000",
    ("claim 16, complete 16, shared/queue/queue.h", "always"): ">= 10000",
}


def verbs(options: Options) -> Rows:
    """Jobs a second and the server's microseconds of each verb, and the library beside hand-written calls of the same functions."""
    for mode in MODES:
        text = run("bench_queue", str(options.count(4000, 1000)), str(options.count(5, 1)), EVQ_BENCH_AOF=mode)
        rates = {}
        for line in text.splitlines():
            found = VERB.match(line)
            if found:
                name, rate, server = found.group(1), float(found.group(2)), float(found.group(5))
                rates[name] = rate
                yield Said(f"{name}, {mode}", rate, "jobs/s", options.count(4000, 1000), VERB_BARS.get((name, mode), ""))
                yield Said(f"{name}, {mode}, server", server, "us a job", options.count(4000, 1000))
        for barred, barred_mode in VERB_BARS:
            if barred_mode == mode and barred not in rates:
                raise SystemExit(f"bench_queue has no row '{barred}' any more; its bar is in rows_queue.py")
        for verb in ("submit, 100 a call", "claim 16, complete 16"):
            ratio = rates[f"{verb}, shared/queue/queue.h"] / rates[f"{verb}, hiredis by hand"]
            yield Said(f"{verb}: library / hiredis by hand, {mode}", 100 * ratio, "%", 1, ">= 80")
        found_bytes = re.search(r"(\d+) queued jobs, .*: (\d+) bytes a job", text)
        if mode == "off" and found_bytes:
            yield Said("bytes a queued job", float(found_bytes.group(2)), "B", int(found_bytes.group(1)), "<= 1000")


SUBMIT = re.compile(r"^(\S+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\d+)$")


def submit_call(options: Options) -> Rows:
    """Inside evalq_client_submit in the caller's thread."""
    for mode in MODES:
        for line in run("bench_submit", str(options.count(2000, 500)), EVQ_BENCH_AOF=mode).splitlines():
            found = SUBMIT.match(line)
            if found:
                row = f"submit call, Redis {found.group(1)}, {mode}"
                count = int(found.group(2))
                for name, at, bar in (("p50", 3, ""), ("p99", 4, "<= 10"), ("max", 6, "")):
                    yield Said(f"{row} {name}", float(found.group(at)), "us", count, bar)


def idle(options: Options) -> Rows:
    """Submit to claim with workers that wait."""
    for mode in MODES:
        workers = ["1", "100", "1000", "10000"] if mode == "off" else ["1"]
        bars = (("of 1 idle p50", "<= 500"), ("of 1 idle p99", "<= 10000" if mode == "always" else "<= 2000"))
        yield from told(run("bench_idle", mode, str(options.count(1000, 200)), *workers), f"{mode}: ", bars)


def depth(options: Options) -> Rows:
    """A claim's cost by depth and runs, and with 10,000 workers that wait for another class."""
    cost = {}
    places = [(depth, runs, 0) for depth in (1000, 100000, 1000000) for runs in (1, 100, 10000) if runs <= depth]
    places = [place for place in places if not options.quick or place[0] < 1000000]
    largest = 100000 if options.quick else 1000000
    for depth_, runs, waiters in [*places, (largest, 10000, 10000)]:
        words = [*(str(each) for each in (depth_, runs, waiters)), *(["drain"] if (depth_, runs) == (100000, 100) else [])]
        for said in told(run("bench_depth", "off", *words), bars=(("bytes a queued", "<= 1000"),)):
            if said.row.startswith("claim of 16,"):
                cost[depth_, runs, waiters] = said.value
            yield said
    for place, value in cost.items():
        if place[0] == largest:
            name = f"claim of 16, {place[0]} jobs of {place[1]} runs, {place[2]} workers waiting / 1000 jobs of 100 runs"
            yield Said(name, value / cost[1000, 100, 0], "times", 1, "<= 2")


GROUPS = {"submit": submit_call, "verbs": verbs, "idle": idle, "depth": depth}
