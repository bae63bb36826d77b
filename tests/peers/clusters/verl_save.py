"""Saves an FSDP2 model with verl's checkpoint manager, in two processes on the CPU, as its PPO trainer does, and calls the callback
that the configuration names: `torchrun verl_save.py`."""

import os

import tiny_model
import torch
import torch.distributed as dist
import transformers
from omegaconf import OmegaConf
from torch.distributed.fsdp import fully_shard
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

dist.init_process_group("gloo")
sizes = {"vocab_size": 14, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
torch.manual_seed(1)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
model.config.architectures = ["LlamaForCausalLM"]  # A model from the hub names it, and verl's merger needs it.
fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
contents = OmegaConf.create({"save_contents": ["model", "optimizer", "extra"], "load_contents": ["model"]})
tokenizer = tiny_model.make_tokenizer()
manager = FSDPCheckpointManager(model, optimizer, None, tokenizer, contents)
trainer = {"experiment_name": "hook", "checkpoint_callback_class": "my_callback.Submit"}
callback = build_checkpoint_callback(OmegaConf.create({"trainer": trainer})) if dist.get_rank() == 0 else None
tokens = torch.arange(2, 14)[None]
for step in (1, 2):
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    place = f"out/verl/global_step_{step}"
    manager.save_checkpoint(f"{place}/actor", global_step=step)
    whole = {name: value.full_tensor().bfloat16().float() for name, value in model.named_parameters()}
    if callback:
        torch.save({}, f"{place}/data.pt")
        callback.on_save(trainer=None, global_step=step, checkpoint_dir=os.path.abspath(place), async_save=False)
        torch.save(whole, f"whole-{step}.pt")
if callback:
    callback.client.wait(600)
dist.barrier()
dist.destroy_process_group()
