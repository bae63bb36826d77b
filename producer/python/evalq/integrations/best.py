"""The best checkpoint of a Trainer's run, from metrics that come late: decided by step, and still there to load."""

from __future__ import annotations

import logging
import math
import os
from typing import Any, Iterable, Optional, Sequence, Tuple

from .held import Held

log = logging.getLogger("evalq")


class BestSoFar:
    """On rank 0. The Trainer's own fields say the rest: best_metric, best_global_step, best_model_checkpoint."""

    def __init__(self, output_dir: str = "", held: Optional[Held] = None, saved: Optional[Sequence[Any]] = None) -> None:
        self._output_dir = output_dir
        self._held = held
        # (value, step) of the best that has a checkpoint: a due step need not have been saved.
        self.saved: Optional[Tuple[float, int]] = (float(saved[0]), int(saved[1])) if saved else None

    def note(self, args: Any, state: Any, step: int, value: Optional[float]) -> None:
        """The metric of step is known. Strictly better wins, the lower step wins a tie, NaN never wins."""
        if value is None or math.isnan(value):
            return
        greater = bool(args.greater_is_better)
        if state.best_metric is None:
            state.best_metric = -math.inf if greater else math.inf
        number = getattr(state, "best_global_step", None)
        if _beats(value, step, (state.best_metric, number), greater):
            state.best_metric = value
            if str(getattr(args.save_strategy, "value", args.save_strategy)) != "no":
                state.best_global_step = step
        if self.saved is None or _beats(value, step, self.saved, greater):
            name = f"checkpoint-{step}"
            path = os.path.join(self._output_dir, name) if self._held is None else self._held.restore(name)
            if os.path.isdir(path):
                self.saved = (value, step)
                state.best_model_checkpoint = path

    def hold(self, name: str) -> None:
        """It was saved, and its metric is still to come."""
        try:
            if self._held is not None:
                self._held.take(name)
        except OSError as error:
            self._held = None
            log.warning(
                "%s cannot be held until its metric is known (%s): should it be the best, save_total_limit may have"
                " deleted it by then. Raise save_total_limit",
                name,
                error,
            )

    def hold_before_save(self, names: Iterable[str], saving: str) -> None:
        """A save rotates others away when it is done; other ranks may have written since they were held."""
        if self._held is None:
            return
        self._held.release(saving)  # Of an earlier life: it is written again, into the same files.
        for name in names:
            if name != saving:
                self.hold(name)

    def settle(self, name: str, pending: bool) -> None:
        """Nothing more comes for it."""
        if self._held is not None and not pending:
            self._held.release(name)

    def release_all_but(self, names: Iterable[str]) -> None:
        """What an earlier life of the run held and nobody waits for."""
        if self._held is not None:
            self._held.release_all_but(names)

    def release_all(self) -> None:
        """Training has ended."""
        self.release_all_but([])


def _beats(value: float, step: int, best: Tuple[float, Optional[int]], greater: bool) -> bool:
    if value == best[0]:
        return best[1] is not None and step < best[1]
    return value > best[0] if greater else value < best[0]
