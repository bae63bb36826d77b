"""A web server and an SFTP server on loopback, both over a directory."""

from __future__ import annotations

import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, List

import paramiko


class Web(BaseHTTPRequestHandler):
    """Serves files with ranges and ETags, and directories as pages with links."""

    protocol_version = "HTTP/1.1"
    root = ""
    has_ranges = True

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, code: int, data: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def do_GET(self) -> None:
        path = os.path.join(self.root, self.path.lstrip("/"))
        if os.path.isdir(path):
            names = sorted(name + "/" * os.path.isdir(os.path.join(path, name)) for name in os.listdir(path))
            page = "".join(f'<a href="{name}">{name}</a>' for name in names)
            self._answer(200, page.encode(), Content_Type="text/html")
            return
        if not os.path.isfile(path):
            self._answer(404, b"")
            return
        with open(path, "rb") as file:
            data = file.read()
        named = {"ETag": f'"{os.stat(path).st_mtime_ns}"', "Content_Type": "application/octet-stream"}
        wanted = self.headers.get("Range")
        if not self.has_ranges or wanted is None:
            self._answer(200, data, **named, **({"Accept_Ranges": "bytes"} if self.has_ranges else {}))
            return
        first, last = wanted.split("=")[1].split("-")
        part = data[int(first) : int(last) + 1 if last else None]
        self._answer(206, part, Content_Range=f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}", **named)

    do_HEAD = do_GET


def serve_web(root: str, has_ranges: bool) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Web,), {"root": root, "has_ranges": has_ranges}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class _Access(paramiko.ServerInterface):
    def __init__(self, key: paramiko.PKey) -> None:
        self.key = key

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = username == "trainer" and key.get_base64() == self.key.get_base64()
        return paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class _Files(paramiko.SFTPServerInterface):
    root = ""

    def _stat(self, path: str, name: str = "") -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat(os.stat(self.root + path), name or os.path.basename(path))
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    def list_folder(self, path: str) -> Any:
        try:
            return [self._stat(os.path.join(path, name), name) for name in os.listdir(self.root + path)]
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    def stat(self, path: str) -> Any:
        return self._stat(path)

    lstat = stat

    def open(self, path: str, flags: int, attr: Any) -> Any:
        handle = paramiko.SFTPHandle(flags)
        handle.readfile = open(self.root + path, "rb")  # type: ignore[attr-defined]
        return handle


class Sftp:
    """A server that lets in the user `trainer` with one key."""

    def __init__(self, root: str, user_key: paramiko.PKey) -> None:
        self.host_key = paramiko.RSAKey.generate(2048)
        self.user_key = user_key
        self.files = type("Files", (_Files,), {"root": root})
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.transports: List[paramiko.Transport] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.host_key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, self.files)
            transport.start_server(server=_Access(self.user_key), event=threading.Event())
            self.transports.append(transport)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for transport in self.transports:
            transport.close()
