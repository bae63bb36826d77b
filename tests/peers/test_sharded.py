"""Checkpoints of several files, written by several processes: each waited for, pinned, evaluated and rotated away.

Real FSDP2 (two processes, gloo, on the CPU) and DeepSpeed ZeRO-2 in a Trainer, FSDP2 in Lightning, and Transformers' own
shards. Where DeepSpeed is not installed, its test is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Optional
from unittest import mock

from peers import DEADLINE, STEPS, StackTest, TrainerStackTest, evaluated, needs, words

import evalq

needs("torch", "transformers", "accelerate", "lightning")

needs_deepspeed = unittest.skipIf(importlib.util.find_spec("deepspeed") is None, "not run: deepspeed is not installed")
RANKS = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# The best is in the middle, and long rotated away when it is known.
SETTINGS = dict(STEPS, eval_steps=5, save_steps=5, max_steps=35, save_total_limit=1, learning_rate=0.06)
SETTINGS["lr_scheduler_type"] = "constant"


def digest_of(checkpoint: str) -> str:
    """Of its weights, as tiny_gpt2.py has it of a model's."""
    import tiny_gpt2
    from evalq._checkpoint.weights import load_into, load_weights

    with tempfile.TemporaryDirectory() as folder:
        model = tiny_gpt2.make_trainer(folder).model
    load_into(model, load_weights(checkpoint), checkpoint)
    return str(tiny_gpt2.digest(model))


