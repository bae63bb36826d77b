"""A state dict in host memory, in the order of a safetensors file, and that file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ._arguments import shown
from ._library import EvalqError
from ._memory import HostMemory
from ._tensors import NUMPY, TORCH

# numpy kind and size, or torch dtype, -> safetensors.
_NUMPY = {kind[1:]: name for name, kind in NUMPY.items()}
_TORCH = {kind: name for name, kind in TORCH.items()}


@dataclass
class Tensor:
    name: str
    dtype: str
    shape: Tuple[int, ...]
    bytes: int
    offset: int


@dataclass
class StateCopy:
    """Host memory that holds one state dict in the order of the file: header apart, data in one piece."""

    header: bytes
    data: Any  # Of HostMemory: at least data_bytes long.
    data_bytes: int
    wait: Callable[[], None]  # Until the device's copies have landed.


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[Tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, name + ".")
        elif _is_torch(value) or _is_numpy(value):
            yield name, value


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")  # Whoever has tensors has imported it.
    return torch is not None and isinstance(value, torch.Tensor)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _kind(value: Any) -> Tuple[str, int]:
    """Safetensors' dtype and the size of an element."""
    if _is_torch(value):
        name = str(value.dtype).replace("torch.", "")
        if name in _TORCH:
            return _TORCH[name], int(value.element_size())
    else:
        name = f"{value.dtype.kind}{value.dtype.itemsize}"
        if str(value.dtype) == "bfloat16":  # ml_dtypes
            return "BF16", 2
        if name in _NUMPY:
            return _NUMPY[name], int(value.dtype.itemsize)
    raise EvalqError(f"a tensor of type {value.dtype} has no place in safetensors")


def _identity(value: Any) -> Any:
    """Equal for tensors that are the same memory seen the same way: tied weights."""
    if _is_torch(value):
        address = value.data_ptr() if value.numel() > 0 else 0
        if address == 0:  # Of the device "meta", or a tensor made of others: they have no memory of their own.
            return id(value)
        seen = (tuple(value.shape), tuple(value.stride()), str(value.dtype), value.is_neg())
        return (str(value.device), address, *seen)
    interface = value.__array_interface__
    return ("numpy", interface["data"][0], value.shape, value.strides, str(value.dtype)) if value.size else id(value)


@dataclass
class Plan:
    """Where each tensor lies in the file, largest alignment first."""

    tensors: List[Tensor]
    sources: List[Any]  #: In the same order.
    tied: Dict[str, str]  #: Names of tied tensors, and the one that stands for them.
    data_bytes: int

    @property
    def on_gpu(self) -> bool:
        return any(_is_torch(source) and source.is_cuda for source in self.sources)


def plan(state_dict: Mapping[str, Any]) -> Plan:
    if not isinstance(state_dict, Mapping):
        raise EvalqError(f"state_dict is {shown(state_dict)}, expected a mapping of names to tensors")
    first: Dict[Any, str] = {}
    tied: Dict[str, str] = {}
    found: List[Tuple[str, Any]] = []
    for name, value in _flatten(state_dict):
        if hasattr(value, "full_tensor"):
            raise EvalqError(f"'{name}' is sharded over processes: gather the state dict first, or save and submit a path")
        identity = _identity(value)
        if identity in first:
            tied[name] = first[identity]
            continue
        first[identity] = name
        found.append((name, value))
    if not found:
        raise EvalqError("the state dict holds no tensor")
    found.sort(key=lambda item: -_kind(item[1])[1])  # Stable: aligned for every reader.
    tensors: List[Tensor] = []
    offset = 0
    for name, value in found:
        dtype, size = _kind(value)
        shape = tuple(int(length) for length in value.shape)
        count = 1
        for length in shape:
            count *= length
        tensors.append(Tensor(name, dtype, shape, count * size, offset))
        offset += count * size
    return Plan(tensors, [value for _, value in found], tied, offset)


def header(tensors: List[Tensor], tied: Mapping[str, str], metadata: Optional[Mapping[str, str]]) -> bytes:
    """Safetensors' header; tied names go into its metadata, as safetensors.torch.save_model does."""
    texts = {str(key): str(value) for key, value in (metadata or {}).items()}
    texts.setdefault("format", "pt")
    texts.update(tied)
    entries: Dict[str, Any] = {"__metadata__": texts}
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [tensor.offset, tensor.offset + tensor.bytes],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text


