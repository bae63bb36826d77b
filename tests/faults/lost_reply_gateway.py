"""Lost replies of what clients ask the gateway for."""

from __future__ import annotations

import json
import os
import shutil
from typing import List

import parts
from campaign_site import SOURCE
from lost_reply import Reply
from stage import PREFIX, Redis, free_port, until

SHARD = os.path.join(SOURCE, "tests", "data", "checkpoints", "torch_zip", "bfloat16.pt")


class Asked(Reply):
    """The gateway asks a second time before it answers."""

    by = "evalq-gateway"
    path = ""

    def prepare(self) -> None:
        self.done("run", [1, 2])
        self.start_gateway()

    def start_gateway(self) -> None:
        self.front = parts.Front(self.stage)
        self.gateway = self.stage.start("evalq-gateway", *self.front.words(free_port()))
        until(lambda: self.front.ask("/healthz")[0] == 200, "the gateway answers")

    def ask(self) -> None:
        status, self.answer = self.front.ask(self.path)
        self.same(status, 200, f"GET {self.path}")
        self.sentence = "200"

    def check(self) -> None:
        self.good()
        self.end(self.gateway)

    def good(self) -> None:
        raise NotImplementedError


class AskedRuns(Asked):
    verb, path = "runs", "/v1/runs"

    def good(self) -> None:
        self.same([row["run"] for row in self.answer["runs"]], ["run"], "runs")


class AskedResults(Asked):
    verb, path = "results", "/v1/runs/run/results"

    def good(self) -> None:
        self.same(sorted(row["step"] for row in self.answer["results"] if row["task"]), [1, 2], "steps with a result")


class AskedShow(Asked):
    verb, path = "show", "/v1/jobs/run/1/regular/echo"

    def good(self) -> None:
        self.same(self.answer["job"]["state"], "done", "the state")


class AskedTickets(Asked):
    verb, path = "tickets", "/queue"

    def good(self) -> None:
        self.same(self.answer["queue_size"], 0, "tickets")


class Retried(Asked):
    """Also where a worker has had the job before it is asked again: by this POST it was queued, once, and so it is told."""

    verb = "retry"
    path = "/v1/jobs/run/1/regular/echo"

    def prepare(self) -> None:
        self.stage.put("run", [1])
        self.stage.function("cancel", "run/1/regular/echo", "")
        self.worker = self.stage.start_worker()
        until(lambda: len(json.loads(self.stage.function("stats"))["workers"]) == 1, "the worker is there")
        self.start_gateway()

    def ask(self) -> None:
        monitor = Redis(self.stage.socket)
        monitor.call("MONITOR")
        status, self.answer = self.front.ask(self.path + "/retry", method="POST")
        self.same((status, self.answer), (200, {"id": "run/1/regular/echo", "state": "queued"}), "POST .../retry")
        asked: List[str] = []
        while len(asked) < 2:
            line = monitor.read().decode()
            asked += [line.split()[-1]] if "evalq_v1_retry" in line else []
        monitor.close()
        self.same(asked[0], asked[1], "the name of the request")
        self.sentence = "200"

    def good(self) -> None:
        until(self.stage.ended, "the job ends")
        self.same(self.stage.state("run", 1, "echo"), "done", "its state")
        self.same(len([name for name in self.stage.entries() if name.endswith("#one")]), 1, "results")
        self.same(self.front.ask(self.path + "/retry", method="POST")[0], 409, "POST .../retry of what is done")
        self.end(self.worker)


class Evaluated(Asked):
    """LMMS-Eval's clients, which forget what fails once: they are answered when the ticket is there. One ticket, one job."""

    verb = "ticket_put"

    def prepare(self) -> None:
        self.start_gateway()
        directory = self.stage.checkpoints("run/checkpoint-1", [1])
        os.rename(os.path.join(directory, "step-1.safetensors"), os.path.join(directory, "model.safetensors"))
        self.body = {"model": "m", "tasks": ["one"], "model_args": {"pretrained": directory}}

    def ask(self) -> None:
        status, self.answer = self.front.ask("/evaluate", self.body)
        self.same(status, 200, "POST /evaluate")
        self.sentence = "200"

    def good(self) -> None:
        tickets = self.stage.call("ZRANGE", PREFIX + "ticketopen", 0, -1)
        self.same(tickets, [self.answer["job_id"].encode()], "tickets")
        self.same(self.stage.call("HGET", PREFIX + "n", "tickets"), b"1", "tickets ever")
        self.same(self.jobs(), 1, "jobs")
        self.same(self.front.ask("/queue")[1]["queued_jobs"], [self.answer["job_id"]], "what /queue lists")


class Polled(Evaluated):
    verb = "ticket"

    def prepare(self) -> None:
        super().prepare()
        status, self.answer = self.front.ask("/evaluate", self.body)
        self.same(status, 200, "POST /evaluate")
        self.path = "/jobs/" + self.answer["job_id"]

    def ask(self) -> None:
        status, found = self.front.ask(self.path)
        self.same((status, found["status"]), (200, "queued"), f"GET {self.path}")
        self.sentence = "200"


class Cancelled(Polled):
    """By this DELETE, and so it is told; the next one finds it cancelled."""

    verb = "ticket_cancel"

    def ask(self) -> None:
        self.same(self.front.ask(self.path, method="DELETE")[0], 200, "DELETE")
        self.same(self.front.ask(self.path)[1]["status"], "cancelled", "the ticket's state")
        self.same(self.front.ask(self.path, method="DELETE")[0], 400, "DELETE, again")
        self.sentence = "200"

    def good(self) -> None:
        [job] = self.stage.call("KEYS", PREFIX + "job:*")
        self.same(self.stage.call("HGET", job, "state"), b"cancelled", "its job")
        self.same(len(self.stage.entries()), 1, "ends in the stream")


class Merged(Asked):
    """POST /merge is held open until its job ends; its client makes no second one."""

    verb = "ticket_put"
    by = "evalq-gateway's merge"

    def prepare(self) -> None:
        folder = os.path.join(self.stage.out, "run", "checkpoint-1", "pytorch_model_fsdp_0")
        os.makedirs(folder)
        for rank in range(2):
            shutil.copy(SHARD, os.path.join(folder, f"model_world_size_2_rank_{rank}.pt"))
        self.stage.write(os.path.join("out", "run", "checkpoint-1", "config.json"), '{"model_type": "tiny"}')
        self.start_gateway()
        self.worker = self.stage.start_worker()
        self.body = {"checkpoint_path": os.path.dirname(folder)}

    def ask(self) -> None:
        status, self.answer = self.front.ask("/merge", self.body)
        self.same(status, 200, "POST /merge")
        self.sentence = "200"

    def good(self) -> None:
        self.same(self.jobs(), 1, "jobs")
        self.end(self.worker)


class MergeLooked(Merged):
    verb = "ticket"


TRIALS = [AskedRuns, AskedResults, AskedShow, AskedTickets, Retried, Evaluated, Polled, Cancelled, Merged, MergeLooked]
