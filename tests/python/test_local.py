"""Tests evalq.local(), which starts all programs from Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from scene import BIN, DATA, DEADLINE, NATIVE, PACKAGE, until

import evalq


def alive(pid: int) -> bool:
    """Returns whether the process runs and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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
            # The client finds the stack without settings.
            with evalq.Client(run="local", ring_directory=ring, raise_errors=True) as client:
                client.submit(path, step=1, suites="quick")
                self.assertTrue(client.wait(DEADLINE))
                self.assertEqual({result.state for result in client.results() if result.is_end}, {"done"})
            with self.assertRaisesRegex(evalq.EvalqError, "did not start"):
                evalq.local(os.path.join(self.directory, "stack"), workers=1, config=self.config)
        self.assertIsNotNone(stack._process.returncode)
        self.assertEqual(dict(os.environ), before)

    def test_stack_ends_with_the_process_that_started_it(self) -> None:
        program = "import evalq, sys, time; evalq.local(sys.argv[1], workers=1, config=sys.argv[2]); time.sleep(600)"
        stack = os.path.join(self.directory, "stack")
        process = subprocess.Popen([sys.executable, "-c", program, stack, self.config], env=dict(os.environ, PYTHONPATH=PACKAGE))
        self.addCleanup(process.kill)
        up = os.path.join(stack, "lock")
        until(lambda: os.path.exists(os.path.join(stack, "url")), "the stack is up")
        with open(up, encoding="utf-8") as file:
            pids = [int(file.read())]
        with open(f"/proc/{pids[0]}/task/{pids[0]}/children", encoding="utf-8") as file:
            pids += map(int, file.read().split())
        # These are evalq up, Redis, the worker and the logger.
        self.assertGreaterEqual(len(pids), 4)
        process.kill()
        process.wait()
        until(lambda: not any(alive(pid) for pid in pids), "all of it ended")
        self.assertFalse(os.path.exists(os.path.join(stack, "url")))

    def test_missing_devices_are_refused(self) -> None:
        with self.assertRaisesRegex(evalq.EvalqError, "no NVIDIA driver here|GPU 63 is not there"):
            evalq.local(os.path.join(self.directory, "stack"), devices=[63], config=self.config)

    def test_arguments_of_a_wrong_kind_are_refused_by_name(self) -> None:
        stack = os.path.join(self.directory, "stack")
        for wrong in ([None], ["x"], 1.5, object(), b"0"):
            with self.assertRaisesRegex(evalq.EvalqError, "devices is .*expected GPU numbers"):
                evalq.local(stack, devices=wrong, config=self.config)  # type: ignore[arg-type]
        with self.assertRaisesRegex(evalq.EvalqError, "no NVIDIA driver here|GPU 63 is not there"):
            # A single number need not be in a list.
            evalq.local(stack, devices=63, config=self.config)
        with self.assertRaisesRegex(evalq.EvalqError, "dir is 3, expected a path"):
            evalq.local(3, config=self.config)  # type: ignore[arg-type]
        with self.assertRaisesRegex(evalq.EvalqError, "did not start: dir: .*Not a directory"):
            evalq.local(os.path.join(self.config, "stack"), config=self.config)

    def test_a_failed_start_has_its_reason(self) -> None:
        with self.assertRaisesRegex(evalq.EvalqError, "does not exist"):
            evalq.local(os.path.join(self.directory, "stack"), config=os.path.join(self.directory, "none.yaml"))
        with open(self.config, "a", encoding="utf-8") as file:
            file.write("banana: {}\n")
        with self.assertRaisesRegex(evalq.EvalqError, 'unknown key "banana"'):
            evalq.local(os.path.join(self.directory, "stack"), config=self.config)


if __name__ == "__main__":
    assert os.path.exists(BIN)
    unittest.main()
