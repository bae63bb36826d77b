"""evalq in a Transformers Trainer: one line, TrainingArguments unchanged.

    from evalq.integrations.transformers import EvalqCallback

    trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[EvalqCallback("eval")])

What `eval_strategy` makes due is evaluated by evalq's workers instead of here. See docs/transformers.md.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
import weakref
from contextlib import contextmanager, suppress
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Union

import transformers
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .._trackers import open_trackers
from ..client import Client
from ..result import Result
from .best import BestSoFar
from .run_client import default_run
from .guarded import guarded
from .due_evaluations import Evaluation
from .options import refused, suite_names
from .training_run import TrainingRun

log = logging.getLogger("evalq")

_LOOK_SECONDS = 0.1  # Between looks at what the client's thread has brought.
_SLICE_SECONDS = 2.0  # Other ranks wait no longer than this for rank 0.


def metric_name(result: Result) -> Optional[str]:
    """As Trainer.evaluate() names it: eval_loss. A task of another name than `eval` stands in it, as data sets do."""
    if result.metric.startswith("eval_"):
        name = result.metric
    elif result.key.startswith("eval_") and "/" not in result.key and result.variant == "regular":
        name = result.key  # The suite's own metric_prefix.
    else:
        task = "" if result.task in ("eval", "") else result.task + "_"
        name = "eval_" + task + result.metric
    return name if result.variant == "regular" else f"eval_{result.variant}_{name[len('eval_'):]}"


class _Late(Dict[str, float]):
    """Logs of an earlier step. Trainer.log() would add where training is now (`epoch`, `num_input_tokens_seen`):
    those curves would go backwards, and TensorBoard drops the points after such a turn."""

    def __setitem__(self, key: str, value: float) -> None:
        if key in self:
            super().__setitem__(key, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


class EvalqCallback(TrainerCallback, ExportableState):
    """Evaluates elsewhere what the Trainer would evaluate here.

    suites    Names from the workers' configuration, "quick" or ["quick", "full"]. Default: $EVALQ_SUITES, else "eval".
    url       Redis. Default: as evalq's programs find it ($EVALQ_URL, ./.evalq/url, the configuration).
    run       Default: $EVALQ_RUN, else made of output_dir's name and a hash; a resumed training keeps its run.
    wait      Seconds at most that the end of training waits for results, before the best model is loaded.
              0: leaves at once; evalq-logger records what comes later.
    saves     Also evaluate every saved checkpoint. Default: only with eval_strategy="no", where nothing else is due.
    names     Function from evalq.Result to the name in the Trainer's logs, None to leave it out. Default: eval_loss.
    policy    "all" (default), "latest" or "backfill", for evaluation that is slower than training.
    newest    True: a worker that has nothing else to do evaluates the newest weights, again and again.
    hold_seconds  How long a result waits for those of earlier steps, so that they are logged in order.
    snapshots How many due steps without a save may lie in shared memory at once.
    """

    _latest_options: Dict[str, Any] = {}

    def __init__(
        self,
        suites: Union[str, Sequence[str], None] = None,
        url: Optional[str] = None,
        run: Optional[str] = None,
        *,
        wait: float = 600.0,
        saves: Optional[bool] = None,
        names: Optional[Callable[[Result], Optional[str]]] = None,
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
        _restored: bool = False,
    ) -> None:
        options = dict(locals())
        del options["self"], options["_restored"]
        options.pop("__class__", None)
        if _restored:
            # The Trainer makes callbacks anew from what state() gave; functions do not go through JSON.
            options = dict(EvalqCallback._latest_options or options)
        else:
            EvalqCallback._latest_options = options
        self._refused = refused("EvalqCallback", options)
        self._suites: List[str] = []
        if not self._refused:
            self._suites = suite_names(options["suites"], os.environ.get("EVALQ_SUITES") or "eval")
        self._options = options
        self._failed: Set[str] = set()
        self._trainer_ref: Optional[Callable[[], Any]] = None
        self._saved: Dict[str, Any] = {}
        self._run = ""
        self._reset()

    def _reset(self) -> None:
        self._active = False  # Between on_train_begin and on_train_end.
        self._applying = False
        self._finished = False
        self._finish_at_save = False
        self._multi = False
        self._training_run: Optional[TrainingRun] = None  # On rank 0 alone.
        self._best = BestSoFar()
        self._look_at = 0.0
        self._newest = False
        self._due_step = -1
        self._saved_step = -1
        self._eval_on_start = False
        self._output_dir = ""

    # -- the Trainer's events

    @guarded
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._find_trainer()

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._reset()
        self._find_trainer()
        resumed = self._resumed_state(state)
        self._multi = _distributed(args)
        self._output_dir = self._find_output_dir(args, state)
        self._active = True
        if state.is_world_process_zero:
            if getattr(args, "push_to_hub", False):
                _keep_from_hub()
            self._begin(args, resumed)
        if args.eval_on_start:  # It comes right after this event.
            args.eval_on_start = False
            self._eval_on_start = True
            self._due(args, state, control, kwargs.get("model"))
        model = kwargs.get("model")
        self._newest = bool(self._options["newest"]) and not self._sharded()
        if self._training_run is not None and self._options["newest"] and not self._newest:
            log.warning(
                "newest=True is ignored: the weights are sharded, so rank 0 alone cannot take them; lower save_steps instead"
            )
        from_memory = self._newest or _due_without_save(args, state)
        if self._training_run is not None and model is not None and from_memory and not self._sharded():
            self._training_run.reserve_state_dict(model.state_dict())

    @guarded
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._eval_on_start:
            args.eval_on_start = True
            self._eval_on_start = False

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # What the step before made due is submitted by now.
        if self._newest and self._training_run is not None and kwargs.get("model") is not None:
            options = self._submit_options()
            options["policy"] = options["policy"] or "latest"
            self._training_run.submit_newest(kwargs["model"].state_dict, state.global_step, state.epoch, **options)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_evaluate or control.should_save or self._multi or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            self._step_end(args, state, control, **kwargs)

    @guarded
    def _step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._schedule(args, state, control, kwargs.get("model"))
        if not self._multi:
            self._exchange(args, state, control, self._arrived())
        elif self._exchange_due(args, state):
            self._exchange(args, state, control, self._arrived(now=True))

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._schedule(args, state, control, kwargs.get("model"))
        self._exchange(args, state, control, self._arrived(now=True))
        if _LOADS_BEST_BEFORE_LOG and (control.should_training_stop or state.global_step >= state.max_steps):
            if control.should_save:
                self._finish_at_save = True
            else:
                self._finish(args, state, control)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved_step = state.global_step
        if self._due_step == state.global_step:
            self._submit(state)
        if self._finish_at_save:
            self._finish(args, state, control)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **kwargs: Any) -> None:
        # The last event before the Trainer loads the best model.
        if not self._applying and logs is not None and "train_runtime" in logs:
            self._finish(args, state, control)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._finish(args, state, control)
        self._active = False
        if self._training_run is not None:
            self._training_run.close()
            self._training_run = None

    def state(self) -> Dict[str, Any]:
        """What a checkpoint keeps, so that a resumed training repeats nothing and forgets nothing."""
        saved: Dict[str, Any] = {}
        if self._training_run is not None:
            saved = {"run": self._run, "pending": self._training_run.pending(), "best": self._best.saved}
        return {"args": {"_restored": True}, "attributes": {"_saved": saved}}

    # -- the beginning

    def _open_client(self) -> Client:
        options = self._options
        return Client(
            options["url"],
            self._run,
            queue=options["queue"],
            config=options["config"],
            snapshots=options["snapshots"],
        )

    def _find_trainer(self) -> None:
        """Events do not name the Trainer: it is the one that calls."""
        frame = sys._getframe(1)
        while frame is not None:
            found = frame.f_locals.get("self")
            if "callback_handler" in getattr(found, "__dict__", {}) and callable(getattr(found, "log", None)):
                self._trainer_ref = weakref.ref(found)
                return
            frame = frame.f_back  # type: ignore[assignment]

    def _trainer(self) -> Any:
        return self._trainer_ref() if self._trainer_ref is not None else None

    def _find_output_dir(self, args: Any, state: Any) -> str:
        trainer = self._trainer()
        if state.is_hyper_param_search and hasattr(trainer, "_get_output_dir"):
            return str(trainer._get_output_dir(getattr(trainer, "_trial", None)))
        return str(args.output_dir)

    def _resumed_state(self, state: Any) -> Dict[str, Any]:
        """What state() gave, when this training goes on from a checkpoint."""
        name = type(self).__name__
        if state.stateful_callbacks is None:
            state.stateful_callbacks = {}
        kept = state.stateful_callbacks.get(name)
        # Saving looks for the name of each callback: a checkpoint of a training without this one lacks it.
        state.stateful_callbacks[name] = self.state()
        kept = kept[-1] if isinstance(kept, list) and kept else kept
        if state.global_step == 0 or not isinstance(kept, dict):
            return {}
        return dict(kept.get("attributes", {}).get("_saved") or {})

    def _begin(self, args: Any, resumed: Mapping[str, Any]) -> None:
        options = self._options
        self._run = options["run"] or resumed.get("run") or default_run(self._output_dir)
        self._training_run = watch = TrainingRun(
            self._open_client,
            self._suites,
            options["variant"],
            options["names"] or metric_name,
            max(0.0, float(options["wait"])),
            options["hold_seconds"],
            resumed.get("pending", ()),
        )
        self._run = watch.open() or self._run
        self._best = BestSoFar(watch.held.restore, resumed.get("best"))
        watch.held.adopt(self._output_dir, [(step, _name(step)) for step in watch.pending_steps()])
        epochs = {each[0]: each[3] for each in watch.pending()}
        for step, epoch in sorted(epochs.items()):
            # Saved but perhaps never submitted: the queue knows what it has already.
            path = os.path.join(self._output_dir, _name(step))
            if watch.held.put_back(step, path):
                watch.submit(path, step, epoch, **self._submit_options())

    # -- what is due

    @guarded
    def _schedule(self, args: Any, state: Any, control: Any, model: Any) -> None:
        """Takes over what the Trainer would evaluate now."""
        due = bool(control.should_evaluate)
        control.should_evaluate = False
        if due and _text(args.save_strategy) == "best":
            control.should_save = True  # Only its evaluation can tell whether it is the best.
        saves = self._options["saves"]
        if saves is None:
            saves = _text(args.eval_strategy) == "no"
        if control.should_save and saves:
            due = True
        if due:
            self._due(args, state, control, model)
        if self._training_run is not None and control.should_save:
            self._training_run.held.drop(state.global_step)  # Of an earlier life: it is written again.
            self._training_run.held.take_again()

    def _due(self, args: Any, state: Any, control: Any, model: Any) -> None:
        step = state.global_step
        if self._due_step == step:
            return
        self._due_step = step
        if self._training_run is not None:
            self._training_run.due(step, state.epoch)  # Before the save, which keeps what is due.
        if control.should_save:
            return  # Submitted when it is saved.
        if self._saved_step == step or self._is_saved(state):
            self._submit(state)
        elif self._sharded():
            control.should_save = True  # No rank has all weights: a save gathers them.
        elif self._training_run is not None and model is not None:
            options = self._submit_options()
            options["policy"] = options["policy"] or "all"
            self._training_run.submit_state_dict(model.state_dict(), step, state.epoch, **options)

    def _is_saved(self, state: Any) -> bool:
        """A resumed training that is where it was saved."""
        trainer = self._trainer()
        begun = getattr(trainer, "_initial_global_step", -1)
        return begun == state.global_step and os.path.isdir(os.path.join(self._output_dir, _name(begun)))

    def _sharded(self) -> bool:
        trainer = self._trainer()
        return any(
            bool(getattr(trainer, name, False)) for name in ("is_fsdp_enabled", "is_deepspeed_enabled", "is_tp_enabled")
        )

    def _submit_options(self) -> Dict[str, Any]:
        options = self._options
        given = {"policy": options["policy"], "priority": options["priority"], "params": options["params"]}
        return {**given, "trackers": open_trackers(options["trackers"])}

    def _submit(self, state: Any) -> None:
        if self._training_run is not None:
            path = os.path.join(self._output_dir, _name(state.global_step))
            self._training_run.submit(path, state.global_step, state.epoch, **self._submit_options())

    # -- what arrives

    def _arrived(self, now: bool = False) -> List[Evaluation]:
        try:
            return self._training_run.look(now) if self._training_run is not None else []
        except Exception as error:  # The other ranks wait for a word.
            log.warning("results cannot be read: %s: %s", type(error).__name__, error)
            return []

    def _exchange_due(self, args: Any, state: Any) -> bool:
        """Steps at which all ranks meet: every rank must come to the same answer."""
        strategy = _text(args.eval_strategy)
        every = state.eval_steps if strategy == "steps" else state.logging_steps
        return bool(state.global_step >= state.max_steps or (every > 0 and state.global_step % every == 0))

    def _exchange(self, args: Any, state: Any, control: Any, ready: List[Evaluation], done: bool = True) -> bool:
        """Rank 0 applies what came and decides; the others hear of it and do the same. Gives rank 0's done."""
        for evaluation in ready if self._training_run is not None else ():
            self._apply(args, state, control, evaluation)
        if not self._multi:
            return done
        import torch.distributed

        if self._training_run is not None:  # Rank 0 alone logs these; nothing follows from them.
            ready = [each for each in ready if not self._training_run.is_between(each.step)]
        best = (state.best_metric, getattr(state, "best_global_step", None), state.best_model_checkpoint)
        message = [(ready, best, bool(control.should_training_stop), done)]
        torch.distributed.broadcast_object_list(message, src=0)
        ready, best, stop, done = message[0]
        if self._training_run is None:
            for evaluation in ready:
                self._apply(args, state, control, evaluation)
            # Also where nothing came: at a save each rank looks for the best by itself, while rank 0 rotates.
            state.best_metric, state.best_global_step, state.best_model_checkpoint = best
            control.should_training_stop = stop
        return done

    @guarded
    def _apply(self, args: Any, state: Any, control: Any, evaluation: Evaluation) -> None:
        """As if the Trainer had evaluated here, at that step."""
        if not evaluation.metrics:
            self._settle(evaluation)
            return
        if self._training_run is not None and self._training_run.is_between(evaluation.step):
            with self._at(state, control, evaluation):
                self._log(state, evaluation)
            self._settle(evaluation)
            return
        wanted = args.metric_for_best_model
        wanted = wanted if wanted is None or wanted.startswith("eval_") else "eval_" + wanted
        with self._at(state, control, evaluation):
            try:
                self._log(state, evaluation)
                if wanted is None or wanted in evaluation.metrics:
                    self._tell(args, state, control, evaluation, wanted)
            except Exception as error:  # A callback of the user's, or a tracker.
                log.warning("step %d: the trainer could not log it: %s: %s", evaluation.step, type(error).__name__, error)
        if self._training_run is not None and wanted is not None:
            if wanted not in evaluation.metrics and len(self._suites) == 1 and "metric" not in self._failed:
                self._failed.add("metric")
                log.warning(
                    "metric_for_best_model %s is not among %s", wanted, ", ".join(sorted(evaluation.metrics))
                )
            self._best.note(args, state, evaluation.step, evaluation.metrics.get(wanted))
        self._settle(evaluation)

    def _settle(self, evaluation: Evaluation) -> None:
        if self._training_run is not None:
            self._training_run.settle(evaluation.step)

    @contextmanager
    def _at(self, state: Any, control: Any, evaluation: Evaluation) -> Iterator[None]:
        """For a moment, training is where it was."""
        now = (state.global_step, state.epoch)
        flags = (control.should_log, control.should_evaluate, control.should_save)
        self._applying = True
        state.global_step = evaluation.step
        state.epoch = evaluation.epoch if evaluation.epoch is not None else state.epoch
        try:
            yield
        finally:
            state.global_step, state.epoch = now
            control.should_log, control.should_evaluate, control.should_save = flags
            self._applying = False

    def _log(self, state: Any, evaluation: Evaluation) -> None:
        trainer = self._trainer()
        if trainer is not None:
            with _evaluating(getattr(trainer, "model", None)):
                trainer.log(_Late(evaluation.metrics))
        else:
            state.log_history.append({**evaluation.metrics, "step": evaluation.step})
        entry = state.log_history[-1] if state.log_history else {}
        if entry.get("step") == evaluation.step and evaluation.epoch is not None:
            entry.setdefault("epoch", evaluation.epoch)

    def _tell(self, args: Any, state: Any, control: Any, evaluation: Evaluation, wanted: Optional[str]) -> None:
        """Early stopping, and a scheduler that waits for a metric."""
        trainer = self._trainer()
        if trainer is None:
            return
        trainer.callback_handler.on_evaluate(args, state, control, dict(evaluation.metrics))
        scheduler = getattr(trainer, "lr_scheduler", None)
        if scheduler is not None and wanted is not None and type(scheduler).__name__ in ("ReduceLROnPlateau", "GreedyLR"):
            scheduler.step(evaluation.metrics[wanted])

    # -- the end

    def _finish(self, args: Any, state: Any, control: Any) -> None:
        """The last moment at which results can decide on the best model: waits for them, with a limit."""
        if self._finished or not self._active:
            return
        self._finished = True
        stop = control.should_training_stop
        began = time.monotonic()
        done = False
        while not done:
            ready: List[Evaluation] = []
            if self._training_run is not None:
                try:
                    ready, done = self._training_run.last(began, _SLICE_SECONDS)
                except Exception as error:  # The other ranks wait for a word.
                    log.warning("results were lost to the trainer: %s: %s", type(error).__name__, error)
                    done = True
            done = self._exchange(args, state, control, ready, done)
        control.should_training_stop = stop  # It has stopped; a late word of early stopping is no news.


