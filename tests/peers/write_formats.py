"""Writes a Transformers directory in the formats of trainers: write_formats.py SOURCE OUT OTHER.

Needs torch and safetensors. Each entry of OUT holds the weights of SOURCE; ema.ckpt has those of
OTHER as its averages. lora is an adapter of SOURCE, and lora-merged is SOURCE with the adapter
merged, as PEFT's merge_and_unload() does it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from typing import Any, Dict

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import fully_shard

PARTS = ("q_proj", "v_proj", "down_proj")
RANK, ALPHA = 4, 8


class Part(torch.nn.Module):
    """Parameters under their names, for a trainer to wrap."""

    def __init__(self, weights: Dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            *folders, leaf = name.split(".")
            module: torch.nn.Module = self
            for folder in folders:
                if not hasattr(module, folder):
                    module.add_module(folder, torch.nn.Module())
                module = module.get_submodule(folder)
            module.register_parameter(
                leaf, torch.nn.Parameter(value, requires_grad=value.is_floating_point())
            )


def rank_saves(rank: int, port: int, source: str, out: str) -> None:
    """FSDP2 on two processes, each of which saves its half."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = Part(load_file(source + "/model.safetensors"))
    fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
    dcp.save({"model": model.state_dict()}, checkpoint_id=out + "/fsdp/pytorch_model_fsdp_0")
    dist.destroy_process_group()


def write_fsdp(source: str, out: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(rank_saves, (port, source, out), nprocs=2)


def write_deepspeed(weights: Dict[str, torch.Tensor], out: str) -> None:
    """Stage 2, as DeepSpeed names files and keys; without its optimizer."""
    folder = os.path.join(out, "zero", "global_step7")
    os.makedirs(folder)
    torch.save(
        {"module": {"module." + name: value for name, value in weights.items()}, "global_steps": 7},
        folder + "/mp_rank_00_model_states.pt",
    )
    with open(os.path.join(out, "zero", "latest"), "w", encoding="utf-8") as file:
        file.write("global_step7")


def write_lora(source: str, out: str, name: str, seed: int) -> None:
    weights = load_file(source + "/model.safetensors")
    torch.manual_seed(seed)
    adapter: Dict[str, torch.Tensor] = {}
    for target, value in list(weights.items()):
        if any(part in target for part in PARTS):
            a, b = torch.randn(RANK, value.shape[1]) * 0.2, torch.randn(value.shape[0], RANK) * 0.2
            stem = "base_model.model." + target[: -len(".weight")]
            adapter[stem + ".lora_A.weight"], adapter[stem + ".lora_B.weight"] = a, b
            weights[target] = (value.float() + ALPHA / RANK * (b @ a)).to(value.dtype)
    config: Dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
    config.update(r=RANK, lora_alpha=ALPHA, target_modules=list(PARTS), inference_mode=True)
    config["base_model_name_or_path"] = source
    os.makedirs(os.path.join(out, name))
    with open(os.path.join(out, name, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    save_file(adapter, os.path.join(out, name, "adapter_model.safetensors"), {"format": "pt"})
    merged = os.path.join(out, name + "-merged")
    shutil.copytree(source, merged, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(weights, os.path.join(merged, "model.safetensors"), {"format": "pt"})


def main(source: str, out: str, other: str) -> None:
    weights, averages = (
        load_file(os.path.join(path, "model.safetensors")) for path in (source, other)
    )
    torch.save(weights, out + "/torch.pt")
    torch.save(
        {"model": {"_orig_mod." + name: value for name, value in weights.items()}, "step": 3},
        out + "/compiled.bin",
    )
    lightning = {
        "epoch": 0,
        "global_step": 3,
        "pytorch-lightning_version": "2.5.0",
        "callbacks": {},
        "optimizer_states": [],
    }
    inside = {"model." + name: value for name, value in weights.items()}
    torch.save(
        {**lightning, "state_dict": {**inside, "loss.weight": torch.ones(2)}},
        out + "/lightning.ckpt",
    )
    ema = {"model." + name: value for name, value in averages.items()}
    torch.save({**lightning, "state_dict": inside, "ema_state_dict": ema}, out + "/ema.ckpt")
    dcp.save({"model": weights}, checkpoint_id=out + "/dcp", no_dist=True)
    write_fsdp(source, out)
    write_deepspeed(weights, out)
    write_lora(source, out, "lora", 1)
    write_lora(source, out, "lora-other", 2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
