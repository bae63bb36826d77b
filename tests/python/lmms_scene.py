"""A scene with a gateway for the clients of the LMMS-Eval server, a worker, and checkpoints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import unittest
from typing import Any, List

from lmms_client import EvalClient, HttpError
from scene import BIN, SOURCE, SceneTest, until

# These are the command lines of lmms-eval and accelerate.
PEER = os.path.join(SOURCE, "tests", "data", "evaluators", "lmms")
RUN = os.path.join(SOURCE, "deploy", "suites", "lmms_eval_run.py")
KEEP = os.path.join(SOURCE, "deploy", "suites", "fsdp2_merge.py")
SHARD = os.path.join(SOURCE, "tests", "data", "checkpoints", "torch_zip", "bfloat16.pt")

KEY = "sk-0123456789abcdef"
CONFIG = f"""
roots:
  out: $OUT
suites:
  lmms: {{evaluator: lmms-eval, tasks: [{{name: all, source: "*"}}]}}
  lmms-merged: {{evaluator: lmms-eval, prepare: join, tasks: [{{name: all, source: "*"}}]}}
  lmms-merge: {{evaluator: keep, prepare: join}}
evaluators:
  lmms-eval:
    argv: [$PYTHON, {RUN}]
    results: lmms-eval
    env: {{EVALQ_LMMS_OUTPUT: $OUT, PYTHONPATH: {PEER}, PYTHONDONTWRITEBYTECODE: "1", OPENAI_API_KEY: {KEY}, AZURE_ENDPOINT: "https://judge.example"}}
  join: {{argv: [$PYTHON, $OUT/../join.py]}}
  keep: {{argv: [$PYTHON, {KEEP}, --keep], env: {{EVALQ_LMMS_OUTPUT: $OUT}}}}
worker: {{slots: 4, devices: cpu, threads: 1}}
gateway:
  lmms: {{results: $OUT/results, catalog: $OUT/../catalog.json, gpus_as_needs: false}}
"""

# `prepare` joins the shards without a framework: it concatenates the bytes of all ranks.
JOIN = """
import json, os
with open(os.environ["EVALQ_JOB"]) as file:
    variant = json.load(file)["variant"]
folder = os.path.join(os.environ["EVALQ_CHECKPOINT"], "pytorch_ema_model_fsdp_0" if variant == "ema" else "pytorch_model_fsdp_0")
with open(os.path.join(os.environ["EVALQ_OUTPUT"], "weights"), "wb") as out:
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            out.write(file.read())
"""


class LmmsScene(SceneTest):
    config = CONFIG
    workers = False
    client: EvalClient

    @classmethod
    def setUpClass(cls) -> None:
        if not os.path.exists(os.path.join(BIN, "evalq-gateway")):
            raise unittest.SkipTest("evalq-gateway was not built")
        super().setUpClass()
        with open(os.path.join(cls.scene.directory, "join.py"), "w", encoding="utf-8") as file:
            file.write(JOIN)
        with open(os.path.join(cls.scene.directory, "catalog.json"), "w", encoding="utf-8") as file:
            json.dump({"tasks": ["count", "size"], "models": ["qwen_vl"]}, file)
        cls.worker = cls.scene.start_worker()
        cls.start_gateway()

    @classmethod
    def another_gateway(cls, *words: str) -> "tuple[subprocess.Popen[bytes], EvalClient]":
        def told() -> List[str]:
            return re.findall(r"gateway_started.*?address=(http://[0-9.:]+)", cls.scene.log("evalq-gateway"))

        with open(os.path.join(cls.scene.directory, "evalq-gateway.log"), "ab"):
            pass
        before = len(told())
        gateway = cls.scene.start("evalq-gateway", "--lmms-open", "--rate", "0", *words)
        until(lambda: len(told()) > before, "the gateway listens")
        return gateway, EvalClient(told()[-1] + "/")

    @classmethod
    def start_gateway(cls, address: str = "127.0.0.1:0") -> None:
        cls.gateway, cls.client = cls.another_gateway("--listen", address)
        cls.url = cls.client.base_url

    def save(self, name: str, size: int = 1000) -> str:
        """Creates a whole safetensors checkpoint with its own size."""
        path = os.path.join(self.scene.out, name)
        os.makedirs(path)
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(os.path.join(path, "model.safetensors"), "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + bytes(size))
        return path

    def save_shards(self, name: str, ranks: int = 2, ema: bool = False) -> str:
        path = os.path.join(self.scene.out, name)
        for number, folder in enumerate(["pytorch_model_fsdp_0"] + (["pytorch_ema_model_fsdp_0"] if ema else [])):
            os.makedirs(os.path.join(path, folder))
            # The averages are larger here, so the numbers tell the two apart.
            for rank in range(ranks + number):
                shutil.copy(SHARD, os.path.join(path, folder, f"model_world_size_{ranks + number}_rank_{rank}.pt"))
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "tiny"}, file)
        return path

    @staticmethod
    def files(path: str) -> List[str]:
        return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)

    def gate(self, name: str) -> str:
        return os.path.join(self.scene.directory, name)

    def refused(self, code: int, call: Any, *arguments: Any, **more: Any) -> Any:
        with self.assertRaises(HttpError) as caught:
            call(*arguments, **more)
        self.assertEqual((caught.exception.code, set(caught.exception.body)), (code, {"detail"}))
        return caught.exception.body