def _name(step: int) -> str:
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def _text(strategy: Any) -> str:
    return str(getattr(strategy, "value", strategy))


def _due_without_save(args: Any, state: Any) -> bool:
    """Whether the strategies let steps be due that are not saved."""
    due, saved = _text(args.eval_strategy), _text(args.save_strategy)
    if due == "no" or saved == "best":
        return False
    if due == saved == "steps":
        return not state.save_steps or bool(state.eval_steps % state.save_steps)
    return due != saved


def _keep_from_hub() -> None:
    """The Trainer pushes all of output_dir but its checkpoints, and but what this list names."""
    with suppress(ImportError):
        ignored: List[str] = getattr(importlib.import_module("huggingface_hub.utils"), "DEFAULT_IGNORE_PATTERNS", [])
        ignored.extend(pattern for pattern in (".evalq/*", "*/.evalq/*") if pattern not in ignored)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """As when Trainer.evaluate() logs. TRL's trainers tell by it which sums a log ends, training's or the evaluation's."""
    training = bool(getattr(model, "training", False))
    if training:
        model.training = False
    try:
        yield
    finally:
        if training:
            model.training = True


def _distributed(args: Any) -> bool:
    if args.world_size <= 1:
        return False
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


# Transformers 4 loads the best model before its last on_log.
_LOADS_BEST_BEFORE_LOG = not hasattr(transformers.Trainer, "_finalize_training")
