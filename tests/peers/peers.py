"""A stack started by `evalq up`, and training programs beside it, for the tests with real frameworks."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))
from pace import at_step  # noqa: E402
from scene import BIN, DEADLINE, PACKAGE, until  # noqa: E402

CONFIG = """
roots: {{work: {directory}}}
evaluators:
  gpt2:
    kind: persistent
    argv: [{python}, -m, evalq.serve_trainer, "tiny_gpt2:evaluator"]
    directory: {here}
    env: {env}
  mlp:
    kind: persistent
    argv: [{python}, -m, evalq.serve_lightning, "tiny_lightning:evaluator"]
    directory: {here}
    env: {env}
  join:
    kind: command
    argv: [sh, -c, 'exec {python} "$EVALQ_CHECKPOINT/zero_to_fp32.py" "$EVALQ_CHECKPOINT" "$EVALQ_OUTPUT"']
    env: {{DS_ACCELERATOR: cpu}}
  fixed: {{kind: command, argv: [sh, -c, 'echo "{{\\"loss\\": 0.5}}" > "$EVALQ_RESULT"']}}
suites:
  fixed: {{evaluator: fixed, tasks: [{{name: eval}}]}}
  eval: {{evaluator: gpt2, tasks: [{{name: eval, type: trainer}}]}}
  joined: {{evaluator: gpt2, prepare: join, tasks: [{{name: eval, type: trainer}}]}}
  val: {{evaluator: mlp, tasks: [{{name: val, type: lightning}}]}}
"""


def needs(*modules: str) -> None:
    """Ends the program with 77, "not run", where one is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            print(f"not run: {module} is not installed")
            raise SystemExit(77)


class Stack:
    """One directory with the programs of `evalq up` and what trains."""

    def __init__(self, workers: int = 2, place: Optional[str] = None, **evaluator_env: str) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-peers-", dir=place)
        self.workers = workers
        self.out = os.path.join(self.directory, "out")
        self.noted = os.path.join(self.directory, "evaluations")
        self.state = os.path.join(self.directory, ".evalq")
        self.process: Optional[subprocess.Popen[bytes]] = None
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": PACKAGE, "EVALUATIONS": self.noted, "TMPDIR": self.directory}
        env.update(evaluator_env, HF_HUB_OFFLINE="1")
        text = CONFIG.format(directory=self.directory, python=sys.executable, here=HERE, env=json.dumps(env))
        with open(os.path.join(self.directory, "evalq.yaml"), "w", encoding="utf-8") as file:
            file.write(text)

    def environment(self, **more: str) -> Dict[str, str]:
        env = dict(os.environ, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TMPDIR=self.directory)
        env["DS_ACCELERATOR"] = "cpu"
        env.update(XDG_STATE_HOME=os.path.join(self.directory, "state"), EVALUATIONS=self.noted)
        env.pop("EVALQ_URL", None)
        env.pop("EVALQ_RUN", None)
        env.update(more)
        return env

    def up(self) -> None:
        log = open(os.path.join(self.directory, "up.log"), "ab")
        self.process = subprocess.Popen(
            [os.path.join(BIN, "evalq"), "up", "--workers", str(self.workers)],
            cwd=self.directory,
            env=self.environment(),
            stdout=log,
            stderr=log,
        )
        log.close()
        until(lambda: os.path.exists(os.path.join(self.state, "url")), "evalq up is up")

    def down(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE)
            self.process = None

    def close(self) -> None:
        self.down()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, program: str, *words: str, launcher: Optional[List[str]] = None, **env: str) -> "Training":
        """A training program of this folder; words are its settings, NAME=JSON."""
        argv = [*(launcher or [sys.executable]), os.path.join(HERE, program), self.out, *words]
        return Training(self, argv, self.environment(**env))

    def evalq(self, *words: str) -> str:
        done = subprocess.run(
            [os.path.join(BIN, "evalq"), *words], cwd=self.directory, env=self.environment(), capture_output=True, check=False
        )
        if done.returncode != 0:
            raise AssertionError(f"evalq {' '.join(words)}: {done.stderr.decode()}")
        return done.stdout.decode()

    def logs(self) -> str:
        """The end of each log, of trainings, programs and evaluations."""
        found = []
        for folder, _, names in os.walk(self.directory):
            for path in (os.path.join(folder, name) for name in sorted(names) if ".log" in name):
                with open(path, encoding="utf-8", errors="replace") as file:
                    found.append(f"--- {os.path.relpath(path, self.directory)}\n{file.read()[-3000:]}\n")
        return "".join(found)

    def evaluations(self) -> List[str]:
        """One line for each time a worker evaluated anything."""
        if not os.path.exists(self.noted):
            return []
        with open(self.noted, encoding="utf-8") as file:
            return file.read().split()

    def outcome(self, name: str = "outcome.json") -> Dict[str, Any]:
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            made: Dict[str, Any] = json.load(file)
            return made

    def wait_for_hold(self, step: int) -> None:
        """Until the training that was started with hold=step stands there; go_on(self.out) lets it go on."""
        until(lambda: at_step(self.out) == step, f"training stands at step {step}")


