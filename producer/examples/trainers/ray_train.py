"""Ray Train: evalq's workers validate each checkpoint, and Ray keeps the best two.

    evalq up -c regression.yaml -- python ray_train.py
"""

import os
import tempfile

import numpy
import ray.train
import torch
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.validation_config import ValidationConfig, ValidationTaskConfig

import evalq

HERE = os.path.dirname(os.path.abspath(__file__))


def validate(checkpoint, step):
    """Ray calls it for each checkpoint, in a process of its own, while training goes on."""
    with evalq.Client(run="ray") as client:
        client.submit(checkpoint.path, step=step, suites="regression")
        client.wait(timeout=600)
        found = client.results()
    return {result.metric: result.value for result in found if result.task and result.step == step}


def train(config):
    """Ray runs it in each process of the training."""
    torch.manual_seed(1)
    inputs = torch.randn(2000, 4)
    targets = inputs.sum(1, keepdim=True).sin()
    rank = ray.train.get_context().get_world_rank()
    if rank == 0:
        os.makedirs(f"{HERE}/data", exist_ok=True)
        numpy.save(f"{HERE}/data/sine_inputs.npy", inputs[1000:].numpy())
        numpy.save(f"{HERE}/data/sine_targets.npy", targets[1000:].numpy())
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(1, 501):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[rank:1000:2]), targets[rank:1000:2])
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:
                    torch.save(model.module.state_dict(), f"{folder}/model.pt")
                ray.train.report(
                    {"loss": loss.item()},
                    checkpoint=ray.train.Checkpoint.from_directory(folder),
                    validation=ValidationTaskConfig(fn_kwargs={"step": step}),
                )


if __name__ == "__main__":
    best = CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute="mse", checkpoint_score_order="min"
    )
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=f"{HERE}/out", name="ray", checkpoint_config=best),
        validation_config=ValidationConfig(fn=validate, ray_remote_kwargs={"num_cpus": 0}),
    )
    result = trainer.fit()
    for checkpoint, metrics in result.best_checkpoints:
        mse = metrics.get("mse", float("nan"))  # NaN: it was not evaluated.
        print(f"kept: {os.path.basename(checkpoint.path)}, mse {mse:.4f}")
