"""The code that the helper programs of the trackers share. evalq-logger starts one of them, such as
evalq-wandb, for each such sink. It forwards results with the tracker's own SDK.

Standard input has lines of JSON. The first is {"open": settings}. Then each result is a line
{"keys", "result"}, and a line {"flush": N} follows some results. "keys" maps the name of each metric
to the name of its curve.

Standard output answers each flush with {"flushed": N} when the SDK has stored all earlier results.
If a result comes again, even to a later process, the helper finds it in the data that the SDK
stored, and does not log it again. After {"error": message} the helper ends, and the logger starts
another one.
"""

from __future__ import annotations

import collections
import fcntl
import hashlib
import json
import os
import sys
import time
from typing import IO, Any, Callable, Dict, Iterable, Iterator, NamedTuple, Optional, Set, Type

STEP = "train/global_step"  # The x-axis that Transformers' own callbacks define.
ID = "evalq/result_id"
OPEN_RUNS_MAX = 16
POLL_SECONDS = 0.025
WAIT_SECONDS = 60.0  # The time limit for the SDK to store results, and for the lock.

Row = Dict[str, Any]  # STEP, the numbers of one result by curve, and ID if the SDK stores it.
Directions = Dict[str, Optional[bool]]  # Whether a higher number of the curve is better.


def number_of(value: Any) -> float:
    return float(value)  # In JSON, "NaN" and "Infinity" are text.


def fitting_name(name: str, characters_max: int) -> str:
    """Returns a name that the SDK does not change. If name is too long or has signs that the SDK
    refuses, it is cut and ends in a hash, so that no two names share a curve."""
    clean = "".join(sign if sign.isprintable() else "_" for sign in name).strip(" ./")
    if clean == name and len(name) <= characters_max:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return clean[: characters_max - 9] + "-" + digest


