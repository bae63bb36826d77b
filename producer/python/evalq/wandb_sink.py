"""evalq-wandb: what evalq-logger starts to forward results to Weights & Biases by its own SDK.

Lines of JSON on standard input: first {"open": settings}, then one {"keys", "result"} for each result, and {"flush": N}.
"keys" maps the name of each metric to the name of its curve.
The answer to a flush, {"flushed": N}, comes once the SDK's own file on this disk holds every result given before; what
the file holds is known by its result_id and its numbers when a result comes again, also to the next process. {"error": ...}
says that nothing more can be done here; the logger then starts another process.
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
from typing import Any, Callable, Dict, IO, Iterator, List, Optional, Set, Tuple

STEP = "train/global_step"  # The x-axis that Transformers' own callback defines.
ID = "evalq/result_id"
OPEN_RUNS_MAX = 16
FLUSH_SECONDS = 0.1  # How often the SDK writes its file.
WAIT_SECONDS = 60.0  # For it to have done so.
SETTLED_SECONDS = 2.0  # The SDK's process, which outlives ours for a moment, has written its last by then.
_BLOCK = 32768


Key = Tuple[str, int]  # What a row is known by: result_id, and a hash of its numbers.


def _number(value: Any) -> float:
    return float(value)  # "NaN" and "Infinity" are text in JSON.


def _key(row: Dict[str, Any]) -> Key:
    # What the SDK adds begins with an underscore. As text: a NaN is not equal to itself. It writes -0.0 as -0, which is read
    # as 0: with 0.0 added both are 0.0.
    numbers = sorted((name, repr(_number(value) + 0.0)) for name, value in row.items() if name != ID and not name.startswith("_"))
    return str(row[ID]), hash(tuple(numbers))


class Tail:
    """The records that were added to one of the SDK's files: its own messages, in the framing of LevelDB's log."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 7  # Behind the file's own header.
        self._parts: List[bytes] = []

    def records(self) -> Iterator[bytes]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        used = 0
        while True:
            left = _BLOCK - (self._at + used) % _BLOCK
            if left < 7:
                used += left  # Too short for a header: filled up with zeros.
                continue
            head = data[used : used + 7]
            length = int.from_bytes(head[4:6], "little")
            kind = head[6] if len(head) == 7 else 0
            if kind not in (1, 2, 3, 4) or len(data) < used + 7 + length:
                break  # The rest is not written yet.
            part = data[used + 7 : used + 7 + length]
            used += 7 + length
            self._parts = [part] if kind in (1, 2) else [*self._parts, part]
            if kind in (1, 4):
                yield b"".join(self._parts)
                self._parts = []
        self._at += min(used, len(data))

    def rows(self) -> Iterator[Key]:
        """The results among them."""
        from wandb.proto import wandb_internal_pb2

        for data in self.records():
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]  # Made when it is imported.
            record.ParseFromString(data)
            row = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if ID in row:
                yield _key({key: json.loads(text) for key, text in row.items()})


def _settled(paths: List[str]) -> List[str]:
    """The same, once nobody writes to them any more."""
    for path in paths:
        while time.time() - os.stat(path).st_mtime < SETTLED_SECONDS:
            time.sleep(FLUSH_SECONDS)
    return paths


def _locked(directory: str) -> IO[str]:
    """Holds the directory while the file is open; an earlier process, whose logger died, ends first."""
    os.makedirs(directory, exist_ok=True)
    lock = open(os.path.join(directory, ".evalq-wandb.lock"), "w", encoding="utf-8")
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"another evalq-wandb holds '{directory}'") from None
            time.sleep(FLUSH_SECONDS)


