"""DeepSpeed's engine without a Trainer. It resumes at its newest checkpoint.

    evalq up -c deepspeed_loop.yaml -- torchrun --nproc-per-node 2 deepspeed_loop.py
"""

import os

import deepspeed
import numpy
import torch

import evalq

deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(1)
inputs = torch.randn(2000, 4)
targets = inputs.sum(1, keepdim=True).sin()
stage = int(os.environ.get("ZERO_STAGE", "2"))
suite = "joined" if stage == 3 else "regression"  # See deepspeed_loop.yaml.
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
config = {
    "train_micro_batch_size_per_gpu": 500,
    "zero_optimization": {"stage": stage},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
}
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=config
)
rank = torch.distributed.get_rank()
client = evalq.Client(run="deepspeed") if rank == 0 else None
if client:
    os.makedirs("data", exist_ok=True)
    numpy.save("data/sine_inputs.npy", inputs[1000:].numpy())
    numpy.save("data/sine_targets.npy", targets[1000:].numpy())

first = 1
if os.path.exists("out/deepspeed/latest"):
    first += engine.load_checkpoint("out/deepspeed")[1]["step"]
for step in range(first, 501):
    output = engine(inputs[rank:1000:2].to(engine.device))
    engine.backward(torch.nn.functional.mse_loss(output, targets[rank:1000:2].to(engine.device)))
    engine.step()
    if step % 100 == 0:
        engine.save_checkpoint("out/deepspeed", tag=f"step-{step}", client_state={"step": step})
        if client:
            client.submit(f"out/deepspeed/step-{step}", step=step, suites=suite)
if client:
    client.wait(timeout=600)
    for result in client.results():
        if result.task:
            print(f"step {result.step}: {result.metric} {result.value:.4f}")
    print("best:", client.best("eval/sine/mse", "min"))
