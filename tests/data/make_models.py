"""Makes tests/data/models: a tiny random model of every family as Transformers saves it, and beside each the
log-probabilities of a few tokens by a float64 forward of Transformers' code on the same weights.

python tests/data/make_models.py [NAME ...] (torch, transformers); what it wrote is kept, so that CI needs no Python for it.
"""

import os
import shutil
import sys

import numpy
import torch
import transformers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
VOCABULARY = 37
LENGTHS = (19, 7)
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
COMMON = dict(
    vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=24, pad_token_id=0, **ENDS,
)
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 6}
LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.25], "long_factor": [2.0, 3.5]}
LAYERS = ["sliding_attention", "full_attention"]
NEOX = {key: value for key, value in COMMON.items() if key != "num_key_value_heads"}

MODELS = {
    "gpt2": ("GPT2", dict(vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=16, n_positions=24, **ENDS), "float32"),
    "llama": ("Llama", dict(COMMON, rope_parameters=LLAMA3), "float32"),
    "llama_yarn": ("Llama", dict(COMMON, rope_parameters=YARN, attention_bias=True), "float16"),
    "mistral": ("Mistral", dict(COMMON, sliding_window=5), "float32"),
    "qwen2": ("Qwen2", dict(COMMON, tie_word_embeddings=True), "bfloat16"),
    "qwen3": ("Qwen3", dict(COMMON, head_dim=6), "float32"),
    "arcee": ("Arcee", dict(COMMON, mlp_bias=True), "bfloat16"),
    "cohere": ("Cohere", dict(COMMON, use_qk_norm=True, logit_scale=0.25), "bfloat16"),
    "cohere2": ("Cohere2", dict(COMMON, sliding_window=5, layer_types=LAYERS), "bfloat16"),
    "exaone4": ("Exaone4", dict(COMMON, sliding_window=5, layer_types=LAYERS), "bfloat16"),
    "gemma2": ("Gemma2", dict(COMMON, head_dim=6, sliding_window=5, attn_logit_softcapping=2.0), "bfloat16"),
    "gemma3": ("Gemma3Text", dict(COMMON, head_dim=6, sliding_window=5, layer_types=LAYERS), "bfloat16"),
    "glm4": ("Glm4", dict(COMMON, head_dim=8), "bfloat16"),
    "gpt_neox": ("GPTNeoX", dict(NEOX, rotary_pct=0.5), "bfloat16"),
    "granite": (
        "Granite",
        dict(COMMON, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.3, logits_scaling=8.0),
        "bfloat16",
    ),
    "olmo3": ("Olmo3", dict(COMMON, sliding_window=5, layer_types=LAYERS), "bfloat16"),
    "phi3": ("Phi3", dict(COMMON, original_max_position_embeddings=12, rope_parameters=LONGROPE), "bfloat16"),
    "smollm3": ("SmolLM3", dict(COMMON, no_rope_layers=[1, 0]), "bfloat16"),
    "stablelm": ("StableLm", dict(COMMON, use_qkv_bias=True, qk_layernorm=True, partial_rotary_factor=0.5), "bfloat16"),
    "starcoder2": ("Starcoder2", dict(COMMON), "bfloat16"),
    "gpt_oss": (
        "GptOss",
        dict(COMMON, head_dim=4, num_local_experts=3, num_experts_per_tok=2, sliding_window=5, rope_parameters={**YARN, "truncate": False}),
        "bfloat16",
    ),
    "mixtral": ("Mixtral", dict(COMMON, num_local_experts=3), "bfloat16"),
    "olmoe": ("Olmoe", dict(COMMON, num_experts=3, num_experts_per_tok=2), "bfloat16"),
    "qwen3_moe": (
        "Qwen3Moe",
        dict(COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True, mlp_only_layers=[1]),
        "bfloat16",
    ),
    "gemma": ("Gemma", dict(COMMON, head_dim=10, num_key_value_heads=1), "bfloat16"),
}


def randomize(model, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        centre, spread = (1.0, 0.3) if parameter.dim() == 1 else (0.0, 0.3)
        noise = torch.randn(parameter.shape, generator=generator) * spread + centre
        parameter.data = noise.to(getattr(torch, dtype))
    return generator


def save(model, folder):
    model.save_pretrained(folder)
    for extra in os.listdir(folder):
        if extra not in ("config.json", "model.safetensors"):
            os.unlink(os.path.join(folder, extra))
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)


