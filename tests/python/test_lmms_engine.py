"""Tests LMMs-Engine's dialect with evalq-gateway: its steps, pins of checkpoints that it rotates,
shards, and merges."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import unittest
from typing import Any, Callable, List

from lmms_client import EvalServerBackend
from lmms_scene import SHARD, LmmsScene
from scene import BIN, DEADLINE, until


class LmmsEngineTest(LmmsScene):
    def test_engine_logs_every_step_and_its_checkpoints_stay_untouched(self) -> None:
        for generation in (1, 2):
            backend = EvalServerBackend(self.url, "qwen_vl", ["size", "count"], model_args={"batch_size": 256, "max_length": 2048},
                                        checkpoint_key="model", generation=generation)
            sizes = {}
            for step in (100, 200, 300):
                path = self.save(f"engine{generation}/checkpoint-{step}", 1000 + step)
                before = self.files(path)
                backend.submit(path, step)
                sizes[step] = os.path.getsize(before[0])
            backend.wait(until)
            self.assertEqual(backend.lost, [])
            for step, size in sizes.items():
                self.assertEqual(backend.logged[step], {"eval/size_bytes": size, "eval/size_largest": size, "eval/count_files": 1,
                                                        "global_step": step})
                path = os.path.join(self.scene.out, f"engine{generation}/checkpoint-{step}")
                self.assertEqual(self.files(path), [os.path.join(path, "model.safetensors")])

    def rotated(self, name: str, backend: EvalServerBackend, steps: List[int]) -> List[str]:
        """Saves, submits and rotates as a trainer with save_total_limit 1, while every slot is
        busy. Returns the pins at that time."""
        for step in steps:
            path = self.save_shards(f"{name}/checkpoint-{step}") if backend.generation == 2 else self.save(f"{name}/checkpoint-{step}")
            backend.submit(path, step)
            for other in os.listdir(os.path.join(self.scene.out, name)):
                if other not in (".evalq", f"checkpoint-{step}"):
                    shutil.rmtree(os.path.join(self.scene.out, name, other))
        shutil.rmtree(os.path.join(self.scene.out, name, f"checkpoint-{steps[-1]}"))
        pins = os.path.join(self.scene.out, name, ".evalq", "pins")
        return sorted(os.listdir(pins)) if os.path.exists(pins) else []

    def busy(self, name: str) -> str:
        """Keeps every slot busy until a file exists; returns the file's name."""
        gate = self.gate(name)
        jobs = [self.client.evaluate("m", ["size"], {"pretrained": self.save(f"{name}/checkpoint-{number}")}, gen_kwargs=f"until={gate}")
                for number in range(4)]
        until(lambda: all(self.client.get_job(job["job_id"])["status"] == "running" for job in jobs), "four slots are busy")
        return gate

    def test_engine_rotates_what_waits_and_it_is_evaluated_all_the_same(self) -> None:
        for generation in (1, 2):
            name = f"rotated{generation}"
            backend = EvalServerBackend(self.url, "qwen_vl", ["size"], generation=generation)
            gate = self.busy("before-" + name)
            self.assertEqual([pin.split("-")[0] for pin in self.rotated(name, backend, [10, 20, 30])], ["10", "20", "30"])
            with open(gate, "w", encoding="utf-8"):
                pass
            backend.wait(until)
            self.assertEqual((backend.lost, sorted(backend.logged)), ([], [10, 20, 30]))
            until(lambda: os.listdir(os.path.join(self.scene.out, name)) == [], "the pins are released")

    def test_pins_of_a_gateway_that_died_are_looked_after_by_the_next(self) -> None:
        gateway, client = self.another_gateway("--listen", "127.0.0.1:0")
        gate = self.busy("before-died")
        backend = EvalServerBackend(client.base_url, "qwen_vl", ["size"])
        self.assertEqual(len(self.rotated("died", backend, [1, 2])), 2)
        asked = list(backend.pending)
        gateway.kill()
        gateway.wait()
        again = EvalServerBackend(self.url, "qwen_vl", ["size"])
        again.submit(self.save("died/checkpoint-3"), 3)
        with open(gate, "w", encoding="utf-8"):
            pass
        again.wait(until)
        until(lambda: os.listdir(os.path.join(self.scene.out, "died")) == ["checkpoint-3"], "all pins are released")
        self.assertEqual([self.client.get_job(job)["status"] for job in asked], ["completed", "completed"])

    def test_each_reason_for_which_pins_wait_is_said_once(self) -> None:
        gate = self.busy("before-reasons")
        backend = EvalServerBackend(self.url, "qwen_vl", ["size"])
        self.assertEqual(len(self.rotated("reasons", backend, [1])), 1)

        def said(words: str) -> int:
            return len(re.findall(f"pins_wait.*{words}", self.scene.log("evalq-gateway")))

        self.scene.redis_call("FUNCTION", "FLUSH")
        until(lambda: said("admin install"), "the functions that went are told of")
        self.scene.redis_call("ACL", "SETUSER", "default", "-fcall", "-fcall_ro")
        until(lambda: said("refuses user"), "so is the permission that went after them")
        self.scene.redis_call("ACL", "SETUSER", "default", "+fcall", "+fcall_ro")
        self.assertEqual(self.scene.evalq("admin", "install").returncode, 0)
        with open(gate, "w", encoding="utf-8"):
            pass
        backend.wait(until)
        until(lambda: os.listdir(os.path.join(self.scene.out, "reasons")) == [], "the pins are released")
        self.assertEqual((said("admin install"), said("refuses user")), (1, 1))

    def test_without_pins_a_rotated_checkpoint_has_failed_and_says_so(self) -> None:
        config = os.path.join(self.scene.directory, "unpinned.yaml")
        with open(self.scene.config, encoding="utf-8") as file, open(config, "w", encoding="utf-8") as out:
            out.write(file.read().replace("gpus_as_needs: false", "gpus_as_needs: false, pin: false"))
        gateway, client = self.another_gateway("--listen", "127.0.0.1:0", "--config", config)
        gate = self.busy("before-unpinned")
        path = self.save("unpinned/checkpoint-5")
        job = client.evaluate("m", ["size"], {"pretrained": path})
        shutil.rmtree(path)
        self.assertFalse(os.path.exists(os.path.join(self.scene.out, "unpinned", ".evalq")))
        with open(gate, "w", encoding="utf-8"):
            pass
        with self.assertRaisesRegex(RuntimeError, "checkpoint-5' does not exist"):
            client.wait_for_job(job["job_id"], timeout=DEADLINE)
        gateway.terminate()
        self.assertEqual(gateway.wait(DEADLINE), 0)

    def test_engine_shards_are_merged_and_both_variants_evaluated(self) -> None:
        path = self.save_shards("sharded/checkpoint-400", ema=True)
        shard = os.path.getsize(SHARD)
        for kind, other in (("ema", "regular"), ("regular", "ema")):
            backend = EvalServerBackend(self.url, "qwen_vl", ["size"], generation=2, model_args={"asked": kind})
            job_id = backend.submit(path, 400, kind)
            backend.wait(until)
            self.assertEqual(backend.lost, [])
            sizes = {"regular": 2 * shard, "ema": 3 * shard}
            self.assertEqual(backend.logged[400]["eval/size_bytes"], sizes[kind])
            self.assertEqual(backend.logged[400][f"eval/size__{other}_bytes"], sizes[other])
            done = self.client.get_job(job_id)
            self.assertEqual({name: entry["variant"] for name, entry in done["result"].items()},
                             {"sharded__checkpoint-400": kind, f"sharded__checkpoint-400__{other}": other})
        self.assertFalse(os.path.exists(os.path.join(path, "eval")))
        self.assertFalse(os.path.exists(os.path.join(path, "merged")))

    def test_engine_shards_are_merged_without_being_told(self) -> None:
        """The first version of the client does not mention shards, so evalq finds them in the
        checkpoint."""
        path = self.save_shards("quiet/checkpoint-40", ranks=3)
        backend = EvalServerBackend(self.url, "qwen_vl", ["size"], generation=1)
        backend.submit(path, 40)
        backend.wait(until)
        self.assertEqual(backend.lost, [])
        self.assertEqual(backend.logged[40]["eval/size_bytes"], 3 * os.path.getsize(SHARD))

    def test_merge_is_held_open_until_it_is_done(self) -> None:
        path = self.save_shards("merge/checkpoint-10", ema=True)
        before = self.files(path)
        done = self.client.merge_checkpoint(path, checkpoint_type="ema")
        self.assertEqual((done["success"], done["message"]), (True, "Checkpoint merged successfully"))
        self.assertEqual(os.path.getsize(os.path.join(done["merged_path"], "weights")), 3 * os.path.getsize(SHARD))
        self.assertEqual(self.files(path), before)
        wanted = os.path.join(self.scene.out, "merged-here")
        self.assertEqual(self.client.merge_checkpoint(path, wanted)["merged_path"], wanted)
        self.assertEqual(os.path.getsize(os.path.join(wanted, "weights")), 2 * os.path.getsize(SHARD))
        # Of several checkpoints, the last one is merged.
        newest = self.client.merge_checkpoint(os.path.dirname(path))
        self.assertIn("checkpoint-10", newest["merged_path"])
        self.assertIn("not found", self.refused(404, self.client.merge_checkpoint, path + "-none")["detail"])
        plain = self.save("merge-plain/checkpoint-1")
        self.assertIn("Checkpoint type 'ema' not found", self.refused(400, self.client.merge_checkpoint, plain, None, "ema")["detail"])

    def test_a_merge_is_no_run_and_has_no_results(self) -> None:
        path = self.save_shards("merge-inside/checkpoint-10")
        done = self.client.merge_checkpoint(path)
        self.assertTrue(done["success"])
        self.assertIn(b"job:.evalq-merge-", self.scene.redis_call("KEYS", "*"))
        runs = json.loads(self.scene.redis_call("FCALL_RO", "evalq_v1_runs", "1", "evalq:{main}:"))["runs"]
        self.assertEqual([one["run"] for one in runs if "merge-" in one["run"] and one["run"].startswith(".")], [])
        self.assertNotIn(b".evalq-merge-", self.scene.redis_call("XRANGE", "evalq:{main}:results", "-", "+"))
        audit = json.loads(self.scene.redis_call("FCALL_RO", "evalq_v1_audit", "1", "evalq:{main}:", ""))
        self.assertEqual(audit["problems"], [])

    def test_merge_waits_while_redis_is_away(self) -> None:
        """Redis is away while the merge is submitted, and while its end is awaited. The client only
        notices the merge."""
        path = self.save_shards("merge-away/checkpoint-10")
        done: List[Any] = []

        def away(meanwhile: Callable[[], object]) -> None:
            self.scene.stop_redis()
            meanwhile()
            said: List[bool] = []  # After so many calls, the merge has asked for its end.
            until(lambda: said.append(self.client.is_healthy()) or said.count(False) > 12, "the gateway says that Redis is away")
            self.scene.start_redis()

        def ask() -> threading.Thread:
            merge = threading.Thread(target=lambda: done.append(self.client.merge_checkpoint(path)))
            merge.start()
            return merge

        evalq = [os.path.join(BIN, "evalq")]
        subprocess.run([*evalq, "pause", "suite", "lmms-merge"], env=self.scene.environment(), check=True, capture_output=True)
        before = self.scene.redis_call("KEYS", "*").count(b"job:.evalq-merge-")
        merges = [ask()]
        until(lambda: self.scene.redis_call("KEYS", "*").count(b"job:.evalq-merge-") > before, "the merge is queued")
        away(lambda: merges.append(ask()))
        subprocess.run([*evalq, "resume", "suite", "lmms-merge"], env=self.scene.environment(), check=True, capture_output=True)
        for merge in merges:
            merge.join(DEADLINE)
        self.assertEqual([one["success"] for one in done], [True, True])


if __name__ == "__main__":
    unittest.main()
