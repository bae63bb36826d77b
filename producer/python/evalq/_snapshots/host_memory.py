"""Host memory for copies of weights, reused from one copy to the next."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from typing import Any, List

_HUGE_PAGE_BYTES = 2 << 20
_FREE_MAX = 2  # One block is written to a file while the next copy uses the other.


class HostMemory:
    """Blocks of memory that the caller takes and gives back. Any thread may call it.

    The first write to new memory costs more than the copy itself: 500 MB cause 128,000 page faults.
    reserve() takes these faults on another thread than the training's. Pinned blocks are torch
    tensors; other blocks are mmap objects, so that numpy users need no torch.
    """

    def __init__(self) -> None:
        # The lock is reentrant, because a signal handler may submit in the middle of a submit.
        self._lock = threading.RLock()
        self._free: List[Any] = []

    @property
    def largest(self) -> int:
        """The size of the largest free block in bytes."""
        with self._lock:
            return max((len(block) for block in self._free), default=0)

    def take(self, size: int, pinned: bool) -> Any:
        """Returns a block of at least size bytes."""
        with self._lock:
            for index, block in enumerate(self._free):
                if len(block) >= size and _is_pinned(block) == pinned:
                    return self._free.pop(index)  # remove() would compare tensors by element.
            self._free.clear()  # The caller now needs another size or kind.
        return _allocate_pinned(size) if pinned else _allocate(size)

    def give(self, block: Any) -> None:
        """Takes back a block that take() returned."""
        with self._lock:
            if len(self._free) < _FREE_MAX:
                self._free.append(block)

    def reserve(self, size: int, pinned: bool) -> None:
        """Allocates a free block with all its pages, which takes a while for large sizes."""
        with self._lock:
            if any(len(block) >= size and _is_pinned(block) == pinned for block in self._free):
                return
        if pinned:
            block = _allocate_pinned(size)
        else:
            block = _allocate(size)
            _use_huge_pages(block)
            view = ctypes.c_char.from_buffer(block)
            ctypes.memset(ctypes.addressof(view), 0, size)  # Other Python threads run meanwhile.
            del view
        self.give(block)


def _allocate(size: int) -> mmap.mmap:
    pages = max(1, -(-size // _HUGE_PAGE_BYTES))
    return mmap.mmap(-1, pages * _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _use_huge_pages(block: mmap.mmap) -> None:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # This kernel has no huge pages.
            block.madvise(advice)


def _allocate_pinned(size: int) -> Any:
    import torch

    return torch.empty(max(1, size), dtype=torch.uint8, device="cpu", pin_memory=True)


def _is_pinned(block: Any) -> bool:
    return not isinstance(block, mmap.mmap)
