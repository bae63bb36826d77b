"""Copies a state dict to host memory and writes the copy as a safetensors file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import struct
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from .._arguments import shown
from .._checkpoint.safetensors import NUMPY_TYPES, TORCH_TYPES
from .._library import EvalqError
from .host_memory import HostMemory

# The kind and size of a numpy dtype ("f4"), or the name of a torch dtype -> safetensors dtype.
_FROM_NUMPY = {dtype[1:]: name for name, dtype in NUMPY_TYPES.items()}
_FROM_TORCH = {dtype: name for name, dtype in TORCH_TYPES.items()}
_HEADER_ALIGNMENT = 64
_WRITE_BYTES = 64 << 20  # The size of one write().


@dataclass
class TensorEntry:
    """One tensor in the file. bytes and offset are in bytes; offset 0 is the end of the header."""

    name: str
    dtype: str  #: The safetensors name, such as "BF16".
    shape: Tuple[int, ...]
    bytes: int
    offset: int


@dataclass
class Layout:
    """The place of each tensor of a state dict in the file."""

    entries: List[TensorEntry]  #: Types of many bytes come first, so that all tensors are aligned.
    sources: List[Any]  #: The tensor or array of each entry.
    tied: Dict[str, str]  #: Name of a tensor that shares its memory -> name of the entry.
    data_bytes: int

    @property
    def on_gpu(self) -> bool:
        """Whether any tensor is on a CUDA device."""
        return any(_is_torch(source) and source.is_cuda for source in self.sources)


@dataclass
class StateCopy:
    """One state dict in host memory."""

    header: bytes  #: The header of the safetensors file.
    data: Any  #: Memory from HostMemory that holds the data of the file; it may be longer.
    data_bytes: int
    wait: Callable[[], None]  #: Returns when the copies from GPUs are complete.


def plan_layout(state_dict: Mapping[str, Any]) -> Layout:
    """Plans the file. Nested mappings give names with dots; values that are no tensors are left
    out. EvalqError: there is no tensor, or one cannot be written."""
    if not isinstance(state_dict, Mapping):
        raise EvalqError(
            f"state_dict is {shown(state_dict)}, expected a mapping of names to tensors"
        )
    names_by_memory: Dict[Any, str] = {}
    tied: Dict[str, str] = {}
    tensors: List[Tuple[str, Any]] = []
    for name, value in _flatten(state_dict):
        if hasattr(value, "full_tensor"):
            raise EvalqError(
                f"'{name}' is sharded over processes: gather the state dict first, or save and"
                " submit a path"
            )
        memory = _memory_identity(value)
        if memory in names_by_memory:
            tied[name] = names_by_memory[memory]
        else:
            names_by_memory[memory] = name
            tensors.append((name, value))
    if not tensors:
        raise EvalqError("the state dict holds no tensor")
    tensors.sort(key=lambda item: -_dtype_and_size(item[1])[1])
    entries: List[TensorEntry] = []
    offset = 0
    for name, value in tensors:
        dtype, size = _dtype_and_size(value)
        shape = tuple(int(length) for length in value.shape)
        entries.append(TensorEntry(name, dtype, shape, math.prod(shape) * size, offset))
        offset += entries[-1].bytes
    return Layout(entries, [value for _, value in tensors], tied, offset)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[Tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, name + ".")
        elif _is_torch(value) or _is_numpy(value):
            yield name, value


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")  # A caller with torch tensors has imported torch.
    return torch is not None and isinstance(value, torch.Tensor)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _dtype_and_size(value: Any) -> Tuple[str, int]:
    """The safetensors dtype, and the size of one element in bytes."""
    if _is_torch(value):
        name = str(value.dtype).replace("torch.", "")
        if name in _FROM_TORCH:
            return _FROM_TORCH[name], int(value.element_size())
    else:
        name = f"{value.dtype.kind}{value.dtype.itemsize}"
        if str(value.dtype) == "bfloat16":  # The dtype of the package ml_dtypes.
            return "BF16", 2
        if name in _FROM_NUMPY:
            return _FROM_NUMPY[name], int(value.dtype.itemsize)
    raise EvalqError(f"safetensors cannot hold a tensor of type {value.dtype}")


def _memory_identity(value: Any) -> Any:
    """A key that is equal for tied weights: tensors that view the same memory in the same way."""
    if _is_torch(value):
        address = value.data_ptr() if value.numel() > 0 else 0
        if address == 0:  # Tensors of the device "meta" and composed tensors have no own memory.
            return id(value)
        view = (tuple(value.shape), tuple(value.stride()), str(value.dtype), value.is_neg())
        return (str(value.device), address, *view)
    if value.size == 0:
        return id(value)
    address = value.__array_interface__["data"][0]
    return ("numpy", address, value.shape, value.strides, str(value.dtype))


def make_header(layout: Layout, metadata: Optional[Mapping[str, str]]) -> bytes:
    """The safetensors header with its length. Its metadata maps tied names to the names of the
    stored tensors, in the form of safetensors.torch.save_model()."""
    texts = {str(key): str(value) for key, value in (metadata or {}).items()}
    texts.setdefault("format", "pt")
    texts.update(layout.tied)
    header: Dict[str, Any] = {"__metadata__": texts}
    for entry in layout.entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [entry.offset, entry.offset + entry.bytes],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


class StateCopier:
    """Copies state dicts into memory that it reuses; pinned memory for tensors on a GPU.

    reserve() and give() may be called from any thread, and so may copy() if no tensor is on a GPU.
    """

    def __init__(self) -> None:
        self._memory = HostMemory()
        self._streams: Dict[str, Any] = {}  # Device name -> the CUDA stream of its copies.

    def reserve(self, size: int, on_gpu: bool) -> None:
        """Allocates memory for a copy of size bytes, so that the next copy() need not do it."""
        self._memory.reserve(size, on_gpu)

    @property
    def reserved(self) -> int:
        """How many bytes the next copy can have without an allocation."""
        return self._memory.largest

    def give(self, copy: StateCopy) -> None:
        """Takes back the memory of a copy, for a later copy."""
        self._memory.give(copy.data)

    def copy(self, layout: Layout, metadata: Optional[Mapping[str, str]]) -> StateCopy:
        """Copies the tensors of layout. The caller may change them at once, also on a GPU. Pass the
        copy to give() when it is no longer needed; call its wait() before reading its data."""
        header = make_header(layout, metadata)
        if any(_is_torch(source) for source in layout.sources):
            data, wait = self._copy_torch(layout)
            return StateCopy(header, data, layout.data_bytes, wait)
        import numpy

        data = self._memory.take(layout.data_bytes, False)
        _copy_arrays(layout, numpy.frombuffer(data, dtype=numpy.uint8))
        return StateCopy(header, data, layout.data_bytes, lambda: None)

    def _copy_torch(self, layout: Layout) -> "Tuple[Any, Callable[[], None]]":
        """Copies torch tensors and numpy arrays. Returns the memory, and the copy's wait()."""
        import torch

        cuda: Any = torch.cuda  # torch declares no types for it.
        devices = {
            source.device for source in layout.sources if _is_torch(source) and source.is_cuda
        }
        memory = self._memory.take(layout.data_bytes, bool(devices))
        buffer = memory if _is_torch(memory) else torch.frombuffer(memory, dtype=torch.uint8)
        self._begin_streams(cuda, devices)
        with torch.no_grad():
            for entry, source in zip(layout.entries, layout.sources):
                if entry.bytes == 0 or not _is_torch(source):
                    continue
                source = source.detach()
                place = buffer[entry.offset : entry.offset + entry.bytes]
                target = place.view(source.dtype).view(entry.shape)
                if source.is_cuda:
                    with cuda.stream(self._streams[str(source.device)]):
                        target.copy_(source, non_blocking=True)
                else:
                    target.copy_(source)
        if any(_is_numpy(source) for source in layout.sources):
            _copy_arrays(layout, buffer.numpy())
        return memory, self._end_streams(cuda, devices)

    def _begin_streams(self, cuda: Any, devices: Set[Any]) -> None:
        """Makes the copies wait for the work that the training has queued on each device."""
        for device in devices:
            if str(device) not in self._streams:
                self._streams[str(device)] = cuda.Stream(device=device)
            self._streams[str(device)].wait_stream(cuda.current_stream(device))

    def _end_streams(self, cuda: Any, devices: Set[Any]) -> Callable[[], None]:
        """Makes later work of the training wait, on the device, until the copies are complete: the
        optimizer must not change weights before. The CPU does not wait. Returns a function that
        does."""
        events: List[Any] = []
        for device in devices:
            stream = self._streams[str(device)]
            cuda.current_stream(device).wait_stream(stream)
            event = cuda.Event()
            event.record(stream)
            events.append(event)

        def wait() -> None:
            for event in events:
                event.synchronize()

        return wait


