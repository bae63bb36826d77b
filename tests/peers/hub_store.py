"""A server on loopback that speaks the part of the Hugging Face Hub's API that reading a repository needs."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List

COMMIT = "5a" * 20


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: "Hub"

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, code: int, data: bytes, kind: str, **headers: str) -> None:
        self.send_response(code)
        named = {"Content-Type": kind, "Content-Length": str(len(data)), "X-Repo-Commit": COMMIT}
        for name, value in {**named, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), "application/json")

    def _missing(self, code: str) -> None:
        self._answer(404, b'{"error": "not found"}', "application/json", X_Error_Code=code)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.hub.requests.append((self.command, path))
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._answer(401, b'{"error": "Invalid credentials"}', "application/json")
            return
        api = f"/api/models/{self.hub.repository}"
        if path.startswith(f"{api}/revision/") or path == api:
            self._json({"id": self.hub.repository, "sha": COMMIT, "siblings": [], "private": False, "tags": [], "downloads": 0, "likes": 0})
        elif path.startswith(f"{api}/paths-info/"):
            asked = urllib.parse.parse_qs(body.decode()).get("paths") or json.loads(body)["paths"]
            self._json([entry for name in asked for entry in self.hub.entries(name, exact=True)])
        elif path.startswith(f"{api}/tree/"):
            folder = path[len(f"{api}/tree/") :].partition("/")[2]
            found = self.hub.entries(folder)
            if found:
                self._json(found)
            else:
                self._missing("EntryNotFound")
        elif path.startswith(f"/{self.hub.repository}/resolve/"):
            self._file(path.split("/", 5)[5])
        else:
            self._missing("RepoNotFound")

    do_GET = do_HEAD = do_POST = _serve

    def _file(self, name: str) -> None:
        data = self.hub.files.get(name)
        if data is None:
            self._missing("EntryNotFound")
            return
        if name == self.hub.damaged:
            data = bytes([data[0] ^ 1]) + data[1:]
        tag = {"ETag": f'"{self.hub.blob(data)}"', "Accept_Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, data, "application/octet-stream", **tag)
            return
        first, last = wanted.split("=")[1].split("-")
        part = data[int(first) : int(last) + 1 if last else None]
        self._answer(206, part, "application/octet-stream", Content_Range=f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}", **tag)


class Hub:
    """One repository. Files of more than 1 KiB are large files, which have a SHA-256."""

    def __init__(self, repository: str, token: str) -> None:
        self.repository = repository
        self.token = token
        self.damaged = ""  # A file that is sent with another first byte than announced.
        self.files: Dict[str, bytes] = {}
        self.requests: List[Any] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Hub,), {"hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @staticmethod
    def blob(data: bytes) -> str:
        """git's name of the content."""
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def entries(self, place: str, exact: bool = False) -> List[Dict[str, Any]]:
        """Of a folder with all below it, or of one path."""
        found: Dict[str, Dict[str, Any]] = {}
        for name, data in self.files.items():
            parts = name.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                found[folder] = {"type": "directory", "path": folder, "oid": self.blob(folder.encode()), "size": 0}
            found[name] = {"type": "file", "path": name, "oid": self.blob(data), "size": len(data)}
            if len(data) > 1024:
                large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                found[name]["lfs"] = large
        below = place + "/" if place else ""
        return [entry for name, entry in found.items() if (name == place if exact else name.startswith(below))]
