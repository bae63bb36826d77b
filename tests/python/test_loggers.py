"""Tests several loggers with one directory of results."""

from __future__ import annotations

import unittest

from scene import SceneTest, until

ROUNDS = 15


class LoggersTest(SceneTest):
    workers = False
    config = "logger: {directory: $OUT/results, sinks: [tensorboard, csv]}\n"

    def test_of_loggers_that_start_together_one_remains(self) -> None:
        for started in range(ROUNDS):
            loggers = [self.scene.start("evalq-logger") for _ in range(3)]
            until(lambda started=started: self.scene.log("evalq-logger").count("event=logger_started") > started, "a logger serves")
            until(lambda loggers=loggers: sum(one.poll() is None for one in loggers) <= 1, "the others end")
            left = [one for one in loggers if one.poll() is None]
            self.assertEqual(len(left), 1, self.scene.log("evalq-logger")[-2000:])
            left[0].terminate()
            self.assertEqual(left[0].wait(60), 0)
        self.assertEqual(self.scene.log("evalq-logger").count("is locked by another logger (pid "), 2 * ROUNDS)


if __name__ == "__main__":
    unittest.main()
