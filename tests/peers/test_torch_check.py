"""tests/gpu/torch_check.py, here on the CPU: it understands the plans that gpu_compare writes, and notices a wrong mean loss."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

from peers import DEADLINE, needs

needs("torch")

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BUILD = os.environ.get("EVALQ_TEST_BUILD", os.path.join(SOURCE, "build", "test"))
STANDIN = os.path.join(BUILD, "standin")
FAMILIES = {"gpt2", "gpt2-erf", "llama", "mistral", "qwen2", "qwen3", "gemma"}


def check(directory: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, os.path.join(SOURCE, "tests/gpu/torch_check.py"), directory]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)


class TorchCheck(unittest.TestCase):
    def test_models_agree_and_a_wrong_loss_is_noticed(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(
                [os.path.join(STANDIN, "bin", "gpu_compare"), "--small", "--repeats", "1", "--part", "models", "--dump", directory],
                check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL, env={**os.environ, "EVQ_STANDIN": STANDIN},
            )
            self.assertEqual({os.path.basename(path)[: -len(".json")] for path in glob.glob(directory + "/*.json")}, FAMILIES)
            done = check(directory)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("\nok   PyTorch in float64, "), len(FAMILIES), done.stdout)
            path = os.path.join(directory, "llama.json")
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
            plan["fp32"] = [loss + 2e-5 for loss in plan["fp32"]]
            with open(path, "w", encoding="utf-8") as file:
                json.dump(plan, file)
            done = check(directory)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("FAIL PyTorch in float64, llama", done.stdout)


if __name__ == "__main__":
    unittest.main()
