"""Classification of texts by evalq-worker and by Transformers on PyTorch, in turns: texts a second and their ratio.

    python tests/bench/beside_torch_texts.py EVALQ_WORKER [ROUNDS [TEXTS]]

A BERT as large as bert-base with random weights reads texts of 8 to 128 tokens in fp32. PyTorch takes batches of 32, padded to
their longest text, as a Trainer evaluates. Both times are those of the last three quarters of the texts, so that loading and warming
up do not count. By the processor's time, PyTorch on one thread, because other programs may run: EVQ_BENCH_CLOCK=wall is for a quiet machine.
"""
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from transformers import BertConfig, BertForSequenceClassification

BY_WALL = os.environ.get("EVQ_BENCH_CLOCK") == "wall"
BATCH = 32
SUITE = """
roots: {{here: .}}
suites:
  texts:
    tasks:
      - {{name: t, type: text_classification, data: {{format: tokens, tokens: tokens.npy, mask: mask.npy, labels: labels.npy, limit: {limit}}}}}
"""


def clock(who=resource.RUSAGE_SELF):
    spent = resource.getrusage(who)
    return time.perf_counter() if BY_WALL else spent.ru_utime + spent.ru_stime


def theirs(model, tokens, mask, labels):
    lengths = mask.sum(1)
    start = clock()
    with torch.inference_mode():
        for at in range(0, len(tokens), BATCH):
            longest = int(lengths[at:at + BATCH].max())
            rows = slice(at, at + BATCH)
            float(model(input_ids=tokens[rows, :longest], attention_mask=mask[rows, :longest], labels=labels[rows]).loss)
    return len(tokens) / (clock() - start)


def ours(worker, folder, quarter, count):
    spent = []
    for limit in (quarter, count):
        with open(os.path.join(folder, "evalq.yaml"), "w", encoding="ascii") as file:
            file.write(SUITE.format(limit=limit))
        start = clock(resource.RUSAGE_CHILDREN)
        subprocess.run([worker, "eval", "model", "--config", "evalq.yaml", "--suite", "texts"], cwd=folder, check=True, capture_output=True)
        spent.append(clock(resource.RUSAGE_CHILDREN) - start)
    return (count - quarter) / (spent[1] - spent[0])


def main():
    worker, rounds, count = sys.argv[1:] + ["3", "512"][len(sys.argv) - 2:]
    count, quarter = int(count), int(count) // 4
    torch.manual_seed(20261126)
    torch.set_num_threads(os.cpu_count() if BY_WALL else 1)
    model = BertForSequenceClassification(BertConfig()).eval()
    lengths = torch.randint(8, 129, (count,))
    mask = (torch.arange(128)[None] < lengths[:, None]).long()
    tokens, labels = torch.randint(999, 30000, (count, 128)) * mask, torch.randint(0, 2, (count,))
    with tempfile.TemporaryDirectory(prefix="evalq-bench-") as folder:
        model.save_pretrained(os.path.join(folder, "model"))
        for name, values in (("tokens", tokens), ("mask", mask), ("labels", labels)):
            numpy.save(os.path.join(folder, name + ".npy"), values.numpy())
        rates = []
        for _ in range(int(rounds)):
            rates.append((theirs(model, tokens[quarter:], mask[quarter:], labels[quarter:]), ours(os.path.abspath(worker), folder, quarter, count)))
            print(f"  PyTorch {rates[-1][0]:.1f}, evalq {rates[-1][1]:.1f} texts/s", flush=True)
    print(f"torch {torch.__version__}, bert-base, {count} texts of 8 to 128 tokens: evalq {statistics.median(b / a for a, b in rates):.2f} times")


main()
