"""What the logger's sinks hold, read by other means than evalq's: the records of JSONL files, the points of event files."""

from __future__ import annotations

import glob
import json
import os
from typing import Any, Dict, List, Tuple

import events


def jsonl(directory: str) -> List[str]:
    """The result_id of each whole line, repetitions too."""
    ids = []
    for path in sorted(glob.glob(os.path.join(directory, "**", "*.jsonl"), recursive=True)):
        with open(path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    ids.append(json.loads(line)["result_id"])
    return ids


def tensorboard(directory: str) -> List[List[Any]]:
    """[run directory, tag, step] of each scalar as TensorBoard's fast loader shows it: a step that arrives again takes the
    place of all that lies at or after it. Files are read in the order of their names."""
    curves: Dict[Tuple[str, str], List[int]] = {}
    for path in sorted(glob.glob(os.path.join(directory, "**", "*tfevents*"), recursive=True)):
        run = os.path.relpath(os.path.dirname(path), directory)
        for event in events.records(path, torn=True):
            step, summary = 0, b""
            for number, value in events.fields(event):
                step = value if number == 2 else step
                summary = value if number == 5 else summary
            for number, value in events.fields(summary):
                if number == 1:
                    tag = next((part.decode() for tag_number, part in events.fields(value) if tag_number == 1), "")
                    curve = curves.setdefault((run, tag), [])
                    while curve and curve[-1] >= step:
                        curve.pop()
                    curve.append(step)
    return [[run, tag, step] for (run, tag), curve in curves.items() for step in curve]


READERS: Dict[str, Any] = {"jsonl": jsonl, "tensorboard": tensorboard}
