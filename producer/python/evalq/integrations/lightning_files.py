"""Compares Lightning's checkpoint files, and tells whether a thread writes them later."""

from __future__ import annotations

import glob
import os
import re
import zipfile
from typing import Any, List, Tuple


def own_file(path: str, step: int) -> str:
    """The file that the queue knows for the step. If path is last.ckpt, that is a file beside it
    with the step in its name and the same tensors; else it is path itself."""
    if not os.path.basename(path).startswith("last") or not os.path.isfile(path):
        return path
    tensors = _tensors(path)
    for other in glob.glob(os.path.join(glob.escape(os.path.dirname(path)), f"*step={step}*.ckpt")):
        # The pattern also matches longer numbers, and another run may have left an equal name.
        is_step = re.search(rf"step={step}(?!\d)", os.path.basename(other))
        if tensors and is_step and _tensors(other) == tensors:
            return other
    return path


def _tensors(path: str) -> List[Tuple[str, int, int]]:
    """Name, size and checksum of each tensor in a zip file of torch.save(); [] for other files."""
    try:
        with zipfile.ZipFile(path) as file:
            names = [(info.filename.partition("/")[2], info) for info in file.infolist()]
    except (OSError, zipfile.BadZipFile):
        return []
    return sorted(
        (name, info.file_size, info.CRC) for name, info in names if name.startswith("data/")
    )


def saves_later(trainer: Any) -> bool:
    """Whether the trainer has an AsyncCheckpointIO, which returns before the file is written."""
    kinds = type(getattr(getattr(trainer, "strategy", None), "checkpoint_io", None)).__mro__
    return any(kind.__name__ == "AsyncCheckpointIO" for kind in kinds)
