#!/usr/bin/env python3
"""Rounds of faults against real programs and a real Redis, each proved by the history checker. `sh tests/faults/run.sh` calls
it; docs/faults.md has the figures.

    campaign.py [--short | --long | --mutants] [--seed N] [--rounds N] [--kind KIND,...] [--build DIR] [--out FILE] [--keep]

A round is told wholly by its seed, though not to the microsecond: programs run as fast as the machine lets them. Three kinds
take turns: "load" (workers, submitters and an operator in C, the real logger), "crowd" (the same with many more jobs, and of all
kinds of faults a sixth as many a second and a request) and "programs" (evalq-worker with two kinds of evaluators, the client library in a
trainer, evalq-gateway, evalq-logger). In all, every program speaks with Redis through the fault proxy, and programs and Redis
are killed and stopped at random points."""

from __future__ import annotations

import argparse
import collections
import glob
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import history
import history_check
from campaign_site import PREFIX, SOURCE, Broken, Member, Site, until
from stage import free_port

LEASE_MS = 300
CROWD_LEASE_MS = 900  # A job whose lease lapses again and again waits for minutes: a crowd has no time for them.
STORM_MORE_S = 300
STALE = "checked stale_refused"
TOKEN = "a-token-of-the-fault-campaign"

# Of all requests of a round, by chance; how long those last that do.
CHANCES = {"cut_reply": 0.06, "cut_request": 0.004, "cut_middle": 0.003, "reset": 0.003, "garbage": 0.002, "half_close": 0.002,
           "drip": 0.003, "stall": 0.002, "block": 0.001}
LASTS = {"stall": ":ms=450", "block": ":ms=500"}
THIN = 6  # How many times fewer faults a crowd meets.
# Verbs whose reply must have been cut at least once in a run, by kind of round.
VERBS = {"load": ["submit", "submit_batch", "suite", "claim", "publish", "complete", "complete_many", "complete_claim", "heartbeat", "fail", "release",
                  "split", "parts", "bzpopmin", "leave", "cancel", "retry", "stats", "counts", "gc", "pause", "limit", "idle", "jobs", "sink_open",
                  "xreadgroup", "sink_ack"],
         "programs": ["submit", "suite", "classes", "claim", "publish", "complete_claim", "heartbeat", "info"]}
VERBS["crowd"] = VERBS["load"]
# What must have happened at least once in a run: what a chosen fault never met proves nothing.
WANTED = {"load": ["kill worker", "kill submitter", "kill logger", "kill redis", "pause worker", "pause logger", "drain worker"],
          "programs": ["kill trainer", "kill worker", "kill child", "kill logger", "kill gateway", "kill redis", "pause worker", "pause child", "pause logger"]}
WANTED["crowd"] = WANTED["load"]

# The function library without one of its guards: a round must find it, or it finds nothing.
MUTANTS = {
    "no fence": {"not job.token or token == '' or job.token ~= token or": "not job.token or token == '' or"},
    "a result published twice": {"call('HSETNX', PREFIX .. 'res:' .. id, task, args[6]) == 0": "call('HSET', PREFIX .. 'res:' .. id, task, args[6]) == 9"},
    "an end that is not published": {"    Results.publish_end(job)\n    if job.shards then": "    if job.shards then"},
}


class Storm:
    """Faults at random points until told otherwise: actions by weight, every few milliseconds. An action says whether anything happened.
    Each happens once before chance decides; the first of the list comes first, because what it hits may soon be done."""

    def __init__(self, site: Site, random_: random.Random, actions: List[Tuple[float, Callable[[], bool]]], pause_s: Tuple[float, float]) -> None:
        self.site, self.random, self.actions, self.pause_s = site, random_, actions, pause_s
        self.waiting = [actions[0], *random_.sample(actions[1:], len(actions) - 1)]

    def act(self) -> None:
        for action in self.waiting:
            if action[1]():
                self.waiting.remove(action)
                return
        self.random.choices(self.actions, [weight for weight, _ in self.actions])[0][1]()

    def run(self, over: Callable[[], bool], seconds: float, enough: Callable[[], bool], more: Callable[[], None]) -> None:
        """Ends when all jobs ended or the time is over, but not before enough has happened: a fast machine gets more jobs then, and a slow
        one more time."""
        end = time.monotonic() + seconds
        last = end + STORM_MORE_S
        looked = 0.0
        while time.monotonic() < last:
            self.site.tend()
            if time.monotonic() > looked + 0.3:
                looked = time.monotonic()
                finished = over()
                if (finished or looked >= end) and enough():
                    return
                if finished:
                    more()
            self.act()
            time.sleep(self.random.uniform(*self.pause_s))


