"""evalq.model_server through a real worker, with a stand-in for the server, which needs no GPU and goes wrong on demand."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import Future
from typing import Any, Dict, List, Tuple
from unittest import mock

from scene import BIN, DEADLINE, NATIVE, PACKAGE, SOURCE, SceneTest, until

from evalq._evaluation import Checkpoint, Task
from evalq.model_server import servers
from evalq.model_server.config import Refused, Settings
from evalq.model_server.evaluator import Evaluator
from evalq.model_server.http import ServerError
from evalq.model_server.process import OWNER, end_orphans
from evalq.model_server.proof import Known, Measured, Proof, ProofFailed, measure
from evalq.model_server.watch import Progress, Watch

STANDIN = os.path.join(SOURCE, "tests", "standin", "servers")
LAUNCH = os.path.join(os.path.dirname(servers.__file__), "launch")

EVALUATION = '''
import json, os, urllib.request

def run(url, key, model, tokenizer, samples, task="one"):
    if os.path.exists("wait"):
        open("waits", "w").close()
        import time
        while os.path.exists("wait"):
            time.sleep(0.01)
    asked = {"model": model, "prompt": task, "max_tokens": 1, "logprobs": 1}
    request = urllib.request.Request(url + "/completions", json.dumps(asked).encode(), {"Authorization": "Bearer " + key})
    with urllib.request.urlopen(request) as answer:
        value = json.load(answer)["choices"][0]["logprobs"]["token_logprobs"][0]
    with open(os.path.join(samples, "answers.jsonl"), "w") as file:
        file.write(json.dumps({"answer": value}) + "\\n")
    with open(os.path.join(samples, "samples.jsonl"), "w") as file:
        for item in ("a", "b"):
            file.write(json.dumps({"id": item, "scores": {"value": value}}) + "\\n")
    if os.path.exists("raise"):
        raise ValueError("a fault of mine")
    return {"value": value, "value_stderr": 0.5, "port": int(url.split(":")[2].split("/")[0]), "n": 3}
'''

COUNTED = '''

def counted(progress, **target):
    """Generates until the test has seen enough; says 3 of 10 all the while."""
    while True:
        metrics = run(**target)
        progress(3, 10)
        if os.path.exists("seen"):
            return metrics
'''

PROGRAM = """
import json, os, sys
sys.path.insert(0, os.getcwd())
import my_eval
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
metrics = my_eval.run(url, key, os.environ["EVALQ_MODEL"], os.environ["EVALQ_TOKENIZER"], os.environ["EVALQ_SAMPLES"])
with open(os.environ["EVALQ_RESULT"], "w") as file:
    json.dump(metrics, file)
"""

CONFIG = NATIVE.replace(
    "suites:",
    f"""
samples: {{directory: $OUT/kept}}
evaluators:
  server:
    kind: model_server
    server: vllm
    python: $PYTHON
    harness_python: $PYTHON
    options: {{max_model_len: 256, enforce_eager: true}}
    env:
      PYTHONPATH: "{PACKAGE}:{STANDIN}:$OUT"
      STANDIN_FAULT: $OUT/fault
      STANDIN_STARTS: $OUT/starts
      STANDIN_RELOADS: $OUT/reloads
    directory: $OUT
    start_seconds: 60
    hang_seconds: 3
