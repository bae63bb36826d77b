"""Lightning's checkpoint files: which hold the same tensors, and whether a thread writes them later."""

from __future__ import annotations

import glob
import os
import re
import zipfile
from typing import Any, List, Tuple


def own_file(path: str, step: int) -> str:
    """last.ckpt has the tensors of a file with the step in its name: the queue knows that one."""
    if not os.path.basename(path).startswith("last") or not os.path.isfile(path):
        return path
    tensors = _tensors(path)
    for other in glob.glob(os.path.join(glob.escape(os.path.dirname(path)), f"*step={step}*.ckpt")):
        # Other steps begin with the same digits, and another run may have left a file of the same name and size.
        if tensors and re.search(rf"step={step}(?!\d)", os.path.basename(other)) and _tensors(other) == tensors:
            return other
    return path


def _tensors(path: str) -> List[Tuple[str, int, int]]:
    """Place, size and checksum of each tensor in what torch.save() wrote; [] where it is of another kind."""
    try:
        with zipfile.ZipFile(path) as file:
            names = [(info.filename.partition("/")[2], info) for info in file.infolist()]
    except (OSError, zipfile.BadZipFile):
        return []
    return sorted((name, info.file_size, info.CRC) for name, info in names if name.startswith("data/"))


def saves_later(trainer: Any) -> bool:
    """Whether AsyncCheckpointIO returns before the file is written."""
    kinds = type(getattr(getattr(trainer, "strategy", None), "checkpoint_io", None)).__mro__
    return any(kind.__name__ == "AsyncCheckpointIO" for kind in kinds)
