"""The language models that test_models.py compares: one row a model, tiny, with each option of its family in some row.

A row names the classes of Transformers (`Llama` stands for LlamaConfig and LlamaForCausalLM) and what differs from `SHAPE`.
"""

from __future__ import annotations

import copy
import os
from typing import Any, Dict, Iterable, List, Tuple

VOCABULARY = 131
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
SHAPE: Dict[str, Any] = {  # What the families like Llama have in common.
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    **ENDS,
}
GPT2_SHAPE: Dict[str, Any] = {"vocab_size": VOCABULARY, "n_layer": 3, "n_head": 4, "n_embd": 48, "n_positions": 64, **ENDS}
SHAPES: Dict[str, Dict[str, Any]] = {  # Of families that refuse some of SHAPE's keys.
    "GPT2": GPT2_SHAPE,
    "GPTNeoX": {key: value for key, value in SHAPE.items() if key not in ("num_key_value_heads", "rms_norm_eps")},
    "StableLm": {key: value for key, value in SHAPE.items() if key != "rms_norm_eps"},
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MSCALE = {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.9, "mscale_all_dim": 0.4, "truncate": False}


def longrope(pairs: int, **more: Any) -> Dict[str, Any]:
    """Some texts are longer than the 32 tokens of the training, and some are not."""
    factors = {"short_factor": [1.0 + 0.1 * i for i in range(pairs)], "long_factor": [2.0 + 0.7 * i for i in range(pairs)]}
    return {"rope_type": "longrope", "rope_theta": 1000.0, "original_max_position_embeddings": 32, **factors, **more}


ROWS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "gpt2": ("GPT2", {}),
    "gpt2 scaled by layer": ("GPT2", dict(scale_attn_by_inverse_layer_idx=True)),
    "gpt2 unscaled, erf, wider": ("GPT2", dict(scale_attn_weights=False, activation_function="gelu", n_inner=100)),
    "gpt2 untied, relu": ("GPT2", dict(tie_word_embeddings=False, activation_function="relu")),
    "gpt2 quick_gelu": ("GPT2", dict(activation_function="quick_gelu")),
    "llama": ("Llama", {}),
    "llama ungrouped, biases, tied": (
        "Llama", dict(num_key_value_heads=None, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "llama linear": ("Llama", dict(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0})),
    "llama dynamic": ("Llama", dict(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 5000.0})),
    "llama llama3": ("Llama", dict(rope_parameters=LLAMA3)),
    "llama yarn": ("Llama", dict(rope_parameters=YARN)),
    "llama yarn by mscale": ("Llama", dict(rope_parameters={**YARN, **MSCALE})),
    "falcon 3": ("Llama", dict(head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1000042.0})),
    "mistral window": ("Mistral", dict(sliding_window=7)),
    "mistral no window": ("Mistral", dict(sliding_window=None, head_dim=12)),
    "ministral": ("Ministral", dict(head_dim=8, sliding_window=7, layer_types=LAYERS)),
    "ministral 3": (
        "Ministral3",
        dict(
            head_dim=16,
            max_position_embeddings=256,
            rope_parameters={**YARN, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1},
        ),
    ),
    "qwen2 tied": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen2 window": ("Qwen2", dict(use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    "qwen3": ("Qwen3", dict(head_dim=16)),
    "qwen3 biases, tied, window": (
        "Qwen3",
        dict(
            head_dim=10, attention_bias=True, tie_word_embeddings=True, use_sliding_window=True, sliding_window=5,
            max_window_layers=2,
        ),
    ),
    "gemma": ("Gemma", dict(head_dim=14, num_key_value_heads=1)),
    "gemma 2": ("Gemma2", dict(head_dim=14, sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=2.0)),
    "gemma 2 untied, no caps": (
        "Gemma2",
        dict(
            head_dim=8, tie_word_embeddings=False, attention_bias=True, attn_logit_softcapping=None,
            final_logit_softcapping=None, hidden_activation="silu", layer_types=LAYERS, sliding_window=5,
        ),
    ),
    "gemma 3": (
        "Gemma3Text",
        dict(
            head_dim=12,
            sliding_window=9,
            layer_types=LAYERS,
            query_pre_attn_scalar=20,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        ),
    ),
    "gemma 3 cap, pattern": (
        "Gemma3Text",
        dict(
            head_dim=8, sliding_window=5, sliding_window_pattern=2, attn_logit_softcapping=3.0,
            final_logit_softcapping=4.0, attention_bias=True,
        ),
    ),
    "phi 3": ("Phi3", dict(sliding_window=11)),
    "phi 4 longrope": (
        "Phi3",
        dict(
            original_max_position_embeddings=32,
            tie_word_embeddings=True,
            rope_parameters=longrope(3, partial_rotary_factor=0.75),
        ),
    ),
    "phi 3.5 longrope, factor": (
        "Phi3",
        dict(num_key_value_heads=None, original_max_position_embeddings=32, rope_parameters=longrope(4, attention_factor=1.3)),
    ),
    "olmo 2": ("Olmo2", dict(attention_bias=True)),
    "olmo 2 ungrouped, tied": ("Olmo2", dict(num_key_value_heads=None, tie_word_embeddings=True, rope_parameters=LLAMA3)),
    "olmo 3": (
        "Olmo3",
        dict(
            sliding_window=7,
            layer_types=LAYERS,
            rope_parameters={
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        ),
    ),
    "olmo 3 pattern": ("Olmo3", dict(sliding_window=7, num_hidden_layers=4)),
    "granite": (
        "Granite",
        dict(
            embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.3, logits_scaling=8.0,
            attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        ),
    ),
    "smollm 3": ("SmolLM3", dict(no_rope_layers=[1, 0, 1])),
    "smollm 3 windows": (
        "SmolLM3",
        dict(
            no_rope_layer_interval=2, use_sliding_window=True, sliding_window=6, attention_bias=True, mlp_bias=True,
            tie_word_embeddings=False,
        ),
    ),
    "smollm 3 layer types": (
        "SmolLM3", dict(no_rope_layers=[0, 1, 1], use_sliding_window=True, sliding_window=6, layer_types=LAYERS),
    ),
    "gpt-neox": ("GPTNeoX", dict(rotary_pct=0.25)),
    "gpt-neox one after another": (
        "GPTNeoX",
        dict(
            use_parallel_residual=False, hidden_act="gelu_new", layer_norm_eps=1e-3, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 1.0},
        ),
    ),
    "gpt-neox no biases": ("GPTNeoX", dict(attention_bias=False, rotary_pct=0.5)),
    "starcoder 2": ("Starcoder2", dict(sliding_window=9, norm_epsilon=1e-3)),
    "starcoder 2 no biases": ("Starcoder2", dict(use_bias=False, hidden_act="gelu", tie_word_embeddings=False)),
    "stablelm": ("StableLm", dict(layer_norm_eps=1e-3)),
    "stablelm biases, norms of heads": (
        "StableLm",
        dict(
            use_qkv_bias=True, qk_layernorm=True, layer_norm_eps=1e-3, hidden_act="gelu",
            rope_parameters={"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
        ),
    ),
    "stablelm parallel": ("StableLm", dict(use_parallel_residual=True, tie_word_embeddings=True, partial_rotary_factor=1.0)),
    "stablelm 2 12b": ("StableLm", dict(use_parallel_residual=True, qk_layernorm=True, num_key_value_heads=6, rope_parameters=YARN)),
    "cohere": ("Cohere", dict(logit_scale=0.25)),
    "cohere norms, biases": (
        "Cohere", dict(use_qk_norm=True, attention_bias=True, tie_word_embeddings=False, layer_norm_eps=1e-3),
    ),
    "cohere 2": ("Cohere2", dict(sliding_window=7, layer_types=LAYERS, logit_scale=0.25)),
    "cohere 2 pattern": ("Cohere2", dict(sliding_window=7, sliding_window_pattern=2, attention_bias=True)),
    "glm": ("Glm", dict(head_dim=16)),
    "glm 4": ("Glm4", dict(head_dim=16)),
    "glm 4 no biases, whole heads": (
        "Glm4",
        dict(
            head_dim=8, attention_bias=False, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        ),
    ),
    "exaone 4": ("Exaone4", dict(sliding_window=7, layer_types=LAYERS)),
    "exaone 4 no windows": ("Exaone4", dict(sliding_window=None, layer_types=["full_attention"] * 3, tie_word_embeddings=True)),
    "seed-oss": ("SeedOss", dict(head_dim=16)),
    "seed-oss biases": ("SeedOss", dict(head_dim=8, attention_bias=False, attention_out_bias=True, mlp_bias=True)),
    "mixtral": ("Mixtral", dict(sliding_window=9)),
    "mixtral five of seven": ("Mixtral", dict(head_dim=12, num_local_experts=7, num_experts_per_tok=5, tie_word_embeddings=True)),
    "qwen3 moe": ("Qwen3Moe", dict(num_experts=11, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True)),
    "qwen3 moe dense layers": (
        "Qwen3Moe",
        dict(
            num_hidden_layers=5, num_experts=6, moe_intermediate_size=24, num_experts_per_tok=2, decoder_sparse_step=2,
            mlp_only_layers=[3], attention_bias=True, use_sliding_window=True, sliding_window=7,
        ),
    ),
    "olmoe": ("Olmoe", dict(num_experts=9, num_experts_per_tok=4)),
    "olmoe normed": ("Olmoe", dict(num_experts=3, num_experts_per_tok=3, norm_topk_prob=True, attention_bias=True)),
    "gpt-oss": (
        "GptOss",
        dict(head_dim=8, num_local_experts=5, num_experts_per_tok=2, sliding_window=7, rope_parameters={**YARN, "truncate": False}),
    ),
    "gpt-oss no biases, tied": (
        "GptOss",
        dict(
            head_dim=16, num_local_experts=3, num_experts_per_tok=3, sliding_window=9, layer_types=LAYERS, attention_bias=False,
            swiglu_limit=1.5, swiglu_alpha=1.3, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 900.0},
        ),
    ),
    "arcee": ("Arcee", {}),
    "arcee biases": ("Arcee", dict(head_dim=12, attention_bias=True, mlp_bias=True, hidden_act="relu", rope_parameters=YARN)),
}

