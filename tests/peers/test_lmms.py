"""evalq-gateway and its evaluators against the real ones: lmms-eval's own server and clients, lmms-eval itself, and shards that
processes of FSDP2 wrote."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), HERE]

from peers import needs  # noqa: E402

needs("torch", "transformers", "safetensors", "lmms_eval", "fastapi", "httpx", "PIL", "datasets")
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import httpx  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from lmms_client import EvalServerBackend, metrics_of  # noqa: E402
from lmms_eval.entrypoints import http_server  # noqa: E402
from lmms_eval.entrypoints.client import AsyncEvalClient, EvalClient  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from scene import BIN, DEADLINE, SOURCE, SceneTest, until  # noqa: E402

SUITES = os.path.join(SOURCE, "deploy", "suites")
MERGE = os.path.join(SUITES, "fsdp2_merge.py")
TRAIN = os.path.join(HERE, "fsdp2_train.py")



def shipped_suite() -> str:
    """deploy/suites/lmms.yaml, with its paths replaced as its first lines say, for a machine without GPUs."""
    with open(os.path.join(SUITES, "lmms.yaml"), encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if not line.startswith("#") and "needs: {gpus: 1}" not in line]
    text = "\n".join(lines).replace("/etc/evalq", SUITES).replace("/opt/lmms-eval/bin/python3", "$PYTHON").replace("/data", "$OUT")
    text = text.replace(f"EVALQ_LMMS_INCLUDE: {SUITES}/tasks", "EVALQ_LMMS_INCLUDE: $OUT/tasks, OMP_NUM_THREADS: '1'")
    return text + "\n    gpus_as_needs: false\nworker: {slots: 2, devices: cpu, threads: 1}\n"


CONFIG = shipped_suite()
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")  # They pass to the harness.

# Two checkpoints of a training; argv: address, checkpoint. Prints how many were submitted, and what was logged by step.
ENGINE = """
import json, sys, time
FIXED
from lmms_engine.eval.backends import EvalServerBackend
config = {"model": "dummy", "tasks": ["tiny_sum"], "model_args": {"response": "yes"}}
backend = EvalServerBackend(sys.argv[1], poll_interval=0.5, eval_config=config)
jobs = [backend.submit_eval(sys.argv[2], step, "", checkpoint_type="regular" if step == 5 else None) for step in (5, 6)]
logged = {}
while len(backend.pending_evals) > 0:
    for step, metrics in backend.check_and_get_completed():
        logged[step] = metrics["eval/tiny_sum_exact_match"]
    time.sleep(backend.poll_interval)
