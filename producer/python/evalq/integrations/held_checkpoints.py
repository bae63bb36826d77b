"""Keeps checkpoints whose metrics are not known yet, even if the trainer deletes them.

The training thread makes hard links in OUTPUT_DIR/.evalq/held/ right after the save. No bytes are
copied, and nothing is written into a checkpoint. libevalq pins these links, so the trainer may
delete the checkpoint at once. The best checkpoint can be put back. Optimizer, scheduler and random
states are not kept.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from typing import Dict, Iterable, Optional, Tuple

log = logging.getLogger("evalq")

_FOLDER = os.path.join(".evalq", "held")
_TRAINING_ONLY = re.compile(
    r"^(optimizer(_\d+)?(\.pt|\.bin)?|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth)$"
)
_TRIES = 3  # Another process may remove empty folders at the same time.


class HeldCheckpoints:
    """The kept checkpoints of one training, by step. For rank 0 only. No call raises OSError."""

    def __init__(self) -> None:
        self._paths: Dict[int, str] = {}  # Step -> the path where the trainer saved it.
        self._newest: Dict[str, int] = {}  # Path -> the step that was saved there last.
        self._warned = False

    def adopt(self, folder: str, saved: Iterable[Tuple[int, str]]) -> None:
        """Removes the links of an earlier session of the run in folder, except those of the saved
        (step, path) pairs."""
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
        """Keeps a checkpoint that was saved or is being saved. Call it again for files that came
        later. Returns the path of the links; None: it cannot be kept."""
        self._paths[step] = path
        self._newest[path] = step
        try:
            short = _space_missing(path)
            if short:
                # This is no warning, because libevalq warns if it cannot pin the checkpoint either.
                log.info("%s is not kept: %s", path, short)
                _remove(_held(step, path))
                return None
            _link_tree(path, _held(step, path))
            return _held(step, path)
        except OSError as error:
            _remove(_held(step, path))
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s cannot be held until its metrics are known (%s): if it is the best one, the"
                    " trainer may have deleted it by then. Let the trainer keep more checkpoints"
                    " (save_total_limit)",
                    path,
                    error,
                )
            return None

    def take_again(self) -> None:
        """Call it before a save, which may delete the other checkpoints."""
        for step, path in self._paths.items():
            if os.path.exists(path):
                self.take(step, path)

    def drop(self, step: int) -> None:
        """Drops the links of a step that will be saved again into the same files."""
        path = self._paths.pop(step, None)
        if path is not None:
            _remove(_held(step, path))

    def put_back(self, step: int, path: str) -> Optional[str]:
        """Puts the step's checkpoint back and returns where it is: at path, or beside it if another
        step may have been saved to path (last.ckpt). None: there is no copy."""
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
                os.utime(half, (moment, moment))  # Trainers delete by age: keep the original time.
                os.rename(half, own)  # The rename makes it visible as a whole.
            return own
        except OSError as error:
            log.warning("%s cannot be put back: %s", path, error)
            return None

    def restore(self, step: int) -> Optional[str]:
        """Puts the best checkpoint back if it was deleted. Returns its path; None if it was never
        saved."""
        path = self._paths.get(step)
        return self.put_back(step, path) if path is not None else None

    def release(self, step: int) -> None:
        """Removes the links of a step that nobody needs any more."""
        path = self._paths.pop(step, None)
        if path is not None:
            _remove(_held(step, path))
            _tidy(os.path.dirname(path))

    def release_all(self) -> None:
        """Removes all links."""
        for step in list(self._paths):
            self.release(step)


def own_path(step: int, path: str) -> str:
    """A path whose name contains the step: path itself, or one beside it, because every step may be
    saved to last.ckpt."""
    folder, name = os.path.split(path)
    if re.search(rf"(?<!\d)0*{step}(?!\d)", name):
        return path
    stem, ending = os.path.splitext(name)
    return os.path.join(folder, f"{stem}-step={step}{ending}")


def _held(step: int, path: str) -> str:
    folder, name = os.path.split(own_path(step, path))
    return os.path.join(folder, _FOLDER, name)


def _same(held: str, path: str) -> bool:
    """Whether path is the kept checkpoint. For a directory, its first file decides."""
    for folder, _, files in os.walk(held):
        for file in files:
            inside = os.path.relpath(os.path.join(folder, file), held)
            return _same(os.path.join(held, inside), os.path.join(path, inside))
    return os.path.exists(held) and os.path.exists(path) and os.path.samefile(held, path)


def _space_missing(path: str) -> str:
    """Says why the disk is too full; "" if it is not. Links use no space until the trainer deletes
    the checkpoint; then the next save lacks that space."""
    if not os.path.exists(path):
        return ""  # The save has not begun.
    sizes = os.path.getsize(path) if os.path.isfile(path) else 0
    for folder, _, files in os.walk(path):
        sizes += sum(os.lstat(os.path.join(folder, file)).st_size for file in files)
    room = os.statvfs(os.path.dirname(path) or ".")
    free = room.f_bavail * room.f_frsize
    if free >= 2 * sizes:
        return ""
    return f"{free >> 20} MiB are free, and the next save may need {2 * sizes >> 20}"


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
        # The link may be from an earlier session, and the file may have been written again.
        if not os.path.samefile(source, target):
            os.unlink(target)
            os.link(source, target)
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(target)):
            raise
        # The file was a temporary name and was renamed in between.


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
        except OSError:  # The folder is not empty or does not exist.
            return
