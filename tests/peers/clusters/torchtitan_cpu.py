"""torchtitan's own training program on the CPU: `torchrun torchtitan_cpu.py --module llama3 --config llama3_debugmodel ...`.

torchtitan 0.3.0 asks for a GPU and a nightly torch. This replaces what the CPU does not have: the device functions, the compiled
flex attention, the premultiplied sum of gloo, and torch.distributed.set_timeout(). Trainer, sharding and checkpoints are torchtitan's.
"""

from __future__ import annotations

import collections
import json
import os
import types
from typing import Any

import tokenizers
import torch
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import flex_attention as flex
from torchtitan.tools import utils


class Cpu(types.ModuleType):
    """torch.cpu with what torch.cuda has besides."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    get_device_name = staticmethod(lambda device=None: "cpu")
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    get_device_properties = staticmethod(lambda device: types.SimpleNamespace(total_memory=2**34))
    reset_peak_memory_stats = empty_cache = staticmethod(lambda: None)
    memory_stats = staticmethod(lambda device: collections.defaultdict(int))


def write_data() -> None:
    """A tokenizer of single characters and a few sentences."""
    names = ["<pad>", "<eos>", *map(chr, range(32, 127))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: at for at, name in enumerate(names)}, "<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    for folder in ("tokenizer", "texts"):
        os.makedirs(folder, exist_ok=True)
    tokenizer.save("tokenizer/tokenizer.json")
    with open("tokenizer/tokenizer_config.json", "w", encoding="utf-8") as file:
        json.dump({"eos_token": "<eos>", "bos_token": "<eos>"}, file)
    with open("texts/data.json", "w", encoding="utf-8") as file:
        for number in range(3000):
            file.write(json.dumps({"text": f"{number}+1={number + 1} and so on"}) + "\n")


def replace_what_needs_a_gpu() -> None:
    utils.device_type, utils.device_module = "cpu", Cpu("cpu")
    flex._validate_device = lambda *tensors: None
    from torchtitan.models.common import attention

    attention.FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
    attention._compiled_create_block_mask = flex.create_block_mask
    set_factor = FSDPModule.set_gradient_divide_factor

    def set_factor_for_gloo(self: FSDPModule, factor: float) -> None:
        set_factor(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_factor_for_gloo
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = distributed_c10d._set_pg_timeout


if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        write_data()
    replace_what_needs_a_gpu()
    from torchtitan import train

    train.main()
