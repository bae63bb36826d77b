#!/usr/bin/env python3
"""Disks that are full, read-only, broken or gone beneath each program that writes: the logger's sinks, the worker's scratch, the
trainer's ring, spool and pins, the memory of its snapshots. Whoever meets one says so once and goes on by himself when there is
room again; then every job has ended and stands once in every sink; a training neither waits nor fails."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import Dict, List, Set

import disks_gateway
import sink_files
from small_disk import SmallDisk
from stage import CONFIG, DEADLINE, PREFIX, TOOLS, Stage, arguments, until
from trial import Trial, run_all


def said(stage: Stage, program: str) -> List[str]:
    """The warnings and errors of a program's log."""
    return [line for line in stage.log(program).splitlines() if " level=warn " in line or " level=error " in line]


def reason(line: str) -> str:
    found = re.search(r'reason=("[^"]*"|\S+)', line)
    return found.group(1) if found else line


class Sinks(Trial):
    """The directory of all file sinks is full in the midst."""

    name = "sinks full"
    programs = ("evalq-logger", "evalq-worker")
    SINKS = ("jsonl", "csv", "tensorboard")
    begins_with_it = False  # Before the logger starts.
    keeps = True  # What was recorded before.
    error = "No space left on device"
    tries = 4  # Of each sink, until there is room.

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage(CONFIG.replace("$SITE/results", "$SITE/disk/results"))
        self.directory = self.stage.path("disk/results")
        self.wanted: Dict[str, Set[int]] = {}

    def prepare(self) -> None:
        self.disk = SmallDisk(self.stage, "disk")

    def begin(self) -> None:
        self.disk.fill()

    def end(self) -> None:
        self.disk.make_room()

    def put(self, run: str, steps: range) -> None:
        self.stage.put(run, steps)
        self.wanted.setdefault(run, set()).update(steps)

    def all_recorded(self) -> bool:
        found = sink_files.recorded(self.directory)
        return all(
            sink_files.results(run, steps) <= set(found) and sink_files.csv_steps(self.directory, run) == steps
            for run, steps in self.wanted.items()
        ) and not any(sink["pending"] or sink["lag"] for sink in self.stage.sinks())

    def waits(self, sink: str) -> List[str]:
        return [line for line in self.stage.log("evalq-logger").splitlines() if f"event=sink_waits sink={sink} " in line]

    def struck_all(self) -> bool:
        """Each sink has tried several times. The last that run dry is woken by more to write."""
        return all(len(self.waits(sink)) >= self.tries for sink in self.SINKS)

    def look(self) -> None:
        """Tries leave nothing behind: a disk stays full for days."""
        for place, _, names in os.walk(os.path.join(self.directory, "tensorboard")):
            if len([name for name in names if ".tfevents." in name]) > 1:
                raise AssertionError(f"in {place} there are {names}")

    def run(self) -> None:
        stage = self.stage
        self.prepare()
        stage.start_redis()
        worker = stage.start_worker()
        if self.begins_with_it:
            self.begin()
        logger = stage.start("evalq-logger", "--log-level", "debug")
        if not self.begins_with_it:
            self.put("old", range(1, 3))
            until(self.all_recorded, "what came before is recorded")
            self.begin()
        self.put("old", range(3, 9))
        self.put("new", range(1, 13))
        until(stage.ended, "no job waits for the sinks")
        until(self.struck_all, "every sink meets it")
        self.look()
        self.end()
        self.put("after", range(1, 2))
        until(self.all_recorded, "all is recorded once there is room")
        for program in (logger, worker):
            program.terminate()
            if program.wait(DEADLINE) != 0:
                raise AssertionError(f"a program ended with {program.returncode}")
        self.check()

    def check(self) -> None:
        self.stage.all_done()
        sink_files.check(self.directory, self.wanted)
        for sink in self.SINKS:
            lines = self.waits(sink)
            warned = [line for line in lines if " level=warn " in line]
            if len(warned) != 1 or self.error not in warned[0]:
                raise AssertionError(f"sink {sink} said {warned}")
            self.struck += len(lines)
            self.sentence = reason(warned[0])


class SinksFullAtStart(Sinks):
    name = "sinks full at the start"
    begins_with_it = True


