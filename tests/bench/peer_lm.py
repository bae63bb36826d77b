"""The peer of bench_lm: Transformers on PyTorch, a GPT-2 124M or Qwen3-0.6B of random weights, logits and mean loss.

    python tests/bench/peer_lm.py [gpt2 | qwen3 [f32 | bf16 [rounds [compile]]]]

Tries one thread and all cores, and batches of 1 x 1024, 4 x 256 and 8 x 1024 tokens; with `compile` torch.compile too. Prints the
median and the best of the rounds of each setting, by the wall clock and by the time the processor gave (EVQ_BENCH_CLOCK=cpu:
only that, with one thread, for a machine that others use too). Also torch.mm on the model's products.
"""
import os
import statistics
import sys
import time

import torch
from transformers import (
    GPT2Config, GPT2LMHeadModel, Olmo2Config, Olmo2ForCausalLM, OlmoeConfig, OlmoeForCausalLM, Qwen3Config, Qwen3ForCausalLM,
)

SHARED = dict(vocab_size=50304, hidden_size=768, num_attention_heads=12, max_position_embeddings=2048)
SAVED = {  # Models that beside_torch.py saves and lm_scores reads: about as large as GPT-2 124M.
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SHARED, num_hidden_layers=12, intermediate_size=2048)),
    "olmoe": lambda: OlmoeForCausalLM(
        OlmoeConfig(**SHARED, num_hidden_layers=8, intermediate_size=512, num_experts=16, num_experts_per_tok=4)),
}
SHAPES = [(1, 1024), (4, 256), (8, 1024)]


def model_of(name, dtype):
    torch.manual_seed(20261121)
    if name in SAVED:
        model = SAVED[name]()
    elif name == "gpt2":
        model = GPT2LMHeadModel(GPT2Config())
    else:
        model = Qwen3ForCausalLM(Qwen3Config(
            vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, tie_word_embeddings=True))
    model.config.use_cache = False
    return model.eval().to(dtype)


def clock():
    if os.environ.get("EVQ_BENCH_CLOCK") == "cpu":
        return time.process_time() / torch.get_num_threads()
    return time.perf_counter()


def time_of(call, rounds):
    call()
    spent = []
    for _ in range(rounds):
        start = clock()
        call()
        spent.append(clock() - start)
    return statistics.median(spent), min(spent)


def products(dtype, width, hidden, rounds):
    """GFLOP/s of torch.mm on one layer's products of 1024 rows."""
    best = 0.0
    for n, k in [(3 * width, width), (width, width), (hidden, width), (width, hidden)]:
        a, b = torch.randn(1024, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
        least = time_of(lambda: torch.mm(a, b.t()), rounds)[1]
        best = max(best, 2e-9 * 1024 * n * k / least)
    return best


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "gpt2"
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[sys.argv[2] if len(sys.argv) > 2 else "f32"]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    compiled = len(sys.argv) > 4 and sys.argv[4] == "compile"
    threads = [1] if os.environ.get("EVQ_BENCH_CLOCK") == "cpu" else sorted({1, os.cpu_count()})
    model = model_of(name, dtype)
    run = torch.compile(model) if compiled else model
    best = 0.0
    print(f"torch {torch.__version__}, {name} {dtype}, {'compiled' if compiled else 'eager'}, "
          f"{torch.backends.cpu.get_cpu_capability()}")
    for count in threads:
        torch.set_num_threads(count)
        for sequences, length in SHAPES:
            ids = torch.randint(0, model.config.vocab_size, (sequences, length))

            def once():
                with torch.inference_mode():
                    return float(run(input_ids=ids, labels=ids).loss)

            middle, least = time_of(once, rounds)
            tokens = sequences * length
            best = max(best, tokens / least)
            print(f"  threads {count}, {sequences} x {length}: median {tokens / middle:8.1f} tok/s, "
                  f"best {tokens / least:8.1f} tok/s", flush=True)
        rate = products(dtype, model.config.hidden_size, 3072, 5)
        print(f"  threads {count}, torch.mm best {rate:.1f} GFLOP/s", flush=True)
    print(f"best of all settings: {best:.1f} tok/s")


if __name__ == "__main__":
    main()
