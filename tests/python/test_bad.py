"""Tests wrong arguments of submit(). Each row of tests/bad/python.txt has a part of the expected
message."""

from __future__ import annotations

import ast
import os
import unittest
from typing import Iterator, Tuple

from scene import SceneTest

import evalq

ROWS = os.path.join(os.path.dirname(__file__), "..", "bad", "python.txt")


def rows() -> Iterator[Tuple[str, str, str]]:
    with open(ROWS, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, part, arguments = line.rstrip("\n").split(" | ")
                yield name, part, arguments


class BadTest(SceneTest):
    workers = False

    def test_rows(self) -> None:
        path = self.scene.checkpoint("bad/1.safetensors")
        wrong = 0
        with self.scene.client("bad", raise_errors=True) as client:
            for name, part, arguments in rows():
                said = "it was taken"
                try:
                    client.submit(**{"path": path, "step": 1, "suites": "quick", **ast.literal_eval(arguments)})
                except evalq.EvalqError as error:
                    said = str(error)
                if part not in said:
                    wrong += 1
                    print(f"'{name}': {said}")
            self.assertEqual(wrong, 0)
            self.assertEqual(client.stats().submitted, 0)
        names = [name for name, _, _ in rows()]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
