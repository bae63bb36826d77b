"""Tests evalq.serve_trainer and evalq.lm_eval: which weights they load, and which errors are final."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import sys
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List
from unittest import mock

from scene import DEADLINE, NATIVE, PACKAGE, SceneTest

from evalq._evaluation import Checkpoint, Task
from evalq._serving import recreated_after_failure
from evalq._trainer_evaluator import TrainerEvaluator, _load_adapter, make_trainer_evaluator
from evalq.lm_eval import Harness

HAS_NUMPY = importlib.util.find_spec("numpy") is not None

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
            checkpoint = SimpleNamespace(path=path, variant="regular", load=mock.Mock())
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
            checkpoint = SimpleNamespace(path=path, variant="regular", load=mock.Mock())
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
