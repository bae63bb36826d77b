"""What the file sinks hold of runs of the suite echo, and whether it is each result once."""

from __future__ import annotations

import csv
import os
from typing import Dict, Iterable, Set

import events
import history_sinks


def results(run: str, steps: Iterable[int]) -> Set[str]:
    """The result ids of jobs that were done."""
    jobs = [f"{run}/{step}/regular/echo" for step in steps]
    return {f"{job}#one" for job in jobs} | {f"{job}#=done.1" for job in jobs}


def recorded(directory: str) -> Dict[str, int]:
    """How often each result stands in whole lines of the JSONL files."""
    found: Dict[str, int] = {}
    for result in history_sinks.jsonl(directory):
        found[result] = found.get(result, 0) + 1
    return found


def csv_steps(directory: str, run: str) -> Set[int]:
    path = os.path.join(directory, run, "results.csv")
    if not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8", newline="") as file:
        return {int(row["step"]) for row in csv.DictReader(file)}


def check(directory: str, runs: Dict[str, Set[int]]) -> None:
    """After the logger has ended."""
    found = recorded(directory)
    wanted = set().union(*(results(run, steps) for run, steps in runs.items()))
    if set(found) != wanted or set(found.values()) != {1}:
        raise AssertionError(f"JSONL holds {found}, expected {sorted(wanted)}")
    places = os.path.join(directory, "tensorboard")
    points = events.points(places)
    for run, steps in runs.items():
        # One run's points lie in one directory, and a repetition there would be another one.
        drawn = [step for (place, tag, step) in points if os.path.relpath(place, places).split(os.sep)[0] == run and tag == "eval/one/value"]
        if sorted(drawn) != sorted(steps) or set(points.values()) != {1}:
            raise AssertionError(f"TensorBoard's files hold {points}, expected {run}: {sorted(steps)}")
        if csv_steps(directory, run) != steps:
            raise AssertionError(f"CSV holds {sorted(csv_steps(directory, run))} of {run}, expected {sorted(steps)}")
