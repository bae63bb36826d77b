"""A real S3 server on loopback (moto), behind a proxy that counts requests and makes faults."""

from __future__ import annotations

import http.client
import logging
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Optional, Tuple

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "training"
KEYS = {"AWS_ACCESS_KEY_ID": "planted-key", "AWS_SECRET_ACCESS_KEY": "planted-secret-4711", "AWS_DEFAULT_REGION": "us-east-1"}


class Fault:
    """What the proxy does to a request: status (an answer instead of the store's), cut_at (bytes of
    the body before the connection is cut), pause (seconds between blocks of 64 KiB), flip (changes
    the first byte)."""

    def __init__(self, status: int = 0, code: str = "", cut_at: int = -1, pause: float = 0, flip: bool = False) -> None:
        self.status, self.code, self.cut_at, self.pause, self.flip = status, code, cut_at, pause, flip


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Store"

    def log_message(self, *_: Any) -> None:
        pass

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        store: Store = self.server.store  # type: ignore[attr-defined]
        store.note(self.command, self.path)
        fault = store.fault(self.command, self.path) or Fault()
        if fault.status:
            self._refuse(fault)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)
        upstream.request(self.command, self.path, body, {name: value for name, value in self.headers.items()})
        answer = upstream.getresponse()
        data = answer.read()
        if fault.flip and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            # The SDK compares checksums of its own where the store sends them; our digest must do without.
            checked = fault.flip and name.lower().startswith("x-amz-checksum")
            if not checked and name.lower() not in ("transfer-encoding", "connection", "server", "date", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        for at in range(0, len(data), 65536):
            if 0 <= fault.cut_at <= at:
                self.close_connection = True
                self.connection.shutdown(2)
                return
            self.wfile.write(data[at : at + 65536])
            store.sent += len(data[at : at + 65536])
            if fault.pause:
                time.sleep(fault.pause)

    def _refuse(self, fault: Fault) -> None:
        data = f"<Error><Code>{fault.code}</Code><Message>planted</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass


class Store:
    """The server, the proxy, and a client that writes past the proxy."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # It would print each request.
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.port = self.server.get_host_and_port()[1]
        reset = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        reset.request("POST", "/moto-api/reset")  # All servers of one process share their objects.
        assert reset.getresponse().status == 200
        self.requests: List[Tuple[str, str]] = []
        self.sent = 0  # Bytes of bodies.
        self.rule: Optional[Callable[[str, str], Optional[Fault]]] = None
        self.lock = threading.Lock()
        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        self.proxy.daemon_threads = True
        self.proxy.store = self  # type: ignore[attr-defined]
        threading.Thread(target=self.proxy.serve_forever, args=(0.05,), daemon=True).start()
        self.client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-1",
            aws_access_key_id="planted-key", aws_secret_access_key="planted-secret-4711",
        )  # fmt: skip
        self.client.create_bucket(Bucket=BUCKET)

    def close(self) -> None:
        self.proxy.shutdown()
        self.proxy.server_close()
        self.server.stop()

    def environment(self) -> Dict[str, str]:
        return {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.server_address[1]}"}

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.client.delete_object(Bucket=BUCKET, Key=key)

    def note(self, method: str, path: str) -> None:
        with self.lock:
            self.requests.append((method, path))

    def fault(self, method: str, path: str) -> Optional[Fault]:
        return self.rule(method, path) if self.rule is not None else None

    def reads(self, key: str = "") -> int:
        """How often the content of an object was asked for."""
        with self.lock:
            return sum(method == "GET" and f"/{BUCKET}/{key}" in path and not re.search(r"[?&](list-type|prefix)=", path) for method, path in self.requests)
