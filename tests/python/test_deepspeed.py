"""Tests which file of a DeepSpeed checkpoint holds the weights, and the error for weights that are
divided over ranks. Needs no torch."""

from __future__ import annotations

import os
import tempfile
import unittest

import scene  # noqa: F401

from evalq._checkpoint.deepspeed import deepspeed_file


class DeepspeedTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="evalq-deepspeed-")
        self.addCleanup(holder.cleanup)
        self.path = holder.name

    def write(self, name: str, text: str = "") -> str:
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_the_step_that_latest_names_is_read(self) -> None:
        self.write("global_step4/mp_rank_00_model_states.pt")
        newest = self.write("global_step8/mp_rank_00_model_states.pt")
        self.write("global_step8/zero_pp_rank_0_mp_rank_00_optim_states.pt")
        self.write("latest", "global_step8\n")
        self.assertEqual(deepspeed_file(self.path), newest)
        self.assertEqual(deepspeed_file(os.path.dirname(newest)), newest)

    def test_latest_stays_beneath(self) -> None:
        for name in ("../elsewhere", "/etc", "", "."):
            self.write("latest", name)
            with self.assertRaisesRegex(ValueError, "is not a folder beside it"):
                deepspeed_file(self.path)

    def test_stage_3_is_refused_with_what_to_do(self) -> None:
        self.write("global_step8/zero_pp_rank_0_mp_rank_00_model_states.pt")
        self.write("latest", "global_step8")
        with self.assertRaisesRegex(ValueError, "stage3_gather_16bit_weights_on_model_save.*zero_to_fp32.py"):
            deepspeed_file(self.path)

    def test_others_are_none(self) -> None:
        self.write("model.bin")
        self.assertIsNone(deepspeed_file(self.path))
        # Another program wrote this `latest`, and its folder does not exist.
        self.write("latest", "step-9")
        self.assertIsNone(deepspeed_file(self.path))


if __name__ == "__main__":
    unittest.main()
