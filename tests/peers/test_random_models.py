"""Language models with configurations drawn at random, each way of writing them and fields of other families among it: evalq's
scores are those of Transformers, or it refuses. EVALQ_SEED repeats what was drawn, EVALQ_CASES draws more than 150."""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
import unittest
from typing import Any, Dict, List, Optional

from test_models import SCORES, Scenes, randomized

import torch
import transformers

SEED = int(os.environ.get("EVALQ_SEED") or random.randrange(1 << 30))
CASES = int(os.environ.get("EVALQ_CASES") or 150)
FAMILIES = ("gpt2", "llama", "mistral", "ministral", "qwen2", "qwen3", "gemma")
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "tanh", "sigmoid", "mish", "relu2")
OTHER: Dict[str, Any] = {  # Of this family or of another: honoured or passed over as Transformers does it.
    "attention_multiplier": 0.3, "logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "clip_qkv": 0.1,
    "final_logit_softcapping": 1.0, "attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 7, "pretraining_tp": 2, "is_causal": True,
    "rope_interleaved": True, "attention_chunk_size": 4, "use_qk_norm": True, "logit_scale": 0.1, "reorder_and_upcast_attn": True,
    "attention_dropout": 0.3, "sliding_window": 5, "max_window_layers": 1, "use_sliding_window": True, "attention_bias": True,
    "mlp_bias": True, "original_max_position_embeddings": 16, "rms_norm_eps": 0.3, "layer_norm_epsilon": 0.2, "norm_eps": 0.4,
    "partial_rotary_factor": 0.5, "rope_theta": 77.0, "rope_scaling": {}, "n_ctx": 8, "n_inner": 24, "bias": False,
    "hidden_activation": "relu", "hidden_act": "relu", "activation_function": "relu", "dtype": "bfloat16", "torch_dtype": "float16",
    "tie_word_embeddings": True, "scale_attn_weights": False, "multi_query": True, "no_rope_layers": [1, 0, 1], "head_dim": 8,
}


def some(rng: random.Random, fields: Dict[str, Any], share: float = 0.5) -> Dict[str, Any]:
    """Each field with this chance, one of its values."""
    return {name: rng.choice(values) for name, values in fields.items() if rng.random() < share}


def rope(rng: random.Random, context: int) -> Dict[str, Any]:
    kind = rng.choice(["default", "linear", "llama3", "yarn", "yarn", "dynamic"])
    found = {rng.choice(["rope_type", "rope_type", "type"]): kind, **some(rng, {"rope_theta": [10000, 10000.0, 500.5, 1e6]}, 0.7)}
    if kind != "default":
        found["factor"] = rng.choice([1, 2.0, 3.7, 8, 0.5])
    if kind == "llama3":
        found.update(low_freq_factor=rng.choice([1, 0.5]), high_freq_factor=rng.choice([4, 2.5]))
    if kind in ("llama3", "yarn"):
        found.update(some(rng, {"original_max_position_embeddings": [8, 16, context]}, 0.8))
    if kind == "yarn":
        found.update(some(rng, {"beta_fast": [32, 4, 16.5], "beta_slow": [1, 2.5], "mscale": [1, 0.7], "mscale_all_dim": [1.0, 0.4],
                                "attention_factor": [0.8, 1.3, None], "truncate": [True, False, None]}, 0.3))
    return found


def gpt2(rng: random.Random) -> Dict[str, Any]:
    heads = rng.choice([1, 2, 3, 4])
    found = {"n_layer": rng.randint(1, 3), "n_head": heads, "n_embd": heads * rng.choice([2, 5, 8, 12]), "n_positions": rng.choice([16, 33])}
    return {**found, **some(rng, {"n_inner": [None, 7, 40], "activation_function": ACTIVATIONS, "layer_norm_epsilon": [1e-5, 0.1],
                                  "scale_attn_weights": [True, False], "scale_attn_by_inverse_layer_idx": [True, False],
                                  "tie_word_embeddings": [True, False]})}


