"""evalq.lm_eval against lm-evaluation-harness itself: a tiny GPT-2 on a task of our own, so that nothing is downloaded."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import time
import unittest
from typing import Dict

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), HERE]

from scene import BIN, DEADLINE, NATIVE, PACKAGE, SceneTest  # noqa: E402

try:
    import lm_eval
except ImportError:
    lm_eval = None

TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""


@unittest.skipIf(lm_eval is None, "lm_eval is not installed")
class HarnessTest(SceneTest):
    config = NATIVE.replace(
        "suites:",
        f"""
samples: {{directory: $OUT/samples}}
evaluators:
  harness:
    kind: persistent
    argv: [$PYTHON, -m, evalq.lm_eval, --tasks, tiny_choice, --include-path, $OUT/tasks, --bootstrap-iters, "10"]
    directory: $OUT
    env: {{PYTHONPATH: {PACKAGE}, OMP_NUM_THREADS: 1, HF_HOME: $OUT/hf, HF_HUB_OFFLINE: 1}}
  engine:
    kind: persistent
    argv: [$PYTHON, -m, evalq.lm_eval, --model, evalq, --include-path, $OUT/tasks, --bootstrap-iters, "10"]
    directory: $OUT
    env: {{PYTHONPATH: {PACKAGE}, PATH: "{BIN}:/usr/bin:/bin", HF_HOME: $OUT/hf, HF_HUB_OFFLINE: 1}}
  other:
    kind: persistent
    argv: [$PYTHON, -m, evalq.lm_eval, --model, dummy, --include-path, $OUT/tasks, --bootstrap-iters, "10"]
    directory: $OUT
    env: {{PYTHONPATH: {PACKAGE}, OMP_NUM_THREADS: 1, HF_HOME: $OUT/hf, HF_HUB_OFFLINE: 1}}
