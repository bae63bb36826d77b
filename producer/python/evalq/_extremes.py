"""Of the values of one metric by step, the highest and the lowest: enough to say which is best, however many there were."""

from __future__ import annotations

import math
from typing import Dict, Optional, Tuple

from .result import better

_KEPT = 64  # Of each end: the best of a step may be evaluated again, and get worse.
_HELD = 4 * _KEPT


class Extremes:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self._values: Dict[int, Tuple[float, Optional[str]]] = {}

    def take(self, step: int, value: float, path: Optional[str]) -> None:
        """In the place of the step's earlier value; NaN or infinite: of no value."""
        if not math.isfinite(value):
            self._values.pop(step, None)
            return
        self._values[step] = (value, path)
        if len(self._values) > _HELD:
            lowest = sorted(self._values, key=lambda at: (self._values[at][0], at))[:_KEPT]
            highest = sorted(self._values, key=lambda at: (-self._values[at][0], at))[:_KEPT]
            self._values = {at: self._values[at] for at in lowest + highest}

    def best(self, mode: str) -> Optional[Tuple[int, float, Optional[str]]]:
        """(step, value, path); the lower step wins a tie."""
        found: Optional[Tuple[int, float, Optional[str]]] = None
        for step in sorted(self._values):
            value, path = self._values[step]
            if better(value, math.nan if found is None else found[1], mode):
                found = (step, value, path)
        return found

    def __len__(self) -> int:
        return len(self._values)
