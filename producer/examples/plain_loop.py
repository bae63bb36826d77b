"""A training loop without a framework: evalq up -- python plain_loop.py"""

import os

import numpy
import torch

import evalq

model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
os.makedirs("data", exist_ok=True)
os.makedirs("out", exist_ok=True)
inputs = torch.randn(2000, 4, generator=torch.Generator().manual_seed(1))
targets = inputs.sum(1, keepdim=True).sin()
# The suite `regression` of evalq.yaml evaluates on these files.
numpy.save("data/sine_inputs.npy", inputs[1000:].numpy())
numpy.save("data/sine_targets.npy", targets[1000:].numpy())

client = evalq.Client(run=f"plain-{os.getpid()}")
for step in range(1, 1001):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs[:1000]), targets[:1000]).backward()
    optimizer.step()
    if step % 200 == 0:
        torch.save(model.state_dict(), f"out/plain-{step}.pt")
        client.submit(f"out/plain-{step}.pt", step=step, suites="regression")
client.wait(timeout=60)
for result in client.results():
    if result.task:
        print(f"step {result.step}: {result.metric} {result.value:.4f}")
