"""What the sets of faults stand on: a scene with a connection to its Redis, jobs that are put in and must come out,
and the sum of what was counted. Nothing sleeps: conditions are waited for, with a deadline."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

import sink_files
from done import Done

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))

from scene import BIN, BUILD, DATA, DEADLINE, Scene, free_port, until  # noqa: E402,F401

PREFIX = "evalq:{main}:"
ENDS = ("done", "dead", "skipped", "cancelled")
TOOLS = os.path.join(BUILD, "faults")  # kill_at, trainer and what is preloaded.

CONFIG = """
roots: {out: $OUT}
evaluators:
  echo: {kind: command, command: [$SITE/echo.sh]}
suites:
  native:
    tasks:
      - name: digits
        type: classification
        model: {activation: relu}
        data: {format: idx, inputs: $DATA/t10k-images-idx3-ubyte.gz, labels: $DATA/t10k-labels-idx1-ubyte.gz, limit: 20}
  echo: {evaluator: echo, tasks: [{name: one, type: any}]}
worker: {scratch: $SITE/scratch, lease_ms: 300, heartbeat_ms: 60, drain_seconds: 1, devices: cpu, threads: 1}
logger: {directory: $SITE/results, sinks: [{kind: jsonl}, {kind: csv}, {kind: tensorboard}, {kind: best, enabled: false}]}
"""
TASKS = {"native": "digits", "echo": "one"}


class Refused(Exception):
    """An error reply."""


class Redis:
    """One connection: as much of RESP2 as the tests need."""

    def __init__(self, path: str, seconds: float = 30, password: str = "") -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")
        if password:
            self.call("AUTH", password)

    def send(self, *words: Any) -> None:
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))

    def call(self, *words: Any) -> Any:
        self.send(*words)
        return self.read()

    def read(self) -> Any:
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("Redis closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        return rest

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def checkpoint_bytes(seed: int) -> bytes:
    """A safetensors file of a small classifier of 784 inputs."""
    head = json.dumps(
        {
            "0.weight": {"dtype": "F32", "shape": [10, 784], "data_offsets": [0, 31360]},
            "0.bias": {"dtype": "F32", "shape": [10], "data_offsets": [31360, 31400]},
        }
    ).encode()
    head += b" " * (-len(head) % 8)
    dice = random.Random(seed)
    return struct.pack("<Q", len(head)) + head + struct.pack("<7850f", *(dice.random() for _ in range(7850)))


class Stage(Scene):
    """A scene whose jobs are counted."""

    def __init__(self, config: str = CONFIG) -> None:
        super().__init__()
        self.connection: Optional[Redis] = None
        self.runs: List[Tuple[str, int, str]] = []  # What was put in: run, step, suite.
        self.mounts: List[str] = []  # Unmounted at the end.
        self.limit = 0  # Of the descriptors of the trainings to come; 0: as it is.
        self.said = ""  # By the last training, on standard error;
        self.without = ""  # and of the client that it could not open.
        self.write("echo.sh", "#!/bin/sh\necho '{\"value\": 1}' >\"$EVALQ_RESULT\"\n", 0o755)
        self.write_config(config.replace("$SITE", self.directory))

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def call(self, *words: Any) -> Any:
        """On a connection that is made anew when the last one broke."""
        if self.connection is None:
            self.connection = Redis(self.socket)
        try:
            return self.connection.call(*words)
        except OSError:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def function(self, name: str, *words: Any) -> Any:
        return self.call("FCALL", "evalq_v1_" + name, "1", PREFIX, *words)

    def checkpoints(self, run: str, steps: Iterable[int]) -> str:
        """out/RUN/step-N.safetensors of each step: the directory."""
        directory = os.path.join(self.out, run)
        os.makedirs(directory, exist_ok=True)
        for step in steps:
            with open(os.path.join(directory, f"step-{step}.safetensors"), "wb") as file:
                file.write(checkpoint_bytes(step))
        return directory

    def expect(self, run: str, steps: Iterable[int], suite: str) -> None:
        self.runs += [(run, step, suite) for step in steps]

    def put(self, run: str, steps: Iterable[int], suite: str = "echo") -> None:
        """Submits them, past the client library; each must be accepted."""
        steps = list(steps)
        self.checkpoints(run, steps)
        for step in steps:
            message = {"run": run, "step": step, "suite": suite, "root": "out", "path": f"{run}/step-{step}.safetensors"}
            answer = self.function("put", json.dumps(message))[0]
            if answer != b"queued":
                raise AssertionError(f"{run}/{step}: {answer!r}")
        self.expect(run, steps, suite)

    def descriptors_limit(self) -> None:
        if self.limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.limit, self.limit))

    def trainer(self, run: str, first: int, count: int, suite: str = "echo", flush_ms: int = 5000) -> List[int]:
        """A training that submits and ends: the steps that the client accepted. They are expected from now on."""
        directory = self.checkpoints(run, range(first, first + count))
        words = [run, self.ring, str(first), str(count), directory, suite, str(flush_ms)]
        done = subprocess.run(
            [os.path.join(TOOLS, "trainer"), *words], env=self.environment(), cwd=self.directory,
            capture_output=True, text=True, timeout=DEADLINE, check=False, preexec_fn=self.descriptors_limit,
        )  # fmt: skip
        if done.returncode != 0 or not done.stdout.endswith("trained\n"):
            raise AssertionError(f"the training ended with {done.returncode}: {done.stdout} {done.stderr}")
        self.said = done.stderr.strip()
        self.without = next((line for line in done.stdout.splitlines() if line.startswith("without ")), "")
        accepted = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("accepted")]
        self.expect(run, accepted, suite)
        return accepted

    def evalq(self, *words: str, code: Optional[int] = None, seconds: float = DEADLINE) -> "subprocess.CompletedProcess[str]":
        """Runs the program to its end; code: what it must end with."""
        done = subprocess.run(
            [os.path.join(BIN, "evalq"), *words],
            env=self.environment(), cwd=self.directory, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        if code is not None and done.returncode != code:
            raise AssertionError(f"evalq {' '.join(words)}: {done.returncode}, expected {code}: {done.stderr}")
        return done

    def state(self, run: str, step: int, suite: str) -> str:
        return (self.call("HGET", f"{PREFIX}job:{run}/{step}/regular/{suite}", "state") or b"").decode()

    def ended(self, jobs: Optional[List[Tuple[str, int, str]]] = None) -> bool:
        try:
            return all(self.state(*job) in ENDS for job in (self.runs if jobs is None else jobs))
        except (OSError, Refused):
            return False

    def sinks(self) -> List[Dict[str, Any]]:
        return list(json.loads(self.function("stats"))["sinks"])

    def taken(self) -> bool:
        """All three sinks have all there is."""
        sinks = self.sinks()
        return len(sinks) == 3 and not any(sink["pending"] or sink["lag"] for sink in sinks)

    def count(self, program: str, words: str) -> int:
        """How often they stand in the log of a program, which may not have been started."""
        return self.log(program).count(words) if os.path.exists(self.path(program + ".log")) else 0

    def audit(self) -> None:
        cursor = ""
        while True:
            answer = json.loads(self.function("audit", cursor))
            if answer["problems"]:
                raise AssertionError(f"audit: {answer['problems']}")
            cursor = answer["cursor"]
            if cursor == "":
                return

    def entries(self) -> Dict[str, int]:
        """How often each result stands in the stream, by JOB#TASK; an end has no task."""
        found: Dict[str, int] = {}
        for _, fields in self.call("XRANGE", PREFIX + "results", "-", "+"):
            named = dict(zip(fields[::2], fields[1::2]))
            name = (named[b"job"] + b"#" + named[b"task"]).decode()
            found[name] = found.get(name, 0) + 1
        return found

    def verify(self, states: Tuple[str, ...] = ("done",)) -> int:
        """Every job that was put in has ended so, its result and its end were published once each, no other was,
        and the queue is whole. How many there were."""
        entries = self.entries()
        for run, step, suite in self.runs:
            job = f"{run}/{step}/regular/{suite}"
            state = self.state(run, step, suite)
            if state not in states:
                raise AssertionError(f"{job} is '{state}', expected one of {states}")
            if entries.pop(job + "#", 0) != 1:
                raise AssertionError(f"{job} has not one end in the stream")
            if entries.pop(f"{job}#{TASKS[suite]}", 0) != (1 if state == "done" else 0):
                raise AssertionError(f"{job} is '{state}' and has not its one result in the stream")
        if entries:
            raise AssertionError(f"entries that nobody asked for: {entries}")
        self.audit()
        return len(self.runs)

    def all_done(self) -> None:
        """As verify(), where the sinks have had the entries, which may be trimmed since."""
        self.audit()
        for job in self.runs:
            if self.state(*job) != "done":
                raise AssertionError(f"{job} is '{self.state(*job)}'")

    def recorded(self, directory: str = "results") -> Dict[str, int]:
        """How often each result stands in whole lines of the JSONL files, by its id."""
        return sink_files.recorded(self.path(directory))

    def close(self) -> None:
        self.hang_up()
        for process in self.processes:
            process.terminate()
        self.stop_redis()
        for mount in self.mounts:
            subprocess.run(["umount", "--lazy", mount], check=False)
        super().close()


def points(total: int, given: argparse.Namespace, count: int) -> List[int]:
    """Of 1 to total: every one in the long form, a sample from the seed in the short one."""
    if given.long:
        return list(range(1, total + 1))
    return sorted(random.Random(given.seed).sample(range(1, total + 1), min(count, total)))


def arguments(description: str, minutes: float = 0.0) -> argparse.Namespace:
    """--short, --long, --seed, --resume, --only: of every set."""
    parser = argparse.ArgumentParser(description=description)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="a sample, for every day (default)")
    length.add_argument("--long", action="store_true", help="everything")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("EVALQ_TEST_SEED", time.time_ns() & 0xFFFFFFFF)))
    parser.add_argument("--resume", default="", metavar="FILE", help="keeps what is done in it, and leaves that out")
    parser.add_argument("--only", default="", help="the parts whose name holds this")
    if minutes:
        parser.add_argument("--minutes", type=float, default=minutes, help="how long faults happen with --long")
    given = parser.parse_args()
    given.done = Done(given.resume)
    print("seed", given.seed, flush=True)
    if shutil.which("redis-server") is None:
        print("SKIPPED: redis-server is not installed")
        sys.exit(77)
    return given