class SinksReadOnly(Sinks):
    """What no mount can be made to do while files of it are open for writing."""

    name = "sinks read-only"
    number = errno.EROFS

    def prepare(self) -> None:
        self.orders = self.stage.path("orders")
        self.order(0)
        preload = os.path.join(TOOLS, "librefuse_writes.so")
        self.stage.variables = {"EVQ_REFUSE_FILE": self.orders, "EVQ_REFUSE_UNDER": self.directory, "LD_PRELOAD": preload}
        self.error = os.strerror(self.number)

    def order(self, number: int) -> None:
        """The file is the same: the programs have it mapped."""
        with open(self.orders, "r+b" if os.path.exists(self.orders) else "wb") as file:
            file.write(number.to_bytes(8, sys.byteorder))
            if number == 0 and file.mode == "wb":
                file.write(bytes(8))

    def begin(self) -> None:
        self.order(self.number)

    def end(self) -> None:
        self.order(0)

    def check(self) -> None:
        super().check()
        with open(self.orders, "rb") as file:
            self.struck = int.from_bytes(file.read()[8:], sys.byteorder)


class SinksBroken(SinksReadOnly):
    name = "sinks broken"
    number = errno.EIO


class SinksGone(Sinks):
    """Somebody removes the directory. What was in it went with it; what comes is in a new one."""

    name = "sinks gone"
    error = "was removed"

    def prepare(self) -> None:
        pass

    def begin(self) -> None:
        shutil.rmtree(self.directory)
        self.wanted = {}

    def end(self) -> None:
        pass

    def struck_all(self) -> bool:
        return True  # CSV, which writes its file anew each time, need not even notice.

    def check(self) -> None:
        self.stage.all_done()
        sink_files.check(self.directory, self.wanted)
        lines = said(self.stage, "evalq-logger")
        self.struck = sum(self.error in line or "No such file" in line for line in lines)
        self.sentence = reason(lines[0]) if lines else ""
        if len(lines) > len(self.SINKS):
            raise AssertionError(f"the logger said {lines}")


class Scratch(Trial):
    """The worker's scratch directory, where its logs lie too, is full: no job is spent on it."""

    name = "scratch full"
    programs = ("evalq-worker",)
    tries = 3

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage(CONFIG.replace("$SITE/scratch", "$SITE/disk/scratch"))

    def begin(self) -> None:
        self.disk.fill()

    def end(self) -> None:
        self.disk.make_room()

    def released(self) -> int:
        return self.stage.log("evalq-worker").count("ending=disk_full")

    def run(self) -> None:
        stage = self.stage
        self.disk = SmallDisk(stage, "disk")
        stage.start_redis()
        worker = stage.start("evalq-worker")
        stage.put("before", range(1, 2))
        stage.put("native", range(1, 2), "native")
        until(stage.ended, "what came before ends")
        self.begin()
        stage.put("during", range(1, 5))
        stage.put("native", range(2, 4), "native")
        until(lambda: self.released() >= self.tries, "the worker meets it several times")
        self.end()
        until(stage.ended, "every job ends once there is room")
        worker.terminate()
        if worker.wait(DEADLINE) != 0:
            raise AssertionError(f"the worker ended with {worker.returncode}")
        stage.verify()
        for run, step, suite in stage.runs:
            attempts = stage.call("HGET", f"{PREFIX}job:{run}/{step}/regular/{suite}", "attempts")
            if attempts != b"1":
                raise AssertionError(f"{run}/{step} was charged {attempts.decode()} attempts")
        lines = said(stage, "evalq-worker")
        if not lines or len(lines) > 2 or not all(" event=suite_paused " in line for line in lines):  # Once of each suite.
            raise AssertionError(f"the worker said {lines}")
        self.struck, self.sentence = self.released(), reason(lines[0])


class ScratchReadOnly(Scratch):
    name = "scratch read-only"

    def begin(self) -> None:
        until(self.remounted, "no file of it is open for writing")

    def remounted(self) -> bool:
        try:
            self.disk.remount("ro")
            return True
        except subprocess.CalledProcessError:
            return False

    def end(self) -> None:
        self.disk.remount("rw")


