"""Every program over TLS alone: a Redis, and a sentinel that watches it, which speak nothing else and ask for a client's certificate.
What is submitted is evaluated, recorded and told; without the certificate each program says what it lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
import urllib.request
from typing import List

from lmms_client import EvalClient
from scene import BIN, DEADLINE, NATIVE, Scene, free_port, until
from tls import Authority


class Secured(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.authority = Authority(os.path.join(self.directory, "certificates"))
        # For a client's certificate, the names do not matter.
        self.own = self.authority.server("127.0.0.9")
        self.port, self.sentinel = free_port(), free_port()
        self.direct = f"rediss://127.0.0.1:{self.port}"
        self.url = f"rediss+sentinel://127.0.0.1:{self.sentinel}/queue"
        self.configure(f"ca: {self.authority.ca}, cert: {self.own[0]}, key: {self.own[1]}")
        self.serve(self.port)
        path = os.path.join(self.directory, "sentinel.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"sentinel monitor queue 127.0.0.1 {self.port} 1\n")
        self.serve(self.sentinel, path, "--sentinel")

    def configure(self, tls: str) -> None:
        self.write_config(
            NATIVE + f"redis: {{tls: {{{tls}}}}}\nlogger: {{directory: $OUT/results, sinks: [{{kind: jsonl}}]}}\n"
        )

    def serve(self, port: int, *first: str) -> None:
        words = ["redis-server", *first[:1], "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--dir", self.directory]
        words += ["--tls-cert-file", self.authority.certificate, "--tls-key-file", self.authority.key]
        words += ["--tls-ca-cert-file", self.authority.ca, "--tls-replication", "yes", *first[1:]]
        with open(os.path.join(self.directory, f"{port}.log"), "ab") as log:
            self.processes.append(subprocess.Popen(words, stdout=log, stderr=log))
        shown = ["--tls", "--cacert", self.authority.ca, "--cert", self.own[0], "--key", self.own[1]]
        until(
            lambda: subprocess.run(["redis-cli", "-p", str(port), *shown, "ping"], capture_output=True, check=False).stdout == b"PONG\n",
            "redis-server answers",
        )


class RedisTlsTest(unittest.TestCase):
    def setUp(self) -> None:
        if shutil.which("redis-server") is None:
            self.skipTest("redis-server is not installed")
        self.scene = Secured()
        self.addCleanup(self.scene.close)

    def test_every_program_works_over_tls_alone(self) -> None:
        scene = self.scene
        done = scene.evalq("admin", "install")
        self.assertEqual(done.returncode, 0, done.stderr)
        # The server that the sentinel names is reached over TLS too.
        self.assertIn(scene.direct, done.stderr)
        scene.start_worker()
        scene.start("evalq-logger")
        client = scene.client()
        self.addCleanup(client.close)
        plain = scene.client("two", url=scene.direct, ring_directory=os.path.join(scene.directory, "ring2"))
        self.addCleanup(plain.close)
        for step in range(1, 4):
            client.submit(scene.checkpoint(f"step-{step}.safetensors"), step=step, suites="quick")
        plain.submit(scene.checkpoint("step-4.safetensors"), step=4, suites="quick")
        until(lambda: sorted(line["step"] for line in scene.results()) == [1, 2, 3, 4], "four results")
        told: List[int] = []
        until(lambda: told.extend(result.step for result in client.results() if result.key) or len(set(told)) == 3, "results told")
        self.assertIn("4 done", scene.evalq("status").stdout)
        if os.path.exists(BIN + "/evalq-gateway"):
            port = free_port()
            scene.start("evalq-gateway", "--listen", f"127.0.0.1:{port}", "--lmms-open")

            def ready() -> bool:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=DEADLINE) as answer:
                        return bool(answer.status == 200)
                except OSError:
                    return False

            until(ready, "the gateway reaches Redis")
            self.pins_are_released(EvalClient(f"http://127.0.0.1:{port}"))

    def pins_are_released(self, client: EvalClient) -> None:
        """The gateway manages its pins over its own connection."""
        training = os.path.join(self.scene.out, "training")
        checkpoint = os.path.join(training, "checkpoint-1")
        os.makedirs(checkpoint)
        shutil.copy(self.scene.checkpoint("saved.safetensors"), os.path.join(checkpoint, "model.safetensors"))
        job = client.evaluate("m", ["size"], {"pretrained": checkpoint})
        self.assertEqual(len(os.listdir(os.path.join(training, ".evalq", "pins"))), 1)
        client.cancel_job(job["job_id"])
        until(lambda: os.listdir(training) == ["checkpoint-1"], "the pin is released")

    def test_each_program_reports_a_missing_certificate(self) -> None:
        scene = self.scene
        cases = (
            ("", 6, "is signed by none of the system's authorities"),
            (f"ca: {scene.authority.ca}", 6, "the server asks for a client's certificate"),
            (f"ca: {scene.authority.ca}, server_name: queue.example", 6, "is not for 'queue.example'"),
            (f"ca: {scene.directory}/none.pem", 8, "open redis.tls.ca"),
        )
        for tls, code, text in cases:
            scene.configure(tls)
            for url in (scene.direct, scene.url):
                done = subprocess.run([BIN + "/evalq", "status", "--url", url], env=scene.environment(), text=True, capture_output=True,
                                      timeout=DEADLINE, check=False)
                self.assertEqual(done.returncode, code, (tls, url, done.stderr))
                self.assertIn(text, done.stderr)
        for program in ("evalq-worker", "evalq-logger", "evalq-gateway"):
            if os.path.exists(os.path.join(BIN, program)):
                done = subprocess.run([os.path.join(BIN, program)], env=scene.environment(), text=True, capture_output=True,
                                      timeout=DEADLINE, check=False)
                self.assertEqual(done.returncode, 8, (program, done.stderr))
                self.assertIn("open redis.tls.ca", done.stderr)


if __name__ == "__main__":
    unittest.main()
