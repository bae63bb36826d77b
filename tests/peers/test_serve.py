"""serve_trainer, serve_lightning and submit_state_dict against the real frameworks. What they take: bench_serve.py."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), HERE]

from peers import needs  # noqa: E402

needs("torch", "transformers", "accelerate", "lightning")

import numpy  # noqa: E402
import torch  # noqa: E402
from scene import DEADLINE, NATIVE, PACKAGE, SceneTest  # noqa: E402
from torch.distributed import checkpoint  # noqa: E402

import tiny_gpt2  # noqa: E402
import tiny_lightning  # noqa: E402
from evalq._snapshots import state_copy  # noqa: E402
from evalq._snapshots.host_memory import HostMemory  # noqa: E402
from evalq._checkpoint.safetensors import read_safetensors_torch  # noqa: E402
from evalq._checkpoint.weights import load_into, load_weights  # noqa: E402

CONFIG = NATIVE.replace(
    "suites:",
    f"""
evaluators:
  trainer:
    kind: persistent
    argv: [$PYTHON, -m, evalq.serve_trainer, "peer_trainer:make"]
    directory: $OUT
    env: {{PYTHONPATH: "{PACKAGE}:{HERE}", OMP_NUM_THREADS: 1}}
  lightning:
    kind: persistent
    argv: [$PYTHON, -m, evalq.serve_lightning, "peer_lightning:make"]
    directory: $OUT
    env: {{PYTHONPATH: "{PACKAGE}:{HERE}", OMP_NUM_THREADS: 1}}
suites:
  held-out:
    evaluator: trainer
    tasks: [{{name: text}}]
  validate:
    evaluator: lightning
    tasks: [{{name: net}}]""",
)

TRAINER = """
import os, tiny_gpt2

def make():
    with open(os.path.join(os.path.dirname(__file__), "made"), "a") as file:
        file.write(".")
    return tiny_gpt2.make_trainer()
"""

LIGHTNING = """
import tiny_lightning

def make():
    module = tiny_lightning.Regression()
    return tiny_lightning.make_trainer(logger=False, enable_checkpointing=False), module, module.val_dataloader()
