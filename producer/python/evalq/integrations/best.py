"""Finds the best checkpoint of a Trainer's run from metrics that arrive late, and keeps it
loadable."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, Sequence, Tuple

from .paired_test import Confirm


def _never_saved(step: int) -> Optional[str]:
    return None


class BestSoFar:
    """Tracks the best step on rank 0. It updates the Trainer's fields best_metric,
    best_global_step and best_model_checkpoint.

    restore(step) returns the path of the step's checkpoint and puts it back if it was deleted;
    None: never saved.
    """

    def __init__(
        self,
        restore: Callable[[int], Optional[str]] = _never_saved,
        saved: Optional[Sequence[Any]] = None,
    ) -> None:
        self._restore = restore
        # (value, step) of the best saved checkpoint. A due step may not have been saved.
        self.saved: Optional[Tuple[float, int]] = None
        if saved:
            self.saved = (float(saved[0]), int(saved[1]))
        self._step: Optional[int] = None  # The step of state.best_metric, if it was set here.

    def improves(
        self,
        args: Any,
        state: Any,
        step: int,
        value: Optional[float],
        confirm: Optional[Confirm] = None,
    ) -> bool:
        """Whether a step with this metric is better than the best step so far."""
        if value is None or math.isnan(value):
            return False
        greater = bool(args.greater_is_better)
        if state.best_metric is None:
            return beats(value, step, (_worst(greater), None), greater)
        number = getattr(state, "best_global_step", None) if self._step is None else self._step
        return beats(value, step, (state.best_metric, number), greater, confirm)

    def note(
        self,
        args: Any,
        state: Any,
        step: int,
        value: Optional[float],
        confirm: Optional[Confirm] = None,
    ) -> None:
        """Notes the metric of a step. A strictly better value wins, the lower step wins a tie, NaN
        never wins. confirm: see beats()."""
        if value is None or math.isnan(value):
            return
        greater = bool(args.greater_is_better)
        if state.best_metric is None:
            state.best_metric = _worst(greater)
        if self.improves(args, state, step, value, confirm):
            state.best_metric = value
            self._step = step
            if str(getattr(args.save_strategy, "value", args.save_strategy)) != "no":
                state.best_global_step = step
        if self.saved is None or beats(value, step, self.saved, greater, confirm):
            path = self._restore(step)
            if path is not None:
                self.saved = (value, step)
                state.best_model_checkpoint = path


def _worst(greater: bool) -> float:
    return -math.inf if greater else math.inf


def beats(
    value: float,
    step: int,
    best: Tuple[float, Optional[int]],
    greater: bool,
    confirm: Optional[Confirm] = None,
) -> bool:
    """Whether the step's value is better than best, a (value, step). If equal, the lower step is
    better. confirm: a paired test must agree, if it can be made."""
    if value == best[0]:
        better = best[1] is not None and step < best[1]
    else:
        better = value > best[0] if greater else value < best[0]
    if not better or confirm is None or best[1] is None:
        return better
    return confirm(best[1]) is not False
