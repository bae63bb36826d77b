"""evalq in Lightning, under either of its names (lightning, pytorch_lightning).

    from evalq.integrations.lightning import EvalqCallback

    trainer = Trainer(callbacks=[EvalqCallback("val")], limit_val_batches=0)

Each checkpoint that ModelCheckpoint saves is evaluated by evalq's workers while training goes on, and the results
reach the trainer's loggers at its step. See docs/lightning.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from .._trackers import open_trackers
from ..client import Client
from ..result import Best, Result
from .best import beats
from .run_client import default_run
from .guarded import guarded
from .due_evaluations import Evaluation
from .lightning_files import own_file, saves_later
from .monitors import Monitors, News, said_before
from .options import refused, suite_names
from .training_run import TrainingRun

log = logging.getLogger("evalq")

_SLICE_SECONDS = 2.0  # Other ranks wait no longer than this for rank 0.
_OWN_TASKS = ("val", "validate", "validation", "eval", "")


def _frameworks() -> List[Any]:
    """The one that the program uses; all that are installed where that is not known yet."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = [name for name in names if name in sys.modules]
    if not found:
        found = [name for name in names if importlib.util.find_spec(name.partition(".")[0]) is not None]
    if not found:
        raise ImportError("evalq.integrations.lightning needs Lightning: pip install 'evalq[lightning]'")
    return [importlib.import_module(name) for name in found]


_FRAMEWORKS = _frameworks()
# Lightning asks whether a callback or logger is one of its own; the two packages do not know each other.
_CallbackBase: Any = type("_CallbackBase", tuple(module.Callback for module in _FRAMEWORKS), {})
_LoggerBase: Any = type(
    "_LoggerBase", tuple(importlib.import_module(module.__name__ + ".loggers").Logger for module in _FRAMEWORKS), {}
)


def metric_name(result: Result) -> str:
    """As validation_step() logs it: val_loss. A native task keeps its whole key, eval/digits/accuracy."""
    plain = "/" in result.metric or result.metric.startswith(("val", "test")) or result.task in _OWN_TASKS
    name = result.metric if plain else result.key
    return name if result.variant == "regular" or not plain else f"{result.variant}_{name}"