suites:
  own:
    evaluator: server
    samples: true
    harness: {{kind: python, function: "my_eval:run", samples: $OUT/samples}}
  short:
    evaluator: server
    limits: {{seconds: 8}}
    harness: {{kind: python, function: "my_eval:run"}}
  counted:
    evaluator: server
    harness: {{kind: python, function: "my_eval:counted"}}
  two:
    evaluator: server
    harness: {{kind: python, function: "my_eval:run", tasks: [a, b/c]}}
  any:
    evaluator: server
    samples: true
    harness: {{kind: command, argv: [$PYTHON, $OUT/program.py]}}""",
)


def write_safetensors(path: str, tensors: "Dict[str, Tuple[int, List[float]]]") -> None:
    """name: (rows, values)"""
    header: Dict[str, Any] = {}
    data = b""
    for name, (rows, values) in tensors.items():
        part = struct.pack(f"<{len(values)}f", *values)
        shape = [rows, len(values) // rows]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class ServerTest(SceneTest):
    """A worker with one model server; each test has checkpoints of its own."""

    config = CONFIG
    workers = False

    def setUp(self) -> None:
        out = self.scene.out
        for name, text in (("my_eval.py", EVALUATION + COUNTED), ("program.py", PROGRAM)):
            with open(os.path.join(out, name), "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(text))
        self.fault("")
        if not self.scene.processes:
            self.scene.start_worker()

    def fault(self, name: str) -> None:
        with open(os.path.join(self.scene.out, "fault"), "w", encoding="utf-8") as file:
            file.write(name)

    def checkpoint(self, name: str, seed: float, layers: int = 2, width: int = 4, lack: str = "", **config: Any) -> str:
        """A directory as Transformers writes it, of a family that nobody knows."""
        path = os.path.join(self.scene.out, "ck", self.id().rpartition(".")[2], name)
        os.makedirs(path)
        told = {"model_type": "standin", "architectures": ["StandinForCausalLM"], "vocab_size": 50, "layers": layers, **config}
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump(told, file)
        words = {f"w{number}": number for number in range(50)}
        with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump({"added_tokens": [{"id": 0, "content": "w0"}], "model": {"type": "WordLevel", "vocab": words}}, file)
        tensors = {f"layers.{layer}.weight": (2, [seed + layer] * width) for layer in range(layers)}
        tensors.pop(lack, None)
        write_safetensors(os.path.join(path, "model.safetensors"), tensors)
        return path

    def starts(self) -> "List[List[str]]":
        """(pid, port, model) of each start of the stand-in."""
        return self.noted("starts")

    def noted(self, name: str) -> "List[List[str]]":
        path = os.path.join(self.scene.out, name)
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [line.split() for line in file]

    def run_step(self, client: Any, path: str, step: int, suites: str = "own") -> "Dict[str, Any]":
        """The metrics of the step's job, by task and metric; its end is self.end."""
        self.assertTrue(client.submit(path, step=step, suites=suites))
        self.assertTrue(client.wait(DEADLINE))
        found: Dict[str, Any] = {}
        for result in client.results():
            if result.step != step:
                continue
            if result.is_end:
                self.end = result
            else:
                found.setdefault(result.task, {})[result.metric] = result.value
        return found

    def one_attempt(self) -> None:
        """For jobs of this test that end dead: two more attempts would take ten seconds."""
        self.scene.redis_call("HSET", "evalq:{main}:meta", "attempts_max", "1")
        self.addCleanup(self.scene.redis_call, "HDEL", "evalq:{main}:meta", "attempts_max")

    def shown(self, job: str) -> str:
        return self.scene.evalq("show", job).stdout

    def attempts(self, job: str) -> int:
        lines = [line.split() for line in self.shown(job).splitlines()]
        return int(next(line[1] for line in lines if line[0] == "attempts"))

    def note(self, job: str) -> str:
        """How the weights of the job's results were proven."""
        entries = self.scene.redis_call("XRANGE", "evalq:{main}:results", "-", "+").decode(errors="replace")
        lines = [line for line in entries.splitlines() if "weights proven" in line]
        self.assertTrue(lines, job)
        return lines[-1]