print(json.dumps([sum(job is not None for job in jobs), logged]))
"""

TASK = """
task: tiny_sum
dataset_path: json
dataset_kwargs: {data_files: {test: ITEMS}}
test_split: test
output_type: generate_until
doc_to_visual: !function tiny_sum.doc_to_visual
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {max_new_tokens: 4, temperature: 0, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: [{version: 0.0}]
"""


def train(directory: str, ranks: int, per_shard: int, *kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", TRAIN, directory, str(per_shard), *kind],
        env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=DEADLINE * 10, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-4000:])


def merge(source: str, variant: str, output: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, MERGE, *words, source, variant, output], capture_output=True, text=True, check=False,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))


class MergeTest(unittest.TestCase):
    """Shards of real FSDP2 processes over gloo, put together without any process group."""

    def setUp(self) -> None:
        self.directory = self.enterContext(tempfile.TemporaryDirectory(prefix="evalq-fsdp2-"))

    def compare(self, output: str, whole: str, factor: float) -> None:
        merged, expected = load_file(os.path.join(output, "model.safetensors")), torch.load(whole, weights_only=True)
        self.assertEqual(set(merged), set(expected))
        for name, value in expected.items():
            self.assertTrue(torch.equal(merged[name], value * factor), name)

    def test_weights_are_what_the_ranks_had(self) -> None:
        for ranks, per_shard in ((2, 2), (3, 3), (4, 2)):  # The last: two copies, each over two ranks.
            with self.subTest(ranks=ranks, per_shard=per_shard):
                path = os.path.join(self.directory, f"checkpoint-{ranks}")
                train(path, ranks, per_shard)
                for variant, factor in (("regular", 1.0), ("ema", 2.0)):
                    output = path + "-" + variant
                    done = merge(path, variant, output, "--dtype", "keep")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.compare(output, path + ".whole", factor)

    def test_model_loads_with_the_weights_of_the_ranks(self) -> None:
        path, output = os.path.join(self.directory, "checkpoint-1"), os.path.join(self.directory, "merged")
        train(path, 2, 2, "llama")
        done = merge(path, "regular", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        model = transformers.AutoModelForCausalLM.from_pretrained(output, dtype="auto")
        self.assertEqual(model.dtype, torch.bfloat16)
        expected = torch.load(path + ".whole", weights_only=True)
        loaded = model.state_dict()
        self.assertEqual(set(loaded), set(expected))
        for name, value in expected.items():
            self.assertTrue(torch.equal(loaded[name], value.to(torch.bfloat16)), name)
        with torch.no_grad():
            self.assertTrue(model(torch.arange(40).reshape(2, 20) % 97).logits.isfinite().all())

    def test_what_cannot_be_joined_is_refused_for_good(self) -> None:
        path, output = os.path.join(self.directory, "checkpoint-1"), os.path.join(self.directory, "merged")
        train(path, 2, 2)
        folder = os.path.join(path, "pytorch_model_fsdp_0")
        os.rename(os.path.join(folder, "model_world_size_2_rank_1.pt"), os.path.join(self.directory, "kept.pt"))
        done = merge(path, "regular", output)
        self.assertEqual((done.returncode, "lacks rank 1 of 2" in done.stderr), (os.EX_DATAERR, True), done.stderr)
        done = merge(self.directory, "ema", output)
        self.assertEqual((done.returncode, "Checkpoint type 'ema' not found" in done.stderr), (os.EX_DATAERR, True), done.stderr)

        class Hostile:
            def __reduce__(self) -> Any:
                return (os.mkdir, (os.path.join(output, "called"),))

        torch.save({"weight": Hostile()}, os.path.join(folder, "model_world_size_2_rank_1.pt"))
        done = merge(path, "regular", output)
        self.assertNotEqual(done.returncode, 0)
        self.assertFalse(os.path.exists(os.path.join(output, "called")))


class LmmsEvalTest(SceneTest):
    config = CONFIG
    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        if not os.path.exists(os.path.join(BIN, "evalq-gateway")):
            raise unittest.SkipTest("evalq-gateway was not built")
        super().setUpClass()
        tasks = os.path.join(cls.scene.out, "tasks")
        os.mkdir(tasks)
        items = os.path.join(tasks, "items.jsonl")
        with open(items, "w", encoding="utf-8") as file:
            for number in range(8):
                file.write(json.dumps({"question": f"{number} + 1?", "answer": "yes" if number < 6 else str(number + 1)}) + "\n")
        with open(os.path.join(tasks, "tiny_sum.yaml"), "w", encoding="utf-8") as file:
            file.write(TASK.replace("ITEMS", items))
        with open(os.path.join(tasks, "tiny_sum.py"), "w", encoding="utf-8") as file:
            file.write("def doc_to_visual(doc):\n    return []\n")
        cls.scene.start_worker()
        cls.url = cls.gateway()
        cls.client = EvalClient(cls.url)

    @classmethod
    def gateway(cls, *words: str) -> str:
        def told() -> List[str]:
            return [line for line in cls.scene.log("evalq-gateway").splitlines() if "gateway_started" in line]

        with open(os.path.join(cls.scene.directory, "evalq-gateway.log"), "ab"):
            pass
        before = len(told())
        cls.scene.start("evalq-gateway", "--lmms-open", "--rate", "0", "--listen", "127.0.0.1:0", *words)
        until(lambda: len(told()) > before, "the gateway listens")
        return told()[-1].split("address=")[1].split()[0]

    def save(self, name: str) -> str:
        path = os.path.join(self.scene.out, name)
        os.makedirs(path)
        header = b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
        with open(os.path.join(path, "model.safetensors"), "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + bytes(8))
        return path

    def test_real_client_gets_real_results(self) -> None:
        path = self.save("run/checkpoint-5")
        job = self.client.evaluate("dummy", ["tiny_sum"], {"pretrained": path, "response": "yes"}, batch_size=1)
        done = self.client.wait_for_job(job["job_id"], poll_interval=0.2, timeout=DEADLINE * 5, verbose=False)
        entry = done["result"]["run__checkpoint-5"]
        self.assertEqual(metrics_of(done)["eval/tiny_sum_exact_match"], 0.75)
        self.assertEqual(entry["metrics"]["tiny_sum"]["exact_match,none"], 0.75)
        with open(entry["samples"][0], encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 8)
        self.assertTrue(self.client.is_healthy())
        self.assertIsNone(self.client.get_queue_status()["running_job"])

    def test_real_async_client(self) -> None:
        path = self.save("async/checkpoint-6")

        async def run() -> Dict[str, Any]:
            async with AsyncEvalClient(self.url) as client:
                job = await client.evaluate("dummy", ["tiny_sum"], model_args={"pretrained": path, "response": "yes"}, limit=4,
                                            lmms_engine_kwargs={"model_path": path, "checkpoint_type": "regular"})
                return dict(await client.wait_for_job(job["job_id"], poll_interval=0.2, timeout=DEADLINE * 5, verbose=False))

        self.assertEqual(metrics_of(asyncio.run(run()))["eval/tiny_sum_exact_match"], 1.0)

    def test_distributed_evaluations_side_by_side(self) -> None:
        jobs = [self.client.evaluate("dummy", ["tiny_sum"], {"pretrained": self.save(f"ranks/checkpoint-{number}"), "response": "yes"},
                                     num_gpus=2)["job_id"] for number in range(2)]
        for job in jobs:
            done = self.client.wait_for_job(job, poll_interval=0.2, timeout=DEADLINE * 10, verbose=False)
            self.assertEqual(metrics_of(done)["eval/tiny_sum_exact_match"], 0.75)

    @unittest.skipIf(importlib.util.find_spec("lmms_engine") is None, "lmms_engine is not installed")
    def test_lmms_engine_loses_evaluations_and_its_fixes_do_not(self) -> None:
        """The backend of the released LMMs-Engine, with the closing wait of its trainer; and the same with lmms_engine_patches.py."""
        path = self.save("engine-released/checkpoint-5")
        for fixed in ("", "import lmms_engine_patches"):
            words = [sys.executable, "-c", ENGINE.replace("FIXED", fixed), self.url, path]
            environment = {**os.environ, "PYTHONPATH": SUITES}
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=DEADLINE * 10, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            submitted, logged = json.loads(done.stdout.splitlines()[-1])
            if fixed:
                self.assertEqual((submitted, logged), (2, {"5": 0.75, "6": 0.75}), done.stderr)
            else:
                self.assertEqual((submitted, logged), (0, {}))
                self.assertIn("unexpected keyword argument 'lmms_engine_kwargs'", done.stderr)

    def test_failure_has_the_words_of_lmms_eval(self) -> None:
        job = self.client.evaluate("dummy", ["no_such_task"], {"pretrained": self.save("bad/checkpoint-1")})

        def failed() -> bool:
            waited.extend(self.scene.redis_call("ZRANGE", "evalq:{main}:delayed", "0", "-1").decode().split())
            return bool(waited or self.client.get_job(job["job_id"])["status"] == "failed")

        waited: List[str] = []
        until(failed, "the job has failed for good", DEADLINE * 5)
        with self.assertRaisesRegex(RuntimeError, "Tasks not found: no_such_task"):
            self.client.wait_for_job(job["job_id"], verbose=False)
        self.assertEqual(waited, [])  # It was final: no second attempt was ever due.

    def test_trained_shards_are_merged_and_evaluated_by_lmms_eval(self) -> None:
        path = os.path.join(self.scene.out, "engine", "checkpoint-40")
        os.makedirs(os.path.dirname(path))
        train(path, 2, 2, "llama")
        backend = EvalServerBackend(self.url, "dummy", ["tiny_sum"], model_args={"response": "yes"})
        backend.submit(path, 40, "ema")
        until(lambda: not backend.pending, "both variants are evaluated", DEADLINE * 10)
        self.assertEqual(backend.lost, [])
        self.assertEqual(backend.logged[40]["eval/tiny_sum_exact_match"], 0.75)
        self.assertEqual(backend.logged[40]["eval/tiny_sum__regular_exact_match"], 0.75)
        merged = httpx.post(self.url + "/merge", json={"checkpoint_path": path, "output_path": None, "checkpoint_type": "ema"}, timeout=None)
        self.assertEqual(merged.status_code, 200, merged.text)
        model = transformers.AutoModelForCausalLM.from_pretrained(merged.json()["merged_path"], dtype="auto")
        whole = torch.load(path + ".whole", weights_only=True)
        self.assertTrue(torch.equal(model.state_dict()["lm_head.weight"], (2 * whole["lm_head.weight"]).to(torch.bfloat16)))

    def test_answers_are_those_of_the_real_server(self) -> None:
        """Also what it takes for a whole number, and each word of what it refuses."""
        server = TestClient(http_server.app, raise_server_exceptions=False)
        url = self.gateway("--queue", "quiet")  # Without workers: nothing of it is run.
        good = {"model": "m", "tasks": ["t"]}
        bodies: List[Any] = [{}, [], 1, "x", None, good | {"model": None}, good | {"model": 3}, good | {"tasks": "t"}, good | {"tasks": [1, None, "a"]},
                             good | {"tasks": None}]
        values = [None, 0, 1, 1.0, 1.5, True, False, "1", " 2 ", "3.0", "3.5", "1e3", "+4", "-5", "x", "", [], {}, "true", "Yes", "off", 2, "0.5", 1e300,
                  "1_000", "0x10", "inf", "nan"]
        for field in ("num_fewshot", "batch_size", "device", "limit", "gen_kwargs", "log_samples", "predict_only", "num_gpus", "output_dir"):
            bodies += [good | {field: value} for value in values]
        bodies += [good | {"model_args": value} for value in (3, [], True)]
        refused = 0
        client = httpx.Client(base_url=url)
        self.addCleanup(client.close)
        for body in bodies:
            ours = client.post("/evaluate", json=body)
            try:
                expected: Any = http_server.EvaluateRequest.model_validate(body).model_dump()
            except ValueError:
                expected = None
            with self.subTest(body=body):
                if expected is None:
                    theirs = server.post("/evaluate", json=body)
                    self.assertEqual(theirs.status_code, 422)
                    self.assertEqual((ours.status_code, ours.json()), (422, theirs.json()))
                    refused += 1
                elif ours.status_code == 422:  # Taken there, and refused here: more GPUs than a job may need, limits that are none.
                    self.assertTrue(expected["num_gpus"] > 64 or not math.isfinite(expected["limit"] or 0.0))
                else:
                    self.assertEqual(ours.status_code, 200, ours.text)
                    shown = client.get("/jobs/" + ours.json()["job_id"]).json()["request"]
                    self.assertEqual(shown, {name: expected[name] for name in shown})
        self.assertGreater(refused, 60)
        for method, path in (("GET", "/nothing"), ("PUT", "/evaluate"), ("GET", "/health/"), ("POST", "/queue")):
            theirs, ours = server.request(method, path, follow_redirects=False), httpx.request(method, url + path)
            self.assertEqual(ours.status_code, theirs.status_code, (method, path))
            if theirs.status_code != 307:
                self.assertEqual(ours.json(), theirs.json())
        for raw in (b"", b"{", b"{\"model\": }", b"\xff", b"[1,]"):
            theirs = server.post("/evaluate", content=raw, headers={"Content-Type": "application/json"})
            ours = httpx.post(url + "/evaluate", content=raw, headers={"Content-Type": "application/json"})
            with self.subTest(raw=raw):
                self.assertEqual(ours.status_code, theirs.status_code if raw != b"\xff" else 422)
                if theirs.status_code == 422:
                    self.assertEqual([fault["type"] for fault in ours.json()["detail"]], [fault["type"] for fault in theirs.json()["detail"]])


if __name__ == "__main__":
    unittest.main()
