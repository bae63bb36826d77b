#!/usr/bin/env python3
"""The k-th allocation of each program fails, for k = 1, 2, ... (short: a sample). No program may die of a signal: it
goes on, or ends with a documented exit code and one sentence that says it was memory. What a verb prints with exit code 0
is what it prints otherwise. A training goes on whatever happens to evalq in it. Then the rest is run to the end, and
every accepted submit has become its one job with its one result. A part in which nothing failed fails."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional, Tuple

from stage import BIN, TOOLS, Stage, arguments, free_port, points, until

CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
TOKEN = "a-token-of-the-test-which-writes"
KNOWN = (  # No fault of evalq's.
    (r"libc\.so\.6:fts64_open", "glibc 2.36: fts_open() uses what it could not allocate"),
    (r"libevalq_cuda\.so\+0x[0-9a-f]+ ld-linux", "the CUDA runtime registers its kernels in memory that it did not get, as it is loaded"),
)
PRELOAD = os.path.join(TOOLS, "libfail_allocation.so")


class Fault(AssertionError):
    """Something that must not happen."""


class Struck:
    """A program under the interposer: what became of it."""

    def __init__(self, done: "subprocess.CompletedProcess[str]", calls: int, callers: str) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.calls, self.callers = calls, callers


class Part:
    """A program and what it has to do; once(k) does it with its k-th allocation failing."""

    name = ""
    short = 8
    program = "evalq"
    word: Optional[str] = None
    usual = 0  # Exit code without a fault.
    fresh = True  # After something that must not happen, go on with a queue of its own.

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.start_redis()
        self.number = 0
        self.callers = ""
        self.known: Dict[str, int] = {}

    def close(self) -> None:
        self.stage.close()

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
            cwd=self.stage.directory, capture_output=True, text=True, timeout=60, check=False, errors="replace",
        )  # fmt: skip
        struck = Struck(done, *self.report())
        self.ended_well(struck.code, struck.err)
        return struck

    def ended_well(self, code: int, err: str) -> None:
        """Of a program whose allocation failed, and which then ended by itself."""
        for caller, why in KNOWN:
            if code == -signal.SIGSEGV and re.search(caller, self.callers):
                self.known[why] = self.known.get(why, 0) + 1
                return
        if code not in CODES:
            raise Fault(f"ended with {code}: {err[-300:]!r}")
        said = [line for line in err.splitlines() if line.startswith(self.program + ": ") and "memory" in line]
        if code not in (0, self.usual) and self.callers and len(said) != 1:
            raise Fault(f"exit code {code} and not one sentence about memory: {err[-300:]!r}")

    def once(self, at: int) -> Tuple[int, bool]:
        """How many calls there were, and whether one failed."""
        raise NotImplementedError

    def heal(self) -> None:
        if self.stage.ended():
            return
        worker = self.stage.start_worker()
        until(self.stage.ended, "every job ends")
        worker.terminate()
        worker.wait(60)
        self.stage.processes.remove(worker)


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
        path = os.path.join(self.stage.checkpoints(run, [1]), "step-1.safetensors")
        return ["submit", path, "--run", run, "--step", "1", "--suite", "echo", "--pin"]

    def once(self, at: int) -> Tuple[int, bool]:
        self.number += 1
        run = f"k{self.number}"
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
        return ["scan", self.stage.checkpoints(run, [1]), "--run", run, "--suite", "echo", "--pin"]


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
            return subprocess.Popen(
                [os.path.join(BIN, self.program), *words], env=self.environment(at, word=self.word),
                cwd=self.stage.directory, stdout=subprocess.DEVNULL, stderr=log, text=True,
            )  # fmt: skip

    def end(self, process: "subprocess.Popen[str]") -> Tuple[int, bool]:
        process.terminate()
        code = process.wait(60)
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
        self.number += 1
        self.stage.put(f"k{self.number}", [1], "native")
        self.stage.put(f"k{self.number}", [1], "echo")
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
        self.number += 1
        run = f"k{self.number}"
        directory = self.stage.path(f"results-{self.number}")
        self.stage.put(run, [1, 2])
        self.heal()
        process = self.start(at, "--directory", directory)
        until(lambda: self.taken() or process.poll() is not None, "all is taken, or the logger ends")
        found = self.end(process)
        healer = self.stage.start("evalq-logger", "--directory", directory)
        until(lambda: self.taken() and self.stage.log("evalq-logger").count("event=logger_started") == self.number, "taken")
        healer.terminate()
        healer.wait(60)
        self.stage.processes.remove(healer)
        recorded = self.stage.recorded(directory)
        wanted = {f"{run}/{step}/regular/echo#{end}" for step in (1, 2) for end in ("one", "=done.1")}
        if set(recorded) != wanted or set(recorded.values()) != {1}:
            raise Fault(f"JSONL holds {recorded}")
        return found

    def taken(self) -> bool:
        sinks = json.loads(self.stage.function("stats"))["sinks"]
        return len(sinks) == 3 and not any(sink["pending"] or sink["lag"] for sink in sinks)


class Gateway(Service):
    """Who gets another answer than the right one is told of a fault of the server's, and is served when asked again."""

    name = "gateway"
    program = "evalq-gateway"
    short = 10

    def __init__(self) -> None:
        super().__init__()
        self.tokens = self.stage.write("tokens", f"me write {TOKEN}\n", 0o600)
        self.port = 0

    def ask(self, path: str, body: Optional[Dict[str, Any]] = None) -> Tuple[int, Any]:
        """Status and document; status 0: no answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode() if body else None,
            {"Authorization": f"Bearer {TOKEN}"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as fault:
            return fault.code, None
        except (OSError, http.client.HTTPException):
            return 0, None

    def once(self, at: int) -> Tuple[int, bool]:
        self.number += 1
        run = f"k{self.number}"
        self.stage.checkpoints(run, [1])
        self.stage.expect(run, [1], "echo")
        body = {"run": run, "step": 1, "suites": ["echo"], "root": "out", "path": f"{run}/step-1.safetensors"}
        self.port = free_port()
        process = self.start(at, "--listen", f"127.0.0.1:{self.port}", "--tokens", self.tokens)
        until(lambda: self.ask("/healthz")[0] == 200 or process.poll() is not None, "the gateway answers, or ends")
        asked = [("/v1/jobs", body), (f"/v1/jobs/{run}/1/regular/echo", None), ("/v1/queue", None), ("/v1/runs", None)]
        for path, what in asked if process.poll() is None else []:
            code, document = self.ask(path, what)
            if code not in (0, 200, 500, 503):
                raise Fault(f"{path} is answered with {code}")
            if code == 200 and path == "/v1/jobs" and self.stage.state(run, 1, "echo") != "queued":
                raise Fault(f"it says {document} and the job is not there")
            if code != 200 and self.ask(path, what)[0] != 200:
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

    def trainer(self, run: str, count: int) -> List[str]:
        directory = self.stage.checkpoints(run, range(1, count + 1))
        return [run, self.stage.ring, "1", str(count), directory, "echo"]

    def once(self, at: int) -> Tuple[int, bool]:
        self.number += 1
        run = f"k{self.number}"
        path = os.path.join(TOOLS, "trainer")
        struck = self.run(at, *self.trainer(run, self.steps), path=path)
        if struck.code != 0 or not struck.out.endswith("trained\n"):
            raise Fault(f"the training ended with {struck.code} and {struck.out!r}")
        accepted = [int(line.split()[1]) for line in struck.out.splitlines() if line.startswith("accepted")]
        if at == 0 and len(accepted) != self.steps:
            raise Fault(f"without a fault it said {struck.out!r}")
        subprocess.run([path, *self.trainer(run, 0)], env=self.stage.environment(), check=True, capture_output=True)
        there = [step for step in range(1, self.steps + 1) if self.stage.state(run, step, "echo")]
        if there != accepted:
            raise Fault(f"accepted {accepted}, in the queue {there}: {struck.err[-300:]}")
        return struck.calls, bool(struck.callers)


PARTS = [*VERBS, Submit, Scan, Install, Eval, Inspect, Worker, Child, Logger, Gateway, Trainer]


def main() -> int:
    given = arguments("the k-th allocation of each program fails")
    failed = 0
    for kind in PARTS:
        if given.only not in kind.name:
            continue
        began = time.monotonic()
        part = kind()
        hits = tried = 0
        try:
            total, _ = part.once(0)
            if total == 0:
                raise Fault(f"{kind.name}: no allocation was seen")
            for at in points(total, given, kind.short):
                point = f"allocations {kind.name} {at}"
                if given.done.has(point):
                    continue
                tried += 1
                try:
                    hits += part.once(at)[1]
                    given.done.add(point)
                except (AssertionError, subprocess.SubprocessError) as fault:
                    print(f"FAIL {kind.name}: allocation {at} of {total}: {fault}\n     asked for by {part.callers}", flush=True)
                    failed += 1
                    if part.fresh:
                        part.stage.close()
                        part = kind()
                        part.once(0)
        finally:
            part.close()
        if tried and not hits:
            print(f"FAIL {kind.name}: no allocation failed")
            failed += 1
        for why, count in part.known.items():
            print(f"known, {kind.name}: {count} times: {why}")
        print(f"{kind.name}: {hits} of {total} allocations failed in {tried} runs, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
