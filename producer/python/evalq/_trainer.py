"""Trainer.evaluate() of transformers for each checkpoint, with model, data and imports kept warm."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, Mapping, Optional

from ._serving import Checkpoint, Function, Metrics, Report, Task, renewed, serve
from ._tensors import HUB_TORCH
from ._weights import load_into

_WHOLE = ("model.safetensors", "model.safetensors.index.json")  # Files of a whole model, beside HUB_TORCH.


def serve_trainer(factory: Callable[[], Any]) -> None:
    """Evaluates every checkpoint as factory()'s Trainer would: its eval_dataset, its compute_metrics, any model.

    factory() is called once, and again after an evaluation that failed or was cancelled half-way. For each
    checkpoint its weights (safetensors or torch, also sharded) are loaded into the model and Trainer.evaluate() is called; the metrics are reported under its names, such as "eval_loss". Where
    eval_dataset is a dictionary and a task of the suite is one of its keys, that task evaluates it alone.
    """
    serve(trainer_function(factory))


def trainer_function(factory: Callable[[], Any]) -> Function:
    """What serve_trainer() serves."""
    return renewed(lambda: TrainerFunction(factory()))


class TrainerFunction:
    """A Trainer as an evaluator's function."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loaded: Optional[Checkpoint] = None
        self._report: Optional[Report] = None
        _keep_quiet(trainer)
        trainer.add_callback(_progress_callback(self))

    def __call__(self, checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        trainer = self._trainer
        if self._loaded is not checkpoint:  # Not by the job's name: its weights may be others the next time.
            self._load(checkpoint)
            self._loaded = checkpoint
        trainer.state.global_step = checkpoint.step
        trainer.state.epoch = checkpoint.epoch
        self._report = report
        report(0, -1, "evaluate")
        try:
            metrics = self._evaluate(task)
        finally:
            self._report = None
        return {name: value for name, value in metrics.items() if not _is_ours(name) and _is_number(value)}

    def _load(self, checkpoint: Checkpoint) -> None:
        model = self._trainer.model
        path = checkpoint.path
        adapter = os.path.isfile(os.path.join(path, "adapter_config.json"))
        whole = [name for name in (*_WHOLE, *HUB_TORCH) if os.path.isfile(os.path.join(path, name))]
        if adapter and whole:
            raise ValueError(
                f"'{path}' holds both '{whole[0]}' and an adapter, and transformers would apply the adapter: save them in "
                "two directories, or evaluate it with a function of your own (evalq.serve)"
            )
        if adapter and hasattr(model, "peft_config"):
            _load_adapter(model, checkpoint.load(), path)
            return
        load_into(model, checkpoint.load(), path)

    def _evaluate(self, task: Task) -> Dict[str, Any]:
        trainer = self._trainer
        data = trainer.eval_dataset
        if isinstance(data, Mapping) and str(task) in data:
            metrics = trainer.evaluate(eval_dataset=data[str(task)], metric_key_prefix=f"eval_{task}")
        else:
            metrics = trainer.evaluate()
        return dict(metrics)

    def progress(self, done: int, total: int) -> None:
        if self._report is not None:
            self._report(done, total)


def _load_adapter(model: Any, values: Mapping[str, Any], path: str) -> None:
    """Copies an adapter into a model of PEFT; what its names leave out would stay that of the one before."""
    from peft import set_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

    with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
        saved = json.load(file)
    for name in ("lora_alpha", "use_rslora", "alpha_pattern"):  # They scale: no tensor tells.
        ours = getattr(model.peft_config.get("default"), name, None)
        if name in saved and (saved[name] or None) != (ours or None):
            raise ValueError(f"adapter misfits: {name} is {saved[name]}, the model's {ours}: '{path}'")
    result: Any = set_peft_model_state_dict(model, values)
    prefix = getattr(model.base_model, "prefix", "")
    missing = [name for name in result.missing_keys if prefix in name and ".default" in name]
    if missing or result.unexpected_keys:
        names = ", ".join([*sorted(missing)[:3], *sorted(result.unexpected_keys)[:3]])
        raise ValueError(
            f"adapter misfits: {len(missing)} missing, {len(result.unexpected_keys)} unexpected: {names} in '{path}'"
        )


def _is_ours(name: str) -> bool:
    """Whether only the worker's Trainer reports it: a Trainer that trains has prepared its model long before."""
    return name == "epoch" or name.endswith("_model_preparation_time")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "size", 1) == 1)


def _keep_quiet(trainer: Any) -> None:
    """Results reach the trackers through evalq's logger: what reports, or submits, from a Trainer is taken out."""
    for callback in list(trainer.callback_handler.callbacks):
        module = type(callback).__module__
        if module.startswith(("transformers.integrations", "evalq.")):
            trainer.remove_callback(callback)


def _progress_callback(function: TrainerFunction) -> Any:
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    class Progress(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            self.done = 0

        def on_prediction_step(self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any) -> None:
            self.done += 1
            try:
                total = len(eval_dataloader)
            except TypeError:
                total = -1
            function.progress(self.done, total)

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.done = 0

    return Progress()
