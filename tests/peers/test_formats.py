"""Checkpoints of formats that evalq does not read, written by the real libraries, on every way into the queue: scan, submit,
and the Python client with a pin. A command and a persistent evaluator read them with the same libraries."""

from __future__ import annotations

import json
import os
import sys
import unittest
from typing import Dict

from peers import needs

needs("orbax.checkpoint", "jax", "flax", "keras", "gguf", "h5py")
os.environ["KERAS_BACKEND"] = "torch"
import numpy  # noqa: E402
from scene import DEADLINE, PACKAGE, SceneTest  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ENV = f"{{PYTHONPATH: {PACKAGE}, KERAS_BACKEND: torch, JAX_PLATFORMS: cpu, OMP_NUM_THREADS: 1, HOME: $OUT}}"
CONFIG = f"""
roots: {{here: $OUT}}
worker: {{slots: 1}}
evaluators:
  warm: {{kind: persistent, argv: [$PYTHON, {HERE}/any_format.py, serve], env: {ENV}}}
  once: {{argv: [$PYTHON, {HERE}/any_format.py], env: {ENV}}}
suites:
  warm: {{evaluator: warm}}
  once: {{evaluator: once}}
  orbax: {{evaluator: warm, ready: _CHECKPOINT_METADATA}}
"""


def weights(step: int) -> Dict[str, numpy.ndarray]:
    return {name: numpy.full((3, 4), step + at, numpy.float32) for at, name in enumerate(("w", "b"))}


def total(step: int) -> float:
    return 12.0 * step + 12.0 * (step + 1)


def write_npz(path: str, step: int) -> None:
    numpy.savez(path, **weights(step))


def write_gguf(path: str, step: int) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "evalq")
    for name, values in weights(step).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_keras(path: str, step: int) -> None:
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])
    model.set_weights([numpy.full((3, 8), step), numpy.full(8, 1.5)])
    model.save(path)


def write_flax(path: str, step: int) -> None:
    import flax.serialization

    with open(path, "wb") as file:
        file.write(flax.serialization.to_bytes(weights(step)))


def write_h5(path: str, step: int) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, values in weights(step).items():
            file[name] = values


def write_orbax(path: str, step: int) -> None:
    import orbax.checkpoint

    orbax.checkpoint.PyTreeCheckpointer().save(path, weights(step))


WRITERS = {"npz": write_npz, "gguf": write_gguf, "keras": write_keras, "msgpack": write_flax, "h5": write_h5}


class FormatsTest(SceneTest):
    config = CONFIG

    def save(self, folder: str) -> Dict[int, float]:
        """One file of each format, and an Orbax directory; the sum of the weights by step."""
        os.makedirs(os.path.join(self.scene.out, folder))
        wanted = {}
        for step, (name, write) in enumerate(WRITERS.items(), 1):
            write(os.path.join(self.scene.out, folder, f"step-{step}.{name}"), step)
            wanted[step] = total(step) if name != "keras" else 24.0 * step + 12.0
        write_orbax(os.path.join(self.scene.out, folder, "9"), 9)
        return {**wanted, 9: total(9)}

    def assert_totals(self, run: str, wanted: Dict[int, float]) -> None:
        done = self.scene.evalq("wait", run, "--timeout", str(int(DEADLINE)))
        self.assertEqual(done.returncode, 0, done.stderr + self.scene.evalq("dead").stdout)
        found = {}
        for line in self.scene.evalq("results", run, "--csv").stdout.splitlines()[1:]:
            words = line.split(",")
            if words[5] == "total":
                found[int(words[1])] = float(words[6])
        self.assertEqual(found, wanted)

    def test_scan(self) -> None:
        wanted = self.save("scanned")
        done = self.scene.evalq("scan", os.path.join(self.scene.out, "scanned"), "--run", "scanned", "--suite", "warm", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["submitted"], len(wanted))
        self.assert_totals("scanned", wanted)

    def test_scan_waits_for_the_marker_that_orbax_writes_last(self) -> None:
        folder = os.path.join(self.scene.out, "marked")
        write_orbax(os.path.join(folder, "7"), 7)
        os.makedirs(os.path.join(folder, "8", "ocdbt.process_0"))
        words = ("scan", folder, "--run", "marked", "--suite", "orbax", "--json")
        found = {one["name"]: one["answer"] for one in json.loads(self.scene.evalq(*words).stdout)["checkpoints"]}
        self.assertEqual(found, {"7": "queued", "8": "incomplete"})
        self.assert_totals("marked", {7: total(7)})

    def test_submit(self) -> None:
        wanted = self.save("submitted")
        folder = os.path.join(self.scene.out, "submitted")
        for name in os.listdir(folder):
            step = name.split(".")[0].replace("step-", "")
            done = self.scene.evalq("submit", os.path.join(folder, name), "--step", step, "--run", "submitted", "--suite", "once", "--pin")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_totals("submitted", wanted)

    def test_client_with_a_pin(self) -> None:
        wanted = self.save("client")
        folder = os.path.join(self.scene.out, "client")
        with self.scene.client("client", raise_errors=True) as client:
            for name in os.listdir(folder):
                step = int(name.split(".")[0].replace("step-", ""))
                client.submit(os.path.join(folder, name), step=step, suites="warm")
            self.assertTrue(client.wait(DEADLINE))
        self.assert_totals("client", wanted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