def _copy_arrays(layout: Layout, buffer: Any) -> None:
    """Copies the numpy arrays of layout into an array of bytes, in little-endian order."""
    import numpy

    for entry, source in zip(layout.entries, layout.sources):
        if entry.bytes > 0 and _is_numpy(source):
            place = buffer[entry.offset : entry.offset + entry.bytes]
            numpy.copyto(place.view(source.dtype.newbyteorder("<")).reshape(entry.shape), source)


def write_file(path: str, copy: StateCopy) -> None:
    """Writes the copy to path; other processes see either no file or the whole file. EvalqError:
    there is no space, or another error of the file system."""
    data: Any = copy.data.numpy() if _is_torch(copy.data) else copy.data
    view = memoryview(data).cast("B")[: copy.data_bytes]
    part = path + ".part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # This finds out whether there is enough space before any byte is written.
            os.posix_fallocate(fd, 0, len(copy.header) + copy.data_bytes)
            _write_all(fd, memoryview(copy.header))
            _write_all(fd, view)
        finally:
            os.close(fd)
        os.rename(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        directory = os.path.dirname(path)
        free = shutil.disk_usage(directory).free
        raise EvalqError(
            f"{directory}: {error.strerror}, {copy.data_bytes} bytes needed, {free} free:"
            " free space in /dev/shm, lower `snapshots`, or save and submit a path"
        ) from error


def _write_all(fd: int, data: memoryview) -> None:
    written = 0
    while written < len(data):
        written += os.write(fd, data[written : written + _WRITE_BYTES])
