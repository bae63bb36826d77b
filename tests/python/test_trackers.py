"""Tests evalq-logger with failing trackers. A webhook receiver is up, down or failing while the
logger is killed. A sink that is down delays no other sink and loses nothing. Also tests which
tracker runs a training submits."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from typing import Any, Dict, List, Optional, Set
from unittest import mock

from publishing import Logger, Publisher, all_taken, behind, publish_and_kill, seed, status
from scene import BIN, PACKAGE, Scene, free_port, until

SECRET = b"a secret of the receiver"


class Receiver:
    """An HTTP server that checks signatures and counts ids. With `failing`, every third request
    fails."""

    def __init__(self, port: int = 0, failing: bool = False) -> None:
        self.ids: List[str] = []
        self.faults: List[str] = []
        self.failing = failing
        self.requests = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                code = outer.take(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # The logger was killed during a request.

        self.server = Server(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def take(self, headers: Any, body: bytes) -> int:
        self.requests += 1
        text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        want = "v1," + base64.b64encode(hmac.new(SECRET, text, hashlib.sha256).digest()).decode()
        message = json.loads(body)
        if headers["webhook-signature"] != want:
            self.faults.append("a wrong signature")
        if message["data"]["result_id"] != headers["webhook-id"]:
            self.faults.append("an id that is not the result's")
        if self.failing and self.requests % 3 == 0:
            return 503
        self.ids.append(headers["webhook-id"])
        return 200

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class TrackersTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.secret = os.path.join(self.scene.directory, "secret")
        with open(self.secret, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(SECRET + b"\n")
        self.results = os.path.join(self.scene.directory, "results")

    def begin(self, port: int, more: str = "") -> None:
        self.scene.write_config(
            f"logger: {{sinks: [{{kind: webhook, url: 'http://127.0.0.1:{port}/hook', secret_file: {self.secret},"
            f" allow_private: true}}{more}]}}\n"
        )
        self.scene.start_redis()

    def expected(self, publisher: Publisher) -> Set[str]:
        """Each step has a result and an end."""
        jobs = [f"digits/{step}/regular/quick" for step in publisher.values]
        return {f"{job}#digits" for job in jobs} | {f"{job}#=done.1" for job in jobs}

    def sink(self, name: str) -> Dict[str, Any]:
        return next((sink for sink in status(self.scene)["stats"]["sinks"] if sink["name"] == name), {})

    def lines(self) -> List[Dict[str, Any]]:
        with open(os.path.join(self.results, "digits", "results.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_webhook_gets_each_result_despite_failures_and_kills(self) -> None:
        number = seed()
        receiver = Receiver(failing=True)
        self.addCleanup(receiver.close)
        self.begin(receiver.port)
        publisher = Publisher(self.scene, "digits", 120, number)
        logger = Logger(self.scene, self.results)
        publish_and_kill(publisher, logger, 120, 12, 0.2, number)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        self.assertEqual(receiver.faults, [])
        self.assertEqual(set(receiver.ids), self.expected(publisher))

    def test_a_sink_that_is_down_for_an_hour_delays_nobody_and_loses_nothing(self) -> None:
        port = free_port()
        self.begin(port, ", {kind: csv}, {kind: exec, command: [cat]}")
        publisher = Publisher(self.scene, "digits", 60, seed())
        logger = Logger(self.scene, self.results)
        publisher.publish(20)
        until(lambda: self.sink("webhook").get("error"), "status says what ails it")
        self.assertIn(f"127.0.0.1:{port}", self.sink("webhook")["error"])
        text = subprocess.run([os.path.join(BIN, "evalq"), "status"], env=self.scene.environment(), capture_output=True, text=True)
        self.assertIn("the sink 'webhook' fails", text.stdout)
        until(lambda: {behind(self.scene)[name] for name in ("jsonl", "csv", "exec")} == {0}, "the others have everything")
        logger.stop()
        # An hour passes: Redis has an old time for the sink's last call.
        now = int(self.scene.redis_call("TIME").split()[0]) * 1000
        self.scene.redis_call("HSET", "evalq:{main}:sink:webhook", "seen", str(now - 3600_000))
        logger.start()
        publisher.publish(40)
        publisher.close()
        until(lambda: {behind(self.scene)[name] for name in ("jsonl", "csv", "exec")} == {0}, "the others have everything")
        self.assertEqual(behind(self.scene)["webhook"], 120)
        receiver = Receiver(port)
        self.addCleanup(receiver.close)
        all_taken(self.scene)
        until(lambda: self.sink("webhook")["error"] == "", "status says that it is well again")
        logger.stop()
        self.assertEqual(receiver.faults, [])
        self.assertEqual(sorted(receiver.ids), sorted(self.expected(publisher)))
        self.assertEqual(status(self.scene)["stats"]["losses"], [])
        self.assertEqual(len([line for line in self.lines() if line["task"]]), 60)
        with open(os.path.join(self.results, "digits", "results.csv"), encoding="utf-8", newline="") as file:
            rows = [line.rstrip("\r\n").split(",") for line in file]
        self.assertEqual([int(row[0]) for row in rows[1:]], sorted(publisher.values))
        self.assertEqual([float(row[1]) for row in rows[1:]], [publisher.values[step][0] for step in sorted(publisher.values)])

    def test_results_that_the_receiver_rejects_are_set_aside(self) -> None:
        receiver = Receiver()
        self.addCleanup(receiver.close)
        receiver.take = lambda headers, body: 422 if "/10/" in headers["webhook-id"] else 200  # type: ignore[method-assign]
        self.begin(receiver.port)
        publisher = Publisher(self.scene, "digits", 5, seed())
        logger = Logger(self.scene, self.results)
        publisher.publish(5)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        bad = self.scene.redis_call("XRANGE", "evalq:{main}:bad", "-", "+").decode(errors="replace")
        self.assertIn("sink webhook, digits/10/regular/quick#digits: sink 'webhook': the receiver answers 422", bad)
        self.assertEqual(status(self.scene)["stats"]["bad"], 2)

    def test_best_goes_by_the_direction_that_is_given(self) -> None:
        self.scene.write_config(
            "logger: {sinks: [{kind: best, metric: eval/digits/accuracy, direction: min}]}\n"
        )
        self.scene.start_redis()
        publisher = Publisher(self.scene, "digits", 20, seed())
        logger = Logger(self.scene, self.results)
        publisher.publish(20)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        # The best is the smallest accuracy, as configured, and the smallest loss, by its name.
        best = [
            json.loads(
                subprocess.run(
                    [os.path.join(BIN, "evalq"), "best", "digits", metric, "--json"],
                    env=self.scene.environment(),
                    capture_output=True,
                    check=True,
                ).stdout
            )["step"]
            for metric in ("eval/digits/accuracy", "eval/digits/loss,none")
        ]
        self.assertEqual(best, [min(publisher.values), max(publisher.values)])

    def test_an_option_that_is_unknown_ends_the_logger_with_one_line(self) -> None:
        self.scene.write_config("logger: {sinks: [{kind: webhook, urll: 'http://127.0.0.1:1/'}]}\n")
        self.scene.start_redis()
        done = subprocess.run([os.path.join(BIN, "evalq-logger")], env=self.scene.environment(), capture_output=True, text=True)
        self.assertEqual(done.returncode, 8)
        self.assertIn("sink 'webhook': option 'urll' is unknown: did you mean 'url'?", done.stderr)


class HelperTest(unittest.TestCase):
    """Tests what the helper programs of the trackers answer without their SDKs. tests/peers has the
    tests with the SDKs."""

    def answer(self, kind: str, line: str, missing: str = "") -> str:
        code = f"import sys; sys.modules['{missing}'] = None; from evalq.sinks.{kind}_sink import main; sys.exit(main())"
        variables = {**os.environ, "PYTHONPATH": PACKAGE}
        done = subprocess.run([sys.executable, "-c", code], input=line, env=variables, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        return str(json.loads(done.stdout)["error"])

    def opened(self, **settings: str) -> str:
        return json.dumps({"open": {"queue": "main", "directory": self.directory, **settings}}) + "\n"

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="evalq-helper-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def test_missing_package_is_said_with_what_installs_it(self) -> None:
        packages = {"wandb": "wandb", "trackio": "trackio", "swanlab": "swanlab", "comet": "comet_ml"}
        for kind, package in packages.items():
            want = f"RuntimeError: {package} is not installed where evalq-{kind} runs: pip install 'evalq[{kind}]'"
            self.assertEqual(self.answer(kind, self.opened(), missing=package), want)

    def test_helper_by_hand_says_who_starts_it(self) -> None:
        for kind in ("wandb", "trackio", "swanlab", "comet"):
            want = f"RuntimeError: evalq-{kind} is not for the command line: evalq-logger starts it (kind: {kind})"
            self.assertEqual(self.answer(kind, ""), want)

    def test_address_with_a_write_token_is_refused(self) -> None:
        found = self.answer("trackio", self.opened(server_url="http://127.0.0.1:1/?write_token=s3cret"))
        self.assertEqual(found, "RuntimeError: server_url holds a write token; set $TRACKIO_WRITE_TOKEN instead")

    def test_mode_in_the_environment_is_checked(self) -> None:
        with mock.patch.dict(os.environ, SWANLAB_MODE="local"):
            found = self.answer("swanlab", self.opened(), missing="swanlab")
        self.assertEqual(found, "RuntimeError: $SWANLAB_MODE is 'local', expected online or offline")

    def test_names_of_curves_are_made_fit_and_stay_different(self) -> None:
        from evalq.sinks.sdk_sink import fitting_name

        self.assertEqual(fitting_name("eval/digits/acc,none", 100), "eval/digits/acc,none")
        odd = ["eval/" + "x" * 95, "eval/" + "x" * 96, "eval/" + "x" * 97, "eval/a\tb", "eval/a_b", "eval/a", "eval/a/", "/eval/a", "./"]
        fit = [fitting_name(name, 100) for name in odd]
        self.assertEqual(len(set(fit)), len(odd))
        self.assertEqual(fit[0], odd[0])
        for name in fit:
            self.assertTrue(0 < len(name) <= 100 and name.isprintable() and name == name.strip("./ "), name)

    def test_records_are_read_as_they_are_appended(self) -> None:
        """At each length of the file, what is complete is read once."""
        from evalq.sinks.sdk_file import RecordReader

        records = [b"a", b"", b"b" * 40000, b"c" * 32740, b"d"]
        data = b"1234567"
        for record in records:
            rest, first = record, True
            while first or rest:
                room = 32768 - len(data) % 32768
                if room < 7:
                    data += bytes(room)
                    continue
                part, rest = rest[: room - 7], rest[room - 7 :]
                kind = (1 if first else 4) if not rest else (2 if first else 3)
                data += bytes(4) + len(part).to_bytes(2, "little") + bytes([kind]) + part
                first = False
        path = os.path.join(self.directory, "run.wandb")
        reader = RecordReader(path)
        self.assertEqual(list(reader.records()), [])
        found: List[bytes] = []
        ends = [0, 6, 7, 8, 14, 15, 16, 32767, 32768, 32774, 40000, 65535, 65540, 65600, len(data) - 1, len(data)]
        for end in ends:
            with open(path, "wb") as file:
                file.write(data[:end])
            found += reader.records()
        self.assertEqual(found, records)


class OpenTrackersTest(unittest.TestCase):
    """Tests which tracker runs a training submits with its checkpoints."""

    def found(self, given: Optional[Dict[str, Any]] = None, **modules: Any) -> Dict[str, str]:
        from evalq.integrations.open_trackers import open_trackers

        with mock.patch.dict(sys.modules, modules):
            for name in {"wandb", "mlflow"} - set(modules):
                sys.modules.pop(name, None)
            return open_trackers(given)

    def test_nothing_is_open(self) -> None:
        self.assertEqual(self.found(), {})
        self.assertEqual(self.found(wandb=types.SimpleNamespace(run=None), mlflow=types.SimpleNamespace(active_run=lambda: None)), {})

    def test_open_runs_are_added_to_given_trackers(self) -> None:
        run = types.SimpleNamespace(id="abc", project="mnist", entity="me", group=None)
        wandb = types.SimpleNamespace(run=run)
        active = types.SimpleNamespace(info=types.SimpleNamespace(run_id="0123"))
        mlflow = types.SimpleNamespace(active_run=lambda: active)
        want = {"wandb_run_id": "abc", "wandb_project": "mnist", "wandb_entity": "me", "mlflow_run_id": "0123"}
        self.assertEqual(self.found(wandb=wandb, mlflow=mlflow), want)
        self.assertEqual(self.found({"wandb_run_id": "mine"}, wandb=wandb)["wandb_run_id"], "mine")

    def test_an_error_in_a_tracker_prevents_no_submit(self) -> None:
        def broken() -> None:
            raise RuntimeError("no server")

        self.assertEqual(self.found({"a": "b"}, mlflow=types.SimpleNamespace(active_run=broken)), {"a": "b"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
