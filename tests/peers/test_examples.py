"""The Python examples as they stand: each under `evalq up`, as its first line says, and what it prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import List, Tuple

from peers import needs
from scene import BIN, DEADLINE, PACKAGE, SOURCE

needs("torch", "transformers", "accelerate", "lightning", "numpy")

EXAMPLES = os.path.join(SOURCE, "producer", "examples")


class ExamplesTest(unittest.TestCase):
    def run_in(self, place: str, *argv: str) -> str:
        """Standard output of a command."""
        env = dict(os.environ, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
        env.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), BIN, env["PATH"]]))
        env.update(XDG_STATE_HOME=os.path.join(place, "state"))
        env.pop("EVALQ_URL", None)
        done = subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-4000:])
        return done.stdout

    def run_example(self, *argv: str) -> str:
        """Standard output; in a copy of the folder, since they write beside themselves."""
        with tempfile.TemporaryDirectory(prefix="evalq-examples-") as folder:
            place = shutil.copytree(EXAMPLES, os.path.join(folder, "examples"))
            return self.run_in(place, "evalq", "up", "--", *argv)

    def found(self, pattern: str, text: str) -> "List[Tuple[str, ...]]":
        made = re.findall(pattern, text)
        self.assertTrue(made, text[-3000:])
        return made

    def test_the_three_steps_of_the_page_about_python(self) -> None:
        with open(os.path.join(SOURCE, "docs", "python.md"), encoding="utf-8") as file:
            section = file.read().split("\n## In three steps\n")[1].split("\n## ")[0]
        files = re.findall(r"```python\n(.*?)```", section, re.S)
        commands = re.findall(r"```sh\n(.*?)```", section, re.S)
        self.assertEqual((len(files), len(commands)), (2, 1))
        with tempfile.TemporaryDirectory(prefix="evalq-examples-") as place:
            for name, text in zip(("my_eval.py", "train.py"), files):
                with open(os.path.join(place, name), "w", encoding="utf-8") as file:
                    file.write(text)
            text = self.run_in(place, "sh", "-ec", commands[0])
            values = self.found(r"(?m)^step (\d+): loss ([0-9.]+)$", text)
            self.assertEqual(sorted(int(step) for step, _ in values), [200, 400, 600, 800, 1000])
            by_step = {int(step): float(value) for step, value in values}
            self.assertLess(by_step[1000], by_step[200])
            self.assertIn("best: " + os.path.join(os.path.realpath(place), "out/step-1000.pt"), text)

    def test_plain_loop(self) -> None:
        values = self.found(r"step (\d+): mse ([0-9.]+)", self.run_example("python", "plain_loop.py"))
        self.assertEqual([int(step) for step, _ in values], [200, 400, 600, 800, 1000])
        self.assertLess(float(values[-1][1]), float(values[0][1]))

    def test_ema(self) -> None:
        lines = self.found(r"step (\d+): regular ([0-9.]+), ema ([0-9.]+)", self.run_example("python", "ema.py"))
        self.assertEqual(len(lines), 5)
        self.assertTrue(all(regular != ema for _, regular, ema in lines), lines)

    def test_ddp_over_several_slots(self) -> None:
        argv = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ddp_linear.py")
        text = self.run_example(*argv)
        values = self.found(r"step (\d+): accuracy ([0-9.]+) of (\d+) samples", text)
        self.assertEqual([(step, count) for step, _, count in values], [(step, "10001") for step in ("20", "40", "60")])
        self.assertEqual(values[-1][1], self.found(r"here, step 60: accuracy ([0-9.]+)", text)[0])

    def test_transformers(self) -> None:
        text = self.run_example("python", "transformers_trainer.py")
        self.assertEqual([int(step) for step, _ in self.found(r"step +(\d+): eval_loss ([0-9.]+)", text)], [50, 100, 150, 200])
        self.assertIn("checkpoint-200", text)

    def test_bert_classifier(self) -> None:
        text = self.run_example("python", "bert_classifier.py")
        self.assertGreater(float(self.found(r"best accuracy ([0-9.]+) at step", text)[0]), 0.5)

    def test_lightning(self) -> None:
        text = self.run_example("python", "lightning_mlp.py")
        self.found(r"best val_loss ([0-9.]+) at step \d+: \S+\.ckpt", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
