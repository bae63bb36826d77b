"""The highest and lowest values of one metric: enough to find the best step in bounded memory."""

from __future__ import annotations

import math
from typing import Dict, Optional, Tuple

from .result import better

_KEPT = 64  # Values kept at each end, because the best step may be evaluated again and get worse.
_VALUES_MAX = 4 * _KEPT


class BestValues:
    """The extreme values by step. Not thread-safe."""

    def __init__(self) -> None:
        self._values: Dict[int, Tuple[float, Optional[str]]] = {}

    def take(self, step: int, value: float, path: Optional[str]) -> None:
        """Replaces the step's earlier value. NaN and infinite values remove it."""
        if not math.isfinite(value):
            self._values.pop(step, None)
            return
        self._values[step] = (value, path)
        if len(self._values) > _VALUES_MAX:
            lowest = sorted(self._values, key=lambda at: (self._values[at][0], at))[:_KEPT]
            highest = sorted(self._values, key=lambda at: (-self._values[at][0], at))[:_KEPT]
            self._values = {at: self._values[at] for at in lowest + highest}

    def best(self, mode: str) -> Optional[Tuple[int, float, Optional[str]]]:
        """The best (step, value, path). The lower step wins a tie."""
        found: Optional[Tuple[int, float, Optional[str]]] = None
        for step in sorted(self._values):
            value, path = self._values[step]
            if better(value, math.nan if found is None else found[1], mode):
                found = (step, value, path)
        return found

    def __len__(self) -> int:
        return len(self._values)
