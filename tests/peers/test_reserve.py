"""Where steps are due that are not saved, memory for the first snapshot is made ready when training begins; else none is."""

from __future__ import annotations

import io
import os
import tempfile
import unittest
from typing import Any, Dict, List, Tuple
from unittest import mock

from peers import needs, until

needs("torch", "transformers", "accelerate", "lightning")

import torch  # noqa: E402

import tiny_gpt2  # noqa: E402
import tiny_lightning  # noqa: E402

from evalq import Client  # noqa: E402
from evalq._snapshots import state_copy  # noqa: E402
from evalq.integrations.lightning import EvalqCallback as LightningCallback  # noqa: E402
from evalq.integrations.lightning_files import own_file  # noqa: E402
from evalq.integrations.transformers import EvalqCallback as TransformersCallback  # noqa: E402

NOBODY = {"url": "redis://127.0.0.1:1", "wait": 0}
STEPS = {"eval_strategy": "steps", "save_strategy": "steps"}


class ReserveTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="evalq-reserve-")
        self.addCleanup(holder.cleanup)
        self.out = holder.name
        change = mock.patch.dict(os.environ, XDG_STATE_HOME=holder.name, TMPDIR=holder.name)
        change.start()
        self.addCleanup(change.stop)

    def calls(self, train: Any) -> Tuple[int, int]:
        """How often memory was reserved, and weights taken from memory."""
        with mock.patch.multiple(
            Client, reserve_state_dict=mock.DEFAULT, submit_state_dict=mock.DEFAULT, submit=mock.DEFAULT
        ) as calls:
            train()
        return calls["reserve_state_dict"].call_count, calls["submit_state_dict"].call_count

    def trainer(self, **settings: Any) -> None:
        settings = {"max_steps": 4, "logging_steps": 4, **settings}
        tiny_gpt2.make_trainer(self.out, [TransformersCallback("eval", **NOBODY)], **settings).train()

    def test_a_trainer_reserves_just_where_it_takes_snapshots(self) -> None:
        cases: List[Tuple[Dict[str, Any], int]] = [
            (dict(STEPS, eval_steps=2, save_steps=2), 0),
            (dict(STEPS, eval_steps=4, save_steps=2), 0),
            (dict(STEPS, eval_steps=2, save_steps=4), 1),
            (dict(STEPS, eval_steps=0.5, save_steps=0.5), 0),
            (dict(STEPS, eval_steps=0.25, save_steps=0.5), 2),
            (dict(STEPS, eval_steps=2, save_strategy="no"), 2),
            (dict(STEPS, eval_steps=2, save_strategy="best", metric_for_best_model="loss"), 0),
            ({"eval_strategy": "epoch", "save_strategy": "epoch"}, 0),
            ({"eval_strategy": "epoch", "save_strategy": "no"}, 1),
            ({"eval_strategy": "no", "save_strategy": "steps", "save_steps": 2}, 0),
        ]
        for settings, snapshots in cases:
            with self.subTest(**settings):
                reserved, taken = self.calls(lambda settings=settings: self.trainer(**settings))
                self.assertEqual((reserved, taken), (1 if snapshots else 0, snapshots))

    def test_a_resumed_training_takes_its_own_file_for_last(self) -> None:
        def save(name: str, value: float) -> str:
            file = io.BytesIO()  # As Lightning does.
            torch.save({"state_dict": {"w": torch.full((64,), value)}, "global_step": 10}, file)
            with open(os.path.join(self.out, name), "wb") as target:
                target.write(file.getvalue())
            return os.path.join(self.out, name)

        last = save("last.ckpt", 1.0)
        for name in ("epoch=9-step=100.ckpt", "epoch=9-step=110.ckpt", "epoch=0-step=10.ckpt"):
            self.assertEqual(os.path.getsize(save(name, 2.0)), os.path.getsize(last))
        save("epoch=9-step=100-v1.ckpt", 1.0)
        self.assertEqual(own_file(last, 10), last)
        own = save("epoch=0-step=10-v1.ckpt", 1.0)
        self.assertEqual(own_file(last, 10), own)

    def test_a_callback_begins_anew_with_each_fit(self) -> None:
        with mock.patch.multiple(Client, submit_state_dict=mock.DEFAULT, submit=mock.DEFAULT) as calls:
            callback = LightningCallback("val", monitor="val_loss", **NOBODY)
            for fold in range(2):
                trainer = tiny_lightning.make_trainer(
                    logger=False, max_epochs=1, default_root_dir=self.out,
                    callbacks=[callback, tiny_lightning.pl.callbacks.ModelCheckpoint(f"{self.out}/{fold}")],
                )
                callback._training.not_better = 3
                trainer.fit(tiny_lightning.Regression())
                self.assertEqual(callback._training.not_better, 0)
        self.assertEqual(calls["submit"].call_count, 2)

    def test_lightning_reserves_just_where_it_takes_snapshots(self) -> None:
        train = tiny_lightning.train
        for top_k, expected in ((None, (1, 2)), (1, (0, 0))):
            with self.subTest(top_k=top_k):
                calls = self.calls(lambda top_k=top_k: train(self.out, top_k=top_k, max_epochs=2, evalq=dict(NOBODY)))
                self.assertEqual(calls, expected)

    def test_the_first_snapshot_finds_memory_whose_pages_are_there(self) -> None:
        found = []
        submit = Client.submit_state_dict

        def noted(client: Client, state: Any, **options: Any) -> bool:
            size = state_copy.plan_layout(state).data_bytes
            until(lambda: client._snapshots is not None and client._snapshots.reserved >= size, "the memory is ready")
            found.append(options["step"])
            return submit(client, state, **options)

        with mock.patch.object(Client, "submit_state_dict", noted):
            self.trainer(**STEPS, eval_steps=2, save_steps=4)
            module, callback = tiny_lightning.Regression(), LightningCallback("val", **NOBODY)
            quiet = {"logger": False, "enable_checkpointing": False, "limit_val_batches": 0, "max_epochs": 1}
            tiny_lightning.make_trainer(callbacks=[callback], default_root_dir=self.out, **quiet).fit(module)
        self.assertEqual(found, [2, 10])


if __name__ == "__main__":
    unittest.main(verbosity=2)
