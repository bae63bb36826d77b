"""Tests evalq keep and evalq compare: the best checkpoints stay, and evalq removes nothing that it
neither pinned nor owns by configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import unittest
import urllib.request
from typing import Any, Dict, List, Set

from publishing import Logger, Publisher, all_taken
from scene import BIN, DATA, Scene, until

STEPS = range(10, 210, 10)


class KeepTest(unittest.TestCase):
    """Creates 20 checkpoints. With the step, accuracy rises and loss falls."""

    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.out = self.scene.out
        self.scene.write_config("roots: {here: $OUT}\nlogger: {sinks: [{kind: best}]}\n")
        self.scene.start_redis()

    def publish(self, run: str, published: int = 20) -> Publisher:
        publisher = Publisher(self.scene, run, 20, 1)
        publisher.publish(published)
        self.addCleanup(publisher.close)
        return publisher

    def save(self, *steps: int) -> None:
        for step in steps:
            directory = os.path.join(self.out, f"step-{step}")
            os.makedirs(os.path.join(directory, "deep"))
            for name in ("model.safetensors", "deep/optimizer.pt"):
                with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                    file.write(str(step))

    def saved(self) -> Set[int]:
        return {int(name.split("-")[1]) for name in os.listdir(self.out) if name.startswith("step-")}

    def keep(self, *words: str, code: int = 0) -> Dict[str, Any]:
        done = self.scene.evalq("keep", "digits", "--metric", "eval/digits/accuracy", *words, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        return dict(json.loads(done.stdout)) if code == 0 else {}

    def test_nothing_is_removed_that_is_not_owned(self) -> None:
        self.publish("digits")
        self.save(*STEPS)
        outside = os.path.join(self.scene.directory, "elsewhere")
        os.mkdir(outside)
        self.assertEqual(self.keep("--top", "3", "--yes")["removed"], 0)
        self.assertEqual(self.keep("--top", "3", "--own", outside, "--yes")["removed"], 0)
        # The directory itself is not allowed.
        self.assertEqual(self.keep("--top", "3", "--own", self.out + "/step-10", "--yes")["removed"], 0)
        self.assertEqual(self.saved(), set(STEPS))

    def test_dry_run_and_missing_terminal_remove_nothing(self) -> None:
        self.publish("digits")
        self.save(*STEPS)
        plan = self.keep("--top", "3", "--own", self.out, "--dry-run")
        self.assertEqual(sum(not one["keep"] for one in plan["checkpoints"]), 17)
        self.keep("--top", "3", "--own", self.out, code=2)
        self.assertEqual(self.saved(), set(STEPS))

    def test_the_best_and_the_newest_stay_and_direction_can_be_said(self) -> None:
        self.publish("digits")
        self.save(*STEPS)
        self.assertEqual(self.keep("--top", "2", "--last", "4", "--own", self.out, "--yes")["removed"], 16)
        self.assertEqual(self.saved(), {170, 180, 190, 200})
        self.save(10, 20, 30)
        # The best has the smallest accuracy here. For loss, lower is better because of its name.
        self.keep("--top", "1", "--last", "1", "--direction", "min", "--own", self.out, "--yes")
        self.assertEqual(self.saved(), {10, 200})
        self.assertEqual([name for name in os.listdir(self.out) if name.startswith(".")], [])

    def test_what_is_in_use_or_was_never_evaluated_stays(self) -> None:
        publisher = self.publish("digits", 12)  # The other jobs are claimed.
        self.save(*STEPS, 5)
        self.keep("--top", "1", "--last", "0", "--own", self.out, "--yes")
        left = {max(publisher.values)} | (set(STEPS) - set(publisher.values)) | {5}
        self.assertEqual(self.saved(), left)

    def test_a_link_is_not_followed_out_of_what_is_owned(self) -> None:
        self.publish("digits")
        target = os.path.join(self.scene.directory, "precious")
        os.mkdir(target)
        open(os.path.join(target, "weights"), "w", encoding="utf-8").close()
        os.symlink(target, os.path.join(self.out, "step-10"))
        self.save(20)
        os.symlink(target, os.path.join(self.out, "step-20", "link"))
        self.keep("--top", "1", "--own", self.out, "--yes")
        self.assertEqual(os.listdir(target), ["weights"])
        self.assertTrue(os.path.islink(os.path.join(self.out, "step-10")))
        self.assertFalse(os.path.exists(os.path.join(self.out, "step-20")))

    def test_only_the_pin_of_a_foreign_checkpoint_is_removed(self) -> None:
        pin = os.path.join(self.out, ".evalq", "pins", "10-regular-abc")
        self.save(10)
        self.publish("digits")
        # The other pin has a name of Accelerate.
        for name in ("step-10", "checkpoints/checkpoint_0"):
            os.makedirs(os.path.join(pin, name))
            with open(os.path.join(pin, ".pin"), "w", encoding="utf-8"):
                pass
            # The result names the pinned copy, as for every job with a pin.
            script = (
                "local t = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'digits')) "
                f"t.checkpoint = 'here:.evalq/pins/10-regular-abc/{name}' "
                "redis.call('HSET', KEYS[1], 'digits', cmsgpack.pack(t))"
            )
            self.scene.redis_call("EVAL", script, "1", "evalq:{main}:res:digits/10/regular/quick")
            self.assertEqual(self.keep("--top", "1", "--yes")["removed"], 1)
            self.assertFalse(os.path.exists(pin))
            self.assertEqual(self.saved(), {10})

    def evaluate(self, name: str, step: int, weights: int) -> None:
        """Evaluates a file with these weights as the step. Earlier steps are better."""
        shutil.copy(os.path.join(DATA, os.pardir, "checkpoints", "safetensors", "a.safetensors"), os.path.join(self.out, name))
        with open(os.path.join(self.out, name), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([weights]))
        for words in (("submit", os.path.join(self.out, name), "--step", str(step), "--run", "digits", "--suite", "one"), ("wait", "digits")):
            done = self.scene.evalq(*words)
            self.assertEqual(done.returncode, 0, done.stderr)

    def keep_evaluated(self, *words: str) -> Dict[int, Any]:
        done = self.scene.evalq("keep", "digits", "--metric", "eval/one/accuracy", "--own", self.out, "--yes", "--json", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {one["step"]: one["keep"] for one in json.loads(done.stdout)["checkpoints"]}

    def start_worker(self) -> None:
        program = "import json, os; json.dump({'accuracy': 1 / json.load(open(os.environ['EVALQ_JOB']))['step']}, open(os.environ['EVALQ_RESULT'], 'w'))"
        self.scene.write_config(
            f"roots: {{here: $OUT}}\nevaluators: {{one: {{argv: [$PYTHON, -c, {json.dumps(program)}]}}}}\nsuites: {{one: {{evaluator: one}}}}\n"
        )
        self.scene.start_worker("--devices", "cpu")

    def test_a_file_with_weights_of_another_step_stays(self) -> None:
        self.start_worker()
        self.evaluate("best.safetensors", 5, 0)
        for step in (10, 20, 30):
            # The training saves each step to the same path.
            self.evaluate("last.safetensors", step, step)
        self.assertEqual(self.keep_evaluated("--top", "1", "--last", "1"), dict.fromkeys((5, 10, 20, 30), True))
        # The file is also needed for steps 10 and 20.
        self.assertEqual(self.keep_evaluated("--top", "3", "--last", "0")[30], True)
        self.evaluate("last.safetensors", 40, 41)
        with open(os.path.join(self.out, "last.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")  # The file was saved again, but not submitted yet.
        self.assertEqual(self.keep_evaluated("--top", "1", "--last", "0"), dict.fromkeys((5, 10, 20, 30, 40), True))
        self.assertTrue(os.path.exists(os.path.join(self.out, "last.safetensors")))

    def test_a_file_of_two_steps_is_removed_once(self) -> None:
        self.start_worker()
        self.evaluate("best.safetensors", 5, 0)
        self.evaluate("last.safetensors", 10, 1)
        self.evaluate("last.safetensors", 20, 1)  # The same file is submitted as another step.
        self.assertEqual(self.keep_evaluated("--top", "2", "--last", "0")[20], True)
        self.keep_evaluated("--top", "1", "--last", "0")
        self.assertEqual([name for name in os.listdir(self.out) if name.endswith(".safetensors")], ["best.safetensors"])

    def best(self, gateway: str) -> Dict[str, Any]:
        """Returns the best, which must be the same from the command line and the gateway."""
        done = self.scene.evalq("best", "digits", "eval/one/accuracy", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        with urllib.request.urlopen(gateway + "/v1/runs/digits/best?metric=eval%2Fone%2Faccuracy", timeout=60) as answer:
            self.assertEqual(json.load(answer), json.loads(done.stdout))
        return dict(json.loads(done.stdout))

    def start_gateway(self) -> str:
        if not os.path.exists(os.path.join(BIN, "evalq-gateway")):
            self.skipTest("evalq-gateway was not built")
        self.scene.start("evalq-gateway", "--listen", "127.0.0.1:0")
        found = until(lambda: re.findall("gateway_started.*?address=(http://[0-9.:]+)", self.scene.log("evalq-gateway")), "the gateway is up")
        return str(found[0])

    def test_best_never_names_a_file_with_other_weights(self) -> None:
        self.start_worker()
        gateway = self.start_gateway()
        results = os.path.join(self.scene.directory, "results")
        Logger(self.scene, results)
        links = [os.path.join(results, "digits", name) for name in ("best", "best-eval.one.accuracy")]

        self.evaluate("last.safetensors", 5, 5)
        all_taken(self.scene)
        self.assertEqual(self.best(gateway)["checkpoint"], "here:last.safetensors")
        self.assertEqual([os.readlink(link) for link in links], [self.out + "/last.safetensors"] * 2)
        self.evaluate("last.safetensors", 10, 10)  # The training saves each step to the same path.
        all_taken(self.scene)
        best = self.best(gateway)
        self.assertEqual((best["step"], best["job"], best["checkpoint"]), (5, "digits/5/regular/one", None))
        self.assertEqual([link for link in links if os.path.lexists(link)], [])
        text = self.scene.evalq("best", "digits").stdout
        self.assertEqual(text, "step 5  eval/one/accuracy 0.2  here:last.safetensors  (its weights were not kept: others have this name)\n")
        self.assertEqual(self.scene.evalq("best", "digits", "--plain").stdout, f"5\t{0.2:.17g}\teval/one/accuracy\t\n")
        plan = json.loads(self.scene.evalq("keep", "digits", "--top", "2", "--metric", "eval/one/accuracy", "--dry-run", "--json").stdout)
        why = {one["step"]: one["why"] for one in plan["checkpoints"]}
        self.assertEqual(why, {5: "number 1, but its weights were not kept", 10: "number 2"})
        # The evaluated weights are no longer known.
        self.scene.redis_call("DEL", "evalq:{main}:job:digits/5/regular/one")
        self.evaluate("last.safetensors", 15, 15)
        all_taken(self.scene)
        self.assertEqual([link for link in links if os.path.lexists(link)], [])

        self.evaluate("own.safetensors", 2, 2)
        all_taken(self.scene)
        self.assertEqual([os.readlink(link) for link in links], [self.out + "/own.safetensors"] * 2)
        with open(os.path.join(self.out, "own.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")
        self.assertIsNone(self.best(gateway)["checkpoint"])
        with open(os.path.join(self.out, "own.safetensors"), "r+b") as file:
            file.truncate(100)  # The file is saved again at this moment.
        self.assertIsNone(self.best(gateway)["checkpoint"])
        os.remove(os.path.join(self.out, "own.safetensors"))
        self.assertIsNone(self.best(gateway)["checkpoint"])
        text = self.scene.evalq("best", "digits").stdout
        self.assertEqual(text, "step 2  eval/one/accuracy 0.5  here:own.safetensors  (its weights were not kept)\n")

    def test_a_link_leads_only_to_what_exists(self) -> None:
        """The checkpoint is removed after its evaluation, but before the logger receives the
        result."""
        self.start_worker()
        self.evaluate("soon.safetensors", 3, 3)
        os.remove(os.path.join(self.out, "soon.safetensors"))
        results = os.path.join(self.scene.directory, "results")
        Logger(self.scene, results)
        all_taken(self.scene)
        self.assertEqual(self.scene.evalq("best", "digits").stdout.split()[:2], ["step", "3"])
        links = os.listdir(os.path.join(results, "digits"))
        self.assertEqual([name for name in links if name.startswith("best")], [])

    def test_a_link_to_a_deleted_checkpoint_leaves_with_the_next_result(self) -> None:
        """As ModelCheckpoint deletes the best one of another metric than its own."""
        self.start_worker()
        results = os.path.join(self.scene.directory, "results")
        Logger(self.scene, results)
        links = [os.path.join(results, "digits", name) for name in ("best", "best-eval.one.accuracy")]
        self.evaluate("step-3.safetensors", 3, 3)
        all_taken(self.scene)
        self.assertEqual([os.readlink(link) for link in links], [self.out + "/step-3.safetensors"] * 2)
        self.evaluate("step-4.safetensors", 4, 4)
        all_taken(self.scene)
        self.assertEqual([os.readlink(link) for link in links], [self.out + "/step-3.safetensors"] * 2)
        os.remove(os.path.join(self.out, "step-3.safetensors"))
        self.evaluate("step-5.safetensors", 5, 5)
        all_taken(self.scene)
        self.assertEqual([link for link in links if os.path.lexists(link)], [])

    def test_a_run_without_results_is_reported(self) -> None:
        self.keep("--own", self.out, "--yes", code=3)

    def test_compare_stars_the_better_run(self) -> None:
        first = self.publish("digits", 20)
        second = self.publish("other", 5)
        done = self.scene.evalq("compare", "digits", "other", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {(row["metric"], row["run"]): row for row in json.loads(done.stdout)["metrics"]}
        for run, publisher in (("digits", first), ("other", second)):
            best = max(publisher.values)
            row = rows[("eval/digits/accuracy", run)]
            self.assertEqual((row["best"], row["best_step"]), (publisher.values[best][0], best))
            self.assertEqual((row["last_step"], row["results"]), (best, len(publisher.values)))
            self.assertFalse(rows[("eval/digits/loss,none", run)]["higher_is_better"])
        plain = self.scene.evalq("compare", "digits", "other", "--metric", "eval/digits/accuracy", "--plain").stdout
        lines: List[List[str]] = [line.split("\t") for line in plain.splitlines()]
        key = "eval/digits/accuracy"
        starred = [(line[0], line[1], line[2].endswith("*")) for line in lines]
        self.assertEqual(starred, [(key, "digits", True), (key, "other", False)])
        done = self.scene.evalq("compare", "nothing", "digits", "--metric", key, "--plain")
        self.assertEqual(done.returncode, 3)
        self.assertIn("run 'nothing' has no result", done.stderr)
        # The other checkpoints are printed.
        self.assertEqual([line.split("\t")[1] for line in done.stdout.splitlines()], ["digits"])
        done = self.scene.evalq("compare", "nothing", "--json")
        self.assertEqual((done.returncode, done.stdout), (3, ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
