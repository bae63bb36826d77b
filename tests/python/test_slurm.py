"""Tests deploy/slurm/worker.sbatch without Slurm. A stand-in for `srun` starts its arguments, and
the worker evaluates with a real Redis."""

from __future__ import annotations

import os
import subprocess
import time
import unittest
from typing import Dict

from scene import BIN, DEADLINE, SOURCE, Scene

SCRIPT = os.path.join(SOURCE, "deploy", "slurm", "worker.sbatch")
CONFIG = """
roots: {out: $OUT}
suites:
  heldout:
    tasks:
      - {name: digits, type: classification, model: {activation: relu},
         data: {format: idx, inputs: $DATA/t10k-images-idx3-ubyte.gz, labels: $DATA/t10k-labels-idx1-ubyte.gz, scale: 1/255, limit: 64}}
worker: {scratch: $OUT/scratch, devices: cpu}
"""


class SlurmTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.scene.write_config(CONFIG)
        with open(self.scene.directory + "/srun", "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nexec "$@"\n')
        os.chmod(self.scene.directory + "/srun", 0o755)

    def run_script(self, environment: Dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
        environment = dict(environment, PATH=f"{self.scene.directory}:{BIN}:{os.environ['PATH']}")
        return subprocess.run(
            ["bash", SCRIPT, *words], env=environment, cwd=self.scene.directory, text=True, capture_output=True, timeout=DEADLINE, check=False
        )

    def test_it_reports_missing_settings(self) -> None:
        done = self.run_script({name: value for name, value in self.scene.environment().items() if name != "EVALQ_URL"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("EVALQ_URL: set it to redis://worker@HOST", done.stderr)

    def test_its_worker_evaluates_and_leaves(self) -> None:
        self.scene.start_redis()
        words = [BIN + "/evalq", "submit", self.scene.checkpoint("1.safetensors"), "--run", "r", "--step", "1", "--suite", "heldout"]
        subprocess.run(words, env=self.scene.environment(), check=True, capture_output=True)
        environment = dict(self.scene.environment(), SLURM_JOB_END_TIME=str(int(time.time()) + 3600))
        done = self.run_script(environment, "--max-jobs", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.scene.redis_call("HGET", "evalq:{main}:job:r/1/regular/heldout", "state").strip(), b"done", done.stderr)


if __name__ == "__main__":
    unittest.main()
