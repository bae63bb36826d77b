"""Reads from ELF files which libraries they need, and which version of the C library."""

from __future__ import annotations

import re
import struct
from typing import Iterator, List, NamedTuple, Optional, Set, Tuple

_SECTION_DYNAMIC, _SECTION_VERNEED = 6, 0x6FFFFFFE  # SHT_DYNAMIC and SHT_GNU_verneed.
_TAG_NEEDED = 1  # DT_NEEDED.
# The libraries that a manylinux wheel need not contain (PEP 600). PEP 600 also allows some versions
# of libgcc_s and libstdc++; a file that needs one of them gets no manylinux tag here.
_PRESENT_EVERYWHERE = re.compile(
    r"^(ld-linux.*|libc|libm|libdl|librt|libpthread|libutil|libresolv)\.so(\.\d+)*$"
)


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


class Elf:
    """What one file needs. ValueError: it is not a 64-bit little-endian ELF file."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._data = file.read()
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"'{path}' is not a little-endian 64-bit ELF file")
        self._sections = list(self._read_sections())
        self.needed: Set[str] = set()  #: Sonames.
        self.versions: Set[Tuple[str, str]] = set()  #: Such as ("libc.so.6", "GLIBC_2.34").
        for section in self._sections:
            if section.kind == _SECTION_DYNAMIC:
                self.needed.update(self._read_needed(section))
            elif section.kind == _SECTION_VERNEED:
                self.versions.update(self._read_versions(section))

    def _read_sections(self) -> Iterator[_Section]:
        (start,) = struct.unpack_from("<Q", self._data, 40)
        size, count = struct.unpack_from("<HH", self._data, 58)
        for at in range(start, start + size * count, size):
            _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", self._data, at)
            yield _Section(kind, offset, length, link)

    def _text(self, section: _Section, offset: int) -> str:
        """The string at offset in the string table of section."""
        start = self._sections[section.link].offset + offset
        return self._data[start : self._data.index(b"\0", start)].decode()

    def _read_needed(self, section: _Section) -> Iterator[str]:
        for at in range(section.offset, section.offset + section.size, 16):
            tag, value = struct.unpack_from("<qQ", self._data, at)
            if tag == _TAG_NEEDED:
                yield self._text(section, value)

    def _read_versions(self, section: _Section) -> Iterator[Tuple[str, str]]:
        at = section.offset
        while True:
            _, count, library, first, step = struct.unpack_from("<HHIII", self._data, at)
            entry = at + first
            for _ in range(count):
                _, _, _, name, following = struct.unpack_from("<IHHII", self._data, entry)
                yield self._text(section, library), self._text(section, name)
                entry += following
            if step == 0:
                return
            at += step


def manylinux(paths: List[str], packed: Set[str]) -> Optional[str]:
    """The platform tag, such as "manylinux_2_34", if a machine with C library 2.34 can load all
    files of paths. packed are the sonames of the libraries in the wheel. None: the files need
    libraries that such a machine may not have."""
    newest = 0
    for path in paths:
        elf = Elf(path)
        if not all(name in packed or _PRESENT_EVERYWHERE.match(name) for name in elf.needed):
            return None
        for library, version in elf.versions:
            if library in packed:
                continue
            found = re.match(r"^GLIBC_2\.(\d+)(\.\d+)?$", version)
            if found is None:
                return None
            newest = max(newest, int(found.group(1)))
    return f"manylinux_2_{newest}" if newest >= 5 else None
