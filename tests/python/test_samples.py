"""Samples from every kind of evaluator."""

from __future__ import annotations

import json
import os
import shutil
import unittest
from typing import ClassVar, Dict

import samples_scene
from scene import DATA

SERVED = """
import evalq

def evaluate(checkpoint, task, report):
    bad = checkpoint.params.get("bad", "")
    for i in range(3000):  # Several lines of the protocol.
        scores = {"acc": i % 2}
        item = {"id": str(i), "scores": scores, "output": "x" * 1000, "target": "y", "tokens": i}
        report.samples.append(item)
    odd = {"nul": "a\\0b\\\\u0000", "half": "a\\ud800b", "object": object()}
    odd["long"] = "x" * (100 << 20)
    if bad in odd:
        report.samples[7]["output"] = odd[bad]
    if bad == "nan":
        report.samples[7]["scores"] = {"acc": float("nan")}
    if bad == "twice":
        report.samples[7]["id"] = "6"
    if bad == "list":
        report.samples[7] = ["acc", 1]
    return {"acc": 0.5, "n": 3000}

evalq.serve(evaluate)
"""

HARNESS = r"""
import json, os
folder = os.path.join(os.environ["EVALQ_RESULT"], "model")
os.mkdir(folder)
results = {"arc_easy": {"acc,none": 0.5}, "arc": {"acc,none": 1.0}}
json.dump({"results": results}, open(folder + "/results_2026.json", "w"))
for task, count in (("arc", 3), ("arc_easy", 4)):
    with open(folder + f"/samples_{task}_2026-11-25T10-00-00.123456.jsonl", "w") as file:
        for filter in ("none", "strict"):
            for i in range(count):
                doc = {"question": "?", "passage": i // 2}
                line = {"doc_id": i, "doc": doc, "target": "A", "arguments": {}}
                line.update(resps=[["B"]], filtered_resps=["B"], filter=filter)
                line.update(metrics=["acc", "pair"], acc=float(i % 2), pair=[1, 2])
                line.update(doc_hash="d" * 64, prompt_hash="%064x" % i, target_hash="t" * 64)
                file.write(json.dumps(line) + "\n")
"""

CHOICES = r"""
import json, os
folder = os.environ["EVALQ_RESULT"]
json.dump({"results": {"sky": {"acc,none": 0.5}}}, open(folder + "/results_2026.json", "w"))
with open(folder + "/samples_sky_2026-11-25T10-00-00.123456.jsonl", "w") as file:
    for i in range(2):
        # The second item asks as winogrande does: its choices differ in the context.
        words = [("The sky is", " red"), ("The sky is", " blue")] if i == 0 else \
            [("The red", " sky"), ("The blue", " sky")]
        asked = {f"gen_args_{k}": {"arg_0": a, "arg_1": b} for k, (a, b) in enumerate(words)}
        line = {"doc_id": i, "doc": {}, "target": "0", "arguments": asked, "filter": "none"}
        line.update(filtered_resps=[["-4.5", "False"], ["-1.25", "True"]], metrics=["acc"], acc=0.0)
        line.update(doc_hash="d" * 64, prompt_hash="%064x" % i, target_hash="t" * 64)
        file.write(json.dumps(line) + "\n")
"""

LMMS = r"""
import json, os
with open(os.environ["EVALQ_JOB"]) as file:
    bad = json.load(file)["params"].get("bad", "")
folder = os.path.join(os.environ["EVALQ_RESULT"], "model")
os.mkdir(folder)
results = {"results": {"pets": {"exact_match,none": 0.5, "mme,none": 1.0}}}
json.dump(results, open(folder + "/20261126_103000_results.json", "w"))
with open(folder + "/20261126_103000_samples_pets.jsonl", "w") as file:
    for filter in (1, 2):
        for i in range(3):
            line = {"doc_id": i, "target": "cat", "filtered_resps": "dog", "input": "What is this?"}
            line.update(token_counts=[None], doc_hash="<PIL.Image at %d>" % os.getpid())
            line.update(exact_match=i % 2, mme={"question_id": 7, "score": 1.0}, other={"a": 1})
            if bad in line:
                del line[bad]
            if bad == "nan" and i == 1:
                line["exact_match"] = float("nan")
            if bad == "scores" and i == 1:
                line["exact_match"] = None
            file.write(json.dumps(line) + "\n")
    if bad == "utf8":
        file.flush()
        file.buffer.write(b'{"doc_id": 3, "input": "\xff"}\n')
    if bad == "long":
        file.write('{"doc_id": 3, "input": "' + "x" * (100 << 20) + '"}\n')
if bad == "none":
    os.unlink(file.name)
open(folder + "/20261126_103000_samples_more_samples_pets.jsonl", "w").close()
"""
CONFIG = samples_scene.CONFIG.replace(
    "  quiz: {kind",
    """\
  served: {kind: persistent, argv: [$PYTHON, $OUT/served.py], env_pass: [PYTHONPATH]}
  harness: {kind: command, argv: [$PYTHON, $OUT/harness.py], results: lm-eval}
  choices: {kind: command, argv: [$PYTHON, $OUT/choices.py], results: lm-eval}
  lmms: {kind: command, argv: [$PYTHON, $OUT/lmms.py], results: lmms-eval}
  quiz: {kind""",
).replace(
    "suites:\n",
    """\
suites:
  none: {evaluator: quiz}
  served: {evaluator: served, samples: true}
  choices: {evaluator: choices, samples: true, tasks: [{name: sky}]}
  lmms: {evaluator: lmms, samples: true, tasks: [{name: pets}]}
  groups: {evaluator: harness, samples: true, tasks: [{name: arc_easy, cluster: passage}]}
  no-groups: {evaluator: lmms, samples: true, tasks: [{name: pets, cluster: passage}]}
  texts:
    samples: true
    tasks:
      - name: held
        type: text_classification
        top_k: 2
        data: {format: tokens, tokens: $OUT/bert/tokens.npy, mask: $OUT/bert/mask.npy, labels: $OUT/bert/labels.npy}
  harness: {evaluator: harness, samples: true, tasks: [{name: arc}, {name: easy, source: arc_easy}]}
""",
).replace("  quick:\n", "  quick:\n    samples: true\n")


