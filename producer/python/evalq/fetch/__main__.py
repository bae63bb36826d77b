"""The helper process of evalq's programs: python3 -m evalq.fetch.

It reads requests from its standard input and answers on its standard output. A request is one line,
and an answer is one or more lines. Tabs separate the fields of a line. The process ends when its
parent or its input ends.

    list ADDRESS KEY             @file NAME BYTES ..., then @listing FINGERPRINT BYTES KIND
    scan ADDRESS KEY             @entry NAME KIND FINGERPRINT BYTES ..., then @end
    fetch ADDRESS KEY FINGERPRINT DIRECTORY    @progress DONE TOTAL ..., then @end

KEY is "root:path", the checkpoint's name on all machines. It is part of the fingerprint. KIND is "d"
(a directory) or "f" (a file). Any request can end with @error KIND MESSAGE instead; KIND is
gone, changed, full, setup, invalid, corrupt or retry. Credentials come from the environment."""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import sys
import threading
from typing import List

from .errors import Failure, explain, repeat
from .listing import Checkpoint, Store
from .transfer import fetch

_PR_SET_PDEATHSIG = 1
_requests: "queue.Queue[List[str]]" = queue.Queue()


def _read_requests() -> None:
    """Reads the input on its own thread, so that the end of the input also ends a transfer."""
    for line in sys.stdin:
        _requests.put(line.rstrip("\n").split("\t"))
    os._exit(0)


def _say(*fields: object) -> None:
    # The first newline ends a line that a library may have printed in part.
    text = "\n@" + "\t".join(" ".join(str(field).split()) for field in fields) + "\n"
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(1, data) :]


class Helper:
    """Answers requests. It keeps the last store and the last listing, because a fetch follows a
    listing of the same checkpoint."""

    def __init__(self) -> None:
        self.store: "Store | None" = None
        self.last: "Checkpoint | None" = None
        self.never = threading.Event()  # It is never set: only the end of the process ends a pause.

    def _store(self, address: str) -> Store:
        if self.store is None or not self.store.serves(address):
            self.store = Store(address)
        return self.store

    def _list(self, address: str, key: str) -> Checkpoint:
        self.last = None
        store = self._store(address)
        self.last = repeat(lambda: store.checkpoint(address, key), self.never)
        return self.last

    def list(self, address: str, key: str) -> None:
        found = self._list(address, key)
        for file in found.files:
            _say("file", file.name, file.size)
        _say("listing", found.fingerprint, found.bytes, found.kind)

    def scan(self, address: str, key: str) -> None:
        store = self._store(address)
        for name, found in repeat(lambda: list(store.children(address, key)), self.never):
            _say("entry", name, found.kind, found.fingerprint, found.bytes)
        _say("end")

    def fetch(self, address: str, key: str, fingerprint: str, directory: str) -> None:
        found = self.last
        if found is None or (found.address, found.key) != (address, key):
            found = self._list(address, key)
        self.last = None
        if found.fingerprint != fingerprint:
            raise Failure("changed", f"the files changed after the submit: '{address}'")
        store = self._store(address)
        damaged = None
        try:
            fetch(store, found, directory, lambda done, total: _say("progress", done, total))
        except Failure as failure:
            if failure.kind != "corrupt":
                raise
            damaged = failure  # The file may have been replaced during the fetch; see below.
        if repeat(lambda: store.checkpoint(address, key), self.never).fingerprint != fingerprint:
            raise Failure("changed", f"the files changed during the fetch: '{address}'")
        if damaged is not None:
            raise damaged
        _say("end")

    def answer(self, words: List[str]) -> None:
        operations = {"list": self.list, "scan": self.scan, "fetch": self.fetch}
        try:
            operations[words[0]](*words[1:])  # type: ignore[operator]
        except Exception as error:  # pylint: disable=broad-except
            failure = explain(error, words[1] if len(words) > 1 else "")
            _say("error", failure.kind, str(failure)[:400])


def main() -> None:
    # The end of the input can come late: a forked copy of the parent may hold the socket open.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.disable()  # Libraries log their own retries. The answer has the error.
    threading.Thread(target=_read_requests, daemon=True).start()
    helper = Helper()
    while True:
        helper.answer(_requests.get())


if __name__ == "__main__":
    main()
