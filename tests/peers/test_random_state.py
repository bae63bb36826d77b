"""Why a training that evaluates here takes another course with dropout than one that does not: each new iterator of a data
loader draws its base seed from PyTorch's global random state. docs/transformers.md and docs/lightning.md say so."""

from __future__ import annotations

import contextlib
import tempfile
import unittest
from typing import Any, Callable, Iterator, List
from unittest import mock

from peers import needs

needs("torch", "transformers", "lightning")

import tiny_gpt2  # noqa: E402
import tiny_lightning  # noqa: E402
import torch  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402


@contextlib.contextmanager
def seeds_drawn_elsewhere() -> Iterator[None]:
    """Iterators of data loaders leave the global random state as it was."""
    make = _BaseDataLoaderIter.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        before = torch.get_rng_state()
        make(self, *args, **kwargs)
        torch.set_rng_state(before)

    with mock.patch.object(_BaseDataLoaderIter, "__init__", made):
        yield


def with_trainer(evaluates: bool) -> torch.Tensor:
    """The weights after three steps."""
    with tempfile.TemporaryDirectory() as out:
        strategy = "steps" if evaluates else "no"
        trainer = tiny_gpt2.make_trainer(out, max_steps=3, eval_strategy=strategy, eval_steps=1, save_strategy="no")
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        trainer.train()
        return weights(trainer.model)


def with_lightning(evaluates: bool) -> torch.Tensor:
    """The weights after two epochs."""
    module = tiny_lightning.Regression()
    module.net.insert(2, torch.nn.Dropout(0.5))
    torch.manual_seed(3)
    trainer = tiny_lightning.make_trainer(
        max_epochs=2, logger=False, enable_checkpointing=False, limit_val_batches=1.0 if evaluates else 0
    )
    trainer.fit(module)
    return weights(module)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


class RandomStateTest(unittest.TestCase):
    def check(self, train: Callable[[bool], torch.Tensor]) -> None:
        made: List[torch.Tensor] = [train(False), train(True)]
        self.assertFalse(torch.equal(*made), "evaluation here changes the course of training")
        with seeds_drawn_elsewhere():
            self.assertTrue(torch.equal(train(False), train(True)), "the base seeds are the only cause")

    def test_trainer(self) -> None:
        self.check(with_trainer)

    def test_lightning(self) -> None:
        self.check(with_lightning)


if __name__ == "__main__":
    unittest.main(verbosity=2)
