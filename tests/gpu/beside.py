"""evalq beside Transformers on one device, of the lines that gpu_bench and peer.py left: tokens/s, how many times the peer, and the bar.

    python3 tests/gpu/beside.py LINES

LINES: a JSON object a line. Prints a row for each model and kind that both have measured, and a line that begins with json. Exit status 0,
also where a bar is missed: it says so; 77: there is nothing to compare.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, Iterator, List, Tuple

BARS = {"eager": 1.5, "compiled": 1.3}  # Up to 2 billion parameters;
LARGE = {"llama-3-8b": {"eager": 1.2, "compiled": 1.1}}


def ratios(lines: List[Dict[str, Any]]) -> Iterator[Tuple[str, str, float, float, float]]:
    """Model, kind of peer, evalq's tokens/s, the peer's, the bar. Of several measurements of one thing the last."""
    ours = {line["bench"]: float(line["tokens_s"]) for line in lines if "bench" in line and line.get("compute") == "bf16"}
    theirs = {(line["peer"], line["kind"]): float(line["tokens_s"]) for line in lines if "peer" in line}
    for (name, kind), rate in theirs.items():
        if name in ours and rate > 0:
            yield name, kind, ours[name], rate, LARGE.get(name, BARS)[kind]


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        found = list(ratios([json.loads(line) for line in file if line.strip()]))
    for name, kind, ours, theirs, bar in found:
        times = ours / theirs
        reached = "reached" if times >= bar else "missed"  # NaN is missed.
        print(f"{name:<11} {ours:10.0f} tokens/s, Transformers {kind:<8} {theirs:10.0f}: {times:.3f} times, bar {bar}: {reached}")
        print("json " + json.dumps({"beside": name, "kind": kind, "times": round(times, 3), "bar": bar, "reached": times >= bar}))
    if not found:
        print("NOT RUN: no model was measured by both")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
