"""Gives metrics that arrive late to what monitors them in Lightning.

A checkpoint is saved before its metric is known. So ModelCheckpoint(monitor=...) saves each checkpoint that is due, and the
best save_top_k are chosen when their metrics arrive. EarlyStopping and schedulers that reduce on a plateau judge a metric
when it arrives. A training that validates here is left alone: its metrics are there in time.
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


@dataclass
class News:
    """One evaluation that ended, as all processes of a training hear of it."""

    step: int
    suite: str
    state: str
    metrics: Dict[str, float]
    complete: bool  # Nothing more is due for the step.


class Monitors:
    """The callbacks and schedulers of one fit that monitor a metric. Every process makes the same calls in the same order.

    kept is what keep() gave to an earlier life of the run; suites are those of each checkpoint.
    """

    def __init__(self, trainer: Any, suites: Sequence[str], kept: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._suites = set(suites)
        self._checkpoints: List[Any] = []
        self._stoppers: Dict[Any, List[Callable[..., Any]]] = {}  # With the hooks that check.
        self._stopped: Set[Any] = set()  # Stoppers that have decided; a later metric changes nothing they report.
        self._schedulers: List[Any] = []
        self._waiting: Dict[str, Dict[str, int]] = {}  # By state_key: saved files without a metric yet, and their steps.
        self._known: Dict[str, Set[str]] = {}  # By state_key: all of best_k_models.
        self._heard: Set[str] = set()  # Suites that gave metrics.
        self._names: Set[str] = set()
        self._newest = News(-1, "", "", {}, True)
        if validates_here(trainer):
            return
        for callback in trainer.callbacks:
            if _is_a(callback, "ModelCheckpoint") and callback.save_top_k != 0:
                self._take_checkpoint(callback, kept)
            elif _is_a(callback, "EarlyStopping"):
                self._stoppers[callback] = list(_wrap(callback, ("on_train_epoch_end", "on_validation_end"), self._check))
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau:
                config.strict = False  # Lightning would raise where the metric is not there yet.
                self._schedulers.append(config)

    def __bool__(self) -> bool:
        """Whether anything monitors a metric."""
        return bool(self._checkpoints or self._stoppers or self._schedulers)

    def keep(self) -> Dict[str, Any]:
        """What a checkpoint keeps of it. Lightning asks while it saves, before this file is noted."""
        for checkpoint in self._checkpoints:
            self._note(checkpoint)
        return {key: dict(paths) for key, paths in self._waiting.items()}

    def take(self, news: Sequence[News], ended: bool = False) -> None:
        """Evaluations in the order of their steps. ended: training has, so nothing can be stopped any more."""
        for each in news:
            if each.step >= self._newest.step and each.metrics:
                self._newest = each
            self._look_for_names(each)
            for checkpoint in self._checkpoints:
                if checkpoint.monitor is not None:
                    self._judge(checkpoint, each)
            if not ended:
                self._tell(each)

    def end(self) -> None:
        """The callbacks are again as they were. Scripts read the newest metrics after fit()."""
        for callback in [*self._checkpoints, *self._stoppers]:
            for name in ("on_train_batch_end", "on_train_epoch_end", "on_validation_end"):
                vars(callback).pop(name, None)
        self._trainer.callback_metrics.update(_tensors(self._newest.metrics))

    # -- ModelCheckpoint

    def _take_checkpoint(self, checkpoint: Any, kept: Mapping[str, Any]) -> None:
        key = checkpoint.state_key
        steps = {str(path): int(step) for path, step in dict(kept.get(key, {})).items()}
        self._known[key] = set(checkpoint.best_k_models)
        self._waiting[key] = {path: step for path, step in steps.items() if path in self._known[key]}
        self._checkpoints.append(checkpoint)
        hooks = ["on_train_epoch_end", "on_validation_end"]
        if getattr(checkpoint, "_every_n_train_steps", 1) or getattr(checkpoint, "_train_time_interval", 1) is not None:
            hooks.append("on_train_batch_end")
        list(_wrap(checkpoint, hooks, self._save))

    def _save(self, checkpoint: Any, hook: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> None:
        """The hook, with NaN for what is not known yet: no metric keeps a checkpoint from being saved, none is removed, and
        no file name shows a number that nobody measured."""
        metrics = trainer.callback_metrics
        missing = [name for name in _names_needed(checkpoint) if name not in metrics]
        kept = checkpoint.save_top_k
        metrics.update(_tensors({name: math.nan for name in missing}))
        if checkpoint.monitor in missing:
            checkpoint.save_top_k = -1
        try:
            hook(trainer, *args, **kwargs)
        finally:
            checkpoint.save_top_k = kept
            for name in missing:
                metrics.pop(name, None)
        if checkpoint.monitor in missing:
            self._note(checkpoint)
            self._rank(checkpoint)
        else:  # Training logs this metric itself.
            self._known[checkpoint.state_key] = set(checkpoint.best_k_models)

    def _note(self, checkpoint: Any) -> None:
        """A file that was not there before was saved at this step."""
        known = self._known[checkpoint.state_key]
        for path, score in checkpoint.best_k_models.items():
            if path not in known and not math.isfinite(float(score)):
                self._waiting[checkpoint.state_key][path] = self._trainer.global_step
        known.update(checkpoint.best_k_models)

    def _judge(self, checkpoint: Any, news: News) -> None:
        """A failed evaluation says nothing about its checkpoint, so its file stays. A skipped one was not wanted."""
        waiting = self._waiting[checkpoint.state_key]
        value = news.metrics.get(checkpoint.monitor)
        if value is None and not (news.complete and news.state == "skipped"):
            return
        for path in [path for path, step in waiting.items() if step == news.step]:
            del waiting[path]
            if value is not None and not math.isnan(value):
                checkpoint.best_k_models[path] = checkpoint.current_score = _tensor(value)
        self._rank(checkpoint)

    def _rank(self, checkpoint: Any) -> None:
        """What ModelCheckpoint does when it saves, for the files whose metrics are known by now."""
        scores, waiting = checkpoint.best_k_models, self._waiting[checkpoint.state_key]
        sign = -1.0 if checkpoint.mode == "max" else 1.0
        judged = [path for path in scores if path not in waiting]
        order = sorted(judged, key=lambda path: sign * float(scores[path]))  # Of equals, the earlier one comes first.
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
        in_use = [self._trainer.ckpt_path] if self._trainer.ckpt_path else []
        if checkpoint.save_last == "link" and checkpoint.last_model_path:
            in_use.append(checkpoint.last_model_path)
        if os.path.realpath(path) not in {os.path.realpath(str(each)) for each in in_use}:
            del checkpoint.best_k_models[path]
            self._known[checkpoint.state_key].discard(path)  # A later step may be saved to it.
            self._trainer.strategy.remove_checkpoint(path)

    # -- EarlyStopping and schedulers

    def _check(self, stopper: Any, hook: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> None:
        """The hook, where training logs the metric itself."""
        if stopper.monitor in trainer.callback_metrics:
            hook(trainer, *args, **kwargs)

    def _tell(self, news: News) -> None:
        trainer = self._trainer
        logged = trainer.callback_metrics
        for stopper, hooks in self._stoppers.items():
            if stopper in self._stopped or stopper.monitor not in news.metrics or stopper.monitor in logged:
                continue
            logged[stopper.monitor] = _tensor(news.metrics[stopper.monitor])
            asked_before, trainer.should_stop = trainer.should_stop, False
            try:
                for hook in hooks:  # One of them checks, by check_on_train_epoch_end; the other returns.
                    hook(trainer, trainer.lightning_module)
                if trainer.should_stop:  # All ranks decide together, whatever one of them was asked before.
                    self._stopped.add(stopper)
            finally:
                logged.pop(stopper.monitor, None)
                trainer.should_stop = trainer.should_stop or asked_before
        for config in self._schedulers:
            if config.monitor in news.metrics and config.monitor not in logged:
                trainer.lightning_module.lr_scheduler_step(config.scheduler, _tensor(news.metrics[config.monitor]))

    def _look_for_names(self, news: News) -> None:
        """A monitored name that no suite has is said once, when the first result of each suite is there."""
        if not news.metrics or news.suite in self._heard:
            return
        self._heard.add(news.suite)
        self._names.update(news.metrics)
        if self._heard < self._suites or not self._trainer.is_global_zero:
            return
        for who, name in _monitored(self._checkpoints, self._stoppers, self._schedulers).items():
            if name not in self._names and name not in self._trainer.callback_metrics:
                log.warning(
                    "%s waits for %s, which neither training nor suite %s gives; change its monitor to one of: %s",
                    who,
                    name,
                    ", ".join(sorted(self._suites)),
                    ", ".join(sorted(self._names)),
                )


def said_before(trainer: Any, has_callback: bool) -> List[str]:
    """What will not work in this fit, each with what to change. has_callback: EvalqCallback is there, not the logger alone."""
    said = []
    checkpoints = [each for each in trainer.callbacks if _is_a(each, "ModelCheckpoint")]
    if any(_never_saves(trainer, checkpoint) for checkpoint in checkpoints):
        said.append(
            "ModelCheckpoint saves nothing: with limit_val_batches=0 it waits for a validation that never comes; give it"
            " save_on_train_epoch_end=True (and every_n_epochs), or every_n_train_steps"
        )
    if validates_here(trainer):
        return said
    stoppers = [each for each in trainer.callbacks if _is_a(each, "EarlyStopping")]
    schedulers = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    if not has_callback:
        for who, name in _monitored(checkpoints, stoppers, schedulers).items():
            said.append(
                f"EvalqLogger cannot give {name} to {who}: if training itself does not log {name}, replace"
                " logger=EvalqLogger(...) by callbacks=[EvalqCallback(...)]"
            )
    for checkpoint in checkpoints:
        late = [name for name in _names_needed(checkpoint) if name == checkpoint.monitor or name.startswith("val")]
        shown = [name for name in late if name in _FILE_NAME_FIELD.findall(checkpoint.filename or "")]
        if shown:
            said.append(
                f"file names of checkpoints show nan for {', '.join(shown)}, which is not known when a checkpoint is saved;"
                ' use ModelCheckpoint(filename="{epoch}-{step}")'
            )
    return said


def validates_here(trainer: Any) -> bool:
    """Whether this fit runs validation_step()."""
    return bool(trainer.enable_validation)


def _names_needed(checkpoint: Any) -> List[str]:
    fields = _FILE_NAME_FIELD.findall(checkpoint.filename or "")
    names = [name for name in fields if name not in ("epoch", "step")]
    return [*names, checkpoint.monitor] if checkpoint.monitor is not None else names


def _monitored(checkpoints: Sequence[Any], stoppers: Any, schedulers: Sequence[Any]) -> Dict[str, str]:
    """What monitors a metric, as a user wrote it, and the metric."""
    found = {f"{type(each).__name__}(monitor={each.monitor!r})": str(each.monitor) for each in checkpoints if each.monitor}
    found.update({f"{type(each).__name__}(monitor={each.monitor!r})": str(each.monitor) for each in stoppers})
    found.update({f"{type(each.scheduler).__name__} with monitor {each.monitor!r}": str(each.monitor) for each in schedulers})
    return found


def _is_a(callback: Any, name: str) -> bool:
    """Whether it is Lightning's callback of this name, under either import name, or made from it."""
    return any(
        kind.__name__ == name and kind.__module__.startswith(("lightning.", "pytorch_lightning."))
        for kind in type(callback).__mro__
    )


def _wrap(callback: Any, names: Sequence[str], around: Callable[..., None]) -> Iterator[Callable[..., Any]]:
    """around(callback, hook, ...) is called in place of each hook; gives the hooks."""
    for name in names:
        hook = getattr(callback, name)
        setattr(callback, name, functools.partial(around, callback, hook))
        yield hook


def _never_saves(trainer: Any, checkpoint: Any) -> bool:
    """With check_val_every_n_epoch and the like it saves when validation here has ended."""
    after_epochs = getattr(checkpoint, "_should_save_on_train_epoch_end", None)
    if getattr(trainer, "limit_val_batches", None) != 0 or after_epochs is None:
        return False
    return bool(getattr(checkpoint, "_every_n_epochs", 0) >= 1 and not after_epochs(trainer))


def _tensor(value: float) -> Any:
    import torch

    return torch.tensor(value)


def _tensors(values: Mapping[str, float]) -> Dict[str, Any]:
    return {name: _tensor(value) for name, value in values.items()}
