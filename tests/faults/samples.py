#!/usr/bin/env python3
"""Kills of workers and the logger while samples are written and sent. In the end every job is done, and each of its tasks has
exactly one samples file, whose digest and size are those of its result; no temporary file and no piece in Redis is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from typing import Any, Dict, FrozenSet, List

from stage import CONFIG, DEADLINE, PREFIX, TOOLS, Stage, arguments, until
from trial import Trial, run_all

# Outputs differ from attempt to attempt, so a file can only match the result of its own attempt. It has several pieces.
QUIZ = r"""
import base64, json, os
with open(os.path.join(os.path.dirname(os.environ["EVALQ_RESULT"]), "samples.jsonl"), "w") as file:
    for i in range(30):
        output = base64.b85encode(os.urandom(20000)).decode()
        file.write(json.dumps({"id": str(i), "scores": {"acc": i % 2}, "output": output}) + "\n")
json.dump({"acc": 0.5, "n": 30}, open(os.environ["EVALQ_RESULT"], "w"))
"""
SAMPLES = (
    CONFIG.replace("echo: {evaluator: echo, tasks: [{name: one, type: any}]}", "echo: {evaluator: quiz, samples: true, tasks: [{name: one, type: any}]}")
    .replace("  native:\n", "  native:\n    samples: true\n")
    .replace("echo: {kind: command, command: [$SITE/echo.sh]}", f"quiz: {{kind: command, argv: [{sys.executable}, $SITE/quiz.py]}}")
)
KILLS = 8  # That must strike in the short form, and in a round of the long one.
KILLS_LONG = 100


class Kills(Trial):
    """Into a directory that workers and readers share."""

    name = "samples in a shared directory"
    programs = ("evalq-worker", "evalq-logger")
    send = "false"
    victims = ("evalq-worker",)
    kills = KILLS

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dice = random.Random(seed)
        self.stage = Stage(SAMPLES + f"samples: {{directory: $SITE/samples, send: {self.send}, stream_bytes: 4MiB, wait_seconds: 60}}\n")
        self.stage.write("quiz.py", QUIZ)
        self.running: Dict[str, Any] = {}
        self.by_program = {"evalq-worker": 0, "evalq-logger": 0}
        self.idle = 0  # Kills while no sample was on its way.
        self.steps = 0
        self.seen: FrozenSet[str] = frozenset()

    def files(self, folder: str) -> List[str]:
        found = []
        for place, _, names in os.walk(self.stage.path(folder)):
            found += [os.path.relpath(os.path.join(place, name), self.stage.path(folder)) for name in names]
        return found

    def pieces(self) -> int:
        return int(self.stage.call("XLEN", PREFIX + "samples"))

    def on_the_way(self) -> FrozenSet[str]:
        """The samples files that are written or sent: their temporary names, and the newest piece in Redis."""
        names = [name for name in self.files("samples") if ".jsonl.gz." in name]
        names += [name for name in self.files("scratch") if ".jsonl.gz" in name]
        names += [entry.decode() for entry, _ in self.stage.call("XREVRANGE", PREFIX + "samples", "+", "-", "COUNT", 1)]
        return frozenset(names)

    def goes_on(self) -> bool:
        """Whether something is on its way that was not at the last kill."""
        return bool(self.on_the_way() - self.seen)

    def put(self) -> None:
        for suite, count in (("echo", 4), ("native", 2)):
            self.stage.put(f"run-{suite}", range(self.steps, self.steps + count), suite)
        self.steps += 4

    def start(self, name: str) -> None:
        program = name.partition(" ")[0]
        self.running[name] = self.stage.start(program)

    def kill_one(self) -> None:
        """Stops a program, looks whether samples are on their way, and kills it."""
        for _ in range(self.dice.randrange(30)):  # Not always at the first moment.
            self.on_the_way()
        name = self.dice.choice([name for name in sorted(self.running) if name.partition(" ")[0] in self.victims])
        process = self.running[name]
        if process.poll() is not None:
            raise AssertionError(f"{name} ended by itself with {process.returncode}")
        process.send_signal(signal.SIGSTOP)
        struck = bool(self.on_the_way())
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)
        self.stage.processes.remove(process)
        self.seen = self.on_the_way()
        self.struck += struck
        self.idle += not struck
        self.by_program[name.partition(" ")[0]] += struck
        self.start(name)

    def enough(self) -> bool:
        return self.struck >= self.kills and all(self.by_program[program] > 0 for program in self.victims)

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        stage.call("HSET", PREFIX + "meta", "attempts_max", 1000)
        for name in ("evalq-worker 1", "evalq-worker 2", "evalq-logger"):
            self.start(name)
        while not self.enough():
            if stage.ended():
                self.put()
            until(lambda: self.goes_on() or stage.ended(), "samples are on their way")
            self.kill_one()
        until(stage.ended, "every job ends")
        until(lambda: self.pieces() == 0, "every piece is taken")
        for name in sorted(self.running):
            self.running[name].terminate()
            if self.running[name].wait(DEADLINE) != 0:
                raise AssertionError(f"{name} ended with {self.running[name].returncode}")
        stage.evalq("gc", code=0)
        self.check()

    def check(self) -> None:
        self.stage.all_done()
        results = {}
        for run, step, suite in self.stage.runs:
            job = f"{run}/{step}/regular/{suite}"
            for task, result in json.loads(self.stage.function("show", job))["tasks"].items():
                results[f"{job}/{task}.jsonl.gz"] = result
        found = self.files("samples")
        if sorted(found) != sorted(results):
            raise AssertionError(f"files that should not be: {set(found) - set(results)}; missing: {set(results) - set(found)}")
        digests = self.digests(sorted(found))
        for name, result in results.items():
            told = (result.get("samples_digest"), result.get("samples_bytes"))
            if told != digests[name]:
                raise AssertionError(f"{name} has {digests[name]}, its result has {told}: {result}")
        if self.stage.call("HGET", PREFIX + "n", "samples_bytes"):
            raise AssertionError("samples_bytes is not 0")

    def digests(self, names: List[str]) -> Dict[str, Any]:
        """XXH3-128 and size of the files."""
        words = [os.path.join(TOOLS, "file_digest"), *names]
        done = subprocess.run(words, cwd=self.stage.path("samples"), capture_output=True, text=True, timeout=DEADLINE, check=True)
        lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
        return {name: (digest, int(size)) for digest, size, name in lines}

    def summary(self) -> str:
        struck = ", ".join(f"{program} {count}" for program, count in self.by_program.items())
        return f"{self.struck} kills struck ({struck}), {self.idle} did not, {len(self.stage.runs)} jobs"


class Sent(Kills):
    """Through Redis."""

    name = "samples that are sent"
    send = "true"
    victims = ("evalq-worker", "evalq-logger")


if __name__ == "__main__":
    given = arguments("kills while samples are written and sent")
    Kills.kills = KILLS_LONG if given.long else KILLS
    sys.exit(run_all("samples", [Kills, Sent], given, 10, 2))