class Run:
    """One run of a tracker. Opening a run takes seconds, so it is opened at its first new result.
    A subclass for each SDK defines the methods from stored_rows() on."""

    # Whether each metric is a row by itself, because the SDK does not store a row as a whole.
    row_per_metric = False
    # Whether a row has the result's id. Without it, a row is known by its step and its number.
    stores_id = True
    # The longest name of a curve that the SDK does not change. None: it changes no name.
    characters_max: Optional[int] = None

    def __init__(
        self, sdk: Any, settings: Dict[str, Any], name: str, trackers: Dict[str, str]
    ) -> None:
        self.sdk = sdk
        self.settings = settings
        self.name = name
        self.trackers = trackers
        # The digest depends only on queue and run, so that a later process continues the same run.
        self.digest = hashlib.sha256(f"{settings['queue']}/{name}".encode()).hexdigest()
        self._stored: Set[str] = set()  # Keys of rows.
        self._was_read = False  # Whether _stored has the rows of earlier processes.
        self._unstored: Set[str] = set()  # Keys of rows that were logged and may not be stored yet.
        self._is_open = False

    @staticmethod
    def identity(settings: Dict[str, Any], trackers: Dict[str, str]) -> str:
        """Returns a text that differs between two runs of the tracker with the same name."""
        return ""

    def row_key(self, row: Row) -> str:
        """Returns the same text for a row that was logged and for the row that the SDK's storage
        returns. NaN is not equal to itself, but its text is. SDKs write -0.0 as 0."""
        numbers = sorted(
            (name, repr(number_of(value) + 0.0)) for name, value in row.items() if name != ID
        )
        digest = hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]
        return f"{row.get(ID, '')}:{digest}"

    def _rows(self, numbers: Dict[str, float], result: Dict[str, Any]) -> Iterator[Row]:
        row: Row = {STEP: int(result["step"])}
        if self.stores_id:
            row[ID] = result["result_id"]
        if not self.row_per_metric:
            yield {**row, **numbers}
            return
        for name, number in numbers.items():
            yield {**row, name: number}

    def log(self, keys: Dict[str, str], result: Dict[str, Any]) -> None:
        """Logs one result, except for what was logged before."""
        if not self._was_read:
            self._stored.update(self.row_key(row) for row in self.stored_rows())
            self._was_read = True
        names = keys
        if self.characters_max is not None:
            names = {name: fitting_name(key, self.characters_max) for name, key in keys.items()}
        numbers = {names[name]: number_of(value) for name, value in result["metrics"].items()}
        details = result.get("metrics_detail", {})
        directions = {
            names[name]: details.get(name, {}).get("higher_is_better") for name in result["metrics"]
        }
        for row in self._rows(numbers, result):
            key = self.row_key(row)
            if key in self._stored or key in self._unstored:
                continue
            if not self._is_open:
                self.open()
                self._is_open = True
            self.write_row(row, directions)
            self._unstored.add(key)

    def flush(self) -> None:
        """Waits until the SDK has stored all rows. Raises RuntimeError after a minute."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._unstored:
            for row in self.new_stored_rows():
                key = self.row_key(row)
                self._unstored.discard(key)
                self._stored.add(key)
            if self._unstored and time.monotonic() > deadline:
                raise RuntimeError(
                    f"the SDK did not store {len(self._unstored)} results within {WAIT_SECONDS:g} s"
                )
            time.sleep(POLL_SECONDS if self._unstored else 0)

    def close(self) -> None:
        """Finishes the run, if it is open."""
        if self._is_open:
            self.finish()

    def stored_rows(self) -> Iterable[Row]:
        """Returns all rows that earlier processes stored."""
        return ()

    def open(self) -> None:
        raise NotImplementedError

    def write_row(self, row: Row, directions: Directions) -> None:
        raise NotImplementedError

    def new_stored_rows(self) -> Iterable[Row]:
        """Returns the rows that the SDK has stored since the last call."""
        raise NotImplementedError

    def finish(self) -> None:
        pass


class Tracker(NamedTuple):
    kind: str  # The kind of the sink in evalq.yaml. The pip extra evalq[KIND] has the same name.
    package: str
    # Imports and returns the SDK. RuntimeError: it is too old, or the settings are wrong.
    load: Callable[[Dict[str, Any]], Any]
    run: Type[Run]


class Sink:
    """The open runs, at most OPEN_RUNS_MAX; the one that was not used for the longest time is
    closed first."""

    def __init__(
        self,
        tracker: Tracker,
        sdk: Any,
        settings: Dict[str, Any],
        answer: Callable[[Dict[str, Any]], None],
    ) -> None:
        self._tracker = tracker
        self._sdk = sdk
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
        identity = self._tracker.run.identity(self._settings, trackers)
        key = json.dumps([result["run"], identity])
        if key not in self._runs:
            if len(self._runs) >= OPEN_RUNS_MAX:
                self._close_oldest()
            self._runs[key] = self._tracker.run(
                self._sdk, self._settings, result["run"], trackers
            )
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


def _lock_directory(directory: str, program: str) -> IO[str]:
    """Returns an open file that holds a lock on the directory. Waits up to a minute, because the
    helper of a logger that has died may still run. RuntimeError: another process keeps the lock."""
    os.makedirs(directory, exist_ok=True)
    lock = open(os.path.join(directory, f".{program}.lock"), "w", encoding="utf-8")
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"another {program} uses '{directory}'") from None
            time.sleep(POLL_SECONDS)


def _serve(tracker: Tracker, lines: IO[str], answer: Callable[[Dict[str, Any]], None]) -> None:
    program = f"evalq-{tracker.kind}"
    settings: Dict[str, Any] = json.loads(lines.readline() or "{}").get("open", {})
    if "queue" not in settings or "directory" not in settings:
        raise RuntimeError(
            f"{program} is not for the command line: evalq-logger starts it (kind: {tracker.kind})"
        )
    with _lock_directory(settings["directory"], program):
        try:
            sdk = tracker.load(settings)
        except ImportError:
            raise RuntimeError(
                f"{tracker.package} is not installed where {program} runs: "
                f"pip install 'evalq[{tracker.kind}]'"
            ) from None
        sink = Sink(tracker, sdk, settings, answer)
        for line in lines:
            sink.take(json.loads(line))
        sink.close()


def serve(tracker: Tracker) -> int:
    """Runs the helper program of one tracker. Returns its exit code."""
    # The logger reads standard output, so everything that the SDK prints goes to standard error.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: Dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        _serve(tracker, sys.stdin, answer)
    except Exception as error:  # The logger reports any error, and starts another process.
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        try:
            answer({"error": text})
        except OSError:
            pass  # The logger has ended.
        return 1
    return 0
