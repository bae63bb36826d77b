"""Tests evalq.serve: the protocol by itself, and with a real worker."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest import mock

from scene import BIN, DATA, DEADLINE, NATIVE, PACKAGE, SceneTest, until

from evalq._evaluation import Checkpoint, Task
from evalq._serving import recreated_after_failure
from evalq._checkpoint.safetensors import safetensors_files
from evalq._trainer_evaluator import TrainerEvaluator, _load_adapter, make_trainer_evaluator
from evalq._checkpoint.weights import find_state_dict, load_weights, torch_files
from evalq.lm_eval import Harness

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


FACTORY = """
from types import SimpleNamespace

class Module:
    def __init__(self):
        self.seen = []  # As a module collects it until the end of its validation.
    def state_dict(self):
        return {"w": None}
    def load_state_dict(self, values, strict):
        self.value = float(values["w"][0])
        return SimpleNamespace(missing_keys=[], unexpected_keys=[])

class Trainer:
    callbacks = []
    def validate(self, module, verbose, dataloaders):
        module.seen.append(module.value)
        if module.value < 0:
            raise RuntimeError("half-way")
        value = sum(module.seen) / len(module.seen)
        module.seen.clear()
        return [{"value": value}]

def make():
    return Trainer(), Module(), []
"""


@unittest.skipUnless(HAS_NUMPY, "needs numpy to read weights")
class OtherWeightsTest(SceneTest):
    """A step may be submitted again with other weights. Then the warm model has the wrong
    weights."""

    config = NATIVE.replace(
        "suites:",
        """
evaluators:
  mine:
    kind: persistent
    argv: [$PYTHON, -m, evalq.serve_lightning, "their:make"]
    directory: $OUT
    env: {PYTHONPATH: """
        + PACKAGE
        + """}
