"""The W&B sink with the real SDK, offline: the history that its files hold is what was published, late steps included,
each result once, also when the helper or the logger is killed."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import signal
import subprocess
import sys
import unittest
from typing import Any, Dict, Iterator, List

from peers import needs

needs("wandb")
from publishing import Logger, Publisher, all_taken, publish_and_kill, seed, status  # noqa: E402
from scene import PACKAGE, Scene, until  # noqa: E402

COUNT, KILLS = 200, 10


def records(path: str) -> Iterator[Any]:
    """The SDK's messages in one of its files: blocks of 32 KiB, parts with a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    with open(path, "rb") as file:
        data = file.read()
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0 or at + 7 + length > len(data):
            return
        part = data[at + 7 : at + 7 + length]
        whole = part if kind in (1, 2) else whole + part
        at += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record


class WandbTest(unittest.TestCase):
    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.scene.write_config(
            "logger: {sinks: [{kind: wandb, mode: offline, command: [%s, -m, evalq.sinks.wandb_sink], close_seconds: 60}]}\n"
            % sys.executable
        )
        self.scene.start_redis()
        self.results = os.path.join(self.scene.directory, "results")
        self.environment = {"PYTHONPATH": PACKAGE, "WANDB_DIR": "", "HOME": self.scene.directory}

    def all_records(self) -> List[Any]:
        paths = sorted(glob.glob(os.path.join(self.results, "wandb", "wandb", "offline-run-*", "run-*.wandb")))
        self.assertTrue(paths)
        return [record for path in paths for record in records(path)]

    def history(self) -> List[Dict[str, Any]]:
        rows = []
        for record in self.all_records():
            if record.HasField("history"):
                items = record.history.item
                rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
        return rows

    def assert_history(self, publisher: Publisher) -> None:
        rows = self.history()
        ids = [row["evalq/result_id"] for row in rows]
        self.assertEqual(len(ids), len(set(ids)), "a result is there twice")
        found = {row["train/global_step"]: row for row in rows}
        self.assertEqual(sorted(found), sorted(publisher.values), "results are missing")
        for step, (accuracy, loss) in publisher.values.items():
            self.assertEqual(found[step]["eval/digits/accuracy"], accuracy)
            got = found[step]["eval/digits/loss,none"]
            self.assertTrue(float(got) == loss or (math.isnan(float(got)) and math.isnan(loss)), (step, got, loss))

    def test_history_read_back_is_what_was_published_late_steps_included(self) -> None:
        publisher = Publisher(self.scene, "digits", COUNT, seed())
        logger = Logger(self.scene, self.results, **self.environment)
        for _ in range(10):
            publisher.publish(COUNT // 10)
            all_taken(self.scene)
        publisher.close()
        self.assertNotEqual(publisher.order, sorted(publisher.order))
        logger.stop()
        self.assert_history(publisher)
        # In the order in which they came: nothing was dropped for being late.
        self.assertEqual([row["train/global_step"] for row in self.history()], publisher.order)
        runs = [record.run for record in self.all_records() if record.HasField("run")]
        self.assertEqual({(run.run_group, run.job_type, run.display_name) for run in runs}, {("digits", "eval", "digits (evalq)")})
        defined = {
            record.metric.name: (record.metric.step_metric, record.metric.summary.max, record.metric.summary.min)
            for record in self.all_records()
            if record.HasField("metric")
        }
        self.assertEqual(defined["eval/digits/accuracy"], ("train/global_step", True, False))
        self.assertEqual(defined["eval/digits/loss,none"][0], "train/global_step")

    def test_other_numbers_under_the_same_id_are_a_row_of_their_own(self) -> None:
        """As after `evalq forget`; what comes again is known by the next helper too. And a star in a name is no pattern."""
        opened = {"open": {"queue": "main", "directory": os.path.join(self.results, "wandb"), "mode": "offline"}}
        result = {"run": "digits", "step": 7, "result_id": "digits/7/regular/quick#t"}
        rows = [{"keys": {"a*b": "eval/t/a*b"}, "result": {**result, "metrics": {"a*b": value}}} for value in (0.5, "NaN", -0.0)]
        lines = [opened, *rows, {"flush": 1}, *rows, {"flush": 2}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        variables = {**os.environ, **self.environment}
        for _ in range(2):
            helper = [sys.executable, "-m", "evalq.sinks.wandb_sink"]
            done = subprocess.run(helper, input=text, env=variables, capture_output=True, text=True, check=True)
            self.assertEqual([json.loads(line) for line in done.stdout.splitlines()], [{"flushed": 1}, {"flushed": 2}])
        self.assertEqual([repr(float(row["eval/t/a*b"])) for row in self.history()], ["0.5", "nan", "0.0"])

    def test_a_run_has_one_directory_for_each_session_of_the_logger(self) -> None:
        publisher = Publisher(self.scene, "digits", 24, seed())
        for session in (1, 2):
            logger = Logger(self.scene, self.results, **self.environment)
            for _ in range(6):  # Each pair is flushed by itself, and may be late.
                publisher.publish(2)
                all_taken(self.scene)
            logger.stop()
            left = glob.glob(os.path.join(self.results, "wandb", "wandb", "offline-run-*"))
            self.assertEqual(len(left), session, left)
        publisher.close()

    def test_each_result_is_there_once_when_the_logger_is_killed(self) -> None:
        number = seed()
        publisher = Publisher(self.scene, "digits", COUNT, number)
        logger = Logger(self.scene, self.results, **self.environment)
        publish_and_kill(publisher, logger, COUNT, KILLS, 4, number)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        self.assert_history(publisher)

    def test_a_killed_helper_is_replaced_and_nothing_is_lost(self) -> None:
        publisher = Publisher(self.scene, "digits", 60, seed())
        logger = Logger(self.scene, self.results, **self.environment)
        for part in range(3):
            publisher.publish(20)
            if part < 2:
                until(lambda: self.kill_helper(logger.process.pid), "the helper runs")
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        self.assert_history(publisher)

    def kill_helper(self, logger: int) -> bool:
        done = subprocess.run(["pgrep", "-P", str(logger), "-f", "wandb_sink"], capture_output=True, text=True, check=False)
        for pid in done.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
                return True
        return False

    def test_what_is_missing_is_said_in_status_and_costs_no_other_sink(self) -> None:
        self.scene.write_config("logger: {sinks: [{kind: wandb, command: [/nonexistent/evalq-wandb]}]}\n")
        publisher = Publisher(self.scene, "digits", 20, seed())
        logger = Logger(self.scene, self.results, **self.environment)
        publisher.publish(20)
        publisher.close()

        def sinks() -> Dict[str, Any]:
            return {sink["name"]: sink for sink in status(self.scene)["stats"]["sinks"]}

        until(lambda: "/nonexistent/evalq-wandb" in sinks().get("wandb", {"error": ""})["error"], "status says it")
        until(lambda: sinks()["jsonl"]["lag"] + sinks()["jsonl"]["pending"] == 0, "JSONL has them")
        self.assertEqual(sinks()["wandb"]["lag"] + sinks()["wandb"]["pending"], 40)
        logger.stop()


if __name__ == "__main__":
    unittest.main(verbosity=2)
