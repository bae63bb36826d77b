"""Every row of the queue, as one table and as JSON.

    python3 tests/bench/table.py [--quick] [--json FILE] [GROUP...]

Groups: submit verbs idle depth start noop speedup visible child worker redis logger; all without any. The whole form takes the median of
three rounds, in turns, the quick form one. EVALQ_TEST_BUILD: the build. Ends with 0 also where a bar is missed: it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from typing import Dict, List

import rows_queue
import rows_worker
from figures import HERE, Figure, Options

GROUPS = {**rows_queue.GROUPS, **rows_worker.GROUPS}
ONCE = ("submit", "verbs", "depth", "speedup", "worker", "child", "redis")  # Long, or with rounds of their own: one round.


def machine() -> Dict[str, object]:
    model = "unknown"
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    redis = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout.split()
    return {
        "processor": model,
        "processors": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "redis": next((word[2:] for word in redis if word.startswith("v=")), "unknown"),
    }


def commit() -> str:
    said = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def measure(groups: List[str], options: Options) -> Dict[str, List[Figure]]:
    figures: Dict[str, Dict[str, Figure]] = {group: {} for group in groups}
    for turn in range(options.rounds):
        for group in groups:
            if turn > 0 and group in ONCE:
                continue
            began = time.monotonic()
            for said in GROUPS[group](options):
                one = figures[group].setdefault(said.row, Figure(said.row, said.unit, said.n, said.bar))
                one.values.append(said.value)
            load = os.getloadavg()[0]
            print(f"# round {turn + 1}, {group}: {time.monotonic() - began:.0f} s, load {load:.1f}", flush=True)
    return {group: list(found.values()) for group, found in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default=os.path.join(HERE, "..", "..", "build", "bench", "results.json"))
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    words = parser.parse_args()
    for group in words.groups:
        if group not in GROUPS:
            parser.error(f"no group '{group}', expected some of: {' '.join(GROUPS)}")
    loads = [os.getloadavg()[0]]
    about = {"commit": commit(), "machine": machine(), "date": time.strftime("%Y-%m-%d"), "quick": words.quick}
    found = measure(words.groups or list(GROUPS), Options(words.quick))
    loads.append(os.getloadavg()[0])
    print(f"\n{about['commit']}, {about['machine']}, load {loads[0]:.1f} to {loads[1]:.1f}, AOF as each row says")
    print(f"{'':76} {'median':>10} {'':9} {'spread':>20} {'n':>8} {'bar':>9}")
    records = []
    for figures in found.values():
        for one in figures:
            print(one.line())
            records.append(
                {
                    "row": one.row,
                    "value": one.median,
                    "unit": one.unit,
                    "median": one.median,
                    "spread": [min(one.values), max(one.values)],
                    "rounds": len(one.values),
                    "n": one.n,
                    "bar": one.bar or None,
                    "reached": one.reached(),
                }
            )
    os.makedirs(os.path.dirname(os.path.abspath(words.json)), exist_ok=True)
    with open(words.json, "w", encoding="utf-8") as file:
        json.dump({**about, "load": loads, "rows": records}, file, indent=1)
    barred = [each for each in records if each["bar"]]
    print(f"{sum(bool(each['reached']) for each in barred)} of {len(barred)} bars reached; {os.path.relpath(words.json)}")


if __name__ == "__main__":
    main()
