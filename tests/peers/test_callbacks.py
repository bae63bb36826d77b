"""Arguments of any kind to the callbacks, and a Trainer with a callback that they keep out: nothing raises into training."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any, Dict, Iterator, Tuple
from unittest import mock

from peers import STEPS, TrainerStackTest, evaluated, needs, words

needs("torch", "transformers", "accelerate", "lightning")

import torch  # noqa: E402
import transformers  # noqa: E402
from huggingface_hub import utils as hub  # noqa: E402
from scene import NATIVE, SceneTest  # noqa: E402
from test_arguments import WRONG  # noqa: E402

from evalq.integrations import lightning as lightning_adapter  # noqa: E402
from evalq.integrations import transformers as transformers_adapter  # noqa: E402


class HooksTest(SceneTest):
    config = NATIVE
    workers = False

    def setUp(self) -> None:
        logging.getLogger("evalq").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("evalq").setLevel, logging.NOTSET)
        folder = tempfile.TemporaryDirectory(prefix="evalq-callbacks-")
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        self.out = folder.name
        before = os.environ.get("XDG_STATE_HOME")
        os.environ["XDG_STATE_HOME"] = os.path.join(folder.name, "state")
        self.addCleanup(lambda: os.environ.pop("XDG_STATE_HOME") if before is None else os.environ.update(XDG_STATE_HOME=before))
        self.good: Dict[str, Any] = {"suites": "nobody", "url": self.scene.url, "wait": 0.0, "config": self.scene.config}

    def cases(self, made: Any) -> Iterator[Tuple[str, Any, Dict[str, Any]]]:
        for name in inspect.signature(made.__init__).parameters:
            if name in ("self", "_restored"):
                continue
            for value in WRONG:
                yield name, value, {**self.good, "run": "hooks", name: value}

    def transformers_events(self, callback: Any, due: bool) -> None:
        args = transformers.TrainingArguments(
            output_dir=self.out, eval_strategy="steps", eval_steps=1, save_strategy="no", report_to="none", use_cpu=True
        )
        state, control = transformers.TrainerState(max_steps=2), transformers.TrainerControl()
        model = torch.nn.Linear(2, 2)
        callback.on_init_end(args, state, control, model=model)
        callback.on_train_begin(args, state, control, model=model)
        callback.on_epoch_begin(args, state, control, model=model)
        for state.global_step in (1, 2):
            control.should_evaluate = due
            callback.on_step_end(args, state, control, model=model)
            self.assertIsInstance(callback.state(), dict)
        callback.on_epoch_end(args, state, control, model=model)
        callback.on_log(args, state, control, logs={"train_runtime": 1.0}, model=model)
        callback.on_train_end(args, state, control, model=model)

    def lightning_events(self, callback: Any, due: bool) -> None:
        trainer = SimpleNamespace(
            fast_dev_run=False, is_global_zero=True, global_step=1, ckpt_path=None, default_root_dir=self.out, loggers=[],
            checkpoint_callbacks=[], checkpoint_callback=None, current_epoch=0, world_size=1, should_stop=False,
            check_val_every_n_epoch=1 if due else 2, strategy=None,
            fit_loop=SimpleNamespace(
                epoch_loop=SimpleNamespace(_batches_that_stepped=1),
                epoch_progress=SimpleNamespace(current=SimpleNamespace(processed=1, completed=0)),
            ),
        )  # fmt: skip
        module = torch.nn.Linear(2, 2)
        callback.on_train_start(trainer, module)
        callback.on_train_batch_end(trainer, module, None, None, 0)
        callback.on_train_epoch_end(trainer, module)
        self.assertIsInstance(callback.state_dict(), dict)
        self.assertIsInstance(callback.run, str)
        self.assertIsNone(callback.best)
        callback.on_fit_end(trainer, module)
        callback.teardown(trainer, module, "fit")

    def test_the_callback_of_transformers_never_raises(self) -> None:
        for name, value, given in self.cases(transformers_adapter.EvalqCallback):
            with self.subTest(parameter=name, value=type(value).__name__):
                # A wait without a limit is what the user may want.
                self.transformers_events(transformers_adapter.EvalqCallback(**given), due=name != "wait")

    def test_what_is_held_goes_to_no_hub(self) -> None:
        args = transformers.TrainingArguments(
            output_dir=self.out, push_to_hub=True, hub_model_id="nobody/nothing", report_to="none", use_cpu=True
        )
        state, control = transformers.TrainerState(max_steps=2), transformers.TrainerControl()
        callback = transformers_adapter.EvalqCallback(**self.good, run="hub")
        callback.on_train_begin(args, state, control)
        callback.on_train_end(args, state, control)
        paths = ["model.safetensors", ".evalq/held/checkpoint-5/model.safetensors", "a/.evalq/pins/5-regular-0/last.pt"]
        ignored = ["_*", "checkpoint-*", *hub.DEFAULT_IGNORE_PATTERNS]  # As Trainer and HfApi.upload_folder() have them.
        self.assertEqual(list(hub.filter_repo_objects(paths, ignore_patterns=ignored)), ["model.safetensors"])

    def test_the_callback_of_lightning_never_raises(self) -> None:
        for name, value, given in self.cases(lightning_adapter.EvalqCallback):
            with self.subTest(parameter=name, value=type(value).__name__):
                self.lightning_events(lightning_adapter.EvalqCallback(**given), due=name != "wait")

    def test_the_logger_of_lightning_never_raises(self) -> None:
        del self.good["wait"]
        checkpoint = SimpleNamespace(best_model_path=os.path.join(self.out, "1.ckpt"), _last_global_step_saved=1)
        torch.save({"state_dict": {}}, checkpoint.best_model_path)
        for name, value, given in self.cases(lightning_adapter.EvalqLogger):
            with self.subTest(parameter=name, value=type(value).__name__):
                logger = lightning_adapter.EvalqLogger(**given)
                logger.after_save_checkpoint(checkpoint)
                logger.log_metrics({"a": 1.0}, 1)
                logger.log_hyperparams({})
                self.assertIsInstance((logger.name, str(logger.version)), tuple)
                logger.finalize("success")

    def test_lightning_stops_within_an_epoch_that_is_the_whole_training(self) -> None:
        for ranks, stops in ((1, [True] * 6), (2, [False, False, True, True, True, True])):
            callback = lightning_adapter.EvalqCallback("quick", monitor="val_loss", patience=2)
            callback._training.not_better = 2
            callback._look = mock.Mock(side_effect=ValueError("of rank 0 alone"))  # The other ranks meet all the same.
            strategy = SimpleNamespace(broadcast=mock.Mock(side_effect=lambda value: value))
            trainer = SimpleNamespace(
                world_size=ranks, log_every_n_steps=3, should_stop=False, strategy=strategy, check_val_every_n_epoch=1
            )
            found = []
            for trainer.global_step in (1, 2, 3, 3, 4, 5):  # Two batches make step 3.
                callback.on_train_batch_end(trainer, None)
                found.append(trainer.should_stop)
            self.assertEqual((found, strategy.broadcast.call_count), (stops, ranks - 1))
            callback.on_train_epoch_end(trainer, None)
            self.assertEqual(strategy.broadcast.call_count, 2 * (ranks - 1))

    def test_lightning_says_when_no_checkpoint_will_be_saved(self) -> None:
        said = "ModelCheckpoint saves nothing"
        for limit, every, given, warned in (
            (0, 5, {}, True), (0, 1, {}, False), (1.0, 5, {}, False), (0, 5, {"every_n_train_steps": 10}, False),
            (0, 5, {"save_on_train_epoch_end": True}, False),
        ):  # fmt: skip
            with self.subTest(limit=limit, every=every, given=given):
                checkpoint = lightning_adapter._FRAMEWORKS[0].callbacks.ModelCheckpoint(**given)
                trainer = SimpleNamespace(
                    fast_dev_run=False, is_global_zero=True, global_step=0, ckpt_path=None, default_root_dir=self.out, loggers=[],
                    checkpoint_callbacks=[checkpoint], callbacks=[checkpoint], enable_validation=limit != 0,
                    lr_scheduler_configs=[], callback_metrics={}, world_size=1, limit_val_batches=limit, check_val_every_n_epoch=every,
                    val_check_interval=1.0, num_val_batches=[] if limit == 0 else [4],
                )  # fmt: skip
                callback = lightning_adapter.EvalqCallback(**self.good)
                with self.assertLogs("evalq", "INFO") as logs:
                    callback.on_train_start(trainer, torch.nn.Linear(2, 2))
                    callback.teardown(trainer, None, "fit")
                self.assertEqual(any(said in line for line in logs.output), warned, logs.output)

    def test_processes_that_a_launcher_spawns_get_copies(self) -> None:
        logger_options = {name: self.good[name] for name in ("suites", "url", "config")}
        for kind, options in (
            (transformers_adapter.EvalqCallback, self.good),
            (lightning_adapter.EvalqCallback, self.good),
            (lightning_adapter.EvalqLogger, logger_options),
        ):
            with self.subTest(kind=kind):
                given = {name: value for name, value in options.items() if name != "names"}  # Often a lambda.
                self.assertIsInstance(pickle.loads(pickle.dumps(kind(**given))), kind)

    def test_hooks_with_arguments_that_no_framework_gives_do_not_raise(self) -> None:
        for value in WRONG:
            with self.subTest(value=type(value).__name__):
                callback = transformers_adapter.EvalqCallback(**self.good)
                for event in [name for name in vars(type(callback)) if name.startswith("on_")]:
                    getattr(callback, event)(value, value, value, model=value)
                other = lightning_adapter.EvalqCallback(**self.good)
                for hook in ("on_train_start", "on_train_batch_end", "on_train_epoch_end", "on_fit_end"):
                    getattr(other, hook)(value, value)
                other.teardown(value, value, value)
                logger = lightning_adapter.EvalqLogger(**{name: self.good[name] for name in ("suites", "url", "config")})
                logger.after_save_checkpoint(value)
                logger.log_metrics(value, value)
                logger.finalize(value)


class RefusedTest(TrainerStackTest):
    def test_a_trainer_evaluates_for_itself_when_the_callback_is_refused(self) -> None:
        settings = dict(STEPS, eval_steps=5, save_steps=5, max_steps=10)
        reference = self.reference(**settings)
        training = self.stack.start("tiny_gpt2.py", *words(evalq={"suites": "eval", "wait": "long"}, **settings))
        training.wait()
        outcome = self.stack.outcome()
        self.assertEqual(sorted(evaluated(outcome)), [5, 10])
        self.assert_same_evaluations(outcome, reference)
        self.assertEqual(outcome["best_global_step"], reference["best_global_step"])
        self.assertEqual(self.stack.evaluations(), [])
        self.assertEqual(len(training.warnings()), 1, training.warnings())
        self.assertIn("evalq is off for this training: EvalqCallback: wait is 'long', expected a number", training.warnings()[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