class WarmTest(ServerTest):
    def test_checkpoints_share_one_server(self) -> None:
        before = len(self.starts())
        with self.scene.client("warm") as client:
            found = [self.run_step(client, self.checkpoint(str(step), step), step)["own"] for step in (1, 2, 3)]
            again = self.run_step(client, self.checkpoint("4", 1), 4)["own"]
        self.assertEqual(len(self.starts()) - before, 1)
        self.assertEqual(len({values["value"] for values in found}), 3)
        self.assertEqual(found[0]["value"], again["value"])  # The same weights: the same number.
        self.assertIn("weights proven", self.note("warm/4/regular/own"))

    def test_suites_of_one_checkpoint_share_a_reload_and_their_tasks(self) -> None:
        with self.scene.client("shared") as client:
            path = self.checkpoint("1", 7)
            own = self.run_step(client, path, 1)["own"]
            starts = len(self.starts())
            self.fault("refuse")  # A reload would fail.
            two = self.run_step(client, path, 1, "two")
            self.assertEqual(self.end.state, "done", self.end.reason)
            command = self.run_step(client, path, 1, "any")["any"]
        self.assertEqual(len(self.starts()), starts)
        self.assertEqual(own["value"], command["value"])
        self.assertEqual([name for name in two if name != "own"][0], "a")
        self.assertEqual(len(two), 2, two)  # And b-c-HASH.
        self.assertEqual(two["a"]["port"], own["port"])

    def test_suites_of_one_checkpoint_are_taken_together(self) -> None:
        """Two checkpoints and three suites, submitted in turns: by flow and step the order would be own 1, own 2, two 1 ..."""
        paths = {step: self.checkpoint(str(step), 20 + step) for step in (1, 2)}
        with self.scene.client("together") as client:
            self.run_step(client, self.checkpoint("0", 20), 0)
            starts, reloads = len(self.starts()), len(self.noted("reloads"))
            submitted = self.submitted()
            self.assertEqual(self.scene.evalq("pause").returncode, 0)
            for suite in ("own", "two", "any"):
                for step, path in paths.items():
                    self.assertTrue(client.submit(path, step=step, suites=suite))
            until(lambda: self.submitted() == submitted + 6, "all are queued")
            self.assertEqual(self.scene.evalq("resume").returncode, 0)
            self.assertTrue(client.wait(DEADLINE))
            values: "Dict[int, set[float]]" = {1: set(), 2: set()}
            for result in client.results():
                if result.step in values and not result.is_end and result.metric == "value" and result.task in ("own", "any"):
                    values[result.step].add(result.value)
        self.assertEqual([os.path.basename(path) for path, in self.noted("reloads")[reloads:]], ["1", "2"])  # Of 6.
        self.assertEqual(len(self.starts()), starts)
        self.assertEqual([len(found) for found in values.values()], [1, 1], values)
        self.assertNotEqual(values[1], values[2])

    def submitted(self) -> int:
        return int(self.scene.redis_call("HGET", "evalq:{main}:n", "submitted"))

    def test_samples_are_kept_where_the_suite_says(self) -> None:
        with self.scene.client("samples") as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
        path = os.path.join(self.scene.out, "samples", "samples", "1", "regular", "own", "own", "answers.jsonl")
        self.assertTrue(os.path.exists(path), path)

    def test_samples_of_functions_and_programs_are_those_of_the_suite(self) -> None:
        with self.scene.client("items") as client:
            path = self.checkpoint("1", 1)
            value = self.run_step(client, path, 1)["own"]["value"]
            self.run_step(client, path, 1, "any")
        for suite in ("own", "any"):
            path = os.path.join(self.scene.out, "kept", "items", "1", "regular", suite, suite + ".jsonl.gz")
            with gzip.open(path, "rt", encoding="utf-8") as file:
                _, *items, _ = map(json.loads, file)
            self.assertEqual([(item["id"], item["scores"]["value"]) for item in items], [("a", value), ("b", value)])

    def test_another_architecture_starts_a_new_server(self) -> None:
        with self.scene.client("other") as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
            starts = len(self.starts())
            self.run_step(client, self.checkpoint("2", 1, layers=3), 2)
            self.assertEqual(self.end.state, "done", self.end.reason)
            self.assertEqual(len(self.starts()), starts + 1)
            self.run_step(client, self.checkpoint("3", 2, layers=3, torch_dtype="bfloat16", _name_or_path="x"), 3)
            self.assertEqual(self.end.state, "done", self.end.reason)
        self.assertEqual(len(self.starts()), starts + 1)  # What does not count was no reason.

    def test_a_missing_tensor_is_refused_before_the_reload(self) -> None:
        with self.scene.client("missing", log=False) as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
            starts = len(self.starts())
            self.assertEqual(self.run_step(client, self.checkpoint("2", 2, lack="layers.1.weight"), 2), {})
            self.assertEqual(self.end.state, "dead")
            self.assertIn("lacks the tensor 'layers.1.weight'", self.shown("missing/2/regular/own"))
            self.run_step(client, self.checkpoint("3", 3), 3)
            self.assertEqual(self.end.state, "done", self.end.reason)
        self.assertEqual(len(self.starts()), starts)


