"""Evaluates one checkpoint: reloads or starts the server, proves its weights and runs the harness.

If the server fails, a new server gets one more try.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from .._evaluation import Checkpoint, EvalRetry, Report, Task
from .config import Harness, Settings
from .checkpoint_contents import Contents, is_adapter, signature
from .harnesses import Metrics, Runner, Target
from .harnesses import make as make_runner
from .http import ServerError
from .proof import Known, Proof, ProofFailed, canary, measure, native_in_background
from .servers import RELOAD_SECONDS, Server, StartFailed, log
from .servers import make as make_server
from .watch import Progress, ServerLost, Watch

Signature = List[Tuple[str, int, int, int]]  # What signature() returns.


class Retry(EvalRetry):
    """The server failed twice. The job may succeed later or on another machine."""

    evalq_plain = True  # Its text is the whole message.


class Phases:
    """Measures how long each phase of the job takes."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.seconds: Dict[str, float] = {}
        self.tokens = 0.0  # Tokens that were generated while evaluating.
        self._name = ""
        self._began = time.monotonic()

    def begin(self, name: str) -> None:
        self.end()
        self._name = name
        log(name)
        self._report(-1, -1, name)

    def tick(self) -> None:
        self._report(-1, -1, self._name)

    def end(self) -> None:
        now = time.monotonic()
        if self._name:
            seconds = now - self._began
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + seconds
            log(f"{self._name} took {seconds:.2f} s")
        self._began, self._name = now, ""

    def words(self) -> str:
        """The phases and their times, and the rate of tokens. The rate counts the time that the
        harness itself needs."""
        words = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        rate = self.tokens / max(self.seconds.get("evaluating", 0.0), 1e-3)
        return words + (f", {rate:.0f} tokens/s" if self.tokens > 0 else "")


