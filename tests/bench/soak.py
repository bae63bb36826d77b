"""The memory of each process over a long time under random faults: does it stay flat?

    python3 tests/bench/soak.py [SECONDS [SEED]]       3600 by default; EVALQ_TEST_BUILD: the build

A trainer submits ten checkpoints a second, two workers of two slots evaluate them (evaluations of up to 20 ms), a logger writes JSONL and
TensorBoard, a gateway is asked for the queue. Meanwhile, every 2 to 6 s, one of: SIGKILL of the second worker, of an evaluator, of Redis
(append-only file, everysec; it comes back), SIGSTOP of the first worker, of the logger or of Redis for up to 3 s. What is watched is not
killed: the trainer, the first worker, the logger, the gateway. Of each the private memory (RssAnon) every 5 s; the slope is that of
the least squares over the last three quarters. Ends with 1 where a bar is missed, a job did not end, or a fault never came.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from typing import Dict, List, Tuple

from figures import BIN, HERE, Figure
from rows_worker import Bench
from scene import free_port, scene, until

SLOPE_BAR = "<= 2048"  # KiB an hour.
CONFIG = """
roots: {out: $OUT}
redis: {queue: main}
worker: {slots: 2, devices: cpu, lease_ms: 2000, heartbeat_ms: 400}
evaluators:
  noop: {kind: persistent, argv: [%s/noop_evaluator, $OUT/noop.log]}
suites:
  noop: {evaluator: noop, limits: {seconds: 60}, tasks: [{name: t, type: any}]}
logger: {directory: $OUT/results, sinks: [{kind: jsonl}, {kind: tensorboard}]}
gateway: {listen: "127.0.0.1:%d"}
"""
TRAINER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import evalq
out, seconds = sys.argv[2], float(sys.argv[3])
client = evalq.Client(run="soak", ring_directory=sys.argv[4], log=False)
end, step = time.monotonic() + seconds, 0
while time.monotonic() < end:
    name = f"{out}/step-{step}.safetensors"
    os.link(out + "/one.safetensors", name)
    client.submit(name, step=step, suites="noop", params={"sleep_ms": str(step % 21)})
    old = f"{out}/step-{step - 200}.safetensors"
    if os.path.exists(old):
        os.unlink(old)
    step += 1
    for _ in client.results():  # Those that have come; what nobody reads is kept.
        pass
    time.sleep(0.1)
print(step, flush=True)
client.flush(300)
sys.stdin.readline()
client.close()
"""


def private_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        found = re.search(r"RssAnon:\s+(\d+) kB", file.read())
    return int(found.group(1)) if found else 0


def slope_per_hour(points: List[Tuple[float, float]]) -> float:
    """Of the least squares, over the last three quarters of the time."""
    begin = points[0][0] + (points[-1][0] - points[0][0]) / 4
    late = [point for point in points if point[0] >= begin]
    return 3600 * statistics.linear_regression([at for at, _ in late], [value for _, value in late]).slope


