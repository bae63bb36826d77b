"""deploy/suites/fsdp2_merge.py on what no training should have left: indexes that are programs, optimizers, other variants, files of
attempts that were killed. Shards of real processes: test_lmms.py."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import unittest
from typing import Any

from peers import needs

needs("torch", "safetensors")

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from scene import SOURCE  # noqa: E402

PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")
MERGE = os.path.join(SOURCE, "deploy", "suites", "fsdp2_merge.py")


def run(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, MERGE, *words], env=dict(os.environ, **env), capture_output=True, text=True, check=False)


class MergeTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="evalq-merge-")
        self.addCleanup(holder.cleanup)
        self.directory = holder.name
        self.source, self.output = self.directory + "/checkpoint-1", self.directory + "/merged"
        self.folder = self.source + "/pytorch_model_fsdp_0"
        self.weights = {"head.weight": torch.arange(12.0).reshape(3, 4), "head.bias": torch.ones(3)}

    def merged(self) -> None:
        done = run("--dtype", "keep", self.source, "regular", self.output)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir(self.output), ["model.safetensors"])
        loaded = load_file(self.output + "/model.safetensors")
        self.assertEqual(set(loaded), set(self.weights))
        for name, value in self.weights.items():
            self.assertTrue(torch.equal(loaded[name], value), name)

    def test_distributed_checkpoint_gives_its_model(self) -> None:
        optimizer = {"state": {"head.weight": {"exp_avg": torch.zeros(3, 4)}}, "step": 3}
        dcp.save({"model": self.weights, "optim": optimizer}, checkpoint_id=self.folder, no_dist=True)
        self.merged()

    def test_index_that_is_a_program_is_not_run(self) -> None:
        dcp.save(self.weights, checkpoint_id=self.folder, no_dist=True)
        called = self.directory + "/called"

        class Hostile:
            def __reduce__(self) -> Any:
                return (os.mkdir, (called,))

        path = self.folder + "/.metadata"
        with open(path, "rb") as file:
            index = pickle.load(file)  # noqa: S301 - our own.
        index.planner_data["more"] = Hostile()
        with open(path, "wb") as file:
            pickle.dump(index, file)
        done = run(self.source, "regular", self.output)
        refused = "names posix.mkdir, which is not allowed" in done.stderr
        self.assertEqual((done.returncode, refused), (os.EX_DATAERR, True), done.stderr)
        self.assertFalse(os.path.exists(called))

    def test_regular_weights_are_those_of_no_other_variant(self) -> None:
        os.makedirs(self.folder)
        torch.save(self.weights, self.folder + "/model_world_size_1_rank_0.pt")
        self.merged()
        done = run(self.source, "swa", self.output)
        self.assertEqual((done.returncode, "'swa', expected regular or ema" in done.stderr), (os.EX_DATAERR, True), done.stderr)

    def keep(self, **options: Any) -> "subprocess.CompletedProcess[str]":
        """As the worker runs it, once what was prepared lies in checkpoint-1."""
        job = {"checkpoint": self.source, "params": {"lmms_merge": json.dumps({"output": self.output})}}
        with open(self.directory + "/job.json", "w", encoding="utf-8") as file:
            json.dump(job, file)
        env = dict(os.environ, EVALQ_JOB=self.directory + "/job.json", EVALQ_RESULT=self.directory + "/result.json")
        env["EVALQ_LMMS_OUTPUT"] = self.directory
        return subprocess.run([sys.executable, MERGE, "--keep"], env=env, capture_output=True, text=True, check=False, **options)

    def leave(self, directory: str, *names: str) -> None:
        os.makedirs(directory, exist_ok=True)
        for name in names:
            with open(os.path.join(directory, name), "wb"):
                pass

    def test_weights_of_an_earlier_merge_go(self) -> None:
        self.leave(self.output, *PARTS, "mine.safetensors", "config.json")
        os.makedirs(self.folder)
        torch.save(self.weights, self.folder + "/model_world_size_1_rank_0.pt")
        self.assertEqual(run(self.source, "regular", self.output).returncode, 0)
        self.assertEqual(set(os.listdir(self.output)), {"model.safetensors", "mine.safetensors", "config.json"})

    def test_weights_that_were_kept_before_go(self) -> None:
        self.leave(self.source, *PARTS, "config.json")
        self.leave(self.output, "model.safetensors", "model-00001-of-00003.safetensors", "mine.safetensors")
        done = self.keep()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(os.listdir(self.output)), {*PARTS, "config.json", "mine.safetensors"})

    def test_a_checkpoint_is_not_kept_in_its_own_place(self) -> None:
        self.leave(self.source, *PARTS, "config.json")
        os.symlink(self.source, self.output)
        done = self.keep()
        self.assertEqual((done.returncode, "is the checkpoint itself" in done.stderr), (os.EX_DATAERR, True), done.stderr)
        self.assertEqual(set(os.listdir(self.source)), {*PARTS, "config.json"})

    def test_nothing_is_left_of_attempts_that_failed(self) -> None:
        os.mkdir(self.source)
        os.mkdir(self.output)
        with open(self.source + "/model.safetensors", "wb") as file:
            file.write(bytes(1 << 20))
        for name in (".model.safetensors.12", ".model.safetensors.own"):  # The second is nobody's that was killed.
            with open(f"{self.output}/{name}", "wb"):
                pass
        # As on a disk that is full.
        failed = self.keep(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertNotEqual(failed.returncode, 0)
        self.assertEqual(os.listdir(self.output), [".model.safetensors.own"])
        done = self.keep()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(os.listdir(self.output)), [".model.safetensors.own", "model.safetensors"])


if __name__ == "__main__":
    unittest.main()
