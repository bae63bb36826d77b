"""When something is wrong, a real Trainer goes on, says so once with what to do, and gets its results once it is mended."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import unittest
from typing import Any, Dict, List

from pace import go_on
from peers import DEADLINE, Stack, StackTest, Training, evaluated, needs, until, words

needs("torch", "transformers", "accelerate")

import evalq  # noqa: E402

PROGRAM = "tiny_gpt2.py"
STEPS = [5, 10, 15, 20]
SETTINGS = {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 5, "max_steps": 20}


def mounts() -> bool:
    """Whether this user may mount."""
    probe = "mount -t tmpfs -o size=64k none /mnt"
    return subprocess.run(["unshare", "-m", "sh", "-c", probe], capture_output=True, check=False).returncode == 0


needs_mounts = unittest.skipUnless(mounts(), "this user may not mount file systems")


class Trouble(StackTest):
    starts_up = False

    def train(self, evalq: Dict[str, Any], env: Dict[str, str], **settings: Any) -> Training:
        """To its end, which nothing may hinder."""
        settings = {**SETTINGS, **settings}
        training = self.stack.start(PROGRAM, *words(evalq={"suites": "eval", **evalq}, **settings), **env)
        training.wait()
        self.assertEqual(self.stack.outcome()["global_step"], settings["max_steps"])
        return training

    def assert_warned_once(self, training: Training, *texts: str) -> None:
        """One line says it, and there is no other."""
        warnings = self.warnings(training)
        self.assertEqual(len(warnings), 1, warnings)
        for text in texts:
            self.assertIn(text, warnings[0])

    def warnings(self, training: Training) -> List[str]:
        """All but that of a wait that takes long here."""
        return [line for line in training.warnings() if "training is done; " not in line]

    def assert_results_arrive(self) -> None:
        until(lambda: sorted(map(int, self.stack.evaluations())) == STEPS, "each step is evaluated, once")

    def address(self) -> Dict[str, str]:
        """Of the stack, for a training that does not find it by itself."""
        with open(os.path.join(self.stack.state, "url"), encoding="utf-8") as file:
            return {
                "EVALQ_URL": file.read().strip(),
                "EVALQ_REDIS_PASSWORD_FILE": os.path.join(self.stack.state, "password"),
            }

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.stack.directory, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)
        return path

    def configure(self, old: str, new: str) -> None:
        """A line of the workers' configuration; they are started with it."""
        with open(os.path.join(self.stack.directory, "evalq.yaml"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        self.stack.down()
        self.write("evalq.yaml", text.replace(old, new))
        self.stack.up()

    def mount(self, place: str, options: str) -> None:
        os.makedirs(place, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", place], check=False)


class AddressTest(Trouble):
    def test_wrong_address(self) -> None:
        training = self.train({"wait": 600}, {"EVALQ_URL": "redis://127.0.0.1:1", "EVALQ_RUN": "t"}, save_total_limit=1)
        warnings = self.warnings(training)  # A word at the start, and one at the end.
        self.assertEqual(len(warnings), 2, warnings)
        for text in ("127.0.0.1:1", "submits are kept in", "sent when it is well again"):
            self.assertIn(text, warnings[0])
        self.assertIn("run 't' ends with 4 of its submits unsent", warnings[1])
        self.stack.up()  # Of four checkpoints one is left; the others are pinned, and what was submitted is in the spool.
        self.stack.evalq("scan", self.stack.out, "--run", "t", "--suite", "eval")
        self.assert_results_arrive()

    def test_malformed_address(self) -> None:
        training = self.train({}, {"EVALQ_URL": "http://nowhere"})
        warnings = self.warnings(training)  # A word at the start, and one at the end.
        self.assertEqual(len(warnings), 2, warnings)
        self.assertIn("does not begin with redis://", warnings[0])
        self.assertIn("4 of the submits were not accepted", warnings[1])
        self.stack.up()
        self.stack.evalq("scan", self.stack.out, "--run", "t", "--suite", "eval")
        self.assert_results_arrive()

    def test_redis_is_away_at_the_start_and_back_later(self) -> None:
        self.stack.up()
        address = self.address()
        self.stack.down()
        settings = dict(SETTINGS, hold=12, save_total_limit=1)
        training = self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings), **address)
        self.stack.wait_for_hold(12)
        self.stack.up()
        go_on(self.stack.out)
        training.wait()
        self.assertEqual(sorted(evaluated(self.stack.outcome())), STEPS)
        self.assert_results_arrive()
        self.assert_warned_once(training, "submits are kept in")

    def test_library_is_missing(self) -> None:
        training = self.train({}, {"EVALQ_LIBRARY": "/nowhere/libevalq.so.1"})
        warnings = self.warnings(training)  # A word at the start, and one at the end.
        self.assertEqual(len(warnings), 2, warnings)
        self.assertIn("nothing will be evaluated: libevalq", warnings[0])
        self.assertIn("4 of the submits were not accepted", warnings[1])


class ConfigurationTest(Trouble):
    def test_unknown_suite(self) -> None:
        self.stack.up()
        training = self.train({"suites": "unknown", "wait": 1}, {}, save_total_limit=1)
        self.assert_warned_once(training, "4 evaluations have not come", "evalq show")
        self.assertEqual(self.stack.evaluations(), [])
        self.configure("suites:\n", "suites:\n  unknown: {evaluator: gpt2, tasks: [{name: eval, type: trainer}]}\n")
        self.assert_results_arrive()

    def test_no_root_holds_the_output(self) -> None:
        self.stack.up()
        config = self.write("client.yaml", "roots: {}\n")
        settings = dict(SETTINGS, hold=12, save_total_limit=1)
        env = dict(self.address(), EVALQ_CONFIG=config, EVALQ_RUN="t")
        training = self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings), **env)
        self.stack.wait_for_hold(12)
        self.write("client.yaml", f"roots:\n  work: {self.stack.directory}\n")
        until(lambda: "t/5/regular/eval" in self.stack.evalq("status", "--json"), "it looks again and submits")
        go_on(self.stack.out)
        training.wait()  # The checkpoints that were rotated away meanwhile were held.
        self.assertEqual(sorted(evaluated(self.stack.outcome())), STEPS)
        self.assert_results_arrive()
        self.assert_warned_once(training, "lies beneath no root; add to", "roots: {")

    def test_the_workers_do_not_know_the_path(self) -> None:
        self.stack.up()
        config = self.write("client.yaml", f"roots:\n  elsewhere: {self.stack.directory}\n")
        training = self.train({"wait": 1}, dict(self.address(), EVALQ_CONFIG=config, EVALQ_RUN="t"), save_total_limit=1)
        self.assert_warned_once(training, "4 evaluations have not come", "evalq show t/5/regular/eval")
        until(lambda: "not known on this worker: add" in self.stack.evalq("show", "t/5/regular/eval"), "why")
        self.configure("roots: {", f"roots: {{elsewhere: {self.stack.directory}, ")
        self.assert_results_arrive()


