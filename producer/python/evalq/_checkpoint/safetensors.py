"""Reads safetensors files without the package safetensors, as numpy arrays or torch tensors."""

from __future__ import annotations

import json
import math
import os
import struct
from typing import Any, Dict, List, Mapping, NamedTuple

_HEADER_BYTES_MAX = 100 << 20

# Safetensors dtype -> numpy dtype, torch dtype.
NUMPY_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
TORCH_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip
# The names that the Hugging Face Hub gives to weights of torch.save().
HUB_TORCH_NAMES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SIZES = {
    name: 8 if "64" in name else 4 if "32" in name else 2 if "16" in name else 1
    for name in TORCH_TYPES
}  # Bytes of one element.


class _Header(NamedTuple):
    entries: Dict[str, Any]  # Tensor name -> {"dtype", "shape", "data_offsets"}.
    metadata: Dict[str, str]
    data_start: int  # Offset in the file, in bytes.
    data_bytes: int


def safetensors_files(path: str) -> List[str]:
    """The safetensors files that hold the weights at path, a file or a directory.

    Returns [] if there are none, or if the directory has weights of torch.save() under a Hub name.
    The order of preference is that of Transformers and of evalq's native evaluator.
    """
    if not os.path.isdir(path):
        return [path] if path.endswith(".safetensors") else []

    def has(name: str) -> bool:
        return os.path.isfile(os.path.join(path, name))

    if has("model.safetensors"):
        return [os.path.join(path, "model.safetensors")]
    if has("model.safetensors.index.json"):
        return indexed_files(path, "model.safetensors.index.json")
    if any(has(name) for name in HUB_TORCH_NAMES):
        return []
    if has("diffusion_pytorch_model.safetensors.index.json"):
        return indexed_files(path, "diffusion_pytorch_model.safetensors.index.json")
    if has("adapter_model.safetensors"):
        return [os.path.join(path, "adapter_model.safetensors")]
    names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    return [os.path.join(path, name) for name in names]


def indexed_files(path: str, index: str) -> List[str]:
    """The paths of the files that the index file of a sharded checkpoint names."""
    with open(os.path.join(path, index), encoding="utf-8") as file:
        names = sorted(set(json.load(file)["weight_map"].values()))
    for name in names:
        if os.path.basename(name) != name:
            raise ValueError(f"'{index}' names '{name}', which is not a file beside it")
    return [os.path.join(path, name) for name in names]


def read_safetensors(path: str) -> Dict[str, Any]:
    """The tensors of one file as numpy arrays. numpy has no bfloat16, so it becomes float32.
    ValueError: the file is damaged, or has an fp8 tensor, which numpy lacks."""
    import numpy

    header = _read_header(path)
    data = numpy.empty(header.data_bytes, dtype=numpy.uint8)
    _read_data(path, header, memoryview(data.data))
    values: Dict[str, Any] = {}
    for name, entry in header.entries.items():
        begin, end = entry["data_offsets"]
        piece = data[begin:end]
        if begin % _SIZES[entry["dtype"]] != 0:
            piece = piece.copy()  # A view must begin at a multiple of the element size.
        if entry["dtype"] in NUMPY_TYPES:
            array = piece.view(NUMPY_TYPES[entry["dtype"]])
        elif entry["dtype"] == "BF16":  # The upper half of a float32.
            array = (piece.view("<u2").astype("<u4") << 16).view("<f4")
        else:
            raise ValueError(
                f"'{path}': tensor '{name}' has the type {entry['dtype']}, which numpy lacks:"
                " torch reads it"
            )
        values[name] = array.reshape(entry["shape"])
    return _with_tied(values, header.metadata)


def read_safetensors_torch(path: str) -> Dict[str, Any]:
    """The tensors of one file as torch tensors on the CPU, with their types."""
    import torch

    header = _read_header(path)
    # The program may have set another default device, so name the CPU.
    data = torch.empty(max(1, header.data_bytes), dtype=torch.uint8, device="cpu")
    _read_data(path, header, memoryview(data.numpy().data)[: header.data_bytes])
    values: Dict[str, Any] = {}
    for name, entry in header.entries.items():
        begin, end = entry["data_offsets"]
        dtype = getattr(torch, TORCH_TYPES[entry["dtype"]])
        if begin == end:
            values[name] = torch.empty(entry["shape"], dtype=dtype, device="cpu")
            continue
        piece = data[begin:end]
        if begin % _SIZES[entry["dtype"]] != 0:
            piece = piece.clone()  # A view must begin at a multiple of the element size.
        values[name] = piece.view(dtype).view(entry["shape"])
    return _with_tied(values, header.metadata)


def _read_header(path: str) -> _Header:
    """Reads the header and checks it against the size of the file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(_HEADER_BYTES_MAX, size - 8):
            raise ValueError(f"'{path}' is not a safetensors file, or it is incomplete")
        entries = json.loads(file.read(length))
    if not isinstance(entries, dict):
        raise ValueError(f"'{path}' is not a safetensors file")
    metadata = entries.pop("__metadata__", None) or {}
    data_bytes = size - 8 - length
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        dtype, shape = entry["dtype"], entry["shape"]
        if dtype not in _SIZES or any(extent < 0 for extent in shape):
            raise ValueError(f"'{path}': tensor '{name}' of type {dtype} cannot be read")
        if not 0 <= begin <= end <= data_bytes or end - begin != math.prod(shape) * _SIZES[dtype]:
            raise ValueError(
                f"'{path}': tensor '{name}' does not fit the file, which may be incomplete"
            )
    return _Header(entries, metadata, 8 + length, data_bytes)


def _read_data(path: str, header: _Header, target: memoryview) -> None:
    with open(path, "rb", buffering=0) as file:
        file.seek(header.data_start)
        done = 0
        while done < len(target):
            count = file.readinto(target[done:])
            if not count:
                raise ValueError(f"'{path}' ended before its last tensor")
            done += count


def _with_tied(values: Dict[str, Any], metadata: Mapping[str, str]) -> Dict[str, Any]:
    """Adds the names of tied tensors, which the metadata maps to the names of stored tensors."""
    for name, stored in metadata.items():
        if stored in values and name not in values:
            values[name] = values[stored]
    return values
