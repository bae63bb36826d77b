#!/usr/bin/env python3
"""No descriptor is left: programs that are started with few, programs whose limit falls while they run, and a Redis that
takes no more connections. Each ends with a documented exit code and one sentence, or waits, says so once, and goes on by
itself when there are some again; then every job has ended and is recorded once. A training goes on in any case."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
from typing import List, Tuple

import parts
import sink_files
from stage import BIN, DEADLINE, PREFIX, Stage, arguments, free_port, until
from trial import Trial, run_all

CODES = (0, 1, 5, 8, 9)  # docs/troubleshooting.md
LIMITS = range(4, 48)  # With less not even the loader finds its libraries.
ERROR = "Too many open files"


def loud(text: str) -> List[str]:
    """Warnings, errors, and what stands before no level: the last words of a program."""
    return [line for line in text.splitlines() if " level=info " not in line and " level=debug " not in line and line]


class AtStart(Trial):
    """A program with so few from the start."""

    program = ""
    short = 6

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage()

    def words(self) -> List[str]:
        return []

    def works(self, text: str) -> bool:
        """Of one that stays."""
        return False

    def limited(self, limit: int) -> Tuple[int, str]:
        """How it ended, and what it said."""
        with open(self.stage.path("told"), "wb") as told:
            process = subprocess.Popen(
                [os.path.join(BIN, self.program), *self.words()], env=self.stage.environment(), cwd=self.stage.directory,
                stdout=subprocess.DEVNULL, stderr=told,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
            )  # fmt: skip
            try:
                until(lambda: process.poll() is not None or self.works(self.told()), f"{self.program} works or ends with {limit}")
            finally:
                process.terminate()
                code = process.wait(DEADLINE)
        return code, self.told()

    def told(self) -> str:
        with open(self.stage.path("told"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def run(self) -> None:
        self.stage.start_redis()
        for limit in sorted({LIMITS[0], *random.Random(self.seed).sample(LIMITS, self.short)}):
            self.stage.put(f"with-{limit}", [1])
            code, told = self.limited(limit)
            lines = loud(told)
            if code not in CODES:
                raise AssertionError(f"with {limit} it ended with {code}: {told}")
            said = {re.sub(r"time=\S+ ", "", line) for line in lines if "event=child_died" not in line}
            if len(said) > 3 or (code != 0 and not lines):
                raise AssertionError(f"with {limit} it ended with {code} and said {told}")
            if code != 0 or ERROR in told:
                self.struck += 1
                self.sentence = lines[-1]
        worker = self.stage.start_worker()
        until(self.stage.ended, "every job ends")
        worker.terminate()
        worker.wait(DEADLINE)
        self.stage.audit()


class WorkerAtStart(AtStart):
    name, program = "worker with few", "evalq-worker"

    def works(self, text: str) -> bool:
        # Without a child, or without room for a job, it waits for descriptors, and says so.
        return any("event=" + event in text for event in ("job_done", "child_start_failed", "slot_out", "suite_paused", "redis_away"))


class LoggerAtStart(AtStart):
    name, program = "logger with few", "evalq-logger"

    def words(self) -> List[str]:
        return ["--directory", self.stage.path("results")]

    def works(self, text: str) -> bool:
        return "event=logger_started" in text and (len(self.stage.sinks()) == 3 or "event=sink_waits" in text)


class GatewayAtStart(AtStart):
    name, program = "gateway with few", "evalq-gateway"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.front = parts.Front(self.stage)

    def words(self) -> List[str]:
        return self.front.words(free_port())

    def works(self, text: str) -> bool:
        return "event=gateway_started" in text


class ScanAtStart(AtStart):
    """What it could not submit, the next one does."""

    name, program = "scan with few", "evalq"
    short = 12

    def words(self) -> List[str]:
        return parts.scan_words(self.stage, "scanned")

    def run(self) -> None:
        super().run()
        self.stage.evalq(*self.words(), code=0)
        self.stage.expect("scanned", [1], "echo")
        worker = self.stage.start_worker()
        until(self.stage.ended, "every job ends")
        worker.terminate()
        worker.wait(DEADLINE)
        self.stage.audit()


class TrainingAtStart(Trial):
    """The training ends in order, and what it was told is accepted becomes jobs."""

    name = "training with few"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage()

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        for limit in sorted({LIMITS[0], *random.Random(self.seed).sample(LIMITS, 12)}):
            stage.limit = limit
            accepted = stage.trainer("run", 100 * limit, 2, flush_ms=1000)
            self.struck += len(accepted) < 2 or ERROR in stage.said + stage.without
            lines = stage.said.splitlines()
            if len(set(lines)) != len(lines):
                raise AssertionError(f"with {limit} the training said {lines}")
            self.sentence = stage.without or stage.said.split("\n")[0] or self.sentence
        stage.limit = 0
        stage.trainer("run", 1, 1)
        worker = stage.start_worker()
        until(stage.ended, "every job ends")
        worker.terminate()
        worker.wait(DEADLINE)
        stage.verify()


class Midst(Trial):
    """The limit of a program falls to what it has open, and rises again."""

    programs = ("evalq-worker", "evalq-logger", "evalq-gateway")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage()
        self.before: List[Tuple[int, Tuple[int, int]]] = []

    def take(self, pid: int) -> None:
        """No number is left beneath the limit: what it opens between two of them is opened for it."""
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        self.before.append((pid, limits))
        numbers = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(numbers) + 1, limits[1]))

    def give_back(self) -> None:
        for pid, limits in self.before:
            try:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            except ProcessLookupError:
                pass  # A child that was replaced.
        self.before = []

    def child(self, pid: int) -> int:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return int(file.read().split()[0])

    def ends_well(self, process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        if process.wait(DEADLINE) != 0:
            raise AssertionError(f"a program ended with {process.returncode}")


class WorkerMidst(Midst):
    """The evaluator's process has none left: no attempt is spent."""

    name = "worker runs out"

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        worker = stage.start("evalq-worker")
        stage.put("before", [1])
        until(stage.ended, "what came before ends")
        self.take(self.child(worker.pid))
        stage.put("during", range(1, 4))
        until(lambda: stage.count("evalq-worker", "ending=disk_full") >= 3, "the worker meets it several times")
        self.struck = stage.count("evalq-worker", "ending=disk_full")
        self.give_back()
        until(stage.ended, "every job ends")
        self.ends_well(worker)
        stage.verify()
        for run, step, suite in stage.runs:
            if stage.call("HGET", f"{PREFIX}job:{run}/{step}/regular/{suite}", "attempts") != b"1":
                raise AssertionError(f"{run}/{step} was charged")
        lines = loud(stage.log("evalq-worker"))
        if len(lines) != 1 or ERROR not in lines[0]:
            raise AssertionError(f"the worker said {lines}")
        self.sentence = lines[0]