class DiskTest(Trouble):
    @needs_mounts
    def test_pins_lie_on_another_file_system(self) -> None:
        self.stack.up()
        self.mount(os.path.join(self.stack.out, ".evalq"), "size=64m")
        training = self.train({}, {}, save_total_limit=1, pace=0.1)
        self.assertEqual(sorted(evaluated(self.stack.outcome())), STEPS)
        self.assert_results_arrive()
        self.assert_warned_once(training, "cannot be held", "save_total_limit")  # The pins are copies.

    @needs_mounts
    def test_no_room_for_the_ring(self) -> None:
        self.stack.up()
        full = os.path.join(self.stack.directory, "full")
        self.mount(full, "size=64k")
        training = self.train({}, {"XDG_STATE_HOME": full})
        self.assertEqual(self.warnings(training), [])  # There are other places.
        self.assertEqual(sorted(evaluated(self.stack.outcome())), STEPS)

    @needs_mounts
    def test_pins_leave_training_room_to_save(self) -> None:
        self.stack.up()  # With nobody to evaluate it, and 40 checkpoints rotated away: 0.5 MB each, a third of it weights.
        self.mount(self.stack.out, "size=4m")
        training = self.train({"suites": "unknown", "wait": 0}, {}, save_total_limit=1, max_steps=200)
        warnings = [line for line in self.warnings(training) if "40 evaluations have not come" not in line]
        self.assertEqual(len(warnings), 1, warnings)
        self.assertIn("is not pinned", warnings[0])
        self.assertIn("MiB left, and the next saves may need", warnings[0])

    @needs_mounts
    def test_nowhere_to_write_but_the_output(self) -> None:
        self.stack = Stack(place="/dev/shm")
        self.addCleanup(self.stack.close)
        self.stack.up()
        hide = "mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /var/tmp && exec \"$@\""
        launcher = ["unshare", "-m", "sh", "-c", hide, "sh", sys.executable]
        training = self.stack.start(
            PROGRAM, *words(evalq={"suites": "eval"}, **SETTINGS), launcher=launcher, XDG_STATE_HOME="/proc/none"
        )
        training.wait()
        self.assertEqual(self.warnings(training), [])
        self.assertEqual(sorted(evaluated(self.stack.outcome())), STEPS)


