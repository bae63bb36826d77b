"""Every family with every type of rotary positions that Transformers accepts for it, also on a part of each head."""

from __future__ import annotations

import copy
import os
import sys
import unittest
from typing import Any, Dict, Iterator, Tuple

from model_table import LAYERS, LLAMA3, MSCALE, SHAPE, SHAPES, YARN, chosen, longrope
from test_models import SCORES, Scenes, randomized

import torch
import transformers

EXPERTS: Dict[str, Any] = {"head_dim": 8, "num_experts_per_tok": 2}
WINDOWS: Dict[str, Any] = {"head_dim": 8, "sliding_window": 7, "layer_types": LAYERS}
FAMILIES: Dict[str, Dict[str, Any]] = {
    "Arcee": {}, "Cohere": {}, "Cohere2": WINDOWS, "Exaone4": WINDOWS, "Gemma": {"head_dim": 8}, "Gemma2": WINDOWS,
    "Gemma3Text": WINDOWS, "Glm": {"head_dim": 8}, "Glm4": {"head_dim": 8}, "GPTNeoX": {}, "GptOss": {**EXPERTS, "num_local_experts": 4},
    "Granite": {}, "Llama": {}, "Ministral": WINDOWS, "Ministral3": {"head_dim": 8, "max_position_embeddings": 256}, "Mistral": {},
    "Mixtral": {**EXPERTS, "num_local_experts": 4}, "Olmo2": {}, "Olmo3": WINDOWS, "Olmoe": {**EXPERTS, "num_experts": 4}, "Phi3": {},
    "Qwen2": {}, "Qwen3": {"head_dim": 8}, "Qwen3Moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24}, "SeedOss": {"head_dim": 8},
    "SmolLM3": {"no_rope_layers": [1, 0, 1]}, "StableLm": {}, "Starcoder2": {},
}
PARTLY = ("Glm", "Glm4", "GPTNeoX", "Phi3", "StableLm")  # A part of each head rotates. The others cannot.
GROUPED = ("Gemma3Text", "Olmo3")  # Parameters by type of layer.


def ropes(family: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    for part in (1.0, 0.5) if family in PARTLY else (None,):
        pairs = 2 if part == 0.5 else 4
        types = {
            "linear": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
            "dynamic": {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32},
            "llama3": LLAMA3,
            "yarn": YARN,
            "yarn by mscale": {**YARN, **MSCALE},
            "yarn by attention_factor": {**YARN, "attention_factor": 0.8},
            "longrope": longrope(pairs),
            "longrope by factor": longrope(pairs, factor=3.0),
            "longrope by attention_factor": longrope(pairs, attention_factor=1.2),
        }
        for name, rope in types.items():
            if family == "Phi3" and not name.startswith("longrope"):
                continue  # Its configuration class accepts no other type.
            rope = copy.deepcopy(rope)
            if part is not None:
                rope["partial_rotary_factor"] = part
            if family == "Ministral3":  # It takes texts up to this length.
                rope.update(original_max_position_embeddings=64, llama_4_scaling_beta=0.1)
            yield f"{family} {name}{'' if part in (None, 1.0) else ', in part'}", rope


def make(family: str, rope: Dict[str, Any]) -> transformers.PreTrainedModel:
    shape = SHAPES.get(family, SHAPE)
    more = dict(FAMILIES[family])
    if family == "Phi3":
        more["original_max_position_embeddings"] = 32
    sliding = {"rope_type": "default", "rope_theta": 300.0}
    parameters = {"full_attention": rope, "sliding_attention": sliding} if family in GROUPED else rope
    config = getattr(transformers, f"{family}Config")(**{**shape, **more, "rope_parameters": parameters})
    kind = "Gemma3ForCausalLM" if family == "Gemma3Text" else f"{family}ForCausalLM"
    return getattr(transformers, kind)(config)


class EveryRope(Scenes):
    def test_every_family_and_type(self) -> None:
        for family in chosen(FAMILIES):
            for name, rope in ropes(family):
                with self.subTest(name):
                    randomized(make(family, rope)).save_pretrained(self.path(name))
                    model = transformers.AutoModelForCausalLM.from_pretrained(self.path(name), dtype=torch.float32).eval()
                    # Weights this wild make single tokens ill-conditioned, for Transformers in fp32 too.
                    report = self.agree(model, self.path(name), each=2e-3)
                    print(f"  {name:44} mean off by {report['mean_off'] / report['nll']:.1e} of it")

    def test_what_is_not_handled_is_named(self) -> None:
        proportional = {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
        part = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
        for family in chosen(FAMILIES):
            if family == "Ministral3":
                continue  # It needs more than these.
            for rope, words in ((proportional, "'proportional' is not handled"), (part, "partial_rotary_factor is 0.5, expected 1")):
                if family in PARTLY and (rope is part or family == "Phi3"):
                    continue
                with self.subTest(family, rope=rope["rope_type"]):
                    randomized(make(family, copy.deepcopy(rope))).save_pretrained(self.path(family))
                    self.refused(self.path(family), words)


if __name__ == "__main__":
    if not os.path.exists(SCORES):
        print(f"not run: {SCORES} is not built (ninja lm_scores)")
        sys.exit(77)
    unittest.main(verbosity=2)
