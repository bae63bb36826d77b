"""How long the load of a cold checkpoint takes when it was read ahead while the job before it ran, and when not.

One worker with one slot; a command that waits at its gate, then a perceptron of some 500 MB evicted from the page cache
(POSIX_FADV_DONTNEED) before the worker starts. Prints load_us of its result, with worker.read_ahead_bytes and without, in
turn. EVALQ_TEST_BUILD: the build.
    python3 tests/bench/bench_ahead.py [ROUNDS]
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import scene as scenes  # noqa: E402

WIDTHS = [784, 8192, 14000, 10]
SAMPLES = 64
CONFIG = """
roots: {out: $OUT}
worker: {slots: 1, devices: cpu, read_ahead_bytes: %s}
evaluators:
  gate: {kind: command, command: [$OUT/gate.sh]}
suites:
  gate: {evaluator: gate, tasks: [{name: t, type: any}]}
  big:
    tasks:
      - {name: t, type: classification, model: {activation: relu},
         data: {format: idx, inputs: $OUT/images, labels: $OUT/labels}}
"""
GATE = """#!/bin/sh
touch %s/started
while [ ! -e %s/go ]; do sleep 0.01; done
echo '{"one": 1}' > "$EVALQ_RESULT"
"""


def write_weights(path: str) -> None:
    header, at = {}, 0
    for i, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        for name, shape in ((f"fc{i + 1}.weight", [outputs, inputs]), (f"fc{i + 1}.bias", [outputs])):
            size = 4
            for extent in shape:
                size *= extent
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = struct.pack("<65536f", *(random.uniform(-0.01, 0.01) for _ in range(65536)))
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, at, len(block)):
            file.write(block[: at - start])
        file.flush()
        os.fsync(file.fileno())


def evict(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def load_ms(ahead: bool) -> tuple[float, str]:
    with scenes.scene(CONFIG % ("2GiB" if ahead else "0")) as scene:
        evalq = lambda *words: subprocess.run(  # noqa: E731
            [os.path.join(scenes.BIN, "evalq"), *words], env=scene.environment(), check=True, capture_output=True
        ).stdout
        with open(scene.out + "/images", "wb") as file:
            file.write(struct.pack(">4I", 0x803, SAMPLES, 28, 28) + random.randbytes(SAMPLES * 784))
        with open(scene.out + "/labels", "wb") as file:
            file.write(struct.pack(">2I", 0x801, SAMPLES) + bytes(i % 10 for i in range(SAMPLES)))
        with open(scene.out + "/gate.sh", "w", encoding="utf-8") as file:
            file.write(GATE % (scene.out, scene.out))
        os.chmod(scene.out + "/gate.sh", 0o755)
        scene.checkpoint("step-1.safetensors")
        big = scene.out + "/step-2.safetensors"
        write_weights(big)
        evalq("submit", scene.out + "/step-1.safetensors", "--run", "a", "--suite", "gate", "--priority", "urgent")
        evalq("submit", big, "--run", "b", "--suite", "big")
        evict(big)
        scene.start_worker()
        scenes.until(lambda: os.path.exists(scene.out + "/started"), "the first job runs")
        took = ""
        if ahead:
            found = scenes.until(
                lambda: re.search(r"prefetch job=\S+ ms=(\d+) outcome=done", scene.log("evalq-worker")), "it is read ahead"
            )
            took = found.group(1)
        open(scene.out + "/go", "w").close()
        evalq("wait", "b", "--timeout", "120")
        text = evalq("results", "b", "--json").decode()
        return int(re.search(r'"load_us": *(\d+)', text).group(1)) / 1000, took


def main() -> None:
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        without, _ = load_ms(False)
        with_it, took = load_ms(True)
        print(f"load {without:.0f} ms without, {with_it:.0f} ms with; read ahead in {took} ms", flush=True)


main()
