"""`evalq suite add` writes an evaluator and a suite into evalq.yaml, and changes no other byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from scene import BIN, PACKAGE

# The part of lm-evaluation-harness that is asked for its tasks.
LM_EVAL = """
class TaskManager:
    all_tasks = ["arc_easy", "gsm8k", "ifeval"]
"""

MINE = """# My evaluations.
roots: {mine: .}   # Two spaces stay.
suites:
    quick: {evaluator: size}      # Mine.

    # The last remark on suites.

evaluators:
  size:
    kind: command
    argv: [sh, -c, "echo {} > $EVALQ_RESULT"]
worker: {slots: 1}
"""

ADDED = """# My evaluations.
roots: {mine: .}   # Two spaces stay.
suites:
    quick: {evaluator: size}      # Mine.
    gsm8k:
      evaluator: vllm
      harness: {kind: lm-eval, tasks: ["gsm8k"]}

    # The last remark on suites.

evaluators:
  size:
    kind: command
    argv: [sh, -c, "echo {} > $EVALQ_RESULT"]
  vllm:
    kind: model_server
    server: vllm
    env_pass: [PYTHONPATH, "HF_*"] # Other variables are not passed on.
worker: {slots: 1}
"""


class SuiteAddTest(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-suite-")
        self.addCleanup(shutil.rmtree, self.directory)
        os.makedirs(self.path("bin"))
        os.symlink(sys.executable, self.path("bin/python3"))
        os.makedirs(self.path("package/lm_eval"))
        self.write("package/lm_eval/__init__.py", "")
        self.write("package/lm_eval/tasks.py", LM_EVAL)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("EVALQ_")
        }
        self.environment.update(
            PATH=f"{self.path('bin')}:{BIN}:{os.environ['PATH']}",
            PYTHONPATH=f"{PACKAGE}:{self.path('package')}",
        )

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def write(self, name: str, text: str) -> None:
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self) -> str:
        with open(self.path("evalq.yaml"), encoding="utf-8") as file:
            return file.read()

    def add(self, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            ["evalq", "suite", "add", *words],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def check_file(self, suite: str) -> None:
        """The file can be read, and has the suite."""
        self.assertIn(
            f"has a suite '{suite}'; --name gives another name",
            self.add("lm-eval:gsm8k", "--name", suite, code=2).stderr,
        )

    def test_a_new_file(self) -> None:
        python = self.path("bin/python3")
        words = (
            "--server",
            "vllm",
            "--name",
            "math",
            "--python",
            "/opt/vllm/bin/python",
            "--harness-python",
            python,
        )
        said = self.add("lm-eval:gsm8k,ifeval", *words).stderr
        self.assertIn("added the suite 'math' to 'evalq.yaml'", said)
        text = self.read()
        self.assertIn(
            "  math:\n    evaluator: vllm\n"
            '    harness: {kind: lm-eval, tasks: ["gsm8k", "ifeval"]}\n',
            text,
        )
        self.assertIn(
            '    server: vllm\n    python: "/opt/vllm/bin/python"\n'
            f'    harness_python: "{python}"\n',
            text,
        )
        self.assertIn("roots: {project: .}", text)
        self.check_file("math")

    def test_all_other_bytes_stay(self) -> None:
        self.write("evalq.yaml", MINE)
        os.chmod(self.path("evalq.yaml"), 0o640)
        self.add("lm-eval:gsm8k")
        self.assertEqual(self.read(), ADDED)
        self.assertEqual(os.stat(self.path("evalq.yaml")).st_mode & 0o777, 0o640)
        self.check_file("gsm8k")

    def test_a_second_suite_shares_the_evaluator(self) -> None:
        self.write(
            "evalq.yaml", MINE.replace("\nworker: {slots: 1}\n", "")
        )  # No newline at its end.
        self.add("lm-eval:gsm8k")
        self.add("lm-eval:arc_easy")
        text = self.read()
        self.assertEqual((text.count("model_server"), text.count("evaluator: vllm")), (1, 2))
        self.check_file("arc_easy")
        self.add("lm-eval:gsm8k", "--server", "sglang", "--name", "other")
        self.assertIn("    server: sglang\n", self.read())

    def test_a_typo_names_the_nearest_task(self) -> None:
        self.write("evalq.yaml", MINE)
        self.assertIn(
            "lm-eval has no task 'gsm9k', did you mean 'gsm8k'?",
            self.add("lm-eval:gsm9k", code=3).stderr,
        )
        self.assertIn(
            "evalq has no harness 'lm-evl', did you mean 'lm-eval'?",
            self.add("lm-evl:gsm8k", code=3).stderr,
        )
        shutil.rmtree(self.path("package"))
        self.assertRegex(
            self.add("lm-eval:gsm8k", code=1).stderr,
            "does not have the harness lm-eval: No module named 'lm_eval'",
        )
        self.assertEqual(self.read(), MINE)

    def test_what_cannot_be_added_is_printed(self) -> None:
        for text, why in (
            (MINE + "x: [\n", "evalq.yaml"),
            (
                "evaluators: {size: {kind: command, argv: [x]}}\n"
                "suites: {quick: {evaluator: size}}\n",
                "'evaluators' is not written as one entry per line",
            ),
        ):
            self.write("evalq.yaml", text)
            done = self.add("lm-eval:gsm8k", code=8)
            self.assertIn(why, done.stderr)
            self.assertEqual(self.read(), text)
        self.assertIn("  gsm8k:\n    evaluator: vllm\n", done.stdout)
        self.assertEqual(
            [name for name in os.listdir(self.directory) if name.startswith("evalq.yaml.")], []
        )

    def test_wrong_use(self) -> None:
        for words, said in (
            (["gsm8k"], "is not HARNESS:TASK"),
            (["lm-eval:,"], "names no task"),
            (["lm-eval:a", "--name", "a b"], "a b"),
        ):
            self.assertIn(said, self.add(*words, code=2).stderr)
        self.assertFalse(os.path.exists(self.path("evalq.yaml")))


if __name__ == "__main__":
    unittest.main()
