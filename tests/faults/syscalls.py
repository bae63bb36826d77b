#!/usr/bin/env python3
"""SIGKILL at the k-th system call of each program, for k = 1, 2, ... (short: a sample). After each kill the rest is run
to the end, and: every accepted submit has become its one job, every job its one result and its one end, every result
stands once in the sinks' files, the queue is whole, and no process is left. A part in which nothing was killed fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import List, Tuple

import sink_files
from stage import BIN, TOOLS, Stage, arguments, free_port, points, until

TOKEN = "a-token-of-the-test-which-writes"


class Part:
    """A program and what it has to do. once(k) does it on a job of its own and checks what became of it."""

    name = ""
    short = 8  # Kills in the short form.
    child = False

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.start_redis()
        self.number = 0  # Of the run.
        self.said = ""

    def close(self) -> None:
        self.stage.close()

    def watched(self, at: int, *command: str, child: bool = False) -> "subprocess.Popen[str]":
        report = self.stage.path("report")
        if os.path.exists(report):
            os.unlink(report)
        words = [os.path.join(TOOLS, "kill_at"), "--at", str(at), "--report", report] + (["--child"] if child else [])
        with open(self.stage.path("watched.log"), "wb") as log:
            return subprocess.Popen(
                words + ["--", *command], env=self.stage.environment(), cwd=self.stage.directory,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def killed(self) -> bool:
        return os.path.exists(self.stage.path("report"))

    def report(self) -> Tuple[int, int]:
        with open(self.stage.path("report"), encoding="utf-8") as file:
            _, calls, _, killed = file.read().split()
        return int(calls), int(killed)

    def end(self, process: "subprocess.Popen[str]", seconds: float = 60) -> Tuple[int, int]:
        """Calls and kills. It ends with the last process of the program: one that stays is a failure."""
        self.said = process.communicate(timeout=seconds)[0]
        return self.report()

    def once(self, at: int) -> Tuple[int, int]:
        raise NotImplementedError

    def heal(self) -> None:
        """A worker that is not killed, until all jobs have ended."""
        if self.stage.ended():
            return
        worker = self.stage.start_worker()
        until(self.stage.ended, "every job ends")
        worker.terminate()
        if worker.wait(60) != 0:
            raise AssertionError(f"the worker that healed ended with {worker.returncode}")
        self.stage.processes.remove(worker)


class Worker(Part):
    name = "worker"
    short = 12

    def once(self, at: int) -> Tuple[int, int]:
        self.number += 1
        self.stage.put(f"k{self.number}", [1], "native")
        self.stage.put(f"k{self.number}", [1], "echo")
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

    def taken(self) -> bool:
        sinks = json.loads(self.stage.function("stats"))["sinks"]
        return len(sinks) == 3 and not any(sink["pending"] or sink["lag"] for sink in sinks)

    def once(self, at: int) -> Tuple[int, int]:
        self.number += 1
        run = f"k{self.number}"
        directory = self.stage.path(f"results-{self.number}")
        self.stage.put(run, range(1, self.steps + 1))
        self.heal()
        process = self.watched(at, *self.command(directory))
        until(lambda: self.killed() or self.taken(), "the logger is killed or has taken everything")
        process.terminate()
        found = self.end(process)
        healer = self.stage.start("evalq-logger", "--directory", directory)
        until(lambda: self.taken() and self.stage.log("evalq-logger").count("event=logger_started") == self.number, "all is taken")
        healer.terminate()
        if healer.wait(60) != 0:
            raise AssertionError(f"the logger that healed ended with {healer.returncode}")
        self.stage.processes.remove(healer)
        sink_files.check(directory, {run: set(range(1, self.steps + 1))})
        return found


class Trainer(Part):
    name = "trainer"
    short = 12
    steps = 3

    def trainer(self, run: str, count: int) -> List[str]:
        directory = self.stage.checkpoints(run, range(1, count + 1))
        return [os.path.join(TOOLS, "trainer"), run, self.stage.ring, "1", str(count), directory, "echo"]

    def once(self, at: int) -> Tuple[int, int]:
        self.number += 1
        run = f"k{self.number}"
        found = self.end(self.watched(at, *self.trainer(run, self.steps)))
        accepted = [int(line.split()[1]) for line in self.said.splitlines() if line.startswith("accepted")]
        if not found[1] and (len(accepted) != self.steps or "trained" not in self.said):
            raise AssertionError(f"a trainer that was not killed said {self.said!r}")
        subprocess.run(self.trainer(run, 0), env=self.stage.environment(), check=True, capture_output=True)
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
        path = os.path.join(self.stage.checkpoints(run, [1]), "step-1.safetensors")
        return ["submit", path, "--run", run, "--step", "1", "--suite", "echo", "--pin"]

    def once(self, at: int) -> Tuple[int, int]:
        self.number += 1
        run = f"k{self.number}"
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
        return ["scan", self.stage.checkpoints(run, [1]), "--run", run, "--suite", "echo", "--pin"]


class Install(Part):
    """The library is whole or not there; installed again it works."""

    name = "install"
    short = 6

    def once(self, at: int) -> Tuple[int, int]:
        self.number += 1
        self.stage.call("FUNCTION", "FLUSH")
        found = self.end(self.watched(at, os.path.join(BIN, "evalq"), "admin", "install"))
        self.stage.evalq("admin", "install", code=0)
        self.stage.put(f"k{self.number}", [1])
        self.heal()
        self.stage.verify()
        return found


class Gateway(Part):
    """Who gets no answer asks again: one job."""

    name = "gateway"
    short = 6

    def __init__(self) -> None:
        super().__init__()
        self.tokens = self.stage.write("tokens", f"me write {TOKEN}\n", 0o600)

    def words(self, port: int) -> List[str]:
        return ["--listen", f"127.0.0.1:{port}", "--tokens", self.tokens]

    def post(self, port: int, run: str) -> str:
        body = {"run": run, "step": 1, "suites": ["echo"], "root": "out", "path": f"{run}/step-1.safetensors"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/jobs", json.dumps(body).encode(), {"Authorization": f"Bearer {TOKEN}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return str(json.load(reply)["jobs"][0]["answer"])
        except (OSError, ValueError):  # No answer, or half of one.
            return ""

    def once(self, at: int) -> Tuple[int, int]:
        self.number += 1
        run = f"k{self.number}"
        self.stage.checkpoints(run, [1])
        self.stage.expect(run, [1], "echo")
        port = free_port()
        process = self.watched(at, os.path.join(BIN, "evalq-gateway"), *self.words(port))
        until(lambda: self.killed() or self.post(port, run), "an answer, or the gateway is killed")
        process.terminate()
        found = self.end(process)
        healer = self.stage.start("evalq-gateway", *self.words(port))
        until(lambda: self.post(port, run), "the gateway answers")
        healer.terminate()
        if healer.wait(60) != 0:
            raise AssertionError(f"the gateway that healed ended with {healer.returncode}")
        self.stage.processes.remove(healer)
        self.heal()
        self.stage.verify()
        return found


class Up(Part):
    """All of it in one directory: after each kill nothing of it runs, and it starts again with all that it had."""

    name = "up"
    short = 4

    def words(self) -> List[str]:
        return ["up", "--dir", "up", "--workers", "1", "--", os.path.join(BIN, "evalq"), *self.submit]

    def once(self, at: int) -> Tuple[int, int]:
        self.number += 1
        run = f"k{self.number}"
        path = os.path.join(self.stage.checkpoints(run, [1]), "step-1.safetensors")
        self.submit = ["submit", path, "--run", run, "--step", "1", "--suite", "echo"]
        found = self.end(self.watched(at, os.path.join(BIN, "evalq"), *self.words()))
        for _ in range(3):  # It waits ten seconds for the sinks at its end, which a busy machine may need.
            self.stage.evalq(*self.words(), code=0)
            recorded = self.stage.recorded("up/results") or self.stage.recorded("results")
            found = [recorded.get(f"{run}/1/regular/echo#{end}", 0) for end in ("one", "=done.1")]
            if found == [1, 1]:
                break
        if found != [1, 1]:
            raise AssertionError(f"the result and the end of {run} stand {found} times in JSONL")
        return found


PARTS = [Worker, Child, Logger, Trainer, Submit, Scan, Install, Gateway, Up]


def main() -> int:
    given = arguments("SIGKILL at the k-th system call of each program")
    failed = 0
    for kind in PARTS:
        if given.only not in kind.name:
            continue
        began = time.monotonic()
        part = kind()
        kills = tried = 0
        try:
            total, _ = part.once(0)
            for at in points(total, given, kind.short):
                point = f"syscalls {kind.name} {at}"
                if given.done.has(point):
                    continue
                tried += 1
                try:
                    kills += part.once(at)[1]
                    given.done.add(point)
                except (AssertionError, subprocess.SubprocessError, urllib.error.URLError) as fault:
                    print(f"FAIL {kind.name}: killed at system call {at} of {total}: {fault}", flush=True)
                    failed += 1
                    part.close()
                    part = kind()  # What the fault left there is no part of the next one.
        finally:
            part.close()
        if tried and not kills:
            print(f"FAIL {kind.name}: nothing was killed")
            failed += 1
        print(f"{kind.name}: {kills} kills at {tried} of {total} system calls, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
