"""Samples from every kind of evaluator, and what is printed, compared and decided from them."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import unittest
import xml.dom.minidom
from typing import Any, Dict, List, Tuple

from samples_file import write_samples
from scene import NATIVE, PACKAGE, SceneTest

# A command that answers 400 questions. Step 2 has ten more right than step 1 and two fewer.
COMMAND = r"""
import json, os
job = json.load(open(os.environ["EVALQ_JOB"]))
step = job["step"]
bad = job["params"].get("bad", "")
folder = os.path.dirname(os.environ["EVALQ_RESULT"])
with open(os.path.join(folder, "samples.jsonl"), "w") as file:
    right = 0
    for i in range(10 if bad == "fewer" else 0, 400):
        is_right = i % 4 != 0 if step == 1 else (i % 4 != 0 or i < 40) and i not in (41, 42)
        right += is_right
        said = "yes" if is_right else "no \x1b[31m\u202e\u009b of step %d" % step
        scores = {"acc": float(is_right), "chars": i * 0.5 + (step == 3)}
        item = {"id": f"q{i}", "scores": scores, "target": "yes", "output": said}
        item["cluster"] = f"group {i // 4}"
        if not job["params"].get("clusters"):
            del item["cluster"]
        if bad == "twice" and i == 7:
            item["id"] = "q6"
        if bad == "nan" and i == 7:
            item["scores"]["acc"] = float("nan")
        file.write(json.dumps(item) + "\n")
    if bad == "utf8":
        file.flush()
        file.buffer.write(b'{"id": "\xff"}\n')
    if bad == "long":
        file.write('{"id": "long", "output": "' + "x" * (9 << 20) + '"}\n')
json.dump({"acc": right / 400, "n": 400}, open(os.environ["EVALQ_RESULT"], "w"))
"""

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

CONFIG = NATIVE.replace(
    "suites:",
    """
samples: {directory: $OUT/samples}
evaluators:
  quiz: {kind: command, argv: [$PYTHON, $OUT/quiz.py]}
  served: {kind: persistent, argv: [$PYTHON, $OUT/served.py], env_pass: [PYTHONPATH]}
  harness: {kind: command, argv: [$PYTHON, $OUT/harness.py], results: lm-eval}
  choices: {kind: command, argv: [$PYTHON, $OUT/choices.py], results: lm-eval}
  lmms: {kind: command, argv: [$PYTHON, $OUT/lmms.py], results: lmms-eval}
suites:
  quiz: {evaluator: quiz, samples: true}
  few: {evaluator: quiz, samples: {limit: 5}}
  none: {evaluator: quiz}
  served: {evaluator: served, samples: true}
  choices: {evaluator: choices, samples: true, tasks: [{name: sky}]}
  lmms: {evaluator: lmms, samples: true, tasks: [{name: pets}]}
  groups: {evaluator: harness, samples: true, tasks: [{name: arc_easy, cluster: passage}]}
  no-groups: {evaluator: lmms, samples: true, tasks: [{name: pets, cluster: passage}]}
  harness: {evaluator: harness, samples: true, tasks: [{name: arc}, {name: easy, source: arc_easy}]}
