"""Weights that are never saved: copied once to host memory on the training thread, written as safetensors into
shared memory and submitted by a thread of their own, removed when their jobs ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import struct
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from . import _library
from ._library import EvalqError

if TYPE_CHECKING:
    from ._handle import Handle, Submit
    from .result import Result

_POLL_MS = 1000
_LOOK_SECONDS = 0.25
_LOOK_IDLE_SECONDS = 2.0
_CLOSE_SECONDS = 10.0
_ABANDONED_SECONDS = 3600.0  # Snapshots of a dead trainer may still be read for so long.
_LOCK = ".lock"

# numpy kind and size, or torch dtype, -> safetensors.
_NUMPY = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8",
    "u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL",
}  # fmt: skip
_TORCH = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


@dataclass
class _Tensor:
    name: str
    dtype: str
    shape: Tuple[int, ...]
    bytes: int
    offset: int


@dataclass
class _Copy:
    """Host memory that holds one state dict in the order of the file: header apart, data in one piece."""

    header: bytes
    data: Any  # Something with the buffer protocol, data_bytes long.
    data_bytes: int
    wait: Callable[[], None]  # Until the device's copies have landed.


@dataclass
class _Snapshot:
    submit: "Submit"
    copy: Optional[_Copy]
    path: str = ""
    submitted: bool = False
    open_jobs: Set[str] = field(default_factory=set)


def default_directory() -> str:
    """The directory behind the built-in root "shm"."""
    return f"/dev/shm/evalq-{os.getuid()}"


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
        if value.numel() == 0 or str(value.device) == "meta":
            return id(value)
        return (str(value.device), value.data_ptr(), tuple(value.shape), tuple(value.stride()), str(value.dtype))
    interface = value.__array_interface__
    return ("numpy", interface["data"][0], value.shape, value.strides, str(value.dtype)) if value.size else id(value)


def _plan(state_dict: Mapping[str, Any]) -> Tuple[List[_Tensor], List[Any], Dict[str, str], int]:
    """Where each tensor lies in the file, largest alignment first; sources in the same order; the names of tied
    tensors with the one that stands for them; bytes in all."""
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
    tensors: List[_Tensor] = []
    offset = 0
    for name, value in found:
        dtype, size = _kind(value)
        shape = tuple(int(length) for length in value.shape)
        count = 1
        for length in shape:
            count *= length
        tensors.append(_Tensor(name, dtype, shape, count * size, offset))
        offset += count * size
    return tensors, [value for _, value in found], tied, offset


def _header(tensors: List[_Tensor], tied: Mapping[str, str], metadata: Optional[Mapping[str, str]]) -> bytes:
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


class _TorchHost:
    """Host memory as torch has it: pinned where there is a GPU, and kept for the next snapshot."""

    def __init__(self) -> None:
        self._free: Optional[Any] = None
        self._streams: Dict[str, Any] = {}
        self._lock = threading.Lock()

    def take(self, data_bytes: int, pinned: bool) -> Any:
        import torch

        with self._lock:
            kept, self._free = self._free, None
        if kept is not None and kept.numel() >= data_bytes and kept.is_pinned() == pinned:
            return kept
        return torch.empty(max(1, data_bytes), dtype=torch.uint8, pin_memory=pinned)

    def give(self, buffer: Any) -> None:
        with self._lock:
            self._free = buffer

    def fill(self, tensors: List[_Tensor], sources: List[Any], data_bytes: int) -> "Tuple[Any, Callable[[], None]]":
        import torch

        cuda: Any = torch.cuda  # Not typed.
        on_gpu = any(_is_torch(source) and source.is_cuda for source in sources)
        buffer = self.take(data_bytes, on_gpu)
        events: List[Any] = []
        devices = {source.device for source in sources if _is_torch(source) and source.is_cuda}
        for device in devices:
            if str(device) not in self._streams:
                self._streams[str(device)] = cuda.Stream(device=device)
            self._streams[str(device)].wait_stream(cuda.current_stream(device))
        with torch.no_grad():
            for tensor, source in zip(tensors, sources):
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

        return buffer, wait


def _contiguous(array: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(array).reshape(-1)


def _fill_numpy(tensors: List[_Tensor], sources: List[Any], data_bytes: int) -> Any:
    import numpy

    buffer = numpy.empty(max(1, data_bytes), dtype=numpy.uint8)
    for tensor, source in zip(tensors, sources):
        if tensor.bytes > 0:
            target = buffer[tensor.offset : tensor.offset + tensor.bytes].view(source.dtype).reshape(tensor.shape)
            numpy.copyto(target, source)
    return buffer


class Snapshots:
    """The snapshots of one client. put() is the training thread's; everything else happens on a thread of its own."""

    def __init__(
        self,
        *,
        open_handle: "Callable[[], Handle]",
        limit: int,
        submitted: "Callable[[Submit, Optional[str]], None]",
        log: Optional[logging.Logger],
        directory: Optional[str] = None,
    ) -> None:
        self._open_handle = open_handle
        self._limit = limit
        self._submitted = submitted
        self._log = log
        self._root = directory or default_directory()
        self._directory = ""
        self._lock_fd = -1
        self._handle: "Optional[Handle]" = None
        self._host = _TorchHost()
        self._condition = threading.Condition()
        self._waiting: Deque[_Snapshot] = deque()  # Copied, not written yet.
        self._kept: List[_Snapshot] = []  # Written, oldest first.
        self._busy = False
        self._closing = False
        self._thread: Optional[threading.Thread] = None
        self._warned = False
        self.dropped = 0

    @property
    def held(self) -> int:
        with self._condition:
            return len(self._kept)

    def stats(self) -> List[_library.StatsView]:
        handle = self._handle
        return [handle.stats()] if handle is not None else []

    # -- the training thread

    def put(self, state_dict: Mapping[str, Any], submit: "Submit", metadata: Optional[Mapping[str, str]]) -> None:
        """Copies the tensors; a copy of the same curve that the writer has not begun with is replaced."""
        tensors, sources, tied, data_bytes = _plan(state_dict)
        header = _header(tensors, tied, metadata)
        with self._condition:
            if self._closing:
                raise EvalqError("the client is closed")
            curve = (submit.variant, submit.suites)
            older = [one for one in self._waiting if (one.submit.variant, one.submit.suites) == curve]
            if not older and len(self._waiting) >= self._limit:
                older = [self._waiting[0]]
            for one in older:  # Writing is slower than training: the new one needs its memory.
                self._waiting.remove(one)
                self._drop(one, f"step {submit.step} came before it was written")
        if any(_is_torch(source) for source in sources):
            data, wait = self._host.fill(tensors, sources, data_bytes)
        else:
            data, wait = _fill_numpy(tensors, sources, data_bytes), _nothing
        with self._condition:
            self._waiting.append(_Snapshot(submit, _Copy(header, data, data_bytes, wait)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="evalq-snapshots", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def flush(self, deadline: float) -> bool:
        """Until every copy is written, submitted and in Redis."""
        with self._condition:
            while self._waiting or self._busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(min(left, 0.5))
            handle = self._handle
        while handle is not None:
            left = deadline - time.monotonic()
            code = handle.flush(max(0, int(min(200.0, left * 1000))))
            if code == _library.OK:
                break
            if left <= 0:
                return False
        return True

    def close(self) -> None:
        """Writes and sends what was copied, then removes every snapshot: shared memory outlives the process."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
        with self._condition:
            for snapshot in self._kept:
                if snapshot.open_jobs:
                    self._say(
                        "step %d: the trainer ended before its state dict was evaluated; wait() keeps it",
                        snapshot.submit.step,
                    )
            self._kept.clear()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock_fd)
            self._directory = ""

    # -- the thread

    def _work(self) -> None:
        pause = _LOOK_SECONDS
        while True:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
                if not self._waiting and not self._closing:
                    self._condition.wait(pause if self._kept else None)
                leaving = self._closing and not self._waiting
                snapshot = self._waiting.popleft() if self._waiting else None
                self._busy = snapshot is not None
            try:
                if snapshot is not None:
                    self._store(snapshot)
                    pause = _LOOK_SECONDS
                elif self._release():
                    pause = _LOOK_SECONDS
                elif not leaving:
                    pause = min(pause * 1.3, _LOOK_IDLE_SECONDS)
            except Exception as error:  # Nothing here may end the thread: training goes on.
                if snapshot is not None:
                    self._drop(snapshot, str(error) or type(error).__name__)
            if leaving:
                return

    def _store(self, snapshot: _Snapshot) -> None:
        copy = snapshot.copy
        assert copy is not None
        if self._handle is None:
            self._handle = self._open_handle()
        self._release()
        if len(self._kept) >= self._limit:
            self._make_room(snapshot.submit)
        self._make_directory()
        submit = snapshot.submit
        path = os.path.join(self._directory, f"{submit.step}-{submit.variant}-{time.time_ns():x}.safetensors")
        copy.wait()
        _write(path, copy)
        if _is_torch(copy.data):
            self._host.give(copy.data)
        snapshot.copy = None
        snapshot.path = path
        snapshot.open_jobs = {suite.strip() for suite in submit.suites.split(",") if suite.strip()}
        code = self._handle.submit(path, submit)
        if code != _library.OK:
            failure = self._handle.failure(code)
            os.unlink(path)
            raise failure
        with self._condition:
            self._kept.append(snapshot)
        self._submitted(submit, None)

    def _make_directory(self) -> None:
        if self._directory:
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._root, 0o700)
        info = os.stat(self._root)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise EvalqError(f"'{self._root}' is not this user's alone: remove it, or name another as root shm")
        self._sweep()
        directory = os.path.join(self._root, f"snapshots-{os.getpid()}-{time.time_ns():x}")
        os.mkdir(directory, 0o700)
        self._lock_fd = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        self._directory = directory

    def _sweep(self) -> None:
        """Removes what trainers left that died without a word, once nobody can be reading it any more."""
        for entry in os.listdir(self._root):
            directory = os.path.join(self._root, entry)
            if not entry.startswith("snapshots-"):
                continue
            with contextlib.suppress(OSError):
                if time.time() - os.stat(directory).st_mtime < _ABANDONED_SECONDS:
                    continue
                fd = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Held: its trainer lives.
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    os.close(fd)

    def _release(self) -> bool:
        """Removes the snapshots whose jobs have all ended. Whether any was."""
        handle = self._handle
        if handle is None or not self._kept:
            return False
        run = handle.run()
        handle.poll(lambda result: self._ended(run, result), _POLL_MS)
        done = [snapshot for snapshot in self._kept if not snapshot.open_jobs]
        for snapshot in done:
            self._remove(snapshot)
        return bool(done)

    def _ended(self, run: str, result: "Result") -> None:
        if not result.is_end:
            return
        for snapshot in self._kept:
            submit = snapshot.submit
            if (submit.step, submit.variant) == (result.step, result.variant):
                snapshot.open_jobs.discard(result.suite)

    def _remove(self, snapshot: _Snapshot) -> None:
        with contextlib.suppress(OSError):
            os.unlink(snapshot.path)
        with self._condition:
            if snapshot in self._kept:
                self._kept.remove(snapshot)

    def _make_room(self, newer: "Submit") -> None:
        """Drops the oldest that no worker has begun; EvalqError when there is none."""
        handle = self._handle
        assert handle is not None
        reason = f"dropped from memory for step {newer.step}"
        for snapshot in list(self._kept):
            submit = snapshot.submit
            if submit.keep:
                continue
            for suite in sorted(snapshot.open_jobs):
                code = handle.withdraw(submit.step, submit.variant, suite, reason, _POLL_MS)
                if code == _library.OK:
                    snapshot.open_jobs.discard(suite)
                elif code not in (_library.BUSY, _library.NOT_FOUND):
                    raise EvalqError(f"{self._limit} snapshots wait already, and {handle.failure(code)}", code)
            if not snapshot.open_jobs:
                self._remove(snapshot)
                self._drop(snapshot, f"step {newer.step} needs its room")
                return
        raise EvalqError(f"the {self._limit} snapshots that are allowed are being evaluated, or kept")

    def _drop(self, snapshot: _Snapshot, reason: str) -> None:
        self.dropped += 1
        copy, snapshot.copy = snapshot.copy, None
        if copy is not None and _is_torch(copy.data):
            copy.wait()
            self._host.give(copy.data)
        self._say("step %d: the snapshot was dropped: %s", snapshot.submit.step, reason)

    def _say(self, text: str, *arguments: Any) -> None:
        if self._log is not None:
            self._log.warning(text, *arguments)


def _nothing() -> None:
    pass


def _write(path: str, copy: _Copy) -> None:
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
