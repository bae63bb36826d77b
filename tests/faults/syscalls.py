#!/usr/bin/env python3
"""SIGKILL at the k-th system call of each program, for k = 1, 2, ... (short: a sample). After each kill the rest is run
to the end, and: every accepted submit has become its one job, every job its one result and its one end, every result
stands once in the sinks' files, the queue is whole, and no process is left. A part in which nothing was killed fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import List, Tuple

import parts
import sink_files
from stage import BIN, DEADLINE, TOOLS, arguments, free_port, until


class Part(parts.Part):
    """A program under kill_at."""

    child = False

    def __init__(self) -> None:
        super().__init__()
        self.said = ""

    def watched(self, at: int, *command: str, child: bool = False) -> "subprocess.Popen[str]":
        report = self.stage.path("report")
        if os.path.exists(report):
            os.unlink(report)
        words = [os.path.join(TOOLS, "kill_at"), "--at", str(at), "--report", report] + (["--child"] if child else [])
        with open(self.stage.path("struck.log"), "wb") as log:
            self.process = subprocess.Popen(
                words + ["--", *command], env=self.stage.environment(), cwd=self.stage.directory,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        return self.process

    def killed(self) -> bool:
        return os.path.exists(self.stage.path("report"))

    def report(self) -> Tuple[int, bool]:
        with open(self.stage.path("report"), encoding="utf-8") as file:
            _, calls, _, killed = file.read().split()
        return int(calls), killed != "0"

    def end(self, process: "subprocess.Popen[str]", seconds: float = DEADLINE) -> Tuple[int, bool]:
        """Calls and kills. It ends with the last process of the program: one that stays is a failure."""
        self.said = process.communicate(timeout=seconds)[0]
        return self.report()


class Worker(Part):
    name = "worker"
    short = 12

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        self.stage.put(run, [1], "native")
        self.stage.put(run, [1], "echo")
        process = self.watched(at, os.path.join(BIN, "evalq-worker"), child=self.child)
        # The supervisor of a killed child lives, and sees to it by itself.
        until(lambda: self.stage.ended() or (self.killed() and not self.child), "the jobs end, or the worker is killed")
        process.terminate()
        found = self.end(process)
        self.heal()
        self.stage.verify()
        return found


class Child(Worker):
    name = "child"
    child = True


class Logger(Part):
    name = "logger"
    short = 10
    steps = 4

    def command(self, directory: str) -> List[str]:
        return [os.path.join(BIN, "evalq-logger"), "--directory", directory]

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        directory = self.stage.path(f"results-{self.number}")
        self.stage.put(run, range(1, self.steps + 1))
        self.heal()
        process = self.watched(at, *self.command(directory))
        until(lambda: self.killed() or self.stage.taken(), "the logger is killed or has taken everything")
        process.terminate()
        found = self.end(process)
        self.heal_sinks(directory)
        sink_files.check(directory, {run: set(range(1, self.steps + 1))})
        return found


class Trainer(Part):
    name = "trainer"
    short = 12
    steps = 3

    def command(self, run: str, steps: int) -> List[str]:
        return [os.path.join(TOOLS, "trainer"), *parts.train_words(self.stage, run, steps)]

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        found = self.end(self.watched(at, *self.command(run, self.steps)))
        accepted = [int(line.split()[1]) for line in self.said.splitlines() if line.startswith("accepted")]
        if not found[1] and (len(accepted) != self.steps or "trained" not in self.said):
            raise AssertionError(f"a trainer that was not killed said {self.said!r}")
        subprocess.run(self.command(run, 0), env=self.stage.environment(), check=True, capture_output=True)
        # One more may be there: killed between the ring's last byte and the word that it was accepted.
        there = [step for step in range(1, self.steps + 1) if self.stage.state(run, step, "echo")]
        if there[: len(accepted)] != accepted or len(there) > len(accepted) + 1:
            raise AssertionError(f"{run}: accepted {accepted}, in the queue {there}")
        self.stage.expect(run, there, "echo")
        self.heal()
        self.stage.verify()
        return found


class Submit(Part):
    """A verb that is killed is called again: then its job is there, once."""

    name = "submit"
    short = 6

    def words(self, run: str) -> List[str]:
        return parts.submit_words(self.stage, run)

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        words = self.words(run)
        found = self.end(self.watched(at, os.path.join(BIN, "evalq"), *words))
        self.stage.evalq(*words, code=0)
        self.stage.expect(run, [1], "echo")
        self.heal()
        self.stage.verify()
        return found


class Scan(Submit):
    name = "scan"

    def words(self, run: str) -> List[str]:
        return parts.scan_words(self.stage, run)


class Install(Part):
    """The library is whole or not there; installed again it works."""

    name = "install"
    short = 6

    def once(self, at: int) -> Tuple[int, bool]:
        self.stage.call("FUNCTION", "FLUSH")
        found = self.end(self.watched(at, os.path.join(BIN, "evalq"), "admin", "install"))
        self.stage.evalq("admin", "install", code=0)
        self.stage.put(self.next_run(), [1])
        self.heal()
        self.stage.verify()
        return found


class Gateway(Part):
    """Who gets no answer asks again: one job."""

    name = "gateway"
    short = 6

    def __init__(self) -> None:
        super().__init__()
        self.front = parts.Front(self.stage)

    def post(self, run: str) -> str:
        code, document = self.front.ask("/v1/jobs", parts.job_body(run))
        return str(document["jobs"][0]["answer"]) if code == 200 else ""

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        self.stage.checkpoints(run, [1])
        self.stage.expect(run, [1], "echo")
        words = self.front.words(free_port())
        process = self.watched(at, os.path.join(BIN, "evalq-gateway"), *words)
        until(lambda: self.killed() or self.post(run), "an answer, or the gateway is killed")
        process.terminate()
        found = self.end(process)
        healer = self.stage.start("evalq-gateway", *words)
        until(lambda: self.post(run), "the gateway answers")
        self.end_healer(healer)
        self.heal()
        self.stage.verify()
        return found


class Up(Part):
    """All of it in one directory: after each kill nothing of it runs, and it starts again with all that it had."""

    name = "up"
    short = 4

    def words(self) -> List[str]:
        return ["up", "--dir", "up", "--workers", "1", "--", os.path.join(BIN, "evalq"), *self.submit]

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        path = os.path.join(self.stage.checkpoints(run, [1]), "step-1.safetensors")
        self.submit = ["submit", path, "--run", run, "--step", "1", "--suite", "echo"]
        found = self.end(self.watched(at, os.path.join(BIN, "evalq"), *self.words()))
        for _ in range(3):  # It waits ten seconds for the sinks at its end, which a busy machine may need.
            self.stage.evalq(*self.words(), code=0)
            recorded = self.stage.recorded("up/results") or self.stage.recorded("results")
            job = f"{run}/1/regular/echo"  # Its end's id has the attempt: it is the second's where all died before it.
            ends = sum(count for id, count in recorded.items() if id.startswith(f"{job}#=done."))
            times = [recorded.get(f"{job}#one", 0), ends]
            if times == [1, 1]:
                break
        if times != [1, 1]:
            raise AssertionError(f"the result and the end of {run} stand {times} times in JSONL")
        return found


PARTS = [Worker, Child, Logger, Trainer, Submit, Scan, Install, Gateway, Up]

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(parts.walk("syscalls", "system call", PARTS, arguments("SIGKILL at the k-th system call of each program")))
