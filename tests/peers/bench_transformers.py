"""How much longer a Trainer's training takes with EvalqCallback, and with eval_strategy="steps" by itself.

    EVALQ_TEST_BUILD=build/default .venv/bin/python tests/peers/bench_transformers.py [ROUNDS]

The training is pinned to one core, all its threads; `evalq up`, which stands for another machine, to the others. Saves are
made in all three. The order turns round with every round; the difference is that to the same round's training alone, and
medians are printed with the smallest and the largest. Wall time means little where the machine has other things to do:
beside it stands processor time, of the whole training process (client threads and the wait at the end too) and of the
thread that trains.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from typing import Any, Dict, List

from peers import Stack, needs, words

needs("torch", "transformers", "accelerate")

# A step takes 4 ms, and one is due every 1.5 s: real trainings evaluate less often.
SETTINGS = {"max_steps": 2000, "save_strategy": "steps", "save_steps": 400, "logging_steps": 400, "save_total_limit": 2}
DUE = {"eval_strategy": "steps", "eval_steps": 400}
KINDS: Dict[str, Dict[str, Any]] = {"none": {}, "evalq": {**DUE, "evalq": {"suites": "eval"}}, "steps": DUE}
CLOCKS = ("seconds", "cpu_seconds", "thread_seconds")


def train(stack: Stack, kind: str, at: int, cores: List[int]) -> Dict[str, float]:
    stack.out = os.path.join(stack.directory, f"{kind}-{at}")
    os.sched_setaffinity(0, cores[:1])
    stack.start("tiny_gpt2.py", *words(**SETTINGS, **KINDS[kind])).wait()
    outcome = stack.outcome()
    return {clock: outcome[clock] for clock in CLOCKS}


def measure(rounds: int) -> "Dict[str, List[Dict[str, float]]]":
    found: Dict[str, List[Dict[str, float]]] = {kind: [] for kind in KINDS}
    cores = sorted(os.sched_getaffinity(0))
    stack = Stack(workers=1, EVAL_BLOCKS="200")
    try:
        os.sched_setaffinity(0, cores[1:] or cores)
        stack.up()
        train(stack, "evalq", 0, cores)  # Warms caches, and the worker.
        for at in range(1, rounds + 1):
            for kind in list(KINDS) if at % 2 else list(reversed(KINDS)):
                found[kind].append(train(stack, kind, at, cores))
    finally:
        stack.close()
    return found


def main() -> None:
    os.environ["EVAL_BLOCKS"] = "200"
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    for clock in CLOCKS:
        print(f"{clock}: median (smallest to largest) of {len(found['none'])}, and more than without")
        for kind, times in found.items():
            own = [time[clock] for time in times]
            more = sorted((time / none[clock] - 1) * 100 for time, none in zip(own, found["none"]))
            print(
                f"  {kind:>5}: {statistics.median(own):7.3f} s ({min(own):.3f} to {max(own):.3f})"
                f"  {statistics.median(more):+6.2f} % ({more[0]:+.2f} to {more[-1]:+.2f})"
            )
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main()
