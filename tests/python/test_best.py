"""Tests evalq best and evalq compare: no number leads to other weights than its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import unittest
import urllib.request
from typing import Any, Dict, List

from publishing import Logger, Publisher, all_taken
from scene import BIN, DATA, Scene, until


class BestTest(unittest.TestCase):
    """Evaluates checkpoints whose weights the training overwrites or removes."""

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

    def evaluate(self, name: str, step: int, weights: int) -> None:
        """Evaluates a file with these weights as the step. Earlier steps are better."""
        shutil.copy(os.path.join(DATA, os.pardir, "checkpoints", "safetensors", "a.safetensors"), os.path.join(self.out, name))
        with open(os.path.join(self.out, name), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([weights]))
        for words in (("submit", os.path.join(self.out, name), "--step", str(step), "--run", "digits", "--suite", "one"), ("wait", "digits")):
            done = self.scene.evalq(*words)
            self.assertEqual(done.returncode, 0, done.stderr)

    def start_worker(self) -> None:
        program = "import json, os; json.dump({'accuracy': 1 / json.load(open(os.environ['EVALQ_JOB']))['step']}, open(os.environ['EVALQ_RESULT'], 'w'))"
        self.scene.write_config(
            f"roots: {{here: $OUT}}\nevaluators: {{one: {{argv: [$PYTHON, -c, {json.dumps(program)}]}}}}\nsuites: {{one: {{evaluator: one}}}}\n"
        )
        self.scene.start_worker("--devices", "cpu")

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
