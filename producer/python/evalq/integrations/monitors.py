"""Gives late metrics to Lightning's callbacks and schedulers that monitor a metric.

A checkpoint is saved before its metric is known. So ModelCheckpoint(monitor=...) saves each due
checkpoint, and removes all but the best save_top_k when their metrics arrive. EarlyStopping and
schedulers of the kind ReduceLROnPlateau judge a metric when it arrives. If the training itself
validates, its metrics are there in time, and nothing is changed.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Set

log = logging.getLogger("evalq")

_FILE_NAME_FIELD = re.compile(r"\{([^:}]+)[:}]")
_HOOKS = ("on_train_batch_end", "on_train_epoch_end", "on_validation_end")


@dataclass
class EndedEvaluation:
    """One evaluation that ended, in the form that rank 0 broadcasts to all ranks."""

    step: int
    suite: str
    superseded: bool  #: Whether a newer checkpoint replaced it (policy="latest").
    metrics: Dict[str, float]
    complete: bool  #: Whether no other evaluation of the step is open.


class Monitors:
    """The callbacks and schedulers of one fit that monitor a metric.

    All ranks must make the same calls in the same order. suites are the suites of each checkpoint;
    state is what state() returned in an earlier session of the run, else {}.
    """

    def __init__(self, trainer: Any, suites: Sequence[str], state: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._suites = set(suites)
        self._checkpoints: List[Any] = []
        # Callbacks for early stopping, and their original hooks.
        self._stoppers: Dict[Any, List[Callable[..., Any]]] = {}
        self._stopped: Set[Any] = set()  # A stopper that has decided gets no more metrics.
        self._schedulers: List[Any] = []
        # The keys of both are state_keys of ModelCheckpoints.
        self._unjudged: Dict[str, Dict[str, int]] = {}  # Files without a metric: path -> step.
        self._known: Dict[str, Set[str]] = {}  # The paths of all saved files.
        self._seen_suites: Set[str] = set()  # Suites that have given metrics.
        self._seen_metrics: Set[str] = set()
        self._newest = EndedEvaluation(-1, "", False, {}, True)
        if validates_here(trainer):
            return
        for callback in trainer.callbacks:
            if _is_a(callback, "ModelCheckpoint") and callback.save_top_k != 0:
                self._take_over_checkpoint(callback, state)
            elif _is_a(callback, "EarlyStopping"):
                hooks = ("on_train_epoch_end", "on_validation_end")
                self._stoppers[callback] = list(_wrap(callback, hooks, self._check_if_logged))
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau:
                config.strict = False  # Otherwise Lightning raises while the metric is missing.
                self._schedulers.append(config)

    def __bool__(self) -> bool:
        """Whether anything monitors a metric."""
        return bool(self._checkpoints or self._stoppers or self._schedulers)

    def state(self) -> Dict[str, Any]:
        """The state that a checkpoint stores: the files without a metric. Lightning calls this while
        it saves, so the new file is not among them yet."""
        for checkpoint in self._checkpoints:
            self._note_new_files(checkpoint)
        return {key: dict(steps) for key, steps in self._unjudged.items()}

    def take(self, evaluations: Sequence[EndedEvaluation], training_ended: bool = False) -> None:
        """Judges evaluations, which must be in the order of steps. After training has ended, only
        checkpoints are judged."""
        for evaluation in evaluations:
            if evaluation.step >= self._newest.step and evaluation.metrics:
                self._newest = evaluation
            self._warn_of_unknown_names(evaluation)
            for checkpoint in self._checkpoints:
                if checkpoint.monitor is not None:
                    self._judge(checkpoint, evaluation)
            if not training_ended:
                self._judge_stoppers(evaluation)
                self._step_schedulers(evaluation)

    def end(self) -> None:
        """Restores the callbacks, and gives the newest metrics to trainer.callback_metrics, which
        scripts read after fit()."""
        for callback in [*self._checkpoints, *self._stoppers]:
            for name in _HOOKS:
                vars(callback).pop(name, None)
        self._trainer.callback_metrics.update(_tensors(self._newest.metrics))

    # -- ModelCheckpoint

    def _take_over_checkpoint(self, checkpoint: Any, state: Mapping[str, Any]) -> None:
        key = checkpoint.state_key
        known = set(checkpoint.best_k_models)
        steps = {str(path): int(step) for path, step in dict(state.get(key, {})).items()}
        self._known[key] = known
        self._unjudged[key] = {path: step for path, step in steps.items() if path in known}
        self._checkpoints.append(checkpoint)
        hooks = ["on_train_epoch_end", "on_validation_end"]
        every_n_steps = getattr(checkpoint, "_every_n_train_steps", 1)
        if every_n_steps or getattr(checkpoint, "_train_time_interval", 1) is not None:
            hooks.append("on_train_batch_end")
        list(_wrap(checkpoint, hooks, self._save))

    def _save(
        self, checkpoint: Any, hook: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Calls a hook that may save, with NaN for the metrics that are missing. So a missing
        metric neither prevents a save nor removes a file, and a file name does not show a wrong
        number."""
        metrics = trainer.callback_metrics
        missing = [name for name in _metrics_needed(checkpoint) if name not in metrics]
        save_top_k = checkpoint.save_top_k
        metrics.update(_tensors({name: math.nan for name in missing}))
        if checkpoint.monitor in missing:
            checkpoint.save_top_k = -1
        try:
            hook(trainer, *args, **kwargs)
        finally:
            checkpoint.save_top_k = save_top_k
            for name in missing:
                metrics.pop(name, None)
        if checkpoint.monitor in missing:
            self._note_new_files(checkpoint)
            self._rank(checkpoint)
        else:  # The training logs this metric itself, so ModelCheckpoint has judged the file.
            self._known[checkpoint.state_key] = set(checkpoint.best_k_models)

    def _note_new_files(self, checkpoint: Any) -> None:
        """Notes the current step for files that were saved since the last call."""
        known = self._known[checkpoint.state_key]
        for path, score in checkpoint.best_k_models.items():
            if path not in known and not math.isfinite(float(score)):
                self._unjudged[checkpoint.state_key][path] = self._trainer.global_step
        known.update(checkpoint.best_k_models)

    def _judge(self, checkpoint: Any, evaluation: EndedEvaluation) -> None:
        """Gives the step's files their score. A superseded checkpoint is not wanted any more, so its
        files may be removed. Every other end without a metric says nothing about the checkpoint:
        the evaluation failed, or a worker could not find the file. So its files stay."""
        unjudged = self._unjudged[checkpoint.state_key]
        value = evaluation.metrics.get(checkpoint.monitor)
        if value is None and not (evaluation.complete and evaluation.superseded):
            return
        for path in [path for path, step in unjudged.items() if step == evaluation.step]:
            del unjudged[path]
            if value is not None and not math.isnan(value):
                checkpoint.best_k_models[path] = checkpoint.current_score = _tensor(value)
        self._rank(checkpoint)

    def _rank(self, checkpoint: Any) -> None:
        """Does for the judged files what ModelCheckpoint does when it saves: keeps the best
        ones."""
        scores = checkpoint.best_k_models
        unjudged = self._unjudged[checkpoint.state_key]
        sign = -1.0 if checkpoint.mode == "max" else 1.0
        judged = [path for path in scores if path not in unjudged]
        order = sorted(judged, key=lambda path: sign * float(scores[path]))  # The sort is stable.
        count = len(order) if checkpoint.save_top_k < 0 else checkpoint.save_top_k
        for path in order[count:]:
            self._remove(checkpoint, path)
        order = [path for path in order[:count] if math.isfinite(float(scores[path]))]
        checkpoint.best_model_path = order[0] if order else ""
        checkpoint.best_model_score = scores[order[0]] if order else None
        if len(order) == count and order:
            checkpoint.kth_best_model_path = order[-1]
            checkpoint.kth_value = scores[order[-1]]

    def _remove(self, checkpoint: Any, path: str) -> None:
        """Removes a file, unless the training resumed from it or last.ckpt links to it."""
        in_use = [self._trainer.ckpt_path] if self._trainer.ckpt_path else []
        if checkpoint.save_last == "link" and checkpoint.last_model_path:
            in_use.append(checkpoint.last_model_path)
        if os.path.realpath(path) not in {os.path.realpath(str(each)) for each in in_use}:
            del checkpoint.best_k_models[path]
            self._known[checkpoint.state_key].discard(path)  # A later step may use this path.
            self._trainer.strategy.remove_checkpoint(path)

    # -- EarlyStopping and schedulers

    def _check_if_logged(
        self, stopper: Any, hook: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Calls the hook only if the training logs the metric itself."""
        if stopper.monitor in trainer.callback_metrics:
            hook(trainer, *args, **kwargs)

    def _judge_stoppers(self, evaluation: EndedEvaluation) -> None:
        trainer = self._trainer
        logged = trainer.callback_metrics
        for stopper, hooks in self._stoppers.items():
            name = stopper.monitor
            if stopper in self._stopped or name not in evaluation.metrics or name in logged:
                continue
            logged[name] = _tensor(evaluation.metrics[name])
            stop_before, trainer.should_stop = trainer.should_stop, False
            try:
                for hook in hooks:  # Depending on check_on_train_epoch_end, one of them checks.
                    hook(trainer, trainer.lightning_module)
                if trainer.should_stop:
                    self._stopped.add(stopper)
            finally:
                logged.pop(name, None)
                trainer.should_stop = trainer.should_stop or stop_before

    def _step_schedulers(self, evaluation: EndedEvaluation) -> None:
        for config in self._schedulers:
            name = config.monitor
            if name in evaluation.metrics and name not in self._trainer.callback_metrics:
                value = _tensor(evaluation.metrics[name])
                self._trainer.lightning_module.lr_scheduler_step(config.scheduler, value)

    def _warn_of_unknown_names(self, evaluation: EndedEvaluation) -> None:
        """Warns once of monitored metrics that do not exist, when each suite has given metrics."""
        if not evaluation.metrics or evaluation.suite in self._seen_suites:
            return
        self._seen_suites.add(evaluation.suite)
        self._seen_metrics.update(evaluation.metrics)
        if self._seen_suites < self._suites or not self._trainer.is_global_zero:
            return
        monitored = _monitored_metrics(self._checkpoints, self._stoppers, self._schedulers)
        for who, name in monitored.items():
            if name not in self._seen_metrics and name not in self._trainer.callback_metrics:
                log.warning(
                    "%s waits for %s, which neither training nor suite %s gives; change its monitor"
                    " to one of: %s",
                    who,
                    name,
                    ", ".join(sorted(self._suites)),
                    ", ".join(sorted(self._seen_metrics)),
                )


def setup_warnings(trainer: Any, has_callback: bool) -> List[str]:
    """Warnings about what will not work in this fit; each says what to change. has_callback:
    whether there is an EvalqCallback, not only an EvalqLogger."""
    warnings: List[str] = []
    checkpoints = [each for each in trainer.callbacks if _is_a(each, "ModelCheckpoint")]
    if any(_never_saves(trainer, checkpoint) for checkpoint in checkpoints):
        warnings.append(
            "ModelCheckpoint saves nothing: with limit_val_batches=0 it waits for a validation that"
            " never comes; give it save_on_train_epoch_end=True (and every_n_epochs), or"
            " every_n_train_steps"
        )
    if validates_here(trainer):
        return warnings
    stoppers = [each for each in trainer.callbacks if _is_a(each, "EarlyStopping")]
    schedulers = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    if not has_callback:
        for who, name in _monitored_metrics(checkpoints, stoppers, schedulers).items():
            warnings.append(
                f"EvalqLogger cannot give {name} to {who}: if training itself does not log {name},"
                " replace logger=EvalqLogger(...) by callbacks=[EvalqCallback(...)]"
            )
    for checkpoint in checkpoints:
        shown = [
            name
            for name in _metrics_needed(checkpoint)
            if (name == checkpoint.monitor or name.startswith("val"))
            and name in _FILE_NAME_FIELD.findall(checkpoint.filename or "")
        ]
        if shown:
            warnings.append(
                f"file names of checkpoints show nan for {', '.join(shown)}, which is not known"
                ' when a checkpoint is saved; use ModelCheckpoint(filename="{epoch}-{step}")'
            )
    return list(dict.fromkeys(warnings))  # Two ModelCheckpoints may have the same file name.


def validates_here(trainer: Any) -> bool:
    """Whether this fit runs validation_step()."""
    return bool(trainer.enable_validation)


def _metrics_needed(checkpoint: Any) -> List[str]:
    """The metrics in the checkpoint's file name, and the one that it monitors, each once."""
    fields = _FILE_NAME_FIELD.findall(checkpoint.filename or "")
    names = [name for name in fields if name not in ("epoch", "step")]
    if checkpoint.monitor is not None:
        names.append(checkpoint.monitor)
    return list(dict.fromkeys(names))


def _monitored_metrics(
    checkpoints: Sequence[Any], stoppers: Any, schedulers: Sequence[Any]
) -> Dict[str, str]:
    """Returns a map from what monitors a metric, in the words of the user's code, to the metric."""
    found: Dict[str, str] = {}
    for each in [*(one for one in checkpoints if one.monitor), *stoppers]:
        found[f"{type(each).__name__}(monitor={each.monitor!r})"] = str(each.monitor)
    for each in schedulers:
        name = type(each.scheduler).__name__
        found[f"{name} with monitor {each.monitor!r}"] = str(each.monitor)
    return found


def _is_a(callback: Any, name: str) -> bool:
    """Whether the callback's class is, or is derived from, Lightning's class of this name, under
    either import name."""
    return any(
        kind.__name__ == name and kind.__module__.startswith(("lightning.", "pytorch_lightning."))
        for kind in type(callback).__mro__
    )


def _wrap(
    callback: Any, names: Sequence[str], around: Callable[..., None]
) -> Iterator[Callable[..., Any]]:
    """Replaces each named hook by a call of around(callback, hook, ...). Yields the hooks."""
    for name in names:
        hook = getattr(callback, name)
        setattr(callback, name, functools.partial(around, callback, hook))
        yield hook


def _never_saves(trainer: Any, checkpoint: Any) -> bool:
    """Whether the checkpoint saves only after a validation, and there is none."""
    after_epochs = getattr(checkpoint, "_should_save_on_train_epoch_end", None)
    if getattr(trainer, "limit_val_batches", None) != 0 or after_epochs is None:
        return False
    return bool(getattr(checkpoint, "_every_n_epochs", 0) >= 1 and not after_epochs(trainer))


def _tensor(value: float) -> Any:
    import torch

    return torch.tensor(value)


def _tensors(values: Mapping[str, float]) -> Dict[str, Any]:
    return {name: _tensor(value) for name, value in values.items()}
