"""A third opinion on what `compare --dump DIRECTORY` wrote: the same plans in float64 on PyTorch.

    python tests/gpu/torch_check.py DIRECTORY

The mean loss in fp32 (device and CPU backend) must be within 1e-5 of it, in bf16 within 1e-3. Exit status 1: one is not.
"""

from __future__ import annotations

import glob
import json
import math
import os
import sys
from typing import Any, Dict, List

import torch

ACTIVATIONS = {
    "none": lambda x: x,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
BARS = {"cpu": 1e-5, "fp32": 1e-5, "bf16": 1e-3}


class Model:
    def __init__(self, path: str, device: str) -> None:
        with open(path + ".json", encoding="utf-8") as file:
            self.plan: Dict[str, Any] = json.load(file)
        values = torch.from_file(path + ".bin", size=sum(r * c for r, c in self.plan["slots"]), dtype=torch.float32)
        parts = values.split([r * c for r, c in self.plan["slots"]])
        shapes = self.plan["slots"]
        self.weights = [p.reshape(r, c).to(device, torch.float64) for p, (r, c) in zip(parts, shapes)]
        self.device = device
        self.tokens = self.index("tokens")
        starts = self.plan["starts"]
        self.spans = list(zip(starts, starts[1:]))
        self.positions = torch.cat([torch.arange(end - start) for start, end in self.spans]).to(device)
        rows = len(self.tokens)
        self.buffers = [torch.zeros(rows, n, dtype=torch.float64, device=device) for n in self.plan["columns"]]
        self.losses = torch.empty(0)

    def index(self, name: str) -> torch.Tensor:
        return torch.tensor(self.plan[name], dtype=torch.long, device=self.device)

    def vector(self, slot: int) -> "torch.Tensor | float":
        return self.weights[slot][0] if slot >= 0 else 0.0

    def heads(self, op: Dict[str, Any]) -> torch.Tensor:
        """A view of the range of heads, [rows, heads, n]."""
        end = op["column"] + op["heads"] * op["n"]
        return self.buffers[op["in"]][:, op["column"]:end].unflatten(1, (op["heads"], op["n"]))

    def gemm(self, op: Dict[str, Any]) -> None:
        out = self.buffers[op["in"]][:, : op["k"]] @ self.weights[op["weight"]].T + self.vector(op["bias"])
        out = ACTIVATIONS[op["activation"]](out)
        if op["residual"]:
            out = out + self.buffers[op["residual"]][:, : op["n"]]
        self.buffers[op["out"]][:, : op["n"]] = out

    def embedding(self, op: Dict[str, Any]) -> None:
        out = op["scale"] * self.weights[op["weight"]][self.tokens]
        if op["bias"] >= 0:
            out = out + self.weights[op["bias"]][self.positions]
        self.buffers[op["out"]][:, : op["n"]] = out

    def layer_norm(self, op: Dict[str, Any]) -> None:
        x = self.buffers[op["in"]][:, : op["n"]]
        scale, shift = self.weights[op["weight"]][0], self.weights[op["bias"]][0]
        out = torch.nn.functional.layer_norm(x, (op["n"],), scale, shift, op["epsilon"])
        self.buffers[op["out"]][:, : op["n"]] = out

    def rms_norm(self, op: Dict[str, Any]) -> None:
        x = self.heads(op)
        out = x / torch.sqrt(x.square().mean(-1, keepdim=True) + op["epsilon"]) * self.weights[op["weight"]][0]
        end = op["column"] + op["heads"] * op["n"]
        self.buffers[op["out"]][:, op["column"]:end] = out.flatten(1)

    def rope(self, op: Dict[str, Any]) -> None:
        x = self.heads(op)
        frequencies = torch.tensor(self.plan["frequencies"], dtype=torch.float32, device=self.device)
        angles = (self.positions.float()[:, None] * frequencies).double()  # In fp32, as the models' own code.
        cos, sin = torch.cos(angles)[:, None] * op["scale"], torch.sin(angles)[:, None] * op["scale"]
        a, b = x.chunk(2, dim=-1)
        x.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1))

    def attention(self, op: Dict[str, Any]) -> None:
        n, heads, shared = op["n"], op["heads"], op["kv_heads"]
        joined = self.buffers[op["in"]].unflatten(1, (heads + 2 * shared, n))
        for start, end in self.spans:
            q, k, v = joined[start:end].split([heads, shared, shared], dim=1)
            k, v = (t.repeat_interleave(heads // shared, dim=1) for t in (k, v))
            logits = torch.einsum("ihd,jhd->hij", q, k) * op["scale"]
            i = torch.arange(end - start, device=self.device)
            hidden = i[None, :] > i[:, None]
            if op["window"]:
                hidden |= i[None, :] <= i[:, None] - op["window"]
            weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
            self.buffers[op["out"]][start:end] = torch.einsum("hij,jhd->ihd", weights, v).flatten(1)

    def gate(self, op: Dict[str, Any]) -> None:
        x = self.buffers[op["in"]]
        n = op["n"]
        self.buffers[op["out"]][:, :n] = ACTIVATIONS[op["activation"]](x[:, :n]) * x[:, n : 2 * n]

    def score(self, op: Dict[str, Any]) -> None:
        x = self.buffers[op["in"]][self.index("score_rows"), : op["k"]]
        logits = x @ self.weights[op["weight"]].T + self.vector(op["bias"])
        self.losses = torch.nn.functional.cross_entropy(logits, self.index("score_targets"), reduction="none")

    def run(self) -> torch.Tensor:
        for op in self.plan["ops"]:
            getattr(self, op["kind"])(op)
        return self.losses


def check(path: str, device: str) -> "List[str]":
    model = Model(path, device)
    with torch.inference_mode():
        exact = model.run().mean().item()
    faults = []
    found = []
    for name, bar in BARS.items():
        if name in model.plan:
            apart = abs(sum(model.plan[name]) / len(model.plan[name]) - exact)
            found.append(f"{name} {apart:.2g}")
            if not apart <= bar:
                faults.append(f"{name} is {apart:.3g} from float64, expected at most {bar:g}")
    name = os.path.basename(path)
    print(f"{'FAIL' if faults else 'ok  '} PyTorch in float64, {name}: mean loss {exact:.6f}, apart: {', '.join(found)}")
    print("json " + json.dumps({"test": f"PyTorch in float64, {name}", "cases": len(found), "failed": len(faults)}))
    return faults


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    paths = sorted(glob.glob(os.path.join(sys.argv[1], "*.json")))
    if not paths:
        print(f"FAIL no models in '{sys.argv[1]}'")
        return 1
    print(f"torch {torch.__version__} on {device}")
    faults = [fault for path in paths for fault in check(path[: -len(".json")], device)]
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
