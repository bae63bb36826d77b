"""An MLP in Lightning whose epochs are validated by evalq's workers while the next epochs train.

    evalq up -- python lightning_mlp.py

For evalq, this program only adds limit_val_batches=0 and the callback. The workers call
make_validation() once, and then trainer.validate() for each checkpoint.
"""

import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl


def make_data(count, seed):
    inputs = torch.randn(count, 10, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(inputs, inputs[:, :3].sum(1, keepdim=True).tanh())


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1)
        )

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def make_validation():
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    return trainer, Regression(), torch.utils.data.DataLoader(make_data(1000, 2), batch_size=100)


if __name__ == "__main__":
    from evalq.integrations.lightning import EvalqCallback

    pl.seed_everything(1)
    evalq = EvalqCallback("val", monitor="val_loss")
    trainer = pl.Trainer(
        max_epochs=8,
        accelerator="cpu",
        default_root_dir="out/lightning",
        logger=pl.loggers.CSVLogger("out/lightning"),
        callbacks=[evalq],
        limit_val_batches=0,
        enable_progress_bar=False,
    )
    batches = torch.utils.data.DataLoader(make_data(4000, 1), batch_size=32, shuffle=True)
    trainer.fit(Regression(), batches)
    print(f"best val_loss {evalq.best.value:.4f} at step {evalq.best.step}: {evalq.best.path}")
