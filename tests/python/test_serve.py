"""Tests evalq.serve: the protocol by itself, and with a real worker."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest import mock

from scene import BIN, DATA, DEADLINE, NATIVE, PACKAGE, SceneTest, until

from evalq._checkpoint.safetensors import safetensors_files
from evalq._checkpoint.weights import find_state_dict, load_weights, torch_files

HAS_NUMPY = importlib.util.find_spec("numpy") is not None

EVALUATOR = '''
import os, sys, threading, time
import evalq

LATE = []
LOADED = []  # Kept between checkpoints.

class Several:  # As tensors and arrays are.
    def __init__(self, shape=(2,)):
        self.shape = shape
    def item(self):
        return 0.25

def evaluate(checkpoint, task, report):
    print("this is not for the worker")
    os.write(1, b"nor this\\n")
    LOADED.append(checkpoint.step)
    report(1, 2, "half way")
    what = checkpoint.params.get("what", "")
    if what == "value":
        raise ValueError("no such thing")
    if what == "lines":
        raise RuntimeError("Error(s) in loading state_dict:\\n\\tsize mismatch for a\\n\\tsize mismatch for b" + " c" * 2000)
    if what == "syntax":
        compile("1 +", "their.py", "exec")
    if what == "several":
        return {"per_class": Several()}
    if what == "one":
        return {"scalar": Several(()), "list": Several((1, 1))}
    if what == "empty":
        return {}
    if what == "many":
        return {f"m{number}": number for number in range(257)}
    if what == "most":
        return {"n": 5, **{f"m{i}": i for i in range(256)}, **{f"m{i}_stderr_clt": 0.1 for i in range(256)}}
    if what == "named":
        return {"a\\nb": 1}
    if what == "long":
        return {"m" * 129: 1}
    if what == "list":
        return [0.5]
    if what == "retry":
        if checkpoint.attempt == 1:
            raise evalq.EvalRetry("not now")
    if what == "text":
        return {"accuracy": "high"}
    if what == "exit":
        sys.exit(3)
    if what == "nan":
        return {"loss": float("nan"), "other": float("-inf")}
    if what == "late":  # A thread of its own that goes on when the evaluation is over.
        LATE.append(report)
    if what == "next":
        late = LATE.pop()
        late._sent_at = 0.0  # As if a while had passed.
        thread = threading.Thread(target=late, args=(5, 5, "late"))
        thread.start()
        thread.join()
    if what == "fork":  # A child that goes on in the function's code, as a data loader's may.
        child = os.fork()
        if child == 0:
            report._sent_at = 0.0
            report(9, 9, "from the child")
            os._exit(0)
        os.waitpid(child, 0)
    if what == "loop":
        report._sent_at = 0.0  # Says two things at once: the second one is the newest.
        report(2, 2, "the newest")
        while True:
            time.sleep(0.01)
    weights = checkpoint.load("numpy") if what == "load" else {}
    return {
        "calls": len(LOADED), "calls_stderr": 0.5, "pid": os.getpid(), "n": 7,
        "tensors": len(weights), "width": float(task.options.get("width", 0)),
    }
'''


class Peer:
    """The worker's end of the protocol."""

    def __init__(self, directory: str, target: str = "my_eval:evaluate") -> None:
        with open(os.path.join(directory, "my_eval.py"), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(EVALUATOR))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evalq.serve", target],
            cwd=directory,
            env=dict(os.environ, PYTHONPATH=PACKAGE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def say(self, **line: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def job(self, step: int = 1, tasks: "Optional[List[str]]" = None, turn: int = 0, **params: str) -> None:
        listed = [{"name": name, "type": "any", "model": {}, "data": {}, "options": {}} for name in tasks or ["only"]]
        self.say(
            type="job", version=1, checkpoint="/nowhere", source="/nowhere", job=f"r/{step}/regular/s", run="r",
            step=step, epoch=None, variant="regular", suite="s", tasks=listed, params=params, tags={}, shard=None,
            attempt=1, scratch="/tmp", **({"turn": turn} if turn else {}),
        )  # fmt: skip

    def hear(self) -> "Dict[str, Any]":
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def end(self) -> str:
        """Closes the program's input, and returns its log."""
        return self.process.communicate(timeout=DEADLINE)[1].decode()

    def close(self) -> None:
        self.process.kill()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.communicate()


class ProtocolTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.peer = Peer(directory.name)
        self.addCleanup(self.peer.close)
        self.assertEqual(self.peer.hear(), {"type": "ready"})

    def answer(self) -> "List[Dict[str, Any]]":
        lines = []
        while not lines or lines[-1]["type"] not in ("done", "error"):
            lines.append(self.peer.hear())
        return lines

    def test_state_stays_warm_and_prints_go_to_the_log(self) -> None:
        self.peer.job(1, ["a", "b"])
        first = self.answer()
        self.peer.job(2)
        second = self.answer()
        kinds = [line["type"] for line in first]
        self.assertEqual(kinds, ["progress", "task", "progress", "task", "done"])
        self.assertEqual(first[0], {"type": "progress", "done": 1, "total": 2, "status": "half way"})
        self.assertEqual([line["task"] for line in first if line["type"] == "task"], ["a", "b"])
        self.assertEqual([line["metrics"]["calls"] for line in first + second if line["type"] == "task"], [1, 2, 3])
        text = self.peer.end()
        self.assertEqual(text.count("this is not for the worker"), 3)
        self.assertEqual(text.count("nor this"), 3)
        self.assertEqual(self.peer.process.returncode, 0)

    def test_each_line_names_its_job(self) -> None:
        self.peer.job(1, turn=7, what="late")
        self.assertEqual({line["turn"] for line in self.answer()}, {7})
        self.peer.job(2, turn=8, what="next")
        lines = self.answer()
        self.assertEqual([line["turn"] for line in lines if line.get("status") == "late"], [7])
        self.assertEqual({line["turn"] for line in lines if line.get("status") != "late"}, {8})

    def test_forked_child_of_the_function_sends_nothing(self) -> None:
        self.peer.job(1, what="fork")
        lines = self.answer()
        self.assertEqual([line["type"] for line in lines], ["progress", "task", "done"])

    def test_exceptions_become_errors(self) -> None:
        for what, message, retry in (
            ("value", "ValueError: no such thing (my_eval.py:", False),
            ("retry", "EvalRetry: not now", True),
            ("text", "TypeError: metric 'accuracy' is str, expected a number", False),
            ("several", "TypeError: metric 'per_class' is Several of shape (2,), expected one number", False),
            ("empty", "ValueError: task 'only' returned no metric", False),
            ("many", "ValueError: task 'only' returned 257 metrics, allowed 256: divide the task", False),
            ("named", "ValueError: task 'only' returned a metric named 'a\\nb' (3 bytes), expected 1 to 128 bytes", False),
            ("long", "(129 bytes), expected 1 to 128 bytes without control characters", False),
            ("list", "TypeError: task 'only' returned list, expected a number or a mapping of metric to number", False),
            ("syntax", "SyntaxError: invalid syntax", False),
        ):
            self.peer.job(1, what=what)
            last = self.answer()[-1]
            self.assertEqual((last["type"], last["final"]), ("error", not retry), last)
            self.assertIn(message, last["message"])
        self.peer.job(1, what="most")
        self.assertEqual(self.answer()[-1], {"type": "done"})
        self.peer.job(2)
        self.assertEqual(self.answer()[-1], {"type": "done"})
        self.assertIn("Traceback", self.peer.end())

    def test_message_of_several_lines_becomes_one_line_with_the_place(self) -> None:
        self.peer.job(1, what="lines")
        message = self.answer()[-1]["message"]
        self.assertRegex(message, r"^RuntimeError: Error\(s\) in loading state_dict: size mismatch for a size mismatch for b c")
        self.assertRegex(message, r" \(my_eval\.py:\d+\)$")
        self.assertLessEqual(len(message), 2000)

    def test_tensors_of_one_value_are_numbers(self) -> None:
        self.peer.job(1, what="one")
        self.assertEqual(self.answer()[1]["metrics"], {"scalar": 0.25, "list": 0.25})

    def test_values_that_json_lacks_are_sent_as_text(self) -> None:
        self.peer.job(1, what="nan")
        self.assertEqual(self.answer()[1]["metrics"], {"loss": "NaN", "other": "-Infinity"})

    def test_a_training_that_starts_at_the_import_is_refused(self) -> None:
        directory = tempfile.mkdtemp(prefix="evalq-train-")
        self.addCleanup(shutil.rmtree, directory)
        with open(os.path.join(directory, "train.py"), "w", encoding="utf-8") as file:
            file.write("import evalq\nclient = evalq.Client(run='r')\ndef accuracy(path):\n    return 1\n")
        done = subprocess.run(
            [sys.executable, "-m", "evalq.serve", "train:accuracy"], cwd=directory, env=dict(os.environ, PYTHONPATH=PACKAGE),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 65)
        self.assertIn("importing 'train' starts the training: put the start below", done.stderr.splitlines()[-1])

    def test_exit_of_the_function_ends_the_program(self) -> None:
        self.peer.job(1, what="exit")
        self.assertEqual(self.answer()[-1]["type"], "error")
        self.peer.process.wait(DEADLINE)
        self.assertNotEqual(self.peer.process.returncode, 0)
        self.assertNotIn("device", self.peer.end())

    def test_cancel_ends_a_job_that_reports_nothing(self) -> None:
        self.peer.say(type="cancel")  # There is no job, so nothing happens.
        for step in (1, 2, 3):
            self.peer.job(step, what="loop")
            self.assertEqual(self.peer.hear()["type"], "progress")
            self.peer.say(type="cancel")
            self.assertEqual(self.answer()[-1]["message"], "cancelled")
        self.peer.job(4)
        self.assertEqual(self.answer()[-1], {"type": "done"})


class LoadTest(unittest.TestCase):
    def test_missing_torch_and_numpy_are_named(self) -> None:
        path = os.path.join(DATA, "mlp_784_512_128_32_10.safetensors")
        with mock.patch.dict(sys.modules, {"torch": None, "numpy": None}):
            with self.assertRaisesRegex(ImportError, "load.. needs torch or numpy, which /.* does not have"):
                load_weights(path)
            with self.assertRaisesRegex(ImportError, "load.. needs torch, which"):
                load_weights(path, "regular", "torch")


class Tensor:
    """A stand-in for torch.Tensor."""

    def __init__(self, value: float) -> None:
        self.value = value


class WhichWeightsTest(unittest.TestCase):
    """docs/checkpoints.md, "Which weights": a metric must not be computed from other weights."""

    def chosen(self, saved: Any, variant: str) -> Dict[str, float]:
        with mock.patch.dict(sys.modules, {"torch": SimpleNamespace(Tensor=Tensor)}):
            return {name: tensor.value for name, tensor in find_state_dict(saved, variant, "x.pt").items()}

    def test_variant_is_found_where_frameworks_put_it(self) -> None:
        one, nine = {"w": Tensor(1)}, {"w": Tensor(9)}
        part = {"state_dict": {"model.w": Tensor(1), "ema_model.w": Tensor(9), "swa.w": Tensor(9)}}
        averaging = {"state_dict": nine, "current_model_state": one, "callbacks": {"WeightAveraging": {}}}
        self.assertEqual(self.chosen(averaging, "regular"), {"w": 1})
        for saved, variant in (
            (averaging, "ema"),
            ({"model": one, "swa_state_dict": nine}, "swa"),
            ({"model": one, "ema": {"module": nine, "decay": 0.9}}, "ema"),
            ({"state_dict": one, "callbacks": {"a": {}, "EMA": {"ema_state_dict": nine}}}, "ema"),
            (part, "ema"),
            (part, "swa"),
            (nine, "ema"),
            ({"model": nine}, "own"),
            ({"ema_state_dict": nine, "step": 3}, "regular"),
            ({"ema": {"module": nine}}, "regular"),
        ):
            with self.subTest(saved=list(saved), variant=variant):
                self.assertEqual(self.chosen(saved, variant), {"w": 9})

    def test_weights_in_parts_are_one_set(self) -> None:
        """The native evaluator finds the same weights. Without this, the EMA weights beside an
        empty `model` would be the regular weights."""
        one, nine = {"w": Tensor(1)}, {"w": Tensor(9)}
        parts = {"encoder": one, "decoder": {"layers": [one]}, "step": 3}
        self.assertEqual(self.chosen({"model": parts, "ema": nine}, "regular"), {"encoder.w": 1, "decoder.layers.0.w": 1})
        self.assertEqual(self.chosen({"model": nine, "ema": parts}, "ema"), {"encoder.w": 1, "decoder.layers.0.w": 1})
        self.assertEqual(self.chosen({"model": [Tensor(1)], "ema": nine}, "regular"), {"0": 1})
        self.assertEqual(self.chosen({"state_dict": {"a": nine}, "current_model_state": {"a": one}}, "regular"), {"a.w": 1})
        self.assertEqual(self.chosen({"model": {"width": 3}, "net": one}, "regular"), {"w": 1})

    def test_files_of_a_directory_are_those_that_the_worker_reads(self) -> None:
        kinds = {  # Each name takes precedence over the following ones.
            "model.safetensors": ["model.safetensors"],
            "model.safetensors.index.json": ["part.safetensors"],
            "pytorch_model.bin": ["pytorch_model.bin"],
            "pytorch_model.bin.index.json": ["part.bin"],
            "adapter_model.safetensors": ["adapter_model.safetensors"],
        }
        with tempfile.TemporaryDirectory() as path:
            for name, files in reversed(list(kinds.items())):
                with open(os.path.join(path, name), "w", encoding="utf-8") as file:
                    file.write('{"weight_map": {"w": "%s"}}' % files[0])
                found = safetensors_files(path) or torch_files(path)
                self.assertEqual([os.path.basename(one) for one in found], files)
            os.unlink(os.path.join(path, "model.safetensors"))
            os.unlink(os.path.join(path, "model.safetensors.index.json"))
            with open(os.path.join(path, ".metadata"), "wb"):
                pass
            with mock.patch("evalq._checkpoint.weights._is_installed", return_value=True):
                with mock.patch("evalq._checkpoint.weights.load_torch", side_effect=EOFError) as asked:
                    self.assertRaises(EOFError, load_weights, path, "regular", "torch")
            asked.assert_called_once_with(os.path.join(path, "pytorch_model.bin"))

    def test_regular_weights_are_not_taken_for_averages(self) -> None:
        with self.assertRaisesRegex(ValueError, "no EMA weights.*'x.pt' holds model, epoch"):
            self.chosen({"model": {"w": Tensor(1)}, "epoch": 3}, "ema")
        with tempfile.TemporaryDirectory() as path, mock.patch("evalq._checkpoint.weights._is_installed", return_value=True):
            os.mkdir(os.path.join(path, "pytorch_model_fsdp_0"))
            with open(os.path.join(path, "pytorch_model_fsdp_0", ".metadata"), "wb"):
                pass
            with self.assertRaisesRegex(ValueError, "no EMA weights beside"):
                load_weights(path, "ema", "torch")
            os.mkdir(os.path.join(path, "pytorch_ema_model_fsdp_0"))
            with mock.patch("evalq._checkpoint.weights.torch_files", side_effect=ValueError) as asked, self.assertRaises(ValueError):
                load_weights(path, "ema", "torch")
            asked.assert_called_once_with(os.path.join(path, "pytorch_ema_model_fsdp_0"))

    @unittest.skipUnless(HAS_NUMPY, "needs numpy")
    def test_two_files_that_hold_the_same_tensor_are_refused(self) -> None:
        with tempfile.TemporaryDirectory() as path:
            for name in ("a.safetensors", "b.safetensors"):
                shutil.copy(os.path.join(DATA, "mlp_784_512_128_32_10.safetensors"), os.path.join(path, name))
            with self.assertRaisesRegex(ValueError, "two files hold '"):
                load_weights(path, "regular", "numpy")


class ServeTest(SceneTest):
    config = NATIVE.replace(
        "suites:",
        """
evaluators:
  mine:
    kind: persistent
    argv: [$PYTHON, -m, evalq.serve, "my_eval:evaluate"]
    directory: $OUT
    env: {PYTHONPATH: """
        + PACKAGE
        + """}
suites:
  python:
    evaluator: mine
    limits: {seconds: 60}
    tasks: [{name: a, width: 3}, {name: b}]""",
    )
    workers = False

    def setUp(self) -> None:
        with open(os.path.join(self.scene.out, "my_eval.py"), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(EVALUATOR))
        if not self.scene.processes:
            self.scene.start_worker()

    def run_step(self, client: Any, step: int, **params: str) -> "Dict[str, Dict[str, float]]":
        path = self.scene.checkpoint(f"serve/{step}.safetensors")
        self.assertTrue(client.submit(path, step=step, suites="python", params=params))
        self.assertTrue(client.wait(DEADLINE))
        found: "Dict[str, Dict[str, float]]" = {}
        self.ends = []
        for result in client.results():
            if result.is_end:
                self.ends.append(result)
            else:
                self.assertEqual(result.step, step)
                found.setdefault(result.task, {})[result.metric] = result.value
                self.n = result.n
        return found

    def test_function_stays_warm_between_checkpoints(self) -> None:
        with self.scene.client("serve") as client:
            first = self.run_step(client, 1, what="load" if HAS_NUMPY else "")
            second = self.run_step(client, 2)
        self.assertEqual(set(first), {"a", "b"})
        self.assertEqual((first["a"]["width"], first["b"]["width"]), (3, 0))
        self.assertEqual(first["a"]["tensors"], 8 if HAS_NUMPY else 0)
        self.assertEqual(self.n, 7)
        self.assertEqual(first["a"]["pid"], second["b"]["pid"])
        self.assertEqual([first["b"]["calls"] - first["a"]["calls"], second["b"]["calls"] - first["a"]["calls"]], [1, 3])
        self.assertNotIn("calls_stderr", first["a"])

    def test_exception_of_the_function_is_the_reason(self) -> None:
        with self.scene.client("raises", log=False) as client:
            self.assertEqual(self.run_step(client, 1, what="value"), {})
            self.assertEqual(self.ends[0].state, "dead")
            self.assertIn("no such thing", self.ends[0].reason)
            self.assertEqual(set(self.run_step(client, 2, what="retry")), {"a", "b"})

    def test_cancelled_job_leaves_the_program_warm(self) -> None:
        with self.scene.client("cancelled", log=False) as client:
            before = self.run_step(client, 1)["a"]["pid"]
            client.submit(self.scene.checkpoint("serve/2.safetensors"), step=2, suites="python", params={"what": "loop"})
            job = "cancelled/2/regular/python"
            environment = self.scene.environment()
            program = os.path.join(BIN, "evalq")

            def show(*arguments: str) -> str:
                done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
                return done.stdout

            until(lambda: '"running"' in show("show", job, "--json"), "the job runs")
            # The function reports twice at once. The second report must be shown, although the
            # worker sends only a few.
            until(lambda: "the newest" in show("show", job, "--json"), "the newest progress is shown")
            show("cancel", job)
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual([result.state for result in client.results() if result.is_end][-1], "cancelled")
            self.assertEqual(self.run_step(client, 3)["a"]["pid"], before)


if __name__ == "__main__":
    unittest.main()
