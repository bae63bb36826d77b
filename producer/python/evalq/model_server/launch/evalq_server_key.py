"""An ASGI middleware that requires the key of $EVALQ_SERVER_KEY for every path except /health.

The server's interpreter loads it. That interpreter may lack the package evalq, so this file imports
nothing from it.
"""

import hmac
import os
from typing import Any


class Guard:
    def __init__(self, app: Any) -> None:
        key = os.environ.get("EVALQ_SERVER_KEY", "")
        if not key:
            raise RuntimeError("EVALQ_SERVER_KEY is not set")
        self._app = app
        self._expected = b"Bearer " + key.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] != "/health" and not self._has_key(scope):
            body = b'{"error": "the key is missing or wrong"}'
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        elif scope["type"] == "websocket" and not self._has_key(scope):
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)

    def _has_key(self, scope: Any) -> bool:
        return any(
            name.lower() == b"authorization" and hmac.compare_digest(value, self._expected)
            for name, value in scope["headers"]
        )