class ProgressTest(ServerTest):
    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.gateway + path, timeout=DEADLINE) as answer:
            return json.load(answer)

    def test_phases_progress_and_tokens_are_shown(self) -> None:
        """In evalq status, the page's JSON, evalq logs and, after the job, evalq show."""
        seen = os.path.join(self.scene.out, "seen")
        self.addCleanup(lambda: os.path.exists(seen) and os.unlink(seen))
        words = re.compile(r"evaluating 3 of 10, [1-9]\d* tokens/s")
        job = "progress/1/regular/counted"
        with self.scene.client("progress", log=False) as client:
            client.submit(self.checkpoint("1", 1, layers=4), step=1, suites="counted")
            until(lambda: words.search(self.scene.evalq("status").stdout), "evalq status shows it")
            self.assertIn(" 30%", self.scene.evalq("status").stdout)
            log = until(lambda: words.search(self.scene.evalq("logs", job).stdout) and self.scene.evalq("logs", job).stdout, "evalq logs shows it")
            if os.path.exists(os.path.join(BIN, "evalq-gateway")):
                self.scene.start("evalq-gateway", "--listen", "127.0.0.1:0")
                started = until(lambda: re.findall("gateway_started.*?address=(http://[0-9.:]+)", self.scene.log("evalq-gateway")), "the gateway is up")
                self.gateway = started[0]
                listed = until(lambda: self.get("/v1/jobs?state=running&explain=1")["jobs"], "the page lists the job")[0]
                self.assertRegex(listed["status"], words)
                self.assertEqual((int(listed["progress"]), int(listed["total"]), listed.get("why", "")), (3, 10, ""))
                self.assertRegex(self.get(f"/v1/jobs/{job}")["job"]["status"], words)
            open(seen, "w").close()
            self.assertTrue(client.wait(DEADLINE))
            self.run_step(client, self.checkpoint("2", 2, layers=4), 2, "counted")
        for phase in ("starting", "proving"):
            self.assertRegex(log, rf"(?m)^evalq: {phase}\n(.*\n)*evalq: {phase} took \d+\.\d\d s$")
        self.assertRegex(self.shown("progress/2/regular/counted"), r"; reloading \d+\.\d\d s, proving \d+\.\d\d s, evaluating \d+\.\d\d s, [1-9]")
        self.assertRegex(
            self.shown(job), r"note counted +vLLM 0\.standin; weights proven: .*; starting \d+\.\d\d s, proving \d+\.\d\d s, evaluating \d+\.\d\d s, [1-9]\d* tokens/s"
        )

    def test_without_counters_the_usage_of_the_answers_counts(self) -> None:
        progress, server = Progress(), servers.Server(Settings("m", "."))
        watch = Watch(server, progress, lambda *words: None, 60.0)
        self.assertEqual(watch._words(), "evaluating")
        watch._asked_at = time.monotonic() - 10.0
        progress(1, 2, tokens=500)
        self.assertRegex(watch._words(), r"^evaluating 1 of 2, (50|49) tokens/s$")


class ProofTest(ServerTest):
    def one_fault(self, name: str) -> int:
        """A good checkpoint, then another with the fault once: it must be evaluated right. How many starts that took."""
        with self.scene.client(name, log=False) as client:
            right = self.run_step(client, self.checkpoint(name + "-1", 5), 1)["own"]["value"]
            self.run_step(client, self.checkpoint(name + "-2", 6), 2)
            starts = len(self.starts())
            self.fault("once:" + name if name != "stale" else name)
            self.again = self.run_step(client, self.checkpoint(name + "-3", 5), 3)["own"]["value"]
            self.fault("")
            self.assertEqual(self.end.state, "done", self.end.reason)
            self.assertEqual(self.attempts(self.end.job), 1)
        self.assertEqual(right, self.again)
        return len(self.starts()) - starts

    def test_weights_that_were_not_taken_are_found(self) -> None:
        self.assertEqual(self.one_fault("silent"), 1)

    def test_weights_that_were_taken_in_part_are_found(self) -> None:
        self.assertEqual(self.one_fault("partial"), 1)

    def test_a_stale_cache_is_found(self) -> None:
        self.assertEqual(self.one_fault("stale"), 1)

    def test_no_metric_of_unproven_weights_is_published(self) -> None:
        """The server's answers are wrong after each start, too."""
        with self.scene.client("unproven", log=False) as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
            self.one_attempt()
            self.fault("unsteady")
            self.assertEqual(self.run_step(client, self.checkpoint("2", 2), 2), {})
            self.fault("")
            self.assertEqual(self.end.state, "dead")
            self.assertRegex(self.shown("unproven/2/regular/own"), r"log-probability -?\d+\.\d+ through the cache and -\d+\.\d+ without it")


