"""evalq-trackio forwards results to trackio with its SDK. See sdk_sink.py.

trackio's storage, here or on a server, ignores a row if it already has the row's log_id. The log_id
depends only on the result, so a result that comes again changes nothing.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Dict, List

from evalq.sinks.sdk_sink import ID, STEP, Directions, Row, Run, Tracker, serve


class _Store:
    """trackio's storage: on this machine, on a trackio server, or on a Space."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        from trackio import utils
        from trackio.remote_client import RemoteClient
        from trackio.sqlite_storage import SQLiteStorage

        self.reserved_names = set(utils.RESERVED_KEYS)
        self.as_json = utils.serialize_values  # NaN and the infinities become text.
        self._storage = SQLiteStorage
        self._client: Any = None
        self._token = None
        space_id, server_url = utils.resolve_space_id_and_server_url(
            settings.get("space_id"), settings.get("server_url")
        )
        if space_id is not None:
            import huggingface_hub

            self._token = huggingface_hub.get_token()
            self._client = RemoteClient(space_id, hf_token=self._token)
        elif server_url is not None:
            token = os.environ.get("TRACKIO_WRITE_TOKEN")
            self._client = RemoteClient(server_url, write_token=token)
        elif utils.get_storage_mode() != "sqlite":
            raise RuntimeError(
                f"'{settings['directory']}' is on a network file system, where SQLite is not safe; "
                "give a local directory, or server_url"
            )

    def put(self, entries: List[Dict[str, Any]]) -> None:
        """Stores entries of one run. When it returns, they are stored."""
        if self._client is not None:
            self._client.predict(api_name="/bulk_log", logs=entries, hf_token=self._token)
            return
        same = ("project", "run", "run_id", "config")
        columns = {"metrics": "metrics_list", "step": "steps", "log_id": "log_ids"}
        self._storage.bulk_log(
            **{name: entries[0][name] for name in same},
            **{plural: [entry[name] for entry in entries] for name, plural in columns.items()},
        )


class TrackioRun(Run):
    def open(self) -> None:
        self._unsent: List[Row] = []

    def write_row(self, row: Row, directions: Directions) -> None:
        self._unsent.append(row)

    def _entry(self, row: Row) -> Dict[str, Any]:
        # Names of trackio's table columns get a mark, as trackio's own log() does it.
        reserved = self.sdk.reserved_names
        marked = {f"__{name}" if name in reserved else name: row[name] for name in row}
        return {
            "project": self.settings.get("project") or "evalq",
            "run": f"{self.name} (evalq)",
            "run_id": "evalq-" + self.digest[:16],
            "metrics": self.sdk.as_json({name: marked[name] for name in marked if name != ID}),
            "step": row[STEP],
            "config": {"_Group": self.name},
            "log_id": f"{self.digest[:16]}/{self.row_key(row)}",
        }

    def new_stored_rows(self) -> List[Row]:
        self.sdk.put([self._entry(row) for row in self._unsent])
        stored, self._unsent = self._unsent, []
        return stored


def _load(settings: Dict[str, Any]) -> _Store:
    if "write_token=" in settings.get("server_url", ""):
        raise RuntimeError("server_url holds a write token; set $TRACKIO_WRITE_TOKEN instead")
    # The SDK reads these variables when it is imported.
    os.environ["TRACKIO_DIR"] = settings["directory"]
    os.environ.setdefault("TRACKIO_SQLITE_SYNCHRONOUS", "full")
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    if "log_ids" not in inspect.signature(SQLiteStorage.bulk_log).parameters:
        version = trackio.__version__
        raise RuntimeError(f"trackio {version} is too old: pip install 'evalq[trackio]'")
    return _Store(settings)


def main() -> int:
    return serve(Tracker("trackio", "trackio", _load, TrackioRun))


if __name__ == "__main__":
    raise SystemExit(main())
