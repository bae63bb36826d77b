"""docs/trainers.md against the real packages of trainers that are made for clusters of GPUs, as far as they run on a CPU: their own
classes save, `evalq scan` or the hook of the page submits, and the numbers of the worker are those of the weights in the training.

One class per trainer; a class whose package is not installed is skipped with its name. Each needs an environment of its own:

    EVALQ_PEERS_REQUIREMENTS=tests/peers/requirements-trainers-torchtitan.txt sh tests/peers/run.sh test_cluster_trainers:TorchtitanTest

and likewise -megatron and -verl. prime-rl and miles are not on PyPI: EVALQ_PEERS_VENV names an environment in which they can be imported.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import unittest
from typing import Dict

from peers import HERE, needs
from test_trainers import PAGE, RANKS, TrainersTest, package

needs("torch", "numpy")

CONFIG = """
roots: {here: .}
evaluators:
  mine:
    kind: persistent
    argv: [python, -m, evalq.serve, "sums:evaluate"]
    directory: .
    env_pass: [PYTHONPATH, EVALQ_LIBRARY, OMP_NUM_THREADS]
"""
SUITES = """
suites:
  eval: {evaluator: mine, ready: READY, tasks: [{name: eval}]}
"""


class ClusterTest(TrainersTest):
    def setUp(self) -> None:
        super().setUp()
        shutil.copytree(os.path.join(HERE, "clusters"), self.place, dirs_exist_ok=True)

    def write(self, name: str, *parts: str) -> None:
        with open(os.path.join(self.place, name), "w", encoding="utf-8") as file:
            file.write("".join(parts))

    def block(self, section: str, start: str) -> str:
        """The block of the page's section that begins so."""
        with open(PAGE, encoding="utf-8") as file:
            text = file.read().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        (found,) = [block for block in re.findall(r"^```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if block.startswith(start)]
        return found

    def configuration(self, section: str) -> str:
        """The configuration that the page shows, with the evaluator of this test."""
        text = self.block(section, "evaluators:\n").replace("evaluators:\n", "").replace("python3", "python")
        return CONFIG + text.replace("    kind: command\n", "    kind: command\n    env_pass: [PYTHONPATH, OMP_NUM_THREADS]\n")

    def train_and_scan(self, folder: str, run: str, *train: str) -> None:
        scan = f"evalq scan {folder} --run {run} --suite eval --pin"
        self.up("evalq.yaml", "sh", "-c", f'"$@" && {scan}', "train", *train)

    def sums(self, steps: "tuple[int, ...]") -> Dict[int, float]:
        """Of the whole weights that a program left in whole-STEP.pt."""
        import torch

        found = {}
        for step in steps:
            whole = torch.load(os.path.join(self.place, f"whole-{step}.pt"), weights_only=True)
            found[step] = float(sum(value.double().abs().sum() for value in whole.values()))
        return found

    def assert_sums(self, run: str, expected: Dict[int, float]) -> None:
        ours = self.values(run, "sum")
        self.assertEqual(sorted(ours), sorted(expected))
        self.assertEqual(len(set(expected.values())), len(expected), "the weights of each step are others")
        for step, value in expected.items():
            self.assertTrue(abs(ours[step] - value) <= 1e-6 * value, (ours, expected))


@package("torchtitan")
class TorchtitanTest(ClusterTest):
    def test_scan_finds_what_its_trainer_saves(self) -> None:
        import torch
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        self.write("evalq.yaml", CONFIG, SUITES.replace("ready: READY, ", ""))
        words = "torchtitan_cpu.py --module llama3 --config llama3_debugmodel --hf_assets_path ./tokenizer --dataloader.dataset_path ./texts"
        words += " --training.steps 4 --training.seq_len 64 --training.local_batch_size 2 --parallelism.spmd_backend partial_dtensor"
        words += " --checkpoint.enable --checkpoint.interval 2 --checkpoint.async_mode async"
        self.train_and_scan("outputs/checkpoint", "titan", *RANKS, *words.split())
        expected = {}
        for step in (2, 4):
            whole = os.path.join(self.folder, "whole.pt")
            dcp_to_torch_save(os.path.join(self.place, "outputs", "checkpoint", f"step-{step}"), whole)
            state = torch.load(whole, weights_only=False)
            expected[step] = self.sum_of(state)
        self.assert_sums("titan", expected)

    def sum_of(self, state: "Dict[str, object]") -> float:
        import torch

        total = 0.0
        for name, value in state.items():
            if isinstance(value, dict) and not name.startswith("optim"):
                total += self.sum_of(value)
            elif isinstance(value, torch.Tensor) and value.is_floating_point():
                total += float(value.double().abs().sum())
        return total


@package("megatron.core")
class MegatronTest(ClusterTest):
    def test_scan_waits_for_its_marker_and_load_joins_the_ranks(self) -> None:
        self.write("evalq.yaml", CONFIG, SUITES.replace("READY", "metadata.json"))
        unfinished = os.path.join(self.place, "out", "megatron", "iter_0000300")  # It has no metadata.json yet.
        train = f"{' '.join(RANKS)} megatron_save.py && cp -r out/megatron/iter_0000200 {unfinished} && rm {unfinished}/metadata.json"
        self.train_and_scan("out/megatron", "megatron", "sh", "-c", train)
        self.assertTrue(os.path.exists(os.path.join(unfinished, ".metadata")))
        self.assert_sums("megatron", self.sums((100, 200)))
        self.assertEqual(self.values("megatron", "tensors"), {100: 4, 200: 4})  # Without the optimizer's.


@package("verl", "tensordict")
class VerlTest(ClusterTest):
    def test_scan_merges_with_its_own_program_and_the_callback_submits(self) -> None:
        self.write("evalq.yaml", self.configuration("verl"))
        self.write("my_callback.py", self.block("verl", "import evalq\n"))
        self.train_and_scan("out/verl", "verl", *RANKS, "verl_save.py")
        for run in ("verl", "hook"):
            self.assert_sums(run, self.sums((1, 2)))


@package("prime_rl")
class PrimeRlTest(ClusterTest):
    def test_scan_finds_each_stable_broadcast(self) -> None:
        base = os.path.join(self.place, "base")
        self.write("evalq.yaml", self.configuration("prime-rl").replace("/data/models/base", base))
        self.train_and_scan("out/prime/broadcasts", "prime", *RANKS, "prime_rl_broadcast.py")
        self.assert_sums("prime", self.sums((1, 2)))


@package("miles")
class MilesTest(ClusterTest):
    def test_its_evaluation_function_returns_the_metrics_of_its_step(self) -> None:
        self.write("evalq.yaml", CONFIG, SUITES.replace("ready: READY, ", ""))
        self.write("my_eval.py", self.block("miles", "import asyncio"))
        self.up("evalq.yaml", "python", "miles_eval.py")
        with open(os.path.join(self.place, "found.json"), encoding="utf-8") as file:
            found = json.load(file)
        ours = self.values("miles", "sum")
        self.assertTrue(abs(ours[2] / ours[1] - 2) <= 1e-6, ours)
        self.assertEqual(len(found), 3)
        for step, metrics in zip((1, 2, 1), found):
            self.assertTrue(abs(metrics["eval/eval/sum"] - ours[step]) <= 1e-9, (found, ours))


if __name__ == "__main__":
    unittest.main(verbosity=2)
