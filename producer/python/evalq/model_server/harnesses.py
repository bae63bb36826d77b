"""Runs a harness against the server: a library, a user's function or a program."""

from __future__ import annotations

import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

from .._harness_samples import FILE, kept, of_file
from .config import Harness, Refused, program

Metrics = Mapping[str, Any]
#: The harnesses that have tasks. Each has a module harness_NAME.
HARNESSES = ("lm-eval", "lmms-eval", "inspect", "lighteval")
#: Requests at once, unless `concurrency` in evalq.yaml sets another number.
CONCURRENCY = 32


@dataclass
class Target:
    """Everything that a harness needs to evaluate the server."""

    url: str  #: http://127.0.0.1:PORT/v1
    key: str
    model: str
    tokenizer: str  #: The checkpoint's directory.
    length_max: int  #: Most tokens of prompt and answer together.
    progress: Callable[..., None]  #: progress(done, total, tokens=generated since the last call)
    samples: Optional[str]  #: A directory for the harness's own files. None: keep none.
    keeps: bool = False  #: Whether the suite keeps samples.
    cluster: str = ""  #: The field of an item's doc that names its cluster.
    items: List[Mapping[str, Any]] = field(default_factory=list)  #: The samples.
    fault: str = ""  #: Why there are no samples.

    @property
    def logs_samples(self) -> bool:
        """Whether the harness must return its record of each item."""
        return self.keeps or self.samples is not None

    def keep(self, make: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Keeps the samples that make() returns, if the suite wants them. An error of make() does
        not lose the metrics."""
        if self.keeps:
            self.items, self.fault = kept(make)


class Runner:
    """One harness of one suite. The same object serves all checkpoints."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness

    def prepare(self) -> None:
        """Imports the harness and loads its data. It runs on another thread while the server
        starts."""

    def run(self, target: Target, task: str) -> Metrics:
        """Evaluates the server with one task and returns its metrics."""
        raise NotImplementedError


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f", did you mean '{near[0]}'?" if near else ""


def check_task(harness: str, name: str, known: Iterable[str], what: str = "task") -> None:
    if name not in known:
        raise Refused(f"{harness} has no {what} '{name}'{_nearest(name, known)}")


def check_options(harness: Harness, known: Iterable[str]) -> None:
    """Raises Refused if harness.options has a setting that the harness does not know."""
    for name in sorted(set(harness.own) - set(known)):
        hint = _nearest(name, known) or f", expected one of: {', '.join(sorted(known))}"
        raise Refused(f"harness.options has '{name}'{hint}")


def write_samples(samples: Dict[str, Any], folder: str) -> None:
    for name, items in samples.items():
        with open(os.path.join(folder, f"samples_{name}.jsonl"), "w", encoding="utf-8") as file:
            for item in items:
                file.write(json.dumps(item, default=str, ensure_ascii=False) + "\n")


class PythonFunction(Runner):
    """Calls a user's function run(url, key, model, tokenizer, samples), which returns
    {"metric": value}. If the suite lists tasks, it also gets task=NAME. If it has a parameter
    `progress`, it can call progress(done, total)."""

    _function: Any = None

    def prepare(self) -> None:
        if self._function is None:
            module, _, name = str(self.harness.get("function")).partition(":")
            if self.harness.directory not in sys.path:
                sys.path.insert(0, self.harness.directory)
            try:
                self._function = getattr(import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise Refused(
                    f"harness.function '{module}:{name}' cannot be imported: {error}"
                ) from error

    def run(self, target: Target, task: str) -> Metrics:
        self.prepare()
        extra: Dict[str, Any] = {"task": task} if self.harness.get("tasks") else {}
        if "progress" in signature(self._function).parameters:
            extra["progress"] = target.progress
        with tempfile.TemporaryDirectory(prefix="evalq-samples-") as folder:
            samples = _without_file(target.samples or folder)
            metrics = dict(
                self._function(
                    url=target.url,
                    key=target.key,
                    model=target.model,
                    tokenizer=target.tokenizer,
                    samples=samples,
                    **extra,
                )
            )
            target.keep(lambda: of_file(samples))
        return metrics


class Command(Runner):
    """Runs a user's program, which writes {"metric": value} to $EVALQ_RESULT. The program finds the
    server in OPENAI_BASE_URL, OPENAI_API_KEY, EVALQ_MODEL, EVALQ_TOKENIZER and EVALQ_TASK."""

    def run(self, target: Target, task: str) -> Metrics:
        argv = [str(word) for word in self.harness.get("argv")]
        argv[0] = program(argv[0], self.harness.directory)
        with tempfile.TemporaryDirectory(prefix="evalq-command-") as folder:
            result = os.path.join(folder, "result.json")
            environment = {
                **os.environ,
                **{name: str(value) for name, value in (self.harness.get("env") or {}).items()},
            }
            environment.update(
                OPENAI_BASE_URL=target.url, OPENAI_API_KEY=target.key, OPENAI_API_BASE=target.url
            )
            environment.update(
                EVALQ_MODEL=target.model,
                EVALQ_TOKENIZER=target.tokenizer,
                EVALQ_TASK=task,
                EVALQ_RESULT=result,
            )
            samples = environment["EVALQ_SAMPLES"] = _without_file(target.samples or folder)
            _run_program(argv, environment, self.harness.directory)
            if not os.path.exists(result):
                raise RuntimeError(f"'{argv[0]}' ended well, but wrote no result to $EVALQ_RESULT")
            with open(result, encoding="utf-8") as file:
                metrics: Dict[str, Any] = json.load(file)
            target.keep(lambda: of_file(samples))
        return metrics[task] if isinstance(metrics.get(task), dict) else metrics


def _without_file(folder: str) -> str:
    """Removes the samples of an earlier attempt from the directory, and returns the directory."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, FILE))
    return folder


def _run_program(argv: List[str], environment: Mapping[str, str], directory: str) -> None:
    """Runs the program and kills its whole process group afterwards. It waits in small steps, so
    that a cancel can be raised on this thread."""
    process = subprocess.Popen(
        argv,
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            time.sleep(0.02)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # This also ends the processes that it started.
        except ProcessLookupError:
            pass
        process.wait()
    if process.returncode == os.EX_DATAERR:
        raise Refused(f"'{argv[0]}' ended with {os.EX_DATAERR}: its failure is final")
    if process.returncode != 0:
        raise OSError(f"'{argv[0]}' ended with {process.returncode}")


def make(harness: Harness) -> Runner:
    """Returns the runner for the kind of the harness."""
    if harness.kind == "python":
        return PythonFunction(harness)
    if harness.kind == "command":
        return Command(harness)
    module = import_module(".harness_" + harness.kind.replace("-", "_"), __package__)
    runner: Runner = module.Runner(harness)
    return runner
