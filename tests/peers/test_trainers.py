"""docs/trainers.md against the real packages: each example of producer/examples/trainers under `evalq up`, on the CPU, and what
the page promises: due steps, ranks, the best model, resume, and nothing raised into training. One class per trainer; a class
whose package is not installed is skipped with its name. run.sh installs what goes with tests/peers/requirements.txt. Three trainers
need other versions, and an environment of their own, with requirements-trainers-axolotl, -llamafactory or -composer:

    EVALQ_PEERS_REQUIREMENTS=tests/peers/requirements-trainers-composer.txt sh tests/peers/run.sh test_trainers:ComposerTest
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


def installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # The package around it is missing.
        return False


def package(*names: str) -> Any:
    """Skips a class where one of them is not installed."""
    missing = [name for name in names if not installed(name)]
    return unittest.skipIf(missing, f"not run: {', '.join(missing)} is not installed")


class TrainersTest(unittest.TestCase):
    """Programs in a copy of the examples."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="evalq-trainers-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.place = shutil.copytree(EXAMPLES, os.path.join(self.folder, "trainers"))

    def environment(self, **more: str) -> Dict[str, str]:
        env = dict(os.environ, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
        env.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), BIN, env["PATH"]]))
        env.update(DS_ACCELERATOR="cpu", AXOLOTL_DO_NOT_TRACK="1", HOME=self.folder)  # Ray writes into the home directory.
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
            process = subprocess.Popen(
                words, cwd=self.place, env=self.environment(), stdout=file, stderr=file, start_new_session=True
            )
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

    def values(self, run: str, metric: str) -> Dict[int, float]:
        with open(os.path.join(self.place, ".evalq", "results", run, "results.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return {line["step"]: line["metrics"][metric] for line in lines if metric in line["metrics"]}

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
            names = re.findall(r"`(\w+\.py)`", section.partition("\nProgram")[2])
            lines = set()
            for name in names + [name for name in os.listdir(EXAMPLES) if name.endswith(".yaml")]:
                with open(os.path.join(EXAMPLES, name), encoding="utf-8") as file:
                    lines |= {line.strip() for line in file}
            for block in re.findall(r"^```\w+\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
                self.assertLessEqual(len(block.splitlines()), 12, block)
                if not names or block.startswith("import subprocess\n"):  # RayTest runs this one.
                    continue
                missing = {line.strip() for line in block.splitlines()} - lines
                self.assertEqual(missing, set(), f"in section {section.splitlines()[0]}")
                shown += 1
        self.assertGreaterEqual(shown, 10)


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
        self.up("trl_sft.yaml", *RANKS, "train.py", ACCELERATE_USE_CPU="true")  # Without it, each process trains alone.
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
        text = self.up("regression.yaml", *self.LAUNCH)
        values = {int(step): float(value) for step, value in self.found(r"epoch (\d+): mse ([0-9.]+)", text)}
        self.assertEqual(len(self.found(r"epoch (\d+): mse ([0-9.]+)", text)), 5)
        self.assertEqual(sorted(values), [2, 4, 6, 8, 10])
        best = min(values, key=lambda step: (values[step], step))
        self.assertEqual(self.found(r"best: .*/epoch-(\d+)", text), [str(best)])

    def test_resume_after_a_kill_evaluates_the_rest(self) -> None:
        self.kill_at("regression.yaml", *self.LAUNCH, path="out/accelerate/newest")
        text = self.up("regression.yaml", *self.LAUNCH)
        self.assertIn("best", text)
        self.assertEqual(self.recorded("accelerate", "mse"), [2, 4, 6, 8, 10])

    def test_nothing_raises_without_redis(self) -> None:
        text = self.run_here(*self.LAUNCH, EVALQ_URL="unix:///nowhere/redis.sock", EVALQ_CONFIG="regression.yaml")
        self.assertIn("best", text)


class LoopTest(TrainersTest):
    """Of a program that prints "step N: metric value" and the best checkpoint, and submits steps 100, 200, ... 500."""

    def assert_evaluates_each_save(self, config: str, *argv: str, **env: str) -> None:
        text = self.up(config, *argv, **env)
        lines = self.found(r"step (\d+): mse ([0-9.]+)", text)
        self.assertEqual([int(step) for step, _ in lines], [100, 200, 300, 400, 500])
        best = min(lines, key=lambda line: (float(line[1]), int(line[0])))
        self.assertEqual(self.found(r"best: .*/step-(\d+)", text), [best[0]])
        self.assertLess(float(best[1]), float(lines[0][1]))

    def assert_resumes(self, run: str, config: str, *argv: str, path: str) -> None:
        self.kill_at(config, *argv, path=path)
        text = self.up(config, *argv)
        self.assertIn("best", text)
        self.assertEqual(sorted(set(self.recorded(run, "mse"))), [100, 200, 300, 400, 500])

    def assert_needs_no_redis(self, config: str, *argv: str) -> None:
        text = self.run_here(*argv, EVALQ_URL="unix:///nowhere/redis.sock", EVALQ_CONFIG=config)
        self.assertIn("best: None", text)


@package("torch")
class Fsdp2Test(LoopTest):
    def test_asynchronous_saves_are_evaluated(self) -> None:
        self.assert_evaluates_each_save("regression.yaml", *RANKS, "fsdp2_dcp.py")

    def test_resume_after_a_kill_evaluates_the_rest(self) -> None:
        self.assert_resumes("fsdp2", "regression.yaml", *RANKS, "fsdp2_dcp.py", path="out/step-200/.metadata")

    def test_nothing_raises_without_redis(self) -> None:
        self.assert_needs_no_redis("regression.yaml", *RANKS, "fsdp2_dcp.py")


@package("ray.train")
class RayTest(TrainersTest):
    def assert_keeps_the_best_two(self, text: str) -> None:
        self.assertEqual(self.recorded("ray", "mse"), [100, 200, 300, 400, 500])
        values = sorted(self.values("ray", "mse").values())[:2]
        kept = sorted(float(value) for value in re.findall(r"kept: \S+, mse ([0-9.]+)", text))
        self.assertEqual(len(kept), 2, text[-4000:])
        for ours, theirs in zip(values, kept):
            self.assertTrue(abs(ours - theirs) <= 1e-4, (values, kept))

    def test_validation_decides_what_ray_keeps(self) -> None:
        self.assert_keeps_the_best_two(self.up("regression.yaml", "python", "ray_train.py"))

    def test_ray_starts_the_workers(self) -> None:
        with open(PAGE, encoding="utf-8") as file:
            (block,) = re.findall(r"^```python\n(import subprocess\n.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
        path = os.path.join(self.place, "ray_train.py")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        start = 'if __name__ == "__main__":\n'
        block = block.replace("@ray.remote(num_gpus=1)", "@ray.remote(num_cpus=0)")  # The training takes both CPUs of a small machine.
        block = block.replace('"auto"', '"cpu"')
        self.assertEqual((block.count("(num_cpus=0)\n"), block.count('"cpu"')), (1, 1))
        block = start + "".join("    " + line for line in block.splitlines(keepends=True))
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(start, block))
        argv = ("evalq", "up", "--workers", "0", "--no-page", "-c", "regression.yaml", "--", "python", "ray_train.py")
        self.assert_keeps_the_best_two(self.run_here(*argv))

    def test_nothing_raises_without_a_configuration(self) -> None:
        text = self.run_here("python", "ray_train.py", EVALQ_CONFIG="missing.yaml")
        self.assertIn("nothing will be evaluated", text)


@package("deepspeed")
class DeepspeedTest(LoopTest):
    def test_stage_2(self) -> None:
        self.assert_evaluates_each_save("deepspeed_loop.yaml", *RANKS, "deepspeed_loop.py")

    def test_stage_3_is_joined_first(self) -> None:
        self.assert_evaluates_each_save("deepspeed_loop.yaml", *RANKS, "deepspeed_loop.py", ZERO_STAGE="3")

    def test_resume_after_a_kill_evaluates_the_rest(self) -> None:
        self.assert_resumes("deepspeed", "deepspeed_loop.yaml", *RANKS, "deepspeed_loop.py", path="out/deepspeed/latest")

    def test_nothing_raises_without_redis(self) -> None:
        self.assert_needs_no_redis("deepspeed_loop.yaml", *RANKS, "deepspeed_loop.py")


@package("keras")
class KerasTest(TrainersTest):
    def test_each_epoch_has_the_numbers_of_keras(self) -> None:
        text = self.up("keras_fit.yaml", "python", "keras_fit.py")
        lines = self.found(r"epoch (\d+): loss ([0-9.]+)", text)
        self.assertEqual([int(epoch) for epoch, _ in lines], list(range(1, 9)))
        best = min(lines, key=lambda line: (float(line[1]), int(line[0])))
        self.assertEqual(self.found(r"best: .*/epoch-(\d+)\.keras", text), [best[0]])
        again = "import keras_fit as k; m = k.keras.saving.load_model('out/keras/epoch-3.keras')"
        again += "; print('loss %.4f' % m.evaluate(k.inputs[1000:], k.targets[1000:], verbose=0)[0])"
        self.assertEqual(self.found(r"loss ([0-9.]+)", self.run_here("python", "-c", again)), [lines[2][1]])

    def test_nothing_raises_without_redis(self) -> None:
        url = {"EVALQ_URL": "unix:///nowhere/redis.sock", "EVALQ_CONFIG": "keras_fit.yaml"}
        self.assertIn("best: None", self.run_here("python", "keras_fit.py", **url))


@package("jax", "flax", "orbax.checkpoint", "optax")
class FlaxTest(TrainersTest):
    TRAIN = "python flax_orbax.py; evalq scan out/orbax --run flax --suite eval"

    def test_scan_finds_each_save_and_the_evaluator_stays_warm(self) -> None:
        path = os.path.join(self.place, "flax_orbax.py")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        head = "def loss(state, x, y):\n"  # JAX calls it only when it compiles.
        self.assertIn(head, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(head, head + "    open('traces', 'a').write('x')\n"))
        self.up("flax_orbax.yaml", "sh", "-c", self.TRAIN)
        self.assertEqual(self.recorded("flax", "mse"), [1, 100, 200, 300, 400, 500])
        with open(os.path.join(self.place, "traces"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "xx", "one compilation in the training, one in the worker for six checkpoints")

    def test_resume_after_a_kill_evaluates_the_rest(self) -> None:
        argv = ("sh", "-c", self.TRAIN)
        self.kill_at("flax_orbax.yaml", *argv, path="out/orbax/200/_CHECKPOINT_METADATA")
        self.up("flax_orbax.yaml", *argv)
        self.assertEqual(sorted(set(self.recorded("flax", "mse"))), [1, 100, 200, 300, 400, 500])


@package("composer")
class ComposerTest(TrainersTest):
    def test_scan_finds_each_save(self) -> None:
        train = "python composer_fit.py; evalq scan out/composer --run composer --suite regression"
        self.up("composer_fit.yaml", "sh", "-c", train)
        values = self.values("composer", "mse")
        self.assertEqual(sorted(values), [20, 40, 60, 80, 100])
        self.assertLess(values[100], values[20])


class HubTrainerTest(TrainersTest):
    """Frameworks that make a Transformers Trainer of their own YAML."""

    def assert_equals_training_without_evalq(self, out: str, config: str, program: str, *argv: str) -> None:
        """program: the file in which evalq is named."""
        self.run_here("python", "tiny_model.py")
        path = os.path.join(self.place, program)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        without = text.replace('callbacks=[EvalqCallback("eval")]', "callbacks=[]").replace("plugins: [", "# [")
        self.assertNotEqual(text, without.replace("evalq: {", "# {"))
        with open(path, "w", encoding="utf-8") as file:
            file.write(without.replace("evalq: {", "# {"))
        self.run_here(*argv)
        with open(os.path.join(self.place, out, "checkpoint-30", "trainer_state.json"), encoding="utf-8") as file:
            history = json.load(file)["log_history"]
        theirs = {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}
        self.assertLessEqual({10, 20, 30}, set(theirs))  # Axolotl also evaluates before the first step.
        shutil.rmtree(os.path.join(self.place, "out"))
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.up(config, *argv)
        names = os.listdir(os.path.join(self.place, ".evalq", "results"))
        (run,) = [name for name in names if name != "tensorboard" and not name.startswith(".")]
        ours = self.values(run, "eval_loss")
        self.assertEqual(sorted(ours), sorted(theirs))
        for step, value in theirs.items():
            self.assertTrue(abs(ours[step] - value) <= 1e-5, (ours, theirs))


@package("axolotl")
class AxolotlTest(HubTrainerTest):
    TRAIN = ("python", "-m", "axolotl.cli.train", "axolotl_config.yaml")

    def test_the_plugin_has_the_curve_of_a_training_without_evalq(self) -> None:
        self.assert_equals_training_without_evalq("out/axolotl", "axolotl_sft.yaml", "axolotl_config.yaml", *self.TRAIN)

    def test_a_wrong_option_does_not_stop_the_training(self) -> None:
        self.run_here("python", "tiny_model.py")
        path = os.path.join(self.place, "axolotl_config.yaml")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("{suites: eval}", "{suite: eval}"))
        self.assertIn("evalq is off for this training: the section `evalq`", self.run_here(*self.TRAIN))


@package("llamafactory")
class LlamaFactoryTest(HubTrainerTest):
    def test_the_callback_has_the_curve_of_a_training_without_evalq(self) -> None:
        argv = ("python", "llamafactory_sft.py", "llamafactory_config.yaml")
        self.assert_equals_training_without_evalq("out/llamafactory", "llamafactory_sft.yaml", "llamafactory_sft.py", *argv)


if __name__ == "__main__":
    unittest.main(verbosity=2)