class SupervisorMidst(Midst):
    """The supervisor has none left, and its child dies."""

    name = "supervisor runs out"

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        worker = stage.start("evalq-worker")
        stage.put("before", [1])
        until(stage.ended, "what came before ends")
        os.kill(self.child(worker.pid), signal.SIGSTOP)
        self.take(worker.pid)
        os.kill(self.child(worker.pid), signal.SIGKILL)
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (self.lowest(worker.pid), self.before[0][1][1]))
        stage.put("during", range(1, 4))
        until(lambda: stage.count("evalq-worker", "event=child_start_failed") == 1, "no child can be started")
        self.struck = 1
        self.give_back()
        until(stage.ended, "every job ends")
        self.ends_well(worker)
        stage.verify()
        lines = [line for line in loud(stage.log("evalq-worker")) if "event=child_died" not in line]
        if len(lines) > 1 and "event=job_not_started" in lines[0]:  # One that was sent before the death showed.
            lines.pop(0)
        if len(lines) != 1 or ERROR not in lines[0]:
            raise AssertionError(f"the worker said {lines}")
        self.sentence = lines[0]

    def lowest(self, pid: int) -> int:
        """Of the numbers that it has not open."""
        numbers = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        return min(set(range(max(numbers) + 2)) - numbers)


class LoggerMidst(Midst):
    """A run that comes new finds no descriptor for its files."""

    name = "logger runs out"

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        worker = stage.start("evalq-worker")
        logger = stage.start("evalq-logger")
        stage.put("old", range(1, 3))
        until(lambda: stage.ended() and stage.taken(), "what came before is recorded")
        self.take(logger.pid)
        stage.put("new", range(1, 5))
        stage.put("other", range(1, 5))
        until(lambda: stage.count("evalq-logger", ERROR) >= 1, "the logger meets it")
        until(stage.ended, "no job waits for it")
        self.give_back()
        until(stage.taken, "all is recorded")
        for program in (logger, worker):
            self.ends_well(program)
        stage.all_done()
        sink_files.check(stage.path("results"), {"old": {1, 2}, "new": {1, 2, 3, 4}, "other": {1, 2, 3, 4}})
        lines = loud(stage.log("evalq-logger"))
        self.struck, self.sentence = len(lines), lines[0]
        if len(lines) > stage.count("evalq-logger", "event=sink_back"):  # Once in each sink's outage.
            raise AssertionError(f"the logger said {lines}")


