"""What the logger's sinks hold, read by other means than evalq's: the records of JSONL files, the points of event files."""

from __future__ import annotations

import glob
import json
import os
import struct
from typing import Any, Dict, Iterator, List, Tuple


def jsonl(directory: str) -> List[str]:
    """The result_id of each whole line, repetitions too."""
    ids = []
    for path in sorted(glob.glob(os.path.join(directory, "**", "*.jsonl"), recursive=True)):
        with open(path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    ids.append(json.loads(line)["result_id"])
    return ids


def fields(data: bytes) -> Iterator[Tuple[int, Any]]:
    """Number and value of each field of a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield key >> 3, data[at:at + size]
            at += size
        else:
            size = varint()
            yield key >> 3, data[at:at + size]
            at += size


def events(path: str) -> Iterator[bytes]:
    """Whole records of an event file; a torn one ends it."""
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at + 12 <= len(data):
        size = struct.unpack_from("<Q", data, at)[0]
        if at + 16 + size > len(data):
            return
        yield data[at + 12:at + 12 + size]
        at += 16 + size


def tensorboard(directory: str) -> List[List[Any]]:
    """[run directory, tag, step] of each scalar as TensorBoard's fast loader shows it: a step that arrives again takes the
    place of all that lies at or after it. Files are read in the order of their names."""
    curves: Dict[Tuple[str, str], List[int]] = {}
    for path in sorted(glob.glob(os.path.join(directory, "**", "*tfevents*"), recursive=True)):
        run = os.path.relpath(os.path.dirname(path), directory)
        for event in events(path):
            step, summary = 0, b""
            for number, value in fields(event):
                step = value if number == 2 else step
                summary = value if number == 5 else summary
            for number, value in fields(summary):
                if number == 1:
                    tag = next((part.decode() for tag_number, part in fields(value) if tag_number == 1), "")
                    curve = curves.setdefault((run, tag), [])
                    while curve and curve[-1] >= step:
                        curve.pop()
                    curve.append(step)
    return [[run, tag, step] for (run, tag), curve in curves.items() for step in curve]


READERS: Dict[str, Any] = {"jsonl": jsonl, "tensorboard": tensorboard}
