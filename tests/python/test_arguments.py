"""Calls every public method of the client with arguments of any kind: nothing raises into training,
and the client continues to work."""

from __future__ import annotations

import inspect
import logging
import math
import os
import unittest
from typing import Any, Dict, Iterator, List, Tuple
from unittest import mock

from scene import DEADLINE, SceneTest

import evalq

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


class Hostile:
    """An object whose every method raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


def fails() -> Any:
    raise RuntimeError("the function failed")


WRONG: List[Any] = [
    None, 0, 3, -1, 2**80, 1.5, math.nan, math.inf, True, "", "x", "a\0b", "\udcff", "x" * 70000, b"x", b"\xff", object(),
    Hostile(), [], [None], [3], ["a", b"b"], {}, {"a": object()}, {3: {3: 3}}, {"a": Hostile()}, fails, Exception, iter([1]),
]  # fmt: skip


def parameters(method: Any) -> List[str]:
    return [name for name in inspect.signature(method).parameters if name not in ("self",)]


@unittest.skipIf(numpy is None, "numpy is not installed")
class ArgumentsTest(SceneTest):
    workers = False

    def calls(self, method: Any, good: Dict[str, Any]) -> Iterator[Tuple[str, Any, Dict[str, Any]]]:
        """Yields arguments in which one parameter has a wrong value, for every parameter and every
        value."""
        for name in parameters(method):
            for value in WRONG:
                yield name, value, {**good, name: value}

    def good(self) -> "Dict[str, Dict[str, Any]]":
        """Valid arguments for each method."""
        path = self.scene.checkpoint("arguments/1.safetensors")
        common = {"step": 1, "suites": "nobody"}
        return {
            "submit": {"path": path, **common},
            "submit_state_dict": {"state_dict": {"a": numpy.zeros(2, "f4")}, **common},
            "reserve_state_dict": {"state_dict": {"a": numpy.zeros(2, "f4")}},
            "wait": {"timeout": 0},
            "ended": {"timeout": 0},
            "flush": {"timeout": 0},
            "best": {"metric": "eval/digits/accuracy", "mode": "max", "timeout": 0.01},
            "results": {},
            "stats": {},
        }

    def test_every_public_method_is_in_the_table(self) -> None:
        public = {
            name
            for name, value in vars(evalq.Client).items()
            if not name.startswith("_") and inspect.isfunction(value)
        }
        self.assertEqual(public - {"close"}, set(self.good()))

    def test_no_method_raises(self) -> None:
        good = self.good()
        kinds = {"submit": bool, "submit_state_dict": bool, "reserve_state_dict": bool, "wait": bool, "ended": bool, "flush": bool}
        logging.getLogger("evalq").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("evalq").setLevel, logging.NOTSET)
        for method, arguments in good.items():
            with self.scene.client("arguments-" + method.replace("_", "-")) as client:
                call = getattr(client, method)
                for name, value, given in self.calls(getattr(evalq.Client, method), arguments):
                    with self.subTest(method=method, parameter=name, value=type(value).__name__):
                        answer = call(**given)
                        if method in kinds:
                            self.assertIsInstance(answer, kinds[method])
                # The client works as before.
                self.assertTrue(client.submit(**{**good["submit"], "step": 100}))
                self.assertTrue(client.flush(DEADLINE))
                self.assertEqual(client.stats().refused, 0)

    def test_a_wrong_argument_is_named(self) -> None:
        good = self.good()["submit"]
        for name, value, sentence in (
            ("step", 1.5, "step is 1.5, expected a whole number"),
            # True must not become step 1.
            ("step", 2**64 + 1, "step is 18446744073709551617, expected a number of 64 bits"),
            ("suites", b"quick", "suites is b'quick', expected text"),
            ("variant", 3, "variant is 3, expected text"),
            ("path", "a\0b", "path holds a NUL"),
            ("params", [1], "params is \\[1\\], expected a mapping"),
        ):
            with self.scene.client("said", raise_errors=True) as client:
                with self.assertRaisesRegex(evalq.EvalqError, sentence):
                    client.submit(**{**good, name: value})

    def test_a_timeout_that_is_nan_is_refused(self) -> None:
        with self.scene.client("nan", raise_errors=True) as client:
            for wait in (client.wait, client.flush, client.ended):
                with self.assertRaisesRegex(evalq.EvalqError, "timeout is nan, expected a number of seconds"):
                    wait(math.nan)

    def test_client_of_wrong_arguments_does_not_raise(self) -> None:
        good = {"url": self.scene.url, "run": "made", "config": self.scene.config, "ring_directory": self.scene.ring}
        before = os.getcwd()
        os.chdir(self.scene.directory)  # A relative directory is created here.
        self.addCleanup(os.chdir, before)
        with mock.patch.dict(os.environ, XDG_STATE_HOME=os.path.join(self.scene.directory, "state")):
            for name, value, given in self.calls(evalq.Client.__init__, good):
                with self.subTest(parameter=name, value=type(value).__name__):
                    if name == "raise_errors":
                        given["log"] = False  # In this case the value is valid.
                    with evalq.Client(**{"log": False, **given}) as client:
                        self.assertIsInstance(client.run, str)
                        self.assertIsInstance(client.stats().submitted, int)

    def test_client_of_wrong_arguments_says_why(self) -> None:
        for given, sentence in (
            ({"snapshots": "x"}, "snapshots is 'x', expected a whole number"),
            ({"config": 3}, "config is 3, expected a path"),
            ({"session_ms": b"1"}, "session_ms is b'1', expected a whole number"),
            ({"run": b"digits"}, "run is b'digits', expected text"),
            ({"url": "a\0b"}, "url holds a NUL byte"),
        ):
            with self.assertLogs("evalq", "WARNING") as logs:
                with self.scene.client(**given) as client:
                    self.assertFalse(client.submit("/nowhere", step=1, suites="nobody"))
            self.assertIn(sentence, logs.output[0])


if __name__ == "__main__":
    unittest.main()