class ClientTest(Trouble):
    """What a Trainer does not do by itself: one checkpoint, and a plain client."""

    def setUp(self) -> None:
        super().setUp()
        self.stack.start(PROGRAM, *words(save_strategy="steps", save_steps=5, max_steps=5)).wait()
        self.saved = os.path.join(self.stack.out, "checkpoint-5")
        self.stack.up()

    def client(self) -> Any:
        address = self.address()
        os.environ["EVALQ_REDIS_PASSWORD_FILE"] = address["EVALQ_REDIS_PASSWORD_FILE"]
        self.addCleanup(os.environ.pop, "EVALQ_REDIS_PASSWORD_FILE")
        config = os.path.join(self.stack.directory, "evalq.yaml")
        ring = os.path.join(self.stack.directory, "ring")
        return evalq.Client(address["EVALQ_URL"], "t", config=config, ring_directory=ring)

    def ends(self, client: Any) -> List[str]:
        self.assertTrue(client.wait(DEADLINE))
        return [result.state for result in client.results() if result.is_end]

    def said(self, logs: Any) -> List[str]:
        """All but that a wait takes long here."""
        return [line for line in logs.output if ":wait: jobs of run 't' are still open" not in line]

    def test_checkpoint_was_deleted_by_hand(self) -> None:
        away = self.saved + ".away"
        os.rename(self.saved, away)
        with self.client() as client, self.assertLogs("evalq", logging.WARNING) as logs:
            client.submit(self.saved, step=5, suites="eval")
            self.assertEqual(self.ends(client), ["skipped"])
            os.rename(away, self.saved)
            self.stack.evalq("retry", "t/5/regular/eval")
            self.assertEqual(self.ends(client), ["done"])
        # One when it is submitted, which says what to do, and one when its end arrives.
        missing, ended = self.said(logs)
        self.assertIn("is not there; its evaluation will be skipped", missing)
        self.assertIn("evalq retry", missing)
        self.assertIn("step 5: the evaluation by eval ended as skipped: vanished", ended)

    def test_accelerate_finds_its_own_checkpoints_alone(self) -> None:
        """It counts all that lies beside them, and raises at a name without a number."""
        import torch
        from accelerate import Accelerator
        from accelerate.utils import ProjectConfiguration

        project = ProjectConfiguration(project_dir=self.stack.out, automatic_checkpoint_naming=True, total_limit=1)
        accelerator = Accelerator(cpu=True, project_config=project)
        accelerator.prepare(torch.nn.Linear(2, 2))
        self.stack.evalq("pause")
        with self.client() as client:
            for step in (10, 20, 30):
                self.assertTrue(client.submit(accelerator.save_state(), step=step, suites="fixed"))
                self.assertTrue(client.flush(DEADLINE))
            self.assertEqual(os.listdir(os.path.join(self.stack.out, "checkpoints")), ["checkpoint_2"])
            accelerator.load_state()
            self.stack.evalq("resume")
            self.assertEqual(self.ends(client), ["done"] * 3)
            pins = os.path.join(self.stack.out, ".evalq", "pins")
            until(lambda: not os.listdir(pins), "the copies go with their jobs")

    @needs_mounts
    def test_output_cannot_be_written_to(self) -> None:
        other = self.saved + ".other"
        shutil.copytree(self.saved, other)
        os.rename(other, os.path.join(self.stack.directory, "checkpoint-5"))
        self.mount(self.stack.out, "size=64m")
        shutil.copytree(os.path.join(self.stack.directory, "checkpoint-5"), self.saved)
        subprocess.run(["mount", "-o", "remount,ro", self.stack.out], check=True)
        with self.client() as client, self.assertLogs("evalq", logging.WARNING) as logs:
            client.submit(self.saved, step=5, suites="eval")
            self.assertEqual(self.ends(client), ["done"])
        (unpinned,) = self.said(logs)
        self.assertIn("is not pinned, so deleting it before its evaluation loses that", unpinned)


class RotationTest(Trouble):
    def test_a_checkpoint_deleted_at_once_is_evaluated_all_the_same(self) -> None:
        self.stack.up()
        settings = dict(SETTINGS, hold=6)
        training = self.stack.start(PROGRAM, *words(evalq={"suites": "eval"}, **settings))
        self.stack.wait_for_hold(6)
        shutil.rmtree(os.path.join(self.stack.out, "checkpoint-5"))
        go_on(self.stack.out)
        training.wait()
        self.assertEqual(self.warnings(training), [])
        self.assertEqual(sorted(evaluated(self.stack.outcome())), STEPS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
