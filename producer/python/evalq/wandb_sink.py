"""evalq-wandb forwards results to Weights & Biases with its SDK. evalq-logger starts it.

Standard input has lines of JSON: first {"open": settings}, then {"keys", "result"} for each result,
and {"flush": N}. "keys" maps the name of each metric to the name of its curve.

Standard output answers each flush with {"flushed": N} when the SDK's own file on disk contains all
earlier results. If a result comes again, even to a later process, this program finds it in the file
by its result_id and its numbers, and does not log it again. {"error": message} says that this
process gives up; the logger then starts another one.
"""

from __future__ import annotations

import collections
import fcntl
import glob
import hashlib
import json
import os
import sys
import time
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

STEP = "train/global_step"  # The x-axis that Transformers' own callback defines.
ID = "evalq/result_id"
OPEN_RUNS_MAX = 16
FLUSH_SECONDS = 0.1  # The SDK writes its file so often.
WAIT_SECONDS = 60.0  # The time limit for the SDK to write its file, and for the lock.
# The SDK has a process that outlives ours for a moment. A file is complete after so long without a
# write.
SETTLED_SECONDS = 2.0

# The SDK's file has the format of LevelDB's log: a file header, and blocks with records. A record
# may be divided into a first, middle and last part. Each part has a header: checksum, length and
# type.
_FILE_HEADER_BYTES = 7
_PART_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

Key = Tuple[str, int]  # Identifies a row: its result_id, and a hash of its numbers.


def _number(value: Any) -> float:
    return float(value)  # In JSON, "NaN" and "Infinity" are text.


def _key(row: Dict[str, Any]) -> Key:
    """The same key for a row that was logged and for the row that the file returns. The SDK adds
    names that begin with an underscore, and writes -0.0 as 0. NaN is not equal to itself, but its
    text is."""
    numbers = sorted(
        (name, repr(_number(value) + 0.0))
        for name, value in row.items()
        if name != ID and not name.startswith("_")
    )
    return str(row[ID]), hash(tuple(numbers))


class LogReader:
    """Reads the records that were appended to one of the SDK's files since the last call."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = _FILE_HEADER_BYTES
        self._parts: List[bytes] = []  # The parts so far of a record that is not complete yet.

    def records(self) -> Iterator[bytes]:
        """Yields each new record. The file may not exist yet."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        used = 0
        while True:
            left = _BLOCK_BYTES - (self._offset + used) % _BLOCK_BYTES
            if left < _PART_HEADER_BYTES:
                used += left  # The rest of the block is padding.
                continue
            header = data[used : used + _PART_HEADER_BYTES]
            length = int.from_bytes(header[4:6], "little")
            kind = header[6] if len(header) == _PART_HEADER_BYTES else 0
            end = used + _PART_HEADER_BYTES + length
            if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or len(data) < end:
                break  # The SDK has not written the rest yet.
            part = data[used + _PART_HEADER_BYTES : end]
            used = end
            self._parts = [part] if kind in (_WHOLE, _FIRST) else [*self._parts, part]
            if kind in (_WHOLE, _LAST):
                yield b"".join(self._parts)
                self._parts = []
        self._offset += min(used, len(data))

    def keys(self) -> Iterator[Key]:
        """Yields the key of each new record that is a result."""
        from wandb.proto import wandb_internal_pb2

        for data in self.records():
            # The class is created at run time, so a type checker does not know it.
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]
            record.ParseFromString(data)
            row = {
                "/".join(item.nested_key) or item.key: item.value_json
                for item in record.history.item
            }
            if ID in row:
                yield _key({name: json.loads(text) for name, text in row.items()})


def _wait_until_settled(path: str) -> None:
    while time.time() - os.stat(path).st_mtime < SETTLED_SECONDS:
        time.sleep(FLUSH_SECONDS)


def _lock_directory(directory: str) -> IO[str]:
    """Returns an open file that holds a lock on the directory. Waits for an earlier process whose
    logger has died. RuntimeError: another process keeps the lock."""
    os.makedirs(directory, exist_ok=True)
    lock = open(os.path.join(directory, ".evalq-wandb.lock"), "w", encoding="utf-8")
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"another evalq-wandb uses '{directory}'") from None
            time.sleep(FLUSH_SECONDS)


