"""Tests evalq.Client with a real queue and a real worker."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
import threading
import unittest
from typing import List
from unittest import mock

from scene import DEADLINE, NATIVE, PACKAGE, SceneTest, scene, until

import evalq
from evalq import _library


class ClientTest(SceneTest):
    def test_submit_brings_its_result_back(self) -> None:
        with self.scene.client("round-trip") as client:
            path = self.scene.checkpoint("round/step-100.safetensors")
            with self.assertLogs("evalq", "INFO") as logs:
                self.assertTrue(client.submit(path, step=100, suites=["quick"], epoch=1.5, params={"a": 1}))
                self.assertTrue(client.wait(DEADLINE))
            results = list(client.results())
            values = {result.key: result for result in results if not result.is_end}
            accuracy = values["eval/digits/accuracy"]
            self.assertEqual((accuracy.step, accuracy.suite, accuracy.variant), (100, "quick", "regular"))
            self.assertEqual((accuracy.task, accuracy.metric, accuracy.n), ("digits", "accuracy", 1000))
            self.assertGreater(accuracy.value, 0.97)
            self.assertEqual(accuracy.job, "round-trip/100/regular/quick")
            ends = [result for result in results if result.is_end]
            self.assertEqual([(end.state, end.step) for end in ends], [("done", 100)])
            self.assertTrue(math.isnan(ends[0].value))
            self.assertEqual(list(client.results()), [])
            text = "\n".join(logs.output)
            self.assertEqual(text.count("submitted"), 1, text)
            self.assertEqual(text.count("accuracy="), 1, text)
            stats = client.stats()
            self.assertEqual((stats.submitted, stats.sent, stats.dropped, stats.pending), (1, 1, 0, 0))
            self.assertTrue(stats.connected)
            best = client.best("eval/digits/accuracy", "max")
            assert best is not None
            self.assertEqual((best.step, best.path, best.value), (100, path, accuracy.value))
            self.scene.redis_call(  # A logger records the best in this way.
                *("FCALL", "evalq_v1_best_put", "1", "evalq:{main}:", client.run, "eval/digits/accuracy"),
                *("0.5", "100", accuracy.job, "ckpt:" + path),
            )
            first = client.best()  # No metric was named, so the result names it.
            assert first is not None
            self.assertEqual((first.metric, first.step, first.value), ("eval/digits/accuracy", 100, 0.5))
            for mode in (None, "max"):
                with self.assertLogs("evalq", "WARNING") as logs:
                    self.assertIsNone(client.best("eval/digits/acuracy", mode))
                self.assertIn("'eval/digits/acuracy'", logs.output[0])
                self.assertIn("only", logs.output[0])
                self.assertIn("eval/digits/accuracy", logs.output[0])

    def test_results_come_without_waiting_for_them(self) -> None:
        with self.scene.client("arrivals") as client:
            client.submit(self.scene.checkpoint("arrivals/7.safetensors"), step=7, suites="quick")
            found: "list[evalq.Result]" = []
            until(lambda: found.extend(client.results()) or any(result.is_end for result in found), "an end")
            self.assertTrue(any(result.metric == "accuracy" for result in found))

    def test_later_client_of_the_run_sees_earlier_results(self) -> None:
        with self.scene.client("resumed") as client:
            client.submit(self.scene.checkpoint("resumed/1.safetensors"), step=1, suites="quick")
            self.assertTrue(client.wait(DEADLINE))
        with self.scene.client("resumed") as client:
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual({result.step for result in client.results()}, {1})

    def test_threads_submit_side_by_side(self) -> None:
        count, each = 8, 25
        with self.scene.client("threads", log=False) as client:
            path = self.scene.checkpoint("threads/any.safetensors")
            good = []

            def work(thread: int) -> None:
                for at in range(each):
                    good.append(client.submit(path, step=thread * each + at, suites="nobody", params={"t": thread}))

            threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(good, [True] * (count * each))
            self.assertTrue(client.flush(DEADLINE))
            self.assertEqual(client.stats().sent, count * each)

    def test_forked_child_uses_a_client_of_its_own(self) -> None:
        path = self.scene.checkpoint("fork/1.safetensors")
        with self.scene.client("fork") as client:
            self.assertTrue(client.submit(path, step=1, suites="quick"))
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    good = client.submit(path, step=2, suites="quick") and client.wait(DEADLINE)
                    seen = {result.step for result in client.results()}
                    code = 0 if good and 2 in seen and client.stats().submitted == 1 else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertTrue(client.submit(path, step=3, suites="quick"))
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual({result.step for result in client.results()}, {1, 2, 3})
            self.assertEqual(client.stats().submitted, 2)

    def test_what_holds_a_client_can_be_copied(self) -> None:
        with self.scene.client("copied") as client:
            holder = {"client": client, "weights": [1]}
            self.assertIs(copy.deepcopy(holder)["client"], client)
            self.assertIs(copy.copy(client), client)
            with self.assertRaisesRegex(TypeError, "open one in each process"):
                pickle.dumps(holder)

    def test_wrong_arguments_do_not_raise(self) -> None:
        with self.scene.client("wrong") as client, self.assertLogs("evalq", "WARNING") as logs:
            self.assertFalse(client.submit("/nowhere", step=-1, suites="quick"))
            self.assertFalse(client.submit("/nowhere", step=1, suites=""))
            self.assertFalse(client.submit("/nowhere", step=1, suites="quick", policy="newest"))
            self.assertFalse(client.submit("/nowhere", step=1, suites="quick", priority="now"))
            self.assertFalse(client.submit(3, step=1, suites="quick"))
            self.assertFalse(client.submit("/nowhere", step="one", suites="quick"))
        text = "\n".join(logs.output)
        self.assertIn("policy is 'newest', expected all, latest or backfill", text)
        self.assertIn("expected urgent, high, normal or backfill", text)

    def test_wrong_arguments_raise_when_asked_to(self) -> None:
        with self.scene.client("wrong", raise_errors=True) as client:
            with self.assertRaisesRegex(evalq.EvalqError, "policy is 'newest'"):
                client.submit("/nowhere", step=1, suites="quick", policy="newest")

    def test_needs_replace_those_of_the_suite(self) -> None:
        with self.scene.client("needs") as client:
            path = self.scene.checkpoint("needs/1.safetensors")
            given = {"gpus": 2, "gpu_memory": "40GiB", "labels": ["fast", "a100"]}
            self.assertTrue(client.submit(path, step=1, suites="quick", needs=given))
            self.assertTrue(client.submit(path, step=2, suites="quick", needs="labels=a100"))
            self.assertTrue(client.submit(path, step=3, suites="quick", needs={}))
            self.assertTrue(client.submit(path, step=4, suites="quick"))
            with self.assertLogs("evalq", "WARNING") as logs:
                self.assertFalse(client.submit(path, step=5, suites="quick", needs={"gpu": 1}))
            self.assertTrue(client.flush(DEADLINE))
            needs = [self.scene.message(f"needs/{step}/regular/quick").get("needs") for step in (1, 2, 3, 4)]
        self.assertEqual(needs[0], {"gpus": 2, "gpu_memory_bytes": 40 << 30, "labels": ["fast", "a100"]})
        self.assertEqual(needs[1], {"labels": ["a100"]})
        self.assertEqual(needs[2], {})
        self.assertIsNone(needs[3])
        self.assertIn("gpu", logs.output[0])

    def test_wait_for_an_unoffered_suite_logs_how_to_find_out_why(self) -> None:
        with self.scene.client("nobody") as client, self.assertLogs("evalq", "WARNING") as logs:
            client.submit(self.scene.checkpoint("nobody/1.safetensors"), step=1, suites="nobody")
            self.assertTrue(client.flush(DEADLINE))
            with mock.patch("evalq.client._SILENT_SECONDS", 0.0):
                self.assertFalse(client.wait(1))
        said = [line.split("evalq:", 1)[1] for line in logs.output]
        self.assertEqual(said[0], "wait: jobs of run 'nobody' are still open: `evalq status` says why")
        self.assertEqual(said[-1], "wait: the timeout passed with 1 job of the run still open: `evalq status` says why")

    def test_wait_ends_with_a_question_that_has_time_for_its_answer(self) -> None:
        asked: List[int] = []

        def wait(take: object, ms: int) -> int:
            asked.append(ms)
            clock.monotonic.return_value += ms / 1000
            return _library.TIMEOUT

        with self.scene.client("slices", log=False) as client, mock.patch.object(evalq.client, "time") as clock:
            clock.monotonic.return_value = 100.0
            with mock.patch.object(client._handle, "wait", wait):
                self.assertFalse(client.wait(0.25))
        self.assertEqual(asked, [250])  # No call with 0 ms follows.

    def test_path_without_a_root_is_reported_once_and_ends_wait(self) -> None:
        with self.scene.client("rootless") as client, self.assertLogs("evalq", "WARNING") as logs:
            client.submit("/etc/hostname", step=1, suites="quick")
            client.submit("/etc/hostname", step=2, suites="quick")
            until(lambda: logs.output, "it is said")
            self.assertTrue(client.flush(DEADLINE))
            self.assertEqual(len(logs.output), 1, logs.output)
            self.assertIn("roots", logs.output[0])
            # Not everything was evaluated, but waiting longer does not help.
            self.assertFalse(client.wait(DEADLINE))
            self.assertIn("beneath no root", logs.output[1])
            self.assertEqual(client.stats().pending, 2)


class LibraryTest(unittest.TestCase):
    def test_library_of_another_version_is_refused_by_name(self) -> None:
        with mock.patch.dict(os.environ, {"EVALQ_LIBRARY": "libc.so.6"}):
            with self.assertRaisesRegex(evalq.EvalqError, "libc.so.6 has no evalq_client_.*older than this package"):
                _library.Library()

    def test_a_missing_library_is_reported_at_start_and_at_close(self) -> None:
        quiet = mock.patch.object(_library, "_library", None)
        with quiet, mock.patch.dict(os.environ, {"EVALQ_LIBRARY": "/nowhere/libevalq.so.1"}), self.assertLogs("evalq", "WARNING") as logs:
            with evalq.Client(run="missing") as client:
                for step in (1, 2, 3):
                    self.assertFalse(client.submit("/nowhere", step=step, suites="quick"))
        self.assertEqual(len(logs.output), 2, logs.output)
        self.assertIn("nothing can be submitted, so nothing will be evaluated: libevalq was not found", logs.output[0])
        self.assertIn("3 of the submits were not accepted; the last: step 3 was not submitted: libevalq was not found", logs.output[1])

    def test_close_reports_nothing_if_errors_are_raised(self) -> None:
        with scene(NATIVE) as made, self.assertNoLogs("evalq", "WARNING"):
            with made.client("raised", raise_errors=True) as client, self.assertRaises(evalq.EvalqError):
                client.submit("/nowhere", step=-1, suites="quick")


class OutageTest(unittest.TestCase):
    def test_submits_before_redis_is_there_arrive_when_it_is(self) -> None:
        with scene(NATIVE) as made:
            made.stop_redis()
            with made.client("early") as client, self.assertLogs("evalq", "WARNING") as logs:
                path = made.checkpoint("early/1.safetensors")
                self.assertTrue(client.submit(path, step=1, suites="quick"))
                self.assertTrue(client.submit(path, step=2, suites="quick"))
                self.assertFalse(client.flush(0.5))
                self.assertEqual(list(client.results()), [])
                self.assertIsNone(client.best("eval/digits/accuracy", timeout=0.2))
                made.start_redis()
                made.start_worker()
                self.assertTrue(client.wait(DEADLINE))
                ends = [result.step for result in client.results() if result.is_end]
                self.assertEqual(sorted(ends), [1, 2])
            away = [line for line in logs.output if "Redis" in line or "redis" in line]
            self.assertTrue(away, logs.output)

    def test_wrong_url_never_raises(self) -> None:
        with scene(NATIVE) as made, self.assertLogs("evalq", "WARNING") as logs:
            with made.client("wrong-url", url="http://nowhere:1") as client:
                self.assertFalse(client.submit(made.checkpoint("a.safetensors"), step=1, suites="quick"))
                self.assertFalse(client.wait(1))
                self.assertFalse(client.flush(1))
                self.assertEqual(list(client.results()), [])
                self.assertEqual(client.stats().submitted, 0)
                self.assertEqual(client.run, "")
            self.assertIn("redis://", "\n".join(logs.output))
            with self.assertRaises(evalq.EvalqError):
                made.client("wrong-url", url="http://nowhere:1", raise_errors=True)

    def test_wrong_kinds_of_arguments_do_not_raise(self) -> None:
        with self.assertLogs("evalq", "WARNING"):
            for arguments in ({"snapshots": "x"}, {"snapshots": None}, {"snapshot_directory": []}, {"config": 3}):
                with evalq.Client("127.0.0.1:1", run="kinds", **arguments) as client:  # type: ignore[arg-type]
                    self.assertFalse(client.submit("/tmp/x", step=1, suites="quick"))
            with evalq.Client("127.0.0.1:1", run="kinds") as client:
                self.assertFalse(client.wait("x"))  # type: ignore[arg-type]
                self.assertFalse(client.flush("x"))  # type: ignore[arg-type]
                self.assertIsNone(client.best(3))  # type: ignore[arg-type]
                self.assertIsNone(client.best("a", "max", timeout=None))  # type: ignore[arg-type]

    def test_number_instead_of_text_is_refused(self) -> None:
        with scene(NATIVE) as made, self.assertLogs("evalq", "WARNING") as logs:
            for name in ("run", "url", "queue"):
                with made.client(**{"run": "number", name: 3}) as client:
                    self.assertFalse(client.submit("/nowhere", step=1, suites="quick"))
        self.assertIn("run is 3, expected text", logs.output[0])

    def test_close_waits_for_the_calls_of_other_threads(self) -> None:
        # In a process of its own, because a call that uses a closed client crashes.
        code = """
