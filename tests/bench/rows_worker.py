"""Rows of the real programs: evalq-worker and evalq-logger around evaluators that do nothing, or wait on a timer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List

from figures import BIN, MODES, Options, Rows, Said, quantiles, run, told
from scene import Scene, scene, until

CONFIG = """
roots: {out: $OUT}
worker: {slots: %d, devices: cpu, lease_ms: %d, heartbeat_ms: %d}
evaluators:
  noop: {kind: persistent, argv: [%s/noop_evaluator, $OUT/noop.log]}
suites:
  noop: {evaluator: noop, limits: {seconds: 600}, tasks: [{name: t, type: any}]}
logger: {directory: $OUT/results, sinks: [{kind: jsonl}, {kind: tensorboard}, {kind: best, enabled: false}]}
"""
AOF = {"off": ("no", "no"), "everysec": ("yes", "everysec"), "always": ("yes", "always")}


@dataclass
class Attempt:
    """Of the evaluator's log: times in seconds of CLOCK_MONOTONIC; end 0: it did not end."""

    job: str
    attempt: int
    pid: int
    start: float
    end: float


class Bench:
    """A scene with the log of its no-op evaluators."""

    def __init__(self, made: Scene) -> None:
        self.scene = made
        self.log = os.path.join(made.out, "noop.log")
        self.before: Dict[str, float] = {}  # used() when the last backlog was let go.
        self.one = made.checkpoint("one.safetensors")

    def file(self, run: str, step: int) -> str:
        """A checkpoint of its own: another name of the same small file."""
        path = os.path.join(self.scene.out, f"{run}-{step}.safetensors")
        os.link(self.one, path)
        return path

    def attempts(self) -> List[Attempt]:
        """In the order of their starts."""
        found: Dict[Any, Attempt] = {}
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="ascii") as file:
            for line in file.read().splitlines():
                job, attempt, pid, start, end = line.split()
                one = Attempt(job, int(attempt), int(pid), int(start) / 1e9, int(end) / 1e9)
                found[job, attempt, pid] = one
        return sorted(found.values(), key=lambda one: one.start)

    def ended(self) -> List[Attempt]:
        return [one for one in self.attempts() if one.end]

    def bytes(self) -> int:
        return os.stat(self.log).st_size if os.path.exists(self.log) else 0

    def ready(self) -> None:
        """A first job has gone through: evaluators and connections are warm."""
        with self.scene.client("warm") as client:
            client.submit(self.file("warm", 1), step=1, suites="noop")
            until(lambda: self.ended(), "the first job ends")

    def used(self) -> Dict[str, float]:
        """Processor seconds so far of the supervisors and of Redis."""
        supervisors = sum(processor_seconds(each.pid) for each in self.scene.processes)
        return {"supervisor": supervisors, "Redis": processor_seconds(self.scene.redis.pid)}

    def backlog(self, run: str, jobs: int, **params: str) -> List[Attempt]:
        """Queues so many while the queue is paused, then lets go and gives their attempts once all have ended."""
        evalq = os.path.join(BIN, "evalq")
        environment = self.scene.environment()
        subprocess.run([evalq, "pause"], env=environment, check=True, capture_output=True)
        with self.scene.client(run) as client:
            for step in range(jobs):
                client.submit(self.file(run, step), step=step, suites="noop", params=params)
                if step % 500 == 499 and not client.flush(120):
                    raise SystemExit(f"{step} jobs were not submitted within 120 s")
        self.before = self.used()
        subprocess.run([evalq, "resume"], env=environment, check=True, capture_output=True)
        return until(
            lambda: (found := [one for one in self.ended() if one.job.startswith(run + "/")]) and len(found) >= jobs and found,
            f"{jobs} jobs of {run} end",
            300,
        )