def pick(site: Site, random_: random.Random, kind: str) -> Optional[Member]:
    """One that is neither stopped nor done."""
    members = [member for member in site.members if member.kind == kind and member.wake_at == 0 and not member.done]
    return random_.choice(members) if members else None


def act(site: Site, random_: random.Random, kind: str, what: str, lease_ms: int = LEASE_MS) -> Callable[[], bool]:
    def action() -> bool:
        member = pick(site, random_, kind)
        if member is None or member.process.poll() is not None:
            return False
        if what == "kill":
            member.kill()
        elif what == "drain":
            member.drain()
        else:
            member.pause(random_.uniform(1.7, 3) * lease_ms / 1000)  # A lease is given up after 1.4 times its length.
        return True

    return action


def ended(site: Site, submitters: Callable[[], bool]) -> bool:
    return submitters() and site.open_jobs() == 0


def enough(kind: str, site: Site) -> bool:
    """Whether all has happened but what the calm sees to."""
    return not missing(kind, {**site.counts, **site.proxy.counts(), STALE: 1})


class Sleeper:
    """Stops a worker for so long that its jobs become another's, again and again until one that woke was refused."""

    def __init__(self, site: Site, random_: random.Random, lease_ms: int) -> None:
        self.site, self.random, self.lease_ms = site, random_, lease_ms
        self.looked = 0.0
        self.needed = True

    def tend(self) -> None:
        if not self.needed or time.monotonic() < self.looked + 1:
            return
        self.looked = time.monotonic()
        self.needed = not any(map(history_check.refused, history.read(glob.glob(self.site.path("*.history")))))
        member = pick(self.site, self.random, "worker") if self.needed else None
        if member is not None and member.process.poll() is None:
            member.pause(5 * self.lease_ms / 1000)


def calm_and_check(site: Site, submitters: Callable[[], bool], sinks: List[str], verbs: List[str], sleeper: Sleeper) -> history_check.Report:
    """No more faults but one of each kind and a cut reply of each verb, and a stale write if the storm had none: everything ends, the
    sinks get everything, the programs stop in order, and the checker looks."""
    site.took("storm")
    site.counts["ended in storm"] = sum(until(site.ended_jobs, "Redis says what has ended", 120))
    site.proxy.say("clear")
    for rule in surely(verbs):
        site.proxy.say("rule " + rule)
    for member in site.members:
        member.wake()
        if member.kind == "operator":
            member.stop()  # Who would want ended jobs again.

    def over() -> bool:
        site.tend()
        sleeper.tend()
        return ended(site, submitters)

    def recorded() -> bool:
        site.tend()  # A logger that found no Redis when it started is started again, as before.
        return site.sinks_behind(sinks) == 0

    until(over, "every job has ended", 600)
    site.took("calm")
    until(recorded, "the sinks have everything", 600)
    site.took("sinks")
    for member in site.members:
        member.stop()
    site.trace_end()
    wire = site.proxy.close()
    for name, number in wire.items():
        if name.startswith("fault "):
            site.counts[name] += number
        else:
            site.counts["requests"] += number
    left = history.collect(site.socket, "main", ["jsonl=" + site.path("results"), "tensorboard=" + site.path("results/tensorboard")])
    with open(site.path("left.json"), "w", encoding="utf-8") as file:
        json.dump(left, file)
    report = history_check.check(history.read(sorted(glob.glob(site.path("*.history")))), left)
    site.counts["jobs"] = len(left["jobs"])
    site.took("check")
    return report


def surely(verbs: List[str]) -> List[str]:
    """Once for each verb that must have its reply cut, and for each kind."""
    return [f"cut_reply:{verb}:k=2" for verb in verbs] + [
        f"{kind}:publish:k={10 + 5 * number}{LASTS.get(kind, '')}" for number, kind in enumerate(CHANCES)]