class Run:
    """One run of W&B. It opens the run with the first new result, because that takes seconds."""

    def __init__(
        self, wandb: Any, settings: Dict[str, Any], name: str, trackers: Dict[str, str]
    ) -> None:
        self._wandb = wandb
        self._settings = settings
        self._name = name
        self._trackers = trackers
        training_id = trackers.get("wandb_run_id", "")
        self._shared = settings.get("shared") == "true" and training_id != ""
        # The id depends only on queue and run, so that a later process continues the same W&B run.
        digest = hashlib.sha256(f"{settings['queue']}/{name}".encode()).hexdigest()[:16]
        self._id = training_id if self._shared else "evalq-" + digest
        self._stored = self._read_stored_keys()
        self._unstored: Set[Key] = set()  # Logged, but not seen in the file yet.
        self._run: Any = None
        self._defined: Set[str] = set()  # Metrics that were defined.

    def _read_stored_keys(self) -> Set[Key]:
        """The keys of all results that earlier processes stored."""
        directory = glob.escape(self._settings["directory"])
        stored: Set[Key] = set()
        for path in glob.glob(os.path.join(directory, "wandb", "*run-*", f"run-{self._id}.wandb")):
            if not os.path.islink(os.path.dirname(path)):  # latest-run is a link to another one.
                _wait_until_settled(path)
                stored.update(LogReader(path).keys())
        return stored

    def _open(self) -> None:
        settings, trackers = self._settings, self._trackers
        mode = settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
        options: Dict[str, Any] = {}
        if self._shared:
            options = {"x_label": "evalq", "x_primary": False, "x_update_finish_state": False}
        self._run = self._wandb.init(
            project=settings.get("project") or trackers.get("wandb_project") or "evalq",
            entity=settings.get("entity") or trackers.get("wandb_entity") or None,
            id=self._id,
            name=None if self._shared else f"{self._name} (evalq)",
            group=None if self._shared else trackers.get("wandb_group") or self._name,
            job_type=None if self._shared else "eval",
            dir=settings["directory"],
            mode="shared" if self._shared else mode,
            resume=None if self._shared or mode == "offline" else "allow",
            reinit="create_new",
            settings=self._wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_transaction_log_flush_interval=FLUSH_SECONDS,
                **options,
            ),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric(ID, hidden=True)
        self._log_reader = LogReader(self._run.settings.sync_file)

    def log(self, keys: Dict[str, str], result: Dict[str, Any]) -> None:
        """Logs one result, unless it was logged before."""
        row: Dict[str, Any] = {STEP: int(result["step"]), ID: result["result_id"]}
        row.update((keys[name], _number(value)) for name, value in result["metrics"].items())
        key = _key(row)
        if key in self._stored or key in self._unstored:
            return
        if self._run is None:
            self._open()
        details = result.get("metrics_detail", {})
        for name in result["metrics"]:
            self._define(keys[name], details.get(name, {}).get("higher_is_better"))
        # log(step=...) would drop results that arrive late, so the step is a metric.
        self._run.log(row)
        self._unstored.add(key)

    def _define(self, metric: str, higher_is_better: Optional[bool]) -> None:
        # The SDK takes a star in a name for a pattern.
        if metric in self._defined or "*" in metric:
            return
        options = {}
        if higher_is_better is not None:
            options = {"summary": "max" if higher_is_better else "min"}
        self._run.define_metric(metric, step_metric=STEP, **options)
        self._defined.add(metric)

    def flush(self) -> None:
        """Waits until the file contains all results. RuntimeError: it does not within a minute."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._unstored:
            for key in self._log_reader.keys():
                self._unstored.discard(key)
                self._stored.add(key)
            if self._unstored and time.monotonic() > deadline:
                raise RuntimeError(
                    f"wandb did not write {len(self._unstored)} results within {WAIT_SECONDS:g} s"
                )
            time.sleep(FLUSH_SECONDS / 4 if self._unstored else 0)

    def close(self) -> None:
        """Finishes the W&B run."""
        if self._run is not None:
            self._run.finish()


class Sink:
    """The open runs, at most OPEN_RUNS_MAX; the one that was not used for the longest time is
    closed first."""

    def __init__(
        self, wandb: Any, settings: Dict[str, Any], answer: Callable[[Dict[str, Any]], None]
    ) -> None:
        self._wandb = wandb
        self._settings = settings
        self._answer = answer
        self._runs: "collections.OrderedDict[str, Run]" = collections.OrderedDict()
        self._unflushed: Set[str] = set()  # Keys of runs with results since the last flush.

    def take(self, line: Dict[str, Any]) -> None:
        """Handles one line of the logger."""
        if "flush" in line:
            for key in list(self._unflushed):
                self._runs[key].flush()
            self._unflushed.clear()
            self._answer({"flushed": line["flush"]})
            return
        result = line["result"]
        trackers = result.get("trackers", {})
        shared = self._settings.get("shared") == "true"
        key = json.dumps([result["run"], trackers.get("wandb_run_id", "") if shared else ""])
        if key not in self._runs:
            if len(self._runs) >= OPEN_RUNS_MAX:
                self._close_oldest()
            self._runs[key] = Run(self._wandb, self._settings, result["run"], trackers)
        self._runs.move_to_end(key)
        self._unflushed.add(key)
        self._runs[key].log(line["keys"], result)

    def _close_oldest(self) -> None:
        key, run = self._runs.popitem(last=False)
        if key in self._unflushed:
            run.flush()
            self._unflushed.discard(key)
        run.close()

    def close(self) -> None:
        """Flushes and closes all runs."""
        while self._runs:
            self._close_oldest()


def _serve(lines: IO[str], answer: Callable[[Dict[str, Any]], None]) -> None:
    settings: Dict[str, Any] = json.loads(lines.readline() or "{}").get("open", {})
    if "queue" not in settings or "directory" not in settings:
        raise RuntimeError(
            "evalq-wandb is not for the command line: evalq-logger starts it (kind: wandb)"
        )
    try:
        import wandb
    except ImportError:
        raise RuntimeError(
            "wandb is not installed where evalq-wandb runs: pip install 'evalq[wandb]'"
        ) from None
    if "x_transaction_log_flush_interval" not in wandb.Settings.model_fields:
        raise RuntimeError(f"wandb {wandb.__version__} is too old: pip install 'evalq[wandb]'")
    with _lock_directory(settings["directory"]):
        sink = Sink(wandb, settings, answer)
        for line in lines:
            sink.take(json.loads(line))
        sink.close()


def main() -> int:
    # The logger reads standard output, so everything that the SDK prints goes to standard error.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: Dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        _serve(sys.stdin, answer)
    except Exception as error:  # The logger reports any error, and starts another process.
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        try:
            answer({"error": text})
        except OSError:
            pass  # The logger has ended.
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