def processor_seconds(pid: int) -> float:
    """What a process has used so far, in user and system."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def bench(mode: str, slots: int = 1, workers: int = 1, lease_ms: int = 15000, logger: bool = False) -> Iterator[Bench]:
    with scene(CONFIG % (slots, lease_ms, lease_ms // 5, BIN)) as made:
        made.redis_call("CONFIG", "SET", "appendonly", AOF[mode][0])
        made.redis_call("CONFIG", "SET", "appendfsync", AOF[mode][1])
        one = Bench(made)
        if logger:
            made.start("evalq-logger")
        for _ in range(workers):
            made.start_worker()
        yield one


def start(options: Options) -> Rows:
    """A submit to the program's start, on an idle worker: from the call on a connection, and from the client's, whose thread looks every 10 ms."""
    for mode in MODES:
        jobs = options.count(300, 60)
        with bench(mode) as here:
            here.ready()
            bars = (("program's start p50", "<= 500"), ("program's start p99", "<= 10000" if mode == "always" else "<= 2000"))
            words = [here.scene.url, "out", os.path.basename(here.one), here.log, str(jobs), "20"]
            yield from told(run("bench_start", *words), f"{mode}: ", bars)
            spent = []
            with here.scene.client("start") as client:
                for step in range(jobs):
                    size = here.bytes()
                    path = here.file("start", step)
                    began = time.monotonic()
                    client.submit(path, step=step, suites="noop")
                    until(lambda: here.bytes() > size and len(here.ended()) > step + jobs + 2, "the job ends")
                    spent.append(here.attempts()[-1].start - began)
        yield from quantiles(f"client's call to evaluator's start, idle worker, {mode}", spent, "ms")


def noop(options: Options) -> Rows:
    """No-op jobs of a backlog through one slot and 16 slots of a real worker."""
    jobs = options.count(3000, 500)
    for mode in MODES:
        for slots in (1, 16):
            with bench(mode, slots) as here:
                here.ready()
                done = here.backlog("noop", jobs)
                seconds = max(one.end for one in done) - min(one.start for one in done)
                own = sum(one.end - one.start for one in done) / len(done)
                used = {name: spent - here.before[name] for name, spent in here.used().items()}
            if slots == 1:
                yield Said(f"overhead around a no-op evaluation, {mode}", 1e3 * (seconds / (jobs - 1) - own), "ms a job", jobs, "<= 1")
            else:
                yield Said(f"evalq-worker of 16 slots, no-op jobs, {mode}", jobs / seconds, "jobs/s", jobs)
            for name, spent in used.items():
                yield Said(f"{slots} slots, no-op jobs, {mode}, processor time of the {name}", 1e6 * spent / jobs, "us a job", jobs)


def speedup(options: Options) -> Rows:
    """Evaluations of 50 ms on a timer: what 1, 2, 4 and 8 workers make of a backlog."""
    jobs = options.count(240, 80)
    for mode in MODES if not options.quick else MODES[:1]:
        one_takes = 0.0
        for workers in (1, 2, 4, 8):
            with bench(mode, workers=workers) as here:
                until(lambda: here.scene.log("evalq-worker").count("event=start ") >= workers, "workers start")
                done = here.backlog("timer", jobs, sleep_ms="50")
            seconds = max(one.end for one in done) - min(one.start for one in done)
            one_takes = one_takes or seconds
            busy = sum(one.end - one.start for one in done) / seconds / workers
            yield Said(f"{workers} workers on a backlog of 50 ms evaluations, {mode}, speed-up", one_takes / seconds, "times", jobs)
            yield Said(f"{workers} workers on a backlog of 50 ms evaluations, {mode}, evaluators busy", 100 * busy, "%", jobs)


def visible(options: Options) -> Rows:
    """A complete checkpoint to its metric in the JSONL file, with an evaluation that takes no time."""
    jobs = options.count(200, 50)
    for mode in MODES:
        spent = []
        with bench(mode, logger=True) as here:
            here.ready()
            path = os.path.join(here.scene.out, "results", "seen", "results.jsonl")
            with here.scene.client("seen") as client:
                for step in range(jobs):
                    written = here.scene.checkpoint(f"part-{step}")
                    name = os.path.join(here.scene.out, f"step-{step}.safetensors")
                    size = os.stat(path).st_size if os.path.exists(path) else 0
                    os.rename(written, name)
                    began = time.monotonic()
                    client.submit(name, step=step, suites="noop")
                    while not (os.path.exists(path) and os.stat(path).st_size > size):
                        if time.monotonic() > began + 60:
                            raise SystemExit(f"the result of step {step} is not in {path} after 60 s")
                        time.sleep(0.0002)
                    spent.append(time.monotonic() - began)
                    until(lambda: len(here.ended()) > step + 1, "the job ends")
                    time.sleep(0.01)  # Its end's line, so that the next line is the next result's.
        yield from quantiles(f"checkpoint complete to metric in JSONL, {mode}", spent, "ms", ("<= 20", "<= 1000"), 95)


def killed_child(options: Options) -> Rows:
    """SIGKILL of the evaluator at work, to the job's next start."""
    spent = []
    with bench("off") as here:
        here.ready()
        with here.scene.client("child") as client:
            for step in range(options.count(40, 10)):
                client.submit(here.file("child", step), step=step, suites="noop", params={"sleep_first_ms": "60000"})
                job = f"child/{step}/regular/noop"
                first = until(lambda: [one for one in here.attempts() if one.job == job], "the job starts")[0]
                killed = time.monotonic()
                os.kill(first.pid, signal.SIGKILL)
                second = until(lambda: [one for one in here.attempts() if one.job == job and one.end], "the job ends")[-1]
                spent.append(second.start - killed)
    yield from quantiles("killed child to its job's next start", spent, "ms", ("", "<= 1000"))


