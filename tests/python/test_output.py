"""Tests the command line when its output cannot be written."""

from __future__ import annotations

import os
import subprocess
import unittest

from scene import BIN


def run(output: int) -> "subprocess.CompletedProcess[bytes]":
    """Runs `evalq --help` with SIGPIPE ignored, as in the children of Python programs."""
    return subprocess.run([os.path.join(BIN, "evalq"), "--help"], stdout=output, stderr=subprocess.PIPE,
                          restore_signals=False, check=False)


class OutputTest(unittest.TestCase):
    def test_reader_that_leaves_early_gets_no_error(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        done = run(writer)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_full_disk_is_an_error(self) -> None:
        with open("/dev/full", "wb") as full:
            done = run(full.fileno())
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"write to standard output: No space left on device", done.stderr)


if __name__ == "__main__":
    unittest.main()
