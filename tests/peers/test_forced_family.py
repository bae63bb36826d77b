"""A forced family (`model: {family: llama}`) on the configuration of every other language model of Transformers: evalq gives
Transformers' numbers, or it refuses. A type that computes otherwise with a Llama's keys and names must be in worker/models/config_keys.c."""

from __future__ import annotations

import json
import os
import shutil
import sys
import unittest
from typing import Any, Dict, Iterator, Tuple

from model_table import chosen
from test_models import SCORES, Scenes, randomized

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = (
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "olmo2", "olmo3", "gpt_neox", "starcoder2", "cohere",
    "glm", "exaone4", "seed_oss", "arcee",
)
OWN = (
    "gpt2", "llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "olmo3",
    "mixtral", "qwen3_moe", "olmoe", "gpt_oss", "granite", "smollm3", "gpt_neox", "stablelm", "starcoder2", "cohere", "cohere2", "glm", "glm4", "exaone4", "seed_oss", "arcee",
)
PARAMETERS_MAX = 3_000_000
TINY: Dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8, "n_layer": 3, "n_head": 4, "n_embd": 48, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}


def tiny(kind: str) -> Any:
    """A configuration of this type with the sizes above, where it has them; None: it cannot be so small."""
    cls = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]
    try:
        plain = cls()
        return cls(**{name: value for name, value in TINY.items() if hasattr(plain, name)})
    except Exception:  # Sizes that depend on each other, sub-configurations: other kinds of model.
        return None


def moved(config: Any, own: Dict[str, Any]) -> Iterator[Tuple[str, Any]]:
    """The configuration as it is, then with each number that a Llama does not have changed."""
    yield "as it is", config
    for name, value in config.to_dict().items():
        if name not in own and isinstance(value, float) and value > 0:
            other = type(config).from_dict({**config.to_dict(), name: 0.7 * value})
            yield f"{name} {0.7 * value:g}", other


SEEN: Dict[str, Any] = {  # In config.json of released checkpoints of these families, beside what Transformers writes today.
    "_attn_implementation_autoset": True, "_flash_attn_2_enabled": True, "_name_or_path": "somebody/model", "_num_labels": 1,
    "attention_dropout": 0.0, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}, "bad_words_ids": None, "do_sample": False,
    "finetuning_task": None, "is_decoder": False, "max_length": 20, "max_sequence_length": 2048, "n_ctx": 1024, "num_beams": 1,
    "pretraining_tp": 1, "pruned_heads": {}, "sep_token_id": None, "task_specific_params": {"text-generation": {"max_length": 50}},
    "temperature": 1.0, "tf_legacy_loss": False, "tie_encoder_decoder": False, "tokenizer_class": None, "top_k": 50, "top_p": 1.0,
    "torch_dtype": "bfloat16", "torchscript": False, "transformers.js_config": {"dtype": {"q4": 1}}, "unsloth_fixed": True,
    "use_bfloat16": False, "use_mrope": False, "rope_interleaved": False, "is_llama_config": True, "hidden_dropout": 0.1,
}


class OrdinaryConfigurations(Scenes):
    def test_recognised_families_know_their_keys(self) -> None:
        for kind in chosen(OWN):
            with self.subTest(kind):
                model = randomized(transformers.AutoModelForCausalLM.from_config(tiny(kind)))
                model.save_pretrained(self.path(kind))
                self.agree(model, self.path(kind))
                with open(self.path(f"{kind}/config.json"), encoding="utf-8") as file:
                    written = json.load(file)
                whole = json.loads(model.config.to_json_string(use_diff=False))
                with open(self.path(f"{kind}/config.json"), "w", encoding="utf-8") as file:
                    json.dump({**SEEN, **whole, **written}, file)
                self.agree(model.float(), self.path(kind))

    def test_defaults_hold_no_unknown_key(self) -> None:
        for kind in chosen(OWN):
            with self.subTest(kind):
                folder = self.path(kind)
                transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]().save_pretrained(folder)
                torch.save({"nothing": torch.zeros(1)}, os.path.join(folder, "pytorch_model.bin"))
                said = self.refused(folder, "is missing", family={"ministral": "mistral", "gemma3_text": "gemma3"}.get(kind, kind))
                self.assertNotIn("does not know this key", said)


class ForcedFamily(Scenes):
    maxDiff = None

    def build(self, kind: str, config: Any) -> Any:
        try:
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(config)
            if sum(parameter.numel() for parameter in model.parameters()) > PARAMETERS_MAX:
                return None
            return randomized(transformers.AutoModelForCausalLM.from_config(config))
        except Exception:
            return None

    def compare(self, kind: str, change: str, model: Any, folder: str) -> Tuple[int, list]:
        texts = self.texts()
        wrong, equal = [], 0
        wanted = None
        for family in FAMILIES:
            done = self.scores(folder, texts, {"family": family})
            if done.returncode != 0:
                self.assertTrue(done.stderr.strip(), "a refusal without a sentence")
                continue
            if wanted is None:
                wanted = self.wanted(model, texts)
            got = json.loads(done.stdout)["logprobs"]
            worst = max(abs(a - b) for left, right in zip(got, wanted) for a, b in zip(left, right))
            if worst <= 5e-4:
                equal += 1
            else:
                wrong.append(f"{kind} ({change}) as {family}: off by {worst}")
        return equal, wrong

    def test_forced_family_agrees_or_is_refused(self) -> None:
        own = transformers.LlamaConfig().to_dict()
        wrong, seen, equal = [], 0, []
        for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
            config = None if kind in OWN else tiny(kind)
            for change, one in moved(config, own) if config is not None else ():
                model = self.build(kind, one)
                if model is None:
                    break
                folder = self.path("model")
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    model.save_pretrained(folder)
                    agreeing, off = self.compare(kind, change, model, folder)
                except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, IndexError, KeyError):
                    break  # This type cannot be saved, or scores nothing by itself.
                seen += 1
                wrong += off
                equal += [f"{kind} ({change})"] * (agreeing > 0)
        print(f"  {seen} configurations; a family was accepted, and right, for: {', '.join(equal)}")
        self.assertGreater(seen, 40)
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    if not os.path.exists(SCORES):
        print(f"not run: {SCORES} is not built (ninja lm_scores)")
        sys.exit(77)
    unittest.main(verbosity=2)
