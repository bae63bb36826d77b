"""Reads the local files of W&B and SwanLab while their SDK still writes them.

They have the format of LevelDB's log: a file header, and blocks with records. A record may be
divided into a first, middle and last part. Each part has a header: checksum, length and type.
"""

from __future__ import annotations

from typing import Iterator, List

_FILE_HEADER_BYTES = 7
_PART_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class RecordReader:
    """Reads the records that were appended to one file since the last call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = _FILE_HEADER_BYTES
        self._parts: List[bytes] = []  # The parts so far of a record that is not complete yet.

    def records(self) -> Iterator[bytes]:
        """Yields each new record. The file may not exist yet."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        used = 0
        while True:
            left = _BLOCK_BYTES - (self._offset + used) % _BLOCK_BYTES
            if left < _PART_HEADER_BYTES:
                used += left  # The rest of the block is padding.
                continue
            header = data[used : used + _PART_HEADER_BYTES]
            length = int.from_bytes(header[4:6], "little")
            kind = header[6] if len(header) == _PART_HEADER_BYTES else 0
            end = used + _PART_HEADER_BYTES + length
            if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or len(data) < end:
                break  # The SDK has not written the rest yet.
            part = data[used + _PART_HEADER_BYTES : end]
            used = end
            self._parts = [part] if kind in (_WHOLE, _FIRST) else [*self._parts, part]
            if kind in (_WHOLE, _LAST):
                yield b"".join(self._parts)
                self._parts = []
        self._offset += min(used, len(data))