class Run:
    """One run of W&B, and what its files hold."""

    def __init__(self, wandb: Any, settings: Dict[str, Any], name: str, trackers: Dict[str, str]) -> None:
        training = trackers.get("wandb_run_id", "")
        self._shared = settings.get("shared") == "true" and training != ""
        # One id for queue and run: a later process goes on with the same run.
        own = "evalq-" + hashlib.sha256(f"{settings['queue']}/{name}".encode()).hexdigest()[:16]
        self._id = training if self._shared else own
        self._wandb, self._settings, self._name, self._trackers = wandb, settings, name, trackers
        self._held: Set[Key] = set()
        # latest-run is a link to one of them.
        files = glob.glob(os.path.join(glob.escape(settings["directory"]), "wandb", "*run-*", f"run-{self._id}.wandb"))
        for path in _settled([path for path in files if not os.path.islink(os.path.dirname(path))]):
            self._held.update(Tail(path).rows())
        self._run: Any = None  # Begun with the first row that no file holds: that takes seconds.
        self._defined: Set[str] = set()
        self._waiting: Set[Key] = set()

    def _begin(self) -> None:
        settings, trackers = self._settings, self._trackers
        mode = settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
        shared = {"x_label": "evalq", "x_primary": False, "x_update_finish_state": False}
        options: Dict[str, Any] = shared if self._shared else {}
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
        self._tail = Tail(self._run.settings.sync_file)

    def log(self, keys: Dict[str, str], result: Dict[str, Any]) -> None:
        row: Dict[str, Any] = {STEP: int(result["step"]), ID: result["result_id"]}
        row.update((keys[name], _number(value)) for name, value in result["metrics"].items())
        key = _key(row)
        if key in self._held or key in self._waiting:
            return
        if self._run is None:
            self._begin()
        for name in result["metrics"]:
            self._define(keys[name], result.get("metrics_detail", {}).get(name, {}).get("higher_is_better"))
        self._run.log(row)
        self._waiting.add(key)

    def _define(self, key: str, higher: Optional[bool]) -> None:
        # Of a name with a star the SDK would make a pattern, or an error.
        if key in self._defined or "*" in key:
            return
        best = {} if higher is None else {"summary": "max" if higher else "min"}
        # Never log(step=...): that would drop what comes late.
        self._run.define_metric(key, step_metric=STEP, **best)
        self._defined.add(key)

    def flush(self) -> None:
        """Until the file has everything."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._waiting:
            for found in self._tail.rows():
                self._waiting.discard(found)
                self._held.add(found)
            if self._waiting and time.monotonic() > deadline:
                raise RuntimeError(f"wandb did not write {len(self._waiting)} results within {WAIT_SECONDS:g} s")
            time.sleep(FLUSH_SECONDS / 4 if self._waiting else 0)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


class Sink:
    """The runs that were logged to lately."""

    def __init__(self, wandb: Any, settings: Dict[str, Any], answer: Callable[[Dict[str, Any]], None]) -> None:
        self._wandb, self._settings, self._answer = wandb, settings, answer
        self._runs: "collections.OrderedDict[str, Run]" = collections.OrderedDict()
        self._dirty: Set[str] = set()

    def take(self, line: Dict[str, Any]) -> None:
        if "flush" in line:
            for key in list(self._dirty):
                self._runs[key].flush()
            self._dirty.clear()
            self._answer({"flushed": line["flush"]})
            return
        result = line["result"]
        trackers = result.get("trackers", {})
        key = json.dumps([result["run"], trackers.get("wandb_run_id", "") if self._settings.get("shared") == "true" else ""])
        if key not in self._runs:
            if len(self._runs) >= OPEN_RUNS_MAX:
                self._close_oldest()
            self._runs[key] = Run(self._wandb, self._settings, result["run"], trackers)
        self._runs.move_to_end(key)
        self._dirty.add(key)
        self._runs[key].log(line["keys"], result)

    def _close_oldest(self) -> None:
        key, run = self._runs.popitem(last=False)
        if key in self._dirty:
            run.flush()
            self._dirty.discard(key)
        run.close()

    def close(self) -> None:
        while self._runs:
            self._close_oldest()


def _serve(lines: IO[str], answer: Callable[[Dict[str, Any]], None]) -> None:
    settings: Dict[str, Any] = json.loads(lines.readline() or "{}").get("open", {})
    if "queue" not in settings or "directory" not in settings:
        raise RuntimeError("evalq-wandb is started by evalq-logger (kind: wandb); it is no command for people")
    try:
        import wandb
    except ImportError:
        raise RuntimeError("wandb is not installed where evalq-wandb runs: pip install 'evalq[wandb]'") from None
    if "x_transaction_log_flush_interval" not in wandb.Settings.model_fields:
        raise RuntimeError(f"wandb {wandb.__version__} is too old: pip install 'evalq[wandb]'")
    with _locked(settings["directory"]):
        sink = Sink(wandb, settings, answer)
        for line in lines:
            sink.take(json.loads(line))
        sink.close()


def main() -> int:
    # Standard output is the logger's: what the SDK or others print goes to standard error.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: Dict[str, Any]) -> None:
        own.write(json.dumps(message) + "\n")
        own.flush()

    try:
        _serve(sys.stdin, answer)
    except Exception as error:  # Whatever it is, the logger tells it and starts another process.
        text: Optional[str] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        try:
            answer({"error": text})
        except OSError:
            pass  # The logger is gone.
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
