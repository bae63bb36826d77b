"""Tests `evalq top` in a pseudo-terminal: it updates in place, fits the screen, survives an outage,
and ends with Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import unittest

from scene import BIN, DEADLINE, Scene
from terminal import Terminal

CONFIG = """
roots: {out: $OUT}
suites:
  quick:
    tasks:
      - {name: t, type: classification, model: {activation: relu},
         data: {format: idx, inputs: $DATA/none, labels: $DATA/none}}
"""
LEFT = b"\033[?1049l"


class TopTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.scene.write_config(CONFIG)
        self.scene.start_redis()

    def submit(self, step: int) -> None:
        path = self.scene.checkpoint(f"step-{step}.safetensors")
        words = [os.path.join(BIN, "evalq"), "submit", path, "--run", "digits", "--step", str(step), "--suite", "quick"]
        subprocess.run(words, env=self.scene.environment(), check=True, capture_output=True)

    def top(self, columns: int = 100) -> Terminal:
        terminal = Terminal(self.scene.environment(), "top", "--interval", "1", columns=columns)
        self.addCleanup(terminal.close)
        return terminal

    def test_it_is_renewed_until_it_is_interrupted(self) -> None:
        self.submit(1)
        terminal = self.top()
        terminal.wait_for(b"\033[?1049h")
        terminal.wait_for(b"1 queued")
        self.submit(2)
        terminal.wait_for(b"2 queued")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for(LEFT)
        self.assertEqual(terminal.process.wait(DEADLINE), 0)

    def test_lines_that_do_not_fit_are_counted(self) -> None:
        for step in range(1, 21):
            self.submit(step)
        terminal = self.top()
        terminal.wait_for(b"20 queued")
        terminal.wait_for(b"... more: evalq status")
        terminal.wait_for(b"\033[J")
        terminal.wait_for(b"\033[J")  # Wait for one whole update.
        fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("4H", 60, 100, 0, 0))
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.wait_for(b"digits/20/regular/quick")

    def test_a_narrow_screen_does_not_scroll_away_what_comes_first(self) -> None:
        for step in range(1, 4):
            self.submit(step)
        terminal = self.top(columns=30)
        for _ in range(2):
            terminal.wait_for(b"\033[H")
            screen = re.sub(rb"\033\[[0-9;?]*[A-Za-z]", b"", terminal.wait_for(b"\033[J")).decode()
            rows = [max(1, -(-len(line) // 30)) for line in screen.replace("\r", "").rstrip("\n").split("\n")]
            self.assertLessEqual(sum(rows), 11, screen)
            self.assertIn("queue main", screen)

    def test_an_outage_is_shown_until_it_ends(self) -> None:
        self.submit(1)
        terminal = self.top()
        terminal.wait_for(b"1 queued")
        self.scene.stop_redis()
        terminal.wait_for(b"problem:")
        self.scene.start_redis()
        terminal.wait_for(b"1 queued")
        os.kill(terminal.process.pid, signal.SIGTERM)
        self.assertEqual(terminal.process.wait(DEADLINE), 0)

    def test_without_a_terminal_it_says_what_to_use(self) -> None:
        done = subprocess.run(
            [os.path.join(BIN, "evalq"), "top"], env=self.scene.environment(), capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("evalq status", done.stderr)


if __name__ == "__main__":
    unittest.main()
