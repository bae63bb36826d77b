"""Tests a Redis Cluster of three primaries. Programs that know one of its nodes find the node with
their queue, even after its slot has moved."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest

from scene import DEADLINE, NATIVE, Scene, free_port, until


class Cluster(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.ports = [free_port() for _ in range(3)]
        self.url = f"redis://127.0.0.1:{self.ports[0]}"
        self.write_config(NATIVE + "logger: {directory: $OUT/results, sinks: [{kind: jsonl}]}\n")
        for port in self.ports:
            directory = os.path.join(self.directory, str(port))
            os.mkdir(directory)
            words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", ""]
            words += ["--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "30000"]
            with open(os.path.join(directory, "log"), "ab") as log:
                self.processes.append(subprocess.Popen(words, stdout=log, stderr=log))
        for port in self.ports:
            until(lambda port=port: self.ask(port, "ping") == "PONG", "redis-server answers")
        nodes = [f"127.0.0.1:{port}" for port in self.ports]
        words = ["redis-cli", "--cluster", "create", *nodes, "--cluster-yes"]
        subprocess.run(words, check=True, capture_output=True, timeout=DEADLINE)
        for port in self.ports:
            until(lambda port=port: "cluster_state:ok" in self.ask(port, "cluster", "info"), "the cluster is whole")

    @staticmethod
    def ask(port: int, *words: str) -> str:
        done = subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def slot(self, queue: str) -> str:
        return self.ask(self.ports[0], "cluster", "keyslot", "evalq:{" + queue + "}:")

    def home(self, queue: str) -> int:
        """Returns the port of the node that holds the queue."""
        slot = int(self.slot(queue))
        for line in self.ask(self.ports[0], "cluster", "nodes").splitlines():
            fields = line.split()
            for span in fields[8:]:
                first, _, last = span.partition("-")
                if not span.startswith("[") and int(first) <= slot <= int(last or first):
                    return int(fields[1].partition("@")[0].rpartition(":")[2])
        raise AssertionError(f"nobody holds slot {slot}")

    def node(self, port: int) -> str:
        return self.ask(port, "cluster", "myid")

    def migrate(self, slot: str, source: int, target: int) -> None:
        """Moves the slot as `redis-cli --cluster reshard` does."""
        self.ask(target, "cluster", "setslot", slot, "importing", self.node(source))
        self.ask(source, "cluster", "setslot", slot, "migrating", self.node(target))
        while keys := self.ask(source, "cluster", "getkeysinslot", slot, "100").splitlines():
            self.ask(source, "migrate", "127.0.0.1", str(target), "", "0", "30000", "keys", *keys)
        for port in (target, source, *self.ports):
            self.ask(port, "cluster", "setslot", slot, "node", self.node(target))


class ClusterTest(unittest.TestCase):
    def setUp(self) -> None:
        if shutil.which("redis-server") is None:
            self.skipTest("redis-server is not installed")
        self.scene = Cluster()
        self.addCleanup(self.scene.close)

    def test_a_queue_is_found_from_any_node_and_after_its_slot_moved(self) -> None:
        scene = self.scene
        home = scene.home("main")
        away = [port for port in scene.ports if port != home]
        scene.url = f"redis://127.0.0.1:{away[0]}"
        # The function library is installed on the queue's node, whichever node is named.
        done = scene.evalq("admin", "install")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"127.0.0.1:{home}", done.stderr)
        for port in scene.ports:
            self.assertEqual(scene.evalq("status", url=f"redis://127.0.0.1:{port}").returncode, 0)
        other = next(f"q{i}" for i in range(100) if scene.home(f"q{i}") != home)
        done = scene.evalq("status", "--queue", other)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("evalq admin install", done.stderr)
        self.assertEqual(scene.evalq("admin", "install", "--queue", other).returncode, 0)
        self.assertEqual(scene.evalq("status", "--queue", other).returncode, 0)
        # Training, worker and logger know a node that does not hold the queue.
        client = scene.client()
        self.addCleanup(client.close)
        scene.start_worker()
        scene.start("evalq-logger")
        for step in range(1, 4):
            client.submit(scene.checkpoint(f"step-{step}.safetensors"), step=step, suites="quick")
        until(lambda: len(scene.results()) == 3, "three results")
        # Another node takes the slot. Functions do not move with it, so everybody waits, and the
        # command line says for what.
        scene.migrate(scene.slot("main"), home, away[1])
        self.assertEqual(scene.home("main"), away[1])
        if away[1] != scene.home(other):
            done = scene.evalq("status")
            self.assertEqual(done.returncode, 7, done.stderr)
            self.assertIn("evalq admin install", done.stderr)
        self.assertEqual(scene.evalq("admin", "install").returncode, 0)
        for step in range(4, 7):
            client.submit(scene.checkpoint(f"step-{step}.safetensors"), step=step, suites="quick")
        until(lambda: len(scene.results()) == 6, "six results")
        self.assertEqual(client.stats().sent, 6)


if __name__ == "__main__":
    unittest.main()
