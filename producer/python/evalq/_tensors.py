"""Safetensors without the package: a file, or the sharded directory of one, as numpy arrays or torch tensors."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, Iterator, List, Mapping, Tuple

_HEADER_BYTES_MAX = 100 << 20

# What safetensors calls a type -> numpy, torch.
NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
HUB_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_BYTES = {name: 8 if "64" in name else 4 if "32" in name else 2 if "16" in name else 1 for name in TORCH}


def _entries(path: str) -> "Tuple[Dict[str, Any], Dict[str, str], int, int]":
    """The tensors of a file, its metadata, where its data begins, how long it is; checked against each other."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(_HEADER_BYTES_MAX, size - 8):
            raise ValueError(f"'{path}' is no safetensors file, or not complete")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"'{path}' is no safetensors file")
    metadata = header.pop("__metadata__", None) or {}
    data_bytes = size - 8 - length
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        count = 1
        for extent in entry["shape"]:
            count *= extent
        if entry["dtype"] not in _BYTES or any(extent < 0 for extent in entry["shape"]):
            raise ValueError(f"'{path}': tensor '{name}' of type {entry['dtype']} cannot be read")
        if not 0 <= begin <= end <= data_bytes or end - begin != count * _BYTES[entry["dtype"]]:
            raise ValueError(f"'{path}': tensor '{name}' does not fit the file; it may not be complete")
    return header, metadata, 8 + length, data_bytes


def safetensors_files(path: str) -> List[str]:
    """The files that hold the weights at path: itself, or what lies in a directory; [] when there are none, or what the hub's
    names call the weights there is of torch.save. In the order of the worker's own reader, which is Transformers'."""
    if not os.path.isdir(path):
        return [path] if path.endswith(".safetensors") else []
    if os.path.isfile(os.path.join(path, "model.safetensors")):
        return [os.path.join(path, "model.safetensors")]
    if os.path.isfile(os.path.join(path, "model.safetensors.index.json")):
        return indexed_files(path, "model.safetensors.index.json")
    if any(os.path.isfile(os.path.join(path, name)) for name in HUB_TORCH):
        return []
    if os.path.isfile(os.path.join(path, "diffusion_pytorch_model.safetensors.index.json")):
        return indexed_files(path, "diffusion_pytorch_model.safetensors.index.json")
    if os.path.isfile(os.path.join(path, "adapter_model.safetensors")):
        return [os.path.join(path, "adapter_model.safetensors")]
    return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".safetensors"))


def indexed_files(path: str, index: str) -> List[str]:
    """The files that an index of the directory names."""
    with open(os.path.join(path, index), encoding="utf-8") as file:
        names = sorted(set(json.load(file)["weight_map"].values()))
    for name in names:
        if os.path.basename(name) != name:
            raise ValueError(f"'{index}' names '{name}', which is not a file beside it")
    return [os.path.join(path, name) for name in names]


def _tied(values: Dict[str, Any], metadata: Mapping[str, str]) -> Iterator[Tuple[str, Any]]:
    for name, other in metadata.items():
        if other in values and name not in values:
            yield name, values[other]


def read_safetensors(path: str) -> Dict[str, Any]:
    """numpy arrays; bf16 and fp8, which numpy lacks, as float32."""
    import numpy

    header, metadata, start, data_bytes = _entries(path)
    data = numpy.empty(data_bytes, dtype=numpy.uint8)
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        _read_into(file, memoryview(data.data))
    values: Dict[str, Any] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        piece = data[begin:end]
        if entry["dtype"] in NUMPY:
            array = piece.view(NUMPY[entry["dtype"]]) if begin % _BYTES[entry["dtype"]] == 0 else None
            if array is None:
                array = numpy.frombuffer(piece.tobytes(), dtype=NUMPY[entry["dtype"]])
        elif entry["dtype"] == "BF16":
            array = (numpy.frombuffer(piece.tobytes(), dtype="<u2").astype("<u4") << 16).view("<f4")
        else:
            raise ValueError(f"'{path}': tensor '{name}' is {entry['dtype']}, which numpy lacks: torch reads it")
        values[name] = array.reshape(entry["shape"])
    values.update(_tied(values, metadata))
    return values


def read_safetensors_torch(path: str) -> Dict[str, Any]:
    """torch tensors of one safetensors file, every type as it is, in memory of their own."""
    import torch

    header, metadata, start, data_bytes = _entries(path)
    data = torch.empty(max(1, data_bytes), dtype=torch.uint8, device="cpu")  # Whatever the program's default is.
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        _read_into(file, memoryview(data.numpy().data)[:data_bytes])
    values: Dict[str, Any] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = getattr(torch, TORCH[entry["dtype"]])
        piece = data[begin:end]
        if begin % _BYTES[entry["dtype"]] != 0:
            piece = piece.clone()  # A view needs its alignment.
        values[name] = piece.view(dtype).view(entry["shape"]) if end > begin else torch.empty(entry["shape"], dtype=dtype, device="cpu")
    values.update(_tied(values, metadata))
    return values


def _read_into(file: Any, target: memoryview) -> None:
    at = 0
    while at < len(target):
        got = file.readinto(target[at:])
        if not got:
            raise ValueError(f"'{file.name}' ended before its last tensor")
        at += got
