"""What comparing two checkpoints costs: python3 tests/bench/bench_compare.py [ROUNDS], with the
program of build/test or $EVALQ_TEST_BUILD. It needs no Redis.

Compares two tasks of 10,000 items with two scores each, whose outputs have one letter or 1,000
letters of English.
Prints the median and the smallest of ROUNDS (9) by the clock and in processor time. On a busy
machine, `chrt -f 1 python3 ...` keeps other programs from taking the processor."""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import List, Tuple

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TESTS, "python"))

from samples_file import write_samples
from scene import BIN

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 9
ITEMS = 10000
with open(os.path.join(TESTS, "data", "tinyshakespeare.txt"), encoding="utf-8") as source:
    TEXT = source.read()


def make_samples(folder: str, step: int, task: str, letters: int) -> None:
    """As a worker writes them: one JSON object a line, without spaces."""
    job = f"cost/{step}/regular/suite"
    header = {"evalq_samples": 2, "job": job, "task": task, "suite_digest": "0" * 32}
    header.update(data_digest="", weighted="")
    os.makedirs(os.path.join(folder, "samples", job), exist_ok=True)
    rng = random.Random(f"{step} {task}")
    path = os.path.join(folder, "samples", job, task + ".jsonl.gz")
    lines = []
    for number in range(ITEMS):
        item = {"id": f"{number}-{number * 2654435761 % 2**64:016x}"}
        item.update(scores={"accuracy": rng.random() < 0.7, "loss": rng.random()})
        begin = rng.randrange(len(TEXT) - letters)
        item.update(output=TEXT[begin : begin + letters], target="1")
        lines.append(json.dumps(item, separators=(",", ":")) + "\n")
    write_samples(path, json.dumps(header, separators=(",", ":")) + "\n", lines)


def compare(folder: str, *words: str) -> Tuple[float, float]:
    """Seconds by the clock and of processor time."""
    argv = [os.path.join(BIN, "evalq"), "compare", "cost@1", "cost@2", "--json", *words]
    argv += ["--config", os.path.join(folder, "evalq.yaml")]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ended - began, spent


def measure(name: str, folder: str, *words: str) -> None:
    found: List[Tuple[float, float]] = [compare(folder, *words) for _ in range(ROUNDS)]
    parts = []
    for what, times in zip(("clock", "processor"), zip(*found)):
        parts.append(f"{what} {statistics.median(times):.3f} s (smallest {min(times):.3f})")
    print(f"{name}: {', '.join(parts)}", flush=True)


def main() -> None:
    for letters in (1, 1000):
        with tempfile.TemporaryDirectory(prefix="evalq-bench-") as folder:
            for step in (1, 2):
                for task in ("first", "second"):
                    make_samples(folder, step, task, letters)
            with open(os.path.join(folder, "evalq.yaml"), "w", encoding="utf-8") as file:
                file.write("roots: {here: .}\nsamples: {directory: samples}\n")
            measure(f"outputs of {letters} letters", folder)
            if letters == 1:
                measure("the same with --bootstrap", folder, "--bootstrap")


if __name__ == "__main__":
    main()
