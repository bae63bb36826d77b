"""A GPT-2 with random weights in bf16, in the files and by the names that Transformers saves. The standard library alone.

    python3 tests/gpu/random_gpt2.py DIRECTORY SEED [LAYERS WIDTH HEADS VOCABULARY POSITIONS]

Without numbers it is GPT-2 124M. Weights repeat with a prime period: who reads them all has as much to do as with others.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from typing import Dict, Iterator, Tuple

PERIOD = 100_003
GPT2_124M = (12, 768, 12, 50257, 1024)


def tensors(layers: int, width: int, vocabulary: int, positions: int) -> "Iterator[Tuple[str, Tuple[int, ...]]]":
    """Names and shapes, in the order of the file."""
    yield "transformer.wte.weight", (vocabulary, width)
    yield "transformer.wpe.weight", (positions, width)
    for layer in range(layers):
        for norm in ("ln_1", "ln_2"):
            yield f"transformer.h.{layer}.{norm}.weight", (width,)
            yield f"transformer.h.{layer}.{norm}.bias", (width,)
        for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            yield f"transformer.h.{layer}.{name}.weight", (rows * width, columns * width)
            yield f"transformer.h.{layer}.{name}.bias", (columns * width,)
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)


def values(seed: int) -> bytes:
    """One period: fp32 cut to its upper half."""
    source = random.Random(seed)
    return b"".join(struct.pack("<f", source.gauss(0.0, 0.02))[2:] for _ in range(PERIOD))


def write(directory: str, seed: int, shape: "Tuple[int, int, int, int, int]") -> None:
    layers, width, heads, vocabulary, positions = shape
    header: "Dict[str, object]" = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, sizes in tensors(layers, width, vocabulary, positions):
        count = 2
        for size in sizes:
            count *= size
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    period = values(seed)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(end // len(period)):
            file.write(period)
        file.write(period[: end % len(period)])
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_embd": width, "n_head": heads,
                   "vocab_size": vocabulary, "n_positions": positions, "activation_function": "gelu_new",
                   "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}, file)


def main() -> int:
    numbers = [int(word) for word in sys.argv[3:]] or list(GPT2_124M)
    if len(sys.argv) < 3 or len(numbers) != len(GPT2_124M):
        print(__doc__, file=sys.stderr)
        return 2
    write(sys.argv[1], int(sys.argv[2]), (numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
