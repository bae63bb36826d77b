"""evalq in a Transformers Trainer: one line, and TrainingArguments stay as they are.

    from evalq.integrations.transformers import EvalqCallback

    trainer = Trainer(model, args, train_dataset=..., callbacks=[EvalqCallback("eval")])

evalq's workers evaluate the steps that `eval_strategy` makes due, and the Trainer does not. See
docs/transformers.md.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Union

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ..client import Client
from ..result import Result
from .best import BestSoFar
from .due_evaluations import Evaluation
from .guarded import guarded
from .open_trackers import open_trackers
from .options import refused, suite_names
from .paired_test import Confirm, PairedTest
from .quiet_client import default_run
from .training_run import TrainingRun
from .transformers_trainer import (
    LOADS_BEST_BEFORE_LOG,
    TrainerView,
    at_step,
    checkpoint_name,
    exclude_from_hub,
    has_other_ranks,
    is_saved,
    may_be_due_without_save,
    strategy_text,
)

log = logging.getLogger("evalq")

_LOOK_SECONDS = 0.1  # Between two checks for results.
_SLICE_SECONDS = 2.0  # At the end, other ranks wait for rank 0 at most so long at a time.


def metric_name(result: Result) -> Optional[str]:
    """The metric's name in the Trainer's logs, as Trainer.evaluate() names it, such as eval_loss.
    It contains the name of a task other than `eval`, as the Trainer does with data sets."""
    if result.metric.startswith("eval_"):
        name = result.metric
    elif result.key.startswith("eval_") and "/" not in result.key and result.variant == "regular":
        name = result.key  # The suite has a metric_prefix.
    else:
        task = "" if result.task in ("eval", "") else result.task + "_"
        name = "eval_" + task + result.metric
    if result.variant == "regular":
        return name
    return f"eval_{result.variant}_{name[len('eval_'):]}"


class EvalqCallback(TrainerCallback, ExportableState):
    """Has workers evaluate what the Trainer would evaluate itself.

    suites    Names from the workers' configuration, "quick" or ["quick", "full"]. Default:
              $EVALQ_SUITES, else "eval".
    url       Redis. Default: as evalq's programs find it ($EVALQ_URL, ./.evalq/url, the
              configuration).
    run       Default: $EVALQ_RUN, else output_dir's name and a hash. A resumed training keeps its
              run.
    wait      The end of training waits for results at most so many seconds, before the Trainer
              loads the best model. 0: it does not wait; evalq-logger records what arrives later.
    saves     True: also evaluate every saved checkpoint. Default: only if eval_strategy is "no",
              because then nothing else is due.
    names     Function from evalq.Result to the name in the Trainer's logs; None leaves the metric
              out. Default: names such as eval_loss.
    policy    "all" (default), "latest" or "backfill". The last two are for evaluation that is
              slower than training.
    newest    True: a worker that has nothing else to do evaluates the newest weights, again and
              again.
    significant   True: a step is better than the best only if a paired test of their samples says
              so, for early stopping and the best model. It needs a suite with `samples: true`.
    hold_seconds  A result waits so long for those of earlier steps, so that the order is right.
    snapshots     How many unsaved weights may be in shared memory at the same time.

    The other options are those of evalq.Client and Client.submit(). No method raises into training.
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
        significant: bool = False,
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
            # A resuming Trainer creates the callback again from state(), which went through JSON.
            # Functions cannot, so the options come from the callback that the user's code created.
            options = dict(EvalqCallback._latest_options or options)
        else:
            EvalqCallback._latest_options = options
        self._refused = refused("EvalqCallback", options)
        self._suites: List[str] = []
        if not self._refused:
            default = os.environ.get("EVALQ_SUITES") or "eval"
            self._suites = suite_names(options["suites"], default)
        self._options = options
        self._failed: Set[str] = set()
        self._trainer = TrainerView()
        self._saved: Dict[str, Any] = {}  # A resuming Trainer sets it from state().
        self._run = ""
        self._reset()

    def _reset(self) -> None:
        """Begins with a new training."""
        self._active = False  # True between on_train_begin and on_train_end.
        self._applying = False  # True while it logs a result; the Trainer then calls on_log.
        self._finished = False
        self._finish_at_save = False
        self._multi = False  # Whether there are other ranks.
        self._training_run: Optional[TrainingRun] = None  # None on other ranks than 0.
        self._best = BestSoFar()
        self._paired_test: Optional[PairedTest] = None  # On rank 0, with significant=True.
        self._look_at = 0.0  # When to check for results again (monotonic).
        self._newest = False
        self._due_step = -1
        self._saved_step = -1
        self._eval_on_start = False
        self._output_dir = ""

    # -- the Trainer's events

    @guarded
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.find()

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._reset()
        self._trainer.find()
        resumed = self._resumed_state(state)
        self._multi = has_other_ranks(args)
        self._output_dir = self._trainer.output_dir(args, state)
        self._active = True
        model = kwargs.get("model")
        if state.is_world_process_zero:
            if getattr(args, "push_to_hub", False):
                exclude_from_hub()
            self._begin(resumed)
        if args.eval_on_start:  # The Trainer would evaluate right after this event.
            args.eval_on_start = False
            self._eval_on_start = True
            self._due(state, control, model)
        self._begin_snapshots(args, state, model)

    @guarded
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._eval_on_start:
            args.eval_on_start = True
            self._eval_on_start = False

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # If the last step was due, it has been submitted by now.
        model = kwargs.get("model")
        if self._newest and self._training_run is not None and model is not None:
            options = self._submit_options()
            options["policy"] = options["policy"] or "latest"
            self._training_run.submit_newest(
                model.state_dict, state.global_step, state.epoch, **options
            )

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = control.should_evaluate or control.should_save
        if not due and not self._multi and time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._schedule(args, state, control, kwargs.get("model"))
        if not self._multi:
            self._exchange(args, state, control, self._arrived())
        elif self._exchange_is_due(args, state):
            self._exchange(args, state, control, self._arrived(now=True))

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._schedule(args, state, control, kwargs.get("model"))
        self._exchange(args, state, control, self._arrived(now=True))
        last = control.should_training_stop or state.global_step >= state.max_steps
        if LOADS_BEST_BEFORE_LOG and last:
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
    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        # The log with "train_runtime" is the last event before the Trainer loads the best model.
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
        """The state that a checkpoint stores, so that a resumed training repeats and forgets
        nothing."""
        saved: Dict[str, Any] = {}
        if self._training_run is not None:
            pending = self._training_run.pending()
            saved = {"run": self._run, "pending": pending, "best": self._best.saved}
        return {"args": {"_restored": True}, "attributes": {"_saved": saved}}

    # -- the beginning

    def _resumed_state(self, state: Any) -> Dict[str, Any]:
        """The result of state() in an earlier session; {} if this training does not resume one."""
        name = type(self).__name__
        if state.stateful_callbacks is None:
            state.stateful_callbacks = {}
        stored = state.stateful_callbacks.get(name)
        # The Trainer needs an entry for each callback when it saves. A checkpoint of a training
        # without this callback lacks the entry.
        state.stateful_callbacks[name] = self.state()
        stored = stored[-1] if isinstance(stored, list) and stored else stored
        if state.global_step == 0 or not isinstance(stored, dict):
            return {}
        return dict(stored.get("attributes", {}).get("_saved") or {})

    def _begin(self, resumed: Mapping[str, Any]) -> None:
        options = self._options
        self._run = options["run"] or resumed.get("run") or default_run(self._output_dir)
        self._training_run = run = TrainingRun(
            self._open_client,
            self._suites,
            options["variant"],
            options["names"] or metric_name,
            max(0.0, float(options["wait"])),
            options["hold_seconds"],
            resumed.get("pending", ()),
        )
        self._run = run.open() or self._run
        self._best = BestSoFar(run.held.restore, resumed.get("best"))
        if options["significant"] is True:
            self._paired_test = PairedTest(options["config"])
        saved = [(step, checkpoint_name(step)) for step in run.pending_steps()]
        run.held.adopt(self._output_dir, saved)
        # The earlier session may not have submitted what it saved. The queue ignores what it has.
        epochs = {each[0]: each[3] for each in run.pending()}
        for step, epoch in sorted(epochs.items()):
            path = os.path.join(self._output_dir, checkpoint_name(step))
            if run.held.put_back(step, path):
                run.submit(path, step, epoch, **self._submit_options())

    def _open_client(self) -> Client:
        options = self._options
        return Client(
            options["url"],
            self._run,
            queue=options["queue"],
            config=options["config"],
            snapshots=options["snapshots"],
        )

    def _begin_snapshots(self, args: Any, state: Any, model: Any) -> None:
        """Allocates memory if weights will be submitted without a save."""
        wanted, sharded = bool(self._options["newest"]), self._trainer.is_sharded()
        self._newest = wanted and not sharded
        if self._training_run is None:
            return
        if wanted and sharded:
            log.warning(
                "newest=True is ignored: the weights are sharded, so rank 0 does not have all of"
                " them; lower save_steps instead"
            )
        if model is not None and not sharded:
            if self._newest or may_be_due_without_save(args, state):
                self._training_run.reserve_state_dict(model.state_dict())

    # -- what is due

    @guarded
    def _schedule(self, args: Any, state: Any, control: Any, model: Any) -> None:
        """Keeps the Trainer from evaluating now, and submits the step instead."""
        due = bool(control.should_evaluate)
        control.should_evaluate = False
        if due and strategy_text(args.save_strategy) == "best":
            control.should_save = True  # Whether it is the best is known only after its evaluation.
        saves = self._options["saves"]
        if saves is None:
            saves = strategy_text(args.eval_strategy) == "no"
        if control.should_save and saves:
            due = True
        if due:
            self._due(state, control, model)
        if self._training_run is not None and control.should_save:
            # An earlier session may have saved this step; the Trainer writes the same files again.
            self._training_run.held.drop(state.global_step)
            self._training_run.held.take_again()

    def _due(self, state: Any, control: Any, model: Any) -> None:
        step = state.global_step
        if self._due_step == step:
            return
        self._due_step = step
        if self._training_run is not None:
            self._training_run.due(step, state.epoch)  # Before the save, which stores what is due.
        if control.should_save:
            return  # on_save() submits it.
        resumed_here = self._trainer.resumed_step() == step and is_saved(self._output_dir, step)
        if self._saved_step == step or resumed_here:
            self._submit(state)
        elif self._trainer.is_sharded():
            control.should_save = True  # Only a save gathers the weights of all ranks.
        elif self._training_run is not None and model is not None:
            options = self._submit_options()
            options["policy"] = options["policy"] or "all"
            self._training_run.submit_state_dict(model.state_dict(), step, state.epoch, **options)

    def _submit_options(self) -> Dict[str, Any]:
        options = {name: self._options[name] for name in ("policy", "priority", "params")}
        return {**options, "trackers": open_trackers(self._options["trackers"])}

    def _submit(self, state: Any) -> None:
        if self._training_run is not None:
            step = state.global_step
            path = os.path.join(self._output_dir, checkpoint_name(step))
            self._training_run.submit(path, step, state.epoch, **self._submit_options())

    # -- results

    def _arrived(self, now: bool = False) -> List[Evaluation]:
        try:
            return self._training_run.look(now) if self._training_run is not None else []
        except Exception as error:  # The other ranks wait for the broadcast, so go on.
            log.warning("results cannot be read: %s: %s", type(error).__name__, error)
            return []

    def _exchange_is_due(self, args: Any, state: Any) -> bool:
        """True on all ranks at the same steps."""
        strategy = strategy_text(args.eval_strategy)
        every = state.eval_steps if strategy == "steps" else state.logging_steps
        last = state.global_step >= state.max_steps
        return bool(last or (every > 0 and state.global_step % every == 0))

    def _exchange(
        self, args: Any, state: Any, control: Any, ready: List[Evaluation], done: bool = True
    ) -> bool:
        """Applies the ready evaluations on rank 0, and then, with rank 0's decisions, on all other
        ranks. Every rank must call it at the same steps. Returns rank 0's done."""
        if self._training_run is not None:
            for evaluation in ready:
                self._apply(args, state, control, evaluation)
        if not self._multi:
            return done
        import torch.distributed

        if self._training_run is not None:  # Evaluations in between decide nothing on other ranks.
            ready = [each for each in ready if not self._training_run.is_between(each.step)]
        best_step = getattr(state, "best_global_step", None)
        best = (state.best_metric, best_step, state.best_model_checkpoint)
        message = [(ready, best, bool(control.should_training_stop), done)]
        torch.distributed.broadcast_object_list(message, src=0)
        ready, best, stop, done = message[0]
        if self._training_run is None:
            for evaluation in ready:
                self._apply(args, state, control, evaluation)
            # Set these even if nothing is ready: at a save, each rank looks for the best
            # checkpoint, while rank 0 removes others.
            state.best_metric, state.best_global_step, state.best_model_checkpoint = best
            control.should_training_stop = stop
        return done

    @guarded
    def _apply(self, args: Any, state: Any, control: Any, evaluation: Evaluation) -> None:
        """Does what the Trainer does after an evaluation, at the evaluation's step."""
        run = self._training_run
        between = run is not None and run.is_between(evaluation.step)
        if evaluation.metrics:
            best = args.metric_for_best_model
            if best is not None and not best.startswith("eval_"):
                best = "eval_" + best
            value = evaluation.metrics.get(best) if best is not None else None
            confirm = self._confirm(args, evaluation, best)
            step = evaluation.step
            not_better = None
            if confirm and not self._best.improves(args, state, step, value, confirm):
                not_better = value
            self._log(args, state, control, evaluation, best, not between, not_better)
            if run is not None and not between and best is not None:
                self._warn_if_missing(best, evaluation)
                self._best.note(args, state, step, value, confirm)
        if run is not None:
            run.settle(evaluation.step)

    def _log(
        self,
        args: Any,
        state: Any,
        control: Any,
        evaluation: Evaluation,
        best: Optional[str],
        announce: bool,
        not_better: Optional[float],
    ) -> None:
        """Logs the metrics. announce: also gives them to callbacks and schedulers. not_better: see
        at_step()."""
        self._applying = True
        try:
            with at_step(state, control, evaluation, not_better):
                self._trainer.log(state, evaluation)
                if announce and (best is None or best in evaluation.metrics):
                    self._trainer.announce(args, state, control, evaluation.metrics, best)
        except Exception as error:  # The error of a tracker, or of another callback.
            kind = type(error).__name__
            step = evaluation.step
            log.warning("step %d: the trainer could not log it: %s: %s", step, kind, error)
        finally:
            self._applying = False

    def _confirm(self, args: Any, evaluation: Evaluation, best: Optional[str]) -> Optional[Confirm]:
        """The paired test of this step, with significant=True."""
        between = self._training_run is not None and self._training_run.is_between(evaluation.step)
        if self._paired_test is None or between or best not in evaluation.metrics:
            return None
        return self._paired_test.confirm(evaluation, best, bool(args.greater_is_better))

    def _warn_if_missing(self, best: str, evaluation: Evaluation) -> None:
        if best in evaluation.metrics or len(self._suites) > 1 or "metric" in self._failed:
            return
        self._failed.add("metric")
        names = ", ".join(sorted(evaluation.metrics))
        log.warning("metric_for_best_model %s is not among %s", best, names)

    # -- the end

    def _finish(self, args: Any, state: Any, control: Any) -> None:
        """Waits for results, at most `wait` seconds. It is called at the last moment at which they
        can change the best model."""
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
                except Exception as error:  # The other ranks wait for the broadcast, so go on.
                    kind = type(error).__name__
                    log.warning("the trainer did not get some results: %s: %s", kind, error)
                    done = True
            done = self._exchange(args, state, control, ready, done)
        control.should_training_stop = stop  # Training is over, so early stopping must not set it.
