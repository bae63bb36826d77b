"""evalq-swanlab forwards results to SwanLab with its SDK. See sdk_sink.py.

A number counts as stored when the SDK's own file on disk contains it. SwanLab drops a number if
its curve already has the internal step, or if an earlier process used a higher one. Late results
would then be lost. Therefore the internal step only counts rows, and the training's step is the
x-axis.
"""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, Iterator, Set

from evalq.sinks.sdk_file import RecordReader
from evalq.sinks.sdk_sink import STEP, Directions, Row, Run, Tracker, serve


class _RowReader:
    """Reads the rows of one of the SDK's files. A row is an x and a number that have the same
    internal step."""

    def __init__(self, path: str) -> None:
        self._reader = RecordReader(path)
        self._x: Dict[int, float] = {}
        self.next_step = 0  # It is higher than all internal steps that were read.

    def rows(self) -> Iterator[Row]:
        from swanlab.proto.swanlab.record.v1.record_pb2 import Record

        for data in self._reader.records():
            record = Record()
            record.ParseFromString(data)
            scalar = record.scalar
            if not record.HasField("scalar"):
                continue
            self.next_step = max(self.next_step, scalar.step + 1)
            if scalar.key == STEP:
                self._x[scalar.step] = scalar.value.number
            elif scalar.step in self._x:
                yield {STEP: self._x.pop(scalar.step), scalar.key: scalar.value.number}


class SwanlabRun(Run):
    row_per_metric = True
    stores_id = False
    characters_max = 512

    def __init__(
        self, sdk: Any, settings: Dict[str, Any], name: str, trackers: Dict[str, str]
    ) -> None:
        super().__init__(sdk, settings, name, trackers)
        self._id = "evalq" + self.digest[:16]
        self._next_step = 0  # It is higher than all internal steps of earlier processes.
        self._run: Any = None
        self._defined: Set[str] = set()  # Curves that were defined.

    def stored_rows(self) -> Iterator[Row]:
        directory = glob.escape(self.settings["directory"])
        for path in glob.glob(os.path.join(directory, "run-*", f"run-{self._id}.swanlab")):
            reader = _RowReader(path)
            yield from reader.rows()
            self._next_step = max(self._next_step, reader.next_step)

    def open(self) -> None:
        from swanlab.sdk.internal.run import clear_run

        off = ("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor")
        settings = self.sdk.Settings(
            interactive=False,
            probe=self.sdk.Settings.Probe(**dict.fromkeys(off, False)),
            terminal=self.sdk.Settings.Terminal(proxy_type="none"),
        )
        self._run = self.sdk.init(
            project=self.settings.get("project") or "evalq",
            workspace=self.settings.get("workspace"),
            id=self._id,
            resume="allow",
            name=f"{self.name} (evalq)",
            group=self.name,
            job_type="eval",
            log_dir=self.settings["directory"],
            mode=self.settings["mode"],
            settings=settings,
        )
        clear_run()  # The SDK can have several open runs, but init() allows only one.
        self._context = self._run._ctx
        self._context.next_step(self._next_step - 1)  # The server may know of higher steps.
        self._run.define_metric(STEP, hidden=True)
        self._reader = _RowReader(glob.glob(os.path.join(str(self._run.dir), "run-*.swanlab"))[0])

    def write_row(self, row: Row, directions: Directions) -> None:
        (name,) = set(row) - {STEP}
        if name not in self._defined and "*" not in name:  # The SDK takes a star for a pattern.
            # With step_sync, the SDK would drop other numbers of the same step.
            self._run.define_metric(name, x_axis=STEP, step_sync=False)
            self._defined.add(name)
        step = self._context.next_step()
        self._run.log({STEP: row[STEP]}, step=step)
        self._run.log({name: row[name]}, step=step)

    def new_stored_rows(self) -> Iterator[Row]:
        # The SDK itself would write its buffer only at the end.
        self._context.core._store.ensure_flushed()
        return self._reader.rows()

    def finish(self) -> None:
        self._run.finish()


def _load(settings: Dict[str, Any]) -> Any:
    settings["mode"] = settings.get("mode") or os.environ.get("SWANLAB_MODE") or "online"
    if settings["mode"] not in ("online", "offline"):
        raise RuntimeError(f"$SWANLAB_MODE is '{settings['mode']}', expected online or offline")
    import swanlab
    from swanlab.sdk.internal.core_python.store import DataStoreWriter

    if not hasattr(DataStoreWriter, "ensure_flushed"):
        raise RuntimeError(
            f"swanlab {swanlab.__version__} is not supported: pip install 'evalq[swanlab]'"
        )
    return swanlab


def main() -> int:
    return serve(Tracker("swanlab", "swanlab", _load, SwanlabRun))


if __name__ == "__main__":
    raise SystemExit(main())
