"""Redis watched by three sentinels, with one replica: the primary is killed, demoted, or cut off before it dies, while real
programs work. Every job is evaluated, and recorded once; and whoever cannot be asked, or answers wrongly, is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import subprocess
import threading
import unittest
from typing import Any, Dict, List

from scene import BIN, DEADLINE, NATIVE, Scene, free_port, until

WORD = "of-the-sentinels"
DOWN_MS = 1500


class Watched(Scene):
    """A primary, a replica, and three sentinels that require a password."""

    def __init__(self) -> None:
        super().__init__()
        self.ports = [free_port(), free_port()]
        self.sentinels = [free_port() for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/queue"
        self.servers: Dict[int, "subprocess.Popen[bytes]"] = {}
        self.watchers: List["subprocess.Popen[bytes]"] = []
        self.password = os.path.join(self.directory, "sentinel.password")
        with open(self.password, "w", encoding="utf-8") as file:
            file.write(WORD + "\n")
        os.chmod(self.password, 0o600)
        self.write_config(
            NATIVE + f"redis: {{sentinel: {{password_file: {self.password}}}}}\nlogger: {{directory: $OUT/results, sinks: [{{kind: jsonl}}]}}\n"
        )

    def serve(self, port: int, *options: str) -> None:
        directory = os.path.join(self.directory, str(port))
        os.makedirs(directory, exist_ok=True)
        words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", "", *options]
        with open(os.path.join(directory, "log"), "ab") as log:
            self.servers[port] = subprocess.Popen(words, stdout=log, stderr=log)
        until(lambda: self.ask(port, "ping") == "PONG", f"redis-server at {port} answers")

    def watch(self) -> None:
        """Starts all five, and waits until the sentinels know each other and the replica."""
        self.serve(self.ports[0])
        self.serve(self.ports[1], "--replicaof", "127.0.0.1", str(self.ports[0]), "--repl-diskless-sync-delay", "0")
        for port in self.sentinels:
            path = os.path.join(self.directory, f"sentinel-{port}.conf")
            with open(path, "w", encoding="utf-8") as file:
                file.write(
                    f"port {port}\nbind 127.0.0.1\ndir {self.directory}\nrequirepass {WORD}\nsentinel sentinel-pass {WORD}\n"
                    f"sentinel monitor queue 127.0.0.1 {self.ports[0]} 2\nsentinel down-after-milliseconds queue {DOWN_MS}\n"
                    "sentinel failover-timeout queue 6000\n"
                )
            with open(path + ".log", "ab") as log:
                self.watchers.append(subprocess.Popen(["redis-server", path, "--sentinel"], stdout=log, stderr=log))
        until(lambda: "slave0:" in self.ask(self.ports[0], "info", "replication"), "the replica follows")
        until(lambda: "master_link_status:up" in self.ask(self.ports[1], "info", "replication"), "the replica has it all")
        for port in self.sentinels:
            until(
                lambda port=port: self.told(port).get("num-other-sentinels") == "2" and self.told(port).get("num-slaves") == "1",
                "the sentinels know each other",
            )
        subprocess.run([BIN + "/evalq", "admin", "install"], env=self.environment(), check=True, capture_output=True)

    @staticmethod
    def ask(port: int, *words: str) -> str:
        environment = dict(os.environ, REDISCLI_AUTH=WORD) if words[0] == "sentinel" else None
        done = subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, text=True, check=False, env=environment)
        return done.stdout.strip()

    def told(self, sentinel: int) -> Dict[str, str]:
        lines = self.ask(sentinel, "sentinel", "master", "queue").splitlines()
        return dict(zip(lines[::2], lines[1::2]))

    def primary(self) -> int:
        """Returns the port that most sentinels name."""
        named = [int(self.told(port).get("port", 0)) for port in self.sentinels]
        return max(set(named), key=named.count)

    def kill(self, port: int) -> None:
        self.servers[port].send_signal(signal.SIGKILL)
        self.servers.pop(port).wait()

    def close(self) -> None:
        self.processes += [*self.watchers, *self.servers.values()]
        super().close()


class Fake(socketserver.ThreadingTCPServer):
    """A stand-in for a sentinel with prescribed answers."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, fields: Dict[str, str]) -> None:
        items = [text for pair in fields.items() for text in pair]
        self.reply = f"*{len(items)}\r\n".encode() + b"".join(f"${len(text)}\r\n{text}\r\n".encode() for text in items)
        super().__init__(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.server_address[1]}/queue"


