"""Evaluates checkpoints with Trainer.evaluate() of Transformers, and keeps the model warm."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, Mapping, Optional

from ._checkpoint.safetensors import HUB_TORCH_NAMES
from ._evaluation import Checkpoint, Function, Metrics, Report, Task
from ._serving import recreated_after_failure, serve
from ._checkpoint.weights import load_into

# The names of the weights of a whole model. An adapter has other names.
_MODEL_NAMES = ("model.safetensors", "model.safetensors.index.json", *HUB_TORCH_NAMES)


def serve_trainer(factory: Callable[[], Any]) -> None:
    """Evaluates each checkpoint with the Trainer that factory() returns.

    For each checkpoint, its weights (safetensors or torch, also sharded) are copied into the
    Trainer's model, and Trainer.evaluate() is called. Its metrics keep their names, such as
    "eval_loss". If eval_dataset is a dictionary and the task's name is one of its keys, only that
    data set is evaluated. factory() is called once, and again after an evaluation that failed or
    was cancelled. Like serve(), it returns when the worker ends.
    """
    serve(make_trainer_evaluator(factory))


def make_trainer_evaluator(factory: Callable[[], Any]) -> Function:
    """Returns the function that serve_trainer() serves."""
    return recreated_after_failure(lambda: TrainerEvaluator(factory()))


class TrainerEvaluator:
    """Evaluates checkpoints with one Trainer. Removes the Trainer's callbacks that report or
    submit."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loaded: Optional[Checkpoint] = None
        self._report: Optional[Report] = None
        _remove_reporting(trainer)
        trainer.add_callback(_progress_callback(self))

    def __call__(self, checkpoint: Checkpoint, task: Task, report: Report) -> Metrics:
        trainer = self._trainer
        if self._loaded is not checkpoint:  # A later job of the same name may have other weights.
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
        return {
            name: value
            for name, value in metrics.items()
            if _is_number(value) and not _belongs_to_worker(name)
        }

    def _load(self, checkpoint: Checkpoint) -> None:
        model = self._trainer.model
        path = checkpoint.path
        if not os.path.isfile(os.path.join(path, "adapter_config.json")):
            load_into(model, checkpoint.load(), path)
            return
        whole = [name for name in _MODEL_NAMES if os.path.isfile(os.path.join(path, name))]
        if whole:
            raise ValueError(
                f"'{path}' holds both '{whole[0]}' and an adapter, and transformers would apply the"
                " adapter: save them in two directories, or evaluate it with your own function"
                " (evalq.serve)"
            )
        if hasattr(model, "peft_config"):
            _load_adapter(model, checkpoint.load(), path)
        else:
            load_into(model, checkpoint.load(), path)

    def _evaluate(self, task: Task) -> Dict[str, Any]:
        trainer = self._trainer
        data = trainer.eval_dataset
        if isinstance(data, Mapping) and str(task) in data:
            prefix = f"eval_{task}"
            return dict(trainer.evaluate(eval_dataset=data[str(task)], metric_key_prefix=prefix))
        return dict(trainer.evaluate())

    def progress(self, done: int, total: int) -> None:
        """Reports batches; total is -1 if it is unknown."""
        if self._report is not None:
            self._report(done, total)


def _load_adapter(model: Any, values: Mapping[str, Any], path: str) -> None:
    """Copies an adapter into a PEFT model. ValueError: it does not have exactly the weights of the
    model's adapter, whose other weights would stay those of the last checkpoint."""
    from peft import set_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

    with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
        saved = json.load(file)
    # These settings scale the weights, but no tensor contains them.
    for name in ("lora_alpha", "use_rslora", "alpha_pattern"):
        ours = getattr(model.peft_config.get("default"), name, None)
        if name in saved and (saved[name] or None) != (ours or None):
            raise ValueError(
                f"wrong adapter: {name} is {saved[name]}, the model's {ours}: '{path}'"
            )
    result: Any = set_peft_model_state_dict(model, values)
    prefix = getattr(model.base_model, "prefix", "")
    missing = [name for name in result.missing_keys if prefix in name and ".default" in name]
    if missing or result.unexpected_keys:
        names = ", ".join([*sorted(missing)[:3], *sorted(result.unexpected_keys)[:3]])
        raise ValueError(
            f"wrong adapter: {len(missing)} missing, {len(result.unexpected_keys)}"
            f" unexpected: {names} in '{path}'"
        )


def _belongs_to_worker(name: str) -> bool:
    """Whether a training would not report the metric: it prepares its model once, long before."""
    return name == "epoch" or name.endswith("_model_preparation_time")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (
        hasattr(value, "item") and getattr(value, "size", 1) == 1
    )


def _remove_reporting(trainer: Any) -> None:
    """Removes callbacks that report or submit, because evalq-logger reports the results."""
    for callback in list(trainer.callback_handler.callbacks):
        module = type(callback).__module__
        if module.startswith(("transformers.integrations", "evalq.")):
            trainer.remove_callback(callback)


def _progress_callback(evaluator: TrainerEvaluator) -> Any:
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    class Progress(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            self.done = 0

        def on_prediction_step(
            self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any
        ) -> None:
            self.done += 1
            try:
                total = len(eval_dataloader)
            except TypeError:
                total = -1
            evaluator.progress(self.done, total)

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.done = 0

    return Progress()
