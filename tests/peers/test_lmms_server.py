"""Each request of lmms_requests.py goes to LMMS-Eval's own server and to evalq-gateway. Where their answers differ, the table of
docs/lmms.md has a row for it; a difference without a row, and a row without a difference, fail."""

from __future__ import annotations

import contextlib
import fnmatch
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import unittest
from typing import Any, Dict, List

from lmms_requests import Request, requests
from peers import needs

needs("lmms_eval", "fastapi", "uvicorn")
import test_lmms  # noqa: E402
from scene import BIN, SOURCE, Scene, free_port, until  # noqa: E402

# The first cell of a row of the table: the names of the requests that it is about.
ROWS: Dict[str, List[str]] = {
    "`HEAD`": ["HEAD /health", "HEAD /jobs/ID", "HEAD /queue", "HEAD /tasks", "HEAD /models"],
    "a wrong method of `/jobs/ID`": ["POST /jobs/ID", "PUT /jobs/ID", "PATCH /jobs/ID", "OPTIONS /jobs/ID"],
    "a path that ends in `/`": ["GET /health/", "GET /queue/", "GET /evaluate/"],
    "`/`": ["GET /"],
    "`/docs`, `/redoc`": ["GET /docs", "GET /redoc"],
    "`/openapi.json`": ["GET /openapi.json"],
    "`/queue`": ["GET /queue"],
    "`/tasks`, `/models`": ["GET /tasks", "GET /models"],
    "`model_args` as text": ['evaluate model_args="*"'],
    "`lmms_engine_kwargs`": ["evaluate lmms_engine_kwargs=*"],
    "`num_gpus` above 64": ["evaluate num_gpus=65", "evaluate num_gpus=1000"],
    "NaN and Infinity": ["evaluate NaN", "evaluate Infinity", "evaluate -Infinity", "evaluate NaN in model_args"],
    "not JSON or not UTF-8, below": ["evaluate num_fewshot=1180591620717411303424", "evaluate not utf-8", "evaluate a lone surrogate", "evaluate a NUL"],
    "broken JSON": ["evaluate not json", "evaluate a word", "evaluate a comma too many"],
    "a body above 24 KiB": ["evaluate 30 KiB", "evaluate 1 MiB"],
    "another `Content-Type`": [
        "evaluate as text/plain", "evaluate as application/x-www-form-urlencoded", "evaluate as application/vnd.api+json", "evaluate as None",
    ],
    "`/merge` outside every root": [
        'merge {"checkpoint_path": ""}', 'merge {"checkpoint_path": "/nowhere/checkpoint-1"}', 'merge {"checkpoint_path": "relative"}',
    ],
}  # fmt: skip


def ask(address: str, request: Request) -> List[Any]:
    """Status, the headers that clients look at, and the body."""
    _, method, path, kind, body = request
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            if kind is not None:
                connection.putheader("Content-Type", kind)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
        except BrokenPipeError:
            return ["closed"]
    found: Any = data.decode(errors="replace")
    with contextlib.suppress(ValueError):
        found = json.loads(data) if data else None
    return [answer.status, answer.getheader("content-type"), answer.getheader("allow"), answer.getheader("location"), found]


def told(address: str, request: Request) -> str:
    """The answer, and the request as the server shows it afterwards, without what differs from call to call."""
    answer = ask(address, request)
    if answer[0] == 200 and isinstance(answer[-1], dict) and "job_id" in answer[-1]:
        shown = ask(address, ("", "GET", f"/jobs/{answer[-1]['job_id']}", None, None))[-1]
        answer.append(shown.get("request") if isinstance(shown, dict) else shown)
    text = json.dumps(answer, sort_keys=True)
    for pattern, word in (
        (r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID"), (r"\d{4}-\d\d-\d\dT[\d:.]+", "TIME"),
        (r'("(?:position_in_queue|queue_size)": )\d+', r"\1N"), (r"Position in queue: \d+", "Position in queue: N"),
    ):  # fmt: skip
        text = re.sub(pattern, word, text)
    return text


class ServerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        if not os.path.exists(os.path.join(BIN, "evalq-gateway")):
            self.skipTest("evalq-gateway was not built")
        self.scene.write_config(test_lmms.CONFIG)
        self.scene.start_redis()
        self.scene.start("evalq-gateway", "--lmms-open", "--rate", "0", "--listen", "127.0.0.1:0")
        log = until(lambda: re.findall(r"gateway_started.*?address=http://([0-9.:]+)", self.scene.log("evalq-gateway")), "the gateway listens")
        self.ours = str(log[-1])
        port = free_port()
        self.theirs = f"127.0.0.1:{port}"
        with open(os.path.join(self.scene.directory, "server.log"), "wb") as log_file:
            server = subprocess.Popen(
                [sys.executable, "-m", "lmms_eval.launch_server", "--host", "127.0.0.1", "--port", str(port)],
                cwd=self.scene.directory,
                env={**os.environ, "HF_HOME": self.scene.directory, "HF_HUB_OFFLINE": "1", "TMPDIR": self.scene.directory},
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,  # It starts evaluations: they end with it.
            )
        self.addCleanup(server.wait)
        self.addCleanup(os.killpg, server.pid, signal.SIGKILL)

        def up() -> bool:
            with contextlib.suppress(OSError):
                return bool(ask(self.theirs, ("", "GET", "/health", None, None))[0] == 200)
            return False

        until(up, "the server of LMMS-Eval listens")

    def test_each_difference_is_in_the_table(self) -> None:
        with open(os.path.join(SOURCE, "docs", "lmms.md"), encoding="utf-8") as file:
            page = file.read()
        count, rows = 0, {row: 0 for row in ROWS}
        for request in requests():
            count += 1
            ours, theirs = told(self.ours, request), told(self.theirs, request)
            row = next((row for row, names in ROWS.items() if any(fnmatch.fnmatchcase(request[0], name) for name in names)), "")
            with self.subTest(request[0]):
                if ours != theirs:
                    self.assertNotEqual(row, "", f"no row has this difference:\n{theirs[:600]}\n{ours[:600]}")
                    rows[row] += 1
        for row, differences in rows.items():
            with self.subTest(row):
                self.assertIn(f"\n| {row} |", page)
                self.assertGreater(differences, 0)
        print(f"\n{count} requests, {sum(rows.values())} answers differ, {len(rows)} rows")


if __name__ == "__main__":
    unittest.main(verbosity=2)
