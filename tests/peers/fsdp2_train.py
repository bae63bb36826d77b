"""torchrun fsdp2_train.py OUT RANKS_PER_SHARD [KIND]: a tiny model under FSDP2, saved as LMMs-Engine saves it, each rank its own
file, regular weights and averages; rank 0 also keeps the whole, for comparison."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

out, per_shard = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(20260401)
if len(sys.argv) > 3:
    import transformers

    config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1)
    model = transformers.LlamaForCausalLM(config)
    parts = list(model.model.layers)
else:
    # Eight ones over two ranks: parts that are equal and yet parts. Seven rows over three: parts of unequal size, and an empty one.
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 7), torch.nn.Linear(7, 2))
    model.register_buffer("inv_freq", torch.arange(4.0))
    parts = list(model)
mesh = (init_device_mesh("cpu", (world,)) if per_shard == world
        else init_device_mesh("cpu", (world // per_shard, per_shard), mesh_dim_names=("copies", "shards")))
whole = {name: value.clone() for name, value in model.state_dict().items()}
for part in parts:
    fully_shard(part, mesh=mesh)
fully_shard(model, mesh=mesh)
for folder, factor in (("pytorch_model_fsdp_0", 1), ("pytorch_ema_model_fsdp_0", 2)):
    os.makedirs(os.path.join(out, folder), exist_ok=True)
    state = {name: value * factor if value.is_floating_point() else value for name, value in model.state_dict().items()}
    torch.save(state, os.path.join(out, folder, f"model_world_size_{world}_rank_{rank}.pt"))
if rank == 0:
    torch.save(whole, os.path.join(out, "..", os.path.basename(out) + ".whole"))
    if len(sys.argv) > 3:
        model.config.save_pretrained(out)
dist.barrier()
dist.destroy_process_group()