suites:
  engine:
    evaluator: engine
    samples: true
    tasks: [{{name: choice, source: tiny_choice}}]
  other:
    evaluator: other
    tasks: [{{name: choice, source: tiny_choice}}]
  lm:
    evaluator: harness
    samples: true
    tasks: [{{name: choice, source: tiny_choice}}]""",
    )
    workers = False

    def checkpoint(self, step: int) -> str:
        import torch
        import transformers
        from tokenizers import Tokenizer, models, pre_tokenizers

        path = os.path.join(self.scene.out, "lr=0.1,batch=8", f"checkpoint-{step}")  # As sweeps name their directories.
        torch.manual_seed(step)
        config = transformers.GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
        transformers.GPT2LMHeadModel(config).save_pretrained(path)
        words = {word: at for at, word in enumerate(["<eos>", "<unk>", *(f"w{at}" for at in range(60))])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>").save_pretrained(path)
        return path

    def task(self) -> str:
        tasks = os.path.join(self.scene.out, "tasks")
        os.makedirs(tasks, exist_ok=True)
        data = os.path.join(tasks, "tiny.jsonl")
        with open(data, "w", encoding="utf-8") as file:
            for at in range(40):
                choices = [f"w{(at * 7 + other * 11) % 60}" for other in range(4)]
                file.write(json.dumps({"question": f"w{at} w{at + 1}", "choices": choices, "answer": at % 4}) + "\n")
        with open(os.path.join(tasks, "tiny.yaml"), "w", encoding="utf-8") as file:
            file.write(TASK.format(data=data))
        return tasks

    def test_a_backend_without_a_torch_module_is_made_anew(self) -> None:
        """The harness's own backend `dummy`, which holds no model that weights could be copied into."""
        self.task()
        self.scene.start_worker()
        with self.scene.client("dummy", raise_errors=True) as client:
            for step in (1, 2, 3):
                client.submit(self.checkpoint(step), step=step, suites="other")
            self.assertTrue(client.wait(DEADLINE))
            ends = {result.step: (result.state, result.reason) for result in client.results() if result.is_end}
        self.assertEqual(ends, dict.fromkeys((1, 2, 3), ("done", "")))

    def test_evaluates_the_variant_that_was_submitted(self) -> None:
        import torch
        from safetensors.torch import load_file

        self.task()
        self.scene.start_worker()
        folders = [self.checkpoint(1), self.checkpoint(2)]
        regular, ema = [load_file(os.path.join(folder, "model.safetensors")) for folder in folders]
        shutil.copytree(folders[0], plain := os.path.join(self.scene.out, "plain"))
        os.remove(os.path.join(folders[0], "model.safetensors"))
        torch.save({"state_dict": regular, "ema_state_dict": ema}, os.path.join(folders[0], "pytorch_model.bin"))
        with self.scene.client("variants", raise_errors=True) as client:
            client.submit(folders[0], step=1, variant="ema", suites="lm,other")
            client.submit(folders[1], step=2, variant="ema", suites="other")  # It holds no other weights.
            self.assertTrue(client.wait(DEADLINE))
            client.submit(folders[1], step=2, suites="lm")
            client.submit(plain, step=3, suites="lm")
            self.assertTrue(client.wait(DEADLINE))
            found: Dict[int, Dict[str, float]] = {1: {}, 2: {}, 3: {}}
            for result in client.results():
                if result.is_end and (result.step, result.suite) == (1, "other"):
                    self.assertEqual(result.state, "dead")
                    self.assertIn("variant 'ema' needs --model hf or", result.reason)
                elif result.is_end:
                    self.assertEqual(result.state, "done", result.reason)
                elif result.suite == "lm":
                    found[result.step][result.metric] = result.value
        self.assertIn("acc,none", found[1])
        self.assertEqual(found[1], found[2])
        self.assertNotEqual(found[1], found[3])  # The regular weights have other metrics.

    def test_gives_what_the_harness_gives(self) -> None:
        self.gives_what_the_harness_gives("lm")

    def test_gives_the_same_on_the_native_engine(self) -> None:
        self.gives_what_the_harness_gives("engine")

    def gives_what_the_harness_gives(self, suite: str) -> None:
        tasks = self.task()
        self.scene.start_worker()
        paths = {step: self.checkpoint(step) for step in (1, 2, 3)}
        found, took, ids = {}, {}, set()
        with self.scene.client("lm", raise_errors=True) as client:
            for step, path in paths.items():
                began = time.monotonic()
                client.submit(path, step=step, suites=suite)
                self.assertTrue(client.wait(DEADLINE))
                took[step] = time.monotonic() - began
                for result in client.results():
                    if result.is_end:
                        self.assertEqual(result.state, "done", result.reason)
                    else:
                        self.assertEqual(result.n, 40)
                        found.setdefault(step, {})[result.metric] = result.value
        os.environ.update(HF_HOME=os.path.join(self.scene.out, "hf"), HF_HUB_OFFLINE="1")
        for step, path in paths.items():
            wanted = lm_eval.simple_evaluate(
                model="hf", model_args={"pretrained": path}, device="cpu", tasks=["tiny_choice"], bootstrap_iters=10,
                task_manager=lm_eval.tasks.TaskManager(include_path=tasks), log_samples=False,
            )["results"]["tiny_choice"]  # fmt: skip
            for metric in ("acc,none", "acc_norm,none"):
                self.assertTrue(abs(found[step][metric] - wanted[metric]) <= 1e-9, (step, found, wanted))
            kept = os.path.join(self.scene.out, "samples", "lm", str(step), "regular", suite, "choice.jsonl.gz")
            with gzip.open(kept, "rt", encoding="utf-8") as file:
                _, *items, _ = map(json.loads, file)
            ids.add(tuple(item["id"] for item in items))
            for metric in ("acc,none", "acc_norm,none"):
                mean = sum(item["scores"][metric] for item in items) / 40
                self.assertTrue(abs(mean - wanted[metric]) <= 1e-9, (step, mean, wanted))
            for item in items:  # The output is the choice that acc takes.
                self.assertEqual(item["output"] == item["target"], item["scores"]["acc,none"] == 1)
        self.assertEqual([len(each) for each in ids], [40])
        self.assertGreater(len({tuple(values.values()) for values in found.values()}), 1)
        print(f"\nlm_eval, suite {suite}: first checkpoint {took[1]:.2f} s, then {took[2]:.2f} s and {took[3]:.2f} s")


if __name__ == "__main__":
    unittest.main()
