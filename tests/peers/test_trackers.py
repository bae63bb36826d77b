"""The sinks trackio, SwanLab and Comet with the real SDKs, which store here: what their files hold is what was published,
late steps included, each number once, also when the logger and its helper are killed at the worst moment."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import unittest
import zipfile
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import peers  # noqa: F401
from publishing import Logger, Publisher, all_taken, seed, status
from scene import DEADLINE, PACKAGE, Scene, free_port, until

COUNT, KILLS = 120, 6
AXIS = "train/global_step"


class Point(NamedTuple):
    run: str
    curve: str
    step: int
    value: str  # As repr(), so that a NaN is equal to itself.


def point(run: str, curve: str, step: float, value: Any) -> Point:
    return Point(run, curve, int(step), repr(float(value) + 0.0))  # Some SDKs store -0.0 as 0.


def published(publisher: Publisher, run: str = "digits (evalq)") -> List[Point]:
    """In the order of publication."""
    points = []
    for step in publisher.order:
        accuracy, loss = publisher.values[step]
        points += [point(run, "eval/digits/accuracy", step, accuracy), point(run, "eval/digits/loss,none", step, loss)]
    return points


class TrackerTest:
    """These tests hold for each tracker. A subclass says how its files are read."""

    kind = ""
    package = ""
    options: Dict[str, str] = {"mode": "offline"}

    def points(self) -> Iterable[Point]:
        """Returns all that is stored, in the order in which it was stored."""
        raise NotImplementedError

    def setUp(self) -> None:
        if importlib.util.find_spec(self.package) is None:
            raise unittest.SkipTest(f"{self.package} is not installed")
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.results = os.path.join(self.scene.directory, "results")
        self.store = os.path.join(self.results, self.kind)
        self.environment = {"PYTHONPATH": PACKAGE, "HOME": self.scene.directory, "COMET_LOGGING_CONSOLE": "ERROR"}
        self.write()
        self.scene.start_redis()

    def write(self) -> None:
        words = {"kind": self.kind, **self.options, "command": f"[{sys.executable}, -m, evalq.sinks.{self.kind}_sink]", "close_seconds": "60"}
        words["timeout_seconds"] = "600"  # On a busy machine the import of an SDK alone takes minutes.
        options = ", ".join(f"{name}: {value}" for name, value in words.items())
        self.scene.write_config(f"logger: {{sinks: [{{{options}}}]}}\n")

    def logger(self) -> Logger:
        return Logger(self.scene, self.results, **self.environment)

    def helper(self) -> List[str]:
        return [sys.executable, "-m", f"evalq.sinks.{self.kind}_sink"]

    def opened(self) -> Dict[str, Any]:
        return {"open": {"queue": "main", "directory": self.store, **self.options}}

    def feed(self, *lines: Any) -> List[Any]:
        """Returns what a helper answers to the lines, after which it ends by itself."""
        text = "".join(json.dumps(line) + "\n" for line in (self.opened(), *lines))
        variables = {**os.environ, **self.environment}
        done = subprocess.run(self.helper(), input=text, env=variables, capture_output=True, text=True, timeout=2 * DEADLINE)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(done.returncode, 1 if any("error" in answer for answer in answers) else 0, done.stderr)
        return answers

    def feed_and_kill(self, *lines: Any) -> None:
        """Kills the helper when the SDK has stored the lines: before the logger can know it."""
        process = subprocess.Popen(
            self.helper(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **self.environment}
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(json.dumps(line) + "\n" for line in (self.opened(), *lines, {"flush": 1})).encode())
        process.stdin.flush()
        self.assertEqual(json.loads(process.stdout.readline()), {"flushed": 1})
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def assert_same(self, want: Iterable[Point]) -> None:
        self.assertEqual(sorted(self.points()), sorted(want))

    def test_what_is_stored_is_what_was_published_late_steps_included(self) -> None:
        publisher = Publisher(self.scene, "digits", COUNT, seed())
        logger = self.logger()
        for _ in range(4):
            publisher.publish(COUNT // 4)
            all_taken(self.scene, 2 * DEADLINE)
        publisher.close()
        self.assertNotEqual(publisher.order, sorted(publisher.order))
        logger.stop()
        # In the order of arrival: a late number has its own step, and nothing was dropped for being late.
        found, want = list(self.points()), published(publisher)
        self.assertEqual([each.step for each in found], [each.step for each in want])
        self.assertEqual(sorted(found), sorted(want))

    def test_each_number_is_there_once_when_logger_and_helper_are_killed(self) -> None:
        number = seed()
        dice = random.Random(number)
        publisher = Publisher(self.scene, "digits", COUNT, number)
        logger = self.logger()
        for part in range(KILLS):
            publisher.publish(COUNT // KILLS)
            moment = time.monotonic() + dice.random() * 12  # Of which the SDK's import takes several seconds.
            while time.monotonic() < moment:
                time.sleep(0.01)  # The moment itself is random.
            helpers = subprocess.run(
                ["pgrep", "-P", str(logger.process.pid), "-f", "_sink"], capture_output=True, text=True, check=False
            )
            logger.kill()
            for pid in helpers.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            logger.start()
        publisher.close()
        all_taken(self.scene, 2 * DEADLINE)
        logger.stop()
        self.assert_same(published(publisher))

    def line(self, run: str, step: int, /, **metrics: Any) -> Dict[str, Any]:
        keys = {name: f"eval/t/{name}" for name in metrics}
        result = {"run": run, "step": step, "result_id": f"{run}/{step}/regular/quick#t", "metrics": metrics}
        return {"keys": keys, "result": result}

    def test_what_was_stored_when_the_helper_was_killed_is_not_stored_again(self) -> None:
        lines = [self.line("a", 30, acc=0.1, loss="NaN"), self.line("b", 5, acc=-0.0), self.line("a", 10, acc=1 / 3, loss="Infinity")]
        for end in range(1, len(lines) + 1):
            self.feed_and_kill(*lines[:end])  # Each time from the start, as the logger gives them again.
        self.tear()
        self.assertEqual(self.feed(*lines, self.line("a", 20, acc=0.5), {"flush": 7}), [{"flushed": 7}])
        want = [("a", "acc", 30, 0.1), ("a", "loss", 30, "nan"), ("b", "acc", 5, 0.0), ("a", "acc", 10, 1 / 3), ("a", "loss", 10, "inf")]
        want.append(("a", "acc", 20, 0.5))
        self.assert_same(point(f"{run} (evalq)", f"eval/t/{name}", step, value) for run, name, step, value in want)

    def tear(self) -> None:
        """Tears what the killed helper wrote last, where the SDK does not do that itself."""

    def test_other_numbers_under_the_same_id_are_stored_too(self) -> None:
        """As after `evalq forget`."""
        lines = [self.line("a", 7, acc=value) for value in (0.5, 0.25, "NaN")]
        for _ in range(2):
            self.assertEqual(self.feed(*lines, {"flush": 1}, *lines, {"flush": 2}), [{"flushed": 1}, {"flushed": 2}])
        self.assert_same(point("a (evalq)", "eval/t/acc", 7, value) for value in (0.5, 0.25, "nan"))

    def test_odd_names_are_curves_of_their_own(self) -> None:
        names = ["a*b", "loss,none", "ünï", "x" * 600 + "1", "x" * 600 + "2", "tab\tend/", "end", "step"]
        line = self.line("a", 7, **{name: number / 8 for number, name in enumerate(names)})
        for _ in range(2):
            self.assertEqual(self.feed(line, {"flush": 1}), [{"flushed": 1}])
        found = list(self.points())
        self.assertEqual(sorted(float(each.value) for each in found), [number / 8 for number in range(len(names))])
        self.assertEqual(len({each.curve for each in found}), len(names))
        for number, name in enumerate(names[:3]):
            self.assertIn(point("a (evalq)", f"eval/t/{name}", 7, number / 8), found)

    def test_more_runs_than_are_kept_open(self) -> None:
        lines = [self.line(f"r{number % 18}", number, acc=number / 64) for number in range(40)]
        for _ in range(2):
            self.assertEqual(self.feed(*lines, {"flush": 1}), [{"flushed": 1}])
        self.assert_same(point(f"r{number % 18} (evalq)", "eval/t/acc", number, number / 64) for number in range(40))

    def test_an_error_of_the_sdk_is_said_in_status_and_costs_no_other_sink(self) -> None:
        os.makedirs(self.results)
        with open(self.store, "w", encoding="utf-8"):
            pass  # A file where the directory should be.
        publisher = Publisher(self.scene, "digits", 10, seed())
        logger = self.logger()
        publisher.publish(10)
        publisher.close()

        def sink(name: str) -> Dict[str, Any]:
            return next((each for each in status(self.scene)["stats"]["sinks"] if each["name"] == name), {"error": "", "lag": 1, "pending": 1})

        until(lambda: "FileExistsError" in sink(self.kind)["error"], "status says it", 2 * DEADLINE)
        until(lambda: sink("jsonl")["lag"] + sink("jsonl")["pending"] == 0, "JSONL has them")
        os.unlink(self.store)
        all_taken(self.scene, 2 * DEADLINE)
        logger.stop()
        self.assert_same(published(publisher))


class TrackioTest(TrackerTest, unittest.TestCase):
    kind = package = "trackio"
    options = {"project": "mnist"}

    def points_of(self, directory: str) -> List[Point]:
        with contextlib.closing(sqlite3.connect(os.path.join(directory, "mnist.db"))) as database:
            rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        points = []
        for run, step, text in rows:
            numbers = json.loads(text)
            self.assertEqual(numbers.pop(AXIS), step)
            points += [point(run, name, step, value) for name, value in numbers.items()]
        return points

    def points(self) -> List[Point]:
        return self.points_of(self.store)

    def test_the_sdk_itself_reads_the_curve(self) -> None:
        self.feed(self.line("a", 30, acc=0.1), self.line("a", 10, acc=0.5), {"flush": 1})
        command = ["get", "metric", "--project", "mnist", "--run", "a (evalq)", "--metric", "eval/t/acc", "--json"]
        variables = {**os.environ, **self.environment, "TRACKIO_DIR": self.store}
        program = os.path.join(os.path.dirname(sys.executable), "trackio")
        done = subprocess.run([program, *command], env=variables, capture_output=True, text=True, check=True)
        curve = [(each["step"], each["value"]) for each in json.loads(done.stdout)["values"]]
        self.assertEqual(sorted(curve), [(10, 0.5), (30, 0.1)])

    def test_a_name_that_is_a_column_of_its_table_is_marked(self) -> None:
        line = self.line("a", 7, step=0.5)
        line["keys"] = {"step": "step"}  # As with metric_prefix: "".
        self.assertEqual(self.feed(line, {"flush": 1}), [{"flushed": 1}])
        self.assert_same([point("a (evalq)", "__step", 7, 0.5)])

    def test_a_server_stores_each_number_once(self) -> None:
        port, directory = free_port(), os.path.join(self.scene.directory, "server")
        code = f"import trackio; trackio.show(open_browser=False, server_port={port}, share=False)"
        variables = {**os.environ, **self.environment, "TRACKIO_DIR": directory}
        server = subprocess.Popen([sys.executable, "-uc", code], env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait, 60)
        self.addCleanup(server.kill)
        token = next(line for line in server.stdout if "write_token=" in line).split("write_token=")[1].split("&")[0].split()[0]
        self.environment["TRACKIO_WRITE_TOKEN"] = token.strip("'\"")
        self.options = {**self.options, "server_url": f"http://127.0.0.1:{port}"}
        lines = [self.line("a", 30, acc=0.1, loss="NaN"), self.line("a", 10, acc=1 / 3)]
        self.feed_and_kill(*lines)
        self.assertEqual(self.feed(*lines, self.line("a", 20, acc=0.5), {"flush": 2}), [{"flushed": 2}])
        want = [("acc", 30, 0.1), ("loss", 30, "nan"), ("acc", 10, 1 / 3), ("acc", 20, 0.5)]
        self.assertEqual(sorted(self.points_of(directory)), sorted(point("a (evalq)", f"eval/t/{name}", *rest) for name, *rest in want))
        self.environment["TRACKIO_WRITE_TOKEN"] = "wrong"
        (refusal,) = self.feed(self.line("a", 40, acc=0.1), {"flush": 3})
        self.assertIn("error", refusal)


class SwanlabTest(TrackerTest, unittest.TestCase):
    kind = package = "swanlab"

    def points(self) -> List[Point]:
        """Reads with the SDK's own reader. A point's x is the number of AXIS with the same internal step."""
        from swanlab.proto.swanlab.record.v1.record_pb2 import Record
        from swanlab.sdk.internal.core_python.store import DataStoreReader

        points = []
        internal: Dict[str, List[int]] = {}
        for path in sorted(glob.glob(os.path.join(self.store, "run-*", "run-*.swanlab"))):
            reader = DataStoreReader()
            reader.open(path)
            run, x, axes = "", {}, {}
            for data in reader:
                record = Record()
                record.ParseFromString(data)
                if record.HasField("start"):
                    run = record.start.name
                    self.assertEqual(record.start.group + " (evalq)", run)
                elif record.HasField("column"):
                    axes[record.column.column_key] = record.column.x_axis
                elif record.HasField("scalar") and record.scalar.key == AXIS:
                    x[record.scalar.step] = record.scalar.value.number
                elif record.HasField("scalar"):
                    self.assertEqual(axes[record.scalar.key], "" if "*" in record.scalar.key else AXIS)
                    points.append(point(run, record.scalar.key, x[record.scalar.step], record.scalar.value.number))
                    internal.setdefault(run, []).append(record.scalar.step)
            reader.close()
        for run, steps in internal.items():  # SwanLab's server drops a step that is not above those of an earlier file.
            self.assertEqual(steps, sorted(set(steps)), run)
        return points

    def test_online_without_a_key_is_said(self) -> None:
        self.options = {"mode": "online"}
        (answer,) = self.feed(self.line("a", 1, acc=0.5), {"flush": 1})
        self.assertIn("no API key was provided", answer["error"])

    def tear(self) -> None:
        newest = max(glob.glob(os.path.join(self.store, "run-*", "run-*.swanlab")), key=os.path.getmtime)
        os.truncate(newest, os.path.getsize(newest) - 5)


class CometTest(TrackerTest, unittest.TestCase):
    kind, package = "comet", "comet_ml"

    def points(self) -> List[Point]:
        points, names = [], {}
        for path in sorted(glob.glob(os.path.join(self.store, "*.zip")), key=os.path.getmtime):
            with zipfile.ZipFile(path) as archive:
                about = json.loads(archive.read("experiment.json"))
                lines = [json.loads(line) for line in archive.read("messages.json").splitlines()]
            self.assertEqual((about["resume_strategy"], about["project_name"]), ("get_or_create", "evalq"))
            self.assertTrue(os.path.basename(path).startswith(about["offline_id"]))
            for line in lines:
                payload = line["payload"]
                if line["type"] == "log_other" and payload["key"] == "Name":
                    names[about["offline_id"]] = payload["value"]
                metric: Optional[Dict[str, Any]] = payload.get("metric")
                if metric is not None and metric["metricName"] != "process duration":
                    run = names[about["offline_id"]]
                    points.append(point(run, metric["metricName"], metric["step"], metric["metricValue"]))
        return points

    def test_online_without_a_key_is_said(self) -> None:
        self.options = {"mode": "online"}
        (answer,) = self.feed(self.line("a", 1, acc=0.5), {"flush": 1})
        self.assertIn("Comet's API key is missing; set $COMET_API_KEY, or mode: offline", answer["error"])

    def tear(self) -> None:
        newest = max(glob.glob(os.path.join(self.store, "open", "*", "*", "messages.json")), key=os.path.getmtime)
        os.truncate(newest, os.path.getsize(newest) - 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
