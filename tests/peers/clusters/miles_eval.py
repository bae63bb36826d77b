"""Calls the evaluation function of docs/trainers.md as miles' rollout manager does, for two snapshots, and
again for the first."""

import asyncio
import json
from argparse import Namespace

import my_eval
import tiny_model
from miles.rollout.base_types import RolloutFnConstructorInput, RolloutFnEvalInput
from miles.rollout.checkpoint_eval import is_checkpoint_eval_fn

assert is_checkpoint_eval_fn("my_eval.Evaluate")
found = []
for step in (1, 2, 1):
    if len(found) != 1:  # The last one is a training that resumed.
        evaluate = my_eval.Evaluate(RolloutFnConstructorInput(args=Namespace(), data_source=None))
    place = f"out/miles/step_{step}"
    model = tiny_model.make_model()
    for value in model.parameters():
        value.data.mul_(step)
    model.save_pretrained(place)  # The third time, the same weights.
    output = asyncio.run(evaluate(RolloutFnEvalInput(rollout_id=step, hf_dir=place)))
    found.append(output.metrics)
with open("found.json", "w", encoding="utf-8") as file:
    json.dump(found, file)
