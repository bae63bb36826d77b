"""evalq.model_server through a real worker, with a stand-in for the server, which needs no GPU and goes wrong on demand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import unittest
import urllib.error
import urllib.request
from typing import Any, Dict, List, Tuple

from scene import DEADLINE, NATIVE, PACKAGE, SOURCE, SceneTest, until

STANDIN = os.path.join(SOURCE, "tests", "standin", "servers")

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
    if os.path.exists("raise"):
        raise ValueError("a fault of mine")
    return {"value": value, "value_stderr": 0.5, "port": int(url.split(":")[2].split("/")[0]), "n": 3}
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
evaluators:
  server:
    kind: model_server
    server: vllm
    python: $PYTHON
    harness_python: $PYTHON
    options: {{max_model_len: 256, enforce_eager: true}}
    env: {{PYTHONPATH: "{PACKAGE}:{STANDIN}:$OUT", STANDIN_FAULT: $OUT/fault, STANDIN_STARTS: $OUT/starts}}
    directory: $OUT
    start_seconds: 60
    hang_seconds: 3
suites:
  own:
    evaluator: server
    harness: {{kind: python, function: "my_eval:run", samples: $OUT/samples}}
  two:
    evaluator: server
    harness: {{kind: python, function: "my_eval:run", tasks: [a, b/c]}}
  any:
    evaluator: server
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
        for name, text in (("my_eval.py", EVALUATION), ("program.py", PROGRAM)):
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
        path = os.path.join(self.scene.out, "starts")
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

    def test_samples_are_kept_where_the_suite_says(self) -> None:
        with self.scene.client("samples") as client:
            self.run_step(client, self.checkpoint("1", 1), 1)
        path = os.path.join(self.scene.out, "samples", "samples", "1", "regular", "own", "own", "answers.jsonl")
        self.assertTrue(os.path.exists(path), path)

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


if __name__ == "__main__":
    unittest.main()
