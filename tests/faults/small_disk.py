"""A file system of a trial's own, so small that it can be filled."""

from __future__ import annotations

import os
import subprocess

from stage import Stage
from trial import Unable


class SmallDisk:
    """Mounted at the stage's path NAME until the stage is closed."""

    def __init__(self, stage: Stage, name: str, size: str = "1m") -> None:
        self.path = stage.path(name)
        self.filler = os.path.join(self.path, "filler")
        os.makedirs(self.path, exist_ok=True)
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", self.path],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if mount.returncode != 0:
            raise Unable(f"cannot mount a small disk: {mount.stderr.strip()}")
        stage.mounts.append(self.path)

    def fill(self, leave: int = 0) -> None:
        """To the last byte, or so that this many are left."""
        with open(self.filler, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(512))
            except OSError:
                file.truncate(file.tell() - leave)

    def make_room(self) -> None:
        os.unlink(self.filler)

    def remount(self, option: str) -> None:
        """"ro" or "rw": while nobody has a file of it open for writing."""
        subprocess.run(["mount", "-o", "remount," + option, self.path], check=True, capture_output=True)
