"""Sends HTTP requests with the server's key."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Dict, Mapping, Optional


class ServerError(Exception):
    """The server did not answer as it should. status is the HTTP status; 0 if there was no
    answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Http:
    """One server on this machine. Any thread may use it, because each request opens its own
    connection."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self.key = key
        self.base = f"http://127.0.0.1:{port}"

    def ask(
        self,
        method: str,
        path: str,
        body: "Optional[Mapping[str, Any]]" = None,
        seconds: float = 60.0,
    ) -> Any:
        """Returns the answer as parsed JSON, or as text if it is not JSON. Raises ServerError."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        headers: Dict[str, str] = {"Authorization": "Bearer " + self.key}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except socket.timeout:
            raise ServerError(f"{method} {path} had no answer within {seconds:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{method} {path}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if answer.status >= 300:
            raise ServerError(
                f"{method} {path} answered {answer.status}: {' '.join(text.split())[:300]}",
                answer.status,
            )
        try:
            return json.loads(text)
        except ValueError:
            return text
