"""The regular and the averaged weights (EMA) of one run, as two curves.

    evalq up -- python ema.py

The weights are submitted from memory, without a save. The metrics are eval/sine/mse and
eval_ema/sine/mse.
"""

import os

import numpy
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import evalq

torch.manual_seed(1)
inputs = torch.randn(2000, 4)
targets = inputs.sum(1, keepdim=True).sin()
os.makedirs("data", exist_ok=True)
numpy.save("data/sine_inputs.npy", inputs[1000:].numpy())
numpy.save("data/sine_targets.npy", targets[1000:].numpy())

model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

with evalq.Client(run=f"averages-{os.getpid()}", snapshots=20) as client:
    for step in range(1, 501):
        batch = torch.randint(0, 1000, (16,))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        averaged.update_parameters(model)
        if step % 100 == 0:
            options = {"step": step, "suites": "regression", "policy": "all"}
            client.submit_state_dict(model.state_dict(), **options)
            client.submit_state_dict(averaged.module.state_dict(), variant="ema", **options)
    client.wait(timeout=60)
    errors = {(result.step, result.key): result.value for result in client.results() if result.task}

for step in range(100, 501, 100):
    regular, ema = errors[step, "eval/sine/mse"], errors[step, "eval_ema/sine/mse"]
    print(f"step {step}: regular {regular:.4f}, ema {ema:.4f}")
