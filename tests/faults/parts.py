"""Parts of the sets that strike at the k-th place of a program, for k = 1, 2, ...: what each program has to do, how the rest is
brought to its end afterwards, and the walk over the places."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional, Tuple, Type

from stage import DEADLINE, Stage, points, until

TOKEN = "a-token-of-the-test-which-writes"


class Part:
    """A program and what it has to do. once(k) does it on a job of its own, struck at its k-th place, and checks what became
    of it; once(0) does it unharmed."""

    name = ""
    short = 8  # Places in the short form.
    fresh = True  # After something that must not happen, go on with a queue of its own.

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.start_redis()
        self.number = 0  # Of the run.
        self.process: "Optional[subprocess.Popen[str]]" = None  # What is struck, while it runs.

    def next_run(self) -> str:
        self.number += 1
        return f"k{self.number}"

    def close(self) -> None:
        self.stage.close()

    def stop(self) -> None:
        """What a failed point has left running."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def once(self, at: int) -> Tuple[int, bool]:
        """How many places there were, and whether it struck."""
        raise NotImplementedError

    def notes(self) -> List[str]:
        """Said at the end of the part."""
        return []

    def told(self) -> str:
        """What helps to find out why a point failed."""
        text = ""
        for program in ("evalq-worker", "evalq-logger", "evalq-gateway", "struck"):
            try:
                text += f"\n--- {program}\n{self.stage.log(program)[-1500:]}"
            except OSError:
                pass  # It was not started.
        return text

    def end_healer(self, healer: "subprocess.Popen[bytes]") -> None:
        healer.terminate()
        if healer.wait(DEADLINE) != 0:
            raise AssertionError(f"the program that healed ended with {healer.returncode}")
        self.stage.processes.remove(healer)

    def heal(self) -> None:
        """A worker that is not struck, until all jobs have ended."""
        while not self.stage.ended():
            worker = self.stage.start_worker()
            until(lambda: self.stage.ended() or worker.poll() is not None, "every job ends")
            if worker.poll() == 5:  # On a busy machine Redis may not answer it at its start within half a second.
                self.stage.processes.remove(worker)
                continue
            self.end_healer(worker)

    def heal_sinks(self, directory: str) -> None:
        """A logger that is not struck, until its sinks have all there is."""
        before = self.stage.count("evalq-logger", "event=logger_started")
        healer = self.stage.start("evalq-logger", "--directory", directory)
        until(lambda: self.stage.taken() and self.stage.count("evalq-logger", "event=logger_started") > before, "all is taken")
        self.end_healer(healer)


def submit_words(stage: Stage, run: str) -> List[str]:
    path = os.path.join(stage.checkpoints(run, [1]), "step-1.safetensors")
    return ["submit", path, "--run", run, "--step", "1", "--suite", "echo", "--pin"]


def scan_words(stage: Stage, run: str) -> List[str]:
    return ["scan", stage.checkpoints(run, [1]), "--run", run, "--suite", "echo", "--pin"]


def train_words(stage: Stage, run: str, steps: int) -> List[str]:
    directory = stage.checkpoints(run, range(1, steps + 1))
    return [run, stage.ring, "1", str(steps), directory, "echo"]


class Front:
    """How one speaks with a gateway."""

    def __init__(self, stage: Stage) -> None:
        self.tokens = stage.write("tokens", f"me write {TOKEN}\n", 0o600)
        self.port = 0

    def words(self, port: int) -> List[str]:
        self.port = port
        return ["--listen", f"127.0.0.1:{port}", "--tokens", self.tokens]

    def ask(self, path: str, body: Optional[Dict[str, Any]] = None, method: Optional[str] = None) -> Tuple[int, Any]:
        """Status and document; status 0: no answer, or half of one. method: None: POST with a body, GET without."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode() if body else None,
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}, method=method,
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as fault:
            return fault.code, None
        except (OSError, ValueError, http.client.HTTPException):
            return 0, None


def job_body(run: str) -> Dict[str, Any]:
    return {"run": run, "step": 1, "suites": ["echo"], "root": "out", "path": f"{run}/step-1.safetensors"}


def walk(set_name: str, place: str, kinds: List[Type[Any]], given: argparse.Namespace) -> int:
    """The exit code. place: what is struck at, as "system call". A part in which nothing was struck fails."""
    failed = 0
    for kind in kinds:
        if given.only not in kind.name:
            continue
        began = time.monotonic()
        part = kind()
        struck = tried = 0
        try:
            total, _ = part.once(0)
            if total == 0:
                raise AssertionError(f"{kind.name}: no {place} was seen")
            for at in points(total, given, kind.short):
                point = f"{set_name} {kind.name} {at}"
                if given.done.has(point):
                    continue
                tried += 1
                try:
                    struck += part.once(at)[1]
                    given.done.add(point)
                except (AssertionError, OSError, subprocess.SubprocessError) as fault:
                    failed += 1
                    print(f"FAIL {kind.name}: {place} {at} of {total}: {fault}{part.told()}", flush=True)
                    part.stop()
                    if part.fresh:  # What the fault left there is no part of the next one.
                        part.stage.close()
                        part = kind()
                        part.once(0)
        finally:
            part.stop()
            part.close()
        if tried and not struck:
            print(f"FAIL {kind.name}: nothing was struck")
            failed += 1
        for line in part.notes():
            print(f"{kind.name}: {line}")
        print(f"{kind.name}: struck {struck} times at {tried} of {total} {place}s, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0
