"""What is printed, compared and decided from samples, and what removes them."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import unittest
import xml.dom.minidom
from typing import Any, List

from samples_file import write_samples
from samples_scene import SamplesScene


class SamplesCompareTest(SamplesScene):
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
