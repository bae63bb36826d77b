"""evalq in Lightning, under both of its import names (lightning, pytorch_lightning).

    from evalq.integrations.lightning import EvalqCallback

    trainer = Trainer(callbacks=[EvalqCallback("val")], limit_val_batches=0)

evalq's workers evaluate each checkpoint that ModelCheckpoint saves, while training continues. The
results reach the trainer's loggers at the checkpoint's step. See docs/lightning.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Union

from ..result import Best, Result
from .due_evaluations import Evaluation
from .guarded import guarded
from .lightning_files import own_file
from .lightning_training import LightningTraining, current_epoch, metric_name
from .monitors import EndedEvaluation, Monitors, setup_warnings
from .options import refused

__all__ = ["EvalqCallback", "EvalqLogger", "metric_name"]

log = logging.getLogger("evalq")

_SLICE_SECONDS = 2.0  # At the end of fit, other ranks wait for rank 0 at most so long at a time.


def _frameworks() -> List[Any]:
    """The Lightning package that the program has imported, else all that are installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = [name for name in names if name in sys.modules]
    if not found:
        found = [name for name in names if importlib.util.find_spec(name.partition(".")[0])]
    if not found:
        raise ImportError(
            "evalq.integrations.lightning needs Lightning: pip install 'evalq[lightning]'"
        )
    return [importlib.import_module(name) for name in found]


_FRAMEWORKS = _frameworks()
# Each package accepts only callbacks and loggers of its own base classes, so these have both.
_CallbackBase: Any = type("_CallbackBase", tuple(module.Callback for module in _FRAMEWORKS), {})
_LoggerBase: Any = type(
    "_LoggerBase",
    tuple(importlib.import_module(module.__name__ + ".loggers").Logger for module in _FRAMEWORKS),
    {},
)


def _has_whole_weights(trainer: Any) -> bool:
    """Whether rank 0 has all weights."""
    return bool(trainer.world_size == 1 or "DDP" in type(trainer.strategy).__name__)