class FaultTest(ServerTest):
    def survives(self, name: str, starts: int = 1) -> None:
        with self.scene.client("fault-" + name, log=False) as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
            before = len(self.starts())
            self.fault("once:" + name)
            found = self.run_step(client, self.checkpoint("2", 2), 2)
            self.assertEqual(self.end.state, "done", self.end.reason)
            self.assertEqual(self.attempts(self.end.job), 1)
            self.assertEqual(set(found["own"]), {"value", "port"})
        self.assertEqual(len(self.starts()) - before, starts)

    def test_a_server_that_dies(self) -> None:
        self.survives("die")

    def test_a_server_that_refuses_a_reload(self) -> None:
        self.survives("refuse")

    def test_a_server_without_memory_for_a_reload(self) -> None:
        self.survives("memory")

    def test_a_server_that_hangs(self) -> None:
        self.survives("hang")

    def test_a_server_that_dies_in_a_generation(self) -> None:
        self.survives("die_late")

    def test_a_server_that_hangs_in_a_generation(self) -> None:
        self.survives("hang_late")

    def test_a_server_that_answers_500_in_a_generation(self) -> None:
        self.survives("error_late")

    def test_a_server_that_does_not_start(self) -> None:
        with self.scene.client("exit", log=False) as client:
            self.one_attempt()
            self.fault("exit")
            self.run_step(client, self.checkpoint("1", 1, layers=5), 1)  # Another architecture: a server must start.
            self.fault("")
            self.assertEqual(self.end.state, "dead")
            self.assertIn("exited with status 1 while it started: ValueError: this checkpoint", self.shown(self.end.job))

    def test_a_fault_of_the_evaluation_is_not_the_servers(self) -> None:
        flag = os.path.join(self.scene.out, "raise")
        with self.scene.client("own-fault", log=False) as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
            starts = len(self.starts())
            open(flag, "w").close()
            self.run_step(client, self.checkpoint("2", 2), 2)
            os.unlink(flag)
            self.assertEqual((self.end.state, len(self.starts())), ("dead", starts))
            self.assertIn("ValueError: a fault of mine", self.shown(self.end.job))

    def held(self, client: Any, step: int, path: str) -> str:
        """Submits a job whose evaluation stands still until go_on()."""
        for name in ("wait", "waits"):
            self.go_on(name)
        open(os.path.join(self.scene.out, "wait"), "w").close()
        client.submit(path, step=step, suites="own")
        until(lambda: os.path.exists(os.path.join(self.scene.out, "waits")), "the evaluation runs")
        return f"{client.run}/{step}/regular/own"

    def go_on(self, name: str = "wait") -> None:
        path = os.path.join(self.scene.out, name)
        if os.path.exists(path):
            os.unlink(path)

    def test_a_cancelled_job_leaves_the_server_warm(self) -> None:
        self.addCleanup(self.go_on)
        with self.scene.client("cancelled", log=False) as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
            starts = len(self.starts())
            job = self.held(client, 2, self.checkpoint("2", 2))
            self.assertIn("evaluating", until(lambda: "evaluating" in self.scene.evalq("status").stdout and "evaluating", "the phase is shown"))
            self.scene.evalq("cancel", job)
            self.assertTrue(client.wait(DEADLINE))
            self.go_on()
            self.run_step(client, self.checkpoint("3", 3), 3)
            self.assertEqual(self.end.state, "done", self.end.reason)
        self.assertEqual(len(self.starts()), starts)

    def stopped_in_a_generation(self, client: Any, suite: str, stop: Any) -> None:
        """The server generates without end. Then stop(job), and the next checkpoint is evaluated."""
        self.run_step(client, self.checkpoint(suite + "-1", 1), 1)
        starts = len(self.starts())
        self.fault("once:endless")
        client.submit(self.checkpoint(suite + "-2", 2), step=2, suites=suite)
        fault = os.path.join(self.scene.out, "fault")
        until(lambda: os.path.getsize(fault) == 0, "the server has the request")
        stop(f"{client.run}/2/regular/{suite}")
        self.assertTrue(client.wait(DEADLINE))
        self.run_step(client, self.checkpoint(suite + "-3", 3), 3)
        self.assertEqual((self.end.state, len(self.starts())), ("done", starts), self.end.reason)

    def test_a_job_cancelled_in_a_generation_leaves_the_server_warm(self) -> None:
        with self.scene.client("stopped", log=False) as client:
            self.stopped_in_a_generation(client, "own", lambda job: self.scene.evalq("cancel", job))
            self.assertIn("cancelled", self.shown("stopped/2/regular/own"))

    def test_a_job_at_its_time_limit_in_a_generation_leaves_the_server_warm(self) -> None:
        with self.scene.client("limit", log=False) as client:
            self.stopped_in_a_generation(client, "short", lambda job: self.timed_out(job))
            self.assertEqual(self.attempts("limit/2/regular/short"), 2)

    def timed_out(self, job: str) -> None:
        reason = "evaluator 'server' ran longer than its limit of 8 s"
        until(lambda: reason in self.shown(job), "the attempt is over")

    def test_a_worker_that_is_killed_leaves_no_server(self) -> None:
        with self.scene.client("killed", log=False) as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
            pid = int(self.starts()[-1][0])
            self.assertTrue(alive(pid))
            worker = self.scene.processes.pop()
            worker.kill()
            worker.wait()
            until(lambda: not alive(pid), "the server has ended")
            # One that outlived its evaluator all the same is ended when the next evaluator starts.
            orphan = subprocess.Popen(["sleep", "600"], env=dict(os.environ, **{OWNER: f"{worker.pid}:1"}))
            self.addCleanup(orphan.kill)
            self.scene.start_worker()
            self.run_step(client, self.checkpoint("2", 2), 2)
            self.assertEqual(self.end.state, "done", self.end.reason)
            self.assertEqual(orphan.wait(DEADLINE), -signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class SecurityTest(ServerTest):
    def test_every_path_but_health_needs_the_key(self) -> None:
        with self.scene.client("key") as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
        pid, port, _ = self.starts()[-1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=DEADLINE) as answer:
            self.assertEqual(answer.status, 200)
        for path in ("/metrics", "/v1/models", "/version"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE)
            self.assertEqual(refused.exception.code, 401, path)
        with open(f"/proc/{pid}/environ", "rb") as file:
            key = next(item for item in file.read().split(b"\0") if item.startswith(b"EVALQ_SERVER_KEY="))[17:]
        self.assertGreaterEqual(len(key), 40)
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            self.assertNotIn(key, file.read())
        listening = subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=False).stdout
        if listening:
            self.assertIn(f"127.0.0.1:{port}", listening)
        for folder, _, names in os.walk(self.scene.directory):
            for name in names:
                if name.endswith(".log"):
                    with open(os.path.join(folder, name), "rb") as file:
                        self.assertNotIn(key, file.read(), name)


