"""The gateway where the disk is full: the directory into which it writes what LMMS-Eval's clients look for, and the one in
which it keeps checkpoints that wait. It writes nothing else; all that it knows is in Redis."""

from __future__ import annotations

import errno
import json
import os
from typing import List

import parts
from small_disk import SmallDisk
from stage import CONFIG, DEADLINE, Stage, checkpoint_bytes, free_port, until
from trial import Trial

FULL = "No space left on device"


class Gateway(Trial):
    """A client of LMMS-Eval has a checkpoint evaluated."""

    programs = ("evalq-gateway", "evalq-worker")
    config = CONFIG + "gateway: {lmms: {results: $SITE/lmms, suite: echo}}\n"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage(self.config)
        self.front = parts.Front(self.stage)

    def begin(self) -> None:
        self.stage.start_redis()
        self.start()

    def start(self) -> None:
        self.gateway = self.stage.start("evalq-gateway", *self.front.words(free_port()))
        until(lambda: self.front.ask("/healthz")[0] == 200, "the gateway answers")

    def save(self, step: int) -> str:
        directory = self.stage.checkpoints(f"run/checkpoint-{step}", [1])
        os.rename(os.path.join(directory, "step-1.safetensors"), os.path.join(directory, "model.safetensors"))
        return directory

    def evaluate(self, directory: str) -> str:
        status, answer = self.front.ask("/evaluate", {"model": "m", "tasks": ["one"], "model_args": {"pretrained": directory}})
        if status != 200:
            raise AssertionError(f"POST /evaluate: {status} {answer}")
        return str(answer["job_id"])

    def poll(self, job: str) -> dict:
        status, answer = self.front.ask("/jobs/" + job)
        if status != 200:
            raise AssertionError(f"GET /jobs: {status} {answer}")
        return dict(answer)

    def end(self) -> None:
        self.gateway.terminate()
        if self.gateway.wait(DEADLINE) != 0:
            raise AssertionError(f"the gateway ended with {self.gateway.returncode}")
        self.stage.audit()


    def results_are_told(self, jobs: List[str]) -> None:
        """Each poll has the numbers, and says why there is no file."""
        until(lambda: all(self.poll(job)["status"] == "completed" for job in jobs), "all are evaluated")
        for job in jobs:
            [entry] = self.poll(job)["result"].values()
            if FULL not in entry.get("note", "") or entry["results"] is not None or entry["metrics"] != {"one": {"value": 1.0}}:
                raise AssertionError(f"of a file that could not be written it said {entry}")
            self.struck += 1
            self.sentence = entry["note"]

    def results_are_there(self, jobs: List[str]) -> None:
        for job in jobs:
            [entry] = self.poll(job)["result"].values()
            with open(entry["results"], encoding="utf-8") as file:
                if "one" not in json.load(file)["results"]:
                    raise AssertionError(f"{entry['results']} has not the task")


class ResultsFull(Gateway):
    """Each poll has the numbers and says why there is no file; the first one after there is room has it."""

    name = "gateway's results full"

    def run(self) -> None:
        disk = SmallDisk(self.stage, "lmms")
        self.begin()
        worker = self.stage.start("evalq-worker")
        jobs = [self.evaluate(self.save(step)) for step in (1, 2)]
        disk.fill()
        self.results_are_told(jobs)
        left = [name for _, _, names in os.walk(disk.path) for name in names if name != "filler"]
        if left:
            raise AssertionError(f"half a file is left: {left}")
        disk.make_room()
        self.results_are_there(jobs)
        worker.terminate()
        worker.wait(DEADLINE)
        self.end()


class PinsFull(Gateway):
    """What cannot be kept is evaluated where it lies, and the log says so."""

    name = "gateway's pins full"

    def run(self) -> None:
        disk = SmallDisk(self.stage, "out")
        directories = [self.save(step) for step in (1, 2)]
        self.begin()
        disk.fill()
        jobs = [self.evaluate(directory) for directory in directories]
        told = [line for line in self.stage.log("evalq-gateway").splitlines() if "event=unpinned" in line]
        if len(told) != len(jobs) or "has 0 MiB left" not in told[0]:
            raise AssertionError(f"of {len(jobs)} checkpoints that it could not keep it said {told}")
        self.struck, self.sentence = len(told), told[0]
        worker = self.stage.start("evalq-worker")
        until(lambda: all(self.poll(job)["status"] == "completed" for job in jobs), "both are evaluated")
        disk.make_room()
        worker.terminate()
        worker.wait(DEADLINE)
        self.end()


class AllFull(Gateway):
    """The memory in which weights are handed over is full (the root `shm`), and so is every place where programs make files of
    their own, as rings and spools: home, the directories for run-time and temporary files. It serves, also when it starts then,
    and takes no weights that are not whole."""

    name = "gateway's memory full"

    config = Gateway.config.replace("{out: $OUT}", "{out: $OUT, shm: $SITE/disk/shm}").replace("/lmms", "/disk/lmms")

    def hand_over(self, step: int) -> int:
        """As a C program does: the file of the weights, then a submit over HTTP. Its status."""
        path = os.path.join(self.disk.path, "shm", f"step-{step}.safetensors")
        try:
            with open(path, "wb", buffering=0) as file:
                file.write(checkpoint_bytes(step))
        except OSError as fault:
            if fault.errno != errno.ENOSPC:
                raise
            self.struck += 1
        body = {"run": "run", "step": step, "suites": ["echo"], "root": "shm", "path": f"step-{step}.safetensors"}
        return self.front.ask("/v1/jobs", body)[0]

    def serves(self) -> None:
        for path in ("/readyz", "/v1/queue", "/v1/runs", "/queue"):
            status = self.front.ask(path)[0]
            if status != 200:
                raise AssertionError(f"GET {path}: {status}")

    def run(self) -> None:
        self.disk = SmallDisk(self.stage, "disk")
        os.mkdir(os.path.join(self.disk.path, "shm"))
        self.stage.variables = dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"), self.disk.path)
        directories = [self.save(step) for step in (1, 2)]
        self.begin()
        worker = self.stage.start("evalq-worker")
        self.disk.fill()
        jobs = [self.evaluate(directories[0])]
        refused = self.hand_over(3)
        if refused != 409 or self.stage.state("run", 3, "echo"):
            raise AssertionError(f"weights that are not whole were answered with {refused}")
        self.end()
        self.start()
        self.serves()
        jobs.append(self.evaluate(directories[1]))
        self.results_are_told(jobs)
        self.disk.make_room()
        if self.hand_over(3) != 200:
            raise AssertionError("with room, whole weights are not taken")
        self.stage.expect("run", [3], "echo")
        until(self.stage.ended, "the weights are evaluated")
        self.results_are_there(jobs)
        worker.terminate()
        worker.wait(DEADLINE)
        self.end()
        if self.stage.state("run", 3, "echo") != "done":
            raise AssertionError(f"the weights' job is {self.stage.state('run', 3, 'echo')}")


TRIALS = [ResultsFull, PinsFull, AllFull]
