"""Evaluates checkpoints of formats that evalq itself does not read, each with the library that writes it: the sum of the weights.

As a program it is a command evaluator; with the argument `serve` a persistent one."""

from __future__ import annotations

import json
import os
import sys


def total(path: str) -> float:
    import numpy

    if os.path.isdir(path):
        import orbax.checkpoint

        restored = orbax.checkpoint.PyTreeCheckpointer().restore(path)
        return float(sum(numpy.sum(value) for value in restored.values()))
    if path.endswith(".npz"):
        with numpy.load(path, allow_pickle=False) as arrays:
            return float(sum(arrays[name].sum() for name in arrays.files))
    if path.endswith(".gguf"):
        import gguf

        return float(sum(tensor.data.sum() for tensor in gguf.GGUFReader(path).tensors))
    if path.endswith(".msgpack"):
        import flax.serialization

        with open(path, "rb") as file:
            return float(sum(value.sum() for value in flax.serialization.msgpack_restore(file.read()).values()))
    if path.endswith(".h5"):
        import h5py

        with h5py.File(path) as file:
            return float(sum(values[()].sum() for values in file.values()))
    import keras

    return float(sum(numpy.sum(weight) for weight in keras.saving.load_model(path).get_weights()))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        import evalq

        evalq.serve(lambda checkpoint, task, report: {"total": total(checkpoint.path)})
    else:
        with open(os.environ["EVALQ_RESULT"], "w", encoding="utf-8") as result:
            json.dump({"total": total(os.environ["EVALQ_CHECKPOINT"])}, result)
