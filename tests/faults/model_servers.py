#!/usr/bin/env python3
"""Kills of worker, evaluator and model server at random points, over several checkpoints and suites. `sh tests/faults/run.sh
model_servers` calls it; docs/faults.md has the figures.

    model_servers.py [--short | --long] [--seed N] [--minutes N]

The server is the stand-in of tests/standin/servers, which also goes wrong by itself. With --long and EVALQ_VLLM_PYTHON it is
vLLM, of the interpreter that this variable names. In the end every job must be done with the right number, published once, and no process may be left.
It fails if a kind of fault never struck."""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

from stage import DEADLINE, PREFIX, Stage, arguments, until

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

from scene import PACKAGE, SOURCE
from test_model_server import PROGRAM, STANDIN, write_safetensors

sys.path.insert(0, STANDIN)

from standin_server import weights_of

TASKS = {"own": ["own"], "two": ["x", "y"], "any": ["any"]}
SLIPS = ("die", "die_late", "hang", "hang_late", "error_late", "memory", "refuse", "silent", "stale")  # What the stand-in does by itself.
REQUESTS = 30  # Of one evaluation by the stand-in.
GONE_SECONDS = 30.0  # So long may what a killed worker started still live.
APART = 2e-3  # In fp32, numbers of two checkpoints differ by more than this, and those of vLLM and of Transformers by less than half.
REAL_REQUESTS = 8

EVALUATION = '''
import json, urllib.request

def run(url, key, model, tokenizer, samples, **more):
    values = []
    for number in range(REQUESTS):
        asked = {"model": model, "prompt": f"{number}+{number}=", "max_tokens": 1, "temperature": 0, "logprobs": 1}
        request = urllib.request.Request(url + "/completions", json.dumps(asked).encode(),
                                         {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            values.append(json.load(answer)["choices"][0]["logprobs"]["token_logprobs"][0])
    return {"value": sum(values) / len(values)}
'''

EXPECTED = '''
import json, sys, torch, transformers

for path in sys.argv[2:]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    values = []
    for number in range(int(sys.argv[1])):
        ids = tokenizer(f"{number}+{number}=", return_tensors="pt").input_ids
        with torch.no_grad():
            values.append(float(model(ids).logits[0, -1].log_softmax(-1).max()))
    print(json.dumps(sum(values) / len(values)))
'''

CONFIG = """
roots: {out: $OUT}
evaluators:
  server:
    kind: model_server
    python: SERVER_PYTHON
    harness_python: $PYTHON
    options: {max_model_len: 256, enforce_eager: true, dtype: float32}
    env: {PYTHONPATH: "PATHS", STANDIN_FAULT: $OUT/fault, STANDIN_STARTS: $OUT/starts, VLLM_CPU_KVCACHE_SPACE: 1, HF_HUB_OFFLINE: 1}
    directory: $OUT
    start_seconds: START_SECONDS
    hang_seconds: HANG_SECONDS
suites:
  own: {evaluator: server, harness: {kind: python, function: "my_eval:run"}}
  two: {evaluator: server, harness: {kind: python, function: "my_eval:run", tasks: [x, y]}}
  any: {evaluator: server, harness: {kind: command, argv: [$PYTHON, $OUT/program.py]}}
worker: {scratch: $SITE/scratch, lease_ms: 3000, heartbeat_ms: 600, drain_seconds: 1, devices: cpu, threads: 1}
"""


