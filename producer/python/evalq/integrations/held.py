"""Checkpoints whose metric is not known yet, kept loadable while the trainer rotates them away.

Hard links in OUTPUT_DIR/.evalq/held/: no bytes are copied and nothing is written into a checkpoint. What training
alone needs (optimizer, scheduler, random states) is not held. Rank 0 only; every call may raise OSError.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Iterable, List, Optional

_FOLDER = os.path.join(".evalq", "held")
_TRAINING_ONLY = re.compile(r"^(optimizer(_\d+)?(\.pt|\.bin)?|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth)$")


class Held:
    """The held checkpoints of one output directory."""

    def __init__(self, output_dir: str) -> None:
        self._output_dir = output_dir
        self._folder = os.path.join(output_dir, _FOLDER)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def take(self, name: str) -> None:
        """Links what the checkpoint holds by now; again, for files that came since."""
        source = os.path.join(self._output_dir, name)
        for folder, folders, files in os.walk(source):
            folders[:] = [each for each in folders if not _TRAINING_ONLY.match(each)]
            target = os.path.normpath(os.path.join(self._path(name), os.path.relpath(folder, source)))
            os.makedirs(target, exist_ok=True)
            for file in files:
                if _TRAINING_ONLY.match(file):
                    continue
                try:
                    os.link(os.path.join(folder, file), os.path.join(target, file))
                except FileExistsError:
                    pass

    def has(self, name: str) -> bool:
        """Whether take() was called and release() was not."""
        return os.path.isdir(self._path(name))

    def release(self, name: str) -> None:
        """Accepts what is not held."""
        shutil.rmtree(self._path(name), ignore_errors=True)
        self._tidy()

    def restore(self, name: str) -> str:
        """Puts the checkpoint back to where it was, unless it is still there; its path."""
        target = os.path.join(self._output_dir, name)
        if not os.path.isdir(target) and self.has(name):
            moment = max(entry.stat().st_mtime for entry in os.scandir(self._path(name)))
            os.rename(self._path(name), target)
            os.utime(target, (moment, moment))  # Trainers rotate by it: this one is not new.
        return target

    def names(self) -> List[str]:
        """All that is held, perhaps by an earlier life of the run."""
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []

    def release_all_but(self, names: Iterable[str]) -> None:
        """What an earlier life of the run held goes, too."""
        keep = set(names)
        for name in self.names():
            if name not in keep:
                self.release(name)

    def _tidy(self) -> None:
        for folder in (self._folder, os.path.dirname(self._folder)):
            try:
                os.rmdir(folder)
            except OSError:  # Not empty, or not there.
                return


def checkpoint_path(output_dir: str, name: str) -> Optional[str]:
    """Where a complete directory of that name lies: in place, or held."""
    for path in (os.path.join(output_dir, name), os.path.join(output_dir, _FOLDER, name)):
        if os.path.isdir(path):
            return path
    return None
