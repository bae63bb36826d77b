"""How much longer a Trainer's training takes with EvalqCallback, and with eval_strategy="steps" by itself.

    EVALQ_TEST_BUILD=build/default .venv/bin/python tests/peers/bench_transformers.py [ROUNDS]

The training is pinned to one core; `evalq up` and its workers, which stand for another machine, to the others. Saves
are made in all three. The best round of each counts: the machine may have other things to do.
"""

from __future__ import annotations

import json
import os
import sys

from peers import Stack, needs

needs("torch", "transformers", "accelerate")

SETTINGS = {"max_steps": 1200, "save_strategy": "steps", "save_steps": 100, "logging_steps": 100, "save_total_limit": 2}
DUE = {"eval_strategy": "steps", "eval_steps": 100}
KINDS = {"none": {}, "evalq": {**DUE, "evalq": {"suites": "eval"}}, "steps": DUE}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cores = sorted(os.sched_getaffinity(0))
    stack = Stack(workers=1)
    best = {}
    try:
        os.sched_setaffinity(0, cores[1:] or cores)
        stack.up()
        for at in range(rounds + 1):  # The first warms caches, and the workers.
            for kind, settings in KINDS.items():
                stack.out = os.path.join(stack.directory, f"{kind}-{at}")
                words = [f"{name}={json.dumps(value)}" for name, value in {**SETTINGS, **settings}.items()]
                os.sched_setaffinity(0, cores[:1])
                stack.start("tiny_gpt2.py", *words).wait()
                history = stack.outcome()["log_history"]
                seconds = next(entry["train_runtime"] for entry in history if "train_runtime" in entry)
                if at > 0:
                    best[kind] = min(seconds, best.get(kind, seconds))
    finally:
        stack.close()
    for kind, seconds in best.items():
        more = (seconds / best["none"] - 1) * 100
        print(f"{kind:>6}: {seconds:7.3f} s  {more:+6.2f} %")


if __name__ == "__main__":
    main()