class Evaluator:
    """The function that evalq.serve calls for each task of each checkpoint."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Server = make_server(settings)
        self._runners: Dict[str, Runner] = {}
        self._known = Known()
        self._loaded: Optional[Contents] = None
        # signature() of the loaded checkpoint and of the loaded adapter. An empty list means that
        # there is no adapter; None means that nobody knows which adapter the server has.
        self._files: Signature = []
        self._adapter: Optional[Signature] = []
        self._proof: Optional[Proof] = None
        self._model = ""  # The directory of the model: the checkpoint or the adapter's base.
        self._length_max = 0

    def close(self) -> None:
        self._server.stop()

    def __call__(self, checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        runner = self._runner(Harness.parse(task.options["harness"]))
        phases = Phases(report)
        for attempt in (1, 2):
            try:
                self._load(checkpoint.path, task.options.get("base", ""), runner, phases)
                metrics, target = self._evaluate(runner, checkpoint, task, report, phases)
                assert self._proof is not None
                phases.begin("proving")
                report.note = self._note(self._proof.finish(), phases)
                report.note += f"; {target.fault}" if target.fault else ""
                report.samples = target.items
                return metrics
            except (ServerError, ProofFailed, ServerLost) as error:
                log(f"{error}: the server is started again")
                self._drop()
                if attempt == 2:
                    raise Retry(str(error)) from None
            except StartFailed as error:
                self._drop()
                raise Retry(str(error)) from None
        raise AssertionError("not reached")

    def _note(self, proof: str, phases: Phases) -> str:
        phases.end()
        return (
            f"{self._server.name} {self._server.version}; weights proven: {proof}; {phases.words()}"
        )

    def _runner(self, harness: Harness) -> Runner:
        if harness.text not in self._runners:
            self._runners[harness.text] = make_runner(harness)
        return self._runners[harness.text]

    def _drop(self) -> None:
        self._server.stop()
        self._loaded = self._proof = None

    # -- the weights

    def _load(self, path: str, base: str, runner: Runner, phases: Phases) -> None:
        adapter = signature(path) if is_adapter(path) else []
        self._model = base if adapter else path
        files = signature(self._model)
        same = self._proof is not None and self._server.lives() and files == self._files
        if same and adapter == self._adapter:
            return  # An earlier task or suite has loaded this checkpoint.
        self._adapter = None  # The job may end before the server has the adapter.
        started = not same and self._load_model(files, runner, phases)
        if adapter:
            assert self._proof is not None
            self._proof.finish()  # This proves the base model.
            phases.begin("reloading")
            self._server.add_adapter(path)
            self._prove(Contents.read(path, os.path.realpath(base)), started, phases)
        elif same:
            assert self._loaded is not None
            self._server.drop_adapter()
            self._prove(self._loaded, False, phases)
        self._adapter = adapter

    def _load_model(self, files: Signature, runner: Runner, phases: Phases) -> bool:
        """Loads the model into the server. Returns whether it had to start a new server."""
        path = self._model
        contents = Contents.read(path)
        why = self._reason_to_start(contents)
        self._proof = None
        if why:
            log(f"{why}: the server is started with '{path}'")
            phases.begin("starting")
            self._loaded = None
            self._start(path, runner, phases)
        else:
            phases.begin("reloading")
            try:
                self._server.drop_adapter()
                self._server.reload(path, RELOAD_SECONDS)
                self._server.reset_caches()
            except ServerError as error:
                raise ServerError(
                    f"{self._server.name} did not reload '{path}': {error}", error.status
                ) from None
        self._loaded, self._files = contents, files
        self._length_max = self._longest(contents)
        self._prove(contents, bool(why), phases)
        return bool(why)

    def _prove(self, contents: Contents, started: bool, phases: Phases) -> None:
        phases.begin("proving")
        ids = canary(contents, self._length_max)
        native = native_in_background(contents, ids, self._settings.options)
        exact = str(self._settings.options.get("dtype", "")) in ("float32", "float")
        proof = Proof(contents, measure(self._server, ids), native, self._known, exact, started)
        proof.check_cache()
        # This comes last. If the job is cancelled before, the next job loads the weights again.
        self._proof = proof
        phases.end()

    def _reason_to_start(self, contents: Contents) -> str:
        if self._loaded is None:
            return "no server runs"
        if not self._server.lives():
            return "the server has ended"
        return contents.differs_from(self._loaded) or (
            "" if self._is_proven() else "the weights before were not proven"
        )

    def _is_proven(self) -> bool:
        """Whether the proof of the loaded weights succeeds. A cancelled job may not have finished
        it, and the next proof compares with these weights."""
        try:
            return self._proof is not None and bool(self._proof.finish())
        except Exception as error:
            log(str(error))
            return False

    def _start(self, path: str, runner: Runner, phases: Phases) -> None:
        failures: List[BaseException] = []

        def prepare() -> None:
            try:
                runner.prepare()
            except BaseException as error:  # It is raised below, on the main thread.
                failures.append(error)

        def tick() -> None:
            phases.tick()
            if failures:  # Do not wait for a server that nobody will use.
                raise failures[0]

        thread = threading.Thread(target=prepare, name="evalq-harness", daemon=True)
        thread.start()
        self._server.start(os.path.abspath(path), tick)
        while thread.is_alive():
            phases.tick()
            thread.join(0.1)
        if failures:
            raise failures[0]

    def _longest(self, contents: Contents) -> int:
        """How many tokens of prompt and answer together the server takes."""
        limit = self._server.http.ask("GET", "/v1/models")["data"][0].get("max_model_len")
        config: Dict[str, Any] = contents.config
        return int(
            limit or config.get("max_position_embeddings") or config.get("n_positions") or 2048
        )

    # -- the harness

    def _evaluate(
        self, runner: Runner, checkpoint: Checkpoint, task: Task, report: Report, phases: Phases
    ) -> Tuple[Metrics, Target]:
        phases.begin("evaluating")
        progress = Progress()
        target = Target(
            url=self._server.http.base + "/v1",
            key=self._server.key,
            model=self._server.model,
            tokenizer=self._model,
            length_max=self._length_max,
            progress=progress,
            samples=_samples(runner.harness, checkpoint, task),
            keeps=report.keeps_samples,
            cluster=task.options.get("cluster", ""),
        )
        watch = Watch(self._server, progress, report, float(self._settings.hang_seconds))
        try:
            with watch:
                metrics = runner.run(target, task.options.get("source", str(task)))
            self._check_server()  # A harness may ignore requests that failed.
            return metrics, target
        except ServerLost:
            raise ServerLost(watch.reason) from None
        except Exception:
            if watch.reason:
                raise ServerLost(watch.reason) from None
            self._check_server()
            raise
        finally:
            phases.end()
            phases.tokens += watch.tokens

    def _check_server(self) -> None:
        """Raises ServerError if the server has ended or no longer answers the canary."""
        if not self._server.lives():
            raise ServerError(f"{self._server.name} ended")
        assert self._proof is not None
        self._server.next_token(self._proof.measured.ids)


def _samples(harness: Harness, checkpoint: Checkpoint, task: Task) -> Optional[str]:
    """Makes and returns the directory SAMPLES/RUN/STEP/VARIANT/SUITE/TASK. None: the suite has no
    `samples` directory."""
    top = harness.path("samples")
    if top is None:
        return None
    folder = os.path.join(
        top,
        checkpoint.run or "-",
        str(checkpoint.step),
        checkpoint.variant,
        checkpoint.suite,
        str(task),
    )
    os.makedirs(folder, exist_ok=True)
    return folder
