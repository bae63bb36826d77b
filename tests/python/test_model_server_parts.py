"""The parts of evalq.model_server without a worker: processes, proofs, the key, other kinds of servers."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import Future
from typing import Any, Dict, List, Tuple
from unittest import mock

from scene import BIN, DEADLINE, PACKAGE, until

from evalq._evaluation import Checkpoint, Task
from evalq.model_server import servers
from evalq.model_server.config import Refused, Settings
from evalq.model_server.evaluator import Evaluator
from evalq.model_server.http import ServerError
from evalq.model_server.process import OWNER, end_orphans
from evalq.model_server.proof import Known, Measured, Proof, ProofFailed, measure

from test_model_server import EVALUATION, LAUNCH, STANDIN, alive, write_safetensors


class OrphanTest(unittest.TestCase):
    def test_a_server_ends_with_its_evaluator(self) -> None:
        code = "import os, time; from evalq.model_server.process import Process;"
        code += "print(Process(['sleep', '600'], os.environ, 'secret').pid, flush=True); time.sleep(600)"
        evaluator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=PACKAGE))
        assert evaluator.stdout is not None
        with evaluator.stdout:
            server = int(evaluator.stdout.readline())
        self.assertTrue(alive(server))
        evaluator.kill()
        evaluator.wait()
        until(lambda: not alive(server), "the server has ended")

    def test_a_server_whose_evaluator_is_gone_is_ended_at_start(self) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        argv = ["sleep", "600"]
        orphan = subprocess.Popen(argv, env=dict(os.environ, **{OWNER: f"{gone.pid}:1"}))
        with open(f"/proc/{os.getpid()}/stat", encoding="utf-8") as file:
            started = file.read().rpartition(")")[2].split()[19]
        kept = subprocess.Popen(argv, env=dict(os.environ, **{OWNER: f"{os.getpid()}:{started}"}))
        self.addCleanup(kept.kill)
        self.assertGreaterEqual(until(end_orphans, "the orphan is found"), 1)
        self.assertEqual(orphan.wait(DEADLINE), -signal.SIGKILL)
        self.assertIsNone(kept.poll())


def done(value: Any) -> "Future[Any]":
    future: "Future[Any]" = Future()
    future.set_result(value)
    return future


class NativeTest(unittest.TestCase):
    def says(self, server: float, native: Any, exact: bool = False) -> str:
        contents = mock.Mock(digest=done("0123456789abcdef"))
        return Proof(contents, Measured([5] * 21, [server] * 20, -1.0, -1.0), done(native), Known(), exact, False).finish()

    def test_the_server_must_agree_with_the_native_engine(self) -> None:
        for server, native, exact in ((-4.02, -4.0, False), (-4.001, -4.0, True), (float("nan"), -4.0, False), (-4.0, float("nan"), True)):
            with self.assertRaisesRegex(ProofFailed, "in the server and .* in the native engine"):
                self.says(server, native, exact)
        self.assertIn("native engine -4.000000, server -4.010000", self.says(-4.01, -4.0))
        self.assertIn("NaN here and in the native engine", self.says(float("nan"), float("nan")))
        self.assertIn("not held against the native engine: too large", self.says(-4.0, "too large"))


class KeyTest(unittest.TestCase):
    def status(self, kind: str, path: str, *headers: "Tuple[bytes, bytes]") -> Any:
        sent: "List[Dict[str, Any]]" = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            sent.append({"status": 200})

        async def send(message: "Dict[str, Any]") -> None:
            sent.append(message)

        with mock.patch.dict(os.environ, {"EVALQ_SERVER_KEY": "secret"}), mock.patch.object(sys, "path", [LAUNCH, *sys.path]):
            guard = importlib.import_module("evalq_server_key").Guard(app)
        asyncio.run(guard({"type": kind, "path": path, "headers": list(headers)}, None, send))
        return sent[0].get("status") or sent[0].get("code")

    def test_the_middleware_lets_nobody_in_without_the_key(self) -> None:
        right, wrong = (b"authorization", b"Bearer secret"), (b"authorization", b"Bearer secre")
        self.assertEqual(self.status("http", "/health"), 200)
        self.assertEqual(self.status("http", "/v1/models", right), 200)
        self.assertEqual(self.status("websocket", "/v1/realtime", right), 200)
        for path in ("/v1/models", "/collective_rpc", "/health/", "//health"):
            self.assertEqual(self.status("http", path), 401, path)
            self.assertEqual(self.status("http", path, wrong), 401, path)
        self.assertEqual(self.status("websocket", "/health"), 1008)


class WithoutWorker(unittest.TestCase):
    """The stand-in and two checkpoints, without a worker."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="evalq-py-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.variables = {"STANDIN_FAULT": os.path.join(self.folder, "fault"), "STANDIN_STARTS": os.path.join(self.folder, "starts")}
        path = BIN + os.pathsep + os.environ["PATH"]
        patch = mock.patch.dict(os.environ, {**self.variables, "PYTHONPATH": STANDIN, "PATH": path})
        patch.start()
        self.addCleanup(patch.stop)
        for step in (1, 2, 3):
            os.mkdir(os.path.join(self.folder, str(step)))
            write_safetensors(os.path.join(self.folder, str(step), "model.safetensors"), {"w": (1, [float(step)])})


