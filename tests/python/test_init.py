"""Tests `evalq init`: with each variant's configuration, `evalq up` yields a metric."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List

from scene import BIN, PACKAGE, SOURCE

TEXT = os.path.join(SOURCE, "tests", "data", "tinyshakespeare.txt")
CHECKPOINT = os.path.join(SOURCE, "tests", "data", "models", "gpt2", "model.safetensors")


class InitTest(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-init-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("EVALQ_")}
        # The configuration's python3 is this interpreter, and it finds the package.
        os.makedirs(self.path("bin"))
        os.symlink(sys.executable, self.path("bin/python3"))
        self.environment.update(
            PATH=f"{self.path('bin')}:{BIN}:{os.environ['PATH']}",
            PYTHONPATH=PACKAGE,
            XDG_STATE_HOME=self.path("state"),
        )

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def write(self, name: str, text: str) -> None:
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name: str) -> str:
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def evalq(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["evalq", *words], cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )

    def init(self, *words: str) -> str:
        """Runs evalq and returns its standard error."""
        done = self.evalq("init", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn("wrote 'evalq.yaml'", done.stderr)
        self.assertIn("evalq up -- python train.py", done.stderr)
        return done.stderr

    def metrics(self, *command: str) -> List[Dict[str, Any]]:
        """Returns the JSONL results after `evalq up -- COMMAND`."""
        done = self.evalq("up", "--workers", "1", "--", *command)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines: List[Dict[str, Any]] = []
        for folder, _, names in os.walk(self.directory):
            for name in names:
                if name.endswith(".jsonl"):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        lines += [json.loads(line) for line in file]
        found = [line for line in lines if line["task"]]
        self.assertTrue(found, done.stdout + done.stderr)
        return found

    def save(self, *steps: int) -> None:
        os.makedirs(self.path("out"), exist_ok=True)
        for step in steps:
            shutil.copyfile(CHECKPOINT, self.path(f"out/step-{step}.safetensors"))

    def scan(self) -> List[Dict[str, Any]]:
        return self.metrics("evalq", "scan", "out", "--run", "out", "--suite", "eval")

    def test_without_an_option_it_measures_what_it_found(self) -> None:
        self.save(100, 200)
        said = self.init()
        self.assertIn("found 2 checkpoints in 'out'", said)
        self.assertIn("evalq up -- evalq scan 'out' --run out --suite eval", said)
        found = self.scan()
        self.assertEqual({line["step"] for line in found}, {100, 200})
        size = os.path.getsize(CHECKPOINT)
        self.assertEqual({line["metrics"]["bytes"] for line in found}, {size})

    def test_tells_the_output_directory_of_a_trainer(self) -> None:
        os.makedirs(self.path("runs/a/checkpoint-500"))
        self.write("runs/a/checkpoint-500/trainer_state.json", "{}")
        said = self.init()
        self.assertIn("found 1 checkpoint in 'runs/a', written by a Trainer", said)
        self.assertIn("--run a ", said)

    def test_names_an_installed_harness(self) -> None:
        self.assertNotIn("--lm-eval", self.init())
        os.remove(self.path("evalq.yaml"))
        shutil.copyfile("/bin/true", self.path("bin/lm_eval"))
        os.chmod(self.path("bin/lm_eval"), 0o755)
        self.assertIn("`evalq init --lm-eval hellaswag,arc_easy`", self.init())

    def test_command(self) -> None:
        self.write("eval.sh", '#!/bin/sh\necho "{\\"loss\\": $1}" >"$EVALQ_RESULT"\n')
        os.chmod(self.path("eval.sh"), 0o755)
        self.init("--command", "./eval.sh 0.5")
        self.save(100)
        self.assertEqual(self.scan()[0]["metrics"]["loss"], 0.5)

    def test_command_with_a_pipe_goes_to_a_shell(self) -> None:
        self.init("--command", "echo '{\"loss\": 0.25}' | cat >\"$EVALQ_RESULT\"")
        self.save(100)
        self.assertEqual(self.scan()[0]["metrics"]["loss"], 0.25)

    def test_function(self) -> None:
        self.write("my_eval.py", "import os\n\ndef evaluate(checkpoint, task, report):\n    return {'bytes': os.path.getsize(checkpoint.path)}\n")
        self.init("--function", "my_eval:evaluate")
        self.save(100)
        self.assertEqual(self.scan()[0]["metrics"]["bytes"], os.path.getsize(CHECKPOINT))

    def test_function_of_a_path_that_returns_a_number(self) -> None:
        self.write("my_eval.py", "def size(path):\n    with open(path, 'rb') as file:\n        return len(file.read())\n")
        self.init("--function", "my_eval:size")
        self.save(100)
        self.assertEqual(self.scan()[0]["metrics"]["size"], os.path.getsize(CHECKPOINT))

    def test_the_name_of_a_file_is_no_module(self) -> None:
        done = self.evalq("init", "--function", "my_eval.py:size")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'my_eval.py:size' is not MODULE:FUNCTION", done.stderr)

    def test_lightning(self) -> None:
        self.assertIn("limit_val_batches=0", self.init("--lightning", "my_run:make_parts"))
        self.assertIn('argv: [python3, -m, evalq.serve_lightning, "my_run:make_parts"]', self.read("evalq.yaml"))

    def test_without_an_option_it_takes_the_trainer_of_the_script(self) -> None:
        for name, text, option, words in (
            ("train.py", "from transformers import Trainer\ntrainer = Trainer()\n", "--trainer", "a Trainer of Transformers"),
            ("sft.py", "import trl\ntrl.SFTTrainer(1)\n", "--trainer", "a Trainer of Transformers"),
            ("lit.py", "import transformers\nimport lightning.pytorch as pl\npl.Trainer()\n", "--lightning", "Lightning"),
        ):
            function = "make_validation" if option == "--lightning" else "make_trainer"
            value = f"{name[:-3]}:{function}"
            self.init(option, value)
            wanted = self.read("evalq.yaml")
            for lacks in (True, False):
                os.remove(self.path("evalq.yaml"))
                self.write(name, text + ("" if lacks else f"def {function}():\n    pass\n"))
                done = self.evalq("init")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.read("evalq.yaml"), wanted)
                self.assertIn(f"'{name}' uses {words}, so the suite evaluates with what its function {function}() returns", done.stderr)
                self.assertEqual(f"    def {function}():\n" in done.stderr, lacks, done.stderr)
                self.assertIn(f"evalq up -- python {name}\n", done.stderr)
            os.remove(self.path("evalq.yaml"))
            os.remove(self.path(name))

    def test_of_several_scripts_it_takes_the_one_with_the_function(self) -> None:
        self.write("a.py", "from transformers import Trainer\nTrainer()\n")
        self.write("b.py", "from transformers import Trainer\nTrainer()\n")
        done = self.evalq("init")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("'a.py' and 'b.py' both use a Trainer: choose one, as in `evalq init --trainer a:make_trainer`", done.stderr)
        self.assertFalse(os.path.exists(self.path("evalq.yaml")))
        self.write("b.py", "from transformers import Trainer\ndef make_trainer():\n    return Trainer()\n")
        done = self.evalq("init")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"b:make_trainer"', self.read("evalq.yaml"))

    def test_files_that_only_resemble_a_trainer_are_left_out(self) -> None:
        self.write("model.py", "from transformers import AutoModel\n")  # It makes no Trainer.
        self.write("own.py", "# import transformers\nimport transformers_extra\nimport lightning_fabric\nTrainer()\n")
        self.write("not-a-module.py", "import transformers\nTrainer()\n")
        os.mkfifo(self.path("pipe.py"))
        self.init()
        self.assertIn("du -sb", self.read("evalq.yaml"))

    def test_perplexity(self) -> None:
        with open(TEXT, encoding="utf-8") as file:
            self.write("heldout.txt", file.read()[-4096:])
        self.init("--perplexity", "heldout.txt")
        found = self.metrics("train_gpt", "--text", TEXT, "--out", "out", "--run", "small", "--suites", "eval", "--steps", "4", "--every", "2")
        self.assertEqual({line["step"] for line in found}, {2, 4})
        self.assertTrue(all(1 < line["metrics"]["perplexity"] < 1000 for line in found), found)

    def test_never_changes_a_file_and_prints_what_to_add(self) -> None:
        self.write("evalq.yaml", "roots: {mine: .}\n")
        done = self.evalq("init", "--lm-eval", "hellaswag,arc_easy")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("'evalq.yaml' exists and was not changed", done.stderr)
        self.assertIn('- {name: "arc_easy"}', done.stdout)
        self.assertEqual(self.read("evalq.yaml"), "roots: {mine: .}\n")

    def test_refuses_what_is_not_understood(self) -> None:
        for words, said in (
            (["--trainer", "my_run.py"], "is not MODULE:FUNCTION"),
            (["--perplexity", "nowhere.txt"], "there is no text file 'nowhere.txt'"),
            (["--lm-eval", ","], "names no task"),
            (["--command", " "], "names no program"),
            (["--command", "a", "--lm-eval", "b"], "exclude each other"),
        ):
            done = self.evalq("init", *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertFalse(os.path.exists(self.path("evalq.yaml")))

    def test_up_without_a_configuration_names_init(self) -> None:
        done = self.evalq("up", "--", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("there is no evalq.yaml here, so nothing is evaluated: `evalq init` writes one", done.stderr)


if __name__ == "__main__":
    unittest.main()
