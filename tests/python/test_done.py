"""Tests tests/faults/done.py, which reads what a long run has finished, with a log whose last line
is cut."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "faults"))
sys.dont_write_bytecode = True

from done import Done  # noqa: E402


class DoneTest(unittest.TestCase):
    def test_torn_line_is_no_point_and_spoils_none(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "done")
            Done(path).add("disk 1")
            with open(path, "a", encoding="utf-8") as file:
                file.write("disk 2")  # This is a cut form of "disk 20".
            resumed = Done(path)
            self.assertEqual((resumed.has("disk 1"), resumed.has("disk 2")), (True, False))
            resumed.add("disk 3")
            resumed.add("disk 4")
            again = Done(path)
            self.assertEqual([again.has(f"disk {number}") for number in (1, 2, 3, 4)], [True, False, True, True])


if __name__ == "__main__":
    unittest.main()
