"""evalq-wandb: what evalq-logger starts to forward results to Weights & Biases by its own SDK.

Lines of JSON on standard input: first {"open": settings}, then one {"prefix", "result"} for each result, and {"flush": N}.
The answer to a flush, {"flushed": N}, comes once the SDK's own file on this disk holds every result given before; what
the file holds is known by its result_id when a result comes again, also to the next process. {"error": ...} says that
nothing more can be done here; the logger then starts another process.
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
from typing import Any, Callable, Dict, IO, Iterator, List, Optional, Set

STEP = "train/global_step"  # The x-axis that Transformers' own callback defines.
ID = "evalq/result_id"
OPEN_RUNS_MAX = 16
FLUSH_SECONDS = 0.1  # How often the SDK writes its file.
WAIT_SECONDS = 60.0  # For it to have done so.
SETTLED_SECONDS = 2.0  # The SDK's process, which outlives ours for a moment, has written its last by then.
_BLOCK = 32768


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

    def ids(self) -> Iterator[str]:
        """The results among them."""
        from wandb.proto import wandb_internal_pb2

        for data in self.records():
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]  # Made when it is imported.
            record.ParseFromString(data)
            for item in record.history.item:
                if "/".join(item.nested_key) == ID or item.key == ID:
                    yield str(json.loads(item.value_json))


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


def _number(value: Any) -> float:
    return float(value)  # "NaN" and "Infinity" are text in JSON.


class Run:
    """One run of W&B, and what its files hold."""

    def __init__(self, wandb: Any, settings: Dict[str, Any], name: str, trackers: Dict[str, str]) -> None:
        training = trackers.get("wandb_run_id", "")
        shared = settings.get("shared") == "true" and training != ""
        # One id for queue and run: a later process goes on with the same run.
        own = "evalq-" + hashlib.sha256(f"{settings['queue']}/{name}".encode()).hexdigest()[:16]
        directory = settings["directory"]
        mode = settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
        self.held: Set[str] = set()
        name_of_file = f"run-{training if shared else own}.wandb"
        # latest-run is a link to one of them.
        files = glob.glob(os.path.join(glob.escape(directory), "wandb", "*run-*", name_of_file))
        for path in _settled([path for path in files if not os.path.islink(os.path.dirname(path))]):
            self.held.update(Tail(path).ids())
        options: Dict[str, Any] = {"x_label": "evalq", "x_primary": False, "x_update_finish_state": False} if shared else {}
        self._run = wandb.init(
            project=settings.get("project") or trackers.get("wandb_project") or "evalq",
            entity=settings.get("entity") or trackers.get("wandb_entity") or None,
            id=training if shared else own,
            name=None if shared else f"{name} (evalq)",
            group=None if shared else trackers.get("wandb_group") or name,
            job_type=None if shared else "eval",
            dir=directory,
            mode="shared" if shared else mode,
            resume=None if shared or mode == "offline" else "allow",
            reinit="create_new",
            settings=wandb.Settings(
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
        self._defined: Set[str] = set()
        self._waiting: Set[str] = set()

    def log(self, prefix: str, result: Dict[str, Any]) -> None:
        if result["result_id"] in self.held or result["result_id"] in self._waiting:
            return
        row: Dict[str, Any] = {STEP: int(result["step"]), ID: result["result_id"]}
        details = result.get("metrics_detail", {})
        for name, value in result["metrics"].items():
            key = prefix + name
            row[key] = _number(value)
            if key not in self._defined:
                higher = details.get(name, {}).get("higher_is_better")
                best = {} if higher is None else {"summary": "max" if higher else "min"}
                # Never log(step=...): that would drop what comes late.
                self._run.define_metric(key.replace("*", r"\*"), step_metric=STEP, **best)
                self._defined.add(key)
        self._run.log(row)
        self._waiting.add(result["result_id"])

    def flush(self) -> None:
        """Until the file has everything."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            for found in self._tail.ids():
                self._waiting.discard(found)
                self.held.add(found)
            if not self._waiting:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"wandb did not write {len(self._waiting)} results within {WAIT_SECONDS:g} s")
            time.sleep(FLUSH_SECONDS / 4)

    def close(self) -> None:
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
        self._runs[key].log(line["prefix"], result)

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