suites:
  python:
    evaluator: mine
    tasks: [{name: a}, {name: b}]""",
    )
    workers = False

    def submit(self, client: Any, value: float) -> "Dict[str, Dict[str, float]]":
        path = os.path.join(self.scene.out, "1.safetensors")
        head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        with open(path + ".part", "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head + struct.pack("<f", value))
        os.replace(path + ".part", path)
        self.assertTrue(client.submit(path, step=1, suites="python"))
        self.assertTrue(client.wait(DEADLINE))
        found: "Dict[str, Dict[str, float]]" = {}
        for result in client.results():
            if not result.is_end:
                found.setdefault(result.job, {})[result.task] = result.value
        return found

    def write_modules(self) -> None:
        os.makedirs(os.path.join(self.scene.out, "lightning"), exist_ok=True)
        for name, text in (("their.py", FACTORY), ("lightning/pytorch.py", "class Callback:\n    pass\n")):
            with open(os.path.join(self.scene.out, name), "w", encoding="utf-8") as file:
                file.write(text)

    def test_weights_of_a_step_that_is_submitted_again_are_loaded(self) -> None:
        self.write_modules()
        worker = self.scene.start_worker("--slots", "1")
        with self.scene.client("again") as client:
            self.assertEqual(self.submit(client, 1.0), {"again/1/regular/python": {"a": 1.0, "b": 1.0}})
            self.assertEqual(self.submit(client, 2.0), {"again/1/regular/python~2": {"a": 2.0, "b": 2.0}})
            self.assertEqual(self.scene.evalq("forget", "again", "--yes").returncode, 0)
        with self.scene.client("again") as client:
            self.assertEqual(self.submit(client, 3.0), {"again/1/regular/python": {"a": 3.0, "b": 3.0}})
        worker.terminate()
        worker.wait()

    def test_sums_of_a_failed_evaluation_are_not_added_to_the_next(self) -> None:
        self.write_modules()
        worker = self.scene.start_worker("--slots", "1")
        with self.scene.client("cut") as client:
            for generation, value in (("", 1.0), ("~3", 5.0)):
                self.assertEqual(self.submit(client, value), {f"cut/1/regular/python{generation}": {"a": value, "b": value}})
                self.assertEqual(self.submit(client, -value), {})
        worker.terminate()
        worker.wait()

    def test_a_trainer_is_created_again_after_an_interrupted_evaluation(self) -> None:
        makes: "List[int]" = []

        def make() -> Any:
            makes.append(len(makes))
            return mock.Mock(side_effect=[{"a": makes[-1]}, KeyboardInterrupt])

        with mock.patch("evalq._trainer_evaluator.TrainerEvaluator", side_effect=lambda trainer: trainer):
            function = make_trainer_evaluator(make)
            for number in range(3):
                self.assertEqual(function(self.checkpoint(), Task("a"), mock.Mock()), {"a": number})
                with self.assertRaises(KeyboardInterrupt):
                    function(self.checkpoint(), Task("b"), mock.Mock())
        self.assertEqual(makes, [0, 1, 2])

    def checkpoint(self) -> Checkpoint:
        return Checkpoint("/nowhere", 1, "r", "regular", "s", {}, job="r/1/regular/s")

    def test_trainer_and_harness_load_once_a_job(self) -> None:
        class Model:
            loads = 0

            def state_dict(self) -> Dict[str, Any]:
                return {}

            def load_state_dict(self, values: Any, strict: bool) -> Any:
                self.loads += 1
                return SimpleNamespace(missing_keys=[], unexpected_keys=[])

        model = Model()
        trainer = SimpleNamespace(
            model=model, state=SimpleNamespace(), eval_dataset=None, evaluate=lambda: {"eval_loss": 0.5},
            callback_handler=SimpleNamespace(callbacks=[]), add_callback=lambda callback: None,
        )  # fmt: skip
        with mock.patch.dict(sys.modules, {"transformers": SimpleNamespace(TrainerCallback=object)}):
            function = TrainerEvaluator(trainer)
        harness = Harness.__new__(Harness)
        harness._lm_eval = mock.Mock(**{"simple_evaluate.return_value": {"results": {"a": {"acc": 0.5}}}})
        harness._options, harness._tasks, harness._lm, harness._loaded = mock.Mock(), mock.Mock(), None, None
        with mock.patch.object(Checkpoint, "load", return_value={}), mock.patch.object(harness, "_load") as load:
            for jobs in range(1, 3):
                checkpoint = self.checkpoint()
                for _ in range(2):  # A job has two tasks.
                    function(checkpoint, Task("a"), mock.Mock())
                    harness(checkpoint, Task._of({"name": "a"}), mock.Mock())
                self.assertEqual((model.loads, load.call_count), (jobs, jobs))

    def test_adapter_with_missing_weights_is_refused(self) -> None:
        config = SimpleNamespace(lora_alpha=8, use_rslora=False, alpha_pattern={})
        model = SimpleNamespace(peft_config={"default": config}, base_model=SimpleNamespace(prefix="lora_"))
        # An adapter never contains the weights of its base model.
        result = SimpleNamespace(missing_keys=["h.0.weight"], unexpected_keys=[])
        peft = SimpleNamespace(set_peft_model_state_dict=lambda model, values: result)
        with tempfile.TemporaryDirectory() as path, mock.patch.dict(sys.modules, {"peft": peft}):
            for alpha, missing, unexpected, refused in (
                (8, [], [], None),
                (32, [], [], "lora_alpha is 32, the model's 8"),
                (8, ["h.0.lora_A.default.weight"], [], "1 missing, 0 unexpected: h.0.lora_A.default.weight in"),
                (8, [], ["h.9.lora_A.weight"], "0 missing, 1 unexpected: h.9.lora_A.weight in"),
            ):
                with open(os.path.join(path, "adapter_config.json"), "w", encoding="utf-8") as file:
                    json.dump({"peft_type": "LORA", "lora_alpha": alpha, "use_rslora": False, "alpha_pattern": None}, file)
                result.missing_keys, result.unexpected_keys = ["h.0.weight", *missing], unexpected
                if refused is None:
                    _load_adapter(model, {}, path)
                else:
                    with self.assertRaisesRegex(ValueError, refused):
                        _load_adapter(model, {}, path)

    def test_trainer_refuses_a_directory_of_model_and_adapter(self) -> None:
        function = TrainerEvaluator.__new__(TrainerEvaluator)
        function._trainer = SimpleNamespace(model=SimpleNamespace())
        with tempfile.TemporaryDirectory() as path, mock.patch("evalq._trainer_evaluator.load_into") as copied:
            checkpoint = SimpleNamespace(path=path, load=mock.Mock())
            open(os.path.join(path, "model.safetensors"), "w", encoding="utf-8").close()
            function._load(checkpoint)
            copied.assert_called_once()
            open(os.path.join(path, "adapter_config.json"), "w", encoding="utf-8").close()
            with self.assertRaisesRegex(ValueError, "holds both 'model.safetensors' and an adapter"):
                function._load(checkpoint)
            copied.assert_called_once()

    def test_a_factory_that_cannot_be_called_again_is_named(self) -> None:
        for second, raised, text in (
            (ValueError("one data set"), RuntimeError, "the factory cannot be called again, .* ValueError: one data set"),
            (ConnectionError("hub"), ConnectionError, "^hub$"),  # This error may not occur again.
        ):
            function = recreated_after_failure(mock.Mock(side_effect=[mock.Mock(side_effect=KeyError("first")), second]))
            for expected, message in ((KeyError, "first"), (raised, text)):
                with self.assertRaisesRegex(expected, message):
                    function(mock.Mock(), mock.Mock(), mock.Mock())

    def test_model_with_another_tokenizer_is_created_again(self) -> None:
        harness = Harness.__new__(Harness)
        harness._options, harness._lm, harness._definition = mock.Mock(model_args=""), None, None
        made = mock.Mock()
        registry = SimpleNamespace(get_model=lambda kind: made)
        utils = SimpleNamespace(simple_parse_args_string=lambda text: {})
        with tempfile.TemporaryDirectory() as path, mock.patch("evalq.lm_eval.load_into") as copied:
            checkpoint = SimpleNamespace(path=path, load=mock.Mock())
            fakes = {"lm_eval": mock.Mock(), "lm_eval.api": mock.Mock(), "lm_eval.api.registry": registry, "lm_eval.utils": utils}
            with mock.patch.dict(sys.modules, fakes):
                os.mkdir(os.path.join(path, "additional_chat_templates"))
                names = ("config.json", "chat_template.jinja", "additional_chat_templates/rag.jinja", "merges.txt",
                         "tokenizer.model", "qwen.tiktoken", "modeling_own.py")  # fmt: skip
                for count, name in enumerate(names, 1):
                    with open(os.path.join(path, name), "w", encoding="utf-8") as file:
                        file.write("{}")
                    for _ in range(2):
                        harness._load(checkpoint)  # type: ignore[arg-type]
                    self.assertEqual((made.create_from_arg_obj.call_count, copied.call_count), (count, count), name)


class FinalTest(SceneTest):
    """An evaluator that can never start is tried once, and the reason is one sentence."""

    config = f"""
