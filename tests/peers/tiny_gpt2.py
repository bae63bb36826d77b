"""A tiny GPT-2 on tiny Shakespeare: what trains and what evaluates make the same Trainer from here.

Run as a program it trains: python tiny_gpt2.py OUTPUT_DIR [NAME=JSON ...]; see train().
"""

import contextlib
import functools
import hashlib
import json
import os
import sys
import time

import accelerate
import torch
import transformers
from pace import Pace
from torch.utils.data import Dataset

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(os.path.dirname(HERE), "data", "tinyshakespeare.txt")
BLOCK = 32


class Blocks(Dataset):
    """Bytes of the text, cut into blocks."""

    def __init__(self, data, count):
        self.data = torch.tensor(list(data[: count * BLOCK]), dtype=torch.long).view(-1, BLOCK)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, at):
        return {"input_ids": self.data[at], "labels": self.data[at]}


def text():
    if os.path.exists(TEXT):
        with open(TEXT, "rb") as file:
            return file.read()
    # A text of its own where the data is not: the same on every machine.
    words = hashlib.sha256(b"evalq").hexdigest() * 40
    return (words * 20).encode()


def compute_metrics(prediction):
    guesses = prediction.predictions[:, :-1]
    return {"accuracy": float((guesses == prediction.label_ids[:, 1:]).mean())}


def shard_on_cpu():
    """accelerate shards over GPUs and their like alone: the CPU passes for one of these."""
    accelerate.PartialState._shared_state["distributed_type"] = accelerate.DistributedType.MULTI_XPU


class Summing(transformers.Trainer):
    """A log says how many batches there were since the one before, of training and of evaluation apart, as TRL's do."""

    def __init__(self, **settings):
        self.batches = {"": 0, "eval_": 0}
        super().__init__(**settings)

    def compute_loss(self, model, inputs, **more):
        self.batches["" if self.model.training else "eval_"] += 1
        return super().compute_loss(model, inputs, **more)

    def log(self, logs, start_time=None):
        kind = "" if self.model.training else "eval_"
        logs.update({kind + "batches": self.batches[kind]})
        super().log(logs, start_time)
        self.batches[kind] = 0


def make_trainer(output_dir="unused", callbacks=None, shard_bytes=0, trainer=transformers.Trainer, **settings):
    """The same model whenever it is made; the evaluator needs nothing of the training's arguments."""
    transformers.set_seed(7)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=BLOCK, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    data = text()
    blocks = int(os.environ.get("EVAL_BLOCKS", "40"))
    args = transformers.TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
        **{"learning_rate": 1e-2, "report_to": "none", **settings},
    )
    if settings.get("fsdp"):
        shard_on_cpu()
    model = transformers.GPT2LMHeadModel(config)
    if shard_bytes:
        model.save_pretrained = functools.partial(model.save_pretrained, max_shard_size=shard_bytes)
    return trainer(
        model=model,
        args=args,
        train_dataset=Blocks(data, 400),
        eval_dataset=Blocks(data[-blocks * BLOCK :], blocks),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=lambda logits, labels: (logits[0] if isinstance(logits, tuple) else logits).argmax(-1),
        callbacks=callbacks,
    )


def evaluator():
    """For evalq's workers. Notes each evaluation, so that a test can tell that there was one."""
    trainer = make_trainer(os.environ["TMPDIR"])
    evaluate = trainer.evaluate

    def noted(*args, **kwargs):
        with open(os.environ["EVALUATIONS"], "a") as file:
            file.write(f"{trainer.state.global_step}\n")
        return evaluate(*args, **kwargs)

    trainer.evaluate = noted
    return trainer


def digest(model):
    """Of the weights, to tell which checkpoint was loaded. Under sharding all ranks call it together."""
    found = hashlib.sha256()
    with whole(model):
        for name, value in sorted(model.state_dict().items()):
            found.update(name.encode())
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            found.update(value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def whole(model):
    """While it lasts, ZeRO stage 3 has all weights on each rank."""
    if not any(hasattr(value, "ds_id") for value in model.parameters()):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(list(model.parameters()))


class Paced(transformers.TrainerCallback):
    def __init__(self, pace):
        self.pace = pace

    def on_step_end(self, args, state, control, **kwargs):
        self.pace.step(state.global_step)


class Recorder(transformers.TrainerCallback):
    """Notes what other callbacks are told."""

    def __init__(self):
        self.events = []

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def note(args, state, control, logs=None, **kwargs):
            self.events.append(name + (" eval" if logs and "eval_loss" in logs else ""))

        return note


def train(output_dir, callback=None, resume=False, pace=0.0, hold=None, early=0, record=False, sums=False, **settings):
    """One training; what came of it goes to OUTPUT_DIR/outcome.json."""
    callbacks = [] if callback is None else [callback]
    recorder = Recorder()
    if record:
        callbacks.append(recorder)
    if early:
        callbacks.append(transformers.EarlyStoppingCallback(early))
    if pace or hold:
        callbacks.append(Paced(Pace(output_dir, pace, hold)))
    os.makedirs(output_dir, exist_ok=True)
    trainer = make_trainer(output_dir, callbacks, trainer=Summing if sums else transformers.Trainer, **settings)
    clocks = (time.monotonic, time.process_time, time.thread_time)
    began = [clock() for clock in clocks]
    trainer.train(resume_from_checkpoint=True if resume else None)
    seconds, cpu, thread = (clock() - start for clock, start in zip(clocks, began))
    outcome = {
        "log_history": trainer.state.log_history,
        "best_metric": trainer.state.best_metric,
        "best_global_step": trainer.state.best_global_step,
        "best_model_checkpoint": trainer.state.best_model_checkpoint,
        "global_step": trainer.state.global_step,
        "digest": digest(trainer.model),
        "events": recorder.events,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "thread_seconds": thread,
        "rank": trainer.args.process_index,
    }
    name = "outcome.json" if trainer.args.process_index == 0 else f"outcome-{trainer.args.process_index}.json"
    with open(os.path.join(output_dir, name), "w") as file:
        json.dump(outcome, file)
    return trainer


def main(argv):
    settings = {"output_dir": argv[0]}
    for word in argv[1:]:
        name, _, value = word.partition("=")
        settings[name] = json.loads(value)
    callback = None
    options = settings.pop("evalq", None)
    if options is not None:
        from evalq.integrations.transformers import EvalqCallback

        callback = EvalqCallback(**options)
    train(callback=callback, **settings)


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    main(sys.argv[1:])
