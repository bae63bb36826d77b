#!/usr/bin/env python3
"""The k-th allocation of each program fails, for k = 1, 2, ... (short: a sample). No program may die of a signal: it
goes on, or ends with a documented exit code and one sentence that says it was memory. What a verb prints with exit code 0
is what it prints otherwise. A training goes on whatever happens to evalq in it. Then the rest is run to the end, and
every accepted submit has become its one job with its one result. A part in which nothing failed fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Dict, List, Optional, Tuple

import parts
import sink_files
from stage import BIN, DEADLINE, TOOLS, arguments, free_port, until

CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
# How a program ended, who asked for the memory, and why this is no fault of evalq's.
KNOWN = (
    (-signal.SIGSEGV, r"libc\.so\.6:fts64_open", "glibc 2.36: fts_open() uses what it could not allocate"),
    (
        -signal.SIGSEGV,
        r"libevalq_cuda\.so\+0x[0-9a-f]+ ld-linux",
        "the CUDA runtime registers its kernels in memory that it did not get, as it is loaded",
    ),
    (127, r"calloc ld-linux\S+ .*libc\.so\.6:dlopen", "glibc's loader ends a program that has no memory while it loads a library"),
)
PRELOAD = os.path.join(TOOLS, "libfail_allocation.so")


class Fault(AssertionError):
    """Something that must not happen."""


class Struck:
    """A program under the interposer: what became of it."""

    def __init__(self, done: "subprocess.CompletedProcess[str]", calls: int, callers: str) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.calls, self.callers = calls, callers


class Part(parts.Part):
    """A program under the interposer."""

    program = "evalq"
    word: Optional[str] = None
    usual = 0  # Exit code without a fault.

    def __init__(self) -> None:
        super().__init__()
        self.callers = ""
        self.known: Dict[str, int] = {}

    def told(self) -> str:
        return f"\n     asked for by {self.callers}" + super().told()

    def notes(self) -> List[str]:
        return [f"known, {count} times: {why}" for why, count in self.known.items()]

    def environment(self, at: int, program: str = "", word: Optional[str] = None) -> Dict[str, str]:
        report = self.stage.path("report")
        if os.path.exists(report):
            os.unlink(report)
        made = dict(
            self.stage.environment(), LD_PRELOAD=PRELOAD, EVQ_FAIL_PROGRAM=program or self.program,
            EVQ_FAIL_AT=str(at), EVQ_FAIL_REPORT=report,
        )  # fmt: skip
        if word is not None:
            made["EVQ_FAIL_WORD"] = word
        return made

    def report(self) -> Tuple[int, str]:
        with open(self.stage.path("report"), "rb") as file:
            data = file.read()
        self.callers = data[8:].decode(errors="replace").strip()
        return int.from_bytes(data[:8], sys.byteorder), self.callers

    def run(self, at: int, *words: str, path: str = "") -> Struck:
        done = subprocess.run(
            [path or os.path.join(BIN, self.program), *words], env=self.environment(at, word=self.word),
            cwd=self.stage.directory, capture_output=True, text=True, timeout=DEADLINE, check=False, errors="replace",
        )  # fmt: skip
        struck = Struck(done, *self.report())
        self.ended_well(struck.code, struck.err)
        return struck

    def ended_well(self, code: int, err: str) -> None:
        """Of a program whose allocation failed, and which then ended by itself."""
        for ended, caller, why in KNOWN:
            if code == ended and re.search(caller, self.callers):
                self.known[why] = self.known.get(why, 0) + 1
                return
        if code not in CODES:
            raise Fault(f"ended with {code}: {err[-300:]!r}")
        said = [line for line in err.splitlines() if line.startswith(self.program + ": ") and "memory" in line]
        if code not in (0, self.usual) and self.callers and len(said) != 1:
            raise Fault(f"exit code {code} and not one sentence about memory: {err[-300:]!r}")


class Verb(Part):
    """Looks and changes nothing: with exit code 0 it prints all."""

    words: List[str] = []
    same = True
    fresh = False

    def __init__(self) -> None:
        super().__init__()
        self.stage.put("run", range(1, 4))
        self.heal()
        self.stage.put("run", range(4, 6))
        self.wanted = ""

    def once(self, at: int) -> Tuple[int, bool]:
        struck = self.run(at, *self.words)
        if at == 0:
            self.wanted, self.usual = struck.out, struck.code
        elif struck.code == self.usual and self.same and struck.out != self.wanted:
            raise Fault(f"exit code {struck.code}, and it printed {struck.out!r} instead of {self.wanted!r}")
        return struck.calls, bool(struck.callers)


def verb(name: str, *words: str, same: bool = True, short: int = 5) -> type:
    return type(name, (Verb,), {"name": name, "words": list(words), "same": same, "short": short})


VERBS = [
    verb("status", "status", same=False),
    verb("show", "show", "run/2/regular/echo", same=False),
    verb("show-json", "show", "run/2/regular/echo", "--json", short=1000),  # All: some drop a letter of the text.
    verb("results", "results", "run", "--csv"),
    verb("results-json", "results", "run", "--json"),
    verb("best", "best", "run", "eval/one/value"),
    verb("compare", "compare", "run", "--json"),
    verb("dead", "dead", "--json"),
    verb("logs", "logs", "run/2/regular/echo", same=False),
    verb("doctor", "doctor", "--json", same=False),
    verb("gc", "gc", same=False),
]


class Submit(Part):
    name = "submit"

    def words(self, run: str) -> List[str]:
        return parts.submit_words(self.stage, run)

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        struck = self.run(at, *self.words(run))
        if struck.code == 0 and self.stage.state(run, 1, "echo") != "queued":
            raise Fault("exit code 0, and its job is not there")
        self.stage.evalq(*self.words(run), code=0)
        self.stage.expect(run, [1], "echo")
        if self.number % 16 == 0:
            self.heal()
            self.stage.verify()
        return struck.calls, bool(struck.callers)

    def close(self) -> None:
        if sys.exc_info()[0] is None:
            self.heal()
            self.stage.verify()
        super().close()


class Scan(Submit):
    name = "scan"

    def words(self, run: str) -> List[str]:
        return parts.scan_words(self.stage, run)


class Install(Part):
    name = "install"
    short = 5

    def once(self, at: int) -> Tuple[int, bool]:
        self.stage.call("FUNCTION", "FLUSH")
        struck = self.run(at, "admin", "install")
        if struck.code == 0:
            self.stage.function("stats")
        self.stage.evalq("admin", "install", code=0)
        return struck.calls, bool(struck.callers)


class Eval(Part):
    """evalq-worker eval: the numbers are right, or there are none."""

    name = "eval"
    program = "evalq-worker"

    def __init__(self) -> None:
        super().__init__()
        self.file = os.path.join(self.stage.checkpoints("run", [1]), "step-1.safetensors")
        self.wanted = None

    def once(self, at: int) -> Tuple[int, bool]:
        struck = self.run(at, "eval", self.file, "--suite", "native", "--json")
        if struck.code == 0:
            metrics = json.loads(struck.out)["tasks"]["digits"]["metrics"]
            if self.wanted is not None and metrics != self.wanted:
                raise Fault(f"exit code 0, and it measured {metrics} instead of {self.wanted}")
            self.wanted = metrics
        return struck.calls, bool(struck.callers)


class Inspect(Eval):
    name = "inspect"

    def once(self, at: int) -> Tuple[int, bool]:
        struck = self.run(at, "inspect", self.file, "--json", "--digest")
        if struck.code == 0:
            if self.wanted is not None and struck.out != self.wanted:
                raise Fault(f"exit code 0, and it printed {struck.out!r}")
            self.wanted = struck.out
        return struck.calls, bool(struck.callers)


class Service(Part):
    """A program that runs until it is told to end."""

    def start(self, at: int, *words: str) -> "subprocess.Popen[str]":
        with open(self.stage.path("struck.log"), "wb") as log:
            self.process = subprocess.Popen(
                [os.path.join(BIN, self.program), *words], env=self.environment(at, word=self.word),
                cwd=self.stage.directory, stdout=subprocess.DEVNULL, stderr=log, text=True,
            )  # fmt: skip
        return self.process

    def end(self, process: "subprocess.Popen[str]") -> Tuple[int, bool]:
        process.terminate()
        code = process.wait(DEADLINE)
        calls, callers = self.report()
        with open(self.stage.path("struck.log"), encoding="utf-8", errors="replace") as file:
            log = file.read()
        # SIGKILL is the supervisor's own: it takes a child away that it can tell nothing.
        deaths = [line for line in log.splitlines() if "died: signal" in line and "signal 9 " not in line]
        if deaths:
            raise Fault(f"a child died: {deaths}")
        if code != -signal.SIGTERM or "event=" in log:  # Else it was told before it listened.
            self.ended_well(code, log)
        return calls, bool(callers)


class Worker(Service):
    name = "worker"
    program = "evalq-worker"
    word = "run"
    short = 10

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        self.stage.put(run, [1], "native")
        self.stage.put(run, [1], "echo")
        process = self.start(at, "run")
        until(lambda: self.stage.ended() or process.poll() is not None, "the jobs end, or the worker does")
        found = self.end(process)
        self.heal()
        self.stage.verify()
        return found


class Child(Worker):
    name = "child"
    word = "child"


class Logger(Service):
    name = "logger"
    program = "evalq-logger"
    short = 6

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        directory = self.stage.path(f"results-{self.number}")
        self.stage.put(run, [1, 2])
        self.heal()
        process = self.start(at, "--directory", directory)
        until(lambda: self.stage.taken() or process.poll() is not None, "all is taken, or the logger ends")
        found = self.end(process)
        self.heal_sinks(directory)
        sink_files.check(directory, {run: {1, 2}})
        return found


class Gateway(Service):
    """Who gets another answer than the right one is told of a fault of the server's, and is served when asked again."""

    name = "gateway"
    program = "evalq-gateway"
    short = 10

    def __init__(self) -> None:
        super().__init__()
        self.front = parts.Front(self.stage)

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        self.stage.checkpoints(run, [1])
        self.stage.expect(run, [1], "echo")
        body = parts.job_body(run)
        process = self.start(at, *self.front.words(free_port()))
        until(lambda: self.front.ask("/healthz")[0] == 200 or process.poll() is not None, "the gateway answers, or ends")
        asked = [("/v1/jobs", body), (f"/v1/jobs/{run}/1/regular/echo", None), ("/v1/queue", None), ("/v1/runs", None)]
        for path, what in asked if process.poll() is None else []:
            code, document = self.front.ask(path, what)
            if code not in (0, 200, 500, 503):
                raise Fault(f"{path} is answered with {code}")
            if code == 200 and path == "/v1/jobs" and self.stage.state(run, 1, "echo") != "queued":
                raise Fault(f"it says {document} and the job is not there")
            if code != 200 and self.front.ask(path, what)[0] != 200:
                raise Fault(f"{path} is answered with {code}, and asked again with no 200")
        if process.poll() is not None:
            self.stage.put(run, [1])
            self.stage.runs.pop()
        found = self.end(process)
        if self.number % 16 == 0:
            self.heal()
            self.stage.verify()
        return found


