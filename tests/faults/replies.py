#!/usr/bin/env python3
"""The reply is lost, of each verb of the queue that no round of the campaign cuts: Redis has done what was asked, and the
program that asked is cut off. It asks again, or tells its user with a documented exit code; then the thing is done once,
and the audit is clean. A function of the library that neither the campaign nor this set cuts fails the set."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Set

import campaign
import lost_reply_gateway
import lost_reply_people
import sink_files
from lost_reply import Reply
from redis_states import GATE
from stage import DEADLINE, PREFIX, arguments, until
from trial import Unable, run_all


# ---- the worker ----


class Held(Reply):
    """A worker with a job under way, which ends once the reply was lost."""

    by = "evalq-worker"

    def prepare(self) -> None:
        self.stage.write("echo.sh", GATE.replace("$SITE", self.stage.directory), 0o755)
        self.stage.put("run", [1])
        self.worker = self.stage.start_worker()
        until(lambda: os.path.exists(self.stage.path("started")), "the job is under way")

    def strike(self) -> None:
        """What makes the worker ask."""

    def ask(self) -> None:
        self.strike()
        until(lambda: self.lost() > 0, "the reply is lost")
        self.stage.write("go", "")
        until(self.stage.ended, "every job ends")
        self.end(self.worker)

    def check(self) -> None:
        self.stage.verify()
        for run, step, suite in self.stage.runs:
            attempts = self.stage.call("HGET", f"{PREFIX}job:{run}/{step}/regular/{suite}", "attempts")
            self.same(attempts, b"1", f"attempts of {run}/{step}")


class Adopt(Held):
    """The keyspace went; the running job is put into the new one, once."""

    verb = "adopt"

    def strike(self) -> None:
        self.stage.call("FLUSHALL")

    def check(self) -> None:
        super().check()
        self.same(self.stage.count("evalq-worker", "event=job_adopted"), 1, "times it was told to be adopted")
        self.same(self.stage.call("HGET", PREFIX + "n", "adopted"), b"1", "times it was adopted")


class Gpus(Held):
    """One GPU leased, of two that are free, and given back."""

    verb = "gpus"
    devices, needs = "slots: 1, gpus: [GPU-a, GPU-b]", 1

    def prepare(self) -> None:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        raise Unable("no driver of NVIDIA's, which would not know these GPUs")

    def strike(self) -> None:
        super().prepare()
        leases = self.stage.call("KEYS", PREFIX + "gpus:*")
        self.same([self.stage.call("HLEN", key) for key in leases], [1], "GPUs leased")

    def check(self) -> None:
        super().check()
        self.same(self.stage.call("KEYS", PREFIX + "gpus:*"), [], "leases left")
        self.same(self.stage.count("evalq-worker", "event=gpu_leased"), 1, "times a GPU was leased")


# ---- the logger ----


class Recorded(Reply):
    """Results reach the sinks once each."""

    by = "evalq-logger"
    sinks = "{kind: jsonl}, {kind: csv}, {kind: tensorboard}, {kind: best, enabled: false}"

    def prepare(self) -> None:
        self.done("run", [1, 2])

    def taken(self) -> bool:
        wanted = self.sinks.count("kind:") - self.sinks.count("enabled: false")
        sinks = self.stage.sinks()
        return len(sinks) == wanted and not any(sink["pending"] or sink["lag"] for sink in sinks)

    def ask(self) -> None:
        logger = self.stage.start("evalq-logger")
        until(lambda: self.lost() > 0 and self.taken(), "the sinks have all there is")
        self.end(logger)

    def check(self) -> None:
        sink_files.check(self.stage.path("results"), {"run": {1, 2}})


class FlowOpen(Recorded):
    verb = "flow_open"


class SinkServe(Recorded):
    """Who said it twice takes itself for no other."""

    verb = "sink_serve"

    def check(self) -> None:
        super().check()
        self.same(self.stage.count("evalq-logger", "event=sink_shared"), 0, "times another logger was told of")


class Bad(Recorded):
    """An entry that is no result is set aside once, whichever sink meets it."""

    verb = "bad"

    def prepare(self) -> None:
        for sink in ("jsonl", "csv", "tensorboard"):  # What is there before a sink is registered may be trimmed.
            self.stage.function("sink_open", sink)
        self.stage.call("XADD", PREFIX + "results", "*", "record", "no record")
        super().prepare()

    def check(self) -> None:
        super().check()
        self.same(self.stage.call("XLEN", PREFIX + "bad"), 1, "entries set aside")


class BestPut(Recorded):
    verb = "best_put"
    sinks = "{kind: jsonl}, {kind: best}"

    def check(self) -> None:
        results = self.stage.path("results")
        self.same(sink_files.recorded(results), {result: 1 for result in sink_files.results("run", [1, 2])}, "in JSONL")
        best = json.loads(self.stage.call("HGET", PREFIX + "best:run", "eval/one/value"))
        self.same((best["step"], best["job"]), ("1", "run/1/regular/echo"), "the best")
        self.same(os.readlink(os.path.join(results, "run", "best")), os.path.join(self.stage.out, "run", "step-1.safetensors"), "the link")


class BestGet(BestPut):
    verb = "best_get"


# ---- samples from the worker to the logger ----


class SamplesAdd(Reply):
    """The piece is sent again, and the file is stored once."""

    verb = "samples_add"
    by = "evalq-worker"
    samples = "true"

    def prepare(self) -> None:
        item = '{"id": "a", "scores": {"acc": 1}}'
        text = f'#!/bin/sh\necho \'{item}\' >"${{EVALQ_RESULT%/*}}/samples.jsonl"\necho \'{{"value": 1}}\' >"$EVALQ_RESULT"\n'
        self.stage.write("echo.sh", text, 0o755)

    def ask(self) -> None:
        programs = [self.stage.start("evalq-logger"), self.stage.start_worker()]
        self.stage.put("run", [1])
        until(lambda: self.stage.ended() and self.lost() > 0, "the job ends and the reply is lost")
        until(lambda: self.stage.call("XLEN", PREFIX + "samples") == 0, "every piece is taken")
        for program in programs:
            self.end(program)

    def check(self) -> None:
        self.stage.all_done()
        self.same(self.stage.call("HGET", PREFIX + "n", "samples_bytes"), None, "bytes that the stream holds")
        self.same(os.listdir(self.stage.path("samples/run/1/regular/echo")), ["one.jsonl.gz"], "files")


class SamplesRemove(SamplesAdd):
    verb = "samples_remove"
    by = "evalq-logger"


class SamplesSender(SamplesRemove):
    verb = "samples_sender"


# ---- a training ----


class Trained(Reply):
    """The client library in a training."""

    by = "a training"

    def prepare(self) -> None:
        self.done("run", [1, 2])
        self.client = self.stage.client("run")

    def ask(self) -> None:
        self.must(self.client.wait(DEADLINE), "wait() was not through")

    def check(self) -> None:
        found = sorted((result.step, result.metric) for result in self.client.results())
        self.client.close()
        self.same(found, [(1, ""), (1, "value"), (2, ""), (2, "value")], "results and ends that arrived")
        self.stage.verify()


class TrainedResults(Trained):
    verb = "results"


class TrainedBest(Trained):
    """None: it cannot be asked now. Then it can."""

    verb = "best_get"
    sinks = BestPut.sinks

    def prepare(self) -> None:
        super().prepare()
        logger = self.stage.start("evalq-logger")
        until(lambda: self.stage.call("HGET", PREFIX + "best:run", "eval/one/value"), "the best is known")
        self.end(logger)

    def ask(self) -> None:
        self.same(self.client.best("eval/one/value"), None, "best() without its reply")
        best = self.client.best("eval/one/value")
        self.same(best.step, 1, "the best step")

    def check(self) -> None:
        self.client.close()


# ---- the whole library ----


class Library(Reply):
    """Each function has its place: in the campaign or here."""

    name = "every function of the library"

    def ask(self) -> None:
        [library] = self.stage.call("FUNCTION", "LIST", "LIBRARYNAME", "evalq_v1")
        rows = dict(zip(library[::2], library[1::2]))[b"functions"]
        functions = {dict(zip(row[::2], row[1::2]))[b"name"].decode()[len("evalq_v1_") :] for row in rows}
        here: Set[str] = {trial.verb for trial in TRIALS if trial.verb}
        there = {verb for verbs in campaign.VERBS.values() for verb in verbs}
        self.same(sorted(functions - there - here), [], "functions whose reply nobody loses")
        self.same(sorted(here - functions), [], "verbs that the library has not")
        self.found = len(functions)
        self.sentence = f"{len(functions)} functions: {len(functions & there)} in the campaign, {len(here)} here"

    def lose(self, how: str = "") -> None:
        """Nothing."""

    def lost(self) -> int:
        return self.found


TRIALS = [
    Library, *lost_reply_people.TRIALS, *lost_reply_gateway.TRIALS, Adopt, Gpus, FlowOpen, SinkServe, Bad, BestPut, BestGet,
    SamplesAdd, SamplesRemove, SamplesSender, TrainedResults, TrainedBest,
]  # fmt: skip
for kind in TRIALS:
    kind.name = kind.__dict__.get("name", f"{kind.verb} of {kind.by}")

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all("replies", TRIALS, arguments("the reply of each verb is lost"), 20, 2))
