"""The gateway's OpenAPI document: valid by the validator that others use, and true. What every route answers, good or bad, is held
against it by a JSON Schema validator, and Schemathesis asks the gateway what the document allows and what it forbids."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional, Set, Tuple

import peers  # noqa: F401  It says where scene is.
from scene import BIN, SOURCE, SceneTest, until

try:
    from jsonschema import Draft202012Validator
    from openapi_spec_validator import OpenAPIV31SpecValidator
except ImportError:
    print("NOT RUN: openapi-spec-validator is not installed")
    sys.exit(77)

SCHEMATHESIS = shutil.which("schemathesis", path=os.path.dirname(sys.executable)) or shutil.which("schemathesis")
SHARD = os.path.join(SOURCE, "tests", "data", "checkpoints", "torch_zip", "bfloat16.pt")
LMMS = os.path.join(SOURCE, "tests", "data", "evaluators", "lmms")
CONFIG = f"""
roots: {{out: $OUT}}
worker: {{slots: 2, devices: cpu, threads: 1, scratch: $OUT/scratch}}
logger: {{directory: $OUT/results}}
samples: {{directory: $OUT/samples}}
evaluators:
  script: {{argv: [$PYTHON, $OUT/evaluate.py]}}
  lmms-eval:
    argv: [$PYTHON, {SOURCE}/deploy/suites/lmms_eval_run.py]
    results: lmms-eval
    env: {{EVALQ_LMMS_OUTPUT: $OUT, PYTHONPATH: {LMMS}, PYTHONDONTWRITEBYTECODE: "1"}}
  keep: {{argv: [$PYTHON, {SOURCE}/deploy/suites/fsdp2_merge.py, --keep], env: {{EVALQ_LMMS_OUTPUT: $OUT}}}}
  join: {{argv: [sh, -c, 'echo joined > "$EVALQ_OUTPUT/weights"']}}
suites:
  heldout: {{evaluator: script, samples: true, tasks: [{{name: digits, type: any}}]}}
  large: {{evaluator: script, needs: {{gpus: 8}}, tasks: [{{name: digits, type: any}}]}}
  lmms: {{evaluator: lmms-eval, tasks: [{{name: all, source: "*"}}]}}
  lmms-merge: {{evaluator: keep, prepare: join}}
gateway: {{lmms: {{results: $OUT/lmms}}}}
"""
EVALUATE = """
import json, os, sys
step = json.load(open(os.environ["EVALQ_JOB"]))["step"]
print("step", step, flush=True)
if step == 3:
    sys.exit(65)
with open(os.path.join(os.path.dirname(os.environ["EVALQ_RESULT"]), "samples.jsonl"), "w") as file:
    for i in range(20):
        item = {"id": str(i), "scores": {"acc": i < 8 + step, "length": i}, "output": "x" * i}
        print(json.dumps(item), file=file)