class Soak:
    def __init__(self, here: Bench, seconds: float, seed: int, port: int) -> None:
        self.here, self.seconds, self.port = here, seconds, port
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.points: Dict[str, List[Tuple[float, float]]] = {}  # s, KiB.
        scene_ = here.scene
        self.watched = {
            "worker": scene_.start_worker(),
            "logger": scene_.start("evalq-logger"),
            "gateway": scene_.start("evalq-gateway"),
        }
        self.victim = scene_.start_worker()
        environment = {**scene_.environment(), "EVALQ_LIBRARY": os.path.join(os.path.dirname(BIN), "lib", "libevalq.so.1")}
        package = os.path.join(HERE, "..", "..", "producer", "python")
        words = [sys.executable, "-c", TRAINER, package, scene_.out, str(seconds), scene_.ring]
        self.watched["trainer"] = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        scene_.processes.append(self.watched["trainer"])

    def fault(self) -> None:
        """One of them, drawn; what it stops goes on before this returns."""
        what = self.random.choice(["kill worker", "kill evaluator", "kill Redis", "stop worker", "stop logger", "stop Redis"])
        redis = self.here.scene.redis
        if what == "kill worker":
            self.victim.kill()
            self.victim.wait()
            self.here.scene.processes.remove(self.victim)
            self.victim = self.here.scene.start_worker()
        elif what == "kill evaluator":
            begun = [one for one in self.last_attempts() if os.path.exists(f"/proc/{one}")]
            if not begun:
                return
            os.kill(begun[-1], signal.SIGKILL)
        elif what == "kill Redis":
            redis.kill()
            redis.wait()
            try:
                self.here.scene.start_redis("--appendfsync", "everysec")
            except AssertionError:
                with open(os.path.join(self.here.scene.directory, "redis.log"), encoding="utf-8", errors="replace") as file:
                    print(file.read()[-3000:], flush=True)
                raise
        else:
            pid = redis.pid if what == "stop Redis" else self.watched[what.split()[1]].pid
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.1, 3))
            os.kill(pid, signal.SIGCONT)
        self.faults[what] += 1

    def last_attempts(self) -> List[int]:
        """Process ids of the evaluators that spoke last."""
        with open(self.here.log, "rb") as file:
            file.seek(max(0, self.here.bytes() - 2000))
            lines = file.read().decode().splitlines()[1:]
        return [int(line.split()[2]) for line in lines if len(line.split()) == 5]

    def sample(self) -> None:
        now = time.monotonic()
        for name, process in self.watched.items():
            if process.poll() is not None:
                raise SystemExit(f"the {name} ended by itself: {process.returncode}")
            self.points.setdefault(name, []).append((now, private_kib(process.pid)))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/status", timeout=5) as reply:
                reply.read()
        except OSError:
            pass  # Redis is away or stopped; the gateway says so, which is as good for its memory.

    def figures(self) -> List[Figure]:
        found = []
        for name, points in self.points.items():
            if len(points) > 4:
                found.append(Figure(f"{name}: private memory, slope", "KiB/h", len(points), SLOPE_BAR, [slope_per_hour(points)]))
            middle = statistics.median(value for _, value in points[len(points) // 4 :])
            for which, kib in (("first", points[0][1]), ("median", middle), ("last", points[-1][1])):
                found.append(Figure(f"{name}: private memory, {which}", "KiB", len(points), "", [float(kib)]))
        return found

    def run(self) -> int:
        """Until the trainer has submitted everything; returns how many checkpoints."""
        end = time.monotonic() + self.seconds
        fault_due = sample_due = time.monotonic() + 2
        while time.monotonic() < end:
            if time.monotonic() >= fault_due and self.here.bytes() > 0:
                self.fault()
                fault_due = time.monotonic() + self.random.uniform(2, 6)
            if time.monotonic() >= sample_due:
                self.sample()
                sample_due += 5
            time.sleep(0.1)
        return int(self.watched["trainer"].stdout.readline())

    def ended(self) -> Dict[str, int]:
        """How many jobs ended, by state."""
        words = {}
        for state in ("done", "dead", "skipped", "cancelled"):
            words[state] = int(self.here.scene.redis_call("ZCARD", "evalq:{main}:ended:" + state))
        return words


def recorded(path: str) -> Tuple[int, int]:
    """Results in the JSONL file, and how many of them are there more than once."""
    with open(path, encoding="utf-8") as file:
        ids = Counter(record["result_id"] for record in map(json.loads, file) if record.get("task"))
    return len(ids), sum(count > 1 for count in ids.values())


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    port = free_port()
    print(f"soak of {seconds:g} s, seed {seed}", flush=True)
    with scene(CONFIG % (BIN, port)) as made:
        made.redis_call("CONFIG", "SET", "appendfsync", "everysec")
        soak = Soak(Bench(made), seconds, seed, port)
        try:
            submitted = soak.run()
        except BaseException:
            print("ended early; so far:", *(each.line() for each in soak.figures()), sep="\n", flush=True)
            raise
        until(lambda: sum(soak.ended().values()) >= submitted, f"{submitted} jobs end", 300)
        ends = soak.ended()
        path = os.path.join(made.out, "results", "soak", "results.jsonl")
        until(lambda: recorded(path)[0] >= ends["done"], "every result is in the file", 120)
        audit = json.loads(made.redis_call("FCALL_RO", "evalq_v1_audit", "1", "evalq:{main}:", ""))
        results, twice = recorded(path)
        memory = int(re.search(rb"used_memory:(\d+)", made.redis_call("INFO", "memory")).group(1))
    figures = soak.figures()
    for one in figures:
        print(one.line())
    print(f"faults: {dict(soak.faults)}; {submitted} submitted, ended: {ends}; {results} results recorded, {twice} more than once")
    print(f"audit: {audit['problems'] or 'clean'}; Redis holds {memory / max(1, submitted):.0f} bytes a job that was submitted")
    series = {name: [[round(at - points[0][0]), value] for at, value in points] for name, points in soak.points.items()}
    with open(os.path.join(os.path.dirname(BIN), "soak.json"), "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds, "seed": seed, "faults": soak.faults, "ends": ends, "kib": series}, file)
    wrong = [one.row for one in figures if one.reached() is False]
    short = seconds < 600  # Too short for slopes.
    if (wrong and not short) or len(soak.faults) < 6 or twice or audit["problems"]:
        raise SystemExit(f"not as it should be: {wrong or 'see above'}")


if __name__ == "__main__":
    main()
