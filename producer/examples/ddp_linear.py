"""A linear classifier that trains under DistributedDataParallel and is evaluated in shards.

    evalq up -- torchrun --nproc-per-node 2 ddp_linear.py

The checkpoint has the usual form: a `model_state_dict` whose names begin with `module.`. The suite
`linear` divides its 10,001 samples into 4 shards. evalq adds the sums and counts of the shards, so
the accuracy is that of all samples, not a mean of means.
"""

import os

import numpy
import torch
import torch.distributed as dist

import evalq

SAMPLES = 10001


def make_data(count, seed):
    inputs = torch.randn(count, 10, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] + 0.5 * inputs[:, 1] > 0).long()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, labels = make_data(4096, 1)
    held_inputs, held_labels = make_data(SAMPLES, 2)
    client = None
    if rank == 0:
        os.makedirs("data", exist_ok=True)
        os.makedirs("out", exist_ok=True)
        numpy.save("data/linear_inputs.npy", held_inputs.numpy())
        numpy.save("data/linear_labels.npy", held_labels.numpy())
        client = evalq.Client(run=f"ddp-{os.getpid()}")
    for step in range(1, 61):
        part = slice(rank * 64 + step * 8, rank * 64 + step * 8 + 64)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()
        optimizer.step()
        if step % 20 == 0 and client is not None:
            path = f"out/ddp-{step}.pt"
            torch.save({"model_state_dict": model.state_dict(), "step": step}, path)
            client.submit(path, step=step, suites="linear")
    if client is not None:
        client.wait(timeout=60)
        for result in client.results():
            if result.metric == "accuracy":
                print(f"step {result.step}: accuracy {result.value:.6f} of {result.n} samples")
        with torch.no_grad():
            correct = int((model.module(held_inputs).argmax(1) == held_labels).sum())
        print(f"here, step 60: accuracy {correct / SAMPLES:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
