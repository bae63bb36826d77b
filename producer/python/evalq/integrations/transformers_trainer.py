"""Reads a Transformers Trainer for EvalqCallback, and logs late metrics through it."""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from contextlib import contextmanager, suppress
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import transformers
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .due_evaluations import Evaluation

# Transformers 4 loads the best model before its last on_log event.
LOADS_BEST_BEFORE_LOG = not hasattr(transformers.Trainer, "_finalize_training")
_METRIC_SCHEDULERS = ("ReduceLROnPlateau", "GreedyLR")


class TrainerView:
    """The Trainer that a callback belongs to. Until find() has found it, the methods use
    defaults."""

    def __init__(self) -> None:
        self._reference: Optional[Callable[[], Any]] = None

    def _trainer(self) -> Any:
        return self._reference() if self._reference is not None else None

    def find(self) -> None:
        """Looks for the Trainer among the callers, because events do not name it."""
        frame = sys._getframe(1)
        while frame is not None:
            found = frame.f_locals.get("self")
            attributes = getattr(found, "__dict__", {})
            if "callback_handler" in attributes and callable(getattr(found, "log", None)):
                self._reference = weakref.ref(found)
                return
            frame = frame.f_back  # type: ignore[assignment]

    def output_dir(self, args: Any, state: Any) -> str:
        """The directory of the checkpoints; a hyperparameter search has one for each trial."""
        trainer = self._trainer()
        if state.is_hyper_param_search and hasattr(trainer, "_get_output_dir"):
            return str(trainer._get_output_dir(getattr(trainer, "_trial", None)))
        return str(args.output_dir)

    def is_sharded(self) -> bool:
        """Whether no rank has all weights."""
        trainer = self._trainer()
        names = ("is_fsdp_enabled", "is_deepspeed_enabled", "is_tp_enabled")
        return any(bool(getattr(trainer, name, False)) for name in names)

    def resumed_step(self) -> int:
        """The step that the training continues from; -1 if it is unknown."""
        return int(getattr(self._trainer(), "_initial_global_step", -1))

    def log(self, state: Any, evaluation: Evaluation) -> None:
        """Logs the metrics as Trainer.evaluate() does. state must have the evaluation's step."""
        trainer = self._trainer()
        if trainer is not None:
            with _in_eval_mode(getattr(trainer, "model", None)):
                trainer.log(_LateLogs(evaluation.metrics))
        else:
            state.log_history.append({**evaluation.metrics, "step": evaluation.step})
        entry = state.log_history[-1] if state.log_history else {}
        if entry.get("step") == evaluation.step and evaluation.epoch is not None:
            entry.setdefault("epoch", evaluation.epoch)

    def announce(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], best: Optional[str]
    ) -> None:
        """Gives the metrics to the other callbacks, such as early stopping, and the metric named
        best to a scheduler that needs one."""
        trainer = self._trainer()
        if trainer is None:
            return
        trainer.callback_handler.on_evaluate(args, state, control, dict(metrics))
        scheduler: Any = getattr(trainer, "lr_scheduler", None)
        if best is not None and type(scheduler).__name__ in _METRIC_SCHEDULERS:
            scheduler.step(metrics[best])


class _LateLogs(Dict[str, float]):
    """The logs of an earlier step, which accept no new names. Trainer.log() adds the current
    `epoch` and `num_input_tokens_seen`. Their curves would go backwards, and TensorBoard drops the
    points that follow."""

    def __setitem__(self, key: str, value: float) -> None:
        if key in self:
            super().__setitem__(key, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


@contextmanager
def _in_eval_mode(model: Any) -> Iterator[None]:
    """Marks the model as evaluating. TRL's trainers add the sums of training or of evaluation to a
    log, depending on this mark."""
    training = bool(getattr(model, "training", False))
    if training:
        model.training = False
    try:
        yield
    finally:
        if training:
            model.training = True


@contextmanager
def at_step(
    state: Any, control: Any, evaluation: Evaluation, not_better: Optional[float] = None
) -> Iterator[None]:
    """Sets the Trainer's state to the evaluation's step, and restores it afterwards. not_better: a
    metric that early stopping must not take for an improvement, so it is shown as the best."""
    now = (state.global_step, state.epoch, state.best_metric)
    flags = (control.should_log, control.should_evaluate, control.should_save)
    state.global_step = evaluation.step
    state.epoch = evaluation.epoch if evaluation.epoch is not None else state.epoch
    state.best_metric = not_better if not_better is not None else state.best_metric
    try:
        yield
    finally:
        state.global_step, state.epoch, state.best_metric = now
        control.should_log, control.should_evaluate, control.should_save = flags


def checkpoint_name(step: int) -> str:
    """The name of the step's checkpoint in output_dir."""
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def strategy_text(strategy: Any) -> str:
    """A strategy of TrainingArguments as text: "no", "steps", "epoch" or "best"."""
    return str(getattr(strategy, "value", strategy))


def may_be_due_without_save(args: Any, state: Any) -> bool:
    """Whether a step may be evaluated that is not saved."""
    due, saved = strategy_text(args.eval_strategy), strategy_text(args.save_strategy)
    if due == "no" or saved == "best":
        return False
    if due == saved == "steps":
        return not state.save_steps or bool(state.eval_steps % state.save_steps)
    return due != saved


def has_other_ranks(args: Any) -> bool:
    """Whether several processes train together."""
    if args.world_size <= 1:
        return False
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def exclude_from_hub() -> None:
    """Keeps evalq's files in output_dir from being pushed to the Hugging Face Hub."""
    with suppress(ImportError):
        utils: Any = importlib.import_module("huggingface_hub.utils")
        ignored: List[str] = getattr(utils, "DEFAULT_IGNORE_PATTERNS", [])
        patterns = (".evalq/*", "*/.evalq/*")
        ignored.extend(pattern for pattern in patterns if pattern not in ignored)


def is_saved(output_dir: str, step: int) -> bool:
    """Whether output_dir has a checkpoint of the step."""
    return os.path.isdir(os.path.join(output_dir, checkpoint_name(step)))