class Trainer(Part):
    """Its own work goes on to the end, and what the client accepted becomes jobs."""

    name = "trainer"
    program = "trainer"
    short = 16
    steps = 2

    def once(self, at: int) -> Tuple[int, bool]:
        run = self.next_run()
        path = os.path.join(TOOLS, "trainer")
        struck = self.run(at, *parts.train_words(self.stage, run, self.steps), path=path)
        if struck.code != 0 or not struck.out.endswith("trained\n"):
            raise Fault(f"the training ended with {struck.code} and {struck.out!r}")
        accepted = [int(line.split()[1]) for line in struck.out.splitlines() if line.startswith("accepted")]
        if at == 0 and len(accepted) != self.steps:
            raise Fault(f"without a fault it said {struck.out!r}")
        subprocess.run([path, *parts.train_words(self.stage, run, 0)], env=self.stage.environment(), check=True, capture_output=True)
        there = [step for step in range(1, self.steps + 1) if self.stage.state(run, step, "echo")]
        if there != accepted:
            raise Fault(f"accepted {accepted}, in the queue {there}: {struck.err[-300:]}")
        return struck.calls, bool(struck.callers)


PARTS = [*VERBS, Submit, Scan, Install, Eval, Inspect, Worker, Child, Logger, Gateway, Trainer]

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(parts.walk("allocations", "allocation", PARTS, arguments("the k-th allocation of each program fails")))