class Site(Stage):
    """A queue, one worker, checkpoints whose numbers are known."""

    def __init__(self, seed: int, real: bool) -> None:
        settings = {"SERVER_PYTHON": os.environ["EVALQ_VLLM_PYTHON"] if real else sys.executable, "START_SECONDS": "900" if real else "20"}
        settings.update(HANG_SECONDS="60" if real else "2", PATHS=f"{PACKAGE}:$OUT" if real else f"{PACKAGE}:{STANDIN}:$OUT")
        text = CONFIG
        for name, value in settings.items():
            text = text.replace(name, value)
        super().__init__(text)
        self.real, self.random = real, random.Random(seed)
        self.counts: "collections.Counter[str]" = collections.Counter()
        self.values: Dict[int, float] = {}  # By step.
        self.slip = ""  # What the stand-in shall do next.
        for name, source in (("my_eval.py", EVALUATION.replace("REQUESTS", str(REAL_REQUESTS if real else REQUESTS))), ("program.py", PROGRAM), ("fault", "")):
            self.write(os.path.join("out", name), source)

    def begin(self) -> None:
        self.start_redis()
        self.call("HSET", PREFIX + "meta", "attempts_max", 100)
        (self.trained if self.real else self.invented)()
        self.start_worker()

    # Checkpoints.

    def invented(self) -> None:
        """Six, of two architectures. The stand-in's answer is a function of the weights' bytes and of the prompt."""
        for step in range(1, 7):
            path, layers = os.path.join(self.out, "ck", str(step)), 2 + step // 4
            os.makedirs(path)
            self.write(os.path.join(path, "config.json"), json.dumps({"model_type": "standin", "vocab_size": 50, "layers": layers}))
            write_safetensors(os.path.join(path, "model.safetensors"), {f"{n}.weight": (2, [self.random.random()] * 4) for n in range(layers)})
            weights = weights_of(path)
            prompts = [[ord(letter) for letter in f"{number}+{number}="] for number in range(REQUESTS)]
            told = [hashlib.sha256(weights + json.dumps(ids).encode()).digest()[:4] for ids in prompts]
            self.values[step] = sum(-int.from_bytes(first, "big") / 2**29 for first in told) / len(told)

    def trained(self) -> None:
        """Four of one training. Their numbers are those of Transformers."""
        python, steps = os.environ["EVALQ_VLLM_PYTHON"], (30, 60, 90, 120)
        train = os.path.join(SOURCE, "producer", "examples", "warm_server", "addition.py")
        argv = [python, train, os.path.join(self.out, "ck"), "--steps", "120", "--every", "30"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        paths = [os.path.join(self.out, "ck", str(step)) for step in steps]
        for step, path in zip(steps, paths):
            os.rename(os.path.join(self.out, "ck", f"checkpoint-{step}"), path)
        done = subprocess.run([python, "-c", EXPECTED, str(REAL_REQUESTS), *paths], check=True, stdout=subprocess.PIPE)
        self.values = dict(zip(steps, map(json.loads, done.stdout.splitlines())))
        told = sorted(self.values.values())
        if not all(after - before > APART for before, after in zip(told, told[1:])):
            raise AssertionError(f"the checkpoints cannot be told apart: {told}")

    # Jobs.

    def submit(self, run: str, suites: "List[str]") -> "List[str]":
        jobs = []
        for suite in suites:  # Not by checkpoint: so the worker has something to put in order.
            for step in self.values:
                message = {"run": run, "step": step, "suite": suite, "root": "out", "path": f"ck/{step}"}
                if self.function("put", json.dumps(message))[0] != b"queued":
                    raise AssertionError(f"{run}/{step} was not queued")
                jobs.append(f"{run}/{step}/regular/{suite}")
        return jobs

    def state_of(self, job: str) -> str:
        return (self.call("HGET", f"{PREFIX}job:{job}", "state") or b"").decode()

    def published(self) -> "Iterator[Tuple[str, str, float]]":
        """(job, task, value) of each result in the stream."""
        for _, fields in self.call("XRANGE", PREFIX + "results", "-", "+"):
            named = dict(zip(fields[::2], fields[1::2]))
            if named[b"task"]:
                yield named[b"job"].decode(), named[b"task"].decode(), float(named[b"metric:value"])

    def retry_dead(self, jobs: "List[str]") -> "List[str]":
        """Somebody retries what was killed too often. Some get another generation, which is another job."""
        for number, job in enumerate(jobs):
            if self.state_of(job) == "dead":
                jobs[number] = self.function("retry", job)[1].decode()
                self.counts["retried by hand"] += 1
        return jobs

    # Processes.

    def alive(self) -> "Dict[str, List[int]]":
        """Those that the worker started for its model server, by what they are."""
        found: "Dict[str, List[int]]" = {"evaluator": [], "server": [], "engine": [], "other": []}
        mark = f"STANDIN_STARTS={self.out}/starts".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = file.read().split(b"\0")
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if mark not in environment or not command:  # A zombie has no command line.
                continue
            kind = "server" if b"vllm.entrypoints" in command else "engine" if b"EngineCore" in command else "other"
            found["evaluator" if b"evalq.model_server" in command else kind].append(int(name))
        return found

    def strike(self, kind: str, number: int = signal.SIGKILL) -> bool:
        pids = self.alive()[kind]
        if not pids:
            return False
        try:
            os.kill(self.random.choice(pids), number)
        except ProcessLookupError:
            return False
        self.counts[("stop " if number == signal.SIGSTOP else "kill ") + kind] += 1
        return True

    def everything(self) -> "set[int]":
        return {pid for pids in self.alive().values() for pid in pids}

    def end_worker(self, number: int) -> None:
        """Everything that it started must end with it."""
        worker, before = self.processes.pop(), self.everything()
        worker.send_signal(number)
        worker.wait(DEADLINE)
        began = time.monotonic()
        until(lambda: not before & self.everything(), "nothing is left of a worker that ended", GONE_SECONDS)
        self.counts["ms, the longest until all of a worker was gone"] = max(
            self.counts["ms, the longest until all of a worker was gone"], int(1000 * (time.monotonic() - began))
        )

    def kill_worker(self) -> bool:
        self.end_worker(signal.SIGKILL)
        self.counts["kill worker"] += 1
        self.start_worker()
        return True

    # The stand-in's own faults.

    def let_slip(self, name: str) -> bool:
        """Tells the stand-in to go wrong once. It empties the file when it does."""
        path = os.path.join(self.out, "fault")
        if self.slip:
            return False
        self.slip = name
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write("once:" + name)
        os.rename(path + ".new", path)
        return True

    def note_slip(self) -> None:
        if self.slip and os.path.getsize(os.path.join(self.out, "fault")) == 0:
            self.counts["fault " + self.slip] += 1
            self.slip = ""

    def no_slip(self) -> None:
        self.note_slip()
        self.slip = ""
        self.write("out/fault", "")

    # The end.

    def check(self, jobs: "List[str]") -> None:
        """Every job is done, with each of its numbers, which are right."""
        numbers = collections.defaultdict(list)
        for job, task, value in self.published():
            step = int(job.split("/")[1])
            near = APART / 2 if self.real else 1e-12
            if not abs(value - self.values[step]) <= near:
                print(self.log("evalq-worker").partition(f"event=task_done job={job} ")[0][-20000:])
                raise AssertionError(f"{job}#{task}: {value}, expected {self.values[step]}")
            numbers[job, task].append(value)
        for job in jobs:
            suite = job.split("/")[3].split("~")[0]
            for task in TASKS[suite]:
                if len(numbers[job, task]) != 1:
                    raise AssertionError(f"{job} is '{self.state_of(job)}' and has {len(numbers[job, task])} numbers of task '{task}'")
        self.audit()


def kinds(site: Site) -> "Dict[str, Tuple[float, Callable[[], bool]]]":
    """What strikes: name -> (weight, how)."""
    found: "Dict[str, Tuple[float, Callable[[], bool]]]" = {
        "kill worker": (1, site.kill_worker),
        "kill evaluator": (2, lambda: site.strike("evaluator")),
        "kill server": (2, lambda: site.strike("server")),
        "stop server": (1, lambda: site.strike("server", signal.SIGSTOP)),
    }
    if site.real:
        found["kill engine"] = (2, lambda: site.strike("engine"))
        return found
    return {**found, **{"fault " + name: (1.5, functools.partial(site.let_slip, name)) for name in SLIPS}}


def storm(site: Site, seconds: float) -> "List[str]":
    """Faults at random points until the time is over and each kind has struck. All jobs, whether they have ended or not."""
    pause = (2.0, 60.0) if site.real else (0.1, 2.0)
    all_kinds = kinds(site)
    jobs: "List[str]" = []
    end, last, run = time.monotonic() + seconds, time.monotonic() + 4 * seconds + 300, 0
    while time.monotonic() < last:
        never = [name for name in all_kinds if not site.counts[name]]
        jobs = site.retry_dead(jobs)
        if all(site.state_of(job) == "done" for job in jobs):
            if time.monotonic() > end and not never:
                break
            jobs += site.submit(f"run{run}", list(TASKS))
            run += 1
        time.sleep(site.random.uniform(*pause))  # The next fault comes at a random point of what runs.
        site.note_slip()
        if never and (time.monotonic() > end or site.random.random() < 0.5):
            all_kinds[site.random.choice(never)][1]()
        else:
            site.random.choices([how for _, how in all_kinds.values()], [weight for weight, _ in all_kinds.values()])[0]()
    site.no_slip()
    return jobs


def one_round(seed: int, seconds: float, real: bool) -> "collections.Counter[str]":
    site = Site(seed, real)
    try:
        site.begin()
        jobs = storm(site, seconds)
        if "worker_sick" in site.log("evalq-worker"):  # Several jobs crashed on it, one after the other: it claims no more.
            site.kill_worker()
        until(lambda: all(site.state_of(job) == "done" for job in site.retry_dead(jobs)), "every job is done", 1800 if real else DEADLINE)
        site.check(jobs)
        site.end_worker(signal.SIGTERM)
        left = {kind: pids for kind, pids in site.alive().items() if pids}
        if left:
            raise AssertionError(f"processes are left: {left}")
        never = [name for name in kinds(site) if not site.counts[name]]
        if never:
            raise AssertionError(f"never happened: {', '.join(never)}")
        site.counts["jobs"] += len(jobs)
        site.counts["numbers"] += sum(1 for _ in site.published())
        starts = os.path.join(site.out, "starts")
        if os.path.exists(starts):
            with open(starts, encoding="utf-8") as file:
                site.counts["servers started"] += sum(1 for _ in file)
        return site.counts
    except BaseException:
        if site.count("evalq-worker", ""):
            print(site.log("evalq-worker")[-4000:])
        raise
    finally:
        site.close()


def main() -> int:
    given = arguments("kills of worker, evaluator and model server", minutes=10.0)
    real = given.long and "EVALQ_VLLM_PYTHON" in os.environ
    counts = one_round(given.seed, 60 * given.minutes if given.long else 0, real)
    for name in sorted(counts):
        print(f"  {name} {counts[name]}")
    kills = sum(counts[name] for name in counts if name.startswith("kill "))
    print(f"model_servers: {counts['jobs']} jobs, {kills} kills")
    return 0


if __name__ == "__main__":
    sys.exit(main())
