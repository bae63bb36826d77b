"""Checkpoints whose metrics are not known yet, kept while the trainer rotates them away.

Hard links in OUTPUT_DIR/.evalq/held/, made on the training thread right after the save: no bytes are copied, and
nothing is written into a checkpoint. libevalq's pins, which serve the workers, are made of them, however fast the
trainer deletes; and the trainer may want the best one back. What training alone needs (optimizer, scheduler, random
states) is not held.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from typing import Dict, Iterable, Optional, Tuple

log = logging.getLogger("evalq")

_FOLDER = os.path.join(".evalq", "held")
_TRAINING_ONLY = re.compile(r"^(optimizer(_\d+)?(\.pt|\.bin)?|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth)$")
_TRIES = 3  # Another process may tidy up empty folders meanwhile.


class Held:
    """The held checkpoints of one training, by step. Rank 0 only; no call raises OSError."""

    def __init__(self) -> None:
        self._paths: Dict[int, str] = {}  # Where the trainer saved them.
        self._newest: Dict[str, int] = {}  # What was saved to each path last.
        self._warned = False

    def adopt(self, folder: str, saved: Iterable[Tuple[int, str]]) -> None:
        """Of what an earlier life of the run held in folder, only these steps, saved there, are still wanted."""
        keep = {os.path.basename(own_path(step, path)) for step, path in saved}
        try:
            names = os.listdir(os.path.join(folder, _FOLDER))
        except OSError:
            return
        for name in names:
            if name not in keep:
                _remove(os.path.join(folder, _FOLDER, name))
        _tidy(folder)

    def take(self, step: int, path: str) -> Optional[str]:
        """It was saved, or is being saved; again, for files that came since. Where it is, or will then be, held; None:
        it cannot be."""
        self._paths[step] = path
        self._newest[path] = step
        try:
            short = _room_missing(path)
            if short:
                log.info("%s is not held: %s", path, short)  # libevalq warns when it cannot pin it for that.
                _remove(_held(step, path))
                return None
            _link_tree(path, _held(step, path))
            return _held(step, path)
        except OSError as error:
            _remove(_held(step, path))
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s cannot be held until its metrics are known (%s): should it be the best one, the trainer may"
                    " have deleted it by then. Let the trainer keep more checkpoints (save_total_limit)",
                    path,
                    error,
                )
            return None

    def take_again(self) -> None:
        """Before a save, which may rotate the others away when it is done."""
        for step, path in self._paths.items():
            if os.path.exists(path):
                self.take(step, path)

    def drop(self, step: int) -> None:
        """It will be saved anew, into the same files."""
        path = self._paths.pop(step, None)
        if path is not None:
            _remove(_held(step, path))

    def put_back(self, step: int, path: str) -> Optional[str]:
        """Where the step's checkpoint is: at path, put back where it is held; beside it, where another step may have been
        saved to path since (last.ckpt). None: it is not there."""
        self._paths.setdefault(step, path)
        held = _held(step, path)
        own = own_path(step, path)
        if self._newest.get(path) == step:
            own = path
        half = held + ".back"
        try:
            if os.path.exists(path) and (own == path or _same(held, path)):
                return path
            if not os.path.exists(held):
                return None
            if not _same(held, own):
                _remove(half)
                _link_tree(held, half)
                moment = os.stat(held).st_mtime
                os.utime(half, (moment, moment))  # Trainers rotate by it: this one is not new.
                os.rename(half, own)  # A checkpoint is there as a whole or not at all.
            return own
        except OSError as error:
            log.warning("%s cannot be put back: %s", path, error)
            return None

    def restore(self, step: int) -> Optional[str]:
        """The best one: put back for good, unless it is still there. Its path, None where it was never saved."""
        path = self._paths.get(step)
        return self.put_back(step, path) if path is not None else None

    def release(self, step: int) -> None:
        """Nobody waits for it any more."""
        path = self._paths.pop(step, None)
        if path is not None:
            _remove(_held(step, path))
            _tidy(os.path.dirname(path))

    def release_all(self) -> None:
        """The end."""
        for step in list(self._paths):
            self.release(step)


def own_path(step: int, path: str) -> str:
    """path, where its name says the step; else one beside it that does: every step may be saved to last.ckpt."""
    folder, name = os.path.split(path)
    if re.search(rf"(?<!\d)0*{step}(?!\d)", name):
        return path
    stem, ending = os.path.splitext(name)
    return os.path.join(folder, f"{stem}-step={step}{ending}")


def _held(step: int, path: str) -> str:
    folder, name = os.path.split(own_path(step, path))
    return os.path.join(folder, _FOLDER, name)


def _same(held: str, path: str) -> bool:
    """Whether what is held is what lies at path; of a directory its first file tells."""
    for folder, _, files in os.walk(held):
        for file in files:
            inside = os.path.relpath(os.path.join(folder, file), held)
            return _same(os.path.join(held, inside), os.path.join(path, inside))
    return os.path.exists(held) and os.path.exists(path) and os.path.samefile(held, path)


def _room_missing(path: str) -> str:
    """A held checkpoint takes no room until the trainer deletes it; then the next save lacks it. "": there is enough."""
    if not os.path.exists(path):
        return ""  # It is being saved.
    sizes = os.path.getsize(path) if os.path.isfile(path) else 0
    for folder, _, files in os.walk(path):
        sizes += sum(os.lstat(os.path.join(folder, file)).st_size for file in files)
    room = os.statvfs(os.path.dirname(path) or ".")
    free = room.f_bavail * room.f_frsize
    return "" if free >= 2 * sizes else f"{free >> 20} MiB are free, and the next save may need {2 * sizes >> 20}"


def _link_tree(source: str, target: str) -> None:
    for attempt in range(_TRIES):
        try:
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
            return
        except FileNotFoundError:
            if attempt == _TRIES - 1:
                raise


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        if not os.path.samefile(source, target):  # Of an earlier life: it was written anew since.
            os.unlink(target)
            os.link(source, target)
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(target)):
            raise
        # It was written to another name and renamed meanwhile.


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
