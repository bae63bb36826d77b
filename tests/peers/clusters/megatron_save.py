"""Saves with Megatron Core as its training loop does, in two processes and without a GPU: `torchrun megatron_save.py`.

Two functions of torch.cuda are replaced, which Megatron Core calls also where all tensors are on the CPU.
"""

import os

import torch
import torch.distributed as dist


def main() -> None:
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    for step in (100, 200):
        layers = (torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        state = torch.nn.Sequential(*layers).state_dict()
        shards = {}
        for name, value in state.items():
            if name.startswith("0."):  # Tensor parallel: each rank has one half of the rows.
                half = value.chunk(2)[rank].clone()
                shards[name] = ShardedTensor.from_rank_offsets(f"decoder.{name}", half, (0, rank, 2))
            else:  # Both ranks have it.
                shards[name] = ShardedTensor.from_rank_offsets(f"decoder.{name}", value, replica_id=rank)
        moments = ShardedTensor.from_rank_offsets("optimizer.state.exp_avg", torch.ones(8), (0, rank, 2))
        path = f"out/megatron/iter_{step:07}"
        os.makedirs(path, exist_ok=True)
        dist_checkpointing.save({"model": shards, "optimizer": moments, "iteration": step}, path)
        if rank == 0:
            torch.save({f"decoder.{name}": value for name, value in state.items()}, f"whole-{step}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":  # Megatron's writer starts this file again in a process of its own.
    main()
