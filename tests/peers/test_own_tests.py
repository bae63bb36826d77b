"""Transformers' own tests of trainer callbacks, with an EvalqCallback in every Trainer.

They are in no package: EVALQ_TRANSFORMERS_SOURCE names a checkout of the installed version, else the tag's files are
fetched with git. Not to be had: not run.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Dict

from peers import HERE, StackTest, needs

needs("torch", "transformers", "accelerate")

REPOSITORY = "https://github.com/huggingface/transformers"
# What these say is what evalq is for: they expect the Trainer to evaluate between its steps.
SYNCHRONOUS = {"TrainerCallbackTest.test_event_flow"}


def source() -> str:
    """A directory with tests/trainer."""
    given = os.environ.get("EVALQ_TRANSFORMERS_SOURCE")
    if given:
        return given
    import transformers

    folder = tempfile.mkdtemp(prefix="evalq-transformers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    clone = ["git", "clone", "--quiet", "--depth", "1", "--filter=blob:none", "--sparse"]
    clone += ["--branch", "v" + transformers.__version__, REPOSITORY, folder]
    fetched = subprocess.run(clone, capture_output=True, check=False, timeout=300, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    if fetched.returncode == 0:
        chosen = ["git", "-C", folder, "sparse-checkout", "set", "tests/trainer", "tests/fixtures"]
        fetched = subprocess.run(chosen, capture_output=True, check=False, timeout=300)
    if fetched.returncode != 0:
        print("not run: " + (fetched.stderr.decode(errors="replace").strip().splitlines() or ["git failed"])[-1])
        raise SystemExit(77)
    return folder


SOURCE = source()


class OwnTest(StackTest):
    def outcomes(self, *words: str) -> Dict[str, str]:
        argv = [sys.executable, "-W", "ignore", os.path.join(HERE, "own_tests.py"), SOURCE, *words]
        done = subprocess.run(
            argv, cwd=self.stack.directory, env=self.stack.environment(EVALQ_SUITES="fixed"), capture_output=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-3000:])
        found: Dict[str, str] = json.loads(done.stdout)
        return found

    def test_they_pass_as_they_do_without(self) -> None:
        without, installed = self.outcomes(), self.outcomes("with")
        if not any(outcome == "passed" for outcome in without.values()):
            self.skipTest("without evalq none passes: " + str(without)[:500])
        for name, outcomes in (("without", without), ("with", installed)):
            print(f"{name}: {sum(outcome == 'passed' for outcome in outcomes.values())} of {len(outcomes)} passed")
        for name in [name for name, outcome in without.items() if outcome != "passed"]:
            print(f"{name}: without {without[name]}, with {installed.get(name)}")
        worse = {name: installed.get(name) for name, outcome in without.items() if outcome == "passed" != installed.get(name)}
        for name, outcome in worse.items():
            print(f"{name}: {outcome}")
        self.assertLessEqual(set(worse), SYNCHRONOUS, worse)


if __name__ == "__main__":
    unittest.main(verbosity=2)
