"""Tests MLflow and a webhook over HTTPS, with a certificate authority of the test and basic
authentication. An error is reported in one sentence, stops only its own sink, and the sink
continues when it is fixed."""

from __future__ import annotations

import base64
import http.server
import json
import os
import threading
import unittest
from typing import Any, Dict, List, Set

from publishing import Logger, Publisher, all_taken, behind, seed, status
from scene import Scene, until
from tls import Authority

USER, PASSWORD, TOKEN = "evalq", "a password: with a colon", "a-token-0123456789"


class Server:
    """An HTTPS server. /hook accepts webhooks, and /api/2.0/mlflow/ has the parts of MLflow that
    the sink uses, for authorized callers."""

    def __init__(self, authority: Authority) -> None:
        self.hooks: Set[str] = set()
        self.points: List[Dict[str, Any]] = []
        self.asked: List[str] = []  # The Authorization header of each call.
        self.allowed = {"Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(), "Bearer " + TOKEN}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                code, answer = outer.answer(self.path, self.headers, json.loads(body or b"{}"))
                text = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST

            def log_message(self, *words: Any) -> None:
                pass

        class Threads(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # A client that does not trust the certificate closes the connection.

        self.server = Threads(("127.0.0.1", 0), Handler)
        # The thread of the connection does the handshake.
        self.server.socket = authority.context().wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def answer(self, path: str, headers: Any, body: Dict[str, Any]) -> "tuple[int, Any]":
        if path == "/hook":
            self.hooks.add(headers["webhook-id"])
            return 200, {}
        self.asked.append(headers["Authorization"])
        if headers["Authorization"] not in self.allowed:
            return 401, {"error_code": "UNAUTHENTICATED", "message": "You are not authenticated."}
        verb = path.split("?")[0].replace("/api/2.0/mlflow/", "")
        run = {"info": {"run_id": "0123456789abcdef", "lifecycle_stage": "active"}, "data": {}}
        if verb == "runs/log-batch":
            self.points += body["metrics"]
        return 200, {
            "experiments/get-by-name": {"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}},
            "runs/search": {},
            "runs/create": {"run": run},
            "runs/get": {"run": run},
        }.get(verb, {})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class TlsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.authority = Authority(os.path.join(self.scene.directory, "tls"))
        self.stranger = Authority(os.path.join(self.scene.directory, "stranger"))
        self.server = Server(self.authority)
        self.addCleanup(self.server.close)
        self.scene.write_config("logger: {}\n")
        self.scene.start_redis()
        self.publisher = Publisher(self.scene, "digits", 12, seed())
        self.addCleanup(self.publisher.close)

    def secret(self, text: str) -> str:
        path = os.path.join(self.scene.directory, "secret")
        with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
        return path

    def start(self, kind: str, ca: str, more: str = "", **environment: str) -> Logger:
        url = f"url: '{self.server.url}/hook', allow_private: true" if kind == "webhook" else f"uri: '{self.server.url}'"
        named = f", ca_file: '{ca}'" if ca else ""
        self.scene.write_config(f"logger: {{sinks: [{{kind: {kind}, {url}{named}{more}}}]}}\n")
        return Logger(self.scene, os.path.join(self.scene.directory, "results"), **environment)

    def stalls(self, kind: str, logger: Logger, *said: str) -> None:
        """Asserts that the sink waits with one sentence in `status`, and that the other sinks
        continue. Neither the sentence nor the log contains a password or a token."""
        self.publisher.publish(4)

        def error() -> str:
            return str(next((sink["error"] for sink in status(self.scene)["stats"]["sinks"] if sink["name"] == kind), ""))

        # One check must see both, because the message of the last logger stays until this one
        # clears it.
        def says() -> bool:
            found = error()
            return found.startswith(f"sink '{kind}': ") and "\n" not in found and all(words in found for words in said)

        until(says, f"status says {said}")
        until(lambda: behind(self.scene)["jsonl"] == 0, "the others have everything")
        self.assertGreater(behind(self.scene)[kind], 0)
        for text in (error(), self.scene.log("evalq-logger")):
            for hidden in (PASSWORD, TOKEN, "wrong-secret"):
                self.assertNotIn(hidden, text)
        logger.stop()

    def delivers(self, logger: Logger) -> None:
        all_taken(self.scene)
        logger.stop()
        self.assertEqual(status(self.scene)["stats"]["bad"], 0)

    def test_webhook_is_sent_only_to_a_certified_receiver(self) -> None:
        # The system's authorities do not include this one.
        self.stalls("webhook", self.start("webhook", ""), "certificate")
        self.stalls("webhook", self.start("webhook", self.stranger.ca), "certificate")
        self.stalls("webhook", self.start("webhook", self.scene.directory + "/none.pem"), "none.pem")
        self.assertEqual(self.server.hooks, set())
        self.delivers(self.start("webhook", self.authority.ca))
        self.assertEqual(len(self.server.hooks), 24)  # There are 12 results and 12 ends.

    def test_certificate_of_another_address_is_refused(self) -> None:
        self.authority.certificate, self.authority.key = self.authority.server("127.0.0.2")
        other = Server(self.authority)
        self.addCleanup(other.close)
        self.server.url = other.url
        self.stalls("mlflow", self.start("mlflow", self.authority.ca), "127.0.0.1")
        self.assertEqual(other.asked, [])

    def test_mlflow_with_user_and_password(self) -> None:
        wrong = f", username: {USER}, password_file: {self.secret('wrong-secret')}"
        self.stalls("mlflow", self.start("mlflow", self.authority.ca, wrong), "401", "the credentials")
        self.stalls("mlflow", self.start("mlflow", self.stranger.ca, wrong), "certificate")
        self.stalls("mlflow", self.start("mlflow", self.authority.ca, f", username: nobody, password_file: {self.secret(PASSWORD)}"), "401")
        self.assertEqual(self.server.points, [])
        self.delivers(self.start("mlflow", self.authority.ca, f", username: {USER}, password_file: {self.secret(PASSWORD)}"))
        self.assertEqual(len(self.server.points), 24)  # Each result has two metrics.

    def test_mlflow_reads_the_variables_of_its_own_client(self) -> None:
        basic = {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
        self.publisher.publish(4)
        self.delivers(self.start("mlflow", "", MLFLOW_TRACKING_SERVER_CERT_PATH=self.authority.ca, MLFLOW_TRACKING_TOKEN="", **basic))
        self.assertTrue(self.server.asked[-1].startswith("Basic "))
        self.publisher.publish(4)
        # As in MLflow's own client, user and password take precedence over a token.
        self.delivers(self.start("mlflow", "", MLFLOW_TRACKING_TOKEN="wrong-secret"))
        self.assertEqual({asked.split()[0] for asked in self.server.asked}, {"Basic"})
        self.publisher.publish(4)
        token = {"MLFLOW_TRACKING_USERNAME": "", "MLFLOW_TRACKING_PASSWORD": "", "MLFLOW_TRACKING_TOKEN": TOKEN}
        self.delivers(self.start("mlflow", "", MLFLOW_TRACKING_SERVER_CERT_PATH="", MLFLOW_TRACKING_INSECURE_TLS="True", **token))
        self.assertTrue(self.server.asked[-1].startswith("Bearer "))
        self.assertEqual(len(self.server.points), 24)


if __name__ == "__main__":
    unittest.main(verbosity=2)