import sys, threading, time
import evalq
for seconds in (0.3, 4.0):
    client = evalq.Client("redis://127.0.0.1:1", run="busy", ring_directory=sys.argv[1], log=False)
    client.submit(sys.argv[1] + "/none", step=1, suites="quick")
    handle = client._handle
    threads = [threading.Thread(target=client.ended, args=(seconds,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(handle._users) < 4:
        assert time.monotonic() < deadline, "the calls did not begin"
        time.sleep(0.001)
    client.close()
    for thread in threads:
        thread.join()
    assert not handle._users and not handle._closing, "nobody closed the client"
    assert not client.ended(0.1)
print("closed")
"""
        with scene(NATIVE) as made:
            done = subprocess.run([sys.executable, "-c", code, made.directory], env={**made.environment(), "PYTHONPATH": PACKAGE}, capture_output=True, text=True, timeout=DEADLINE)
            self.assertEqual((done.returncode, done.stdout), (0, "closed\n"), done.stderr)

    def test_unreachable_host_logs_nothing(self) -> None:
        with scene(NATIVE) as made:
            with made.client("no-host", url="redis://127.0.0.1:1") as client:
                self.assertTrue(client.submit(made.checkpoint("a.safetensors"), step=1, suites="quick"))
                self.assertFalse(client.wait(0.5))
                self.assertEqual(client.stats().pending, 1)


if __name__ == "__main__":
    unittest.main()
