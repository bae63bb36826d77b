"""evalq's tokenizers beside Hugging Face `tokenizers`, one thread each, taking turns on the same documents of 64 KiB.

    bench_tokenizers.py [--rounds N] [--text FILE] [GPT2_DIRECTORY]

Vocabularies of 32,000 tokens are trained on the text with the settings of the tokenizers people use; GPT2_DIRECTORY adds GPT-2's
own (vocab.json, merges.txt). The peer's time is of encode_batch_fast, its fastest call, without offsets. Prints medians
of processor time: other work on the machine counts for neither.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import List, Tuple

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "data"), os.path.join(HERE, "..", "peers")]

import random  # noqa: E402

import make_tokenizers  # noqa: E402
import test_tokenizer  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

BENCH = os.path.join(test_tokenizer.peers.BIN, "bench_tokenizer")
DOCUMENT = 65536


def our_round(directory: str, path: str) -> Tuple[float, int]:
    """The second of two runs in one process: the first warms the cache, as the peer's earlier rounds warm its own."""
    done = subprocess.run([BENCH, directory, path, "2", str(DOCUMENT)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    seconds, tokens = done.stdout.split()[-2:]
    return float(seconds), int(tokens)


def their_round(tokenizer: Tokenizer, documents: List[str]) -> Tuple[float, int]:
    start = time.process_time()
    encodings = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
    seconds = time.process_time() - start
    return seconds, sum(len(encoding) for encoding in encodings)


def compare(name: str, tokenizer: Tokenizer, directory: str, path: str, rounds: int) -> None:
    with open(path, "rb") as file:
        data = file.read()
    documents = [data[i : i + DOCUMENT].decode("utf-8", "replace") for i in range(0, len(data), DOCUMENT)]
    their_round(tokenizer, documents)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(our_round(directory, path))
        theirs.append(their_round(tokenizer, documents))
    assert ours[0][1] == theirs[0][1], (ours[0], theirs[0])
    mine, other = statistics.median(s for s, _ in ours), statistics.median(s for s, _ in theirs)
    print(f"{name:14} {os.path.basename(path):22} {len(data) / 1e6:6.2f} MB {ours[0][1]:>9} tokens   evalq {len(data) / mine / 1e6:7.1f} MB/s"
          f"   tokenizers {len(data) / other / 1e6:6.2f} MB/s   {other / mine:5.1f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", action="append")
    parser.add_argument("gpt2", nargs="?")
    arguments = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, one thread; seed {test_tokenizer.SEED}")
    with tempfile.TemporaryDirectory(prefix="evalq-bench-") as directory:
        mixed = os.path.join(directory, "mixed")
        with open(mixed, "wb") as file:
            file.write(test_tokenizer.mixed(random.Random(test_tokenizer.SEED)))
        texts = (arguments.text or [os.path.join(HERE, "..", "data", "tinyshakespeare.txt")]) + [mixed]
        if arguments.gpt2:
            made = os.path.join(directory, "gpt2-original")
            original = make_tokenizers.original(arguments.gpt2, made)
            for text in texts:
                compare("gpt2 original", original, made, text, arguments.rounds)
        with open(mixed, "rb") as file:
            lines = [line for line in file.read().decode("utf-8", "replace").split("\n") if "\0" not in line]
        for kind in ("llama3", "qwen2", "llama2", "mistral"):
            tokenizer = make_tokenizers.build(kind, lines, 32000)
            made = make_tokenizers.save(kind, tokenizer, os.path.join(directory, kind))
            for text in texts:
                compare(kind, tokenizer, made, text, arguments.rounds)


if __name__ == "__main__":
    main()
