"""Encoders with configurations drawn at random, fields of other families among them: evalq's loss is that of Transformers, or
evalq refuses. EVALQ_SEED repeats what was drawn, EVALQ_CASES draws more than 100."""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
import unittest
from typing import Any, Dict, Optional, Tuple

from test_classifiers import SUITE, IMAGES, Scenes, randomized

import numpy
import torch
import transformers

SEED = int(os.environ.get("EVALQ_SEED") or random.randrange(1 << 30))
CASES = int(os.environ.get("EVALQ_CASES") or 100)
FAMILIES = ("bert", "distilbert", "roberta", "xlm-roberta", "camembert", "modernbert", "modernbert", "vit")
SHIFTED = ("roberta", "xlm-roberta", "camembert")  # Positions begin behind the padding token's.
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "tanh", "sigmoid", "mish")
OTHER: Dict[str, Any] = {  # Of this family or of another: honoured, passed over or refused as Transformers does it.
    "is_decoder": True, "position_embedding_type": "absolute", "tie_word_embeddings": False, "num_labels": 5, "head_dim": 4,
    "id2label": {"1": "a", "2": "b"}, "problem_type": "regression", "qkv_bias": False, "mlp_bias": True, "attention_bias": True,
    "classifier_dropout": 0.9, "use_cache": False, "sliding_window": 3, "pad_token_id": None, "hidden_dropout_prob": 0.5,
    "norm_eps": 0.2, "layer_norm_eps": 0.1, "embedding_size": 8, "label2id": {"a": 0, "b": 1}, "classifier_pooling": "mean",
}


def some(rng: random.Random, fields: Dict[str, Any], share: float = 0.4) -> Dict[str, Any]:
    return {name: rng.choice(values) for name, values in fields.items() if rng.random() < share}


