"""Lost replies of what people call: evalq and redis-cli."""

from __future__ import annotations

import json
import subprocess
from typing import Any, List

import sink_files
from lost_reply import Reply
from stage import DEADLINE, PREFIX, until

UNREACHABLE, NOT_FOUND = 5, 3  # docs/troubleshooting.md


class Command(Reply):
    """evalq says that Redis was lost, and what it says when it is called again."""

    by = "evalq"
    words: List[str] = []
    again = 0  # Its exit code then.

    def prepare(self) -> None:
        self.done("run", [1, 2])

    def ask(self) -> None:
        told = self.stage.evalq(*self.words, code=UNREACHABLE)
        lines = told.stderr.splitlines()
        self.must(len(lines) == 1 and told.stdout == "", f"it said {lines} and printed {told.stdout!r}")
        self.sentence = lines[0]
        self.after_loss()
        self.answer = self.stage.evalq(*self.words, code=self.again)

    def after_loss(self) -> None:
        """Before it is called again."""


class Show(Command):
    verb, words = "show", ["show", "run/1/regular/echo", "--json"]

    def check(self) -> None:
        self.same(json.loads(self.answer.stdout)["job"]["state"], "done", "the state")
        self.stage.verify()


class Forget(Command):
    """What is left of the run when the answer was lost: nothing, and that is what the next call says."""

    verb, words, again = "forget", ["forget", "run", "--yes"], NOT_FOUND

    def after_loss(self) -> None:
        self.same(self.jobs(), 0, "jobs of the run")

    def check(self) -> None:
        left = [key for key in self.stage.call("KEYS", PREFIX + "*") if b"/1/" in key or key.endswith(b":run")]
        self.same(left, [], "keys of the run")
        self.stage.runs.clear()
        self.done("run", [1])  # The name is free.


class Replay(Command):
    """Results that a sink lost are given to it again: it has each once, and the loss is no more."""

    words = ["results", "--replay", "jsonl"]
    programs = ("evalq-logger",)

    def prepare(self) -> None:
        stage = self.stage
        self.record()
        stage.call("HSET", PREFIX + "meta", "results_max", 3)
        self.done("run", [1, 2, 3])
        stage.call("HDEL", PREFIX + "meta", "results_max")
        [loss] = self.losses()
        ms, rest = loss["from"].split("-")
        loss["from"] = f"{int(ms) + 2}-{rest}"  # As where a function took its time between a result and its entry.
        stage.call("LSET", PREFIX + "loss", 0, json.dumps(loss))

    def losses(self) -> List[Any]:
        return list(json.loads(self.stage.function("stats"))["losses"])

    def record(self) -> None:
        """A logger, until its sinks have all there is."""
        before = self.stage.count("evalq-logger", "event=logger_started")
        logger = self.stage.start("evalq-logger")

        def taken() -> bool:
            sinks = self.stage.sinks()
            return (
                self.stage.count("evalq-logger", "event=logger_started") > before
                and len(sinks) == 1
                and not any(sink["pending"] or sink["lag"] for sink in sinks)
            )

        until(taken, "the sink has all there is")
        self.end(logger)

    def check(self) -> None:
        self.same(self.losses(), [], "losses")
        self.record()
        wanted = {result: 1 for result in sink_files.results("run", [1, 2, 3])}
        self.same(sink_files.recorded(self.stage.path("results")), wanted, "in JSONL")


class SinkReplay(Replay):
    verb = "sink_replay"

    def after_loss(self) -> None:
        self.must(self.losses(), "the loss was forgotten before its results were there again")


class Runs(SinkReplay):
    verb = "runs"


class Republish(SinkReplay):
    verb = "republish"


class LossForget(Replay):
    verb = "loss_forget"

    def after_loss(self) -> None:
        self.same(self.losses(), [], "losses")


class Wait(Command):
    verb, words = "results", ["wait", "run/1/regular/echo", "--json"]

    def check(self) -> None:
        [row] = json.loads(self.answer.stdout)["jobs"]
        self.same(row["state"], "done", "the state")
        self.stage.verify()


