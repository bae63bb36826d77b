"""evalq's own language-model tasks against lm-evaluation-harness's HF backend, and its eval_loss against a Trainer's: the
same requests over local files, scored by both."""

from __future__ import annotations

import json
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

from peers import needs  # noqa: E402

needs("torch", "transformers", "lm_eval", "datasets")
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from scene import BIN, DEADLINE  # noqa: E402

DATA = os.path.join(os.path.dirname(HERE), "data")
SUITES = os.path.join(os.path.dirname(os.path.dirname(HERE)), "deploy", "suites")
SEED = 20260401


# A directory with vocab.json and merges.txt: the real GPT-2 vocabulary instead of a small one of the same kind.
GPT2 = os.environ.get("EVALQ_TEST_GPT2")
LENGTH = 96 if GPT2 else 224  # Positions of the model: shorter than many of the items, so that contexts are cut.


def make_model(directory: str, kind: str) -> None:
    """A random GPT-2, sharp enough that choices differ, over one of the tokenizers of tests/data."""
    if kind == "llama2":  # Puts <s> before each text, and its tokens begin with a mark for the space.
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=os.path.join(DATA, "tokenizers", kind, "tokenizer.json"), bos_token="<s>", eos_token="</s>"
        )
    elif GPT2:
        tokenizer = transformers.GPT2TokenizerFast(
            vocab=os.path.join(GPT2, "vocab.json"), merges=os.path.join(GPT2, "merges.txt")
        )
    else:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=os.path.join(DATA, "tokenizers", kind, "tokenizer.json"), eos_token="<|endoftext|>"
        )
    tokenizer.save_pretrained(directory)
    torch.manual_seed(SEED)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4,
        bos_token_id=tokenizer.bos_token_id or tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)


HELLASWAG = 240  # Items.
MARKS = ["[header]", "[title]", " [title]", "[step]", "[substeps]", "[a [b] c]", "[", "]", "[]", "  ", "   ", " . ", "\u00a0", "\u2003"]
WORDS = ["ÉTÉ", "Élodie", "ǆungla", "ßen", "ﬁne", "ΌΣΟΣ", "İstanbul", "ŉa", "straße", "ᾳ", "日本", "🙂", "won't", "HE", "X-ray"]

TASKS = {
    "lambada": """
task: lambada
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}/tasks/lambada.jsonl}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
""",
    "piqa": """
task: piqa
dataset_path: json
dataset_kwargs: {{data_files: {{test: {out}/piqa.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{goal}}}}\\nAnswer:"
doc_to_target: label
doc_to_choice: "{{{{[sol1, sol2]}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_bytes, aggregation: mean, higher_is_better: true}}
""",
    "letters": """
task: letters
dataset_path: json
dataset_kwargs: {{data_files: {{test: {out}/letters.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_bytes, aggregation: mean, higher_is_better: true}}
""",
    "hellaswag": """
task: hellaswag_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {out}/hellaswag.jsonl}}}}
test_split: test
output_type: multiple_choice
process_docs: !function hellaswag_docs.process_docs
doc_to_text: "{{{{query}}}}"
doc_to_target: "{{{{label}}}}"
doc_to_choice: "choices"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
""",
    "wikitext": """
task: wikitext_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {out}/pages.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: !function wikitext_page.wikitext_detokenizer
process_results: !function wikitext_page.process_results
metric_list:
  - {{metric: word_perplexity}}
  - {{metric: byte_perplexity}}
  - {{metric: bits_per_byte}}
""",
}

NAMES = {  # Ours and the harness's.
    "lambada": "lambada",
    "piqa": "piqa",
    "letters": "letters",
    "hellaswag": "hellaswag_local",
    "wikitext2_tokenised": "wikitext_local",
}

# The suites of deploy/suites/, and under which of its names each finds our data.
SHIPPED = {
    "lambada": {"lambada_test.jsonl": "lambada.jsonl"},
    "piqa": {"piqa_valid.jsonl": "piqa_alone.jsonl", "piqa_valid_labels.lst": "piqa_labels.lst"},
    "hellaswag": {"hellaswag_val.jsonl": "hellaswag.jsonl"},
    "wikitext2": {"wikitext2_test.txt": "wikitext2.txt"},
}