class ScratchGone(Scratch):
    """As cleaners of /tmp do: it is made anew, and nobody need say so."""

    name = "scratch gone"

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        worker = stage.start("evalq-worker")
        stage.put("before", range(1, 2))
        until(stage.ended, "what came before ends")
        shutil.rmtree(stage.path("disk"))
        self.struck = 1
        stage.put("during", range(1, 5))
        until(stage.ended, "what comes afterwards ends")
        worker.terminate()
        if worker.wait(DEADLINE) != 0:
            raise AssertionError(f"the worker ended with {worker.returncode}")
        stage.verify()


class Training(Trial):
    """A training beside a small disk: it ends in order whatever evalq finds there, and what it was told is accepted becomes
    its jobs."""

    programs = ("evalq-worker",)
    ring_bytes = (1 << 20) + 4096  # Of its file.

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage()

    def settle(self) -> None:
        """What is left is sent by the next training, and all jobs end."""
        self.stage.trainer("run", 1, 0)
        worker = self.stage.start_worker()
        until(self.stage.ended, "every job ends")
        worker.terminate()
        worker.wait(DEADLINE)
        self.stage.verify()

    def warned(self, *sentences: str) -> None:
        """The training said these, once each, and nothing else."""
        lines = self.stage.said.splitlines()
        if len(lines) != len(sentences) or not all(any(words in line for line in lines) for words in sentences):
            raise AssertionError(f"the training said {lines}, expected {sentences}")
        self.sentence = next((line for line in lines if sentences[0] in line), "")


class RingFull(Training):
    """No room for the ring: the training goes on without, and the next one has it."""

    name = "ring full"

    def run(self) -> None:
        stage = self.stage
        disk = SmallDisk(stage, "disk", "2m")
        stage.ring = os.path.join(disk.path, "ring")
        stage.start_redis()
        self.begin(disk)
        if stage.trainer("run", 1, 3):
            raise AssertionError("submits were accepted without a ring")
        self.struck = 3
        self.sentence = stage.without
        self.end(disk)
        if stage.trainer("run", 1, 3) != [1, 2, 3]:
            raise AssertionError("with room, not all was accepted")
        self.settle()

    def begin(self, disk: SmallDisk) -> None:
        disk.fill()

    def end(self, disk: SmallDisk) -> None:
        disk.make_room()


class RingReadOnly(RingFull):
    name = "ring read-only"

    def begin(self, disk: SmallDisk) -> None:
        disk.remount("ro")

    def end(self, disk: SmallDisk) -> None:
        disk.remount("rw")


class SpoolFull(Training):
    """Redis is away, and there is room for the ring alone: what was accepted stays in it."""

    name = "spool full"
    steps = 20

    def run(self) -> None:
        stage = self.stage
        disk = SmallDisk(stage, "disk", "2m")
        stage.ring = os.path.join(disk.path, "ring")
        os.mkdir(stage.ring, 0o700)
        stage.start_redis()
        stage.stop_redis()
        disk.fill(self.ring_bytes)
        accepted = stage.trainer("run", 1, self.steps, flush_ms=3000)
        if len(accepted) != self.steps:
            raise AssertionError(f"accepted were {accepted}")
        self.warned("No space left on device", "submits are kept in", f"ends with {self.steps} of its submits unsent")
        self.struck = len(accepted)
        disk.make_room()
        stage.start_redis()
        self.settle()


class PinsFull(Training):
    """Beside the checkpoints there is no room for pins: they are submitted without."""

    name = "pins full"

    def run(self) -> None:
        stage = self.stage
        disk = SmallDisk(stage, "out")
        stage.start_redis()
        stage.checkpoints("run", range(1, 6))
        disk.fill()
        accepted = stage.trainer("run", 1, 5)
        if len(accepted) != 5:
            raise AssertionError(f"accepted were {accepted}")
        self.warned("is not pinned")
        self.struck = len(accepted)
        self.settle()


TRIALS = [
    Sinks, SinksFullAtStart, SinksReadOnly, SinksBroken, SinksGone, Scratch, ScratchReadOnly, ScratchGone,
    RingFull, RingReadOnly, SpoolFull, PinsFull, *disks_gateway.TRIALS,
]  # fmt: skip

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all("disks", TRIALS, arguments("disks that are full, read-only, broken or gone"), 20, 4))