# Configurations that older versions or people wrote: a row, the keys that are missing, and the keys that are set.
WITHIN = {**YARN, "truncate": False}
REWRITTEN: Dict[str, Tuple[str, Tuple[str, ...], Dict[str, Any]]] = {
    "phi 3.5 without its trained length": ("phi 3.5 longrope, factor", ("original_max_position_embeddings",), {}),
    "gemma 3 with rope_scaling": ("gemma 3", ("rope_parameters",), {"rope_scaling": WITHIN}),
    "olmo 3 with rope_scaling": ("olmo 3", ("rope_parameters",), {"rope_scaling": WITHIN}),
    "olmo 3 with a trained length outside": ("olmo 3", (), {"original_max_position_embeddings": 30}),
    "glm with whole heads by null": ("glm", ("rope_parameters",), {"partial_rotary_factor": None}),
    "smollm 3 with layer types alone": ("smollm 3", (), {"layer_types": LAYERS, "sliding_window": 5}),
}


def chosen(names: Iterable[str]) -> List[str]:
    """The names that begin with $EVALQ_TEST_FAMILY, whatever their case and signs ("gpt_neox" chooses GPTNeoX); without it all."""

    def letters(name: str) -> str:
        return "".join(letter for letter in name.lower() if letter.isalnum())

    word = os.environ.get("EVALQ_TEST_FAMILY", "")
    found = [name for name in names if letters(name).startswith(letters(word))]
    if not found:
        raise SystemExit(f"EVALQ_TEST_FAMILY is {word}, with which no name here begins")
    return found


def make(name: str) -> Any:
    """A model of the row, as Transformers initialises it."""
    import transformers

    family, more = ROWS[name]
    shape = SHAPES.get(family, SHAPE)
    kind = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}.get(family, f"{family}ForCausalLM")
    # Of a copy, because some configuration classes write their defaults into the rope_parameters.
    config = getattr(transformers, f"{family}Config")(**copy.deepcopy({**shape, **more}))
    return getattr(transformers, kind)(config)
