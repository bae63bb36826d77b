"""bench_lm and Transformers on PyTorch in turns, by the wall clock, on all cores: tokens a second and their ratio.

    python tests/bench/beside_torch.py BENCH_LM [gpt2 | qwen3 [f32 | bf16 [eager | compile [ROUNDS [1x1024,4x256]]]]]

BENCH_LM is the program that `ninja bench_lm` makes. Each round is one evaluation by PyTorch (every token's loss, the model warm) and one
by evalq in its own process (its second pass is timed). Needs a quiet machine.
"""
import os
import re
import statistics
import subprocess
import sys
import time

import peer_lm
import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def evalq_rate(program, name, dtype, sequences, length, threads):
    """Tokens a second of one evaluation by bench_lm."""
    words = [program, name, dtype, str(sequences), str(length), str(threads), "1"]
    out = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ, EVQ_BENCH_CLOCK="wall")).stdout
    return float(re.search(r"model .*?([\d.]+) tok/s", out).group(1))


def compare(program, name, dtype, run, vocabulary, shape, rounds):
    sequences, length = shape
    ids = torch.randint(0, vocabulary, (sequences, length))

    def once():
        start = time.perf_counter()
        with torch.inference_mode():
            float(run(input_ids=ids, labels=ids).loss)
        return sequences * length / (time.perf_counter() - start)

    once()
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(once())
        ours.append(evalq_rate(program, name, dtype, sequences, length, torch.get_num_threads()))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    print(
        f"{name} {dtype} {sequences} x {length}: PyTorch {statistics.median(theirs):.1f} ({min(theirs):.1f}-{max(theirs):.1f}), "
        f"evalq {statistics.median(ours):.1f} ({min(ours):.1f}-{max(ours):.1f}) tok/s, {ratio:.2f} times",
        flush=True,
    )


def main():
    defaults = [None, "gpt2", "f32", "eager", "3", "1x1024,4x256"]
    program, name, dtype, mode, rounds, shapes = sys.argv[1:] + defaults[len(sys.argv) - 1:]
    torch.set_num_threads(os.cpu_count())
    model = peer_lm.model_of(name, DTYPES[dtype])
    run = torch.compile(model) if mode == "compile" else model
    print(f"torch {torch.__version__}, {mode}, {os.cpu_count()} threads, {torch.backends.cpu.get_cpu_capability()}")
    for shape in shapes.split(","):
        compare(program, name, dtype, run, model.config.vocab_size, tuple(map(int, shape.split("x"))), int(rounds))


main()
