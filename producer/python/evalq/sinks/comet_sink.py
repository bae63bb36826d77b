"""evalq-comet forwards results to Comet with its SDK. See sdk_sink.py.

Offline, a number counts as stored when the SDK's message file contains it. The SDK makes an archive
of that file when the experiment ends. If the process is killed first, the next process makes it.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import tempfile
import zipfile
from typing import IO, Any, Dict, Iterable, Iterator, List

from evalq.sinks.sdk_sink import STEP, Directions, Row, Run, Tracker, serve

MESSAGES = "messages.json"


def _row(line: bytes) -> Row:
    """Returns the row of one line of the message file. It is empty if the line has no metric."""
    metric = json.loads(line).get("payload", {}).get("metric")
    if metric is None or metric.get("step") is None:
        return {}
    return {STEP: metric["step"], metric["metricName"]: metric["metricValue"]}


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the complete lines. The file position is then at the end of the last of them."""
    while True:
        start = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(start)
            return
        yield line


def _archive_left_experiments(settings: Dict[str, Any]) -> None:
    """Makes archives of the experiments that a killed process left, and removes broken archives."""
    from comet_ml import offline_utils

    directory = settings["directory"]
    for path in glob.glob(os.path.join(glob.escape(directory), "*.zip")):
        if not zipfile.is_zipfile(path) or not zipfile.ZipFile(path).namelist():
            os.unlink(path)
    for path in glob.glob(os.path.join(glob.escape(directory), "open", "*", "*")):
        key, name = path.split(os.sep)[-2:]
        if os.path.exists(os.path.join(path, MESSAGES)):
            with open(os.path.join(path, MESSAGES), "r+b") as file:
                time_ms = int(os.fstat(file.fileno()).st_mtime * 1000)
                count = sum(1 for _ in _whole_lines(file))
                file.truncate(file.tell())  # Cuts a torn line.
            if count > 0:
                offline_utils.write_experiment_meta_file(
                    tempdir=path,
                    experiment_key=key,
                    workspace=settings.get("workspace"),
                    project_name=settings["project"],
                    start_time=time_ms,
                    stop_time=time_ms,
                    tags=["evalq"],
                    resume_strategy="get_or_create",
                    user_provided_experiment_key=True,
                    comet_start_sourced=True,
                )
                offline_utils.create_experiment_archive(
                    directory, f"{key}-{name}.zip", path, logging.getLogger(__name__)
                )
        shutil.rmtree(path)


class CometRun(Run):
    row_per_metric = True
    stores_id = False
    characters_max = 100

    def __init__(
        self, sdk: Any, settings: Dict[str, Any], name: str, trackers: Dict[str, str]
    ) -> None:
        super().__init__(sdk, settings, name, trackers)
        self._key = self.digest[:32]
        self._online = settings["mode"] == "online"
        self._experiment: Any = None

    def stored_rows(self) -> Iterator[Row]:
        directory = glob.escape(self.settings["directory"])
        for path in glob.glob(os.path.join(directory, f"{self._key}-*.zip")):
            with zipfile.ZipFile(path) as archive, archive.open(MESSAGES) as file:
                yield from filter(None, map(_row, file))

    def open(self) -> None:
        from comet_ml.config import set_global_experiment

        config = self.sdk.ExperimentConfig(
            name=f"{self.name} (evalq)",
            tags=["evalq"],
            offline_directory=self.settings["directory"],
            log_code=False,
            log_graph=False,
            parse_args=False,
            auto_param_logging=False,
            auto_metric_logging=False,
            auto_output_logging=False,
            auto_histogram_tensorboard_logging=False,
            log_env_details=False,
            log_git_metadata=False,
            log_git_patch=False,
            display_summary_level=0,
        )
        # The SDK makes its own directory here, where the next process finds it and its key.
        parent = os.path.join(self.settings["directory"], "open", self._key)
        os.makedirs(parent, exist_ok=True)
        tempfile.tempdir = parent
        set_global_experiment(None)  # Otherwise start() would end the experiment of another run.
        self._experiment = self.sdk.start(
            project_name=self.settings["project"],
            workspace=self.settings.get("workspace"),
            online=self._online,
            mode="get_or_create",
            experiment_key=self._key,
            experiment_config=config,
        )
        tempfile.tempdir = None
        self._unsent: List[Row] = []
        if not self._online:
            path = self._experiment.tmpdir
            self._messages = open(os.path.join(path, MESSAGES), "rb")
            # The archive gets the same name whether the SDK or the next process makes it. The SDK
            # has made an empty archive under another name, which is removed.
            suffix = self._experiment.offline_archive_name_suffix
            os.unlink(os.path.join(self.settings["directory"], f"{self._key}-{suffix}.zip"))
            self._experiment.offline_archive_name_suffix = os.path.basename(path)

    def write_row(self, row: Row, directions: Directions) -> None:
        (name,) = set(row) - {STEP}
        self._experiment.log_metric(name, row[name], step=row[STEP])
        self._unsent.append(row)

    def new_stored_rows(self) -> Iterable[Row]:
        if not self._online:
            return filter(None, map(_row, _whole_lines(self._messages)))
        if not self._experiment.flush():
            raise RuntimeError("Comet did not take the results; its messages are in the log")
        sent, self._unsent = self._unsent, []
        return sent

    def finish(self) -> None:
        if not self._online:
            self._messages.close()
        self._experiment.end()


def _load(settings: Dict[str, Any]) -> Any:
    import comet_ml

    if not hasattr(comet_ml, "ExperimentConfig"):
        version = comet_ml.__version__
        raise RuntimeError(f"comet_ml {version} is too old: pip install 'evalq[comet]'")
    settings["mode"] = settings.get("mode") or "online"
    if settings["mode"] == "online" and not comet_ml.get_config("comet.api_key"):
        raise RuntimeError("Comet's API key is missing; set $COMET_API_KEY, or mode: offline")
    settings["project"] = settings.get("project") or os.environ.get("COMET_PROJECT_NAME") or "evalq"
    _archive_left_experiments(settings)
    return comet_ml


def main() -> int:
    return serve(Tracker("comet", "comet_ml", _load, CometRun))


if __name__ == "__main__":
    raise SystemExit(main())
