"""What the set replies.py stands on: a stage whose programs reach Redis through the fault proxy, and a trial that loses one
reply of one verb, sees to it that it was lost, and has the queue audited afterwards."""

from __future__ import annotations

import os
import subprocess
from typing import Any, List

from campaign_site import Proxy
from stage import BIN, DEADLINE, PREFIX, Stage, until
from trial import Trial

CONFIG = """
roots: {out: $OUT}
evaluators:
  echo: {kind: command, command: [$SITE/echo.sh]}
suites:
  echo: {evaluator: echo, samples: $SAMPLES, needs: {gpus: $NEEDS}, tasks: [{name: one, type: any}]}
worker: {scratch: $SITE/scratch, lease_ms: 900, heartbeat_ms: 100, drain_seconds: 1, $DEVICES}
logger: {directory: $SITE/results, sinks: [$SINKS]}
samples: {directory: $SITE/samples, send: true}
gateway: {lmms: {results: $OUT/results, suite: echo, merge_suite: echo}}
"""
CPU = "devices: cpu, threads: 1"


class Wired(Stage):
    """A stage whose programs reach Redis through the proxy; the test itself goes past it."""

    def __init__(self, seed: int, sinks: str, devices: str, needs: int, samples: str) -> None:
        config = CONFIG.replace("$SINKS", sinks).replace("$DEVICES", devices).replace("$SAMPLES", samples)
        super().__init__(config.replace("$NEEDS", str(needs)))
        self.seed = seed
        self.start_redis()
        self.proxy = Proxy(self, self.path("proxy.sock"), [], [])
        self.url = "unix://" + self.proxy.listen

    def program(self, name: str) -> str:
        return os.path.join(BIN, name)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.proxy.process.kill()
            self.proxy.process.wait()


class Reply(Trial):
    """One verb of one program."""

    verb = ""
    by = ""
    sinks = "{kind: jsonl}, {kind: best, enabled: false}"
    devices, needs, samples = CPU, 0, "false"
    programs = ("evalq-worker", "evalq-logger", "evalq-gateway")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Wired(seed, self.sinks, self.devices, self.needs, self.samples)

    def prepare(self) -> None:
        """What the verb is about."""

    def ask(self) -> None:
        """What the program does, and what its user sees."""
        raise NotImplementedError

    def check(self) -> None:
        """That it was done once."""

    def run(self) -> None:
        self.prepare()
        self.lose()
        self.ask()
        self.struck = self.lost()
        self.check()
        self.stage.audit()

    def lose(self, how: str = "k=1") -> None:
        self.stage.proxy.say(f"rule cut_reply:{self.verb}:{how}")
        self.stage.proxy.counts()  # The proxy reads its orders one by one: once it answers this, it has the rule.

    def lost(self) -> int:
        return self.stage.proxy.counts().get(f"fault cut_reply {self.verb}", 0)

    def must(self, good: Any, what: str) -> None:
        if not good:
            raise AssertionError(f"{self.name}: {what}")

    def same(self, found: Any, expected: Any, what: str) -> None:
        self.must(found == expected, f"{what}: {found!r}, expected {expected!r}")

    def done(self, run: str, steps: List[int]) -> None:
        """Jobs of the run that have been evaluated."""
        self.stage.put(run, steps)
        self.end_jobs()

    def end_jobs(self) -> None:
        worker = self.stage.start_worker()
        until(self.stage.ended, "every job ends")
        self.end(worker)

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        self.same(process.wait(DEADLINE), 0, "a program's exit code")

    def jobs(self) -> int:
        return len(self.stage.call("KEYS", PREFIX + "job:*"))
