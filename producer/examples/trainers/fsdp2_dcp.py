"""FSDP2 with asynchronous DCP saves. It resumes at its newest checkpoint.

    evalq up -c regression.yaml -- torchrun --nproc-per-node 2 fsdp2_dcp.py
"""

import glob
import os

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import evalq

dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(1)
inputs = torch.randn(2000, 4)
targets = inputs.sum(1, keepdim=True).sin()
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
savers = dist.new_group(backend="gloo")  # Saves run beside training, so they need their own group.

client = evalq.Client(run="fsdp2") if dist.get_rank() == 0 else None
if client:
    os.makedirs("data", exist_ok=True)
    numpy.save("data/sine_inputs.npy", inputs[1000:].numpy())
    numpy.save("data/sine_targets.npy", targets[1000:].numpy())


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


saved = [int(path.split("-")[1].split("/")[0]) for path in glob.glob("out/step-*/.metadata")]
first = max(saved, default=0) + 1
if saved:
    loaded = state()
    dcp.load(loaded, checkpoint_id=f"out/step-{first - 1}")
    parts = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"]}
    set_state_dict(model, optimizer, **parts)
saving = None
for step in range(first, 501):
    optimizer.zero_grad()
    rows = slice(dist.get_rank(), 1000, dist.get_world_size())
    torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
    optimizer.step()
    if step % 100 == 0:
        if saving:
            saving.result()
        path = f"out/step-{step}"
        saving = dcp.async_save(state(), checkpoint_id=path, process_group=savers)
        if client:
            options = {"step": step, "suites": "regression"}
            saving.add_done_callback(lambda _, path=path, o=options: client.submit(path, **o))
if saving:
    saving.result()
if client:
    client.wait(timeout=600)
    for result in client.results():
        if result.task:
            print(f"step {result.step}: {result.metric} {result.value:.4f}")
    print("best:", client.best("eval/sine/mse", "min"))
dist.destroy_process_group()
