"""What a row of the benchmark table is, and the bars that its figures are held against."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Iterator, List, Optional, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))
from scene import BIN  # noqa: E402,F401

MODES = ("off", "everysec", "always")


@dataclass
class Figure:
    """One figure, measured once or in several rounds."""

    row: str
    unit: str
    n: int  # Over how many, each round.
    bar: str = ""  # "<= 10", ">= 80000", or none.
    values: List[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def reached(self) -> Optional[bool]:
        """None without a bar; a figure that is no number reaches none."""
        if not self.bar:
            return None
        relation, limit = self.bar.split()
        return self.median <= float(limit) if relation == "<=" else self.median >= float(limit)

    def line(self) -> str:
        spread = f"{min(self.values):.4g} to {max(self.values):.4g}" if len(self.values) > 1 else ""
        said = {None: "", True: "reached", False: "MISSED"}[self.reached()]
        return f"{self.row:76} {self.median:>10.4g} {self.unit:9} {spread:>20} {self.n:>8} {self.bar:>9} {said}"


@dataclass
class Options:
    """How long to take."""

    quick: bool

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3

    def count(self, whole: int, quick: int) -> int:
        return quick if self.quick else whole


@dataclass
class Said:
    """One figure of one round."""

    row: str
    value: float
    unit: str
    n: int
    bar: str = ""


Rows = Iterator[Said]


def quantiles(row: str, seconds: List[float], unit: str, bars: Tuple[str, str] = ("", ""), tail: int = 99) -> Rows:
    """p50, p99 (or another) and the largest, in the unit, of times in seconds."""
    scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    ordered = sorted(seconds)
    count = len(ordered)
    yield Said(f"{row} p50", statistics.median(ordered) * scale, unit, count, bars[0])
    yield Said(f"{row} p{tail}", ordered[min(count - 1, count * tail // 100)] * scale, unit, count, bars[1])
    yield Said(f"{row} max", ordered[-1] * scale, unit, count)


def run(*words: str, **environment: str) -> str:
    """What one of the C benchmarks says; its faults go through and end the table."""
    return subprocess.run(
        [os.path.join(BIN, words[0]), *words[1:]], env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def told(text: str, prefix: str = "", bars: Tuple[Tuple[str, str], ...] = ()) -> Rows:
    """The "row" lines of tests/bench/row.h. A bar holds for the rows that its pattern finds."""
    for line in text.splitlines():
        words = line.split("\t")
        if words[0] == "row":
            bar = next((bar for pattern, bar in bars if re.search(pattern, words[1])), "")
            yield Said(prefix + words[1], float(words[2]), words[3], int(words[4]), bar)