class _Training:
    """What callback and logger share: one fit, seen from rank 0."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.suites = suite_names(options["suites"], os.environ.get("EVALQ_SUITES") or "val")
        self.run = ""
        self.watch: Optional[TrainingRun] = None
        self.paths: Dict[int, str] = {}  # Of the steps that are due.
        self.best: Optional[Tuple[float, int, str]] = None  # Value, step, path.
        self.bad = 0  # Evaluations in a row that were not better.
        self._axis: Dict[int, int] = {}  # Where validation here would have logged the step: loggers count batches.
        self._unwritten: List[Tuple[str, int, Optional[float]]] = []
        self._last_step = -1
        self._moment = -1  # The step of the last batch.
        self._said_overwritten = False

    def begin(self, directory: str, kept: Mapping[str, Any]) -> None:
        """kept: what keep() gave to an earlier life of the run. Of another fit nothing counts any more."""
        self.bad, self._last_step, self._moment, self._unwritten = 0, -1, -1, []
        options = self.options
        self.run = options["run"] or kept.get("run") or default_run(directory)
        self.paths = {int(step): str(path) for step, path in dict(kept.get("paths", {})).items()}
        self._axis = {int(step): int(axis) for step, axis in dict(kept.get("axis", {})).items()}
        best = kept.get("best")
        self.best = (float(best[0]), int(best[1]), str(best[2])) if best else None
        self.watch = TrainingRun(
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
            kept.get("pending", ()),
        )
        self.run = self.watch.open() or self.run

    def keep(self) -> Dict[str, Any]:
        """What a checkpoint keeps, so that a resumed training repeats nothing and forgets nothing."""
        if self.watch is None:
            return {}
        pending = self.watch.pending()
        steps = {each[0] for each in pending}
        paths = {step: path for step, path in self.paths.items() if step in steps}
        axis = {step: axis for step, axis in self._axis.items() if step in steps or step == self._moment}
        return {"run": self.run, "pending": pending, "paths": paths, "best": self.best, "axis": axis}

    def moment(self, trainer: Any) -> None:
        """A batch or an epoch ends. What is saved now says of itself where its metrics belong."""
        if self.watch is not None:
            if not self.watch.is_pending(self._moment):
                self._axis.pop(self._moment, None)
            self._moment = trainer.global_step
            self._axis[self._moment] = _logger_step(trainer)

    def saved(self, trainer: Any, path: str, step: int) -> None:
        """A checkpoint was saved, or handed to a thread that saves it."""
        if self.watch is None or step == self._last_step:  # last.ckpt, of the same step.
            return
        if "://" in path:
            log.warning("step %d was not submitted: evalq evaluates local paths, not %s", step, path)
            return
        if path in self.paths.values() and saves_later(trainer):
            self._refuse_overwritten(self.watch, path, step)
            return
        self._last_step = step
        epoch = _epoch(trainer)
        self._axis.setdefault(step, _logger_step(trainer))
        self.paths[step] = path
        self.watch.due(step, epoch)
        self._unwritten.append((path, step, epoch))
        self.submit_written()

    def _refuse_overwritten(self, watch: TrainingRun, path: str, step: int) -> None:
        """What lies there is of the step before until a thread has written: when that was, nobody tells."""
        self.submit_written()
        for _, earlier, _ in [each for each in self._unwritten if each[0] == path]:
            watch.forget(earlier)
        self._unwritten = [each for each in self._unwritten if each[0] != path]
        log.log(
            logging.DEBUG if self._said_overwritten else logging.WARNING,
            "step %d was not submitted: AsyncCheckpointIO saves each step to %s, and which one lies there is not known; put"
            " {step} into ModelCheckpoint's filename",
            step,
            path,
        )
        self._said_overwritten = True

    def submit_written(self, all_of_them: bool = False) -> None:
        """A save in the background may not have begun: it is not submitted before it shows."""
        if self.watch is None:
            return
        left = []
        for path, step, epoch in self._unwritten:
            if all_of_them or os.path.lexists(path):
                self.watch.submit(path, step, epoch, **self.submit_options())
            else:
                left.append((path, step, epoch))
        self._unwritten = left

    def submit_again(self, resumed: int) -> None:
        """What an earlier life of the run saved and perhaps never submitted: the queue knows what it has. resumed: the step
        that training goes on from, whose checkpoint is what lies at its path."""
        watch = self.watch
        if watch is None:
            return
        kept = [*self.paths.items(), *([(self.best[1], self.best[2])] if self.best and self.best[2] else [])]
        for folder in {os.path.dirname(path) for _, path in kept}:
            watch.held.adopt(folder, kept)
        self.restore_best()
        for step, suite, variant, epoch in watch.pending():
            path: Optional[str] = self.paths.get(step)
            if path and step != resumed:
                path = watch.held.put_back(step, path)
            if path and suite == self.suites[0]:
                self.paths[step] = path
                watch.submit(path, step, epoch, **self.submit_options())

    def submit_options(self) -> Dict[str, Any]:
        """Of every submit."""
        options = self.options
        given = {"policy": options["policy"], "priority": options["priority"], "params": options["params"]}
        return {**given, "trackers": open_trackers(options["trackers"])}

    def arrived(self, trainer: Any, evaluations: Sequence[Evaluation]) -> None:
        """Hands results to the trainer's loggers, and looks for the best."""
        for evaluation in evaluations:
            if evaluation.metrics:
                axis = self._axis.get(evaluation.step, evaluation.step)
                for logger in getattr(trainer, "loggers", ()):
                    if not isinstance(logger, EvalqLogger):
                        try:
                            logger.log_metrics(dict(evaluation.metrics), step=axis)
                            logger.save()
                        except Exception as error:  # A tracker's own trouble.
                            log.warning(
                                "step %d: %s: %s: %s", evaluation.step, type(logger).__name__, type(error).__name__, error
                            )
                if self.watch is None or not self.watch.is_between(evaluation.step):
                    self._judge(evaluation)
            if self.watch is not None:
                self.watch.settle(evaluation.step, keep=self.best is not None and self.best[1] == evaluation.step)

    def _judge(self, evaluation: Evaluation) -> None:
        monitor = self.options["monitor"]
        value = evaluation.metrics.get(monitor) if monitor else None
        if value is None:
            return
        greater = self.options["mode"] == "max"
        best = self.best
        if math.isnan(value) or best is not None and not beats(value, evaluation.step, best[:2], greater):
            self.bad += 1
            return
        self.bad = 0
        self.best = (value, evaluation.step, self.paths.get(evaluation.step, ""))
        if best is not None and self.watch is not None:
            self.watch.settle(best[1])

    def restore_best(self) -> None:
        """ModelCheckpoint may have removed it by now, or saved another step to its path."""
        if self.best is not None and self.best[2] and self.watch is not None:
            value, step, path = self.best
            self.best = (value, step, self.watch.held.put_back(step, path) or "")

    def end(self) -> None:
        """Closes the client; what it could not send stays on disk."""
        if self.watch is not None:
            self.watch.close()
            self.watch = None


