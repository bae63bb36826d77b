"""Trials of one set: each brings a fault about, sees it strike, ends it, and looks at what became of the jobs."""

from __future__ import annotations

import argparse
import concurrent.futures
import subprocess
import time
from typing import List, Type

from stage import Refused, Stage


class Unable(Exception):
    """This machine has not got what the trial wants."""


class Trial:
    """One of them. run() raises where something must not be so."""

    name = ""
    programs: tuple = ()  # Whose logs are shown when it fails.

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.stage: Stage
        self.struck = 0
        self.sentence = ""  # What a program said of it.

    def run(self) -> None:
        raise NotImplementedError

    def summary(self) -> str:
        return f"struck {self.struck} times, {len(self.stage.runs)} jobs"

    def logs(self) -> str:
        told = ""
        for name in self.programs:
            try:
                told += f"\n--- {name}\n{self.stage.log(name)[-2000:]}"
            except OSError:
                pass  # It was not started.
        return told


def one(kind: Type[Trial], seed: int) -> str:
    """"" or the name of one that failed; says how it went."""
    trial = kind(seed)
    began = time.monotonic()
    try:
        trial.run()
        if trial.struck == 0:
            raise AssertionError("it never struck")
    except Unable as why:
        print(f"NOT RUN {trial.name}: {why}", flush=True)
        return ""
    except (AssertionError, OSError, Refused, subprocess.SubprocessError) as fault:
        print(f"FAIL {trial.name}: {fault!r}{trial.logs()}", flush=True)
        return trial.name
    finally:
        trial.stage.close()
    print(f"{trial.name}: {trial.summary()}, {time.monotonic() - began:.0f} s; {trial.sentence}", flush=True)
    return ""


def run_all(set_name: str, kinds: List[Type[Trial]], given: argparse.Namespace, rounds: int, side_by_side: int) -> int:
    """The exit code. Rounds of all that --only means and --resume has not; they wait most of the time, so several go at once."""
    work = []
    for number in range(rounds if given.long else 1):
        work += [
            (kind, number)
            for kind in kinds
            if given.only in kind.name and not given.done.has(f"{set_name} {kind.name} {number}")
        ]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(side_by_side) as pool:
        for (kind, number), fault in zip(work, pool.map(lambda item: one(item[0], given.seed + item[1]), work)):
            failed += fault != ""
            if not fault:
                given.done.add(f"{set_name} {kind.name} {number}")
    print(f"{set_name}: {len(work)} runs of {len(kinds)} trials, {failed} failed")
    return 1 if failed else 0