class StateCopier:
    """Copies state dicts into host memory: pinned where there is a GPU. The training thread's, but reserve()."""

    def __init__(self) -> None:
        self._memory = HostMemory()
        self._streams: Dict[str, Any] = {}

    def reserve(self, size: int, on_gpu: bool) -> None:
        """So that the next copy of that size finds memory whose pages are there."""
        self._memory.reserve(size, on_gpu)

    @property
    def reserved(self) -> int:
        return self._memory.kept

    def give(self, copy: StateCopy) -> None:
        """Its memory may be taken for the next copy."""
        self._memory.give(copy.data)

    def copy(self, planned: Plan, metadata: Optional[Mapping[str, str]]) -> StateCopy:
        text = header(planned.tensors, planned.tied, metadata)
        if any(_is_torch(source) for source in planned.sources):
            data, wait = self._fill(planned)
        else:
            data, wait = self._memory.take(planned.data_bytes, False), _nothing
            _fill_numpy(planned, data)
        return StateCopy(text, data, planned.data_bytes, wait)

    def _fill(self, planned: Plan) -> "Tuple[Any, Callable[[], None]]":
        import torch

        cuda: Any = torch.cuda  # Not typed.
        devices = {source.device for source in planned.sources if _is_torch(source) and source.is_cuda}
        memory = self._memory.take(planned.data_bytes, bool(devices))
        buffer = memory if _is_torch(memory) else torch.frombuffer(memory, dtype=torch.uint8)
        events: List[Any] = []
        for device in devices:
            if str(device) not in self._streams:
                self._streams[str(device)] = cuda.Stream(device=device)
            self._streams[str(device)].wait_stream(cuda.current_stream(device))
        with torch.no_grad():
            for tensor, source in zip(planned.tensors, planned.sources):
                if tensor.bytes == 0:
                    continue
                if not _is_torch(source):
                    source = torch.from_numpy(_contiguous(source).view("u1").reshape(-1))
                    buffer[tensor.offset : tensor.offset + tensor.bytes].copy_(source)
                    continue
                source = source.detach()
                target = buffer[tensor.offset : tensor.offset + tensor.bytes].view(source.dtype).view(tensor.shape)
                if source.is_cuda:
                    stream = self._streams[str(source.device)]
                    with cuda.stream(stream):
                        target.copy_(source, non_blocking=True)
                else:
                    target.copy_(source)
        for device in devices:
            stream = self._streams[str(device)]
            # The optimizer must not change weights that are still being copied: kept short of a
            # synchronisation, the training stream alone waits, on the device.
            cuda.current_stream(device).wait_stream(stream)
            event = cuda.Event()
            event.record(stream)
            events.append(event)

        def wait() -> None:
            for event in events:
                event.synchronize()

        return memory, wait


def _contiguous(array: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(array, dtype=_little(array.dtype)).reshape(-1)


def _little(dtype: Any) -> Any:
    """The type as the file has it, whatever the order of its bytes in memory."""
    return dtype.newbyteorder("<")


def _fill_numpy(planned: Plan, data: Any) -> None:
    import numpy

    buffer = numpy.frombuffer(data, dtype=numpy.uint8)
    for tensor, source in zip(planned.tensors, planned.sources):
        if tensor.bytes > 0:
            target = buffer[tensor.offset : tensor.offset + tensor.bytes].view(_little(source.dtype)).reshape(tensor.shape)
            numpy.copyto(target, source)


def _nothing() -> None:
    pass


def write(path: str, copy: StateCopy) -> None:
    """Whole or not at all: written under another name, then renamed."""
    data: Any = copy.data
    if _is_torch(data):
        data = data.numpy()
    view = memoryview(data).cast("B")[: copy.data_bytes]
    part = path + ".part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.posix_fallocate(fd, 0, len(copy.header) + copy.data_bytes)  # Full: known before a byte is copied.
            for piece in (memoryview(copy.header), view):
                at = 0
                while at < len(piece):
                    at += os.write(fd, piece[at : at + (64 << 20)])
        finally:
            os.close(fd)
        os.rename(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        room = shutil.disk_usage(os.path.dirname(path)).free
        raise EvalqError(
            f"{os.path.dirname(path)}: {error.strerror}, {copy.data_bytes} bytes needed, {room} free: make room in"
            " /dev/shm, lower `snapshots`, or save and submit a path"
        ) from error