class OrphanTest(unittest.TestCase):
    def test_a_server_ends_with_its_evaluator(self) -> None:
        code = "import os, time; from evalq.model_server.process import Process;"
        code += "print(Process(['sleep', '600'], os.environ, 'secret').pid, flush=True); time.sleep(600)"
        evaluator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=PACKAGE))
        assert evaluator.stdout is not None
        with evaluator.stdout:
            server = int(evaluator.stdout.readline())
        self.assertTrue(alive(server))
        evaluator.kill()
        evaluator.wait()
        until(lambda: not alive(server), "the server has ended")

    def test_a_server_whose_evaluator_is_gone_is_ended_at_start(self) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        argv = ["sleep", "600"]
        orphan = subprocess.Popen(argv, env=dict(os.environ, **{OWNER: f"{gone.pid}:1"}))
        with open(f"/proc/{os.getpid()}/stat", encoding="utf-8") as file:
            started = file.read().rpartition(")")[2].split()[19]
        kept = subprocess.Popen(argv, env=dict(os.environ, **{OWNER: f"{os.getpid()}:{started}"}))
        self.addCleanup(kept.kill)
        self.assertGreaterEqual(until(end_orphans, "the orphan is found"), 1)
        self.assertEqual(orphan.wait(DEADLINE), -signal.SIGKILL)
        self.assertIsNone(kept.poll())


def done(value: Any) -> "Future[Any]":
    future: "Future[Any]" = Future()
    future.set_result(value)
    return future


class NativeTest(unittest.TestCase):
    def says(self, server: float, native: Any, exact: bool = False) -> str:
        contents = mock.Mock(digest=done("0123456789abcdef"))
        return Proof(contents, Measured([5] * 21, [server] * 20, -1.0, -1.0), done(native), Known(), exact, False).finish()

    def test_the_server_must_agree_with_the_native_engine(self) -> None:
        for server, native, exact in ((-4.02, -4.0, False), (-4.001, -4.0, True), (float("nan"), -4.0, False), (-4.0, float("nan"), True)):
            with self.assertRaisesRegex(ProofFailed, "in the server and .* in the native engine"):
                self.says(server, native, exact)
        self.assertIn("native engine -4.000000, server -4.010000", self.says(-4.01, -4.0))
        self.assertIn("NaN here and in the native engine", self.says(float("nan"), float("nan")))
        self.assertIn("not held against the native engine: too large", self.says(-4.0, "too large"))


