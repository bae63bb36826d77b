"""Tests how tests/gpu/beside.py evaluates the output of gpu_bench and peer.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Tuple

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu", "beside.py")


def ours(name: str, rate: float, compute: str = "bf16") -> Dict[str, Any]:
    return {"bench": name, "compute": compute, "tokens_s": rate}


def theirs(name: str, kind: str, rate: float) -> Dict[str, Any]:
    return {"peer": name, "kind": kind, "tokens_s": rate}


def beside(*lines: Dict[str, Any]) -> Tuple[int, List[Dict[str, Any]]]:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".lines") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        done = subprocess.run([sys.executable, SCRIPT, file.name], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("json ")]


class GpuBesideTest(unittest.TestCase):
    def test_each_kind_has_its_bar_and_a_large_model_others(self) -> None:
        code, found = beside(
            {"backend": "cuda", "device": "one"}, {"bench": "of something else", "milliseconds": 5}, ours("gpt2-124m", 1499), ours("llama-3-8b", 1100),
            theirs("gpt2-124m", "eager", 1000), theirs("gpt2-124m", "compiled", 1000), theirs("llama-3-8b", "compiled", 1000),
        )  # fmt: skip
        self.assertEqual(code, 0)
        self.assertEqual([(line["beside"], line["kind"], line["reached"]) for line in found],
                         [("gpt2-124m", "eager", False), ("gpt2-124m", "compiled", True), ("llama-3-8b", "compiled", True)])

    def test_a_rate_that_is_no_number_reaches_nothing(self) -> None:
        _, found = beside(ours("gpt2-124m", float("nan")), theirs("gpt2-124m", "eager", 1000))
        self.assertEqual([line["reached"] for line in found], [False])

    def test_what_only_one_has_measured_or_in_fp32_is_not_compared(self) -> None:
        code, found = beside(ours("qwen3-0.6b", 9000, "fp32"), theirs("qwen3-0.6b", "eager", 1000), ours("gpt2-124m", 9000))
        self.assertEqual((code, found), (77, []))


if __name__ == "__main__":
    unittest.main()
