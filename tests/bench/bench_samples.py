"""What samples cost: python3 tests/bench/bench_samples.py [ROUNDS [digits|choices]], with the
programs of build/test or $EVALQ_TEST_BUILD.

Evaluates 10,000 items by turns with samples, without them, and (as the noise) without them again.
The items are MNIST digits, and questions with four answers for a GPT-2 of two layers and random
weights, which is faster than any model in use.
Evaluations are counted in processor time of the worker. Of ROUNDS (15) it prints the smallest,
because other work on the machine only adds, and the median with the quartiles."""

from __future__ import annotations

import array
import json
import os
import random
import statistics
import sys
from typing import Dict, List

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TESTS, "python"))

from scene import NATIVE, Scene, scene

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
ITEMS = 10000
DIGITS = NATIVE[NATIVE.index("    tasks:") : NATIVE.index("worker:")].replace(
    "limit: 1000", f"limit: {ITEMS}"
)
CHOICES = """    tasks:
      - name: choices
        type: multiple_choice
        data: {format: jsonl, text: $OUT/choices.jsonl, template: "{question}", choices: answers}
"""
CONFIG = "roots: {out: $OUT}\nsamples: {directory: $OUT/samples}\nworker: {devices: cpu}\nsuites:\n"
for name, task in (("digits", DIGITS), ("choices", CHOICES)):
    for kind in ("kept", "plain", "again"):
        CONFIG += f"  {name}-{kind}:\n" + ("    samples: true\n" if kind == "kept" else "") + task


def write_model(folder: str) -> None:
    """A GPT-2 of random weights whose tokens are bytes."""
    width, layers, positions = 128, 2, 64
    shapes = {
        "wte.weight": [256, width],
        "wpe.weight": [positions, width],
        "ln_f.weight": [width],
        "ln_f.bias": [width],
    }
    for i in range(layers):
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes.update(
                {f"h.{i}.{name}.weight": [rows, columns], f"h.{i}.{name}.bias": [columns]}
            )
        for name in ("ln_1", "ln_2"):
            shapes.update({f"h.{i}.{name}.weight": [width], f"h.{i}.{name}.bias": [width]})
    head, data = {}, array.array("f")
    for name, shape in shapes.items():
        begin = 4 * len(data)
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data.extend(random.gauss(0, 0.1) for _ in range(count))
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(data)]}
    text = json.dumps(head).encode()
    os.mkdir(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data.tobytes())
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 256,
        "n_embd": width,
        "n_layer": layers,
    }
    config.update(
        n_head=4,
        n_positions=positions,
        bos_token_id=0,
        eos_token_id=0,
        activation_function="gelu_new",
    )
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }
    vocab = {letters[byte]: byte for byte in range(256)}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)


def processor(pid: int) -> float:
    """Milliseconds that a process, its children and all their threads had a processor."""
    spent = 0.0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="utf-8") as file:
            spent += float(file.read().split()[0]) / 1e6
        with open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as file:
            spent += sum(processor(int(child)) for child in file.read().split())
    return spent


def evaluate(made: Scene, checkpoint: str, step: int, suite: str) -> float:
    """Milliseconds of processor time that the worker needs for the job."""
    before = processor(made.processes[0].pid)
    words = ("--run", "cost", "--step", str(step), "--suite", suite, "--wait", "--json")
    done = made.evalq("submit", checkpoint, *words)
    assert done.returncode == 0, done.stderr
    return processor(made.processes[0].pid) - before


def measure(made: Scene, name: str, checkpoint: str) -> None:
    times: Dict[str, List[float]] = {"kept": [], "plain": [], "again": []}
    for step in range(ROUNDS):
        for kind, measured in times.items():
            measured.append(evaluate(made, checkpoint, step, f"{name}-{kind}"))
    kept, plain, again = (min(times[kind]) for kind in ("kept", "plain", "again"))
    size = os.path.getsize(
        os.path.join(made.out, "samples", f"cost/0/regular/{name}-kept/{name}.jsonl.gz")
    )
    print(
        f"{name}: {plain:.1f} ms without samples ({again:.1f} ms again), {kept:.1f} ms with:"
        f" {100 * (kept / plain - 1):+.1f} %"
    )
    for kind, measured in times.items():
        low, middle, high = statistics.quantiles(measured, n=4)
        print(f"{name}: {kind}: median {middle:.1f} ms (quartiles {low:.1f} and {high:.1f})")
    print(f"{name}: {size / 1024:.0f} KiB of samples")


def main() -> None:
    with scene(CONFIG) as made:
        with open(os.path.join(made.out, "choices.jsonl"), "w", encoding="utf-8") as file:
            for i in range(ITEMS):
                answers = [str(i + k) for k in range(4)]
                file.write(
                    json.dumps({"question": f"after {i}:", "answers": answers, "label": 1}) + "\n"
                )
        model = os.path.join(made.out, "model")
        write_model(model)
        made.start_worker()
        for name, checkpoint in (
            ("digits", made.checkpoint("digits.safetensors")),
            ("choices", model),
        ):
            if name in sys.argv[2:3] or len(sys.argv) < 3:
                measure(made, name, checkpoint)


if __name__ == "__main__":
    main()
