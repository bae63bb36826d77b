"""Checkpoints whose metrics are not known yet, kept while the trainer rotates them away.

Hard links in OUTPUT_DIR/.evalq/held/, made on the training thread right after the save: no bytes are copied, and
nothing is written into a checkpoint. libevalq's pins serve the workers; these serve the trainer, which may want the
best one back, and libevalq, when the trainer deletes faster than its thread looks. What training alone needs
(optimizer, scheduler, random states) is not held.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import shutil
from typing import Dict, Iterable, Optional, Set

log = logging.getLogger("evalq")

_FOLDER = os.path.join(".evalq", "held")
_PINS = os.path.join(".evalq", "pins")
_TRAINING_ONLY = re.compile(r"^(optimizer(_\d+)?(\.pt|\.bin)?|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth)$")


class Held:
    """The held checkpoints of one training, by step. Rank 0 only; no call raises OSError."""

    def __init__(self) -> None:
        self._paths: Dict[int, str] = {}  # Where the trainer saved them.
        self._unpinned: Set[int] = set()  # libevalq has not looked at them yet.
        self._put_back: Set[int] = set()  # In place again, by us.
        self._warned = False

    def adopt(self, folder: str, paths: Iterable[str]) -> None:
        """Of what an earlier life of the run held in folder, only these are still wanted."""
        keep = {os.path.basename(path) for path in paths}
        try:
            names = os.listdir(os.path.join(folder, _FOLDER))
        except OSError:
            return
        for name in names:
            if name not in keep:
                _remove(os.path.join(folder, _FOLDER, name))
        _tidy(folder)

    def take(self, step: int, path: str) -> None:
        """It was saved, or is being saved; again, for files that came since."""
        self._paths[step] = path
        self._unpinned.add(step)
        try:
            _link_tree(path, _held(path))
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s cannot be held until its metrics are known (%s): should it be the best one, the trainer may have"
                    " deleted it by then. Let the trainer keep more checkpoints",
                    path,
                    error,
                )

    def take_again(self) -> None:
        """Before a save, which may rotate the others away when it is done."""
        for step, path in self._paths.items():
            if step not in self._put_back and os.path.exists(path):
                self.take(step, path)

    def drop(self, step: int) -> None:
        """It will be saved anew, into the same files."""
        path = self._paths.pop(step, None)
        if path is not None:
            _remove(_held(path))

    def rescue(self) -> None:
        """Puts back what the trainer deleted before libevalq could pin it; a look at a few names."""
        for step in list(self._unpinned):
            path = self._paths.get(step)
            if path is None or glob.glob(os.path.join(glob.escape(os.path.dirname(path)), _PINS, f"{step}-*")):
                self._unpinned.discard(step)
            elif not os.path.lexists(path) and os.path.exists(_held(path)):
                self.put_back(step, path)
                self._put_back.add(step)

    def put_back(self, step: int, path: str) -> bool:
        """Makes path a checkpoint again, where it is held; whether it is one."""
        self._paths.setdefault(step, path)
        held = _held(path)
        try:
            if not os.path.exists(path) and os.path.exists(held):
                _link_tree(held, path)
                moment = os.stat(held).st_mtime
                os.utime(path, (moment, moment))  # Trainers rotate by it: this one is not new.
        except OSError as error:
            log.warning("%s cannot be put back: %s", path, error)
        return os.path.exists(path)

    def restore(self, step: int) -> Optional[str]:
        """The best one: put back for good, unless it is still there. Its path, None where it was never saved."""
        path = self._paths.get(step)
        if path is None or not self.put_back(step, path):
            return None
        self._put_back.discard(step)
        return path

    def release(self, step: int) -> None:
        """Nobody waits for it any more."""
        path = self._paths.pop(step, None)
        if path is not None:
            _remove(_held(path))
            if step in self._put_back:
                _remove(path)  # The trainer had deleted it.
            _tidy(os.path.dirname(path))
        self._unpinned.discard(step)
        self._put_back.discard(step)

    def release_all(self) -> None:
        """The end."""
        for step in list(self._paths):
            self.release(step)


def _held(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, _FOLDER, name)


def _link_tree(source: str, target: str) -> None:
    if not os.path.isdir(source):
        if os.path.exists(source):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _link(source, target)
        return
    for folder, folders, files in os.walk(source):
        folders[:] = [each for each in folders if not _TRAINING_ONLY.match(each)]
        into = os.path.normpath(os.path.join(target, os.path.relpath(folder, source)))
        os.makedirs(into, exist_ok=True)
        for file in files:
            if not _TRAINING_ONLY.match(file):
                _link(os.path.join(folder, file), os.path.join(into, file))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except (FileExistsError, FileNotFoundError):
        pass  # There already, or written to another name and renamed meanwhile.


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        os.unlink(path)
    except OSError:
        pass


def _tidy(folder: str) -> None:
    for path in (os.path.join(folder, _FOLDER), os.path.join(folder, ".evalq")):
        try:
            os.rmdir(path)
        except OSError:  # Not empty, or not there.
            return