class SamplesTest(samples_scene.SamplesScene):
    config = CONFIG
    programs: ClassVar[Dict[str, str]] = {
        "served": SERVED, "harness": HARNESS, "choices": CHOICES, "lmms": LMMS,
    }  # fmt: skip

    def test_command_keeps_its_samples_once_with_digest_and_size(self) -> None:
        result = self.submit("once", 1, "quiz")
        header, items = self.kept("once/1/regular/quiz", "quiz")
        self.assertEqual(len(items), 400)
        self.assertEqual(header["suite_digest"], result["suite_digest"])
        folder = os.path.join(self.scene.out, "samples", "once/1/regular/quiz")
        self.assertEqual(os.listdir(folder), ["quiz.jsonl.gz"])  # No temporary file is left.
        size = os.path.getsize(os.path.join(folder, "quiz.jsonl.gz"))
        self.assertEqual(result["samples_bytes"], size)
        self.assertRegex(result["samples_digest"], "^[0-9a-f]{32}$")
        # The same evaluation of another run gives the same items.
        self.assertGreater(self.submit("again", 1, "quiz")["samples_bytes"], 0)
        first, second = (
            self.kept("once/1/regular/quiz", "quiz")[1],
            self.kept("again/1/regular/quiz", "quiz")[1],
        )
        self.assertEqual(first, second)

    def test_suite_without_samples_keeps_none_and_says_nothing_of_them(self) -> None:
        result = self.submit("plain", 1, "none")
        self.assertNotIn("samples_digest", result)
        self.assertFalse(os.path.exists(os.path.join(self.scene.out, "samples", "plain")))
        self.submit("plain", 1, "few")
        self.assertEqual(len(self.kept("plain/1/regular/few", "few")[1]), 5)

    def test_bad_samples_lose_no_result(self) -> None:
        wanted = {
            "twice": "the id 'q6' comes twice",
            "nan": "line 8: not JSON: invalid token near 'NaN'",
            "utf8": "line 401: not JSON: unable to decode byte 0xff",
            "long": "line 401: more than 8 MiB",
        }
        for number, (bad, said) in enumerate(wanted.items()):
            result = self.submit("bad", number, "quiz", bad=bad)
            self.assertIn("samples were not kept: ", result["note"])
            self.assertIn(said, result["note"])
            self.assertIn("acc", result["metrics"])
            folder = os.path.join(self.scene.out, "samples", f"bad/{number}/regular/quiz")
            self.assertEqual(os.listdir(folder) if os.path.isdir(folder) else [], [])

    def test_served_function_keeps_samples(self) -> None:
        self.submit("served", 1, "served")
        _, items = self.kept("served/1/regular/served", "served")
        self.assertEqual([item["id"] for item in items], [str(i) for i in range(3000)])
        self.assertEqual((items[7]["scores"], items[7]["tokens"]), ({"acc": 1}, 7))

    def test_served_samples_that_json_cannot_carry_lose_no_result(self) -> None:
        wanted = {
            "nan": "score 'acc' is not a finite number",
            "twice": "the id '6' comes twice",
            "list": "it is not a JSON object",
            "long": "sample 7 takes 104857",
            "object": "sample 7: a value is object, expected text or a number",
        }
        for number, (bad, said) in enumerate(wanted.items()):
            result = self.submit("odd", number, "served", bad=bad)
            self.assertIn("samples were not kept: ", result["note"], bad)
            self.assertIn(said, result["note"])
            self.assertEqual(result["metrics"], {"acc": 0.5})
        for step, (bad, output) in enumerate((("nul", "a\ufffdb\\u0000"), ("half", "a?b")), 10):
            self.assertEqual(self.submit("odd", step, "served", bad=bad)["note"], "")
            _, items = self.kept(f"odd/{step}/regular/served", "served")
            self.assertEqual((len(items), items[7]["output"]), (3000, output))

    def test_harness_samples_are_those_of_the_task_and_the_first_filter(self) -> None:
        self.submit("harness", 1, "harness")
        _, items = self.kept("harness/1/regular/harness", "arc")
        self.assertEqual(
            [item["id"] for item in items], [f"{i}-" + ("%064x" % i)[:16] for i in range(3)]
        )
        self.assertEqual(items[1]["scores"], {"acc,none": 1})
        self.assertEqual((items[1]["output"], items[1]["target"]), ("B", "A"))
        self.assertEqual(len(self.kept("harness/1/regular/harness", "easy")[1]), 4)

    def test_field_of_the_harness_names_the_cluster(self) -> None:
        self.submit("groups", 1, "groups")
        _, items = self.kept("groups/1/regular/groups", "arc_easy")
        self.assertEqual([item["cluster"] for item in items], ["0", "0", "1", "1"])
        result = self.submit("no-groups", 1, "no-groups")
        self.assertIn("samples were not kept: the doc of item '0-", result["note"])
        self.assertIn("has no field 'passage', which the task's cluster names", result["note"])
        self.assertEqual(result["metrics"]["exact_match,none"], 0.5)

    def test_choice_of_the_harness_is_shown_as_its_text(self) -> None:
        self.submit("choices", 1, "choices")
        _, items = self.kept("choices/1/regular/choices", "sky")
        self.assertEqual([item["output"] for item in items],
                         [" blue", '[["-4.5","False"],["-1.25","True"]]'])  # fmt: skip
        self.assertEqual([item["target"] for item in items], [" red", "0"])

    def test_samples_of_lmms_eval_have_the_names_of_the_metrics(self) -> None:
        self.submit("lmms", 1, "lmms")
        _, items = self.kept("lmms/1/regular/lmms", "pets")
        expected = [{"exact_match,none": i % 2, "mme,none": 1} for i in range(3)]
        self.assertEqual([item["scores"] for item in items], expected)
        self.assertEqual((items[1]["output"], items[1]["target"]), ("dog", "cat"))
        # An id does not depend on the address of an image.
        self.submit("lmms", 2, "lmms")
        other = self.kept("lmms/2/regular/lmms", "pets")[1]
        self.assertEqual([item["id"] for item in other], [item["id"] for item in items])

    def test_bad_lines_of_a_harness_lose_no_result(self) -> None:
        wanted = {
            "doc_id": "a line of the harness has no doc_id or input",
            "input": "a line of the harness has no doc_id or input",
            "nan": "line 2: not JSON: invalid token near 'NaN'",
            "scores": "has other scores than the first item",
            "utf8": "line 7: not JSON: unable to decode byte 0xff",
            "long": "line 7: more than 8 MiB",
            "none": "the harness wrote no *_samples_pets.jsonl, which --log_samples makes it do",
        }
        for number, (bad, said) in enumerate(wanted.items()):
            result = self.submit("bad-lines", number, "lmms", bad=bad)
            self.assertIn("samples were not kept: ", result["note"], bad)
            self.assertIn(said, result["note"])
            self.assertEqual(result["metrics"]["exact_match,none"], 0.5)

    def test_native_task_keeps_scores_that_give_its_metrics(self) -> None:
        result = self.submit("native", 1, "quick")
        header, items = self.kept("native/1/regular/quick", "digits")
        self.assertEqual(header["data_digest"], result["data_digest"])
        self.assertEqual(len(items), 1000)
        for name, value in result["metrics"].items():
            mean = sum(item["scores"][name] for item in items) / 1000
            self.assertTrue(abs(mean - value) <= 1e-9, f"{name}: {mean}, expected {value}")
        self.assertEqual(
            sum(item["output"] == item["target"] for item in items),
            result["metrics"]["accuracy"] * 1000,
        )

    def test_texts_keep_the_class_of_each(self) -> None:
        path = os.path.join(self.scene.out, "bert")
        shutil.copytree(os.path.join(os.path.dirname(DATA), "models", "bert"), path)
        done = self.scene.evalq("submit", path, "--run", "texts", "--step", "1", "--suite", "texts", "--wait", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        metrics = json.loads(done.stdout)["results"][-1]["metrics"]
        items = self.kept("texts/1/regular/texts", "held")[1]
        self.assertEqual(len(items), 40)
        for name, key in (("accuracy", "accuracy"), ("cross_entropy", "cross_entropy"), ("top2_accuracy", "top_k_accuracy")):
            mean = sum(item["scores"][key] for item in items) / 40
            self.assertTrue(abs(mean - metrics[name]) <= 1e-9, f"{name}: {mean}, expected {metrics[name]}")
        self.assertEqual(sum(item["output"] == item["target"] for item in items), metrics["accuracy"] * 40)


if __name__ == "__main__":
    unittest.main(verbosity=2)
