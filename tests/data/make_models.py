"""Makes tests/data/models: a tiny random model of every family as Transformers saves it, and beside each the
log-probabilities of a few tokens by a float64 forward of Transformers' code on the same weights.

python tests/data/make_models.py (torch, transformers); what it wrote is kept, so that CI needs no Python for it.
"""

import os
import shutil

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

MODELS = {
    "gpt2": ("GPT2", dict(vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=16, n_positions=24, **ENDS), "float32"),
    "llama": ("Llama", dict(COMMON, rope_parameters=LLAMA3), "float32"),
    "llama_yarn": ("Llama", dict(COMMON, rope_parameters=YARN, attention_bias=True), "float16"),
    "mistral": ("Mistral", dict(COMMON, sliding_window=5), "float32"),
    "qwen2": ("Qwen2", dict(COMMON, tie_word_embeddings=True), "bfloat16"),
    "qwen3": ("Qwen3", dict(COMMON, head_dim=6), "float32"),
    "gemma": ("Gemma", dict(COMMON, head_dim=10, num_key_value_heads=1), "bfloat16"),
}


def make(name, family, values, dtype):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    config = getattr(transformers, f"{family}Config")(**values)
    model = getattr(transformers, f"{family}{'LMHeadModel' if family == 'GPT2' else 'ForCausalLM'}")(config).eval()
    generator = torch.Generator().manual_seed(len(name))
    for parameter in model.parameters():
        centre, spread = (1.0, 0.3) if parameter.dim() == 1 else (0.0, 0.3)
        noise = torch.randn(parameter.shape, generator=generator) * spread + centre
        parameter.data = noise.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    for extra in os.listdir(folder):
        if extra not in ("config.json", "model.safetensors"):
            os.unlink(os.path.join(folder, extra))
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)
    exact = model.double()
    with open(os.path.join(folder, "expected.txt"), "w", encoding="ascii") as file:
        for length in LENGTHS:
            tokens = torch.randint(0, VOCABULARY, (1, length), generator=generator)
            with torch.no_grad():
                logits = exact(tokens, attention_mask=torch.ones_like(tokens)).logits[0, :-1]
            logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None])[:, 0]
            file.write("tokens " + " ".join(str(token) for token in tokens[0].tolist()) + "\n")
            file.write("logprobs " + " ".join(f"{value:.17g}" for value in logprobs.tolist()) + "\n")


if __name__ == "__main__":
    for name, (family, values, dtype) in MODELS.items():
        make(name, family, values, dtype)
