"""Composer: the training does not know evalq, and `evalq scan` finds what it saves.

    evalq up -c composer_fit.yaml -- \\
        sh -c 'python composer_fit.py; evalq scan out/composer --run composer --suite regression'
"""

import os

import composer
import numpy
import torch

inputs = torch.randn(2000, 4, generator=torch.Generator().manual_seed(1))
targets = inputs.sum(1, keepdim=True).sin()
os.makedirs("data", exist_ok=True)
numpy.save("data/sine_inputs.npy", inputs[1000:].numpy())
numpy.save("data/sine_targets.npy", targets[1000:].numpy())


class Regression(composer.ComposerModel):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)]
        self.net = torch.nn.Sequential(*layers)

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return torch.nn.functional.mse_loss(outputs, batch[1])


data = torch.utils.data.TensorDataset(inputs[:1000], targets[:1000])
model = Regression()
trainer = composer.Trainer(
    model=model,
    train_dataloader=torch.utils.data.DataLoader(data, batch_size=50),
    optimizers=torch.optim.Adam(model.parameters(), lr=0.01),
    max_duration="5ep",
    device="cpu",
    progress_bar=False,
    save_folder="out/composer",
    save_filename="step{batch}.pt",
    save_latest_filename=None,
    save_interval="20ba",
)
trainer.fit()
