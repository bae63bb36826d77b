"""The points of TensorBoard's event files, read without TensorBoard."""

from __future__ import annotations

import os
import struct
from typing import Any, Dict, Iterator, Tuple


def fields(data: bytes) -> Iterator[Tuple[int, Any]]:
    """The fields of a protobuf message: number, and an integer or bytes."""
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
            continue
        length = {1: 8, 5: 4}.get(kind) or varint()
        yield key >> 3, data[at : at + length]
        at += length


def records(path: str, torn: bool = False) -> Iterator[bytes]:
    """The events of a file. One that is cut ends it (torn), or raises."""
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data):
        size = struct.unpack_from("<Q", data, at)[0] if at + 12 <= len(data) else len(data)
        if at + 16 + size > len(data):
            if torn:
                return
            raise AssertionError(f"{path} ends within a record")
        yield data[at + 12 : at + 12 + size]
        at += 16 + size


def points(directory: str) -> Dict[Tuple[str, str, int], int]:
    """How often each point stands there, by (directory, tag, step). A record that is cut raises."""
    found: Dict[Tuple[str, str, int], int] = {}
    for place, _, names in os.walk(directory):
        for name in sorted(names):
            if ".tfevents." not in name:
                continue
            for record in records(os.path.join(place, name)):
                event = dict(fields(record))
                for _, value in fields(event.get(5, b"")):
                    tag = dict(fields(value)).get(1, b"").decode()
                    key = (place, tag, event.get(2, 0))
                    found[key] = found.get(key, 0) + 1
    return found