def llama(rng: random.Random, family: str) -> Dict[str, Any]:
    heads, context, layers = rng.choice([1, 2, 3, 4, 6]), rng.choice([16, 40]), rng.randint(1, 3)
    found = {"hidden_size": heads * 2 * rng.randint(1, 9), "intermediate_size": rng.randint(3, 70), "num_hidden_layers": layers,
             "num_attention_heads": heads, "num_key_value_heads": rng.choice([n for n in (1, 2, 3, 6) if heads % n == 0]),
             "max_position_embeddings": context}
    if family in ("ministral", "qwen3", "gemma") or rng.random() < 0.5:
        found["head_dim"] = rng.choice([2, 4, 6, 10, 34])
    found.update(some(rng, {"hidden_act": ACTIVATIONS, "rms_norm_eps": [1e-5, 0.2], "tie_word_embeddings": [True, False]}))
    if family in ("llama", "qwen3", "gemma"):
        found.update(some(rng, {"attention_bias": [True, False]}, 0.3))
    if family in ("mistral", "ministral", "qwen2", "qwen3"):
        found.update(some(rng, {"sliding_window": [None, 1, 3, 7, 100]}, 0.7))
        kinds = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
        found.update(some(rng, {"use_sliding_window": [True], "max_window_layers": [0, 1, 9], "layer_types": [kinds]}, 0.4))
    places = rng.choice([("rope_parameters",), ("rope_parameters",), ("rope_scaling",), ("rope_scaling", "rope_parameters"), ()])
    found.update({place: rope(rng, context) for place in places})
    if "rope_parameters" not in places:
        found.update(some(rng, {"rope_theta": [10000.0, 500, 1e6]}))
    return found


def configuration(rng: random.Random) -> Dict[str, Any]:
    family = rng.choice(FAMILIES)
    found = {"model_type": family, "vocab_size": rng.randint(3, 140), **(gpt2(rng) if family == "gpt2" else llama(rng, family))}
    for name in rng.sample(sorted(OTHER), rng.choice([0, 0, 0, 1, 2])):
        found[name] = OTHER[name]
    return found


class RandomConfigurations(Scenes):
    def reference(self, folder: str, values: Dict[str, Any], dtype: torch.dtype) -> Optional[transformers.PreTrainedModel]:
        """What Transformers makes of the configuration, saved beside it with random weights; None: it refuses."""
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(values, file)
        try:
            config = transformers.AutoConfig.from_pretrained(folder)
            model = randomized(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32), dtype)
            state = {name: value.detach().to(dtype) for name, value in model.state_dict().items()}
            torch.save(state, os.path.join(folder, "pytorch_model.bin"))
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            model(torch.zeros(1, 3, dtype=torch.long))
        except Exception:  # It has no one sort for what it refuses.
            return None
        return model

    def logprobs(self, model: transformers.PreTrainedModel, texts: List[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            logits = [model(rows, attention_mask=torch.ones_like(rows)).logits[:, :-1].double() for rows in texts]
        return torch.cat([torch.log_softmax(each, -1).gather(-1, rows[:, 1:, None]).flatten() for each, rows in zip(logits, texts)])

    def case(self, seed: int) -> str:
        rng = random.Random(seed)
        values, dtype = configuration(rng), rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
        folder = self.path(str(seed))
        os.makedirs(folder)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        model = self.reference(folder, values, dtype)
        if model is None:
            return "refused by Transformers"
        generator = torch.Generator().manual_seed(seed)
        texts = [torch.randint(0, values["vocab_size"], size, generator=generator) for size in ((2, 16), (3, 5))]
        done = self.scores(folder, texts, {})
        if done.returncode == 1 and done.stderr:
            return "refused"
        self.assertEqual(done.returncode, 0, done.stderr)
        got = torch.tensor([score for row in json.loads(done.stdout)["logprobs"] for score in row], dtype=torch.float64)
        single = self.logprobs(model, texts)
        exact = self.logprobs(model.double(), texts)
        allowed = 1e-4 * max(1.0, exact.abs().max().item()) + 4 * (single - exact).abs().max().item()  # What fp32 makes of it.
        worst = (got - exact).abs().max().item()
        self.assertTrue(worst <= allowed, f"off by {worst}, allowed {allowed}: {json.dumps(values)}")
        return "equal"

    def test_scores_are_those_of_transformers(self) -> None:
        print(f"seed {SEED} (EVALQ_SEED repeats it)")
        counts: Dict[str, int] = collections.Counter()
        for number in range(CASES):
            with self.subTest(seed=SEED + number):
                counts[self.case(SEED + number)] += 1
        print("  " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
        self.assertGreater(counts["equal"], CASES // 3)


if __name__ == "__main__":
    if not os.path.exists(SCORES):
        print(f"not run: {SCORES} is not built (ninja lm_scores)")
        raise SystemExit(77)
    unittest.main(verbosity=2)
