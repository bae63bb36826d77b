"""Evaluation functions of users: how many arguments they get, and what they may return."""

from __future__ import annotations

import functools
import unittest
from typing import Any

from scene import PACKAGE  # noqa: F401 - finds evalq

from evalq._user_function import adapted


class UserFunctionTest(unittest.TestCase):
    def called(self, function: Any) -> Any:
        return adapted(function)("C", "T", "R")

    def test_a_function_gets_as_many_arguments_as_it_takes(self) -> None:
        def with_options(checkpoint: str, verbose: bool = False) -> Any:
            return {"got": (checkpoint, verbose)}

        def late_report(checkpoint: str, task: str, report: Any = None) -> Any:
            return {"got": (checkpoint, task, report)}

        for function, got in (
            (lambda path: {"got": (path,)}, ("C",)),
            (lambda path, task: {"got": (path, task)}, ("C", "T")),
            (lambda a, b, c: {"got": (a, b, c)}, ("C", "T", "R")),
            (lambda *all_of_them: {"got": all_of_them}, ("C", "T", "R")),
            (with_options, ("C", False)),
            (late_report, ("C", "T", "R")),
            (functools.partial(lambda model, path: {"got": (model, path)}, "M"), ("M", "C")),
        ):
            self.assertEqual(self.called(function)["got"], got)

    def test_one_number_is_a_metric_with_the_functions_name(self) -> None:
        def accuracy(path: str) -> float:
            return 0.25

        self.assertEqual(self.called(accuracy), {"accuracy": 0.25})
        self.assertEqual(self.called(lambda path: 2), {"lambda": 2})

    def test_what_is_no_number_is_left_to_the_check_of_metrics(self) -> None:
        for value in (None, [0.5], (0.5,), "high", {}):
            self.assertEqual(self.called(lambda path, value=value: value), value)

    def test_a_function_that_needs_other_arguments_is_refused(self) -> None:
        def four(a: Any, b: Any, c: Any, d: Any) -> None:
            pass

        def keyword(path: str, *, model: Any) -> None:
            pass

        for function, words in (
            (four, "the function 'four' needs d;"),
            (keyword, "the function 'keyword' needs model;"),
            (lambda: 1, "takes no argument;"),
        ):
            with self.assertRaisesRegex(TypeError, words):
                adapted(function)


if __name__ == "__main__":
    unittest.main(verbosity=2)
