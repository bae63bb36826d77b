"""The mlp family against PyTorch: with the options that a state dict leaves open, evalq's loss is PyTorch's; without them, it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from peers import DEADLINE, needs

needs("torch", "numpy")

import numpy  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

BUILD = os.environ.get("EVALQ_TEST_BUILD", os.path.join(os.path.dirname(__file__), "../../build/default"))
WORKER = os.path.join(BUILD, "bin", "evalq-worker")
SUITE = """
roots: {{here: .}}
suites:
  mlp:
    tasks:
      - name: held
        type: classification
        model: {{{model}}}
        data: {{format: npy, inputs: x.npy, labels: y.npy}}
"""


class Named(nn.Module):
    """Layers that run in another order than their names sort."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.middle, self.inner, self.end = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.start(x))
        return self.end(torch.relu(self.inner(torch.relu(self.middle(x)))))


class AgainstTorch(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-mlp-")
        self.addCleanup(shutil.rmtree, self.directory)
        torch.manual_seed(5)
        self.inputs, self.labels = torch.randn(200, 6), torch.randint(0, 5, (200,))
        numpy.save(self.path("x.npy"), self.inputs.numpy())
        numpy.save(self.path("y.npy"), self.labels.numpy())

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def evaluate(self, module: nn.Module, model: str) -> subprocess.CompletedProcess:
        torch.save(module.state_dict(), self.path("m.pt"))
        with open(self.path("evalq.yaml"), "w", encoding="utf-8") as file:
            file.write(SUITE.format(model=model))
        command = [WORKER, "eval", "m.pt", "--config", "evalq.yaml", "--suite", "mlp", "--json"]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=DEADLINE)

    def agrees(self, module: nn.Module, model: str) -> None:
        with torch.no_grad():
            wanted = nn.functional.cross_entropy(module.double()(self.inputs.double()), self.labels).item()
        done = self.evaluate(module.float(), model)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)["tasks"]["held"]["metrics"]["cross_entropy"]
        self.assertTrue(abs(found - wanted) <= 1e-6, f"{found} instead of {wanted}")

    def refused(self, module: nn.Module, model: str, word: str) -> None:
        done = self.evaluate(module, model)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(word, done.stdout + done.stderr)

    def test_activations(self) -> None:
        for name, make in (("gelu", nn.GELU), ("tanh", nn.Tanh), ("silu", nn.SiLU), ("relu", nn.ReLU)):
            with self.subTest(name):
                module = nn.Sequential(nn.Linear(6, 12), make(), nn.Linear(12, 5))
                self.agrees(module, f"activation: {name}")
                self.refused(module, "", "model: {activation:")

    def test_order_of_named_layers(self) -> None:
        module = Named()
        self.agrees(module, "activation: relu, layers: [start, middle, inner, end]")
        self.refused(module, "activation: relu", "model: {layers:")


if __name__ == "__main__":
    unittest.main(verbosity=2)
