"""A loop of Accelerate, evaluated by evalq's workers. It resumes at its newest checkpoint.

    evalq up -c regression.yaml -- accelerate launch --cpu --num_processes 2 accelerate_loop.py
"""

import os
import pathlib

import accelerate
import numpy
import torch

import evalq

accelerate.utils.set_seed(1)
inputs = torch.randn(2000, 4)
targets = inputs.sum(1, keepdim=True).sin()
accelerator = accelerate.Accelerator(cpu=True)
if accelerator.is_main_process:
    os.makedirs("data", exist_ok=True)
    numpy.save("data/sine_inputs.npy", inputs[1000:].numpy())
    numpy.save("data/sine_targets.npy", targets[1000:].numpy())

model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
data = torch.utils.data.TensorDataset(inputs[:1000], targets[:1000])
loader = torch.utils.data.DataLoader(data, batch_size=50, shuffle=True)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters(), lr=0.01), loader
)
newest = pathlib.Path("out/accelerate/newest")  # The last epoch that was saved and submitted.
first = int(newest.read_text()) + 1 if newest.exists() else 1
if first > 1:
    accelerator.load_state(f"out/accelerate/epoch-{first - 1}")

client = evalq.Client(run="accelerate") if accelerator.is_main_process else None
for epoch in range(first, 11):
    for batch, target in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(batch), target))
        optimizer.step()
    if epoch % 2 == 0:
        accelerator.save_state(f"out/accelerate/epoch-{epoch}")
        accelerator.wait_for_everyone()
        if client:
            client.submit(f"out/accelerate/epoch-{epoch}", step=epoch, suites="regression")
            newest.write_text(str(epoch))
if client:
    client.wait(timeout=600)
    for result in client.results():
        if result.task:
            print(f"epoch {result.step}: {result.metric} {result.value:.4f}")
    print("best:", client.best("eval/sine/mse", "min"))