roots: {{out: $OUT}}
evaluators:
  absent: {{kind: persistent, argv: [$PYTHON, -m, evalq.serve, "no_such_module:evaluate"], env: {{PYTHONPATH: {PACKAGE}}}}}
  unnamed: {{kind: persistent, argv: [$PYTHON, -m, evalq.serve, "json:no_such_name"], env: {{PYTHONPATH: {PACKAGE}}}}}
suites:
  absent: {{evaluator: absent}}
  unnamed: {{evaluator: unnamed}}
"""

    def test_a_missing_module_is_final(self) -> None:
        path = self.scene.checkpoint("1.safetensors")
        with self.scene.client("final", raise_errors=True) as client:
            client.submit(path, step=1, suites=["absent", "unnamed"])
            self.assertTrue(client.wait(DEADLINE))
            ends = {result.suite: (result.state, result.reason) for result in client.results() if result.is_end}
        for suite, reason in (
            ("absent", "a module cannot be imported: No module named 'no_such_module'"),
            ("unnamed", "the module 'json' has no 'no_such_name'"),
        ):
            wanted = f"{reason} (evaluator '{suite}' failed for good, exit status 65)"
            # The record keeps only so many bytes of the reason.
            self.assertEqual(ends[suite], ("dead", wanted[:64]))
            shown = json.loads(self.scene.evalq("show", f"final/1/regular/{suite}", "--json").stdout)
            self.assertEqual(int(shown["job"]["attempts"]), 1, shown)
            self.assertIn(wanted, shown["detail"])


if __name__ == "__main__":
    unittest.main()
