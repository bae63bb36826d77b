"""Every example of docs/lightning.md, as it stands there, with the configuration that stands there."""

from __future__ import annotations

import os
import re
import sys
import unittest
from typing import List

from peers import HERE, PACKAGE, StackTest, Training, needs

needs("torch", "lightning", "pytorch_lightning")

PAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs", "lightning.md")

# The reader's own module and data, under the names that the page uses.
MY_RUN = f"""
import os, sys
sys.path.insert(0, {HERE!r})
from tiny_lightning import Regression as MyModule, data, make_trainer as Trainer
from torch.utils.data import DataLoader
my_validation_data = data(64, 2)

"""
BEFORE = """
import functools, logging, sys
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
import my_run, tiny_lightning
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from evalq.integrations.lightning import EvalqCallback, EvalqLogger
Trainer = functools.partial(tiny_lightning.make_trainer, max_epochs=4, default_root_dir="out")
"""
AFTER = """
trainer.fit(tiny_lightning.Regression())
"""


def examples(kind: str) -> List[str]:
    with open(PAGE, encoding="utf-8") as file:
        return re.findall(rf"^```{kind}\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)


class PageTest(StackTest):
    starts_up = False

    def setUp(self) -> None:
        super().setUp()
        (configuration,) = examples("yaml")
        text = configuration.replace("/home/me/project", self.stack.directory).replace("python3", sys.executable)
        self.write("evalq.yaml", text)
        (function,) = [example for example in examples("python") if example.startswith("def make_validation")]
        self.write("my_run.py", MY_RUN + function)
        os.symlink(os.path.join(PACKAGE, "evalq"), os.path.join(self.stack.directory, "evalq"))
        self.stack.up()

    def write(self, name: str, text: str) -> None:
        with open(os.path.join(self.stack.directory, name), "w", encoding="utf-8") as file:
            file.write(text)

    def test_examples(self) -> None:
        found = [example for example in examples("python") if "trainer = Trainer(" in example]
        self.assertGreaterEqual(len(found), 5)
        for at, example in enumerate(found):
            with self.subTest(example=example):
                name = f"example{at}.py"
                self.write(name, BEFORE + example + AFTER)
                run = f"example-{at}"
                path = os.path.join(self.stack.directory, name)
                training = Training(self.stack, [sys.executable, path], self.stack.environment(EVALQ_RUN=run))
                training.wait()
                said = [line for line in training.warnings() if "training is done; waiting" not in line]  # A busy machine.
                self.assertEqual(said, [])
                self.stack.evalq("wait", run)
                done = [line for line in self.stack.evalq("results", run).splitlines() if "done" in line]
                self.assertGreaterEqual(len(done), 1, self.stack.evalq("results", run))


if __name__ == "__main__":
    unittest.main(verbosity=2)
