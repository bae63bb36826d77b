"""What PyTorch's own attention takes on this GPU, for the shapes of gpu_bench: milliseconds for all layers of a batch of 32,768 tokens.

    python tests/gpu/torch_attention.py

cuDNN's and FlashAttention's, in bf16 and causal; the median of 30 calls. To be held against `gpu_bench --parts 1`.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Tuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Sequences, heads, heads of keys, length, values of a head, layers.
SHAPES: Dict[str, Tuple[int, int, int, int, int, int]] = {
    "gpt2-124m": (32, 12, 12, 1024, 64, 12),
    "gpt2-1.5b": (32, 25, 25, 1024, 64, 48),
    "qwen3-0.6b": (16, 16, 8, 2048, 128, 28),
    "llama-3-8b": (16, 32, 8, 2048, 128, 32),
}
CALLS = 30


def milliseconds(call: Any) -> float:
    for _ in range(5):
        call()
    spent = []
    for _ in range(CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        spent.append(start.elapsed_time(end))
    return float(sorted(spent)[CALLS // 2])


def main() -> int:
    if not torch.cuda.is_available():
        print("no device: PyTorch sees none")
        return 77
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    for name, (sequences, heads, shared, length, size, layers) in SHAPES.items():
        q = torch.randn(sequences, heads, length, size, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(sequences, shared, length, size, device="cuda", dtype=torch.bfloat16)
        v = torch.randn_like(k)
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            with sdpa_kernel(backend):
                spent = milliseconds(
                    lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != shared)
                )
            print(f"{name:<11} {backend.name:<16} {spent * layers:8.2f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
