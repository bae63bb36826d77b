"""From submit over claim to the published result of tiny models, one after another on one warm slot.

A worker with one CPU slot and Redis on a unix socket, no AOF. Each job is a new file of the same tiny weights: the trained MNIST
perceptron (784-512-128-32-10) over 64 images, and a GPT-2 of 7,500 parameters over five tokens. Redis' own MONITOR stamps each
call's arrival: `submit` to `claim` (of an idle worker that waits), `claim` to `publish`, `submit` to `publish`. The first job of
each suite, which starts the child, is left out. EVALQ_TEST_BUILD: the build.
    python3 tests/bench/bench_tiny.py [JOBS]
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import statistics
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import scene as scenes  # noqa: E402

GPT2 = os.path.join(scenes.SOURCE, "tests", "data", "models", "gpt2")
CONFIG = """
roots: {out: $OUT}
worker: {slots: 1, devices: cpu}
suites:
  mlp:
    tasks:
      - {name: t, type: classification, model: {activation: relu},
         data: {format: idx, inputs: $OUT/images, labels: $OUT/labels}}
  gpt2: {tasks: [{name: t, type: perplexity, length: 4, data: {format: tokens, tokens: $OUT/tokens.bin, dtype: u16}}]}
"""
CALL = re.compile(r'^\+?(\d+\.\d+) \[.*?\] "FCALL" "evalq_v1_(submit_batch|claim|publish|complete_claim)"')


class Monitor:
    """The stamps (s) of the calls in the order of their arrival."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(60)
        self.socket.sendall(b"MONITOR\r\n")
        self.lines = self.socket.makefile("r", encoding="utf-8", errors="replace")
        self.lines.readline()

    def job(self) -> dict[str, float]:
        """One job's life, until the worker is idle again: the last claim before its publish is the one that took it."""
        stamps: dict[str, float] = {}
        while "complete_claim" not in stamps:
            found = CALL.match(self.lines.readline())
            if found:
                stamps[found.group(2)] = float(found.group(1))
        return stamps


def write_data(out: str) -> None:
    with open(out + "/images", "wb") as file:
        file.write(struct.pack(">4I", 0x803, 64, 28, 28) + bytes(i % 251 for i in range(64 * 784)))
    with open(out + "/labels", "wb") as file:
        file.write(struct.pack(">2I", 0x801, 64) + bytes(i % 10 for i in range(64)))
    with open(out + "/tokens.bin", "wb") as file:
        file.write(struct.pack("<5H", 1, 2, 3, 4, 5))


def checkpoint(scene: scenes.Scene, suite: str, step: int) -> str:
    if suite == "mlp":
        return scene.checkpoint(f"mlp-{step}.safetensors")
    return str(shutil.copytree(GPT2, f"{scene.out}/gpt2-{step}"))


def measure(suite: str, jobs: int) -> None:
    spans: dict[str, list[float]] = {"submit to claim": [], "claim to publish": [], "submit to publish": []}
    with scenes.scene(CONFIG) as scene:
        scene.redis_call("CONFIG", "SET", "appendonly", "no")
        write_data(scene.out)
        paths = [checkpoint(scene, suite, step) for step in range(jobs + 1)]
        scene.start_worker()
        monitor = Monitor(scene.socket)
        with scene.client("tiny") as client:
            for step, path in enumerate(paths):
                client.submit(path, step=step, suites=[suite])
                stamps = monitor.job()
                if step == 0:
                    continue
                spans["submit to claim"].append(stamps["claim"] - stamps["submit_batch"])
                spans["claim to publish"].append(stamps["publish"] - stamps["claim"])
                spans["submit to publish"].append(stamps["publish"] - stamps["submit_batch"])
    for name, seconds in spans.items():
        seconds.sort()
        print(
            f"{suite:5} {name:18} p50 {1e3 * statistics.median(seconds):6.2f} ms   p95 {1e3 * seconds[int(0.95 * len(seconds))]:6.2f}"
            f"   p99 {1e3 * seconds[int(0.99 * len(seconds))]:6.2f}   max {1e3 * seconds[-1]:6.2f}   of {len(seconds)}",
            flush=True,
        )


def main() -> None:
    for suite in ("mlp", "gpt2"):
        measure(suite, int(sys.argv[1]) if len(sys.argv) > 1 else 200)


main()
