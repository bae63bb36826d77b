"""Fetches the files of a checkpoint into a directory, in parallel parts.

The directory may contain parts of an interrupted fetch. The journal lists them. After a restart of
the machine they do not count, because a crash can lose data that was not on the disk yet."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shutil
import threading
from typing import Callable, Dict, List, Set, Tuple

from .errors import Failure, repeat
from .listing import Checkpoint, File, Store

PART_BYTES = 16 << 20
PARALLEL = 8
SLOW_BYTES_PER_SECOND = 50000  # A part that is slower is requested again.
SLOW_SECONDS = 60.0
JOURNAL = ".evalq-parts"
PROGRESS_SECONDS = 0.5


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


class Journal:
    """Lists the parts that are in the directory. A line is "FILE OFFSET" for a part that was written, or
    "FILE bad" if all earlier parts of a file are damaged. FILE is the file's number."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, JOURNAL)
        head = f"evalq 1 {_boot()} {PART_BYTES}"
        lines = self._lines()
        if not lines or lines[0] != head:
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(directory, mode=0o700, exist_ok=True)
            lines = []
        self.done: Set[Tuple[int, int]] = set()
        for line in lines[1:]:
            file, _, at = line.partition(" ")
            if at == "bad":
                self.done = {one for one in self.done if one[0] != int(file)}
            else:
                self.done.add((int(file), int(at)))
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if not lines:
            self._append(head)

    def _lines(self) -> List[str]:
        try:
            with open(self.path, encoding="ascii") as file:
                return file.read().split("\n")[:-1]  # A line without its newline was cut.
        except OSError:
            return []

    def _append(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())  # The kernel appends a short line as a whole.

    def note(self, file: int, at: int) -> None:
        self._append(f"{file} {at}")

    def drop(self, file: int) -> None:
        self._append(f"{file} bad")

    def remove(self) -> None:
        os.close(self._fd)
        os.unlink(self.path)


class Fetch:
    def __init__(self, store: Store, found: Checkpoint, directory: str) -> None:
        self.store = store
        self.found = found
        self.directory = directory
        self.journal = Journal(directory)
        self.lock = threading.Lock()
        self.done = 0  # Bytes that were fetched, now or earlier.
        self.stop = threading.Event()
        self.left: Dict[int, int] = {}  # For each file, how many parts are missing.

    def _path(self, file: File) -> str:
        name = os.path.basename(self.found.address.rstrip("/"))
        return os.path.join(self.directory, name) if self.found.is_file else os.path.join(self.directory, name, file.name)

    def parts(self) -> List[Tuple[int, int, int]]:
        """Makes all files and reserves their space. Returns the missing parts: file number, offset and
        size."""
        missing = []
        for number, file in enumerate(self.found.files):
            path = self._path(file)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if file.size > 0 and os.fstat(fd).st_size != file.size:
                try:
                    os.posix_fallocate(fd, 0, file.size)
                except OSError:
                    os.close(fd)
                    raise
            os.ftruncate(fd, file.size)
            step = PART_BYTES if file.has_ranges else max(file.size, 1)
            own = [(number, at, min(step, file.size - at)) for at in range(0, file.size, step)]
            absent = [part for part in own if part[:2] not in self.journal.done]
            self.done += file.size - sum(part[2] for part in absent)
            os.close(fd)
            # An empty part has nothing to fetch, but the file is checked like any other.
            absent = absent or [(number, 0, 0)]
            self.left[number] = len(absent)
            missing += absent
        return missing

    def take(self, part: Tuple[int, int, int]) -> None:
        """Fetches one part, and checks the file if it is the last one."""
        number, at, size = part
        file = self.found.files[number]
        fd = os.open(self._path(file), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            view = memoryview(repeat(lambda: self._read(file, at, size), self.stop) if size > 0 else b"")
            while view:
                written = os.pwrite(fd, view, at + size - len(view))
                view = view[written:]
            with self.lock:
                if size > 0:
                    self.journal.note(number, at)
                self.done += size
                self.left[number] -= 1
                last = self.left[number] == 0
            if last:
                self._verify(number, fd)
        finally:
            os.close(fd)

    def _read(self, file: File, at: int, size: int) -> bytes:
        fs, data = self.store.fs, b""
        if not file.has_ranges:  # get_file() writes the file itself.
            fs.get_file(file.place, self._path(file))
            came = os.path.getsize(self._path(file))
        elif fs.async_impl:
            limit = max(SLOW_SECONDS, size / SLOW_BYTES_PER_SECOND)
            data = fs.cat_file(file.place, start=at, end=at + size, timeout=limit)
            came = len(data)
        else:
            with fs.open(file.place, "rb", cache_type="none", block_size=size) as source:
                if hasattr(source, "readv"):  # paramiko sends many requests before it reads the answers.
                    data = b"".join(source.readv([(at, size)]))
                else:
                    source.seek(at)
                    data = source.read(size)
            came = len(data)
        if came != size:
            raise OSError(f"received {came} of {size} bytes")
        return data

    def _verify(self, number: int, fd: int) -> None:
        file = self.found.files[number]
        if file.digest is not None:
            kind, announced = file.digest
            found = _hash_file(fd, kind, file.size)
            if found != announced and not self.store.hides_digest(file):
                with self.lock:
                    self.journal.drop(number)
                raise Failure("corrupt", f"'{file.place}' was fetched with the {kind} digest {found}, but the store has {announced}")
        os.fsync(fd)


def _hash_file(fd: int, kind: str, size: int) -> str:
    digest = hashlib.sha1() if kind == "git" else hashlib.new(kind, usedforsecurity=False)
    if kind == "git":
        digest.update(b"blob %d\0" % size)
    at = 0
    while True:
        block = os.pread(fd, 1 << 20, at)
        if not block:
            return digest.hexdigest()
        digest.update(block)
        at += len(block)


def fetch(store: Store, found: Checkpoint, directory: str, progress: Callable[[int, int], None]) -> None:
    """Fetches all files, except for the parts that an earlier fetch left in the directory."""
    job = Fetch(store, found, directory)
    parts = job.parts()
    pool = concurrent.futures.ThreadPoolExecutor(PARALLEL)
    try:
        running = [pool.submit(job.take, part) for part in parts]
        while True:
            progress(job.done, found.bytes)
            ended, waiting = concurrent.futures.wait(running, PROGRESS_SECONDS, concurrent.futures.FIRST_EXCEPTION)
            for one in ended:
                one.result()
            if not waiting:
                break
    finally:
        job.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    job.journal.remove()
    progress(job.done, found.bytes)