SMALL = {key: value for key, value in NEOX.items() if key not in ENDS}
CLASSIFIERS = {
    "bert": ("Bert", dict(SMALL, num_labels=3, type_vocab_size=2, pad_token_id=0)),
    "roberta": ("Roberta", dict(SMALL, num_labels=3, max_position_embeddings=26, pad_token_id=1, type_vocab_size=1)),
    "distilbert": (
        "DistilBert",
        dict(vocab_size=VOCABULARY, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=24, num_labels=3),
    ),
    "modernbert": (
        "ModernBert", dict(SMALL, num_labels=3, pad_token_id=0, local_attention=5, classifier_pooling="mean", **ENDS),
    ),
    "vit": ("ViT", dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_labels=3, image_size=[4, 6],
                        patch_size=2, num_channels=2)),
}


def make_classifier(name, family, values):
    """Beside the model: texts with padding behind them, or images, their labels, and the loss and hits of a float64 forward."""
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    kind = "ImageClassification" if family == "ViT" else "SequenceClassification"
    model = getattr(transformers, f"{family}For{kind}")(getattr(transformers, f"{family}Config")(**values)).eval()
    randomize(model, len(name), "float32")
    save(model, folder)
    draw = numpy.random.default_rng(len(name))
    labels = draw.integers(0, 3, 40)
    arrays = {"labels": labels}
    if family == "ViT":
        arrays["inputs"] = draw.integers(0, 256, (40, 2, 4, 6), dtype=numpy.uint8)
        words = {"pixel_values": torch.from_numpy(arrays["inputs"] * (2 / 255) - 1)}
    else:
        mask = (numpy.arange(24)[None] < draw.integers(1, 25, (40, 1))).astype(numpy.int64)
        mask[0] = 1
        arrays.update(tokens=draw.integers(3, VOCABULARY, (40, 24)) * mask, mask=mask)
        if family == "Bert":
            arrays["types"] = draw.integers(0, 2, (40, 24)) * mask
        keys = {"tokens": "input_ids", "mask": "attention_mask", "types": "token_type_ids"}
        words = {keys[key]: torch.from_numpy(value) for key, value in arrays.items() if key in keys}
        if family == "Roberta":  # Its positions follow from the padding.
            words["input_ids"] = torch.where(words["attention_mask"] == 0, 1, words["input_ids"])
    with torch.no_grad():
        logits = model.double()(**words).logits
    wanted = torch.from_numpy(labels)
    loss = torch.nn.functional.cross_entropy(logits, wanted).item()
    hits = [(logits.topk(k).indices == wanted[:, None]).any(-1).sum().item() for k in (1, 2)]
    for key, value in arrays.items():
        numpy.save(os.path.join(folder, f"{key}.npy"), value.astype(numpy.uint8 if key == "inputs" else numpy.int32))
    with open(os.path.join(folder, "expected.txt"), "w", encoding="ascii") as file:
        file.write(f"{loss:.17g} {hits[0]} {hits[1]}\n")


def make(name, family, values, dtype):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    config = getattr(transformers, f"{family}Config")(**values)
    kinds = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
    model = getattr(transformers, kinds.get(family, f"{family}ForCausalLM"))(config).eval()
    generator = randomize(model, len(name), dtype)
    save(model, folder)
    exact = model.double()
    exact.set_experts_implementation("eager")
    with open(os.path.join(folder, "expected.txt"), "w", encoding="ascii") as file:
        for length in LENGTHS:
            tokens = torch.randint(0, VOCABULARY, (1, length), generator=generator)
            with torch.no_grad():
                logits = exact(tokens, attention_mask=torch.ones_like(tokens)).logits[0, :-1]
            logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None])[:, 0]
            file.write("tokens " + " ".join(str(token) for token in tokens[0].tolist()) + "\n")
            file.write("logprobs " + " ".join(f"{value:.17g}" for value in logprobs.tolist()) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or [*MODELS, *CLASSIFIERS]:
        if name in MODELS:
            make(name, *MODELS[name])
        else:
            make_classifier(name, *CLASSIFIERS[name])
