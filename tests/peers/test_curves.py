"""The curves that users look at: with evalq, TensorBoard and W&B have them under the same names, with the same points, as
when the trainer evaluates for itself. Read back from what the trackers wrote."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import struct
import unittest
from typing import Any, Dict, List, Tuple

from peers import STEPS, StackTest, TrainerStackTest, needs, words

needs("torch", "transformers", "accelerate", "lightning", "tensorboard")

Curve = List[Tuple[int, float]]


def written(directory: str) -> Dict[str, Curve]:
    """Every point by tag, in the order in which it was written."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found: Dict[str, Curve] = {}
    for path in sorted(glob.glob(os.path.join(directory, "**", "events.out.tfevents.*"), recursive=True)):
        for event in EventFileLoader(path).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars" or value.HasField("simple_value"):
                    number = tensor_util.make_ndarray(value.tensor).item() if value.HasField("tensor") else value.simple_value
                    found.setdefault(value.tag, []).append((int(event.step), float(number)))
    return found


def shown(directory: str) -> Dict[str, Curve]:
    """What TensorBoard shows of one run: its own accumulator, which drops what a restart superseded."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = {os.path.dirname(path) for path in glob.glob(os.path.join(directory, "**", "events.out.tfevents.*"), recursive=True)}
    assert len(runs) == 1, runs
    accumulator = EventAccumulator(runs.pop(), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return {tag: [(each.step, each.value) for each in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


class Curves(unittest.TestCase):
    def assert_same(self, ours: Curve, theirs: Curve, tag: str) -> None:
        self.assertEqual([step for step, _ in ours], [step for step, _ in theirs], tag)
        for (step, value), (_, wanted) in zip(ours, theirs):
            self.assertTrue(abs(value - wanted) <= 1e-5, f"{tag} at step {step}: {value}, expected {wanted}")

    def assert_never_back(self, curves: Dict[str, Curve]) -> None:
        """TensorBoard takes a step back for a restart, and drops what it had from there on."""
        for tag, curve in curves.items():
            steps = [step for step, _ in curve]
            self.assertEqual(steps, sorted(steps), tag)


SETTINGS = dict(STEPS, eval_steps=5, save_steps=10, max_steps=40, logging_steps=2, load_best_model_at_end=False)


class TransformersTest(TrainerStackTest, Curves):
    def test_tensorboard_shows_what_it_shows_without_evalq(self) -> None:
        settings = dict(SETTINGS, report_to="tensorboard")
        self.reference(**settings)
        self.stack.start("tiny_gpt2.py", *words(evalq={"suites": "eval"}, **settings)).wait()
        ours, theirs = shown(self.stack.out), shown(self.stack.out + "-reference")
        for tag in ("eval/loss", "eval/accuracy", "train/loss", "train/learning_rate"):
            self.assert_same(ours[tag], theirs[tag], tag)
        self.assertEqual([step for step, _ in ours["eval/loss"]], list(range(5, 41, 5)))
        self.assertLessEqual(set(theirs), set(ours))
        self.assert_never_back(written(self.stack.out))

    @unittest.skipIf(importlib.util.find_spec("wandb") is None, "wandb is not installed")
    def test_wandb_has_what_it_has_without_evalq(self) -> None:
        settings = dict(SETTINGS, report_to="wandb")
        wandb = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DISABLE_GIT": "true"}
        histories = []
        for name, more in (("without", {}), ("with", {"evalq": {"suites": "eval"}})):
            folder = os.path.join(self.stack.directory, "wandb-" + name)
            os.mkdir(folder)
            out, self.stack.out = self.stack.out, os.path.join(self.stack.directory, name)
            self.stack.start("tiny_gpt2.py", *words(**settings, **more), WANDB_DIR=folder, **wandb).wait()
            self.stack.out = out
            histories.append(offline_history(folder))
        theirs, ours = histories
        for key in ("eval/loss", "eval/accuracy", "train/loss"):
            self.assert_same(points(ours, key), points(theirs, key), key)
        self.assertEqual([step for step, _ in points(ours, "eval/loss")], list(range(5, 41, 5)))


def offline_history(directory: str) -> List[Dict[str, Any]]:
    """The rows that W&B would upload: protobuf records in LevelDB's log format, behind a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (path,) = glob.glob(os.path.join(directory, "wandb", "offline-run-*", "run-*.wandb"))
    with open(path, "rb") as file:
        data = file.read()
    rows, whole, at = [], b"", 7
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:  # The rest of a block that holds no head.
            at += -at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)  # After the checksum.
        if kind == 0:
            break
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # Full, or the last part.
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.HasField("history"):
                rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item})
    return rows


def points(rows: List[Dict[str, Any]], key: str) -> Curve:
    """Over the axis that Transformers defines for all its metrics."""
    return sorted((int(row["train/global_step"]), float(row[key])) for row in rows if key in row)


class LightningTest(StackTest, Curves):
    def test_tensorboard_shows_what_it_shows_without_evalq(self) -> None:
        settings = {"max_epochs": 5, "top_k": -1, "tensorboard": True}
        self.stack.start("tiny_lightning.py", *words(**settings, evalq={})).wait()
        out, self.stack.out = self.stack.out, self.stack.out + "-reference"
        self.stack.start("tiny_lightning.py", *words(**settings, limit_val_batches=1.0)).wait()
        theirs = shown(os.path.join(self.stack.out, "tensorboard"))
        self.stack.out = out
        ours = shown(os.path.join(out, "tensorboard"))
        self.assert_same(ours["train_loss"], theirs["train_loss"], "train_loss")
        self.assert_same(ours["val_loss"], theirs["val_loss"], "val_loss")
        self.assertEqual(len(ours["val_loss"]), 5)
        self.assert_never_back(written(os.path.join(out, "tensorboard")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
