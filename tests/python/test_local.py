"""evalq.local(): the whole stack from Python."""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest

from scene import BIN, DATA, NATIVE

import evalq


@unittest.skipIf(shutil.which("redis-server") is None, "redis-server is not installed")
class LocalTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="evalq-py-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        os.mkdir(os.path.join(self.directory, "out"))
        self.config = os.path.join(self.directory, "evalq.yaml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(NATIVE.replace("$DATA", DATA).replace("$OUT", os.path.join(self.directory, "out")))

    def test_stack_evaluates_and_leaves_nothing_running(self) -> None:
        path = os.path.join(self.directory, "out", "1.safetensors")
        shutil.copy(os.path.join(DATA, "mlp_784_512_128_32_10.safetensors"), path)
        before = dict(os.environ)
        with evalq.local(os.path.join(self.directory, "stack"), workers=1, config=self.config) as stack:
            self.assertEqual(os.environ["EVALQ_URL"], stack.url)
            ring = os.path.join(self.directory, "ring")
            os.mkdir(ring, 0o700)
            with evalq.Client(run="local", ring_directory=ring, raise_errors=True) as client:  # Finds it by itself.
                client.submit(path, step=1, suites="quick")
                self.assertTrue(client.wait(60))
                self.assertEqual({result.state for result in client.results() if result.is_end}, {"done"})
            with self.assertRaisesRegex(evalq.EvalqError, "did not start"):
                evalq.local(os.path.join(self.directory, "stack"), workers=1, config=self.config)
        self.assertIsNotNone(stack._process.returncode)
        self.assertEqual(dict(os.environ), before)

    def test_what_cannot_start_says_why(self) -> None:
        with self.assertRaisesRegex(evalq.EvalqError, "does not exist"):
            evalq.local(os.path.join(self.directory, "stack"), config=os.path.join(self.directory, "none.yaml"))
        with open(self.config, "a", encoding="utf-8") as file:
            file.write("banana: {}\n")
        with self.assertRaisesRegex(evalq.EvalqError, 'unknown key "banana"'):
            evalq.local(os.path.join(self.directory, "stack"), config=self.config)


if __name__ == "__main__":
    assert os.path.exists(BIN)
    unittest.main()