class KeyTest(unittest.TestCase):
    def status(self, kind: str, path: str, *headers: "Tuple[bytes, bytes]") -> Any:
        sent: "List[Dict[str, Any]]" = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            sent.append({"status": 200})

        async def send(message: "Dict[str, Any]") -> None:
            sent.append(message)

        with mock.patch.dict(os.environ, {"EVALQ_SERVER_KEY": "secret"}), mock.patch.object(sys, "path", [LAUNCH, *sys.path]):
            guard = importlib.import_module("evalq_server_key").Guard(app)
        asyncio.run(guard({"type": kind, "path": path, "headers": list(headers)}, None, send))
        return sent[0].get("status") or sent[0].get("code")

    def test_the_middleware_lets_nobody_in_without_the_key(self) -> None:
        right, wrong = (b"authorization", b"Bearer secret"), (b"authorization", b"Bearer secre")
        self.assertEqual(self.status("http", "/health"), 200)
        self.assertEqual(self.status("http", "/v1/models", right), 200)
        self.assertEqual(self.status("websocket", "/v1/realtime", right), 200)
        for path in ("/v1/models", "/collective_rpc", "/health/", "//health"):
            self.assertEqual(self.status("http", path), 401, path)
            self.assertEqual(self.status("http", path, wrong), 401, path)
        self.assertEqual(self.status("websocket", "/health"), 1008)


