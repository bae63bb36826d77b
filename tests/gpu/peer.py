"""The peer of gpu_bench: Transformers (sdpa, bf16) on the same shapes with random weights, logits and mean loss of whole batches.

    python tests/gpu/peer.py [SECONDS [NAME...]]

Tries batches of 8, 16 and 32 sequences, eager and under torch.compile, within so many seconds for all (default 120). Prints the best
tokens/s of each, and a line that begins with json.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
import transformers as tf

QWEN3: Dict[str, Any] = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                         "vocab_size": 151936, "tie_word_embeddings": True}
SHAPES: Dict[str, Tuple[Any, int]] = {
    "gpt2-124m": (lambda: tf.GPT2Config(), 1024),
    "qwen3-0.6b": (lambda: tf.Qwen3Config(hidden_size=1024, intermediate_size=3072, **QWEN3), 2048),
    "gpt2-1.5b": (lambda: tf.GPT2Config(n_layer=48, n_embd=1600, n_head=25), 1024),
    "qwen3-1.7b": (lambda: tf.Qwen3Config(hidden_size=2048, intermediate_size=6144, **QWEN3), 2048),
    "llama-3-8b": (lambda: tf.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, vocab_size=128256,
                                          num_attention_heads=32, num_key_value_heads=8), 2048),
}


def rate(run: Any, vocabulary: int, sequences: int, length: int) -> "Optional[float]":
    """Tokens a second, the median of five; None: out of memory."""
    ids = torch.randint(0, vocabulary, (sequences, length), device="cuda")
    spent: List[float] = []
    try:
        for _ in range(7):  # Two to warm up.
            torch.cuda.synchronize()
            start = time.perf_counter()
            with torch.inference_mode():
                float(run(input_ids=ids, labels=ids).loss)
            torch.cuda.synchronize()
            spent.append(time.perf_counter() - start)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return sequences * length / sorted(spent[2:])[2]


def measure(name: str, end: float) -> None:
    make, length = SHAPES[name]
    config = make()
    config.use_cache = False
    with torch.device("cuda"):
        model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    for kind in ("eager", "compiled"):
        run = model if kind == "eager" else torch.compile(model)
        found: "List[Tuple[float, int]]" = []
        for sequences in (8, 16, 32):
            if time.monotonic() < end:
                tokens = rate(run, config.vocab_size, sequences, length)
                found += [(tokens, sequences)] if tokens is not None else []
        if not found:
            print(f"{name:<11} Transformers, {kind}: NOT RUN: no time or no memory")
            continue
        tokens, sequences = max(found)
        print(f"{name:<11} Transformers, {kind:<8} {tokens:10.0f} tokens/s ({sequences} x {length})", flush=True)
        print("json " + json.dumps({"peer": name, "kind": kind, "tokens_s": tokens, "sequences": sequences, "length": length}))
    del model
    torch.cuda.empty_cache()


def main() -> int:
    if not torch.cuda.is_available():
        print("no device: PyTorch sees none")
        return 77
    end = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else 120.0)
    print(f"torch {torch.__version__}, transformers {tf.__version__}, {torch.cuda.get_device_name()}")
    for name in sys.argv[2:] or SHAPES:
        if time.monotonic() < end:
            measure(name, end)
        else:
            print(f"{name:<11} Transformers: NOT RUN: no time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
