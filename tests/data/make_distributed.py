"""Writes tests/data/checkpoints/made/dcp*: distributed checkpoints as torch saves them from two and four processes.

Run by make_golden.py, with torch 2.13 on gloo. What it writes is the same every time: identifiers are fixed, paths relative.
"""
import os
import sys

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.filesystem as filesystem
import torch.multiprocessing
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def states(world):
    base = torch.arange(35, dtype=torch.float32).reshape(5, 7)
    cube = torch.arange(60, dtype=torch.float64).reshape(3, 4, 5)
    if world == 4:  # A grid: the rows of few tensors divide evenly, and some processes get nothing.
        mesh = init_device_mesh("cpu", (2, 2))
        split = lambda value, *how: distribute_tensor(value, mesh, list(how))
        yield "dcp_grid", {"cube": split(cube, Shard(0), Shard(2)), "model.row": split(base[:1].to(torch.bfloat16), Shard(0), Shard(0)),
                           "square": split(base, Shard(1), Shard(0)), "one": split(base[0, :3].to(torch.int64), Shard(0), Replicate())}
        return
    mesh = init_device_mesh("cpu", (2,))
    split = lambda value, how: distribute_tensor(value, mesh, [how])
    model = {"a.weight": split(base, Shard(0)), "b": split(base.t().contiguous().to(torch.float16), Shard(1)),
             "whole": split(base * 2, Replicate()), "plain": torch.ones(3), "scalar": torch.tensor(4.0), "none": torch.empty(0, 2)}
    optimizer = {"state": {"a.weight": {"step": torch.tensor(3.0), "exp_avg": split(base + 1, Shard(0))}}, "lr": 0.1}
    ema = {"a.weight": split(base * 3, Shard(0))}
    yield "dcp", {"model": model, "ema": ema, "optimizer": optimizer, "step": 7}
    yield "dcp_app", {"app": {"model": {"w": split(base - 4, Shard(0))}, "optim": {"state": {"w": base[0]}}}}
    yield "dcp_app_ema", {"app": {"model": {"w": split(base - 4, Shard(0))}, "ema": {"w": split(base - 5, Shard(0))}}, "step": 3}
    yield "dcp_averaged", {"state_dict": {"w": split(base * 3, Shard(0))}, "current_model_state": {"w": split(base, Shard(0))}}
    yield "fsdp/pytorch_model_fsdp_0", {"model": {"w": split(base - 4, Shard(0))}}


def run(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    filesystem._generate_uuid = lambda: "00000000-0000-0000-0000-000000000000"
    for name, state in states(world):
        dcp.save(state, checkpoint_id=name)
    torch.distributed.destroy_process_group()


def make(folder, port=29611):
    before = os.getcwd()
    os.chdir(folder)  # The paths that .metadata records are relative.
    for world in (2, 4):
        torch.multiprocessing.spawn(run, (world, port + world), world)
    os.chdir(before)


def load(folder):
    """What torch reads: the nested state dict."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


if __name__ == "__main__":
    sys.exit(make(sys.argv[1]))