json.dump({"accuracy": 0.5 + 0.1 * step, "loss": float("nan") if step == 2 else 1.0 / step}, open(os.environ["EVALQ_RESULT"], "w"))
"""
TOKENS = {"reader": "read", "writer": "write", "trainer": "lmms"}
JOB = "/v1/jobs/{run}/{step}/{variant}/{suite}"
SAMPLES = "/v1/samples/{run}/{step}"


def read_document() -> Any:
    with open(os.path.join(SOURCE, "producer", "gateway", "openapi.json"), encoding="utf-8") as file:
        return json.load(file)


class Document(unittest.TestCase):
    def test_document_is_valid(self) -> None:
        faults = [fault.message for fault in OpenAPIV31SpecValidator(read_document()).iter_errors()]
        self.assertEqual(faults, [])

    def test_operations_are_told_apart(self) -> None:
        names = [operation["operationId"] for item in read_document()["paths"].values() for operation in item.values()]
        self.assertEqual(len(names), len(set(names)))


def untold(schema: Any, value: Any, components: Any, where: str) -> List[str]:
    """Members that the document names nothing of, in objects whose members it lists."""
    while isinstance(schema, dict) and "$ref" in schema:
        schema = components["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    found: List[str] = []
    if isinstance(value, list) and isinstance(schema, dict):
        for each in value:
            found += untold(schema.get("items"), each, components, where + "[]")
    if isinstance(value, dict) and isinstance(schema, dict) and ("properties" in schema or "additionalProperties" in schema):
        for name, member in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is None:
                found.append(f"{where}.{name}")
            else:
                found += untold(inner, member, components, f"{where}.{name}")
    return found


class Live(SceneTest):
    """A gateway with every kind of job, and a reader, a writer and a trainer."""

    config = CONFIG
    workers = False
    url: str

    @classmethod
    def setUpClass(cls) -> None:
        if not os.path.exists(os.path.join(BIN, "evalq-gateway")):
            raise unittest.SkipTest("NOT RUN: evalq-gateway was not built")
        super().setUpClass()
        scene = cls.scene
        with open(scene.out + "/evaluate.py", "w", encoding="utf-8") as file:
            file.write(EVALUATE)
        path = scene.directory + "/tokens"
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.writelines(f"{name} {role} {cls.token(name)}\n" for name, role in TOKENS.items())
        scene.start_worker()
        scene.start("evalq-logger")
        scene.start("evalq-gateway", "--listen", "127.0.0.1:0", "--tokens", path, "--rate", "0")
        told = until(lambda: re.search(r"gateway_started.*?address=(http://[0-9.:]+)", cls.log_of("evalq-gateway")), "the gateway listens")
        cls.url = told.group(1)
        cls.document = read_document()
        for step in (1, 2, 3):
            cls.submit(step, "heldout")
        cls.submit(7, "large")
        until(lambda: cls.states() == {"done": 2, "dead": 1, "queued": 1}, "the jobs ended")
        until(lambda: cls.ask("GET", "/v1/runs/digits/best", "reader")[0] == 200, "the best is known")

    @classmethod
    def log_of(cls, program: str) -> str:
        try:
            return cls.scene.log(program)
        except OSError:
            return ""

    @staticmethod
    def token(name: str) -> str:
        return f"a-token-of-the-{name}-0123456789"

    @classmethod
    def submit(cls, step: int, suite: str) -> None:
        path = cls.scene.checkpoint(f"run/checkpoint-{step}.safetensors")
        code, _, body = cls.ask("POST", "/v1/jobs", "writer", {"run": "digits", "step": step, "suites": [suite], "path": path})
        if code != 200:
            raise AssertionError(body)

    @classmethod
    def states(cls) -> Dict[str, int]:
        counts = json.loads(cls.ask("GET", "/v1/queue", "reader")[2])["states"]
        return {state: count for state, count in counts.items() if count}

    @classmethod
    def ask(cls, method: str, target: str, who: Optional[str], body: Any = None) -> Tuple[int, Any, bytes]:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {cls.token(who)}"} if who else {}
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(cls.url + target, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                # Of a stream the beginning tells enough.
                stream = reply.headers["Content-Type"] == "text/event-stream"
                return reply.status, reply.headers, reply.read1(4096) if stream else reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()


class Answers(Live):
    told: Set[Tuple[str, str, str]] = set()  # (path, method, code or default): each was seen.

    def check(
        self, code: int, method: str, path: str, who: Optional[str] = "writer", body: Any = None, query: str = "", **parts: Any
    ) -> Any:
        """The answer, which has this code and is as the document says of path and method."""
        target = path
        for name, value in parts.items():
            target = target.replace("{%s}" % name, str(value))
        got, headers, raw = self.ask(method, target + query, who, body)
        what = f"{method} {target}{query}"
        self.assertEqual(got, code, f"{what}: {raw[:500]!r}")
        responses = self.document["paths"][path][method.lower()]["responses"]
        key = str(got) if str(got) in responses else "default"
        response = responses[key]
        if "$ref" in response:
            response = self.document["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        (kind, media), = response["content"].items()
        if kind != "*/*":
            self.assertEqual(headers["Content-Type"], kind, what)
        self.told.add((path, method.lower(), key))
        if kind != "application/json":
            self.assertTrue(raw, what)
            return raw
        value = json.loads(raw)
        validator = Draft202012Validator({**media["schema"], "components": self.document["components"]})
        self.assertEqual([f"{what}: {fault.json_path} {fault.message}" for fault in validator.iter_errors(value)], [])
        self.assertEqual(untold(media["schema"], value, self.document["components"], what), [])
        return value

    def test_1_every_answer_is_as_documented(self) -> None:
        check = self.check
        for path in ("/healthz", "/readyz", "/openapi.json"):
            check(200, "GET", path, None)
        self.assertEqual(check(200, "GET", "/openapi.json", None), self.document)
        check(200, "GET", "/", None)
        check(200, "GET", "/page/{name}", None, name="page.js")
        for path in ("/metrics", "/v1/queue", "/v1/workers", "/v1/access", "/v1/jobs", "/v1/runs", "/v1/events"):
            check(200, "GET", path, "reader")
        self.assertEqual(len(check(200, "GET", "/v1/workers", "reader")["workers"]), 1)
        self.assertEqual(len(check(200, "GET", "/v1/queue", "reader")["sinks"]), 3)
        page = check(200, "GET", "/v1/jobs", "reader", query="?count=2&state=done&run=digits")
        check(200, "GET", "/v1/jobs", "reader", query=f"?count=2&state=done&cursor={page['cursor']}")
        for step, suite in ((1, "heldout"), (3, "heldout"), (7, "large")):
            job = {"run": "digits", "step": step, "variant": "regular", "suite": suite}
            check(200, "GET", JOB, "reader", **job)
            check(200, "GET", JOB + "/log", "reader", query="?bytes=100", **job)
        check(200, "GET", "/v1/runs/{run}", "reader", run="digits")
        metrics = [result["metrics"] for result in check(200, "GET", "/v1/runs/{run}/results", "reader", run="digits")["results"]]
        self.assertIn("NaN", [each.get("loss") for each in metrics])
        check(200, "GET", "/v1/runs/{run}/best", "reader", run="digits")
        check(200, "GET", SAMPLES, "reader", run="digits", step=1)
        for query in ("", "?show=wrong&grep=1&limit=2&offset=1&text_bytes=3", "?metric=length"):
            check(200, "GET", SAMPLES + "/items", "reader", query=query, run="digits", step=1)
        sides = "?a=digits@1&b=digits@2"
        self.assertEqual(len(check(200, "GET", "/v1/compare", "reader", query=sides)["metrics"]), 2)
        for query in ("", "&show=all&limit=3", "&metric=length"):
            check(200, "GET", "/v1/diff", "reader", query=sides + query)
        path = "/v1/runs/{run}/significance"
        for query in ("&work_ms=0", "&work_ms=5000"):
            check(200, "GET", path, "reader", query="?metric=acc" + query, run="digits")
        large = {"run": "digits", "step": 7, "variant": "regular", "suite": "large"}
        self.assertEqual(check(200, "POST", JOB + "/cancel", body={"reason": "enough"}, **large)["state"], "cancelled")
        self.assertEqual(check(200, "POST", JOB + "/retry", **large)["state"], "queued")
        check(200, "GET", "/v1/jobs", "reader", query="?count=100&explain=1")
        check(200, "POST", "/v1/pause", body={"kind": "run", "name": "digits"})
        check(200, "POST", "/v1/pause", body={"kind": "run", "name": "digits", "paused": False})
        path = self.scene.checkpoint("run/checkpoint-1.safetensors")
        again = {"run": "digits", "step": 1, "suites": "heldout", "path": path, "needs": None}
        self.assertEqual(check(200, "POST", "/v1/jobs", body=again)["jobs"][0]["answer"], "duplicate")

    def test_2_every_answer_of_lmms_eval_is_as_documented(self) -> None:
        check = self.check
        path = os.path.join(self.scene.out, "lmms", "checkpoint-5")
        os.makedirs(path + "/pytorch_model_fsdp_0", exist_ok=True)
        shutil.copy(self.scene.checkpoint("run/checkpoint-1.safetensors"), path + "/model.safetensors")
        for name in ("/health", "/queue", "/tasks", "/models"):
            check(200, "GET", name, "trainer")
        for tasks, state in ((["size"], "completed"), (["crash"], "failed")):
            asked = {"model": "m", "tasks": tasks, "model_args": {"pretrained": path}, "output_dir": None}
            job = check(200, "POST", "/evaluate", "trainer", asked)["job_id"]
            until(lambda: self.hurry() or check(200, "GET", "/jobs/{job_id}", "trainer", job_id=job)["status"] == state, f"it {state}")
            check(400, "DELETE", "/jobs/{job_id}", "trainer", job_id=job)
            check(200, "GET", "/queue", "trainer")
        asked = {"model": "m", "tasks": ["size"], "model_args": {"pretrained": path}, "num_gpus": 8}
        job = check(200, "POST", "/evaluate", "trainer", {**asked, "limit": 1})["job_id"]
        check(200, "GET", "/jobs/{job_id}", "trainer", job_id=job)
        check(200, "DELETE", "/jobs/{job_id}", "trainer", job_id=job)
        os.unlink(path + "/model.safetensors")
        shutil.copy(SHARD, path + "/pytorch_model_fsdp_0/model_world_size_1_rank_0.pt")
        check(200, "POST", "/merge", "trainer", {"checkpoint_path": path})

    def hurry(self) -> None:
        """What waits for its next attempt does not wait here."""
        for job in self.scene.redis_call("ZRANGE", "evalq:{main}:delayed", "0", "-1").decode().split():
            self.scene.redis_call("ZADD", "evalq:{main}:delayed", "XX", "0", job)

    def test_3_every_refusal_is_as_documented(self) -> None:
        check = self.check
        job = {"run": "digits", "step": 1, "variant": "regular", "suite": "heldout"}
        gone = {**job, "step": 99}
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                parts = {"run": "digits", "step": 1, "variant": "regular", "suite": "heldout", "job_id": "x", "name": "none"}
                if "x-evalq-right" in operation:
                    check(401, method.upper(), path, None, **parts)
                    wrong = "trainer" if operation["x-evalq-right"] != "lmms" else "reader"
                    check(403, method.upper(), path, wrong, **parts)
        check(404, "GET", "/page/{name}", None, name="none")
        for method, path in (("GET", JOB), ("GET", JOB + "/log"), ("POST", JOB + "/cancel"), ("POST", JOB + "/retry")):
            check(404, method, path, **gone)
            check(400, method, path, **{**job, "step": "one"})
        check(409, "POST", JOB + "/retry", **job)
        check(404, "GET", "/v1/runs/{run}", run="none")
        check(404, "GET", "/v1/runs/{run}/best", run="none")
        for path in ("/v1/runs/{run}", "/v1/runs/{run}/results", "/v1/runs/{run}/best"):
            check(400, "GET", path, run="a%20b")
        check(404, "GET", SAMPLES, run="digits", step=99)
        check(404, "GET", SAMPLES + "/items", query="?metric=none", run="digits", step=1)
        check(400, "GET", SAMPLES + "/items", query="?show=none", run="digits", step=1)
        for path in ("/v1/compare", "/v1/diff"):
            check(400, "GET", path, query="?a=digits@1")
            check(404, "GET", path, query="?a=digits@1&b=digits@99")
        check(400, "GET", "/v1/runs/{run}/significance", run="digits")
        for query in ("?state=none", "?count=0", "?run=a%20b", "?cursor=x", "?cursor=dead-1:9999999999999999", "?state=dead&cursor=done"):
            check(400, "GET", "/v1/jobs", query=query)
        check(400, "GET", "/v1/events", query="?after=x")
        for body in (b"{", [], {"run": "a"}, {"run": "a", "step": 1, "suites": "s", "path": "relative"}):
            check(400, "POST", "/v1/jobs", body=body)
        check(404, "GET", "/jobs/{job_id}", job_id="00000000-0000-4000-8000-000000000000")
        check(404, "DELETE", "/jobs/{job_id}", job_id="none")
        for path, bodies in (("/evaluate", (b"{", {}, {"model": 1, "tasks": "x"})), ("/merge", (b"", {}, {"checkpoint_path": 1}))):
            for body in bodies:
                check(422, "POST", path, body=body)
        check(404, "POST", "/merge", body={"checkpoint_path": self.scene.out + "/none"})
        check(400, "POST", "/merge", body={"checkpoint_path": "/nowhere"})

    def test_4_no_operation_was_left_out(self) -> None:
        wanted = {(path, method, "200") for path, item in self.document["paths"].items() for method in item}
        self.assertEqual(wanted - self.told, set())


@unittest.skipUnless(SCHEMATHESIS, "NOT RUN: schemathesis is not installed")
class Fuzzed(Live):
    """All of Schemathesis' checks but one: that a request which fits the document is accepted cannot hold where it names what is not
    there, such as a root."""

    EXAMPLES = "20"

    def schemathesis(self, who: Optional[str], *words: str) -> None:
        argv = [str(SCHEMATHESIS), "run", self.url + "/openapi.json", "--checks", "all", "--exclude-path", "/v1/events"]
        argv += ["--seed", "1", "--max-examples", self.EXAMPLES, "--no-shrink", "--suppress-health-check", "all", "--no-color"]
        argv += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--request-timeout", "60", *words]
        if who is not None:
            argv += ["-H", f"Authorization: Bearer {self.token(who)}"]
        done = subprocess.run(argv, cwd=self.scene.directory, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-20000:] + done.stderr)

    def test_with_a_token_that_may_write(self) -> None:
        self.schemathesis("writer", "--exclude-checks", "positive_data_acceptance")

    def test_without_a_token(self) -> None:
        self.schemathesis(None, "--exclude-checks", "positive_data_acceptance,negative_data_rejection")


if __name__ == "__main__":
    unittest.main()