class EvaluatorTest(WithoutWorker):
    def evaluate(self, found: Evaluator, step: int, function: str) -> float:
        task = Task("own")
        task.options = {"harness": json.dumps({"directory": self.folder, "given": {"kind": "python", "function": function}})}
        checkpoint = Checkpoint(os.path.join(self.folder, str(step)), step, "r", "regular", "own", {})
        return float(found(checkpoint, task, mock.Mock())["value"])

    def evaluator(self) -> Evaluator:
        for step in (1, 2, 3):
            with open(os.path.join(self.folder, str(step), "config.json"), "w", encoding="utf-8") as file:
                json.dump({"model_type": "standin", "vocab_size": 50}, file)
        with open(os.path.join(self.folder, "my_eval.py"), "w", encoding="utf-8") as file:
            file.write(EVALUATION)
        found = Evaluator(Settings("m", self.folder, "vllm", sys.executable, {"max_model_len": 256}, start_seconds=60.0))
        self.addCleanup(found.close)
        return found

    def test_a_wrong_function_is_refused_while_the_server_starts(self) -> None:
        with open(self.variables["STANDIN_FAULT"], "w", encoding="utf-8") as file:
            file.write("slow")
        found = self.evaluator()
        with self.assertRaisesRegex(Refused, "harness.function 'my_evl:run' cannot be imported"):
            self.evaluate(found, 1, "my_evl:run")
        self.assertIsNone(found._server.process)

    def test_an_interrupted_job_leaves_no_wrong_weights(self) -> None:
        class Cancelled(BaseException):
            pass

        found = self.evaluator()

        def value(step: int) -> float:
            return self.evaluate(found, step, "my_eval:run")

        first = value(1)
        for moment in ("reload", "reset_caches", "score"):
            with mock.patch.object(found._server, moment, side_effect=Cancelled), self.assertRaises(Cancelled):
                value(2)
            self.assertEqual(value(1), first, moment)  # Another suite of the checkpoint before.
        self.assertEqual(self.starts(), 4)  # Nobody knows what a server has after an interrupted reload.
        # A job that was cancelled in its evaluation leaves the server warm, and its weights are known to the next proof.
        with mock.patch.object(found, "_evaluate", side_effect=Cancelled), self.assertRaises(Cancelled):
            value(2)
        right = value(3)
        self.assertEqual(self.starts(), 4)
        found.close()
        value(1)
        with mock.patch.object(found, "_evaluate", side_effect=Cancelled), self.assertRaises(Cancelled):
            value(2)
        found._known.by_digest.clear()
        with open(self.variables["STANDIN_FAULT"], "w", encoding="utf-8") as file:
            file.write("once:silent")
        self.assertEqual(value(3), right)
        self.assertEqual(self.starts(), 6)

    def starts(self) -> int:
        with open(self.variables["STANDIN_STARTS"], encoding="utf-8") as file:
            return len(file.readlines())