class WithoutWorker(unittest.TestCase):
    """The stand-in and two checkpoints, without a worker."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="evalq-py-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.variables = {"STANDIN_FAULT": os.path.join(self.folder, "fault"), "STANDIN_STARTS": os.path.join(self.folder, "starts")}
        path = BIN + os.pathsep + os.environ["PATH"]
        patch = mock.patch.dict(os.environ, {**self.variables, "PYTHONPATH": STANDIN, "PATH": path})
        patch.start()
        self.addCleanup(patch.stop)
        for step in (1, 2, 3):
            os.mkdir(os.path.join(self.folder, str(step)))
            write_safetensors(os.path.join(self.folder, str(step), "model.safetensors"), {"w": (1, [float(step)])})


class EvaluatorTest(WithoutWorker):
    def evaluate(self, found: Evaluator, step: int, function: str) -> float:
        task = Task("own")
        task.options = {"harness": json.dumps({"directory": self.folder, "given": {"kind": "python", "function": function}})}
        checkpoint = Checkpoint(os.path.join(self.folder, str(step)), step, "r", "regular", "own", {})
        return float(found(checkpoint, task, mock.Mock())["value"])

    def evaluator(self) -> Evaluator:
        for step in (1, 2, 3):
            with open(os.path.join(self.folder, str(step), "config.json"), "w", encoding="utf-8") as file:
                json.dump({"model_type": "standin", "vocab_size": 50}, file)
        with open(os.path.join(self.folder, "my_eval.py"), "w", encoding="utf-8") as file:
            file.write(EVALUATION)
        found = Evaluator(Settings("m", self.folder, "vllm", sys.executable, {"max_model_len": 256}, start_seconds=60.0))
        self.addCleanup(found.close)
        return found

    def test_a_wrong_function_is_refused_while_the_server_starts(self) -> None:
        with open(self.variables["STANDIN_FAULT"], "w", encoding="utf-8") as file:
            file.write("slow")
        found = self.evaluator()
        with self.assertRaisesRegex(Refused, "harness.function 'my_evl:run' cannot be imported"):
            self.evaluate(found, 1, "my_evl:run")
        self.assertIsNone(found._server.process)

    def test_an_interrupted_job_leaves_no_wrong_weights(self) -> None:
        class Cancelled(BaseException):
            pass

        found = self.evaluator()

        def value(step: int) -> float:
            return self.evaluate(found, step, "my_eval:run")

        first = value(1)
        for moment in ("reload", "reset_caches", "score"):
            with mock.patch.object(found._server, moment, side_effect=Cancelled), self.assertRaises(Cancelled):
                value(2)
            self.assertEqual(value(1), first, moment)  # Another suite of the checkpoint before.
        self.assertEqual(self.starts(), 4)  # Nobody knows what a server has after an interrupted reload.
        # A job that was cancelled in its evaluation leaves the server warm, and its weights are known to the next proof.
        with mock.patch.object(found, "_evaluate", side_effect=Cancelled), self.assertRaises(Cancelled):
            value(2)
        right = value(3)
        self.assertEqual(self.starts(), 4)
        found.close()
        value(1)
        with mock.patch.object(found, "_evaluate", side_effect=Cancelled), self.assertRaises(Cancelled):
            value(2)
        found._known.by_digest.clear()
        with open(self.variables["STANDIN_FAULT"], "w", encoding="utf-8") as file:
            file.write("once:silent")
        self.assertEqual(value(3), right)
        self.assertEqual(self.starts(), 6)

    def starts(self) -> int:
        with open(self.variables["STANDIN_STARTS"], encoding="utf-8") as file:
            return len(file.readlines())


class OtherServersTest(WithoutWorker):
    """Kinds of servers and what is said of wrong options."""

    def server(self, kind: str, **settings: Any) -> Any:
        settings.setdefault("options", {"max_model_len": 256})
        made = servers.make(Settings("m", self.folder, kind, sys.executable, start_seconds=settings.pop("start_seconds", 60.0), **settings))
        self.addCleanup(made.stop)
        return made

    def reloads(self, server: Any) -> None:
        ids = list(range(2, 40))
        server.start(os.path.join(self.folder, "1"), lambda: None)
        first = measure(server, ids)
        self.assertEqual((len(first.values), first.cached), (len(ids) - 1, first.fresh))
        server.reload(os.path.join(self.folder, "2"), 60.0)
        server.reset_caches()
        second = measure(server, ids)
        self.assertNotEqual(first.values, second.values)
        self.assertEqual(second.cached, second.fresh)
        with self.assertRaises(ServerError):
            server.reload(os.path.join(self.folder, "none"), 60.0)

    def test_sglang_as_documented(self) -> None:
        server = self.server("sglang")
        self.reloads(server)
        self.assertEqual(server.version, "0.standin")
        with open(f"/proc/{server.process.pid}/cmdline", "rb") as file:
            self.assertNotIn(server.key.encode(), file.read())

    def test_a_server_of_ones_own(self) -> None:
        start = ["{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--served-model-name", "model"]
        start += ["--host", "127.0.0.1", "--port", "{port}", "--middleware", "evalq_server_key.Guard"]
        reload = {"path": "/collective_rpc", "body": {"method": "reload_weights", "kwargs": {"weights_path": "{model}"}}}
        with mock.patch.dict(os.environ, {"PYTHONPATH": f"{STANDIN}:{LAUNCH}"}):
            self.reloads(self.server("custom", custom={"start": start, "reload": reload, "reset": ["/reset_prefix_cache"]}))
        with self.assertRaisesRegex(Refused, "custom has no key 'relaod'"):
            self.server("custom", custom={"start": start, "relaod": {}})

    def test_an_option_that_the_server_does_not_know(self) -> None:
        with self.assertRaisesRegex(Refused, r"evaluators.m.options: vLLM has no option 'max_model_lenn', did you mean 'max_model_len'\?"):
            self.server("vllm", options={"max_model_lenn": 4}).start(os.path.join(self.folder, "1"), lambda: None)
        with self.assertRaisesRegex(Refused, "argument --max-model-len: invalid int value: 'x'"):
            self.server("vllm", options={"max_model_len": "x"}).start(os.path.join(self.folder, "1"), lambda: None)

    def test_a_start_that_takes_too_long(self) -> None:
        with open(self.variables["STANDIN_FAULT"], "w", encoding="utf-8") as file:
            file.write("slow")
        server = self.server("vllm", start_seconds=1.0)
        with self.assertRaisesRegex(servers.StartFailed, r"not ready within start_seconds \(1 s\)"):
            server.start(os.path.join(self.folder, "1"), lambda: None)
        self.assertIsNone(server.process)

    def test_a_port_that_is_taken(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            ports = [other.getsockname()[1], servers._free_port()]
            with mock.patch("evalq.model_server.servers._free_port", side_effect=ports):
                server = self.server("vllm")
                server.start(os.path.join(self.folder, "1"), lambda: None)
            self.assertEqual(server.http.port, ports[1])


if __name__ == "__main__":
    unittest.main()
