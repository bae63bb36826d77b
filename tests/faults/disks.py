#!/usr/bin/env python3
"""Disks that are full, read-only, broken or gone beneath each program that writes: the logger's
sinks. Whoever meets one says so once and goes on by himself when there is
room again; then every job has ended and stands once in every sink."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
from typing import Dict, List, Set

import sink_files
from small_disk import SmallDisk
from stage import CONFIG, TOOLS, Stage, arguments, until
from trial import Trial, run_all


def said(stage: Stage, program: str, event: str) -> List[str]:
    """The lines of a program's log that hold the event as a warning or an error."""
    return [
        line
        for line in stage.log(program).splitlines()
        if f" event={event} " in line and (" level=warn " in line or " level=error " in line)
    ]


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
            if program.wait(60) != 0:
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
        lines = said(self.stage, "evalq-logger", "sink_waits")
        self.struck = sum(self.error in line or "No such file" in line for line in lines)
        self.sentence = reason(lines[0]) if lines else ""
        if len(lines) > len(self.SINKS):
            raise AssertionError(f"the logger said {lines}")


TRIALS = [Sinks, SinksFullAtStart, SinksReadOnly, SinksBroken, SinksGone]

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all("disks", TRIALS, arguments("disks that are full, read-only, broken or gone"), 20, 4))
