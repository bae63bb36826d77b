"""bench_lm and Transformers on PyTorch in turns, by the wall clock, on all cores: tokens a second and their ratio.

    python tests/bench/beside_torch.py PROGRAM [gpt2 | qwen3 | olmo2 | olmoe [f32 | bf16 [eager | compile [ROUNDS [1x1024,4x256]]]]]

PROGRAM is bench_lm for gpt2 and qwen3, and lm_scores for olmo2 and olmoe, whose models are saved and read; `ninja bench_lm lm_scores`
makes both. Each round is one evaluation by PyTorch (every token's loss, the model warm) and one by evalq in its own process (its second
pass is timed). Needs a quiet machine. EVQ_BENCH_CLOCK=cpu: one thread, by the time that the processor gave.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import peer_lm
import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


BY_PROCESSOR = os.environ.get("EVQ_BENCH_CLOCK") == "cpu"


def clock():
    return time.process_time() if BY_PROCESSOR else time.perf_counter()


def saved_rate(program, folder, dtype, ids):
    """The same by lm_scores, of a saved model."""
    with open(os.path.join(folder, "tokens"), "w", encoding="ascii") as file:
        file.write("".join(" ".join(map(str, row)) + "\n" for row in ids.tolist()))
    words = [program, folder, file.name] + (["--bf16"] if dtype == "bf16" else []) + [f"--time={torch.get_num_threads()}"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    spent = json.loads(out.splitlines()[0])
    return ids.numel() / spent["processor_seconds" if BY_PROCESSOR else "seconds"]


def evalq_rate(program, name, dtype, sequences, length, threads):
    """Tokens a second of one evaluation by bench_lm."""
    words = [program, name, dtype, str(sequences), str(length), str(threads), "1"]
    out = subprocess.run(words, capture_output=True, text=True, check=True, env={"EVQ_BENCH_CLOCK": "wall", **os.environ}).stdout
    return float(re.search(r"model .*?([\d.]+) tok/s", out).group(1))


def compare(program, name, dtype, run, vocabulary, shape, rounds, folder):
    sequences, length = shape
    ids = torch.randint(0, vocabulary, (sequences, length))

    def once():
        start = clock()
        with torch.inference_mode():
            float(run(input_ids=ids, labels=ids).loss)
        return sequences * length / (clock() - start)

    once()
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(once())
        ours.append(
            saved_rate(program, folder, dtype, ids)
            if name in peer_lm.SAVED
            else evalq_rate(program, name, dtype, sequences, length, torch.get_num_threads()))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    print(
        f"{name} {dtype} {sequences} x {length}: PyTorch {statistics.median(theirs):.1f} ({min(theirs):.1f}-{max(theirs):.1f}), "
        f"evalq {statistics.median(ours):.1f} ({min(ours):.1f}-{max(ours):.1f}) tok/s, {ratio:.2f} times",
        flush=True,
    )


def main():
    defaults = [None, "gpt2", "f32", "eager", "3", "1x1024,4x256"]
    program, name, dtype, mode, rounds, shapes = sys.argv[1:] + defaults[len(sys.argv) - 1:]
    torch.set_num_threads(1 if BY_PROCESSOR else os.cpu_count())
    model = peer_lm.model_of(name, DTYPES[dtype])
    run = torch.compile(model) if mode == "compile" else model
    print(f"torch {torch.__version__}, {mode}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    with tempfile.TemporaryDirectory(prefix="evalq-bench-") as folder:
        if name in peer_lm.SAVED:
            model.save_pretrained(folder)
        for shape in shapes.split(","):
            compare(program, name, dtype, run, model.config.vocab_size, tuple(map(int, shape.split("x"))), int(rounds), folder)


main()