""",
).replace("  quick:\n", "  quick:\n    samples: true\n")


class SamplesTest(SceneTest):
    config = CONFIG
    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        programs = {"quiz": COMMAND, "served": SERVED, "harness": HARNESS}
        programs.update(choices=CHOICES, lmms=LMMS)
        for name, text in programs.items():
            with open(os.path.join(cls.scene.out, name + ".py"), "w", encoding="utf-8") as file:
                file.write(text)
        cls.scene.variables["PYTHONPATH"] = PACKAGE
        cls.scene.start_worker()

    def submit(self, run: str, step: int, suite: str, **params: str) -> Dict[str, Any]:
        """Evaluates a checkpoint and returns its only or last result."""
        path = self.scene.checkpoint(f"{run}-{step}.safetensors")
        words = [word for key, value in params.items() for word in ("--param", f"{key}={value}")]
        words += ["--run", run, "--step", str(step), "--suite", suite, "--wait", "--json"]
        done = self.scene.evalq("submit", path, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(json.loads(done.stdout)["results"][-1])

    def kept(self, job: str, task: str) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
        path = os.path.join(self.scene.out, "samples", job, task + ".jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header, *items, end = [json.loads(line) for line in file]
        self.assertEqual(end["evalq_samples_end"], len(items))
        return header, items

    def ok(self, *words: str) -> Any:
        done = self.scene.evalq(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

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

    def test_samples_are_listed_and_filtered(self) -> None:
        self.submit("list", 1, "quiz")
        words = ("samples", "list", "--step", "1", "--task", "quiz")
        self.assertEqual(len(self.ok(*words)["samples"]), 400)
        self.assertEqual(len(self.ok(*words, "--wrong")["samples"]), 100)
        self.assertEqual(len(self.ok(*words, "--right", "--limit", "7")["samples"]), 7)
        self.assertEqual(len(self.ok(*words, "--grep", "of step 1")["samples"]), 100)
        for more in ((), ("--plain",), ("--json",)):
            printed = self.scene.evalq(*words, "--wrong", "--limit", "3", *more).stdout
            bad = [letter for letter in printed if ord(letter) < 32 and letter != "\n"]
            self.assertEqual(bad + [letter for letter in printed if letter in "\x9b\u202e"], [])
        refused = self.scene.evalq(*words, "--wrong", "--metric", "chars")
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("neither right nor wrong", refused.stderr)
        missing = self.scene.evalq("samples", "list", "--step", "9")
        self.assertEqual(missing.returncode, 3)
        self.assertIn("has no samples", missing.stderr)

    def test_diff_lists_the_items_that_flipped(self) -> None:
        self.submit("flip", 1, "quiz")
        self.submit("flip", 2, "quiz")
        found = self.ok("diff", "flip@1", "flip@2", "--task", "quiz")
        self.assertEqual((found["better"], found["worse"], found["common"]), (10, 2, 400))
        self.assertEqual(
            {item["id"] for item in found["items"] if not item["better"]}, {"q41", "q42"}
        )
        shown = self.scene.evalq("diff", "flip@1", "flip@2", "--task", "quiz").stdout
        self.assertIn(
            "q41  acc 1 -> 0\n  target  yes\n  A       yes\n  B       no \\x1b[31m", shown
        )

    def test_compare_prints_paired_numbers(self) -> None:
        for step in (1, 2, 3):
            self.submit("pair", step, "quiz")
        metrics = {
            row["metric"]: row
            for row in self.ok("compare", "pair@1", "pair@2", "--task", "quiz")["metrics"]
        }
        acc = metrics["acc"]
        self.assertEqual(
            (acc["method"], acc["wins"], acc["losses"], acc["ties"], acc["items"]),
            ("McNemar", 10, 2, 388, 400),
        )
        self.assertTrue(abs(acc["difference"] - 0.02) <= 1e-12)
        self.assertTrue(abs(acc["p"] - 0.03857421875) <= 1e-12)  # 2 P(X <= 2), 12 trials.
        self.assertTrue(abs(acc["p_corrected"] - 2 * acc["p"]) <= 1e-12)  # Two scores.
        self.assertEqual((metrics["chars"]["difference"], metrics["chars"]["p"]), (0, 1))
        shown = self.scene.evalq("compare", "pair@1", "pair@2", "--task", "quiz")
        self.assertIn("corrected by Holm's method for 2 comparisons", shown.stderr)
        self.assertIn("10/2/388", shown.stdout)
        # The table of runs is as it was.
        self.assertEqual(self.scene.evalq("compare", "pair", "pair").returncode, 0)

    def test_compare_of_one_run_finds_the_last_significant_change(self) -> None:
        for step in (1, 2, 3):
            self.submit("steps", step, "quiz")
        found = self.ok("compare", "steps")
        self.assertEqual({row["run"] for row in found["metrics"]}, {"steps"})
        rows = {row["metric"]: row for row in found["steps"]}
        acc, chars = rows["acc"], rows["chars"]
        # Steps 2 and 3 have the same answers; step 1 has 8 fewer right.
        self.assertEqual((acc["last_step"], acc["best_step"], acc["best"]), (3, 2, 0.77))
        self.assertEqual((acc["best_differs"], acc["best_p_corrected"]), (False, 1))
        pair = self.ok("compare", "steps@1", "steps@3", "--metric", "acc")["metrics"][0]
        # Holm: p is the third smallest of four, and the two of `chars` are 0.
        self.assertEqual(found["compared"], 4)
        self.assertIsNone(acc["last_significant_change"])
        self.assertTrue(abs(pair["p"] - 0.03857421875) <= 1e-12)
        alone = self.ok("compare", "steps", "--metric", "acc")
        self.assertEqual((alone["compared"], len(alone["steps"])), (2, 1))
        change = self.ok("compare", "steps", "--metric", "eval/quiz/chars")["steps"][0]
        self.assertEqual(change["metric"], "chars")
        change = change["last_significant_change"]
        self.assertEqual((change["from_step"], change["to_step"]), (2, 3))
        self.assertTrue(abs(change["difference"] - 1) <= 1e-12)
        self.assertLess(change["p_corrected"], 0.05)
        self.assertEqual((chars["best_step"], chars["best_differs"]), (3, False))
        shown = self.scene.evalq("compare", "steps").stdout
        self.assertRegex(shown, r"quiz/acc +3 +0.77 +2 +0.77 +no \(p 1\) +none in 3 steps")
        self.assertRegex(shown, r"quiz/chars +3 .* it is the last +2 to 3: \+1 \(p 0\)")
        # Several runs have no such table.
        self.assertNotIn("steps", self.ok("compare", "steps", "steps"))

    def test_compare_of_one_run_leaves_out_other_suites_and_names_bad_files(self) -> None:
        for step in (1, 2, 3):
            self.submit("mixed", step, "quiz")
        path = os.path.join(self.scene.out, "samples", "mixed/1/regular/quiz/quiz.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header, *lines, _ = file.readlines()
        other = json.dumps({**json.loads(header), "suite_digest": "0" * 32}) + "\n"
        write_samples(path, other, lines)
        found = self.ok("compare", "mixed")
        self.assertEqual((found["left_out"], found["compared"]), (1, 2))
        self.assertIn("1 samples files were left out", self.scene.evalq("compare", "mixed").stderr)
        with open(path.replace("mixed/1/", "mixed/2/"), "rb") as binary:
            second = binary.read()
        for data in (b"no gzip", second):  # Damaged, and of another job.
            with open(path, "wb") as binary:
                binary.write(data)
            done = self.scene.evalq("compare", "mixed")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("eval/quiz/acc", done.stdout)  # The results are there all the same.
            self.assertIn(path, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_compare_refuses_samples_of_other_suites_and_data(self) -> None:
        self.submit("other", 1, "quiz")
        self.submit("other", 2, "quiz")
        path = os.path.join(self.scene.out, "samples", "other/2/regular/quiz/quiz.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            header, *lines, end = file.readlines()

        def refused(said: str) -> None:
            done = self.scene.evalq("compare", "other@1", "other@2")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            gate = self.scene.evalq(
                "gate", "other@2", "--against", "other@1", "--no-worse-than", "0.1"
            )
            self.assertEqual(gate.returncode, 9, gate.stderr)

        def write(first: str, rest: List[str]) -> None:
            write_samples(path, first, rest)

        write(json.dumps({**json.loads(header), "suite_digest": "0" * 32}) + "\n", lines)
        refused("different definitions of the suite")
        write(json.dumps({**json.loads(header), "data_digest": "0" * 32}) + "\n", lines)
        refused("different data")
        write(header, lines + [lines[3]])
        refused("the id 'q3' comes twice")
        write(
            header, [lines[0].replace('"acc":1', '"acc":"NaN"').replace('"acc":0', '"acc":"NaN"')]
        )
        refused("line 2: score 'acc' is not a finite number")
        write(header, ["x" * (9 << 20)])
        refused("more than 8 MiB")
        with gzip.open(path, "wb") as binary:
            binary.write(header.encode() + b'{"id": "\xff", "scores": {"acc": 1}}\n')
        refused("line 2: not JSON: unable to decode byte 0xff")
        with gzip.open(path, "wt", encoding="utf-8") as text:
            text.writelines([header, lines[0].replace('"acc":1', '"acc":0'), *lines[1:], end])
        refused("was changed after evalq wrote it")
        shutil.copy(path.replace("other/2", "other/1"), path)
        refused("holds the samples of task quiz of job other/1/regular/quiz")
        write(header, lines)
        with open(path, "rb") as whole:
            data = whole.read()
        with open(path, "wb") as part:
            part.write(data[: len(data) // 2])
        refused("is truncated after line")

    def test_gate_answers_with_its_exit_code(self) -> None:
        for step in (1, 2, 3):
            self.submit("gate", step, "quiz")
        junit = os.path.join(self.scene.directory, "junit.xml")

        def gate(candidate: str, against: str, margin: str, *more: str) -> Any:
            done = self.scene.evalq(
                "gate",
                candidate,
                "--against",
                against,
                "--no-worse-than",
                margin,
                "--task",
                "quiz",
                "--junit",
                junit,
                *more,
            )
            xml.dom.minidom.parse(junit)
            return done

        passed = gate("gate@2", "gate@1", "0.01")
        self.assertEqual(
            (passed.returncode, passed.stdout[:10]),
            (0, "not worse:"),
            passed.stdout + passed.stderr,
        )
        worse = gate("gate@1", "gate@2", "0.001")
        self.assertEqual((worse.returncode, worse.stdout[:6]), (1, "worse:"), worse.stdout)
        with open(junit, encoding="utf-8") as file:
            self.assertIn("<failure message=", file.read())
        few = gate("gate@1", "gate@1", "0.001")
        self.assertEqual(few.returncode, 3, few.stdout)
        self.assertRegex(few.stdout, "^too few items: .*; about [0-9]+ are needed\n$")
        answer = json.loads(gate("gate@2", "gate@1", "0.01", "--json").stdout)
        looser = json.loads(
            gate("gate@2", "gate@1", "0.01", "--json", "--confidence", "0.8").stdout
        )
        self.assertGreater(looser["bound"], answer["bound"])
        self.assertEqual(
            (answer["verdict"], answer["items"], answer["method"]), ("not_worse", 400, "McNemar")
        )
        for bad in ("x", "-1"):
            self.assertNotIn(gate("gate@2", "gate@1", bad).returncode, (0, 1, 3))
        # An unknown score is no answer, although "not found" has the exit code 3 elsewhere.
        unknown = gate("gate@2", "gate@1", "0.01", "--metric", "nothing")
        self.assertEqual(unknown.returncode, 9, unknown.stderr)
        # A candidate that lacks items cannot pass.
        self.submit("gate", 5, "quiz", bad="fewer")
        lacks = gate("gate@5", "gate@1", "0.01")
        self.assertEqual(lacks.returncode, 9, lacks.stdout)
        self.assertIn("10 items are only in the baseline and 0 only in the candidate", lacks.stderr)

    def test_gate_waits_for_the_job(self) -> None:
        self.submit("wait", 1, "quiz")
        path = self.scene.checkpoint("wait-2.safetensors")
        self.assertEqual(
            self.scene.evalq(
                "submit", path, "--run", "wait", "--step", "2", "--suite", "quiz"
            ).returncode,
            0,
        )
        done = self.scene.evalq(
            "gate", "wait@2", "--against", "wait@1", "--no-worse-than", "0.01", "--suite", "quiz"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        unknown = self.scene.evalq(
            "gate", "wait@3", "--against", "wait@1", "--no-worse-than", "0.01", "--suite", "quiz"
        )
        self.assertEqual(unknown.returncode, 9, unknown.stderr)

    def test_forget_removes_the_samples_of_the_run_alone(self) -> None:
        self.submit("gone", 1, "quiz")
        self.submit("gone-not", 1, "quiz")
        folder = os.path.join(self.scene.out, "samples")
        with open(
            os.path.join(folder, "gone/1/regular/quiz/quiz.jsonl.gz.x1y2z3"), "w", encoding="utf-8"
        ):
            pass  # A worker died while it wrote.
        self.assertEqual(self.ok("forget", "gone", "--yes")["samples"], 2)
        self.assertFalse(os.path.exists(os.path.join(folder, "gone")))
        self.assertEqual(len(self.kept("gone-not/1/regular/quiz", "quiz")[1]), 400)

    def test_gc_removes_what_killed_workers_left_and_old_runs(self) -> None:
        self.submit("known", 1, "quiz")
        folder = os.path.join(self.scene.out, "samples")
        job = os.path.join(folder, "known/1/regular/quiz")
        shutil.copytree(os.path.join(folder, "known"), os.path.join(folder, "unknown"))
        shutil.copytree(os.path.join(folder, "known"), os.path.join(folder, "unknown-new"))
        for run in ("known", "unknown"):  # Both are old, but the queue knows one.
            for place, _, names in os.walk(os.path.join(folder, run)):
                for name in names:
                    os.utime(os.path.join(place, name), (1, 1))
        left = os.path.join(job, "quiz.jsonl.gz.x1y2z3")
        written = os.path.join(job, "quiz.jsonl.gz.a1b2c3")
        for path in (left, written):
            with open(path, "wb"):
                pass
        with open(written, "r+b") as writer:
            fcntl.flock(writer, fcntl.LOCK_EX)
            self.assertEqual(self.ok("gc")["samples_removed"], 2)
        self.assertEqual(sorted(os.listdir(job)), ["quiz.jsonl.gz", "quiz.jsonl.gz.a1b2c3"])
        self.assertFalse(os.path.exists(os.path.join(folder, "unknown")))
        self.assertEqual(len(self.kept("unknown-new/1/regular/quiz", "quiz")[1]), 400)

    def test_keep_removes_the_samples_of_the_checkpoints_it_removes(self) -> None:
        for step in (1, 2, 3):
            self.submit("keep", step, "quiz")
        words = ("keep", "keep", "--top", "1", "--last", "1", "--metric", "eval/quiz/acc")
        shown = self.ok(*words, "--own", self.scene.out, "--dry-run")
        self.assertEqual((shown["removed"], shown["samples"]), (0, 0))
        done = self.ok(*words, "--own", self.scene.out, "--yes")
        self.assertEqual((done["removed"], done["samples"]), (1, 1))
        left = os.listdir(os.path.join(self.scene.out, "samples", "keep"))
        self.assertEqual(sorted(left), ["2", "3"])

    def test_best_names_the_earliest_step_that_is_not_worse(self) -> None:
        for step in (1, 2, 3):
            self.submit(
                "best", step, "quiz"
            )  # Steps 2 and 3 have the same answers, step 1 has 8 fewer right.
        found = self.ok("best", "best", "acc", "--significant", "--task", "quiz")
        self.assertEqual((found["step"], found["best_step"], found["value"]), (2, 2, 0.77))
        found = self.ok("best", "best", "chars", "--significant", "--task", "quiz")
        self.assertEqual((found["step"], found["best_step"], found["compared"]), (3, 3, 2))
        shown = self.scene.evalq("best", "best", "--significant", "--task", "quiz").stdout
        self.assertEqual(shown, "step 2  acc 0.77  best; all 1 earlier steps are worse\n")
        # Ten items cannot tell the steps apart.
        for step in (1, 2):
            self.submit("best-few", step, "few")
        found = self.ok("best", "best-few", "--significant")
        self.assertEqual((found["step"], found["best_step"]), (1, 2))

    def test_clusters_widen_the_interval(self) -> None:
        for step in (1, 2):
            self.submit("cluster", step, "quiz", clusters="yes")
        metrics = {
            row["metric"]: row for row in self.ok("compare", "cluster@1", "cluster@2")["metrics"]
        }
        self.assertEqual((metrics["acc"]["method"], metrics["acc"]["groups"]), ("t", 100))


if __name__ == "__main__":
    unittest.main(verbosity=2)
