"""Tests the copies that a callback holds of its checkpoints: they are complete at any moment and
belong to this session of the run, and no error disturbs training."""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from unittest import mock

import scene  # noqa: F401  (finds the package)

from evalq.integrations import held_checkpoints
from evalq.integrations.held_checkpoints import HeldCheckpoints


class HeldCheckpointsTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="evalq-held-")
        self.addCleanup(directory.cleanup)
        self.out = directory.name
        self.held = HeldCheckpoints()

    def save(self, step: int, text: str = "weights") -> str:
        path = os.path.join(self.out, f"checkpoint-{step}")
        os.makedirs(path)
        for name in ("model.safetensors", "config.json", "optimizer.pt", "rng_state_1.pth"):
            with open(os.path.join(path, name), "w", encoding="utf-8") as file:
                file.write(f"{name} {text}")
        return path

    def text(self, path: str) -> str:
        with open(os.path.join(path, "model.safetensors"), encoding="utf-8") as file:
            return file.read()

    def test_a_rotated_checkpoint_comes_back_as_a_whole(self) -> None:
        path = self.save(5)
        kept = self.held.take(5, path)
        self.assertEqual(sorted(os.listdir(kept or "")), ["config.json", "model.safetensors"])
        shutil.rmtree(path)
        with mock.patch.object(held_checkpoints.os, "rename", side_effect=OSError("killed here")), self.assertLogs("evalq"):
            # Before the rename, the checkpoint is not visible.
            self.assertIsNone(self.held.put_back(5, path))
        self.assertEqual(self.held.restore(5), path)
        self.assertEqual(sorted(os.listdir(path)), ["config.json", "model.safetensors"])
        self.held.release_all()
        self.assertEqual(os.listdir(self.out), ["checkpoint-5"])

    def test_links_of_an_earlier_session_are_replaced(self) -> None:
        path = self.save(5, "old")
        HeldCheckpoints().take(5, path)
        shutil.rmtree(path)
        path = self.save(5, "new")
        kept = self.held.take(5, path)
        self.assertEqual(self.text(kept or ""), "model.safetensors new")

    def test_adopt_keeps_only_what_is_still_needed(self) -> None:
        paths = {step: self.save(step, str(step)) for step in (5, 6)}
        kept = {step: HeldCheckpoints().take(step, path) or "" for step, path in paths.items()}
        self.held.adopt(os.path.dirname(paths[5]), [(6, paths[6])])
        self.assertEqual([os.path.exists(kept[step]) for step in (5, 6)], [False, True])

    def write(self, path: str, text: str) -> str:
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)
        return path

    def test_steps_saved_to_one_path_have_separate_copies(self) -> None:
        path = os.path.join(self.out, "last.ckpt")
        for step in (5, 10, 15):
            self.held.take(step, self.write(path, str(step)))
        self.assertEqual(self.held.put_back(15, path), path)
        self.write(os.path.join(self.out, "last-step=5.ckpt"), "of an earlier run")
        back = self.held.restore(5)
        self.assertEqual(back, os.path.join(self.out, "last-step=5.ckpt"))
        with open(back or "", encoding="utf-8") as file:
            self.assertEqual(file.read(), "5")
        # This is another session of the run, which no longer needs step 10.
        other = HeldCheckpoints()
        other.adopt(self.out, [(5, path), (15, path)])
        self.assertIsNone(other.put_back(10, path))
        self.assertEqual(other.put_back(15, path), path)
        os.unlink(os.path.join(self.out, ".evalq", "held", "last-step=15.ckpt"))
        # Another session may have saved any step there.
        self.assertIsNone(HeldCheckpoints().put_back(15, path))

    def test_a_path_that_was_saved_to_once_is_its_own(self) -> None:
        path = self.write(os.path.join(self.out, "epoch=1.ckpt"), "5")
        with mock.patch.object(held_checkpoints.os, "link", side_effect=OSError(18, "Invalid cross-device link")), self.assertLogs("evalq"):
            self.held.take(5, path)
        # The path is returned although it could not be held.
        self.assertEqual(self.held.restore(5), path)
        self.held.take(5, path)
        os.unlink(path)
        self.assertEqual(self.held.restore(5), path)

    def test_files_that_came_later_are_held_too(self) -> None:
        path = self.save(5)
        kept = self.held.take(5, path) or ""
        with open(os.path.join(path, "shard-2.safetensors"), "w", encoding="utf-8"):
            pass
        self.held.take_again()
        self.assertIn("shard-2.safetensors", os.listdir(kept))

    def test_a_save_in_the_background_is_held_when_it_is_there(self) -> None:
        path = os.path.join(self.out, "later", "checkpoint-5")
        kept = self.held.take(5, path) or ""
        self.assertFalse(os.path.exists(kept))
        os.makedirs(os.path.dirname(path))
        shutil.move(self.save(5), path)
        self.held.take_again()
        self.assertEqual(sorted(os.listdir(kept)), ["config.json", "model.safetensors"])

    def test_nothing_is_held_if_the_disk_is_nearly_full(self) -> None:
        path = self.save(5)
        full = os.statvfs_result((4096, 4096, 100, 0, 0, 100, 100, 100, 0, 255))
        with mock.patch.object(held_checkpoints.os, "statvfs", return_value=full), self.assertNoLogs("evalq", "WARNING"):
            # libevalq warns, because it cannot pin the checkpoint either.
            self.assertIsNone(self.held.take(5, path))
        self.assertFalse(os.path.exists(os.path.join(self.out, ".evalq", "held", "checkpoint-5")))

    def test_another_file_system_is_reported_once(self) -> None:
        with mock.patch.object(held_checkpoints.os, "link", side_effect=OSError(18, "Invalid cross-device link")):
            with self.assertLogs("evalq", "WARNING") as logs:
                for step in (5, 10):
                    self.assertIsNone(self.held.take(step, self.save(step)))
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertIn("save_total_limit", logs.output[0])

    def test_a_folder_that_another_process_removed_is_created_again(self) -> None:
        path = self.save(5)
        real, calls = os.link, []

        def link(source: str, target: str) -> None:
            calls.append(target)
            if len(calls) == 1:
                shutil.rmtree(os.path.join(self.out, ".evalq"))
            real(source, target)

        with mock.patch.object(held_checkpoints.os, "link", side_effect=link):
            kept = self.held.take(5, path)
        self.assertEqual(sorted(os.listdir(kept or "")), ["config.json", "model.safetensors"])


if __name__ == "__main__":
    unittest.main()