def _calling_trainer() -> Any:
    """The trainer among the callers of this function, because Lightning does not pass it to
    loggers. None: there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("trainer")
        if hasattr(type(found), "fit_loop") or "fit_loop" in getattr(found, "__dict__", {}):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _other_loggers(trainer: Any) -> List[Any]:
    loggers = getattr(trainer, "loggers", ())
    return [logger for logger in loggers if not isinstance(logger, EvalqLogger)]


def _without_self(arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """The arguments of an __init__() whose locals() are given."""
    return {name: value for name, value in arguments.items() if name not in ("self", "__class__")}


_Suites = Union[str, Sequence[str], None]
_Names = Optional[Callable[[Result], Optional[str]]]


class EvalqLogger(_LoggerBase):  # type: ignore[misc]
    """Submits each checkpoint when its file is complete. It writes no logs itself.

    For Trainer(logger=[..., EvalqLogger("val")]). It submits on rank 0 and hands results to the
    trainer's other loggers. It does not wait at the end of fit; evalq-logger records what arrives
    later. Its options are those of EvalqCallback.
    """

    def __init__(
        self,
        suites: _Suites = None,
        url: Optional[str] = None,
        run: Optional[str] = None,
        *,
        names: _Names = None,
        policy: Optional[str] = None,
        priority: Optional[str] = None,
        variant: str = "regular",
        params: Optional[Mapping[str, Any]] = None,
        trackers: Optional[Mapping[str, Any]] = None,
        hold_seconds: float = 60.0,
        queue: Optional[str] = None,
        config: Optional[str] = None,
    ) -> None:
        super().__init__()
        options = _without_self(locals())
        self._refused = refused("EvalqLogger", options)
        if self._refused:
            options["suites"] = None
        self._training = LightningTraining(
            {**options, "wait": 0.0, "monitor": None, "mode": "min", "snapshots": 2}
        )
        self._failed: Set[str] = set()
        self._trainer: Any = None
        self._has_callback = False  # An EvalqCallback begins and ends the training.
        self._version = time.strftime("%Y%m%d-%H%M%S")

    @property
    def name(self) -> str:
        """A part of ModelCheckpoint's directory if this is the first logger."""
        return "evalq"

    @property
    def version(self) -> str:
        """Another part of that directory."""
        return self._training.run or self._version

    @guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Lightning calls it on rank 0 after the write; with AsyncCheckpointIO, before the
        write."""
        last_saved = getattr(checkpoint_callback, "_last_checkpoint_saved", "")
        path = str(last_saved or checkpoint_callback.best_model_path)
        step = int(getattr(checkpoint_callback, "_last_global_step_saved", 0))
        self._trainer = self._trainer or _calling_trainer()
        if not path:
            return
        if self._training.training_run is None and not self._has_callback:
            self._training.begin(os.path.dirname(path), {})
        self._training.saved(self._trainer, path, step)

    @guarded
    def log_metrics(self, metrics: Mapping[str, float], step: Optional[int] = None) -> None:
        """Ignores the metrics. Lightning calls it often, so it hands on arrived results here."""
        if not self._has_callback and self._training.training_run is not None:
            self._training.submit_written()
            evaluations = self._training.training_run.look()
            self._training.take(_other_loggers(self._trainer), evaluations)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing; Logger requires the method."""

    @guarded
    def log_graph(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls it before training, so it warns here of what will not work."""
        trainer = _calling_trainer()
        if trainer is None or any(isinstance(each, EvalqCallback) for each in trainer.callbacks):
            return
        for text in setup_warnings(trainer, has_callback=False):
            log.warning("%s", text)

    @guarded
    def finalize(self, status: str) -> None:
        """Lightning calls it at the end of fit."""
        if not self._has_callback and self._training.training_run is not None:
            self._training.submit_written(include_missing=True)
            evaluations = self._training.training_run.look(now=True)
            self._training.take(_other_loggers(self._trainer), evaluations)
            self._training.end()


class EvalqCallback(_CallbackBase):  # type: ignore[misc]
    """Has workers evaluate each saved checkpoint; without a ModelCheckpoint, each epoch's weights.

    suites    Names from the workers' configuration, "val" or ["val", "full"]. Default:
              $EVALQ_SUITES, else "val".
    url       Redis. Default: as evalq's programs find it ($EVALQ_URL, ./.evalq/url, the
              configuration).
    run       Default: $EVALQ_RUN, else the directory's name and a hash. A resumed training keeps
              its run.
    monitor   The metric that decides which checkpoint is the best, such as "val_loss"; with mode
              "min" or "max".
    patience  Training stops after so many evaluations in a row that were not better by monitor.
              None: never.
    wait      The end of fit waits for results at most so many seconds. 0: it does not wait.
    names     Function from evalq.Result to the name in the loggers; None leaves the metric out.
              Default: names such as val_loss.
    policy    "all" (default), "latest" or "backfill". The last two are for evaluation that is
              slower than training.
    newest    True: a worker that has nothing else to do evaluates the newest weights, again and
              again.
    significant   True: an evaluation is better by monitor only if a paired test of its samples says
              so, for the best and for patience. It needs a suite with `samples: true`.
    hold_seconds  A result waits so long for those of earlier steps, so that the order is right.
    snapshots     How many unsaved weights may be in shared memory at the same time.

    The other options are those of evalq.Client and Client.submit(). No method raises into training.
    """

    def __init__(
        self,
        suites: _Suites = None,
        url: Optional[str] = None,
        run: Optional[str] = None,
        *,
        monitor: Optional[str] = None,
        mode: str = "min",
        patience: Optional[int] = None,
        wait: float = 600.0,
        names: _Names = None,
        policy: Optional[str] = None,
        newest: bool = False,
        significant: bool = False,
        priority: Optional[str] = None,
        variant: str = "regular",
        params: Optional[Mapping[str, Any]] = None,
        trackers: Optional[Mapping[str, Any]] = None,
        hold_seconds: float = 60.0,
        snapshots: int = 4,
        queue: Optional[str] = None,
        config: Optional[str] = None,
    ) -> None:
        super().__init__()
        options = _without_self(locals())
        self._refused = refused("EvalqCallback", options)
        self._training = LightningTraining(
            {**options, "suites": None} if self._refused else options
        )
        self._patience = patience
        self._newest = False  # Whether this rank submits the newest weights in this fit.
        self._monitors: Optional[Monitors] = None  # Exists on every rank during fit.
        # Ended evaluations that rank 0 has not broadcast yet.
        self._ended: List[EndedEvaluation] = []
        self._broadcast_step = -1  # The step of the last broadcast.
        self._failed: Set[str] = set()
        self._loaded_state: Dict[str, Any] = {}
        self._logger: Optional[EvalqLogger] = None
        self._loggers_before: Optional[List[Any]] = None

    @property
    def best(self) -> Optional[Best]:
        """The best checkpoint so far by monitor. None on other ranks than 0."""
        best = self._training.best
        if best is None:
            return None
        return Best(str(self._training.options["monitor"]), best[0], best[1], best[2] or None)

    @property
    def run(self) -> str:
        """The run's name in the queue; "" before training."""
        return self._training.run

    # -- Lightning's hooks

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.fast_dev_run:
            return
        loaded, self._loaded_state = self._loaded_state, {}
        state = loaded if trainer.global_step > 0 else {}
        self._ended = []
        self._monitors = Monitors(trainer, self._training.suites, state.get("monitors", {}))
        if not trainer.is_global_zero:
            return
        if state and trainer.ckpt_path:
            state = self._with_resumed_checkpoint(trainer, state)
        self._training.begin(str(trainer.default_root_dir), state)
        self._add_logger(trainer)
        for text in setup_warnings(trainer, has_callback=True):
            log.warning("%s", text)
        self._training.submit_again(trainer.global_step)
        self._begin_newest(trainer, pl_module)

    @guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        # A checkpoint of the last step has been submitted by now.
        run = self._training.training_run
        if self._newest and run is not None:
            options = self._training.submit_options()
            options["policy"] = options["policy"] or "latest"
            epoch = current_epoch(trainer)
            run.submit_newest(pl_module.state_dict, trainer.global_step, epoch, **options)

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        try:
            self._training.note_step(trainer)
            self._look(trainer)
        finally:  # The other ranks wait for the broadcast, so no error may prevent it.
            if trainer.world_size == 1 or self._broadcast_is_due(trainer):
                self._broadcast(trainer)

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        try:
            self._training.note_step(trainer)
            run = self._training.training_run
            every = trainer.check_val_every_n_epoch or 1
            due = (trainer.current_epoch + 1) % every == 0
            if run is not None and not trainer.checkpoint_callbacks and due:
                options = self._training.submit_options()
                options["policy"] = options["policy"] or "all"
                epoch = current_epoch(trainer)
                state_dict = pl_module.state_dict()
                run.submit_state_dict(state_dict, trainer.global_step, epoch, **options)
            self._look(trainer, now=True)
        finally:
            self._broadcast(trainer)

    @guarded
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        # The strategy has ended its threads, so all saves are on disk.
        if trainer.fast_dev_run:
            return
        began = time.monotonic()
        if self._training.training_run is not None:
            self._training.submit_written(include_missing=True)
        done = False
        while not done:
            done = self._wait_for_last(trainer, began)
            ended, self._ended = self._ended, []
            if trainer.world_size > 1:
                done, ended = trainer.strategy.broadcast((done, ended))
            if self._monitors is not None:
                self._monitors.take(ended, training_ended=True)
        self._set_best_model(trainer)

    @guarded
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._monitors is not None:
            self._monitors.end()
            self._monitors = None
        if self._loggers_before is not None:
            trainer.loggers = self._loggers_before
            self._loggers_before = None
        if self._training.training_run is not None:
            self._training.end()

    def state_dict(self) -> Dict[str, Any]:
        """Lightning stores it in each checkpoint."""
        state = self._training.state()
        if self._monitors is not None:
            state = {**state, "monitors": self._monitors.state()}
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Lightning calls it before on_train_start() if training resumes."""
        self._loaded_state = dict(state_dict)

    # -- the beginning of a fit

    def _with_resumed_checkpoint(self, trainer: Any, state: Dict[str, Any]) -> Dict[str, Any]:
        """Adds the checkpoint that training resumes from: when it stored its state, it was not
        complete, and so it was not submitted."""
        step, epoch = trainer.global_step, current_epoch(trainer)
        path = own_file(os.path.realpath(str(trainer.ckpt_path)), step)
        variant = self._training.options["variant"]
        due = [[step, suite, variant, epoch] for suite in self._training.suites]
        return {
            **state,
            "pending": [*state.get("pending", ()), *due],
            "paths": {**state.get("paths", {}), step: path},
        }

    def _add_logger(self, trainer: Any) -> None:
        """Lightning reports a save only to loggers, so the callback needs one."""
        for logger in trainer.loggers:
            if isinstance(logger, EvalqLogger):
                self._logger = logger
        if self._logger is None or self._logger not in trainer.loggers:
            self._logger = EvalqLogger()
            self._loggers_before = list(trainer.loggers)
            trainer.loggers = [*trainer.loggers, self._logger]
        self._logger._has_callback = True
        self._logger._training = self._training
        self._logger._trainer = trainer

    def _begin_newest(self, trainer: Any, pl_module: Any) -> None:
        wanted = bool(self._training.options["newest"])
        self._newest = wanted and _has_whole_weights(trainer)
        if wanted and not self._newest:
            log.warning(
                "newest=True is ignored: %s shards the weights, so rank 0 does not have all of"
                " them; let ModelCheckpoint save more often instead",
                type(trainer.strategy).__name__,
            )
        run = self._training.training_run
        if run is not None and (self._newest or not trainer.checkpoint_callbacks):
            run.reserve_state_dict(pl_module.state_dict())

    # -- results

    def _look(self, trainer: Any, now: bool = False) -> None:
        if self._training.training_run is not None:
            self._training.submit_written()
            self._take(trainer, self._training.training_run.look(now))

    def _take(self, trainer: Any, evaluations: Sequence[Evaluation]) -> None:
        """Uses the evaluations on rank 0, and stores them for the broadcast to all ranks."""
        run = self._training.training_run
        for each in evaluations:
            if run is not None and run.is_between(each.step):
                continue
            complete = run is None or not run.is_pending(each.step)
            superseded = each.state == "skipped" and each.reason.startswith("superseded")
            self._ended.append(
                EndedEvaluation(each.step, each.suite, superseded, dict(each.metrics), complete)
            )
        self._training.take(_other_loggers(trainer), evaluations)

    def _broadcast_is_due(self, trainer: Any) -> bool:
        """True on all ranks at the same steps. An epoch may be the whole training."""
        step, before = trainer.global_step, self._broadcast_step
        self._broadcast_step = step
        return bool(step != before and step % max(1, trainer.log_every_n_steps) == 0)

    def _broadcast(self, trainer: Any) -> None:
        """Gives all ranks the ended evaluations, and stops training if patience has run out. Every
        rank must call it at the same steps."""
        ended, self._ended = self._ended, []
        stop = self._patience is not None and self._training.not_better >= self._patience
        if trainer.world_size > 1 and (self._patience is not None or self._monitors):
            ended, stop = trainer.strategy.broadcast((ended, stop))
        if self._monitors is not None:
            self._monitors.take(ended)
        trainer.should_stop = trainer.should_stop or stop

    def _wait_for_last(self, trainer: Any, began: float) -> bool:
        """Waits a while for results. Returns whether there is nothing more to wait for."""
        run = self._training.training_run
        if run is None:
            return True
        try:
            evaluations, done = run.last(began, _SLICE_SECONDS)
            self._take(trainer, evaluations)
            return done
        except Exception as error:  # The other ranks wait for the broadcast, so go on.
            log.warning(
                "the trainer did not get some results: %s: %s", type(error).__name__, error
            )
            return True

    def _set_best_model(self, trainer: Any) -> None:
        """Tells ModelCheckpoint the best checkpoint, for trainer.test(ckpt_path="best")."""
        best = None
        if self._training.training_run is not None:
            self._training.restore_best()
            best = self._training.best
        if self._training.options["monitor"] and trainer.world_size > 1:
            best = trainer.strategy.broadcast(best)
        checkpoint = trainer.checkpoint_callback
        if best is None or checkpoint is None or getattr(checkpoint, "monitor", None) is not None:
            return
        value, _, path = best
        if path and os.path.exists(path):
            import torch

            checkpoint.best_model_path = path
            checkpoint.best_model_score = torch.tensor(value)
