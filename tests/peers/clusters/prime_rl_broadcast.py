"""Writes broadcasts with prime-rl's own class, in two processes on the CPU: `torchrun prime_rl_broadcast.py`.

Its NCCL and NIXL writers need vLLM, and ring-flash-attn needs CUDA. Stand-ins are enough here, because prime-rl imports them also where
nothing calls them.
"""

import pathlib
import sys
from unittest import mock

for name in ("ring_flash_attn", "prime_rl.transports.weights.nccl", "prime_rl.transports.weights.nixl"):
    sys.modules[name] = mock.MagicMock(__spec__=None)

import tiny_model
import torch
import torch.distributed as dist
from prime_rl.configs.trainer import FileSystemWeightBroadcastConfig
from prime_rl.transports.weights.filesystem import FileSystemWeightBroadcast
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = tiny_model.make_model()
if dist.get_rank() == 0:
    model.save_pretrained("base")
    tiny_model.make_tokenizer().save_pretrained("base")
fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
writer = FileSystemWeightBroadcast(pathlib.Path("out/prime"), FileSystemWeightBroadcastConfig())
for step in (1, 2):
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1.5)
    writer.broadcast_weights(model, step)
    whole = {name: value.full_tensor().bfloat16().float() for name, value in model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save(whole, f"whole-{step}.pt")
    dist.barrier()
dist.destroy_process_group()
