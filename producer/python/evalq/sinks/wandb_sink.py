"""evalq-wandb forwards results to Weights & Biases with its SDK. See sdk_sink.py.

A result counts as stored when the SDK's own file on disk contains it.
"""

from __future__ import annotations

import glob
import json
import os
import time
from typing import Any, Dict, Iterator, Set

from evalq.sinks.sdk_file import RecordReader
from evalq.sinks.sdk_sink import ID, STEP, Directions, Row, Run, Tracker, serve

FLUSH_SECONDS = 0.1  # How often the SDK writes its file.
# The SDK's own process runs for a moment after ours has ended. A file that nobody has written to
# for this time is complete.
SETTLED_SECONDS = 2.0


def _rows(reader: RecordReader) -> Iterator[Row]:
    """Yields each new record that is a result."""
    from wandb.proto import wandb_internal_pb2

    for data in reader.records():
        # The class is created at run time, so a type checker does not know it.
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]
        record.ParseFromString(data)
        items = record.history.item
        row = {"/".join(item.nested_key) or item.key: item.value_json for item in items}
        if ID in row:
            yield {name: json.loads(text) for name, text in row.items()}


def _wait_until_settled(path: str) -> None:
    while time.time() - os.stat(path).st_mtime < SETTLED_SECONDS:
        time.sleep(FLUSH_SECONDS)


class WandbRun(Run):
    def __init__(
        self, sdk: Any, settings: Dict[str, Any], name: str, trackers: Dict[str, str]
    ) -> None:
        super().__init__(sdk, settings, name, trackers)
        training_id = trackers.get("wandb_run_id", "")
        self._shared = settings.get("shared") == "true" and training_id != ""
        self._id = training_id if self._shared else "evalq-" + self.digest[:16]
        self._run: Any = None
        self._defined: Set[str] = set()  # Metrics that were defined.

    @staticmethod
    def identity(settings: Dict[str, Any], trackers: Dict[str, str]) -> str:
        return trackers.get("wandb_run_id", "") if settings.get("shared") == "true" else ""

    def row_key(self, row: Row) -> str:
        # The SDK adds names that begin with an underscore.
        return super().row_key({key: row[key] for key in row if not key.startswith("_")})

    def stored_rows(self) -> Iterator[Row]:
        directory = glob.escape(self.settings["directory"])
        for path in glob.glob(os.path.join(directory, "wandb", "*run-*", f"run-{self._id}.wandb")):
            if not os.path.islink(os.path.dirname(path)):  # latest-run links to another one.
                _wait_until_settled(path)
                yield from _rows(RecordReader(path))

    def open(self) -> None:
        settings, trackers = self.settings, self.trackers
        mode = settings.get("mode") or os.environ.get("WANDB_MODE") or "online"
        options: Dict[str, Any] = {}
        if self._shared:
            options = {"x_label": "evalq", "x_primary": False, "x_update_finish_state": False}
        self._run = self.sdk.init(
            project=settings.get("project") or trackers.get("wandb_project") or "evalq",
            entity=settings.get("entity") or trackers.get("wandb_entity") or None,
            id=self._id,
            name=None if self._shared else f"{self.name} (evalq)",
            group=None if self._shared else trackers.get("wandb_group") or self.name,
            job_type=None if self._shared else "eval",
            dir=settings["directory"],
            mode="shared" if self._shared else mode,
            resume=None if self._shared or mode == "offline" else "allow",
            reinit="create_new",
            settings=self.sdk.Settings(
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
        self._reader = RecordReader(self._run.settings.sync_file)

    def write_row(self, row: Row, directions: Directions) -> None:
        for name, higher_is_better in directions.items():
            # The SDK takes a star in a name for a pattern.
            if name in self._defined or "*" in name:
                continue
            options = {}
            if higher_is_better is not None:
                options = {"summary": "max" if higher_is_better else "min"}
            self._run.define_metric(name, step_metric=STEP, **options)
            self._defined.add(name)
        # log(step=...) would drop results that arrive late, so the step is a metric.
        self._run.log(row)

    def new_stored_rows(self) -> Iterator[Row]:
        return _rows(self._reader)

    def finish(self) -> None:
        self._run.finish()


def _load(settings: Dict[str, Any]) -> Any:
    import wandb

    if "x_transaction_log_flush_interval" not in wandb.Settings.model_fields:
        raise RuntimeError(f"wandb {wandb.__version__} is too old: pip install 'evalq[wandb]'")
    return wandb


def main() -> int:
    return serve(Tracker("wandb", "wandb", _load, WandbRun))


if __name__ == "__main__":
    raise SystemExit(main())
