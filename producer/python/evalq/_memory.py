"""Host memory for copies of weights, kept from one copy to the next."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from typing import Any, List

_HUGE = 2 << 20
_KEPT = 2  # One is written out while the next is copied.


def _new(size: int, huge: bool) -> mmap.mmap:
    length = max(1, -(-size // _HUGE)) * _HUGE
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if huge and advice is not None:
        with contextlib.suppress(OSError):  # A kernel without them.
            memory.madvise(advice)
    return memory


class HostMemory:
    """A few pieces of memory, taken and given back whole. Any thread.

    Touching new memory costs more than copying into it: 500 MB are 128,000 page faults, and in a virtual machine each
    may have to be answered by its host too. reserve() has that done beforehand, on another thread than training's.
    Pinned memory is torch's; the rest is plain, so that numpy needs no torch.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal's handler may submit in the middle of a submit.
        self._free: List[Any] = []

    @property
    def kept(self) -> int:
        """Bytes of the largest piece that can be taken."""
        with self._lock:
            return max((len(kept) for kept in self._free), default=0)

    def take(self, size: int, pinned: bool) -> Any:
        with self._lock:
            for at, kept in enumerate(self._free):
                if len(kept) >= size and _is_pinned(kept) == pinned:
                    return self._free.pop(at)  # By its place: remove() would compare tensors, element by element.
            self._free.clear()  # Another size, or another kind: what is kept is of no use any more.
        return _pinned(size) if pinned else _new(size, huge=False)

    def give(self, memory: Any) -> None:
        with self._lock:
            if len(self._free) < _KEPT:
                self._free.append(memory)

    def reserve(self, size: int, pinned: bool) -> None:
        """Makes a piece ready to be taken: its pages are there. Not for the training thread."""
        with self._lock:
            if any(len(kept) >= size and _is_pinned(kept) == pinned for kept in self._free):
                return
        memory = _pinned(size) if pinned else _new(size, huge=True)
        if not pinned:
            view = ctypes.c_char.from_buffer(memory)
            ctypes.memset(ctypes.addressof(view), 0, size)  # Lets other threads of Python run meanwhile.
            del view
        self.give(memory)


def _pinned(size: int) -> Any:
    import torch

    return torch.empty(max(1, size), dtype=torch.uint8, device="cpu", pin_memory=True)


def _is_pinned(memory: Any) -> bool:
    return not isinstance(memory, mmap.mmap)