def configuration(rng: random.Random) -> Dict[str, Any]:
    family = rng.choice(FAMILIES)
    heads = rng.choice([1, 2, 3, 5])
    sizes = {"hidden_size": heads * rng.choice([2, 4, 10] if family == "modernbert" else [1, 2, 5, 17]),
             "intermediate_size": rng.randint(1, 70), "num_hidden_layers": rng.randint(1, 4), "num_attention_heads": heads}
    found = {"model_type": family, **some(rng, {"num_labels": [2, 3, 9], "hidden_act": ACTIVATIONS, "layer_norm_eps": [1e-5, 0.1]})}
    if family == "distilbert":
        sizes = dict(zip(("dim", "hidden_dim", "n_layers", "n_heads"), sizes.values()))
        found.update({"hidden_act": None, "layer_norm_eps": None}, **some(rng, {"activation": ACTIVATIONS}))
    if family == "vit":
        found.update(some(rng, {"num_channels": [1, 2, 4], "qkv_bias": [False]}), patch_size=rng.choice([1, 2, 3, [2, 3]]),
                     image_size=rng.choice([7, 12, [6, 9]]))
    else:
        found.update(vocab_size=rng.randint(8, 140), max_position_embeddings=rng.choice([24, 40]))
    if family in ("bert", *SHIFTED):
        found.update(some(rng, {"type_vocab_size": [1, 3], "pad_token_id": [0, 2]}))
    if family == "modernbert":
        kinds = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(sizes["num_hidden_layers"])]
        found.update({"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "hidden_act": None},
                     **some(rng, {"hidden_activation": ACTIVATIONS, "classifier_activation": ACTIVATIONS, "norm_eps": [0.1], "norm_bias": [True],
                                  "attention_bias": [True], "mlp_bias": [True], "classifier_bias": [True], "local_attention": [0, 1, 3, 8],
                                  "classifier_pooling": ["mean"], "global_attn_every_n_layers": [1, 2], "layer_types": [kinds],
                                  "global_rope_theta": [100.0], "local_rope_theta": [33.0]}))
    found = {**sizes, **{name: value for name, value in found.items() if value is not None}}
    found.update({name: OTHER[name] for name in rng.sample(sorted(OTHER), rng.choice([0, 0, 0, 0, 1, 2]))})
    return found


class RandomConfigurations(Scenes):
    def reference(self, values: Dict[str, Any], dtype: torch.dtype) -> Optional[transformers.PreTrainedModel]:
        """What Transformers makes of the configuration, saved beside it with random weights; None: it refuses."""
        made = transformers.AutoModelForImageClassification if values["model_type"] == "vit" else transformers.AutoModelForSequenceClassification
        os.makedirs(self.path("model"))
        with open(self.path("model/config.json"), "w", encoding="utf-8") as file:
            json.dump(values, file)
        try:
            model = randomized(made.from_config(transformers.AutoConfig.from_pretrained(self.path("model")))).to(dtype)
            with open(self.path("model/config.json"), "w", encoding="utf-8") as file:
                json.dump({**values, "architectures": [type(model).__name__]}, file)
            torch.save(model.state_dict(), self.path("model/pytorch_model.bin"))
            return made.from_pretrained(self.path("model"), dtype=torch.float32).eval().double()
        except Exception:  # It has no one sort for what it refuses.
            return None

    def texts(self, values: Dict[str, Any], draw: numpy.random.Generator) -> Tuple[str, torch.Tensor, Dict[str, torch.Tensor]]:
        family, pad = values["model_type"], values.get("pad_token_id", 1) or 0
        longest = values["max_position_embeddings"] - (pad + 1 if family in SHIFTED else 0)
        lengths = torch.from_numpy(draw.integers(1, longest + 1, 8))
        lengths[0] = longest
        tokens = torch.from_numpy(draw.integers(3, values["vocab_size"], (8, longest)))
        mask = (torch.arange(longest)[None] < lengths[:, None]).long()
        arrays = {"tokens": tokens * mask + pad * (1 - mask), "mask": mask}
        given = {"input_ids": arrays["tokens"], "attention_mask": mask}
        if family == "bert":
            arrays["types"] = given["token_type_ids"] = torch.from_numpy(draw.integers(0, values.get("type_vocab_size", 2), (8, longest)))
        for name, array in arrays.items():
            numpy.save(self.path(f"{name}.npy"), array.numpy())
        return SUITE.format(more=", types: types.npy" if family == "bert" else ""), lengths, given

    def images(self, values: Dict[str, Any], draw: numpy.random.Generator) -> Tuple[str, torch.Tensor, Dict[str, torch.Tensor]]:
        sides = values["image_size"] if isinstance(values["image_size"], list) else [values["image_size"]] * 2
        pixels = draw.integers(0, 256, (8, *sides, values.get("num_channels", 3)), dtype=numpy.uint8)
        numpy.save(self.path("images.npy"), pixels if draw.random() < 0.5 else numpy.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
        return (IMAGES.format(numbers="scale: 2/255, shift: -1"), torch.ones(8, dtype=torch.long),
                {"pixel_values": torch.from_numpy(pixels / 127.5 - 1).permute(0, 3, 1, 2)})

    def case(self, seed: int) -> str:
        rng, draw = random.Random(seed), numpy.random.default_rng(seed)
        values = configuration(rng)
        self.addCleanup(shutil.rmtree, self.path("model"), ignore_errors=True)
        shutil.rmtree(self.path("model"), ignore_errors=True)
        model = self.reference(values, rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16]))
        if model is None:
            return "refused by Transformers"
        vit = values["model_type"] == "vit"
        suite, lengths, given = (self.images if vit else self.texts)(values, draw)
        labels = torch.from_numpy(draw.integers(0, model.config.num_labels, 8))
        numpy.save(self.path("labels.npy"), labels.numpy())
        done = self.evaluate(suite)
        if done.returncode in (4, 9) and done.stderr.count("\n") == 1:
            return "refused"
        self.assertEqual(done.returncode, 0, f"{done.stderr} {json.dumps(values)}")
        with torch.no_grad():  # One by one: Transformers makes NaN of padding that sees nothing through a window.
            rows = [{name: each[i : i + 1] if vit else each[i : i + 1, : lengths[i]] for name, each in given.items()} for i in range(8)]
            logits = torch.cat([model(**row).logits for row in rows])
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        found = json.loads(done.stdout)["tasks"]["held"]["metrics"]["cross_entropy"]
        self.assertTrue(abs(found - loss) <= 2e-5 * max(loss, 0.05), f"loss {found} instead of {loss}: {json.dumps(values)}")
        return "equal"

    def test_losses_are_those_of_transformers(self) -> None:
        print(f"seed {SEED} (EVALQ_SEED repeats it)")
        counts: Dict[str, int] = collections.Counter()
        for number in range(CASES):
            with self.subTest(seed=SEED + number):
                counts[self.case(SEED + number)] += 1
        print("  " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
        self.assertGreater(counts["equal"], CASES // 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