class GatewayMidst(Midst):
    """Who comes waits, and is served when there is one again; meanwhile it does not spin."""

    name = "gateway runs out"

    def run(self) -> None:
        stage = self.stage
        front = parts.Front(stage)
        stage.start_redis()
        gateway = stage.start("evalq-gateway", *front.words(free_port()))
        until(lambda: front.ask("/healthz")[0] == 200, "the gateway answers")
        stage.checkpoints("run", [1])
        if front.ask("/v1/jobs", parts.job_body("run"))[0] != 200:
            raise AssertionError("a submit was not answered")
        stage.expect("run", [1], "echo")
        self.take(gateway.pid)
        waiting = [self.connect(front.port) for _ in range(20)]
        until(lambda: self.processor_ms(gateway.pid) >= 0, "it is looked at")
        before = self.processor_ms(gateway.pid)
        try:
            until(lambda: False, "a while has passed", 3)
        except AssertionError:
            pass
        spent = self.processor_ms(gateway.pid) - before
        self.struck = len(waiting)
        self.give_back()
        for client in waiting:
            client.close()
        until(lambda: front.ask("/v1/jobs", parts.job_body("run"))[0] == 200, "it serves again")
        self.sentence = f"{spent} ms of processor time in 3 s"
        if spent > 1500:
            raise AssertionError(f"the gateway spins: {self.sentence}")
        worker = stage.start("evalq-worker")
        until(stage.ended, "every job ends")
        for program in (gateway, worker):
            self.ends_well(program)
        stage.verify()

    def connect(self, port: int) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        return client

    def processor_ms(self, pid: int) -> int:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            words = file.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) * 1000 // os.sysconf("SC_CLK_TCK")


class NoConnection(Trial):
    """Redis has as many clients as it takes when the programs start."""

    name = "no connection at the start"
    programs = ("evalq-worker", "evalq-logger")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage()

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        stage.call("CONFIG", "SET", "maxclients", 1)
        scanned = parts.scan_words(stage, "scanned")
        worker, logger = stage.start("evalq-worker"), stage.start("evalq-logger")
        for words in (scanned, ["status"]):  # After some seconds.
            lines = loud(stage.evalq(*words, code=5).stderr)
            if len(lines) != 2 or "max number of clients" not in lines[1]:  # That it tries for a while, and why it ends.
                raise AssertionError(f"it said {lines}")
            self.struck += 1
            self.sentence = lines[1]
        if logger.wait(DEADLINE) != 5 or len(loud(stage.log("evalq-logger"))) != 1:  # Its service starts it again.
            raise AssertionError(f"the logger ended with {logger.returncode}: {stage.log('evalq-logger')}")
        if stage.trainer("run", 1, 3, flush_ms=1000) != [1, 2, 3]:
            raise AssertionError("the training's submits were not accepted")
        lines = stage.said.splitlines()
        if len(lines) != 2 or "max number of clients" not in lines[0] or "ends with 3 of its submits unsent" not in lines[1]:
            raise AssertionError(f"the training said {lines}")
        stage.call("CONFIG", "SET", "maxclients", 1000)
        stage.trainer("run", 1, 0)
        stage.evalq(*scanned, code=0)
        stage.expect("scanned", [1], "echo")
        until(stage.ended, "the worker, which waits at its start, goes on")
        worker.terminate()
        if worker.wait(DEADLINE) != 0:
            raise AssertionError(f"the worker ended with {worker.returncode}")
        stage.verify()


TRIALS = [
    WorkerAtStart, LoggerAtStart, GatewayAtStart, ScanAtStart, TrainingAtStart, WorkerMidst, SupervisorMidst, LoggerMidst,
    GatewayMidst, NoConnection,
]  # fmt: skip

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all("descriptors", TRIALS, arguments("no descriptor is left"), 20, 4))