def killed_worker(options: Options) -> Rows:
    """SIGKILL of a worker at work, to the start of its job on another that is idle; less the lease."""
    lease = 1.5
    spent = []
    for turn in range(options.count(5, 2)):
        with bench("off", lease_ms=int(1000 * lease)) as here:
            with here.scene.client("worker") as client:
                client.submit(here.file("worker", turn), step=turn, suites="noop", params={"sleep_first_ms": "60000"})
                until(lambda: here.attempts(), "the job starts")
            here.scene.start_worker()
            until(lambda: here.scene.log("evalq-worker").count("event=start ") >= 2, "the second worker starts")
            killed = time.monotonic()
            here.scene.processes[0].kill()
            second = until(lambda: here.ended(), "the job ends on the other")[-1]
            spent.append(second.start - killed - lease)
    yield from quantiles("killed worker to its job's next start, beyond the lease of 1.5 s", spent, "s", ("", "<= 10"))


def killed_redis(options: Options) -> Rows:
    """From a killed and restarted Redis that answers again to the start of a job that was submitted while it was away."""
    spent = []
    with bench("always") as here:
        here.ready()
        with here.scene.client("redis") as client:
            for step in range(options.count(10, 3)):
                here.scene.redis.kill()
                here.scene.redis.wait()
                client.submit(here.file("redis", step), step=step, suites="noop")
                here.scene.start_redis("--appendfsync", "always")
                began = time.monotonic()
                until(lambda: len(here.ended()) > step + 1, "the job ends")
                spent.append(here.attempts()[-1].start - began)
    yield from quantiles("killed Redis, answering again, to a job's start", spent, "s")


def wait_acknowledged(here: Bench, sinks: int, seconds: float) -> None:
    """Until every sink has every result: one redis-cli asks every 5 ms, so that asking costs next to nothing and the end is known so well."""
    words = ["redis-cli", "-s", here.scene.socket, "-r", "-1", "-i", "0.005", "XINFO", "GROUPS", "evalq:{main}:results"]
    deadline = time.monotonic() + seconds
    group: Dict[str, str] = {}
    settled: Dict[str, bool] = {}
    key = ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                if key:
                    group[key] = line.strip()
                    settled[group["name"]] = group.get("pending") == group.get("lag") == "0"
                    key = ""
                    if len(settled) >= sinks and all(settled.values()):
                        return
                elif line.strip() in ("name", "pending", "lag"):
                    key = line.strip()
                    group = {} if key == "name" else group
                if time.monotonic() > deadline:
                    break
        finally:
            process.kill()
    raise SystemExit(f"not every result is acknowledged within {seconds:g} s")


def logger(options: Options) -> Rows:
    """A backlog of results into JSONL and TensorBoard, from the logger's start to the last acknowledgement."""
    count = options.count(50000, 5000)
    for order in ("in step order", "shuffled"):
        with bench("off", workers=0) as here:
            if order == "shuffled":
                count //= 10
                words = [os.path.join(BIN, "publish_results"), here.scene.url, "curve", str(count), "1"]
                subprocess.run(words, input=f"{count}\n".encode(), stdout=subprocess.DEVNULL, check=True)
            else:
                for words in (["submit", str(count), "500"], ["publish", str(count)]):
                    subprocess.run([os.path.join(BIN, "evalq_noop"), here.scene.url, *words], stdout=subprocess.DEVNULL, check=True)
            began = time.monotonic()
            process = here.scene.start("evalq-logger")
            wait_acknowledged(here, 2, 600)
            seconds = time.monotonic() - began
            used = processor_seconds(process.pid)
        bar = ">= 50000" if order == "in step order" else ""
        yield Said(f"results into JSONL and TensorBoard, {order}, from the logger's start", count / seconds, "results/s", count, bar)
        yield Said(f"results into JSONL and TensorBoard, {order}, logger's processor time", 1e6 * used / count, "us each", count)


GROUPS = {
    "start": start,
    "noop": noop,
    "speedup": speedup,
    "visible": visible,
    "child": killed_child,
    "worker": killed_worker,
    "redis": killed_redis,
    "logger": logger,
}