def _epoch(trainer: Any) -> Optional[float]:
    value = getattr(trainer, "current_epoch", None)
    return float(value) if value is not None else None


def _logger_step(trainer: Any) -> int:
    """Where validation at this moment logs: the number of the last batch that stepped, from 0. Lightning counts on
    after it has validated, and before the epoch ends."""
    loop = trainer.fit_loop
    epoch = loop.epoch_progress.current
    return int(loop.epoch_loop._batches_that_stepped) - int(epoch.processed > epoch.completed)


def _whole_weights(trainer: Any) -> bool:
    """Whether rank 0 has all weights."""
    return bool(trainer.world_size == 1 or "DDP" in type(trainer.strategy).__name__)


def _calling_trainer() -> Any:
    """ModelCheckpoint does not hand its trainer on to loggers: it is the one that saves."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("trainer")
        if hasattr(type(found), "fit_loop") or "fit_loop" in getattr(found, "__dict__", {}):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


_Suites = Union[str, Sequence[str], None]
_Names = Optional[Callable[[Result], Optional[str]]]


class EvalqLogger(_LoggerBase):  # type: ignore[misc]
    """Told of each checkpoint when its file is complete; writes nothing itself.

    For Trainer(logger=[..., EvalqLogger("val")]). Submits on rank 0, and hands results to the other loggers of the
    trainer as they come. It does not wait at the end: what comes later is evalq-logger's. Options as EvalqCallback's.
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
        options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self._refused = refused("EvalqLogger", options)
        if self._refused:
            options["suites"] = None
        self._training = _Training({**options, "wait": 0.0, "monitor": None, "mode": "min", "snapshots": 2})
        self._failed: Set[str] = set()
        self._trainer: Any = None
        self._owned = False  # By a callback, which begins and ends.
        self._version = time.strftime("%Y%m%d-%H%M%S")

    @property
    def name(self) -> str:
        """A part of ModelCheckpoint's directory where this is the first logger."""
        return "evalq"

    @property
    def version(self) -> str:
        """As name."""
        return self._training.run or self._version

    @guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Lightning calls it on rank 0, after the write; with asynchronous checkpoint IO, before."""
        path = str(getattr(checkpoint_callback, "_last_checkpoint_saved", "") or checkpoint_callback.best_model_path)
        step = int(getattr(checkpoint_callback, "_last_global_step_saved", 0))
        self._trainer = self._trainer or _calling_trainer()
        if not path:
            return
        if self._training.watch is None and not self._owned:
            self._training.begin(os.path.dirname(path), {})
        self._training.saved(self._trainer, path, step)

    @guarded
    def log_metrics(self, metrics: Mapping[str, float], step: Optional[int] = None) -> None:
        """What training logs is not ours; that it logs is the moment to hand on what arrived."""
        if not self._owned and self._training.watch is not None:
            self._training.submit_written()
            self._training.arrived(self._trainer, self._training.watch.look())

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Not ours."""

    @guarded
    def log_graph(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls it before training: the last moment to say what a logger alone cannot do."""
        trainer = _calling_trainer()
        if trainer is not None and not any(isinstance(each, EvalqCallback) for each in trainer.callbacks):
            for text in said_before(trainer, has_callback=False):
                log.warning("%s", text)

    @guarded
    def finalize(self, status: str) -> None:
        """The end of fit."""
        if not self._owned and self._training.watch is not None:
            self._training.submit_written(all_of_them=True)
            self._training.arrived(self._trainer, self._training.watch.look(now=True))
            self._training.end()


class EvalqCallback(_CallbackBase):  # type: ignore[misc]
    """Has each saved checkpoint evaluated elsewhere; without a ModelCheckpoint, each epoch's weights.

    suites    Names from the workers' configuration, "val" or ["val", "full"]. Default: $EVALQ_SUITES, else "val".
    url       Redis. Default: as evalq's programs find it ($EVALQ_URL, ./.evalq/url, the configuration).
    run       Default: $EVALQ_RUN, else made of the directory's name and a hash; a resumed training keeps its run.
    monitor   A metric by which the best checkpoint is kept, such as "val_loss"; with mode "min" or "max".
    patience  Training stops after so many evaluations in a row that were not better by monitor. None: never.
    wait      Seconds at most that the end of fit waits for results. 0: leaves at once.
    names     Function from evalq.Result to the name in the loggers, None to leave it out. Default: val_loss.
    policy    "all" (default), "latest" or "backfill", for evaluation that is slower than training.
    newest    True: a worker that has nothing else to do evaluates the newest weights, again and again.
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
        options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self._refused = refused("EvalqCallback", options)
        self._training = _Training({**options, "suites": None} if self._refused else options)
        self._patience = patience
        self._newest = False  # Whether this fit submits the newest weights, on rank 0.
        self._monitors: Optional[Monitors] = None  # On every rank, during fit.
        self._news: List[News] = []  # On rank 0: what came since the ranks met.
        self._met_at = -1  # The step at which the ranks met last.
        self._failed: Set[str] = set()
        self._kept: Dict[str, Any] = {}
        self._logger: Optional[EvalqLogger] = None
        self._loggers_before: Optional[List[Any]] = None

    # -- Lightning's hooks

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.fast_dev_run:
            return
        kept, self._kept = self._kept, {}
        resumed = kept if trainer.global_step > 0 else {}
        self._news = []
        self._monitors = Monitors(trainer, self._training.suites, resumed.get("monitors", {}))
        if not trainer.is_global_zero:
            return
        again = str(trainer.ckpt_path) if resumed and trainer.ckpt_path else ""
        if again:  # What it says was written before it was complete, and submitted after.
            again = own_file(os.path.realpath(again), trainer.global_step)
            step, epoch = trainer.global_step, _epoch(trainer)
            due = [[step, suite, self._training.options["variant"], epoch] for suite in self._training.suites]
            resumed = {**resumed, "pending": [*resumed.get("pending", ()), *due]}
            resumed["paths"] = {**resumed.get("paths", {}), step: again}
        self._training.begin(str(trainer.default_root_dir), resumed)
        self._listen(trainer)
        for text in said_before(trainer, has_callback=True):
            log.warning("%s", text)
        self._training.submit_again(trainer.global_step)
        newest = bool(self._training.options["newest"])
        self._newest = newest and _whole_weights(trainer)
        if newest and not self._newest:
            log.warning(
                "newest=True is ignored: %s shards the weights, so rank 0 alone cannot take them; let ModelCheckpoint save"
                " more often instead",
                type(trainer.strategy).__name__,
            )
        if self._training.watch is not None and (self._newest or not trainer.checkpoint_callbacks):
            self._training.watch.reserve_state_dict(pl_module.state_dict())

    @guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        # What the step before made due is submitted by now.
        if self._newest and self._training.watch is not None:
            options = self._training.submit_options()
            options["policy"] = options["policy"] or "latest"
            self._training.watch.submit_newest(pl_module.state_dict, trainer.global_step, _epoch(trainer), **options)

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        try:
            self._training.moment(trainer)
            self._look(trainer)
        finally:  # The other ranks wait for a word.
            if trainer.world_size == 1 or self._ranks_meet(trainer):
                self._meet(trainer)

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        try:
            self._training.moment(trainer)
            watch = self._training.watch
            every = trainer.check_val_every_n_epoch or 1
            if watch is not None and not trainer.checkpoint_callbacks and (trainer.current_epoch + 1) % every == 0:
                options = self._training.submit_options()
                options["policy"] = options["policy"] or "all"
                watch.submit_state_dict(pl_module.state_dict(), trainer.global_step, _epoch(trainer), **options)
            self._look(trainer, now=True)
        finally:  # As above.
            self._meet(trainer)

    @guarded
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        # After the strategy's teardown: saves in the background are on disk.
        if trainer.fast_dev_run:
            return
        began = time.monotonic()
        if self._training.watch is not None:
            self._training.submit_written(all_of_them=True)
        done = False
        while not done:
            done = self._last(trainer, began)
            news, self._news = self._news, []
            done, news = trainer.strategy.broadcast((done, news)) if trainer.world_size > 1 else (done, news)
            if self._monitors is not None:
                self._monitors.take(news, ended=True)
        self._hand_on_best(trainer)

    @guarded
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._monitors is not None:
            self._monitors.end()
            self._monitors = None
        if self._loggers_before is not None:
            trainer.loggers = self._loggers_before
            self._loggers_before = None
        if self._training.watch is not None:
            self._training.end()

    def state_dict(self) -> Dict[str, Any]:
        """Goes into the checkpoint."""
        kept = self._training.keep()
        return {**kept, "monitors": self._monitors.keep()} if self._monitors is not None else kept

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Comes before on_train_start."""
        self._kept = dict(state_dict)

    # -- inside

    @property
    def best(self) -> Optional[Best]:
        """The best checkpoint so far by monitor, on rank 0."""
        best = self._training.best
        if best is None:
            return None
        return Best(str(self._training.options["monitor"]), best[0], best[1], best[2] or None)

    @property
    def run(self) -> str:
        """The run's name in the queue; "" before training."""
        return self._training.run

    def _listen(self, trainer: Any) -> None:
        """After a save Lightning tells loggers alone."""
        for logger in trainer.loggers:
            if isinstance(logger, EvalqLogger):
                self._logger = logger
        if self._logger is None or self._logger not in trainer.loggers:
            self._logger = EvalqLogger()
            self._loggers_before = list(trainer.loggers)
            trainer.loggers = [*trainer.loggers, self._logger]
        self._logger._owned = True
        self._logger._training = self._training
        self._logger._trainer = trainer

    def _look(self, trainer: Any, now: bool = False) -> None:
        if self._training.watch is not None:
            self._training.submit_written()
            self._arrived(trainer, self._training.watch.look(now))

    def _arrived(self, trainer: Any, evaluations: Sequence[Evaluation]) -> None:
        """On rank 0; the callbacks of all ranks hear of it when the ranks meet."""
        watch = self._training.watch
        for each in evaluations:
            if watch is not None and watch.is_between(each.step):
                continue
            complete = watch is None or not watch.is_pending(each.step)
            self._news.append(News(each.step, each.suite, each.state, dict(each.metrics), complete))
        self._training.arrived(trainer, evaluations)

    def _ranks_meet(self, trainer: Any) -> bool:
        """At steps that all ranks come to; an epoch may be the whole training."""
        step, before = trainer.global_step, self._met_at
        self._met_at = step
        return bool(step != before and step % max(1, trainer.log_every_n_steps) == 0)

    def _meet(self, trainer: Any) -> None:
        """All ranks hear of what came, and stop where patience is at its end."""
        news, self._news = self._news, []
        stop = self._patience is not None and self._training.bad >= self._patience
        if trainer.world_size > 1 and (self._patience is not None or self._monitors):
            news, stop = trainer.strategy.broadcast((news, stop))
        if self._monitors is not None:
            self._monitors.take(news)
        trainer.should_stop = trainer.should_stop or stop

    def _last(self, trainer: Any, began: float) -> bool:
        if self._training.watch is None:
            return True
        try:
            evaluations, done = self._training.watch.last(began, _SLICE_SECONDS)
            self._arrived(trainer, evaluations)
            return done
        except Exception as error:  # The other ranks wait for a word.
            log.warning("results were lost to the trainer: %s: %s", type(error).__name__, error)
            return True

    def _hand_on_best(self, trainer: Any) -> None:
        """For trainer.test(ckpt_path="best"): ModelCheckpoint could not know it."""
        best = None
        if self._training.watch is not None:
            self._training.restore_best()
            best = self._training.best
        if self._training.options["monitor"] and trainer.world_size > 1:
            best = trainer.strategy.broadcast(best)
        checkpoint = trainer.checkpoint_callback
        if best is None or checkpoint is None or getattr(checkpoint, "monitor", None) is not None:
            return
        if best[2] and os.path.exists(best[2]):
            import torch

            checkpoint.best_model_path = best[2]
            checkpoint.best_model_score = torch.tensor(best[0])
