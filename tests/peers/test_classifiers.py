"""Encoders that classify texts against Transformers: tiny random ones, with each option of a configuration on in one of them.

`evalq-worker eval` reads what save_pretrained() writes, and arrays of tokens with their padding. The mean loss is within a
millionth of a float64 forward of Transformers, and the accuracies are equal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from typing import Any, Dict, Tuple

from peers import DEADLINE, needs

needs("torch", "transformers", "safetensors", "numpy")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

BUILD = os.environ.get("EVALQ_TEST_BUILD", os.path.join(os.path.dirname(__file__), "../../build/default"))
WORKER = os.path.join(BUILD, "bin", "evalq-worker")
SEED = 20261126
VOCABULARY = 131
LENGTHS = (61, 3, 17, 1, 64, 40, 33, 2)  # Of the texts, again and again; 64 is the longest that the models take.
TEXTS = 96
SHAPE: Dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "num_labels": 5,
}
ROWS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert two labels": ("Bert", dict(num_labels=2, layer_norm_eps=1e-3)),
    "bert gelu_new, more types": ("Bert", dict(hidden_act="gelu_new", type_vocab_size=4)),
}
SUITE = """
roots: {{here: .}}
suites:
  texts:
    tasks:
      - name: held
        type: text_classification
        top_k: 2
        data: {{format: tokens, tokens: tokens.npy, mask: mask.npy, labels: labels.npy{more}}}
"""


def make(name: str) -> transformers.PreTrainedModel:
    family, more = ROWS[name]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **more})
    return randomized(getattr(transformers, f"{family}ForSequenceClassification")(config))


def randomized(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Weights far from their quiet start, so that a wrong place of any of them shows."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (0.3 if parameter.dim() > 1 else 0.5) + (1.0 if parameter.dim() == 1 else 0.0))
    return model.eval()


class Scenes(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-classifiers-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def evaluate(self, suite: str) -> subprocess.CompletedProcess:
        with open(self.path("evalq.yaml"), "w", encoding="utf-8") as file:
            file.write(suite)
        command = [WORKER, "eval", "model", "--config", "evalq.yaml", "--suite", "texts", "--json"]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=DEADLINE)

    def metrics(self, suite: str) -> Dict[str, float]:
        done = self.evaluate(suite)
        self.assertEqual(done.returncode, 0, done.stderr)
        found: Dict[str, float] = json.loads(done.stdout)["tasks"]["held"]["metrics"]
        return found

    def refused(self, suite: str, *words: str) -> None:
        done = self.evaluate(suite)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for word in words:
            self.assertIn(word, done.stdout + done.stderr)

    def agree(self, name: str, found: Dict[str, float], logits: torch.Tensor, labels: torch.Tensor) -> None:
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        off = abs(found["cross_entropy"] - loss) / loss
        print(f"  {name:32} loss {loss:.6f}  off by {off:.1e} of it  accuracy {found['accuracy']:.3f}")
        self.assertTrue(off <= 1e-6, f"loss {found['cross_entropy']} instead of {loss}")  # A NaN fails.
        self.assertEqual(found["accuracy"], (logits.argmax(-1) == labels).double().mean().item())
        top = (logits.topk(2).indices == labels[:, None]).any(-1).double().mean().item()
        self.assertEqual(found["top2_accuracy"], top)


class Texts(Scenes):
    def arrays(self, types: int, classes: int) -> Dict[str, torch.Tensor]:
        """Texts of several lengths with padding behind them, as a tokenizer returns them."""
        generator = torch.Generator().manual_seed(SEED + 1)
        lengths = torch.tensor([LENGTHS[i % len(LENGTHS)] for i in range(TEXTS)])
        size = (TEXTS, int(lengths.max()))
        mask = (torch.arange(size[1])[None] < lengths[:, None]).long()
        made = {
            "tokens": torch.randint(3, VOCABULARY, size, generator=generator) * mask,
            "mask": mask,
            "types": torch.randint(0, types, size, generator=generator) * mask,
            "labels": torch.randint(0, classes, (TEXTS,), generator=generator),
        }
        for name, values in made.items():
            numpy.save(self.path(f"{name}.npy"), values.numpy())
        return made

    def test_every_option_is_within_a_millionth(self) -> None:
        for name in ROWS:
            with self.subTest(name):
                model = make(name)
                model.save_pretrained(self.path("model"))
                types = getattr(model.config, "type_vocab_size", 0)
                made = self.arrays(max(types, 1), model.config.num_labels)
                words = {"input_ids": made["tokens"], "attention_mask": made["mask"]}
                words.update({"token_type_ids": made["types"]} if types else {})
                with torch.no_grad():
                    logits = model.double()(**words).logits
                found = self.metrics(SUITE.format(more=", types: types.npy" if types else ""))
                self.agree(name, found, logits, made["labels"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
