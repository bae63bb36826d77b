"""docs/trainers.md against the real packages: each example of producer/examples/trainers under `evalq up`, on the CPU, and what
the page promises: due steps, ranks, the best model, resume, and nothing raised into training. One class per trainer; a class
whose package is not installed is skipped with its name. The packages that go with tests/peers/requirements.txt come from run.sh.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Optional, Tuple

from peers import needs
from scene import BIN, DEADLINE, PACKAGE, SOURCE, until

needs("torch", "numpy")

EXAMPLES = os.path.join(SOURCE, "producer", "examples", "trainers")
PAGE = os.path.join(SOURCE, "docs", "trainers.md")


def package(*names: str) -> Any:
    """Skips a class where one of them is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"not run: {', '.join(missing)} is not installed")


class TrainersTest(unittest.TestCase):
    """Programs in a copy of the examples."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="evalq-trainers-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.place = shutil.copytree(EXAMPLES, os.path.join(self.folder, "trainers"))

    def environment(self, **more: str) -> Dict[str, str]:
        env = dict(os.environ, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
        env.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), BIN, env["PATH"]]), DS_ACCELERATOR="cpu")
        env.update(XDG_STATE_HOME=os.path.join(self.folder, "state"), CUDA_VISIBLE_DEVICES="", TMPDIR=self.folder, **more)
        for name in ("EVALQ_URL", "EVALQ_RUN", "EVALQ_CONFIG"):
            if name not in more:
                env.pop(name, None)
        return env

    def run_here(self, *argv: str, **env: str) -> str:
        """What a program printed that must end well."""
        done = subprocess.run(
            argv, cwd=self.place, env=self.environment(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False, timeout=DEADLINE,
        )
        self.assertEqual(done.returncode, 0, done.stdout[-6000:])
        return done.stdout

    def up(self, config: str, *argv: str, **env: str) -> str:
        return self.run_here("evalq", "up", "--workers", "1", "--no-page", "-c", config, "--", *argv, **env)

    def kill_at(self, config: str, *argv: str, path: str) -> None:
        """Ends a training, and `evalq up` around it, as soon as the path exists."""
        words = ["evalq", "up", "--workers", "1", "--no-page", "-c", config, "--", *argv]
        log = os.path.join(self.folder, "killed.log")
        with open(log, "wb") as file:
            process = subprocess.Popen(words, cwd=self.place, env=self.environment(), stdout=file, stderr=file, start_new_session=True)
        try:
            until(lambda: os.path.exists(os.path.join(self.place, path)) or process.poll() is not None, path)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with open(log, encoding="utf-8", errors="replace") as text:
            self.assertTrue(os.path.exists(os.path.join(self.place, path)), text.read()[-6000:])

    def recorded(self, run: str, metric: str) -> List[int]:
        """The steps with this metric in what evalq-logger wrote, in their order; a step may be there twice."""
        with open(os.path.join(self.place, ".evalq", "results", run, "results.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return sorted(line["step"] for line in lines if metric in line["metrics"])

    def found(self, pattern: str, text: str) -> "List[Tuple[str, ...]]":
        made = re.findall(pattern, text)
        self.assertTrue(made, text[-4000:])
        return made


class PageTest(unittest.TestCase):
    def test_what_a_section_shows_stands_in_the_programs_that_it_names(self) -> None:
        with open(PAGE, encoding="utf-8") as file:
            sections = file.read().split("\n## ")[1:]
        shown = 0
        for section in sections:
            names = re.findall(r"`(\w+\.py)`", section.rpartition("\nProgram")[2])
            lines = set()
            for name in names:
                for kind in (".py", ".yaml"):
                    with open(os.path.join(EXAMPLES, name[:-3] + kind), encoding="utf-8") as file:
                        lines |= {line.strip() for line in file}
            for block in re.findall(r"^```\w+\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
                self.assertLessEqual(len(block.splitlines()), 12, block)
                missing = {line.strip() for line in block.splitlines()} - lines if names else set()
                self.assertEqual(missing, set(), f"in section {section.splitlines()[0]}")
                shown += bool(names)
        self.assertGreaterEqual(shown, 3)


TRAIN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s", stream=sys.stderr)
logging.getLogger("evalq").setLevel(logging.INFO)
import {module}
from evalq.integrations.transformers import EvalqCallback
if __name__ == "__main__":
    trainer = {module}.make_trainer(callbacks={callbacks})
    trainer.train(resume_from_checkpoint={resume})
    state = trainer.state
    made = {{"history": state.log_history, "best": state.best_model_checkpoint, "step": state.global_step}}
    with open("outcome-%d.json" % trainer.args.process_index, "w") as file:
        json.dump(made, file)
"""
RANKS = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@package("trl", "transformers", "accelerate", "datasets")
class TrlTest(TrainersTest):
    def write(self, module: str, evalq: bool, resume: bool = False) -> None:
        callbacks = f'[EvalqCallback("{module[4:]}")]' if evalq else "None"
        with open(os.path.join(self.place, "train.py"), "w", encoding="utf-8") as file:
            file.write(TRAIN.format(module=module, callbacks=callbacks, resume=resume))

    def outcome(self, rank: int = 0) -> "Tuple[Dict[int, Dict[str, float]], Optional[str], int]":
        """The evaluations by step, the best checkpoint, the last step. A step that is there twice fails."""
        with open(os.path.join(self.place, f"outcome-{rank}.json"), encoding="utf-8") as file:
            made = json.load(file)
        entries = [entry for entry in made["history"] if "eval_loss" in entry]
        steps = [entry["step"] for entry in entries]
        self.assertEqual(steps, sorted(set(steps)))
        best = made["best"] and os.path.basename(made["best"])
        return {entry["step"]: entry for entry in entries}, best, made["step"]

    def assert_equals_training_without_evalq(self, module: str, metrics: List[str]) -> None:
        self.write(module, evalq=False)
        self.run_here("python", "train.py")
        theirs, their_best, _ = self.outcome()
        shutil.rmtree(os.path.join(self.place, "out"))
        self.write(module, evalq=True)
        self.up(module + ".yaml", "python", "train.py")
        ours, our_best, _ = self.outcome()
        self.assertEqual(sorted(ours), [10, 20, 30])
        self.assertEqual((sorted(ours), our_best), (sorted(theirs), their_best))
        for step, entry in theirs.items():
            self.assertEqual(set(entry), set(ours[step]), f"names at step {step}")
            for name in metrics:
                self.assertTrue(abs(ours[step][name] - entry[name]) <= 1e-5, f"{step} {name}: {ours[step]}, expected {entry}")

    def test_sft_has_the_curves_and_the_best_of_training_without_evalq(self) -> None:
        self.assert_equals_training_without_evalq("trl_sft", ["eval_loss", "eval_mean_token_accuracy", "eval_entropy"])

    def test_dpo_has_the_curves_and_the_best_of_training_without_evalq(self) -> None:
        self.assert_equals_training_without_evalq("trl_dpo", ["eval_loss", "eval_rewards/accuracies", "eval_rewards/margins"])

    def test_grpo_gets_its_rewards(self) -> None:
        text = self.up("trl_grpo.yaml", "python", "trl_grpo.py")
        values = {int(step): float(value) for step, value in self.found(r"step (\d+): eval_reward ([0-9.]+)", text)}
        self.assertEqual(sorted(values), [4, 8, 12])
        self.assertTrue(all(0 < value <= 1 for value in values.values()), values)
        best = max(values, key=lambda step: (values[step], -step))
        self.assertTrue(values[int(self.found(r"best: \S+/checkpoint-(\d+)", text)[0])] == values[best], text[-2000:])

    def test_ranks_submit_once_and_agree(self) -> None:
        self.write("trl_sft", evalq=True)
        self.up("trl_sft.yaml", *RANKS, "train.py")
        self.assertEqual(self.outcome(0), self.outcome(1))
        self.assertEqual(sorted(self.outcome()[0]), [10, 20, 30])

    def test_resume_after_a_kill_evaluates_the_rest(self) -> None:
        self.write("trl_sft", evalq=True)
        self.kill_at("trl_sft.yaml", "python", "train.py", path="out/trl-sft/checkpoint-10/trainer_state.json")
        self.write("trl_sft", evalq=True, resume=True)
        self.up("trl_sft.yaml", "python", "train.py")
        self.assertEqual(sorted(self.outcome()[0]), [10, 20, 30])

    def test_nothing_raises_without_redis(self) -> None:
        self.write("trl_sft", evalq=True)
        text = self.run_here("python", "train.py", EVALQ_URL="unix:///nowhere/redis.sock", EVALQ_CONFIG="trl_sft.yaml")
        self.assertEqual(self.outcome()[2], 30)
        self.assertIn("evalq WARNING", text)