class Best(Command):
    sinks = "{kind: jsonl}, {kind: best}"
    verb, words = "best_get", ["best", "run", "eval/one/value", "--json"]

    def prepare(self) -> None:
        super().prepare()
        logger = self.stage.start("evalq-logger")
        until(lambda: self.stage.call("HGET", PREFIX + "best:run", "eval/one/value"), "the best is known")
        self.end(logger)

    def check(self) -> None:
        self.same(json.loads(self.answer.stdout)["step"], 1, "the best step")


class ByHand(Reply):
    """redis-cli says so (where it asks a second time by itself, that is lost, too), and is called again."""

    by = "redis-cli"
    call = "FCALL"

    def words(self) -> List[str]:
        return []

    def redis_cli(self) -> "subprocess.CompletedProcess[str]":
        words = ["redis-cli", "-s", self.stage.proxy.listen, self.call, "evalq_v1_" + self.verb, "1", PREFIX, *self.words()]
        return subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=False)

    def lose(self, how: str = "every=1") -> None:
        super().lose(how)

    def ask(self) -> None:
        told = self.redis_cli()
        self.must(told.returncode != 0 and told.stdout == "", f"it ended with {told.returncode} and printed {told.stdout!r}")
        self.sentence = told.stderr.strip()
        self.before = self.state_now()
        self.stage.proxy.say("clear")
        self.answer = self.redis_cli()
        self.same(self.answer.returncode, 0, "its exit code afterwards")
        self.same(self.state_now(), self.before, "what the repetition changed")

    def state_now(self) -> Any:
        return None


class Put(ByHand):
    """One job, of the first generation."""

    verb = "put"

    def words(self) -> List[str]:
        return [json.dumps({"run": "run", "step": 1, "suite": "echo", "root": "out", "path": "run/step-1.safetensors"})]

    def prepare(self) -> None:
        self.stage.checkpoints("run", [1])
        self.stage.expect("run", [1], "echo")

    def state_now(self) -> Any:
        return sorted(self.stage.call("KEYS", PREFIX + "job:*"))

    def check(self) -> None:
        self.same(self.answer.stdout.split("\n")[0], "duplicate", "its answer")
        self.same(self.before, [f"{PREFIX}job:run/1/regular/echo".encode()], "jobs")
        self.end_jobs()
        self.stage.verify()


class Audit(ByHand):
    verb, call = "audit", "FCALL_RO"

    def words(self) -> List[str]:
        return [""]

    def prepare(self) -> None:
        self.stage.put("run", [1, 2])

    def check(self) -> None:
        self.same(json.loads(self.answer.stdout)["problems"], [], "problems")


class Init(ByHand):
    """A keyspace has one epoch."""

    verb = "init"

    def prepare(self) -> None:
        self.stage.call("FLUSHALL")

    def state_now(self) -> Any:
        return self.stage.call("HGET", PREFIX + "meta", "epoch")

    def check(self) -> None:
        self.must(self.before, "there is no epoch")
        self.must(self.before.decode() in self.answer.stdout, f"it printed {self.answer.stdout!r}")


class SinkRemove(ByHand):
    """Nothing is kept for the sink, and another one has lost nothing."""

    verb = "sink_remove"

    def words(self) -> List[str]:
        return ["gone"]

    def prepare(self) -> None:
        for sink in ("gone", "stays"):
            self.stage.function("sink_open", sink)
        self.done("run", [1])

    def state_now(self) -> Any:
        groups = self.stage.call("XINFO", "GROUPS", PREFIX + "results")
        return [sink["name"] for sink in self.stage.sinks()], [group[1] for group in groups], self.stage.call("XLEN", PREFIX + "results")

    def check(self) -> None:
        self.same(self.before, (["stays"], [b"stays"], 2), "sinks, groups and entries")


TRIALS = [Show, Forget, SinkReplay, Runs, Republish, LossForget, Wait, Best, Put, Audit, Init, SinkRemove]
