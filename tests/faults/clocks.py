#!/usr/bin/env python3
"""The wall clock of Redis jumps by hours, forwards and back, while jobs are evaluated, wait, and fail, before and after; and the leases of
workers that live stay theirs. A clock decides when to look and nothing else: every job ends once, soon."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from stage import CONFIG, DEADLINE, ENDS, TOOLS, Stage, arguments, until

HOUR_US = 3_600_000_000
FAILS = """#!/bin/sh
# Fails when told to: the job waits a while, by the server's clock.
if rm "$SITE/fail" 2>/dev/null; then exit 1; fi
while [ -e "$SITE/hold" ]; do sleep 0.02; done
echo '{"value": 1}' >"$EVALQ_RESULT"
"""


class Clocks(Stage):
    def __init__(self) -> None:
        super().__init__(CONFIG.replace("lease_ms: 300, heartbeat_ms: 60", "lease_ms: 3000, heartbeat_ms: 300"))
        self.offset = self.path("offset")
        self.shift(0)
        self.write("echo.sh", FAILS.replace("$SITE", self.directory), 0o755)
        preload = os.path.join(TOOLS, "libshift_clock.so")
        self.redis_variables = {"EVQ_CLOCK_FILE": self.offset, "LD_PRELOAD": preload}
        self.start_redis()

    def shift(self, offset_us: int) -> None:
        """The file is the same: Redis has it mapped."""
        with open(self.offset, "r+b" if os.path.exists(self.offset) else "wb") as file:
            file.write(offset_us.to_bytes(8, sys.byteorder, signed=True))

    def now(self) -> float:
        return int(self.call("TIME")[0])

    def through(self) -> bool:
        """Every job has ended: of one that ended more than a week ago, as the clock has it, nothing is kept but what was recorded."""
        over = {result.partition("#=done.")[0] for result in self.recorded() if "#=done." in result}
        return all(
            self.state(*job) in ENDS or (self.state(*job) == "" and "{}/{}/regular/{}".format(*job) in over) for job in self.runs
        )


def one(hours: float, jobs: int) -> int:
    """Jobs run and wait as the clock jumps; then it is as it was. How long a job took at most, ms."""
    stage = Clocks()
    try:
        stage.put("before", range(1, jobs + 1))
        stage.write("hold", "")
        stage.write("fail", "")
        worker = stage.start("evalq-worker")
        logger = stage.start("evalq-logger")
        until(lambda: any(stage.state(*job) == "delayed" for job in stage.runs), "a job has failed, and waits")
        until(lambda: any(stage.state(*job) == "running" for job in stage.runs), "a job runs")
        before = stage.now()
        stage.shift(int(hours * HOUR_US))
        until(lambda: abs(stage.now() - before - hours * 3600) < 60, "the clock has jumped")
        stage.put("during", range(1, 4))
        stage.write("fail", "")
        os.unlink(stage.path("hold"))
        until(lambda: not os.path.exists(stage.path("fail")), "a job fails at that time")
        until(lambda: len(stage.recorded()) >= 4, "jobs end at that time")
        stage.shift(0)  # And the other way.
        try:
            until(stage.through, "every job ends")
        except AssertionError as fault:
            raise AssertionError(f"{fault}: {[(job, stage.state(*job)) for job in stage.runs]}\n{stage.log('evalq-worker')}") from None
        until(lambda: len(stage.recorded()) == 2 * len(stage.runs), "every result is recorded")
        stage.audit()
        for job in stage.runs:
            if stage.state(*job) not in ("done", ""):
                raise AssertionError(f"{job} is '{stage.state(*job)}'")
        if set(stage.recorded().values()) != {1}:
            raise AssertionError(f"recorded: {stage.recorded()}")
        stolen = stage.log("evalq-worker").count("event=job_stale")
        if stolen:
            raise AssertionError(f"{stolen} jobs of a worker that lived were taken from it")
        for program in (worker, logger):
            program.terminate()
            if program.wait(DEADLINE) != 0:
                raise AssertionError(f"a program ended with {program.returncode}")
        return len(stage.runs)
    finally:
        stage.close()


def main() -> int:
    given = arguments("the wall clock of Redis jumps")
    dice = random.Random(given.seed)
    jumps = [2.0, -2.0]
    if given.long:
        jumps += [dice.choice((-1, 1)) * 10 ** dice.uniform(-3.5, 3.5) for _ in range(98)]  # A second to 130 days.
    failed = jobs = done = 0
    for number, hours in enumerate(jumps):
        point = f"clocks {given.seed} {number}"
        if given.done.has(point):
            continue
        began = time.monotonic()
        try:
            jobs += one(hours, 4)
            done += 1
            given.done.add(point)
            print(f"{hours:+.4f} h and back: {time.monotonic() - began:.0f} s", flush=True)
        except AssertionError as fault:
            failed += 1
            print(f"FAIL a jump of {hours:+.4f} h: {fault}", flush=True)
    print(f"clocks: {2 * done} jumps, {jobs} jobs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
