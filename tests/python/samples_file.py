"""Writes a samples file as evalq does, for tests and benchmarks."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import List


def write_samples(path: str, header: str, lines: List[str]) -> None:
    """With a last line that matches. header and lines end with "\\n"."""
    text = "".join([header, *lines]).encode()
    last = {"evalq_samples_end": len(lines), "crc32": zlib.crc32(text)}
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(text + json.dumps(last).encode() + b"\n")
