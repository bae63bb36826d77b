"""Files of torch.save, distributed checkpoints and directories drawn at random: an evaluator's load() gives weights that the
worker's own reader gives, or one of them refuses. EVALQ_SEED repeats what was drawn, EVALQ_CASES draws more than 200."""

from __future__ import annotations

import collections
import json
import logging
import os
import random
import shutil
import subprocess
import unittest
import warnings
from typing import Any, Dict, List, Set

import test_checkpoints
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file

from evalq._checkpoint.weights import load_weights

SEED = int(os.environ.get("EVALQ_SEED") or random.randrange(1 << 30))
CASES = int(os.environ.get("EVALQ_CASES") or 200)
KEYS = ("model", "state_dict", "module", "net", "params", "weights", "ema", "ema_state_dict", "model_ema", "state_dict_ema",
        "params_ema", "current_model_state", "callbacks", "optimizer", "teacher", "app")  # fmt: skip
FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt",
         "other.pt", "other.safetensors", "optimizer.pt")  # fmt: skip


def state(rng: random.Random) -> Dict[str, Any]:
    """No value is there twice: it tells where it is from."""
    return {f"layer.{i}": torch.rand(4) for i in range(rng.randint(1, 3))}


def part(rng: random.Random) -> Any:
    return rng.choice([
        lambda: state(rng), lambda: state(rng), lambda: {"module": state(rng), "decay": 0.9}, lambda: {"model": state(rng)},
        lambda: {"encoder": state(rng), "width": 3}, lambda: {"EMA": {"ema_state_dict": state(rng)}}, lambda: {}, lambda: 7,
        lambda: [torch.rand(4), torch.rand(4)], lambda: {"model": state(rng), "ema": state(rng)},
    ])()  # fmt: skip


def tree(rng: random.Random) -> Dict[str, Any]:
    found = {key: part(rng) for key in rng.sample(KEYS, rng.choice([1, 2, 2, 3]))}
    found = rng.choice([found, found, found, {"app": found}, state(rng)])
    return {**found, "epoch": 3} if rng.random() < 0.5 else found


def directory(rng: random.Random, path: str) -> None:
    """Weights under several of the names that frameworks give them."""
    os.mkdir(path)
    for name in rng.sample(FILES, rng.choice([1, 2, 3])):
        save = save_file if "safetensors" in name else torch.save
        if name.endswith(".index.json"):
            stem = name.split(".")[0]
            parts = {f"layer.{i}": f"{stem}-{i}{'.safetensors' if save is save_file else '.bin'}" for i in range(2)}
            for key, file in parts.items():
                save({key: torch.rand(4)}, os.path.join(path, file))
            with open(os.path.join(path, name), "w", encoding="utf-8") as index:
                json.dump({"weight_map": parts}, index)
        else:
            save(state(rng), os.path.join(path, name))


def values(tensors: Dict[str, Any]) -> Set[bytes]:
    return {tensor.detach().numpy().tobytes() for tensor in tensors.values()}


class RandomFiles(unittest.TestCase):
    reader: test_checkpoints.Checkpoints

    @classmethod
    def setUpClass(cls) -> None:
        logging.disable(logging.WARNING)  # DCP's, on one process.
        warnings.simplefilter("ignore")
        cls.reader = test_checkpoints.Checkpoints("read")
        cls.reader.setUpClass()
        cls.addClassCleanup(cls.reader.tearDownClass)

    def case(self, seed: int) -> str:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        name, variant = str(seed), rng.choice(["regular", "regular", "ema"])
        path = self.reader.path(name)
        kind, drawn = rng.choice(["file", "file", "distributed", "directory"]), tree(rng)
        if kind == "file":
            torch.save(drawn, path)
        elif kind == "directory":
            directory(rng, path)
        else:
            torch.distributed.checkpoint.save(drawn, checkpoint_id=path)
        held: List[str] = sorted(os.listdir(path)) if kind == "directory" else [str(drawn)]
        self.addCleanup(shutil.rmtree if os.path.isdir(path) else os.unlink, path)
        done = subprocess.run([test_checkpoints.DUMP, self.reader.root, name, "", variant], capture_output=True, check=False)
        try:
            loaded = load_weights(path, variant)
        except (ValueError, FileNotFoundError):
            return "both refuse" if done.returncode == 1 else "load() refuses"
        if done.returncode == 1 and done.stderr:
            return "the worker refuses"
        missing = values(loaded) - values(self.reader.read(name, variant=variant))
        self.assertFalse(missing or not loaded, f"other weights: {sorted(loaded)}, variant {variant}, {kind} {held}")
        return "equal"

    def test_load_gives_what_the_worker_reads(self) -> None:
        print(f"seed {SEED} (EVALQ_SEED repeats it)")
        counts: Dict[str, int] = collections.Counter()
        for number in range(CASES):
            with self.subTest(seed=SEED + number):
                counts[self.case(SEED + number)] += 1
        print("  " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
        self.assertGreater(counts["equal"], CASES // 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
