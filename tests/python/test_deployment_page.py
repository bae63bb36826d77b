"""Runs the blocks of docs/deployment.md, "Two machines by hand", as an operator types them: in order, each in the home
directory of its machine. The machines are directories here, so ssh and scp become mkdir and cp."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.request
from typing import Dict, List

from scene import BIN, DEADLINE, SOURCE, free_port, until

MACHINES = {1: "queue", 2: "queue", 3: "queue", 4: "gpu1", 5: "trainer", 6: "queue"}


def blocks() -> Dict[int, str]:
    with open(os.path.join(SOURCE, "docs", "deployment.md"), encoding="utf-8") as file:
        section = file.read().split("\n## Two machines by hand\n")[1].split("\n## ")[0]
    return {int(number): text for number, text in re.findall(r"\n\*\*(\d)\. .*?```sh\n(.*?)```", section, re.S)}


class DeploymentPageTest(unittest.TestCase):
    def setUp(self) -> None:
        for program in ("redis-server", "openssl"):
            if shutil.which(program) is None:
                self.skipTest(f"{program} is not installed")
        self.directory = tempfile.mkdtemp(prefix="evalq-page-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        for name in ("queue", "gpu1", "trainer", "ckpt"):
            os.mkdir(self.path(name))
        self.redis, self.gateway = free_port(), free_port()
        self.addCleanup(self.end)
        self.groups: List[int] = []

    def path(self, *names: str) -> str:
        return os.path.join(self.directory, *names)

    def end(self) -> None:
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass  # The block left no program behind.

    def here(self, text: str) -> str:
        """Returns the block with the names and ports of this machine."""
        text = text.replace("queue.example.org", "localhost").replace("6379", str(self.redis))
        text = text.replace("/mnt/ckpt", self.path("ckpt")).replace("--tokens", f"--listen 127.0.0.1:{self.gateway} --tokens")
        copied = rf"mkdir -p {self.directory}/\1/\2 && cp \3 {self.directory}/\1/\2/"
        text = re.sub(r"ssh (\w+) mkdir -p ([\w-]+) && scp (.*) \1:\2/", copied, text)
        return re.sub(r"^evalq-worker$", "evalq-worker >worker.log 2>&1 &", text, flags=re.M)

    def run_block(self, number: int, text: str) -> str:
        home = self.path(MACHINES[number])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EVALQ_")}
        environment.update(HOME=home, PATH=f"{BIN}:{os.environ['PATH']}")
        process = subprocess.Popen(
            ["sh", "-ec", self.here(text)],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # The programs that it starts stay until the test ends.
        )
        self.groups.append(process.pid)
        said, _ = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, 0, f"block {number}: {said}")
        return said

    def test_the_blocks_give_a_metric_and_a_page(self) -> None:
        found = blocks()
        self.assertEqual(sorted(found), sorted(MACHINES))
        said = {number: self.run_block(number, found[number]) for number in sorted(found)}
        self.assertRegex(said[5], r"(?m)^ +100 +5\*? .* done$")
        self.assertIn("0 queued, 0 running, 1 done", said[6])
        token = said[6].split()[-1]
        request = urllib.request.Request(f"http://127.0.0.1:{self.gateway}/v1/runs", headers={"Authorization": f"Bearer {token}"})

        def listens() -> bool:
            with open(self.path("queue", "evalq", "gateway.log"), encoding="utf-8") as file:
                return "gateway_started" in file.read()

        until(listens, "the gateway listens")
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            self.assertEqual([run["run"] for run in json.load(answer)["runs"]], ["test"])
        self.assertTrue(os.listdir(self.path("queue", "evalq", "results", "test")))
        for name in ("secrets/worker", "redis.key", "gateway.tokens"):  # Nobody else may read a secret.
            self.assertEqual(os.stat(self.path("queue", "evalq", name)).st_mode & 0o077, 0, name)


if __name__ == "__main__":
    unittest.main()
