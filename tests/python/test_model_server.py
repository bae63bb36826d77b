"""evalq.model_server through a real worker, with a stand-in for the server, which needs no GPU and goes wrong on demand."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import struct
import subprocess
import textwrap
import time
import unittest
import urllib.error
import urllib.request
from typing import Any, Dict, List, Tuple

from scene import BIN, DEADLINE, NATIVE, PACKAGE, SOURCE, SceneTest, until

from evalq.model_server import servers
from evalq.model_server.config import Settings
from evalq.model_server.process import OWNER
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


if __name__ == "__main__":
    unittest.main()