class Answers(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while True:
            head = self.rfile.readline()
            if not head.startswith(b"*"):
                return
            words = []
            for _ in range(int(head[1:])):
                words.append(self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2])
            self.wfile.write(b"+OK\r\n" if words[0].upper() == b"AUTH" else self.server.reply)  # type: ignore[attr-defined]


class SentinelTest(unittest.TestCase):
    scene: Watched

    def setUp(self) -> None:
        if shutil.which("redis-server") is None:
            self.skipTest("redis-server is not installed")
        self.scene = Watched()
        self.addCleanup(self.scene.close)
        self.scene.watch()

    def submit(self, client: Any, steps: range) -> None:
        for step in steps:
            client.submit(self.scene.checkpoint(f"step-{step}.safetensors"), step=step, suites="quick")
        client.flush(DEADLINE)

    def all_recorded(self, steps: int) -> None:
        def enough() -> bool:
            return len({line["result_id"] for line in self.scene.results()}) >= steps

        try:
            until(enough, f"{steps} results", 2 * DEADLINE)
        except AssertionError:
            print(self.scene.evalq("status").stdout, self.scene.log("evalq-worker")[-3000:], self.scene.log("evalq-logger")[-2000:])
            raise
        until(lambda: self.states()["queued"] + self.states()["running"] == 0, "nothing is left to do")
        wanted = sorted(f"digits/{step}/regular/quick#digits" for step in range(1, steps + 1))
        # Each job has one record.
        self.assertEqual(sorted(line["result_id"] for line in self.scene.results()), wanted)

    def states(self) -> Dict[str, int]:
        return dict(json.loads(self.scene.evalq("status", "--json").stdout)["stats"]["states"])

    def test_each_job_is_recorded_once_when_the_primary_is_killed_in_mid_backlog(self) -> None:
        client = self.scene.client()
        self.addCleanup(client.close)
        self.submit(client, range(1, 31))
        self.scene.start_worker()
        self.scene.start("evalq-logger")
        until(lambda: len(self.scene.results()) >= 5, "some results")
        self.scene.kill(self.scene.ports[0])
        for step in range(31, 41):  # The training continues.
            client.submit(self.scene.checkpoint(f"step-{step}.safetensors"), step=step, suites="quick")
        until(lambda: self.scene.primary() == self.scene.ports[1], "another primary")
        self.all_recorded(40)
        self.assertEqual(self.states()["done"], 40)
        self.assertIn("redis_away", self.scene.log("evalq-worker"))
        # The old primary returns as a replica.
        self.scene.serve(self.scene.ports[0])
        until(lambda: "role:slave" in self.scene.ask(self.scene.ports[0], "info", "replication"), "it became a replica")
        self.assertEqual(self.scene.evalq("status").returncode, 0)

    def test_jobs_that_no_replica_had_are_submitted_again_by_the_training(self) -> None:
        client = self.scene.client()
        self.addCleanup(client.close)
        self.submit(client, range(1, 3))
        until(lambda: self.scene.ask(self.scene.ports[1], "exists", "evalq:{main}:job:digits/2/regular/quick") == "1", "replicated")
        # The replica cannot follow any more, so only the primary knows the jobs that it
        # acknowledges now.
        self.scene.ask(self.scene.ports[1], "config", "set", "masterauth", "wrong")
        self.scene.ask(self.scene.ports[0], "client", "kill", "type", "replica")
        until(lambda: "master_link_status:down" in self.scene.ask(self.scene.ports[1], "info", "replication"), "cut off")
        self.submit(client, range(3, 6))
        self.assertEqual(client.stats().sent, 5)
        self.scene.kill(self.scene.ports[0])
        until(lambda: self.scene.primary() == self.scene.ports[1], "another primary")
        self.assertEqual(self.scene.ask(self.scene.ports[1], "exists", "evalq:{main}:job:digits/4/regular/quick"), "0")
        self.scene.start_worker()
        self.scene.start("evalq-logger")
        self.all_recorded(5)
        self.assertEqual(self.states()["done"], 5)

    def test_clients_leave_a_demoted_primary(self) -> None:
        client = self.scene.client()
        self.addCleanup(client.close)
        self.scene.start_worker()
        self.scene.start("evalq-logger")
        self.submit(client, range(1, 6))
        # No new job may end before the old primary is demoted; only the old one would have its
        # result.
        self.assertEqual(self.scene.evalq("pause").returncode, 0)
        until(lambda: self.scene.ask(self.scene.ports[1], "hget", "evalq:{main}:meta", "paused") == "1", "the replica has the pause")
        # A sentinel that has not checked the replica yet finds none to promote.
        until(lambda: self.scene.ask(self.scene.sentinels[1], "sentinel", "failover", "queue") == "OK", "it is demoted")
        until(lambda: self.scene.primary() == self.scene.ports[1], "another primary")
        # Sentinel demotes the old primary later. Jobs that it accepts until then are lost with it
        # and are submitted again.
        self.submit(client, range(6, 11))
        until(lambda: "role:slave" in self.scene.ask(self.scene.ports[0], "info", "replication"), "it became a replica")
        self.assertEqual(self.scene.evalq("resume").returncode, 0)
        self.all_recorded(10)

    def test_each_wrong_answer_is_reported(self) -> None:
        first, second, third = self.scene.sentinels
        cases = (
            ("redis+sentinel://127.0.0.1:1,127.0.0.1:2/queue", 5, "sentinel redis://127.0.0.1:1: connect: Connection refused"),
            (f"redis+sentinel://127.0.0.1:{first}/other", 5, "watches no primary named 'other'"),
            (f"redis+sentinel://127.0.0.1:{self.scene.ports[0]}/queue", 5, "is it a sentinel?"),
            (f"rediss+sentinel://127.0.0.1:{first}/queue", 5, "sentinel rediss://127.0.0.1"),
            (f"redis+sentinel://127.0.0.1:{first}", 8, "not the primary that they watch: write redis+sentinel://"),
            ("redis+sentinel://:hunter2@127.0.0.1/queue", 8, "holds a password"),
        )
        for url, code, text in cases:
            done = self.scene.evalq("status", url=url)
            self.assertEqual(done.returncode, code, (url, done.stderr))
            self.assertIn(text, done.stderr, url)
            self.assertNotIn("hunter2", done.stderr)
        # One dead sentinel does not matter.
        self.assertEqual(self.scene.evalq("status", url=f"redis+sentinel://127.0.0.1:1,127.0.0.1:{second}/queue").returncode, 0)
        with open(self.scene.password, "w", encoding="utf-8") as file:
            file.write("wrong\n")
        done = self.scene.evalq("status")
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn("WRONGPASS", done.stderr)
        self.assertNotIn("wrong\n", done.stderr)

    def test_a_server_that_is_no_primary_is_not_used(self) -> None:
        replica = {"ip": "127.0.0.1", "port": str(self.scene.ports[1]), "flags": "master", "config-epoch": "7"}
        for fields, text in (
            (replica, "is a replica: its sentinels have not agreed on a primary yet"),
            (dict(replica, flags="master,s_down,o_down"), "is down: another one is awaited"),
            (dict(replica, port="70000"), "answers out of shape: is it a sentinel?"),
            ({"ip": "127.0.0.1"}, "answers out of shape: is it a sentinel?"),
        ):
            with Fake(fields) as fake:
                done = self.scene.evalq("status", url=fake.url())
                fake.shutdown()
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
