"""The state of one Lightning fit on rank 0, which EvalqCallback and EvalqLogger share."""

from __future__ import annotations

import logging
import math
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..client import Client
from ..result import Result
from .best import beats
from .due_evaluations import Evaluation
from .lightning_files import saves_later
from .open_trackers import open_trackers
from .options import suite_names
from .paired_test import PairedTest
from .quiet_client import default_run
from .training_run import TrainingRun

log = logging.getLogger("evalq")

# A native task with one of these names keeps the plain metric name, as Lightning's own validation.
_PLAIN_TASKS = ("val", "validate", "validation", "eval", "")


def metric_name(result: Result) -> str:
    """The name in the loggers: as validation_step() logs it, such as val_loss. Other tasks keep the
    whole key, such as eval/digits/accuracy."""
    plain = (
        "/" in result.metric
        or result.metric.startswith(("val", "test"))
        or result.task in _PLAIN_TASKS
    )
    name = result.metric if plain else result.key
    return name if result.variant == "regular" or not plain else f"{result.variant}_{name}"


class LightningTraining:
    """Submits the checkpoints of one fit and hands the results to the trainer's loggers.

    options are the arguments of EvalqCallback. Not thread-safe. begin() starts a fit; before it,
    and on other ranks, the methods do nothing.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.suites = suite_names(options["suites"], os.environ.get("EVALQ_SUITES") or "val")
        self.run = ""  #: The run's name in the queue; "" before begin().
        self.training_run: Optional[TrainingRun] = None  #: None outside of a fit.
        self.best: Optional[Tuple[float, int, str]] = None  #: (value, step, path) by `monitor`.
        significant = options.get("significant") is True
        self._paired_test = PairedTest(options["config"]) if significant else None
        self.not_better = 0  #: How many evaluations in a row were not better than the best.
        self._paths: Dict[int, str] = {}  # Step -> path, for the steps that are due.
        # Step -> where Lightning's own validation would have logged it, because loggers count
        # batches.
        self._logger_steps: Dict[int, int] = {}
        self._unwritten: List[Tuple[str, int, Optional[float]]] = []  # Path, step, epoch.
        self._last_saved_step = -1
        self._current_step = -1  # The step of the last batch.
        self._warned_overwritten = False

    def begin(self, directory: str, state: Mapping[str, Any]) -> None:
        """Begins a fit. state is what state() returned in an earlier session of the run, else {}.
        directory gives the run its name, if nothing else does."""
        self.not_better = 0
        self._last_saved_step = -1
        self._current_step = -1
        self._unwritten = []
        options = self.options
        self.run = options["run"] or state.get("run") or default_run(directory)
        self._paths = {int(step): str(path) for step, path in dict(state.get("paths", {})).items()}
        steps = dict(state.get("axis", {}))
        self._logger_steps = {int(step): int(logger_step) for step, logger_step in steps.items()}
        best = state.get("best")
        self.best = (float(best[0]), int(best[1]), str(best[2])) if best else None
        self.training_run = TrainingRun(
            lambda: Client(
                options["url"],
                self.run,
                queue=options["queue"],
                config=options["config"],
                snapshots=options["snapshots"],
            ),
            self.suites,
            options["variant"],
            options["names"] or metric_name,
            max(0.0, float(options["wait"])),
            options["hold_seconds"],
            state.get("pending", ()),
        )
        self.run = self.training_run.open() or self.run

    def state(self) -> Dict[str, Any]:
        """The state that a checkpoint stores, so that a resumed training repeats and forgets
        nothing."""
        if self.training_run is None:
            return {}
        pending = self.training_run.pending()
        steps = {each[0] for each in pending}
        logger_steps = {
            step: logger_step
            for step, logger_step in self._logger_steps.items()
            if step in steps or step == self._current_step
        }
        return {
            "run": self.run,
            "pending": pending,
            "paths": {step: path for step, path in self._paths.items() if step in steps},
            "best": self.best,
            "axis": logger_steps,  # This name is in checkpoints of earlier versions, too.
        }

    def note_step(self, trainer: Any) -> None:
        """Call it when a batch or an epoch ends. A checkpoint of this step gets its logger step."""
        if self.training_run is not None:
            if not self.training_run.is_pending(self._current_step):
                self._logger_steps.pop(self._current_step, None)
            self._current_step = trainer.global_step
            self._logger_steps[self._current_step] = _logger_step(trainer)

    def saved(self, trainer: Any, path: str, step: int) -> None:
        """Submits a checkpoint that was saved. If a thread writes it later, it is submitted
        then."""
        # Lightning may save a step twice, the second time as last.ckpt.
        if self.training_run is None or step == self._last_saved_step:
            return
        if "://" in path:
            reason = "evalq evaluates local paths"
            log.warning("step %d was not submitted: %s, not %s", step, reason, path)
            return
        if path in self._paths.values() and saves_later(trainer):
            self._refuse_overwritten(path, step)
            return
        self._last_saved_step = step
        epoch = current_epoch(trainer)
        self._logger_steps.setdefault(step, _logger_step(trainer))
        self._paths[step] = path
        self.training_run.due(step, epoch)
        self._unwritten.append((path, step, epoch))
        self.submit_written()

    def _refuse_overwritten(self, path: str, step: int) -> None:
        """Refuses a step that a thread will save over the path of an earlier step, because nobody
        tells when the path changes from one step's weights to the other's."""
        assert self.training_run is not None
        self.submit_written()
        for earlier in [each for each in self._unwritten if each[0] == path]:
            self.training_run.forget(earlier[1])
            self._unwritten.remove(earlier)
        log.log(
            logging.DEBUG if self._warned_overwritten else logging.WARNING,
            "step %d was not submitted: AsyncCheckpointIO saves each step to %s, so evalq cannot"
            " know which step the file holds; put {step} into ModelCheckpoint's filename",
            step,
            path,
        )
        self._warned_overwritten = True

    def submit_written(self, include_missing: bool = False) -> None:
        """Submits the saved checkpoints whose files exist. include_missing: also the others."""
        if self.training_run is None:
            return
        missing = []
        for path, step, epoch in self._unwritten:
            if include_missing or os.path.lexists(path):
                self.training_run.submit(path, step, epoch, **self.submit_options())
            else:
                missing.append((path, step, epoch))
        self._unwritten = missing

    def submit_again(self, resumed_step: int) -> None:
        """Submits what an earlier session of the run saved and may not have submitted; the queue
        ignores what it has already. resumed_step is the step that training continues from; its
        checkpoint is at its path."""
        if self.training_run is None:
            return
        held = self.training_run.held
        saved = list(self._paths.items())
        if self.best and self.best[2]:
            saved.append((self.best[1], self.best[2]))
        for folder in {os.path.dirname(path) for _, path in saved}:
            held.adopt(folder, saved)
        self.restore_best()
        for step, suite, _, epoch in self.training_run.pending():
            path: Optional[str] = self._paths.get(step)
            if path and step != resumed_step:
                path = held.put_back(step, path)
            if path and suite == self.suites[0]:
                self._paths[step] = path
                self.training_run.submit(path, step, epoch, **self.submit_options())

    def submit_options(self) -> Dict[str, Any]:
        """The arguments that are the same for all submits."""
        options = {name: self.options[name] for name in ("policy", "priority", "params")}
        return {**options, "trackers": open_trackers(self.options["trackers"])}

    def take(self, loggers: Sequence[Any], evaluations: Sequence[Evaluation]) -> None:
        """Hands the metrics to the loggers, and updates the best."""
        for evaluation in evaluations:
            run = self.training_run
            if evaluation.metrics:
                self._log(loggers, evaluation)
                if run is None or not run.is_between(evaluation.step):
                    self._update_best(evaluation)
            if run is not None:
                is_best = self.best is not None and self.best[1] == evaluation.step
                run.settle(evaluation.step, keep=is_best)

    def _log(self, loggers: Sequence[Any], evaluation: Evaluation) -> None:
        logger_step = self._logger_steps.get(evaluation.step, evaluation.step)
        for logger in loggers:
            try:
                logger.log_metrics(dict(evaluation.metrics), step=logger_step)
                logger.save()
            except Exception as error:  # A tracker's error must not stop training.
                log.warning(
                    "step %d: %s: %s: %s",
                    evaluation.step,
                    type(logger).__name__,
                    type(error).__name__,
                    error,
                )

    def _update_best(self, evaluation: Evaluation) -> None:
        monitor = self.options["monitor"]
        value = evaluation.metrics.get(monitor) if monitor else None
        if value is None:
            return
        greater = self.options["mode"] == "max"
        old = self.best
        confirm = None
        if self._paired_test is not None:
            confirm = self._paired_test.confirm(evaluation, monitor, greater)
        if math.isnan(value) or (
            old is not None and not beats(value, evaluation.step, old[:2], greater, confirm)
        ):
            self.not_better += 1
            return
        self.not_better = 0
        self.best = (value, evaluation.step, self._paths.get(evaluation.step, ""))
        if old is not None and self.training_run is not None:
            self.training_run.settle(old[1])

    def restore_best(self) -> None:
        """Puts the best checkpoint back, if ModelCheckpoint has removed or overwritten it."""
        if self.best is not None and self.best[2] and self.training_run is not None:
            value, step, path = self.best
            self.best = (value, step, self.training_run.held.put_back(step, path) or "")

    def end(self) -> None:
        """Ends the fit and closes the client. Unsent submits stay on disk."""
        if self.training_run is not None:
            self.training_run.close()
            self.training_run = None


def current_epoch(trainer: Any) -> Optional[float]:
    """The trainer's epoch; None if it has none."""
    value = getattr(trainer, "current_epoch", None)
    return float(value) if value is not None else None


def _logger_step(trainer: Any) -> int:
    """The step at which Lightning's validation would log now: the number of the last batch that
    stepped, from 0. Lightning increments it after validation and before the epoch ends."""
    loop = trainer.fit_loop
    epoch = loop.epoch_progress.current
    return int(loop.epoch_loop._batches_that_stepped) - int(epoch.processed > epoch.completed)