class OtherServersTest(WithoutWorker):
    """Kinds of servers and what is said of wrong options."""

    def server(self, kind: str, **settings: Any) -> Any:
        settings.setdefault("options", {"max_model_len": 256})
        made = servers.make(Settings("m", self.folder, kind, sys.executable, start_seconds=settings.pop("start_seconds", 60.0), **settings))
        self.addCleanup(made.stop)
        return made

    def reloads(self, server: Any) -> None:
        ids = list(range(2, 40))
        server.start(os.path.join(self.folder, "1"), lambda: None)
        first = measure(server, ids)
        self.assertEqual((len(first.values), first.cached), (len(ids) - 1, first.fresh))
        server.reload(os.path.join(self.folder, "2"), 60.0)
        server.reset_caches()
        second = measure(server, ids)
        self.assertNotEqual(first.values, second.values)
        self.assertEqual(second.cached, second.fresh)
        with self.assertRaises(ServerError):
            server.reload(os.path.join(self.folder, "none"), 60.0)

    def test_sglang_as_documented(self) -> None:
        server = self.server("sglang")
        self.reloads(server)
        self.assertEqual(server.version, "0.standin")
        with open(f"/proc/{server.process.pid}/cmdline", "rb") as file:
            self.assertNotIn(server.key.encode(), file.read())

    def test_no_key_can_be_taken_for_an_option(self) -> None:
        for _ in range(20):
            self.assertTrue(self.server("sglang").key.isalnum())

    def test_a_server_of_ones_own(self) -> None:
        start = ["{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--served-model-name", "model"]
        start += ["--host", "127.0.0.1", "--port", "{port}", "--middleware", "evalq_server_key.Guard"]
        reload = {"path": "/collective_rpc", "body": {"method": "reload_weights", "kwargs": {"weights_path": "{model}"}}}
        with mock.patch.dict(os.environ, {"PYTHONPATH": f"{STANDIN}:{LAUNCH}"}):
            self.reloads(self.server("custom", custom={"start": start, "reload": reload, "reset": ["/reset_prefix_cache"]}))
        with self.assertRaisesRegex(Refused, "custom has no key 'relaod'"):
            self.server("custom", custom={"start": start, "relaod": {}})

    def test_an_option_that_the_server_does_not_know(self) -> None:
        with self.assertRaisesRegex(Refused, r"evaluators.m.options: vLLM has no option 'max_model_lenn', did you mean 'max_model_len'\?"):
            self.server("vllm", options={"max_model_lenn": 4}).start(os.path.join(self.folder, "1"), lambda: None)
        with self.assertRaisesRegex(Refused, "argument --max-model-len: invalid int value: 'x'"):
            self.server("vllm", options={"max_model_len": "x"}).start(os.path.join(self.folder, "1"), lambda: None)

    def test_a_start_that_takes_too_long(self) -> None:
        with open(self.variables["STANDIN_FAULT"], "w", encoding="utf-8") as file:
            file.write("slow")
        server = self.server("vllm", start_seconds=1.0)
        with self.assertRaisesRegex(servers.StartFailed, r"not ready within start_seconds \(1 s\)"):
            server.start(os.path.join(self.folder, "1"), lambda: None)
        self.assertIsNone(server.process)

    def test_a_port_that_is_taken(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            ports = [other.getsockname()[1], servers._free_port()]
            with mock.patch("evalq.model_server.servers._free_port", side_effect=ports):
                server = self.server("vllm")
                server.start(os.path.join(self.folder, "1"), lambda: None)
            self.assertEqual(server.http.port, ports[1])


if __name__ == "__main__":
    unittest.main()