class TrainerTest(TrainerStackTest):
    def train(self, launcher: Optional[List[str]], **more: Any) -> Dict[str, Any]:
        """With evalq, held against the same training that evaluates for itself."""
        settings = {**SETTINGS, **more}
        # Where it rotates by itself its ranks may not agree on the best: each looks for it while one of them deletes.
        reference = self.reference(launcher, **{**settings, "save_total_limit": None})
        self.stack.start("tiny_gpt2.py", *words(evalq={"suites": "eval"}, **settings), launcher=launcher).wait()
        outcome = self.stack.outcome()
        self.assert_same_evaluations(outcome, reference)
        self.assertEqual(sorted(map(int, self.stack.evaluations())), list(range(5, 36, 5)))
        self.assertEqual(outcome["best_global_step"], reference["best_global_step"])
        self.assertEqual(outcome["digest"], digest_of(outcome["best_model_checkpoint"]))
        best = f"checkpoint-{outcome['best_global_step']}"
        self.assertEqual([name for name in os.listdir(self.stack.out) if name.startswith("checkpoint-")], [best])
        self.assert_pins_are_released()
        return outcome

    def test_transformers_own_shards(self) -> None:
        outcome = self.train(None, shard_bytes=20000)
        names = os.listdir(outcome["best_model_checkpoint"])
        self.assertIn("model.safetensors.index.json", names)
        self.assertGreater(len([name for name in names if name.endswith(".safetensors")]), 3)

    def test_fsdp(self) -> None:
        outcome = self.train(RANKS, fsdp=True, fsdp_config={"version": 2, "state_dict_type": "SHARDED_STATE_DICT"})
        names = os.listdir(os.path.join(outcome["best_model_checkpoint"], "pytorch_model_fsdp_0"))
        self.assertEqual(len([name for name in names if name.endswith(".distcp")]), 2)

    def test_fsdp_saves_what_is_due_without_a_save(self) -> None:
        settings = dict(SETTINGS, max_steps=12, eval_steps=4, save_strategy="no", load_best_model_at_end=False, fsdp=True)
        settings["fsdp_config"] = {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}
        self.stack.start("tiny_gpt2.py", *words(evalq={"suites": "eval"}, **settings), launcher=RANKS).wait()
        self.assertEqual(sorted(evaluated(self.stack.outcome())), [4, 8, 12])

    def test_shards_that_are_being_written_are_waited_for(self) -> None:
        settings = {"max_steps": 5, "save_steps": 5, "logging_steps": 5, "fsdp": True, "eval_strategy": "steps", "eval_steps": 5}
        settings["fsdp_config"] = {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}
        expected = evaluated(self.reference(RANKS, **settings))[5]["eval_loss"]
        path = os.path.join(self.stack.out, "checkpoint-5")
        shutil.move(os.path.join(self.stack.out + "-reference", "checkpoint-5"), path)
        shard = os.path.join(path, "pytorch_model_fsdp_0", "__1_0.distcp")
        with open(shard, "rb") as file:
            data = file.read()
        with open(os.path.join(self.stack.state, "url"), encoding="utf-8") as file:
            url = file.read().strip()
        password = {"EVALQ_REDIS_PASSWORD_FILE": os.path.join(self.stack.state, "password")}
        config = os.path.join(self.stack.directory, "evalq.yaml")
        with mock.patch.dict(os.environ, password), evalq.Client(url, "late", config=config, log=False) as client:
            for length in (None, len(data) // 2, len(data)):  # Not there, half, whole.
                if length is None:
                    os.unlink(shard)
                    self.assertTrue(client.submit(path, step=5, suites="eval"))
                else:
                    with open(shard, "wb") as file:
                        file.write(data[:length])
                if length != len(data):
                    self.assertFalse(client.flush(1.0))
                    self.assertEqual((client.stats().sent, self.stack.evaluations()), (0, []))
            self.assertTrue(client.wait(DEADLINE))
            found = {result.metric: result.value for result in client.results()}
        self.assertLessEqual(abs(found["eval_loss"] - expected), 1e-5)
        self.assertEqual(self.stack.evaluations(), ["5"])

    def zero(self, stage: int, **more: Any) -> str:
        """The configuration of DeepSpeed."""
        auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        config = {"zero_optimization": {"stage": stage, **more}, "zero_allow_untested_optimizer": True}
        path = os.path.join(self.stack.directory, "deepspeed.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**config, "zero_force_ds_cpu_optimizer": False, **dict.fromkeys(auto, "auto")}, file)
        return path

    @needs_deepspeed
    def test_deepspeed(self) -> None:
        outcome = self.train(RANKS, deepspeed=self.zero(2))
        self.assertIn(f"global_step{outcome['best_global_step']}", os.listdir(outcome["best_model_checkpoint"]))

    @needs_deepspeed
    def test_deepspeed_stage_3_that_gathers_its_weights(self) -> None:
        outcome = self.train(RANKS, deepspeed=self.zero(3, stage3_gather_16bit_weights_on_model_save=True))
        self.assertIn("model.safetensors", os.listdir(outcome["best_model_checkpoint"]))

    @needs_deepspeed
    def test_deepspeed_stage_3_that_does_not_says_what_to_do(self) -> None:
        settings = dict(SETTINGS, max_steps=5, load_best_model_at_end=False, deepspeed=self.zero(3))
        evalq = words(evalq={"suites": "eval"}, **settings)
        training = self.stack.start("tiny_gpt2.py", *evalq, launcher=RANKS, EVALQ_RUN="t")
        training.wait()
        said = [line for line in training.warnings() if "ended as dead" in line]
        self.assertEqual(len(said), 1, training.said()[-6000:])
        self.assertIn("ZeRO stage 3", said[0])
        whole = self.stack.evalq("logs", "t/5/regular/eval")
        for text in ("stage3_gather_16bit_weights_on_model_save", "zero_to_fp32.py"):
            self.assertIn(text, whole)

    @needs_deepspeed
    def test_deepspeed_stage_3_is_joined_by_a_prepare_command(self) -> None:
        settings = dict(SETTINGS, max_steps=10, load_best_model_at_end=False, deepspeed=self.zero(3))
        reference = self.reference(RANKS, **dict(settings, save_strategy="no"))
        self.stack.start("tiny_gpt2.py", *words(evalq={"suites": "joined"}, **settings), launcher=RANKS).wait()
        self.assert_same_evaluations(self.stack.outcome(), reference)
        self.assertNotIn("model.safetensors", os.listdir(os.path.join(self.stack.out, "checkpoint-10")))


class IndexTest(unittest.TestCase):
    """The index of a distributed checkpoint is a pickle."""

    def load(self, index: Any) -> None:
        from evalq._checkpoint.weights import load_weights

        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, ".metadata"), "wb") as file:
                pickle.dump(index, file)
            load_weights(folder)

    def test_runs_no_code(self) -> None:
        class Evil:
            def __reduce__(self) -> Any:
                return os.system, ("false",)

        with self.assertRaisesRegex(ValueError, "names posix.system, which is not allowed"):
            self.load(Evil())

    def test_takes_nothing_but_members_from_an_enum(self) -> None:
        import pathlib

        from evalq._checkpoint.dcp import _enum_member
        from torch.distributed.checkpoint.planner import WriteItemType

        class Getattr:
            def __init__(self, *arguments: Any) -> None:
                self.arguments = arguments

            def __reduce__(self) -> Any:  # As Python 3.11.2 writes the members of an Enum.
                return getattr, self.arguments

        self.assertIs(_enum_member(WriteItemType, "SHARD"), WriteItemType.SHARD)
        for owner, name in ((pathlib.PosixPath, "unlink"), (WriteItemType, "__subclasses__"), ("", "join")):
            with self.assertRaisesRegex(ValueError, f"takes '{name}' from .*, which is no member of an Enum"):
                self.load(Getattr(owner, name))

    def test_leaves_optimizers_out_of_flat_names(self) -> None:
        import torch
        from evalq._checkpoint.weights import load_weights
        from torch.distributed.checkpoint import FileSystemWriter, save

        with tempfile.TemporaryDirectory() as folder:
            names = ("model.layer.weight", "optimizer.state.exp_avg.model.layer.weight", "chained_0.optimizer.param")
            save({name: torch.ones(2) for name in names}, storage_writer=FileSystemWriter(folder), planner=self.flat())
            self.assertEqual(list(load_weights(folder)), ["model.layer.weight"])

    @staticmethod
    def flat() -> Any:
        """The planner of Megatron Core, which notes no paths."""
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

        return DefaultSavePlanner(flatten_state_dict=False)

    def test_names_files_beside_it(self) -> None:
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

        with self.assertRaisesRegex(ValueError, "names '../secret', which is not a file beside it"):
            self.load(Metadata({}, storage_data={MetadataIndex("a"): _StorageInfo("../secret", 0, 1)}))


class LightningTest(StackTest):
    def test_directories(self) -> None:
        settings = words(max_epochs=4, devices=2, sharded=True, evalq={"monitor": "val_loss"})
        self.stack.start("tiny_lightning.py", *settings).wait()
        outcome = self.stack.outcome()
        self.assertEqual(len(self.stack.evaluations()), 4)
        self.assertTrue(os.path.isfile(os.path.join(outcome["best_model_path"], ".metadata")), outcome)


if __name__ == "__main__":
    unittest.main(verbosity=2)