def rules(verbs: List[str], thin: int = 1) -> List[str]:
    """Those, and by chance."""
    return surely(verbs) + [f"{kind}:*:p={chance / thin:.6f}{LASTS.get(kind, '')}" for kind, chance in CHANCES.items()]


def round_load(site: Site, random_: random.Random, size: int, seconds: float, traced: bool, mutant: str = "", thin: int = 1,
               lease_ms: int = LEASE_MS) -> history_check.Report:
    """Many jobs; workers, submitters and an operator in C, one real logger. thin: how many times fewer faults, and slower submits, so that
    they go on as long as the round."""
    site.begin(rules(VERBS["load"], thin), False)
    if mutant:
        site.mutate(MUTANTS[mutant])
    site.ask("HSET", PREFIX + "meta", "attempts_max", 100, "lease_ms", lease_ms, "heartbeat_ms", 60)
    if traced:
        site.trace()
    load = site.program("fault_load")
    config = site.write("evalq.yaml", "logger: {directory: %s, sinks: [{kind: tensorboard, directory: %s}]}\n" % (site.path("results"), site.path("results/tensorboard")))

    def word(name: str) -> List[str]:
        return [site.url, name, site.path(name + ".history"), str(random_.getrandbits(32))]

    site.add("logger", "logger", [site.program("evalq-logger"), "--url", site.url, "--config", config])
    for i in range(6 if size < 10000 else 12):
        site.add("worker", f"worker{i}", [load, "work", *word(f"worker{i}"), str(lease_ms)])
    submitters: List[Member] = []

    def submit() -> None:
        i = len(submitters)
        words = [load, "submit", *word(f"submitter{i}"), f"run{i}", str(size // 4), "20", str(30 * (thin - 1))]
        submitters.append(site.add("submitter", f"submitter{i}", words, ends=True))

    for _ in range(4):
        submit()
    site.add("operator", "operator", [load, "operate", *word("operator"), "run0", str(size // 4)])
    done = lambda: all(member.done for member in submitters)
    storm = Storm(site, random_, [(5, act(site, random_, "submitter", "kill")), (12, act(site, random_, "worker", "kill")),
                                  (14, act(site, random_, "worker", "pause", lease_ms)), (1, act(site, random_, "worker", "drain")), (0.6, act(site, random_, "logger", "kill")),
                                  (0.4, act(site, random_, "logger", "pause")), (1, act(site, random_, "operator", "kill")),
                                  (0.12 if thin == 1 else 0.04, site.redis_kill)],  # It reads a crowd's file for half a minute.
                  (0.005 * thin, 0.04 * thin))
    storm.run(lambda: ended(site, done), seconds, lambda: bool(mutant) or enough("load", site), submit)
    return calm_and_check(site, done, ["jsonl", "tensorboard"], VERBS["load"], Sleeper(site, random_, lease_ms))


# ---- real programs ----

def children(pid: int) -> List[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def descendants(pid: int) -> List[int]:
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


class Children:
    """The processes that a worker started: its slots' children and their evaluators. They are stopped and killed by pid."""

    def __init__(self, site: Site, random_: random.Random) -> None:
        self.site, self.random = site, random_
        self.asleep: Dict[int, float] = {}

    def one(self) -> Optional[int]:
        worker = pick(self.site, self.random, "worker")
        pids = [pid for pid in descendants(worker.process.pid) if pid not in self.asleep] if worker is not None else []
        return self.random.choice(pids) if pids else None

    def send(self, pid: int, number: int) -> bool:
        try:
            os.kill(pid, number)
            return True
        except ProcessLookupError:
            return False

    def kill(self) -> bool:
        self.wake()
        pid = self.one()
        if pid is None or not self.send(pid, signal.SIGKILL):
            return False
        self.site.counts["kill child"] += 1
        return True

    def pause(self) -> bool:
        self.wake()
        pid = self.one()
        if pid is None or not self.send(pid, signal.SIGSTOP):
            return False
        self.asleep[pid] = time.monotonic() + self.random.uniform(0.5, 0.9)
        self.site.counts["pause child"] += 1
        return True

    def wake(self, all_: bool = False) -> None:
        for pid in [pid for pid, at in self.asleep.items() if all_ or time.monotonic() >= at]:
            del self.asleep[pid]
            self.send(pid, signal.SIGCONT)


HEADER = '{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
SAFETENSORS = chr(len(HEADER)) + "\0" * 7 + HEADER + "%08d"  # A checkpoint of eight bytes that are its step.


class Poster(threading.Thread):
    """Submits through the gateway until each was answered; an answer that did not come is asked for again."""

    def __init__(self, site: Site, port: int, count: int) -> None:
        super().__init__(daemon=True)
        self.site, self.port, self.count = site, port, count
        self.writer = history.Writer(site.path("poster.history"), "poster")
        self.failure = ""
        self.again = 0

    def post(self, body: bytes) -> Tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        try:
            connection.request("POST", "/v1/jobs", body, {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            connection.close()

    def run(self) -> None:
        call = 0
        for step in range(1, self.count + 1):
            path = self.site.write(f"ckpt/g-{step}", SAFETENSORS % step)
            id = f"g/{step}/regular/warm"
            body = json.dumps({"run": "g", "step": step, "suites": ["warm"], "path": path}).encode()
            while True:
                call += 1
                self.writer.line(call, "invoke", "submit", id)
                status, answer = self.post(body)
                if status == 200:
                    self.writer.line(call, "ok", "submit", answer["jobs"][0]["id"], "-", answer["jobs"][0]["answer"])
                    break
                self.writer.line(call, "unknown", "submit", id, "-", str(status))
                self.again += 1
                if 400 <= status < 500 and status != 429:
                    self.failure = f"the gateway answers {status}: {answer}"
                    return
                time.sleep(0.02)


def programs_config(site: Site) -> str:
    results = site.path("results")
    return site.write("evalq.yaml", f"""roots: {{ckpt: {site.path("ckpt")}}}
worker: {{scratch: {site.path("scratch")}, lease_ms: {LEASE_MS}, heartbeat_ms: 60, drain_seconds: 1}}
evaluators:
  mark: {{kind: persistent, command: [{site.program("fault_evaluator")}], env: {{FAULT_HISTORY: {site.path("warm.history")}, FAULT_WORK_MS: "15"}}}}
  once: {{kind: command, command: [{site.program("fault_evaluator")}], env: {{FAULT_HISTORY: {site.path("once.history")}, FAULT_WORK_MS: "15"}}}}
suites:
  warm: {{evaluator: mark, tasks: [{{name: t, type: any}}, {{name: u, type: any}}]}}
  once: {{evaluator: once, tasks: [{{name: t, type: any}}]}}
logger: {{directory: {results}, sinks: [{{kind: tensorboard, directory: {results}/tensorboard}}, {{kind: best}}]}}
""")


def round_programs(site: Site, random_: random.Random, size: int, seconds: float, traced: bool) -> history_check.Report:
    """The real ones: workers with children, a trainer with the client library, the gateway, the logger."""
    site.begin(rules(VERBS["programs"]), True)
    site.ask("HSET", PREFIX + "meta", "attempts_max", 100)
    if traced:
        site.trace()
    config = programs_config(site)
    tokens = site.write("tokens", f"me write {TOKEN}\n", 0o600)
    port = free_port()
    common = ["--url", site.url, "--config", config]
    environment = {**os.environ, "EVALQ_SNAPSHOT_HOST": "none"}
    site.add("logger", "logger", [site.program("evalq-logger"), *common])
    site.add("gateway", "gateway", [site.program("evalq-gateway"), *common, "--listen", f"127.0.0.1:{port}", "--tokens", tokens, "--rate", "0"])
    for i in range(3):
        site.add("worker", f"evalq-worker{i}", [site.program("evalq-worker"), "run", *common, "--slots", "2", "--devices", "cpu"])
    trainers: List[Member] = []

    def train() -> None:
        run, suite = f"t{len(trainers)}", ("warm", "once")[len(trainers) % 2]
        os.mkdir(site.path("ckpt/" + run))
        words = [site.program("fault_trainer"), config, site.url, run, str(size // 3), site.path(f"trainer-{run}.history"), site.path("ckpt/" + run), suite]
        trainers.append(site.add("trainer", "trainer-" + run, words, ends=True, environment=environment))

    train()
    train()
    poster = Poster(site, port, size // 3)
    poster.start()
    below = Children(site, random_)

    def done() -> bool:
        if poster.failure:
            raise Broken(poster.failure)
        return all(trainer.done for trainer in trainers) and not poster.is_alive()

    storm = Storm(site, random_, [(4, act(site, random_, "trainer", "kill")), (2, act(site, random_, "worker", "kill")), (3, act(site, random_, "worker", "pause")),
                                  (0.5, act(site, random_, "worker", "drain")), (3, below.kill), (3, below.pause), (1.5, act(site, random_, "logger", "kill")),
                                  (1, act(site, random_, "logger", "pause")), (2, act(site, random_, "gateway", "kill")), (0.4, site.redis_kill)], (0.02, 0.1))
    storm.run(lambda: ended(site, done), seconds, lambda: enough("programs", site), train)
    below.wake(True)
    site.counts["posts repeated"] = poster.again
    for member in site.members:  # One on which several jobs crashed claims no more.
        if member.kind == "worker":
            member.drain()
    return calm_and_check(site, done, ["jsonl", "tensorboard", "best"], VERBS["programs"], Sleeper(site, random_, LEASE_MS))


def round_crowd(*site_and_more: Any, **more: str) -> history_check.Report:
    return round_load(*site_and_more, thin=THIN, lease_ms=CROWD_LEASE_MS, **more)


ROUNDS = {"load": round_load, "programs": round_programs, "crowd": round_crowd}


def one_round(kind: str, seed: int, size: int, seconds: float, traced: bool, build: str, keep: bool, **more: str) -> Tuple[Dict[str, int], List[str], str]:
    random_ = random.Random(f"{kind} {seed}")
    site = Site(build, seed, random_.choice(["always", "no", "no"]))
    problems = []
    begun = time.monotonic()
    try:
        report = ROUNDS[kind](site, random_, size, seconds, traced, **more)
        problems = report.problems
        site.counts.update({"checked " + name: number for name, number in report.counts.items()})
    except Broken as broken:
        problems = [str(broken)]
    finally:
        site.counts["milliseconds"] = int(1000 * (time.monotonic() - begun))
        site.close(keep or bool(problems) and not more)
    return dict(site.counts), problems, site.directory


def summary(kind: str, counts: Dict[str, int]) -> str:
    def total(prefix: str) -> int:
        return sum(number for name, number in counts.items() if name.startswith(prefix))

    return (f"{counts.get('jobs', 0)} jobs ({counts.get('ended in storm', 0)} ended in the storm), {total('kill ')} kills, {total('pause ')} pauses, {total('fault cut_reply ')} cut replies, "
            f"{total('fault ')} faults on the wire, {counts.get('checked stale_refused', 0)} stale writes refused, "
            f"{counts.get('checked transitions', 0)} transitions, {counts.get('checked lines', 0)} lines of history, {counts['milliseconds'] / 1000:.0f} s: "
            + ", ".join(f"{name[5:]} {number / 1000:.0f}" for name, number in counts.items() if name.startswith("took ")))


def missing(kind: str, counts: Dict[str, int]) -> List[str]:
    """Chosen faults that never fired."""
    wanted = WANTED[kind] + [f"fault cut_reply {verb}" for verb in VERBS[kind]]
    lacking = [name for name in wanted if counts.get(name, 0) == 0]
    for fault in CHANCES:
        if not any(name.startswith(f"fault {fault} ") for name in counts):
            lacking.append("fault " + fault)
    if counts.get(STALE, 0) == 0:
        lacking.append("a stale write to refuse")
    return lacking


def commit() -> str:
    return subprocess.run(["git", "-C", SOURCE, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def plan(options: argparse.Namespace, done: set) -> Any:
    """(kind, seed, size, seconds of faults, traced)"""
    if not options.long:
        yield "load", options.seed, 4000, 30, True
        yield "programs", options.seed, 300, 30, True
        return
    for seed in range(options.seed, options.seed + options.rounds):
        for kind, size, seconds in (("load", options.jobs, 90), ("programs", 480, 60), ("crowd", 5 * options.jobs, 900)):
            if (kind, seed) not in done and kind in options.kind.split(","):
                yield kind, seed, size, seconds, seed % 4 == 0 or kind != "load"


def parse(words: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a round of load and one of programs (default)")
    parser.add_argument("--long", action="store_true", help="many; those that --out has of this commit are left out")
    parser.add_argument("--mutants", action="store_true", help="rounds against libraries without a guard, each of which must be found")
    parser.add_argument("--totals", nargs="+", metavar="FILE", help="what the rounds written down in files came to")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--rounds", type=int, default=40, help="of each kind, with --long")
    parser.add_argument("--jobs", type=int, default=8000, help="of each round of load, with --long; a crowd has five times as many")
    parser.add_argument("--kind", default="load,programs,crowd")
    parser.add_argument("--build", default=os.environ.get("EVALQ_TEST_BUILD", os.path.join(SOURCE, "build", "test")))
    parser.add_argument("--out", default=os.path.join(SOURCE, "build", "faults.jsonl"))
    parser.add_argument("--keep", action="store_true", help="leave the directories of good rounds too")
    return parser.parse_args(words)


def finished(path: str, version: str) -> set:
    rows = rows_of(path) if os.path.exists(path) else []
    return {(row["kind"], row["seed"]) for row in rows if row["commit"] == version}


def rows_of(path: str) -> List[Dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def totals(paths: List[str]) -> int:
    """What the rounds of these files came to, as a table; those that broke count for nothing."""
    rows = [row for path in paths for row in rows_of(path)]
    print("| rounds | kind | jobs | of which ended in the storm | kills | of which Redis | pauses | cut replies | other faults on the wire | stale writes refused | changes of state looked at | hours |")
    print("|" + " --- |" * 12)
    for kind in ROUNDS:
        good = [row["counts"] for row in rows if row["kind"] == kind and not row["problems"]]

        def total(*beginnings: str) -> int:
            return sum(number for counts in good for name, number in counts.items() if name.startswith(beginnings))

        cut = total("fault cut_reply ")
        print(f"| {len(good)} | {kind} | {total('jobs'):,} | {total('ended in storm'):,} | {total('kill '):,} | {total('kill redis'):,} | {total('pause '):,} | {cut:,} | "
              f"{total('fault ') - cut:,} | {total('checked stale_refused'):,} | {total('checked transitions'):,} | {total('milliseconds') / 3.6e6:.1f} |")
        for name in sorted({name for counts in good for name in counts if name.split(' ')[0] in ('kill', 'pause', 'drain')}):
            print(f"  {kind}: {name} {total(name)}", file=sys.stderr)
    print(f"{sum(bool(row['problems']) for row in rows)} rounds broke", file=sys.stderr)
    return 0


def mutants(options: argparse.Namespace) -> int:
    """Whether the checker finds each guard that is missing, in each kind of round that is played with fault_load."""
    passed = []
    for kind in [kind for kind in ("load", "crowd") if kind in options.kind.split(",")]:
        for mutant in MUTANTS:
            counts, problems, _ = one_round(kind, options.seed, 1500 if kind == "load" else 6000, 15, True, options.build, False, mutant=mutant)
            print(f"{kind}, {mutant}: " + (f"found, {problems[0]}" if problems else f"NOT FOUND in {summary(kind, counts)}"), flush=True)
            passed += [] if problems else [mutant]
    return 1 if passed else 0


def main(words: List[str]) -> int:
    options = parse(words)
    options.build = os.path.abspath(options.build)
    if options.totals:
        return totals(options.totals)
    if options.mutants:
        return mutants(options)
    version = commit()
    sums: Dict[str, Dict[str, int]] = collections.defaultdict(collections.Counter)
    failed = False
    for kind, seed, size, seconds, traced in plan(options, finished(options.out, version) if options.long else set()):
        print(f"{kind} seed {seed}: ", end="", flush=True)
        counts, problems, directory = one_round(kind, seed, size, seconds, traced, options.build, options.keep)
        print(summary(kind, counts) + (f" in {directory}" if problems or options.keep else ""), flush=True)
        for problem in problems[:20]:
            print("  BROKEN " + problem, flush=True)
        sums[kind].update(counts)
        failed |= bool(problems)
        with open(options.out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"commit": version, "kind": kind, "seed": seed, "at": int(time.time()), "problems": problems[:20], "counts": counts}) + "\n")
    for kind, counts in sums.items():
        print(f"\n{kind}, all rounds: {summary(kind, counts)}")
        for name in sorted(counts):
            if name.split(" ")[0] in ("kill", "pause", "drain", "fault"):
                print(f"  {name} {counts[name]}")
        for name in missing(kind, counts):
            print(f"  NEVER HAPPENED: {name}")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
