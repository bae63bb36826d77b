"""An MLP 10-20-1 with MSE in Lightning: what trains and what evaluates make the same module from here.

Run as a program it trains: python tiny_lightning.py OUTPUT_DIR [NAME=JSON ...]; EVALQ_LIGHTNING names the package.
"""

import importlib
import json
import os
import sys

import torch
from pace import Pace

pl = importlib.import_module(os.environ.get("EVALQ_LIGHTNING", "lightning.pytorch"))
CSVLogger = importlib.import_module(pl.__name__ + ".loggers").CSVLogger


def data(count, seed):
    source = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 10, generator=source)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.net = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))

    def training_step(self, batch, at):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, at):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    plateau = None  # Options of ReduceLROnPlateau.

    def configure_optimizers(self):
        adam = torch.optim.Adam(self.parameters(), lr=0.01)
        if self.plateau is None:
            return adam
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, **self.plateau)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

    def train_dataloader(self):
        return torch.utils.data.DataLoader(data(320, 1), batch_size=32)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(data(64, 2), batch_size=16)


class Sharded(Regression):
    """FSDP2: its checkpoints are directories."""

    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class Paced(pl.Callback):
    def __init__(self, pace):
        self.pace = pace

    def on_train_batch_end(self, trainer, *args):
        self.pace.step(trainer.global_step)


def make_trainer(**settings):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "devices": 1}
    return pl.Trainer(**{**quiet, **settings})


def evaluator():
    """For evalq's workers: the trainer, the module and the data whose validate() is wanted."""
    module = Regression()
    return counted(make_trainer(logger=False, enable_checkpointing=False)), module, module.val_dataloader()


def counted(trainer):
    """Notes each evaluation, so that a test can tell that there was one."""
    validate = trainer.validate

    def noted(*args, **kwargs):
        with open(os.environ["EVALUATIONS"], "a") as file:
            file.write(pl.__name__ + "\n")
        return validate(*args, **kwargs)

    trainer.validate = noted
    return trainer


class Validated(pl.Callback):
    """What trainer.validate() says of each epoch's weights, or each step's, synchronously."""

    def __init__(self, each_step=False):
        self.found = {}
        self.each_step = each_step

    def on_train_batch_end(self, trainer, module, *args):
        if self.each_step:
            self.validate(trainer, module)

    def on_train_epoch_end(self, trainer, module):
        self.validate(trainer, module)

    def validate(self, trainer, module):
        other = Regression()
        other.load_state_dict(module.state_dict())
        validator = make_trainer(logger=False, enable_checkpointing=False)
        self.found[trainer.global_step] = validator.validate(other, verbose=False)[0]["val_loss"]


def reference(output_dir, max_epochs, each_step=False):
    validated = Validated(each_step)
    trainer = make_trainer(
        callbacks=[validated], logger=False, enable_checkpointing=False, limit_val_batches=0, max_epochs=max_epochs
    )
    trainer.fit(Regression())
    with open(os.path.join(output_dir, "reference.json"), "w") as file:
        json.dump(validated.found, file)


def train(
    output_dir,
    evalq=None,
    resume=None,
    pace=0.0,
    hold=None,
    asynchronous=False,
    sharded=False,
    top_k=1,
    last=None,
    filename=None,
    logger_alone=False,
    tensorboard=False,
    limit_val_batches=0,
    checkpoint=None,
    stopping=None,
    plateau=None,
    **settings,
):
    callbacks = [Paced(Pace(output_dir, pace, hold))] if pace or hold else []
    os.makedirs(output_dir, exist_ok=True)
    if evalq is not None:
        from evalq.integrations.lightning import EvalqCallback

        callbacks.append(EvalqCallback(**evalq))
    if top_k is not None:
        folder = os.path.join(output_dir, "checkpoints")
        options = {"dirpath": folder, "save_top_k": top_k, "save_last": last, "filename": filename, **(checkpoint or {})}
        callbacks.append(pl.callbacks.ModelCheckpoint(**options))
    else:
        settings["enable_checkpointing"] = False
    if stopping is not None:  # Before and after EvalqCallback is the same.
        callbacks.insert(0, pl.callbacks.EarlyStopping(**stopping))
    loggers = [CSVLogger(output_dir, name="csv")]
    if tensorboard:
        loggers.append(importlib.import_module(pl.__name__ + ".loggers").TensorBoardLogger(output_dir, name="tensorboard"))
    if logger_alone:
        from evalq.integrations.lightning import EvalqLogger

        loggers.append(EvalqLogger("val"))
    plugins = []
    if asynchronous:
        plugins.append(importlib.import_module(pl.__name__ + ".plugins.io").AsyncCheckpointIO())
    if sharded:
        strategies = importlib.import_module(pl.__name__ + ".strategies")
        settings["strategy"] = strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer = make_trainer(
        callbacks=callbacks,
        logger=loggers,
        default_root_dir=output_dir,
        limit_val_batches=limit_val_batches,
        num_sanity_val_steps=0,
        log_every_n_steps=5,
        plugins=plugins,
        **settings,
    )
    module = Sharded() if sharded else Regression()
    module.plateau = plateau
    trainer.fit(module, ckpt_path=resume)
    best = next((each.best for each in callbacks if hasattr(each, "best")), None)
    outcome = {
        "best": best and {"step": best.step, "value": best.value, "path": best.path},
        "best_model_path": trainer.checkpoint_callback.best_model_path if trainer.checkpoint_callback else "",
        "step": trainer.global_step,
        "log_dir": trainer.logger.log_dir,
        "loggers": len(trainer.loggers),
        "lr": trainer.optimizers[0].param_groups[0]["lr"],
        "val_loss": float(trainer.callback_metrics.get("val_loss", "nan")),
        **monitored(trainer),
    }
    if trainer.is_global_zero:
        with open(os.path.join(output_dir, "outcome.json"), "w") as file:
            json.dump(outcome, file)
    return trainer


def monitored(trainer):
    """What Lightning's own callbacks made of the metric."""
    saved, stopper = trainer.checkpoint_callback, trainer.early_stopping_callback
    scores = getattr(saved, "best_k_models", {})
    return {
        "kept": {os.path.basename(path): float(score) for path, score in scores.items()},
        "files": sorted(os.listdir(saved.dirpath)) if saved and os.path.isdir(saved.dirpath) else [],
        "stopper": stopper and {"best": float(stopper.best_score), "bad": stopper.wait_count, "epoch": stopper.stopped_epoch},
    }


def main(argv):
    settings = {"output_dir": argv[0]}
    for word in argv[1:]:
        name, _, value = word.partition("=")
        settings[name] = json.loads(value)
    reference(**settings) if settings.pop("reference", False) else train(**settings)


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    main(sys.argv[1:])