@package("accelerate")
class AccelerateTest(TrainersTest):
    LAUNCH = ("python", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "accelerate_loop.py")

    def test_two_processes_submit_once(self) -> None:
        text = self.up("accelerate_loop.yaml", *self.LAUNCH)
        values = {int(step): float(value) for step, value in self.found(r"epoch (\d+): mse ([0-9.]+)", text)}
        self.assertEqual(len(self.found(r"epoch (\d+): mse ([0-9.]+)", text)), 5)
        self.assertEqual(sorted(values), [2, 4, 6, 8, 10])
        best = min(values, key=lambda step: (values[step], step))
        self.assertEqual(self.found(r"best: .*/epoch-(\d+)", text), [str(best)])

    def test_resume_after_a_kill_evaluates_the_rest(self) -> None:
        self.kill_at("accelerate_loop.yaml", *self.LAUNCH, path="out/accelerate/newest")
        text = self.up("accelerate_loop.yaml", *self.LAUNCH)
        self.assertIn("best", text)
        self.assertEqual(self.recorded("accelerate", "mse"), [2, 4, 6, 8, 10])

    def test_nothing_raises_without_redis(self) -> None:
        text = self.run_here(*self.LAUNCH, EVALQ_URL="unix:///nowhere/redis.sock", EVALQ_CONFIG="accelerate_loop.yaml")
        self.assertIn("best", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