class Training:
    """A running training program."""

    def __init__(self, stack: Stack, argv: List[str], env: Dict[str, str]) -> None:
        self.path = os.path.join(stack.directory, f"training-{len(os.listdir(stack.directory))}.log")
        with open(self.path, "wb") as log:
            self.process = subprocess.Popen(
                argv, cwd=stack.directory, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> str:
        """Until it ended well; what it said."""
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"training did not end within {DEADLINE:g} s:\n{self.said()[-6000:]}") from None
        if code != 0:
            raise AssertionError(f"training ended with {code}:\n{self.said()[-6000:]}")
        return self.said()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def warnings(self) -> List[str]:
        return [line for line in self.said().splitlines() if " evalq WARNING " in line]


class StackTest(unittest.TestCase):
    """A fresh stack for each test."""

    starts_up = True

    def setUp(self) -> None:
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        if self.starts_up:
            self.stack.up()

    def tearDown(self) -> None:
        outcome = self._outcome  # type: ignore[attr-defined]
        found = [case for case, _ in outcome.result.failures + outcome.result.errors]  # Before Python 3.11 they are noted later.
        if self in found or any(error for _, error in getattr(outcome, "errors", ())):
            sys.stderr.write(self.stack.logs())


def evaluated(outcome: Dict[str, Any]) -> Dict[int, Dict[str, float]]:
    """The evaluations of a Trainer's log_history, by step; a step that is there twice fails."""
    found: Dict[int, Dict[str, float]] = {}
    for entry in outcome["log_history"]:
        if "eval_loss" in entry:
            if entry["step"] in found:
                raise AssertionError(f"step {entry['step']} was logged twice")
            found[entry["step"]] = entry
    return found


def words(**settings: Any) -> List[str]:
    """Settings as the training programs read them."""
    return [f"{name}={json.dumps(value)}" for name, value in settings.items()]


# Of a Trainer that evaluates by steps and loads the best model at its end.
STEPS = {
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "logging_steps": 5,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
}


class TrainerStackTest(StackTest):
    """With a Trainer of tiny_gpt2.py."""

    def reference(self, launcher: Optional[List[str]] = None, **settings: Any) -> Dict[str, Any]:
        """The same training, evaluated synchronously by the Trainer itself."""
        out, self.stack.out = self.stack.out, self.stack.out + "-reference"
        self.stack.start("tiny_gpt2.py", *words(**settings), launcher=launcher).wait()
        outcome = self.stack.outcome()
        self.stack.out = out
        return outcome

    def assert_pins_are_released(self) -> None:
        # A client that closes looks after its pins for 150 ms, which a busy machine may not give it: gc does the rest.
        self.assertIn("0 pins still needed", self.stack.evalq("gc", self.stack.out))
        self.assertFalse(os.path.exists(os.path.join(self.stack.out, ".evalq")))

    def assert_same_evaluations(self, outcome: Dict[str, Any], reference: Dict[str, Any]) -> None:
        ours, theirs = evaluated(outcome), evaluated(reference)
        self.assertEqual(sorted(ours), sorted(theirs))
        for step, entry in theirs.items():
            for name in ("eval_loss", "eval_accuracy", "epoch"):
                difference = abs(ours[step][name] - entry[name])
                self.assertTrue(difference <= 1e-5, f"step {step}: {name} {ours[step][name]}, expected {entry[name]}")
