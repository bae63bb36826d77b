"""evalq-worker convert: every format becomes a Transformers directory with the same tensors."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest
from typing import Any, Callable, Dict, Optional

from scene import BIN, SOURCE

MADE = os.path.join(SOURCE, "tests", "data", "checkpoints", "made")
LLAMA = os.path.join(SOURCE, "tests", "data", "models", "llama")


def rewritten(source: str, target: str, rename: "Callable[[str], Optional[str]]") -> None:
    """A safetensors file with other names; None leaves a tensor out."""
    with open(source, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header: Dict[str, Any] = json.loads(file.read(length))
        data = file.read()
    new: Dict[str, Any] = {}
    kept = b""
    for name, entry in header.items():
        to = None if name == "__metadata__" else rename(name)
        if to is not None:
            begin, end = entry["data_offsets"]
            new[to] = {**entry, "data_offsets": [len(kept), len(kept) + end - begin]}
            kept += data[begin:end]
    text = json.dumps(new).encode()
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + kept)


class ConvertTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="evalq-convert-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.base = self.directory(
            "base", config={"model_type": "unheard"}, tokenizer={"model": {"vocab": {"a": 0}}}
        )

    def directory(self, name: str, **files: Any) -> str:
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        for file_name, content in files.items():
            with open(os.path.join(path, file_name + ".json"), "w", encoding="utf-8") as file:
                json.dump(content, file)
        return path

    def worker(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        program = os.path.join(BIN, "evalq-worker")
        variables = {**os.environ, **environment}
        return subprocess.run(
            [program, *words],
            env=variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def convert(self, path: str, *options: str, variant: str = "regular") -> str:
        output = os.path.join(self.folder, f"out-{len(os.listdir(self.folder))}")
        done = self.worker("convert", path, output, "--variant", variant, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def refused(self, path: str, *options: str) -> str:
        done = self.worker(
            "convert",
            path,
            os.path.join(self.folder, f"refused-{len(os.listdir(self.folder))}"),
            *options,
        )
        self.assertEqual(done.returncode, 9, done.stderr)
        return done.stderr

    def seen(self, path: str, *options: str) -> "Dict[str, Any]":
        done = self.worker("inspect", "--digest", "--json", path, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        told: Dict[str, Any] = json.loads(done.stdout)
        return told

    def names(self, path: str) -> "set[str]":
        return {item["name"] for item in self.seen(path)["tensors"]}

    # Formats. The digest covers names, types, shapes and values, whatever the format.

    def test_each_format_keeps_names_types_and_values(self) -> None:
        for name in (
            "dcp",
            "dcp_grid",
            "fsdp",
            "zero",
            "lightning.ckpt",
            "nested.pt",
            "module.pt",
            "list.pt",
            "legacy_module.pt",
        ):
            with self.subTest(name):
                before, after = (
                    self.seen(path)
                    for path in (
                        f"{MADE}/{name}",
                        self.convert(f"{MADE}/{name}", "--base", self.base),
                    )
                )
                self.assertEqual(
                    (after["format"], after["digest"]), ("safetensors", before["digest"])
                )

    def test_shards_and_views_are_written_whole(self) -> None:
        for name in ("sharded_bin", "sharded_safetensors", "views.pt"):
            with self.subTest(name):
                output = self.convert(f"{MADE}/{name}", "--base", self.base)
                self.assertEqual(self.seen(output)["digest"], self.seen(f"{MADE}/{name}")["digest"])
                self.assertEqual(
                    sorted(os.listdir(output)),
                    ["config.json", "model.safetensors", "tokenizer.json"],
                )

    def test_variants_are_told_apart(self) -> None:
        for name in ("ema_lightning.ckpt", "ema_callback.ckpt", "ema_timm.pth"):
            with self.subTest(name):
                both = [
                    self.seen(self.convert(f"{MADE}/{name}", "--base", self.base, variant=one))
                    for one in ("regular", "ema")
                ]
                self.assertNotEqual(both[0]["digest"], both[1]["digest"])
                self.assertEqual(both[0]["tensors"], both[1]["tensors"])

    def test_an_adapter_is_merged_into_the_base_that_it_names(self) -> None:
        tokenizer = ("--tokenizer", self.base)
        for name in ("plain", "half", "patterns", "square"):
            with self.subTest(name):
                output = self.convert(f"{MADE}/lora/{name}", *tokenizer)
                self.assertEqual(
                    self.seen(output)["digest"], self.seen(f"{MADE}/lora/{name}")["digest"]
                )
                with open(output + "/config.json", encoding="utf-8") as file:
                    self.assertIn("architectures", json.load(file))
        elsewhere = os.path.join(self.folder, "adapter")
        shutil.copytree(f"{MADE}/lora/plain", elsewhere)
        self.assertIn("beneath none of the roots", self.refused(elsewhere, *tokenizer))
        output = self.convert(elsewhere, *tokenizer, "--base", f"{MADE}/lora/gpt2")
        self.assertEqual(self.seen(output)["digest"], self.seen(f"{MADE}/lora/plain")["digest"])

    # Names.

    def llama(self, name: str, rename: "Callable[[str], Optional[str]]") -> str:
        path = os.path.join(self.folder, name + ".safetensors")
        rewritten(os.path.join(LLAMA, "model.safetensors"), path, rename)
        return path

    def test_prefixes_of_trainers_are_stripped(self) -> None:
        tokenizer = ("--tokenizer", self.base)
        expected = self.seen(LLAMA)["digest"]
        for prefix in ("", "module.", "_orig_mod.", "model.", "model._orig_mod.", "net."):
            with self.subTest(prefix):
                path = self.llama("ck", lambda name: prefix + name)
                self.assertEqual(
                    self.seen(self.convert(path, "--base", LLAMA, *tokenizer))["digest"], expected
                )

    def test_names_of_an_unknown_family_are_those_of_its_base(self) -> None:
        base = self.directory("unknown", config={"model_type": "unheard"}, tokenizer={})
        shutil.copy(os.path.join(LLAMA, "model.safetensors"), base)
        path = self.llama("ck", lambda name: "model." + name)
        self.assertEqual(self.names(self.convert(path, "--base", base)), self.names(LLAMA))
        # Without the base's weights, "model." may be a part of the names, but "module." is none.
        path = self.llama("ddp", lambda name: "module.model." + name)
        kept = {"model." + name for name in self.names(LLAMA)}
        self.assertEqual(self.names(self.convert(path, "--base", self.base)), kept)

    def test_tensors_of_other_modules_are_left_out(self) -> None:
        tokenizer = ("--tokenizer", self.base)
        path = self.llama(
            "ck", lambda name: ("teacher." if name == "model.norm.weight" else "model.") + name
        )
        self.assertIn(
            "lacks the tensor 'model.norm.weight'", self.refused(path, "--base", LLAMA, *tokenizer)
        )
        both = os.path.join(self.folder, "both")
        os.mkdir(both)
        os.rename(self.llama("one", lambda name: "model." + name), both + "/a.safetensors")
        os.rename(
            self.llama("two", lambda name: "loss." + name if "norm" in name else None),
            both + "/b.safetensors",
        )
        shards = {("model." + name): "a.safetensors" for name in self.names(LLAMA)}
        shards.update(
            {("loss." + name): "b.safetensors" for name in self.names(LLAMA) if "norm" in name}
        )
        with open(both + "/model.safetensors.index.json", "w", encoding="utf-8") as file:
            json.dump({"weight_map": shards}, file)
        self.assertEqual(
            self.names(self.convert(both, "--base", LLAMA, *tokenizer)), self.names(LLAMA)
        )

    def test_a_tensor_that_is_missing_or_has_another_shape_is_named(self) -> None:
        tokenizer = ("--tokenizer", self.base)
        path = self.llama(
            "ck", lambda name: None if name == "model.layers.1.mlp.up_proj.weight" else name
        )
        self.assertIn(
            "lacks the tensor 'model.layers.1.mlp.up_proj.weight' of its model",
            self.refused(path, "--base", LLAMA, *tokenizer),
        )
        other = {
            "model.norm.weight": "model.layers.0.mlp.up_proj.weight",
            "model.layers.0.mlp.up_proj.weight": "model.norm.weight",
        }
        path = self.llama("swapped", lambda name: other.get(name, name))
        self.assertRegex(
            self.refused(path, "--base", LLAMA, *tokenizer),
            r"tensor '[\w.]+' has the shape \[.*\], and \[.*\] in its base",
        )

    # Configuration and tokenizer.

    def test_files_of_the_checkpoint_come_before_those_of_the_suite(self) -> None:
        own = self.directory("own", config={"model_type": "mine"})
        shutil.copy(f"{MADE}/lightning.ckpt", own + "/model.ckpt")
        tokenizer = self.directory(
            "tokenizer",
            tokenizer={"of": "tokenizer"},
            special_tokens_map={},
            config={"not": "taken"},
        )
        output = self.convert(own, "--base", self.base, "--tokenizer", tokenizer)
        with open(output + "/config.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"model_type": "mine"})
        with open(output + "/tokenizer.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"of": "tokenizer"})
        self.assertTrue(os.path.exists(output + "/special_tokens_map.json"))

    def test_what_is_missing_is_said(self) -> None:
        self.assertIn(
            "has no config.json: name the directory of its model with `base: DIR`",
            self.refused(f"{MADE}/lightning.ckpt"),
        )
        config = self.directory("config", config={})
        self.assertIn(
            "has no tokenizer: name the directory that has it with `tokenizer: DIR`",
            self.refused(f"{MADE}/zero", "--base", config),
        )
        self.assertIn("the base 'none'", self.refused(f"{MADE}/zero", "--base", "none"))
        self.assertIn(
            "the folder 'none'",
            self.refused(f"{MADE}/zero", "--base", self.base, "--tokenizer", "none"),
        )

    def test_a_complex_tensor_is_refused(self) -> None:
        self.assertRegex(
            self.refused(f"{MADE}/dtypes.pt", "--base", self.base),
            r"tensor '\w+' is \w+, which a safetensors file cannot hold",
        )

    def test_an_output_that_is_not_empty_is_left_alone(self) -> None:
        done = self.worker("convert", f"{MADE}/zero", self.base, "--base", self.base)
        self.assertEqual(done.returncode, 9)
        self.assertIn(f"the directory '{self.base}' is not empty", done.stderr)
        self.assertEqual(sorted(os.listdir(self.base)), ["config.json", "tokenizer.json"])

    # As a command of prepare.

    def test_as_prepare_it_takes_the_variables(self) -> None:
        job = self.directory("job", job={"variant": "ema"}) + "/job.json"
        output = self.directory("prepared")
        variables = {
            "EVALQ_CHECKPOINT": f"{MADE}/ema_lightning.ckpt",
            "EVALQ_OUTPUT": output,
            "EVALQ_JOB": job,
        }
        done = self.worker("convert", "--base", self.base, **variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = self.convert(f"{MADE}/ema_lightning.ckpt", "--base", self.base, variant="ema")
        self.assertEqual(self.seen(output)["digest"], self.seen(expected)["digest"])
        done = self.worker("convert", **{**variables, "EVALQ_OUTPUT": self.directory("other")})
        self.assertEqual(done.returncode, os.EX_DATAERR)  # Trying again is useless.


if __name__ == "__main__":
    unittest.main()