"""


HARMED: "list[str]" = []


def harm(text: str) -> None:
    HARMED.append(text)


class Harm:
    """What harms whoever makes it from a file."""

    def __reduce__(self) -> object:
        return harm, ("done",)


class PeerTest(SceneTest):
    config = CONFIG
    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for name, text in (("peer_trainer", TRAINER), ("peer_lightning", LIGHTNING)):
            with open(os.path.join(cls.scene.out, name + ".py"), "w", encoding="utf-8") as file:
                file.write(text)
        cls.scene.start_worker()

    def made(self) -> int:
        """How often a worker has made its Trainer."""
        path = os.path.join(self.scene.out, "made")
        return os.path.getsize(path) if os.path.exists(path) else 0

    def values(self, client, keep=lambda result: True):
        found = {}
        for result in client.results():
            if not result.is_end and keep(result):
                found.setdefault(result.step, {})[result.metric] = result.value
            elif result.is_end:
                self.assertEqual(result.state, "done", result.reason)
        return found

    def test_trainer_gives_what_its_evaluate_gives(self) -> None:
        torch.set_num_threads(1)
        out = os.path.join(self.scene.out, "gpt2")
        trainer = tiny_gpt2.make_trainer(out, max_steps=6, save_steps=2, save_strategy="steps", eval_strategy="no")
        wanted = {}

        class Look(tiny_gpt2.transformers.TrainerCallback):
            def on_save(self, args, state, control, **_):
                wanted[state.global_step] = trainer.evaluate()

        trainer.add_callback(Look())
        trainer.train()
        # The same weights in the other layouts that from_pretrained knows.
        last = os.path.join(out, "checkpoint-6")
        sharded = os.path.join(out, "sharded-8")
        trainer.model.save_pretrained(sharded, max_shard_size="20KB")
        self.assertGreater(len([name for name in os.listdir(sharded) if name.endswith(".safetensors")]), 2)
        binary = os.path.join(out, "binary-10")
        os.mkdir(binary)
        shutil.copy(os.path.join(last, "config.json"), binary)
        torch.save(trainer.model.state_dict(), os.path.join(binary, "pytorch_model.bin"))
        paths = {step: os.path.join(out, f"checkpoint-{step}") for step in (2, 4, 6)}
        paths.update({8: sharded, 10: binary})
        made = self.made()
        with self.scene.client("gpt2", raise_errors=True) as client:
            found = {}
            for step, path in paths.items():
                client.submit(path, step=step, suites="held-out")
                self.assertTrue(client.wait(DEADLINE))
                found.update(self.values(client))
        for step in paths:
            for metric in ("eval_loss", "eval_accuracy"):
                difference = abs(found[step][metric] - wanted[min(step, 6)][metric])
                self.assertTrue(difference <= 1e-5, f"step {step} {metric}: {found[step][metric]} off by {difference}")
        self.assertNotEqual(found[2]["eval_loss"], found[6]["eval_loss"])
        self.assertNotIn("eval_model_preparation_time", found[2])
        self.assertEqual(sorted(found[2]), sorted(set(wanted[2]) - {"epoch"}))  # The metrics of this Trainer, and no others.
        self.assertLessEqual(self.made() - made, 1)  # Model, data and imports are kept.

    def test_state_dict_of_a_trainer_gives_the_same(self) -> None:
        trainer = tiny_gpt2.make_trainer(os.path.join(self.scene.out, "state"), max_steps=2, save_strategy="no")
        with self.scene.client("state", raise_errors=True) as client:
            trainer.train()
            wanted = trainer.evaluate()
            self.assertTrue(client.submit_state_dict(trainer.model.state_dict(), step=2, suites="held-out"))
            with torch.no_grad():
                for value in trainer.model.parameters():
                    value.zero_()  # Training goes on.
            self.assertTrue(client.wait(DEADLINE))
            found = self.values(client)[2]
        self.assertTrue(abs(found["eval_loss"] - wanted["eval_loss"]) <= 1e-5, (found, wanted))

    def test_lightning_gives_what_its_validate_gives(self) -> None:
        module = tiny_lightning.Regression()
        trainer = tiny_lightning.make_trainer(max_epochs=2, logger=False, default_root_dir=self.scene.out, num_sanity_val_steps=0)
        trainer.fit(module)
        path = os.path.join(self.scene.out, "epoch=1.ckpt")
        trainer.save_checkpoint(path)
        wanted = trainer.validate(module, module.val_dataloader(), verbose=False)[0]["val_loss"]
        with self.scene.client("lightning", raise_errors=True) as client:
            for step in (1, 2):
                shutil.copy(path, os.path.join(self.scene.out, f"step-{step}.ckpt"))
                client.submit(os.path.join(self.scene.out, f"step-{step}.ckpt"), step=step, suites="validate")
                self.assertTrue(client.wait(DEADLINE))
            found = self.values(client)
        for step in (1, 2):
            self.assertTrue(abs(found[step]["val_loss"] - wanted) <= 1e-5, (found, wanted))

    def test_other_weights_are_refused_by_name(self) -> None:
        from safetensors.torch import save_file

        path = os.path.join(self.scene.out, "other.safetensors")
        save_file({"net.0.weight": torch.zeros(20, 10)}, path)
        with self.scene.client("other", log=False) as client:
            client.submit(path, step=1, suites="validate")
            self.assertTrue(client.wait(DEADLINE))
            ends = [result for result in client.results() if result.is_end]
        self.assertEqual(ends[0].state, "dead")
        self.assertIn("wrong weights: 3 missing", ends[0].reason)


class TensorTest(unittest.TestCase):
    def test_every_type_survives_and_ties_are_kept(self) -> None:
        from safetensors.torch import load_file

        names = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "float8_e4m3fn"]
        state = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)).t() for name in names}
        state["bool"] = torch.tensor([True, False, True])
        state["scalar"] = torch.tensor(2.5)
        state["empty"] = torch.zeros(0, 3)
        tied = torch.nn.Parameter(torch.randn(4, 5))
        state.update({"embed.weight": tied, "head.weight": tied})
        planned = state_copy.plan_layout(state)
        copy = state_copy.StateCopier().copy(planned, None)
        copy.wait()
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.safetensors")
            state_copy.write_file(path, copy)
            theirs, ours = load_file(path), read_safetensors_torch(path)
        self.assertEqual(planned.tied, {"head.weight": "embed.weight"})
        for name, value in state.items():
            self.assertEqual(ours[name].dtype, value.dtype)
            self.assertTrue(torch.equal(ours[name].double() if value.dtype != torch.bool else ours[name],
                                        value.double() if value.dtype != torch.bool else value), name)  # fmt: skip
            if name != "head.weight":
                self.assertEqual(theirs[name].shape, value.shape)
                self.assertEqual(theirs[name].dtype, value.dtype)

    def copied(self, state: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        copy = state_copy.StateCopier().copy(state_copy.plan_layout(state), None)
        with tempfile.TemporaryDirectory() as directory:
            state_copy.write_file(os.path.join(directory, "x.safetensors"), copy)
            return read_safetensors_torch(os.path.join(directory, "x.safetensors"))

    def test_tensors_made_of_others_are_not_taken_for_one(self) -> None:
        class Made(torch.Tensor):  # As those of torchao are: no memory of their own.
            @staticmethod
            def __new__(cls, inner: torch.Tensor) -> "Made":
                return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

            def __init__(self, inner: torch.Tensor) -> None:
                self.inner = inner

            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                if function is torch.ops.aten.detach.default:
                    return Made(args[0].inner)
                return function(*(each.inner if isinstance(each, Made) else each for each in args), **(kwargs or {}))

        values = torch.tensor([1.0, 2.0])
        state = {"a": Made(values), "b": Made(values + 1), "c": values, "d": torch._neg_view(values)}
        self.assertEqual({name: value.tolist() for name, value in self.copied(state).items()},
                         {"a": [1, 2], "b": [2, 3], "c": [1, 2], "d": [-1, -2]})  # fmt: skip

    def test_the_programs_default_device_is_its_own(self) -> None:
        state = {"a": torch.ones(3), "none": torch.ones(0)}
        torch.set_default_device("meta")
        try:
            found = self.copied(state)
        finally:
            torch.set_default_device(None)
        self.assertEqual({name: (value.device.type, value.tolist()) for name, value in found.items()},
                         {"a": ("cpu", [1, 1, 1]), "none": ("cpu", [])})  # fmt: skip

    def test_pinned_memory_of_two_sizes_is_taken_by_its_place(self) -> None:
        memory = HostMemory()
        small, large = torch.empty(4, dtype=torch.uint8), torch.empty(8, dtype=torch.uint8)
        memory.give(small)
        memory.give(large)
        self.assertIs(memory.take(6, True), large)
        self.assertIs(memory.take(4, True), small)

    def test_parts_that_were_compiled_fit_those_that_were_not(self) -> None:
        def parts(compiled: bool) -> torch.nn.Module:
            part = torch.nn.Linear(2, 2)
            return torch.nn.Sequential(torch.compile(part) if compiled else part, torch.nn.Linear(2, 1))

        for there in (False, True):
            for here in (False, True):
                with self.subTest(there=there, here=here):
                    saved, model = parts(there), parts(here)
                    load_into(model, saved.state_dict(), "x.pt")
                    for one, other in zip(saved.parameters(), model.parameters()):
                        self.assertTrue(torch.equal(one, other))
                    short = {name: value for name, value in saved.state_dict().items() if "bias" not in name}
                    with self.assertRaisesRegex(ValueError, "2 missing, 0 unexpected"):
                        load_into(model, short, "x.pt")

    def test_weights_are_found_in_what_people_save(self) -> None:
        state = {"a.weight": torch.ones(2), "a.bias": torch.zeros(2)}
        wrapped = {"module." + name: value for name, value in state.items()}
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.pt")
            for saved in (
                state,
                {"model_state_dict": wrapped, "optimizer": {"lr": 0.1}, "epoch": 3},
                {"state_dict": {"_orig_mod." + name: value for name, value in wrapped.items()}},
                {"app": {"model": wrapped, "optim": {"state": {"a.weight": {"exp_avg": torch.ones(2)}}}}, "step": 3},
                {"model": state, "ema": {name: value + 1 for name, value in state.items()}},
            ):
                torch.save(saved, path)
                self.assertEqual(set(load_weights(path)), {"a.weight", "a.bias"})
            self.assertEqual(float(load_weights(path, "ema")["a.bias"][0]), 1)
            folder = os.path.join(directory, "dcp")
            moments = {"state": {"a.weight": {"exp_avg": torch.ones(2)}}}
            checkpoint.save({"app": {"model": wrapped, "optim": moments}}, checkpoint_id=folder, no_dist=True)
            self.assertEqual({name: value.tolist() for name, value in load_weights(folder).items()},
                             {"a.weight": [1, 1], "a.bias": [0, 0]})  # fmt: skip
            more = {name: value + 1 for name, value in state.items()}
            torch.save({"state_dict": more, "current_model_state": state}, path)  # Lightning's WeightAveraging.
            for variant, bias in (("regular", 0), ("ema", 1)):
                self.assertEqual(float(load_weights(path, variant)["a.bias"][0]), bias)
            torch.save({"state_dict": state}, path)
            with self.assertRaisesRegex(ValueError, "no EMA weights"):
                load_weights(path, "ema")

    def test_of_other_classes_nothing_is_made_and_no_weights_are_taken_past_them(self) -> None:
        state = {"a.weight": torch.ones(2, dtype=torch.bfloat16), "a.bias": torch.nn.Parameter(torch.zeros(2))}
        others = {"args": argparse.Namespace(lr=0.1), "rng": numpy.random.get_state(), "loss": numpy.float64(2), "harm": Harm()}
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.pt")
            torch.save({"state_dict": state, **others}, path)
            found = load_weights(path)
            self.assertEqual({name: value.tolist() for name, value in found.items()}, {"a.weight": [1, 1], "a.bias": [0, 0]})
            self.assertIs(found["a.weight"].dtype, torch.bfloat16)
            for saved in (
                {"model": torch.nn.Linear(2, 2), "ema": state},
                {"net_g": torch.nn.Linear(2, 2), "ema": state},
                {"net_g": torch.nn.Linear(2, 2), "other": state},
                {"state_dict": {**state, "b": Harm()}},
                torch.nn.Linear(2, 2),
            ):
                torch.save(saved, path)
                with self.assertRaisesRegex(ValueError, "never opens|no state dict"):
                    load_weights(path)
            torch.save({"state_dict": state, **others}, path, _use_new_zipfile_serialization=False)
            with self.assertRaisesRegex(ValueError, "holds more than tensors and plain values"):
                load_weights(path)
        self.assertEqual(HARMED, [])

    def test_a_damaged_file_is_said_to_be_damaged(self) -> None:
        """PyTorch's advice, to load it with weights_only=False, would run whatever the file says."""
        state = {"state_dict": {f"layer{n}.weight": torch.randn(64, 64) for n in range(4)}}
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.pt")
            whole = {}
            for zipped in (True, False):
                torch.save(state, path, _use_new_zipfile_serialization=zipped)
                with open(path, "rb") as file:
                    whole[zipped] = file.read()
            pickle_at = whole[True].index(b"state_dict")
            damaged = {
                "empty": b"",
                "noise": bytes(range(1, 256)) * 40,
                "text": b"<html>404 Not Found</html>",
                "cut": whole[True][: len(whole[True]) // 2],
                "old and cut": whole[False][: len(whole[False]) // 2],
                "old, cut in the pickle": whole[False][:300],
                "no list of parts": whole[True].replace(b"PK\1\2", b"PK\7\7"),
                "zeros in the pickle": whole[True][:pickle_at] + bytes(200) + whole[True][pickle_at + 200 :],
            }
            for name, content in damaged.items():
                with self.subTest(damage=name):
                    with open(path, "wb") as file:
                        file.write(content)
                    with self.assertRaisesRegex(ValueError, "x.pt' is damaged: ") as raised:
                        load_weights(path)
                    told = "".join(traceback.format_exception(None, raised.exception, None))
                    self.assertNotIn("weights_only", told)
            torch.save({"state_dict": {}, "harm": Harm()}, path, _use_new_zipfile_serialization=False)
            with self.assertRaises(ValueError) as raised:
                load_weights(path)
            self.assertIn("holds more than tensors", str(raised.exception))
            self.assertNotIn("weights_only", "".join(traceback.format_exception(None, raised.exception, None)))


if __name__ == "__main__":
    print(json.dumps({"torch": torch.__version__, "transformers": tiny_gpt2.transformers.__version__}))
    unittest.main()
