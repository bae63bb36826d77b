"""Checkpoints of all formats on a model server. A real worker converts them; a stand-in for the
server gives numbers that depend on nothing but the tensors."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import tempfile
from typing import Any, Dict
from unittest import mock

import test_model_server as servers
from scene import BIN, DEADLINE, SOURCE, until

from evalq.model_server.checkpoint_contents import worker_program

MADE = os.path.join(SOURCE, "tests", "data", "checkpoints", "made")
HARNESS = 'harness: {kind: python, function: "my_eval:run"}'
SERVER = servers.CONFIG[servers.CONFIG.index("  server:\n") : servers.CONFIG.index("suites:")]
ADDING = SERVER.replace("  server:", "  adding:", 1).replace(
    "options: {", "options: {enable_lora: true, "
)
CONFIG = servers.CONFIG.replace("suites:", ADDING + "suites:", 1).replace(
    "\n  two:",
    f"""
  based: {{evaluator: server, base: $OUT/base, {HARNESS}}}
  again: {{evaluator: server, base: $OUT/base, {HARNESS}}}
  merged: {{evaluator: server, base: $OUT/gpt2, {HARNESS}}}
  added: {{evaluator: adding, base: $OUT/gpt2, {HARNESS}}}
  bare: {{evaluator: adding, {HARNESS}}}
  worded: {{evaluator: server, tokenizer: $OUT/base, {HARNESS}}}
  two:""",
)


class FormatsTest(servers.ServerTest):
    config = CONFIG

    def setUp(self) -> None:
        super().setUp()
        self.base("base")
        gpt2 = self.base("gpt2")
        if not os.path.exists(gpt2 + "/model.safetensors"):
            shutil.copy(f"{MADE}/lora/gpt2/model.safetensors", gpt2)

    def base(self, name: str) -> str:
        """Configuration and tokenizer of a family that the native engine does not know."""
        path = os.path.join(self.scene.out, name)
        os.makedirs(path, exist_ok=True)
        told: Dict[str, Any] = {
            "config": {"model_type": "standin", "vocab_size": 50},
            "tokenizer": {"model": {"vocab": {"a": 0, "b": 1}}},
        }
        for file_name, content in told.items():
            with open(os.path.join(path, file_name + ".json"), "w", encoding="utf-8") as file:
                json.dump(content, file)
        return path

    def made(self, name: str) -> str:
        """A copy of a checkpoint of the tests, for this test alone."""
        path = os.path.join(self.scene.out, "ck", self.id().rpartition(".")[2], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        source = os.path.join(MADE, name)
        return str(
            shutil.copytree(source, path) if os.path.isdir(source) else shutil.copy(source, path)
        )

    def by_hand(self, path: str, base: str = "base", variant: str = "regular") -> str:
        """A Transformers directory with the same weights, which is no business of the worker's."""
        output = path.rstrip("/") + "-by-hand-" + variant
        words = [
            "convert",
            path,
            output,
            "--variant",
            variant,
            "--base",
            os.path.join(self.scene.out, base),
        ]
        done = subprocess.run(
            [os.path.join(BIN, "evalq-worker"), *words],
            env=self.scene.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def value(
        self, client: Any, path: str, step: int, suites: str, variant: str = "regular"
    ) -> float:
        self.assertTrue(client.submit(path, step=step, suites=suites, variant=variant))
        self.assertTrue(client.wait(DEADLINE))
        found = [
            result for result in client.results() if result.step == step and result.suite == suites
        ]
        self.end = next(result for result in found if result.is_end)
        self.assertEqual(self.end.state, "done", self.end.reason)
        return float(next(result.value for result in found if result.metric == "value"))

    def fails(self, client: Any, path: str, step: int, suites: str) -> str:
        self.assertEqual(self.run_step(client, path, step, suites), {})
        self.assertEqual(self.end.state, "dead")
        return self.shown(self.end.job)

    def prepared(self) -> "Dict[str, int]":
        """The converted weights, with the time at which they were written."""
        found = glob.glob(
            os.path.join(self.scene.directory, "evalq-*", "prepared", "*", "model.safetensors")
        )
        return {path: os.stat(path).st_mtime_ns for path in found}

    def test_each_format_gives_the_number_of_its_transformers_directory(self) -> None:
        with self.scene.client("formats") as client:
            for step, name in enumerate(
                (
                    "dcp",
                    "fsdp",
                    "zero",
                    "lightning.ckpt",
                    "wrapped.pth",
                    "legacy_module.pt",
                    "sharded_bin",
                )
            ):
                with self.subTest(name):
                    path = self.made(name)
                    found = self.value(client, path, 2 * step, "based")
                    self.assertEqual(
                        found, self.value(client, self.by_hand(path), 2 * step + 1, "own")
                    )

    def test_suites_of_one_checkpoint_share_a_conversion(self) -> None:
        path = self.made("lightning.ckpt")
        with self.scene.client("shared") as client:
            first = self.value(client, path, 1, "based")
            before, starts = self.prepared(), len(self.starts())
            self.fault("refuse")  # A reload would fail.
            self.assertEqual(self.value(client, path, 1, "again"), first)
        self.assertEqual(self.prepared(), before)
        self.assertEqual(len(self.starts()), starts)

    def test_variants_are_converted_apart(self) -> None:
        path = self.made("ema_lightning.ckpt")
        with self.scene.client("variants") as client:
            regular, ema = (
                self.value(client, path, 1, "based", variant) for variant in ("regular", "ema")
            )
            self.assertNotEqual(regular, ema)
            self.assertEqual(ema, self.value(client, self.by_hand(path, variant="ema"), 2, "own"))

    def test_an_adapter_is_merged(self) -> None:
        path = self.made("lora/plain")
        with self.scene.client("adapter") as client:
            found = self.value(client, path, 1, "merged")
            self.assertEqual(found, self.value(client, self.by_hand(path, "gpt2"), 2, "own"))
            self.assertNotEqual(
                found, self.value(client, os.path.join(self.scene.out, "gpt2"), 3, "own")
            )

    def test_an_adapter_of_another_base_is_merged_again(self) -> None:
        path, base = self.made("lora/plain"), os.path.join(
            self.scene.out, "gpt2", "model.safetensors"
        )
        with self.scene.client("rebased") as client:
            found = self.value(client, path, 1, "merged")
            with open(base, "r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"\0\0\1\0")
            self.addCleanup(os.unlink, base)
            self.assertNotEqual(
                self.value(client, str(shutil.copytree(path, path + "-copy")), 2, "merged"), found
            )

    def test_an_adapter_that_was_not_taken_is_found(self) -> None:
        with self.scene.client("unproven-adapter", log=False) as client:
            base = os.path.join(self.scene.out, "gpt2")
            self.value(client, base, 1, "own")
            starts = len(self.starts())
            self.fault(
                "once:silent"
            )  # The base stays in the server, which says that it has the adapter.
            path = self.made("lora/plain")
            found = self.value(client, path, 2, "merged")
            self.assertEqual(len(self.starts()), starts + 1)
            self.assertEqual(found, self.value(client, self.by_hand(path, "gpt2"), 3, "own"))

    def test_a_server_that_takes_adapters_adds_them_to_the_base(self) -> None:
        paths = [self.made("lora/plain"), self.made("lora/square")]
        base = os.path.join(self.scene.out, "gpt2")
        with self.scene.client("added") as client:
            of_base = self.value(client, base, 1, "bare")
            starts, before = len(self.starts()), self.prepared()
            found = [self.value(client, path, step, "added") for step, path in enumerate(paths, 2)]
            self.assertIn("digest", self.note(self.end.job))
            self.assertEqual(
                self.value(client, base, 1, "added"), of_base
            )  # Without an adapter again.
            again = shutil.copytree(paths[0], paths[0] + "-again")
            self.assertEqual(self.value(client, str(again), 4, "added"), found[0])
        self.assertEqual(len({of_base, *found}), 3)
        self.assertEqual((len(self.starts()), self.prepared()), (starts, before))

    def test_an_added_adapter_that_was_not_taken_is_found(self) -> None:
        path, other = self.made("lora/plain"), self.made("lora/square")
        with self.scene.client("not-added", log=False) as client:
            self.value(client, other, 1, "added")
            starts = len(self.starts())
            self.fault("once:silent")  # The server answers without any adapter.
            found = self.value(client, path, 2, "added")
            self.assertEqual(len(self.starts()), starts + 1)
            self.assertEqual(
                self.value(client, str(shutil.copytree(path, path + "-again")), 3, "added"), found
            )

    def test_a_missing_tensor_is_refused_before_the_reload(self) -> None:
        gpt2 = os.path.join(self.scene.out, "gpt2")
        with self.scene.client("lacking", log=False) as client:
            self.value(client, gpt2, 1, "own")
            starts = len(self.starts())
            said = self.fails(client, self.made("lightning.ckpt"), 2, "merged")
            self.assertIn("lacks the tensor 'transformer.h.0.attn.c_attn.bias' of its model", said)
            self.assertEqual(self.attempts(self.end.job), 1)
            self.fault("refuse")  # No reload was tried, and none is needed now.
            self.value(client, gpt2, 1, "two")
        self.assertEqual(len(self.starts()), starts)

    def test_a_directory_without_a_tokenizer_gets_that_of_the_suite(self) -> None:
        path = self.checkpoint("1", 3)
        with self.scene.client("worded", log=False) as client:
            first = self.value(client, path, 1, "worded")  # It has one, and is used as it is.
            self.assertNotIn("prepared", self.starts()[-1][2])
            path = self.checkpoint("2", 3)
            os.unlink(os.path.join(path, "tokenizer.json"))
            self.assertEqual(self.value(client, path, 2, "worded"), first)
            self.assertIn("prepared", self.starts()[-1][2])  # Another tokenizer: a new server.

    def test_what_nobody_names_is_said(self) -> None:
        with self.scene.client("unnamed", log=False) as client:
            said = self.fails(client, self.made("lightning.ckpt"), 1, "own")
            self.assertIn(
                "has no config.json: name the directory of its model with `base: DIR` in the suite",
                said,
            )
            until(
                lambda: not glob.glob(
                    os.path.join(self.scene.directory, "evalq-*", "prepared", "*.partial")
                ),
                "no rest is left",
            )


class UpgradeTest(servers.unittest.TestCase):
    def test_a_worker_whose_file_was_replaced_is_still_found(self) -> None:
        with tempfile.TemporaryDirectory(prefix="evalq-upgrade-") as folder:
            program = os.path.join(folder, "evalq-worker")
            shutil.copy(shutil.which("sleep") or "", program)
            process = subprocess.Popen([program, "600"])
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            exe = f"/proc/{process.pid}/exe"
            until(lambda: os.readlink(exe) == program, "the program runs")
            os.unlink(program)
            with mock.patch("os.getppid", return_value=process.pid):
                self.assertEqual(worker_program(), exe)


if __name__ == "__main__":
    servers.unittest.main()
