"""What runs against the server: a harness with a Python interface, a function, a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Dict, List, Mapping, Optional

from .config import Harness, Refused, program

Metrics = Mapping[str, Any]


@dataclass
class Target:
    """The server as a harness sees it."""

    url: str  #: http://127.0.0.1:PORT/v1
    key: str
    model: str
    tokenizer: str  #: The checkpoint's directory.
    length_max: int  #: Tokens of prompt and answer.
    progress: Callable[[int, int], None]  #: progress(done, total)
    samples: Optional[str]  #: A directory for what each item got; None: nobody wants it.


class Runner:
    """One harness of one suite. Kept for all checkpoints."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness

    def prepare(self) -> None:
        """Imports and data; runs while the server starts, on another thread."""

    def run(self, target: Target, task: str) -> Metrics:
        raise NotImplementedError


class PythonFunction(Runner):
    """run(url, key, model, tokenizer, samples) returns {"metric": value}; with tasks in the harness, also task=NAME."""

    _function: Any = None

    def prepare(self) -> None:
        if self._function is None:
            module, _, name = str(self.harness.get("function")).partition(":")
            if self.harness.directory not in sys.path:
                sys.path.insert(0, self.harness.directory)
            try:
                self._function = getattr(import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise Refused(f"harness.function '{module}:{name}' cannot be imported: {error}") from error

    def run(self, target: Target, task: str) -> Metrics:
        self.prepare()
        extra = {"task": task} if self.harness.get("tasks") else {}
        with tempfile.TemporaryDirectory(prefix="evalq-samples-") as folder:
            samples = target.samples or folder
            return dict(
                self._function(url=target.url, key=target.key, model=target.model, tokenizer=target.tokenizer, samples=samples, **extra)
            )


class Command(Runner):
    """A program with OPENAI_BASE_URL, OPENAI_API_KEY, EVALQ_MODEL, EVALQ_TOKENIZER, EVALQ_TASK; it writes {"metric": value} to
    $EVALQ_RESULT."""

    def run(self, target: Target, task: str) -> Metrics:
        argv = [str(word) for word in self.harness.get("argv")]
        argv[0] = program(argv[0], self.harness.directory)
        with tempfile.TemporaryDirectory(prefix="evalq-command-") as folder:
            result = os.path.join(folder, "result.json")
            environment = {**os.environ, **{name: str(value) for name, value in (self.harness.get("env") or {}).items()}}
            environment.update(OPENAI_BASE_URL=target.url, OPENAI_API_KEY=target.key, OPENAI_API_BASE=target.url)
            environment.update(EVALQ_MODEL=target.model, EVALQ_TOKENIZER=target.tokenizer, EVALQ_TASK=task, EVALQ_RESULT=result)
            environment["EVALQ_SAMPLES"] = target.samples or folder
            _run_program(argv, environment, self.harness.directory)
            if not os.path.exists(result):
                raise RuntimeError(f"'{argv[0]}' ended well, but wrote no result to $EVALQ_RESULT")
            with open(result, encoding="utf-8") as file:
                told: Dict[str, Any] = json.load(file)
        return told[task] if isinstance(told.get(task), dict) else told


def _run_program(argv: List[str], environment: Mapping[str, str], directory: str) -> None:
    """Waits in small steps, so that a cancel, which is raised on this thread, comes through; ends the whole group."""
    process = subprocess.Popen(argv, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    try:
        while process.poll() is None:
            time.sleep(0.02)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # What it left behind, too.
        except ProcessLookupError:
            pass
        process.wait()
    if process.returncode == os.EX_DATAERR:
        raise Refused(f"'{argv[0]}' ended with {os.EX_DATAERR}: its failure is final")
    if process.returncode != 0:
        raise OSError(f"'{argv[0]}' ended with {process.returncode}")


def make(harness: Harness) -> Runner:
    if harness.kind == "python":
        return PythonFunction(harness)
    if harness.kind == "command":
        return Command(harness)
    module = import_module(".harness_" + harness.kind.replace("-", "_"), __package__)
    runner: Runner = module.Runner(harness)
    return runner