LETTERS = """
suites:
  letters:
    tasks:
      - name: letters
        type: multiple_choice
        data: {format: jsonl, text: letters.jsonl, template: "{question}", choices: choices, label: answer}
"""


def pages(text: str) -> List[str]:
    """Pages as the harness's data set has them."""
    found: List[List[str]] = [[]]
    for line in text.split("\n"):
        drawn = line.replace("= = =", "===").replace("= =", "==").strip()
        if drawn.startswith("= ") and drawn.endswith(" ="):
            found.append([])
        found[-1].append(line)
    joined = ["\n".join(lines) for lines in found]
    return [page for page in joined[:-1] if page.strip()] + joined[-1:]


def write_jsonl(path: str, objects: List[Dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for item in objects:
            file.write(json.dumps(item, ensure_ascii=False) + "\n")


def hellaswag(items: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Items in HellaSwag's own layout, of PIQA's words and of what its cleaning is about: the marks of WikiHow, blanks, brackets that
    are not closed, and contexts whose second half is empty. The harness capitalizes the second half, which evalq does for ASCII
    letters alone (docs/guarantees.md, "Not promised"), so it has no others."""
    rng = random.Random(SEED)
    common = sorted({word for item in items for word in item["goal"].split()})

    def text(words: int, ascii_only: bool = False) -> str:
        picked = [rng.choice(MARKS) if rng.random() < 0.15 else rng.choice(WORDS if rng.random() < 0.15 else common) for _ in range(words)]
        picked = [word for word in picked if word.isascii() or not ascii_only]
        return "".join(word + rng.choice(("", " ", " ", " ", " ", "  ")) for word in picked)

    made = []
    for index in range(HELLASWAG):
        first, second = text(rng.randint(3, 12)), rng.choice(("", text(rng.randint(1, 6), ascii_only=True)))
        endings = [text(rng.randint(2, 8)) + rng.choice("abcdefg") for _ in range(4)]  # None is empty when it is clean.
        made.append({
            "ind": index, "activity_label": text(rng.randint(1, 4)), "ctx_a": first, "ctx_b": second, "ctx": first + " " + second,
            "split": "val", "split_type": rng.choice(("indomain", "zeroshot")), "label": rng.randrange(4), "endings": endings,
            "source_id": f"activitynet~v_{index}",
        })
    return made


def write_data(out: str) -> None:
    with open(os.path.join(DATA, "tasks", "piqa.jsonl"), encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    with open(os.path.join(DATA, "tasks", "piqa_labels.lst"), encoding="utf-8") as file:
        labels = [int(line) for line in file]
    short = [i for i, item in enumerate(items) if max(len(item["sol1"]), len(item["sol2"])) < (300 if GPT2 else 200)]
    items, labels = [items[i] for i in short], [labels[i] for i in short]  # What is scored has to fit by itself.
    write_jsonl(os.path.join(out, "piqa.jsonl"), [dict(item, label=label) for item, label in zip(items, labels)])
    write_jsonl(os.path.join(out, "piqa_alone.jsonl"), items)
    with open(os.path.join(out, "piqa_labels.lst"), "w", encoding="utf-8") as file:
        file.writelines(f"{label}\n" for label in labels)
    words = random.Random(SEED)
    letters = [{"question": "", "choices": ["A", "B", "C", " and"], "answer": 1}]  # After the prefix alone.
    letters += [{"question": begin + "why", "choices": ["A", "B"], "answer": 1} for begin in ("<s>", "<|endoftext|>")]  # Not twice.
    for item in [item for item in items if item["goal"].strip()][:120]:  # One-token answers, contexts with blanks at the end, longer ones among them.
        answer = words.randrange(4)
        blank = words.choice(["", " ", "  ", "\n"])
        choices = ["A", "B", "C", words.choice(["D", "D and more", "Dé", "ﬂ"])]
        letters.append({"question": item["goal"] + blank, "choices": choices, "answer": answer})
    write_jsonl(os.path.join(out, "letters.jsonl"), letters)
    write_jsonl(os.path.join(out, "hellaswag.jsonl"), hellaswag(items))
    with open(os.path.join(DATA, "tasks", "wikitext2.txt"), encoding="utf-8") as file:
        write_jsonl(os.path.join(out, "pages.jsonl"), [{"page": page} for page in pages(file.read())])


def write_suites(out: str) -> None:
    """The shipped suites with our data where they expect theirs."""
    data = os.path.join(out, "suites", "data")
    os.makedirs(data)
    shutil.copy(os.path.join(DATA, "tasks", "lambada.jsonl"), out)
    shutil.copy(os.path.join(DATA, "tasks", "wikitext2.txt"), out)
    for suite, files in SHIPPED.items():
        shutil.copy(os.path.join(SUITES, suite + ".yaml"), os.path.dirname(data))
        for name, ours in files.items():
            shutil.copy(os.path.join(out, ours), os.path.join(data, name))


def write_tasks(out: str) -> None:
    import lm_eval.tasks.hellaswag.utils as hellaswag_utils
    import lm_eval.tasks.wikitext.preprocess_wikitext as wikitext_utils

    os.mkdir(os.path.join(out, "tasks"))
    shutil.copy(hellaswag_utils.__file__, os.path.join(out, "tasks", "hellaswag_docs.py"))
    shutil.copy(wikitext_utils.__file__, os.path.join(out, "tasks", "wikitext_page.py"))
    for name, text in TASKS.items():
        with open(os.path.join(out, "tasks", name + ".yaml"), "w", encoding="utf-8") as file:
            file.write(text.format(data=DATA, out=out))


class Tasks(unittest.TestCase):
    kind = ""  # Of tokenizer.
    theirs: Any = None

    @classmethod
    def setUpClass(cls) -> None:
        if not cls.kind:
            raise unittest.SkipTest("what the others have in common")
        cls.out = tempfile.mkdtemp(prefix="evalq-harness-")
        cls.model = os.path.join(cls.out, "model")
        make_model(cls.model, cls.kind)
        write_data(cls.out)
        write_suites(cls.out)
        write_tasks(cls.out)
        cls.harness = HFLM(pretrained=cls.model, device="cpu", dtype="float32", batch_size=4)
        print(f"seed {SEED}")

    @classmethod
    def tearDownClass(cls) -> None:
        shutil.rmtree(cls.out, ignore_errors=True)

    def evaluate(self, config: str, suite: str) -> Dict[str, Dict[str, Any]]:
        """What evalq-worker says, by task."""
        command = [os.path.join(BIN, "evalq-worker"), "eval", self.model, "--suite", suite, "--json", "--config", config]
        done = subprocess.run(command, cwd=self.out, capture_output=True, text=True, timeout=DEADLINE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        tasks: Dict[str, Dict[str, Any]] = json.loads(done.stdout)["tasks"]
        return tasks

    def evalq(self, suites: str, suite: str) -> Dict[str, Dict[str, Any]]:
        path = os.path.join(self.out, "evalq.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(suites)
        return self.evaluate(path, suite)

    def near(self, got: float, wanted: float, tolerance: float) -> None:
        self.assertFalse(not abs(got - wanted) <= tolerance, f"{got} is not {wanted} within {tolerance}")

    def harness_results(self) -> Dict[str, Any]:
        """Of all tasks, once."""
        if self.theirs is None:
            manager = TaskManager(include_path=os.path.join(self.out, "tasks"), include_defaults=False)
            type(self).theirs = simple_evaluate(
                model=self.harness, tasks=list(NAMES.values()), task_manager=manager, bootstrap_iters=0, log_samples=True
            )
        return self.theirs

    def test_tasks_agree_with_the_harness(self) -> None:
        theirs = self.harness_results()
        ours = self.evalq(LETTERS, "letters")
        for suite in SHIPPED:
            ours.update(self.evaluate(os.path.join(self.out, "suites", suite + ".yaml"), suite))
        for name, their_name in NAMES.items():
            metrics = ours[name]["metrics"]
            expected = theirs["results"][their_name]
            for metric in ("acc", "acc_norm", "acc_bytes"):
                if f"{metric},none" in expected:
                    print(f"{name} {metric}: {metrics[metric]} and {expected[f'{metric},none']}")
                    self.assertEqual(metrics[metric], expected[f"{metric},none"], name)
            for metric in ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"):
                if f"{metric},none" in expected:
                    wanted = expected[f"{metric},none"]
                    print(f"{name} {metric}: {metrics[metric]!r} and {wanted!r}, {metrics[metric] / wanted - 1:.2g} off")
                    self.near(metrics[metric], wanted, 1e-6 * wanted)
            self.assertEqual(ours[name]["n"], len(theirs["samples"][their_name]))

    def test_hellaswag_is_cleaned_and_divided_as_the_harness_does(self) -> None:
        config = os.path.join(self.out, "suites", "hellaswag.yaml")
        command = [os.path.join(BIN, "item_tokens"), config, "hellaswag", self.model]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [[part.split() for part in line.split("|")] for line in done.stdout.splitlines()]
        wanted = []
        for sample in sorted(self.harness_results()["samples"]["hellaswag_local"], key=lambda sample: sample["doc_id"]):
            for choice, (context, continuation) in enumerate(sample["arguments"]):
                pair = self.harness._encode_pair(context, continuation)
                wanted.append([*(list(map(str, ids)) for ids in pair), [str(int(choice == int(sample["target"])))]])
        self.assertEqual(len(lines), 4 * HELLASWAG)
        for got, want in zip(lines, wanted):
            self.assertEqual(got, want)
        print(f"{len(lines)} choices of HellaSwag: every token equal")

    def test_each_loglikelihood_agrees_with_the_harness(self) -> None:
        requests = []
        for their_name in ("piqa", "letters", "lambada"):
            for sample in self.harness_results()["samples"][their_name]:
                for arguments, answers in zip(sample["arguments"], sample["resps"]):
                    requests.append((*arguments, *answers[0]))
        chosen = random.Random(SEED).sample(requests, 60)
        tasks = []
        for i, (context, continuation, _, _) in enumerate(chosen):
            write_jsonl(os.path.join(self.out, f"one-{i}.jsonl"), [{"context": context, "continuation": continuation}])
            data = f'{{format: jsonl, text: one-{i}.jsonl, template: "{{context}}", target: "{{continuation}}"}}'
            tasks.append(f"      - {{name: r{i}, type: loglikelihood, data: {data}}}\n")
        ours = self.evalq("suites:\n  one:\n    tasks:\n" + "".join(tasks), "one")
        worst = 0.0
        for i, (_, _, loglikelihood, greedy) in enumerate(chosen):
            metrics = ours[f"r{i}"]["metrics"]
            worst = max(worst, abs(metrics["loglikelihood"] - loglikelihood))
            self.near(metrics["loglikelihood"], loglikelihood, 1e-4)
            self.assertEqual(metrics["acc"], float(greedy))
        print(f"60 loglikelihoods: at most {worst:.2g} off")


class BosTest(Tasks):
    kind = "llama2"


class HarnessTest(Tasks):
    kind = "gpt2"

    def trainer_loss(self, samples: List[List[int]], batch_size: int) -> float:
        def collate(batch: List[List[int]]) -> Dict[str, torch.Tensor]:
            longest = max(len(ids) for ids in batch)
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
            return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

        arguments = transformers.TrainingArguments(
            output_dir=os.path.join(self.out, "trainer"), per_device_eval_batch_size=batch_size, use_cpu=True,
            report_to=[], disable_tqdm=True, remove_unused_columns=False,
        )
        model = transformers.GPT2LMHeadModel.from_pretrained(self.model, dtype=torch.float32)
        model.loss_type = "ForCausalLM"  # Without it Transformers 5.23 divides GPT-2's loss by the labels, not the targets.
        trainer = transformers.Trainer(model=model, args=arguments, data_collator=collate)
        loss: float = trainer.evaluate(eval_dataset=samples)["eval_loss"]
        return loss

    def test_eval_loss_agrees_with_a_trainer(self) -> None:
        with open(os.path.join(self.out, "pages.jsonl"), encoding="utf-8") as file:
            texts = [line for page in file for line in json.loads(page)["page"].split("\n") if line.strip()]
        with open(os.path.join(self.out, "lines.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(texts))
        encoded = [self.harness.tokenizer(text)["input_ids"] for text in texts]
        joined = [token for ids in encoded for token in ids]
        blocks = [joined[i : i + 48] for i in range(0, len(joined) - 47, 48)]
        self.assertNotEqual(len(blocks) % 7, 0)  # The last batch is smaller.
        data = "data: {format: text, text: lines.txt, split: lines}"
        ours = self.evalq(
            f"""
suites:
  loss:
    tasks:
      - {{name: blocks, type: perplexity, mode: trainer, length: 48, batch_size: 7, {data}}}
      - {{name: documents, type: perplexity, mode: trainer, samples: documents, batch_size: 7, length: 48, {data}}}
""",
            "loss",
        )
        for name, samples in (("blocks", blocks), ("documents", [ids[:48] for ids in encoded])):
            wanted = self.trainer_loss(samples, 7)
            print(f"eval_loss of {name}: {ours[name]['metrics']['eval_loss']!r} and {wanted!r}")
            self.near(ours[name]["metrics"]["eval_loss"], wanted, 1e-5)
            self.assertEqual(ours[name]["n"], len(samples))
        differ = abs(ours["documents"]["metrics"]["eval_loss"] - ours["documents"]["metrics"]["loss"])
        self.assertGreater(differ, 1e-3)  # The two conventions are not the same.

    def test_strided_and_blocks_agree_with_transformers(self) -> None:
        with open(os.path.join(DATA, "tasks", "wikitext2.txt"), encoding="utf-8") as file:
            text = file.read()[:12000]
        with open(os.path.join(self.out, "short.txt"), "w", encoding="utf-8") as file:
            file.write(text)
        ids = torch.tensor([self.harness.tokenizer(text)["input_ids"]])
        model = transformers.GPT2LMHeadModel.from_pretrained(self.model, dtype=torch.float64)

        def nll(tokens: torch.Tensor, scored: int) -> float:
            with torch.no_grad():
                logits = model(tokens[:, :-1]).logits[0]
            losses = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
            return float(losses[-scored:].sum())

        length, stride, done, total, count = 80, 32, 0, 0.0, 0
        for begin in range(0, ids.shape[1], stride):
            end = min(begin + length, ids.shape[1])
            scored = min(end - done, end - begin - 1)
            total, count, done = total + nll(ids[:, begin:end], scored), count + scored, end
            if end == ids.shape[1]:
                break
        chunks = [ids[:, i : i + length + 1] for i in range(0, ids.shape[1] - 1, length)]
        in_blocks = sum(nll(chunk, chunk.shape[1] - 1) for chunk in chunks) / (ids.shape[1] - 1)
        data = "length: 80, data: {format: text, text: short.txt}"
        ours = self.evalq(
            f"""
suites:
  modes:
    tasks:
      - {{name: strided, type: perplexity, mode: strided, stride: 32, {data}}}
      - {{name: blocks, type: perplexity, mode: blocks, {data}}}
""",
            "modes",
        )
        for name, wanted, tokens in (("strided", total / count, count), ("blocks", in_blocks, ids.shape[1] - 1)):
            print(f"{name}: {ours[name]['metrics']['loss']!r} and {wanted!r}")
            self.near(ours[name]["metrics"]["loss"], wanted, 1e-5)
            self.assertEqual(ours[name]["sums"]["tokens"], tokens)


if __name__ == "__main__":
    unittest.main()
