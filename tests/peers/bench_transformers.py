"""How much longer a Trainer's training takes with EvalqCallback, and with eval_strategy="steps" by itself.

    EVALQ_TEST_BUILD=build/default .venv/bin/python tests/peers/bench_transformers.py [ROUNDS]

The training is pinned to one core; `evalq up` and its workers, which stand for another machine, to the others. Saves
are made in all three. The best round of each counts: the machine may have other things to do. Processor time is that
of all threads of the training process, and of evalq's wait at the end.
"""

from __future__ import annotations

import json
import os
import sys

from peers import Stack, needs

needs("torch", "transformers", "accelerate")

# A step takes 4 ms, and one is due every 1.5 s: real trainings evaluate less often.
SETTINGS = {"max_steps": 2000, "save_strategy": "steps", "save_steps": 400, "logging_steps": 400, "save_total_limit": 2}
DUE = {"eval_strategy": "steps", "eval_steps": 400}
KINDS = {"none": {}, "evalq": {**DUE, "evalq": {"suites": "eval"}}, "steps": DUE}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cores = sorted(os.sched_getaffinity(0))
    os.environ["EVAL_BLOCKS"] = "200"
    stack = Stack(workers=1, EVAL_BLOCKS="200")
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
                spent = stack.outcome()["cpu_seconds"]
                if at > 0:
                    before = best.get(kind, (seconds, spent))
                    best[kind] = (min(seconds, before[0]), min(spent, before[1]))
    finally:
        stack.close()
    for kind, found in best.items():
        more = [(value / none - 1) * 100 for value, none in zip(found, best["none"])]
        print(f"{kind:>6}: {found[0]:7.3f} s {more[0]:+6.2f} %   processor {found[1]:7.3f} s {more[1]:+6.2f} %")


if __name__ == "__main__":
    main()
