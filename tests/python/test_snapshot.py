"""Tests Client.submit_state_dict() with a real queue and a real worker, and tensors of numpy."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import struct
import subprocess
import tempfile
import threading
import unittest
from typing import Any, Callable, Dict
from unittest import mock

from scene import DATA, DEADLINE, NATIVE, PACKAGE, Scene, SceneTest, scene, until

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

from evalq import EvalqError
from evalq._checkpoint.safetensors import read_safetensors
from evalq._snapshots import state_copy, store
from evalq._snapshots.directory import SnapshotDirectory, default_root

MODEL = os.path.join(DATA, "mlp_784_512_128_32_10.safetensors")


def free(fd: int) -> bool:
    """Takes the lock if it is free. Returns whether it was."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def weights() -> "Dict[str, Any]":
    return read_safetensors(MODEL)


@unittest.skipIf(numpy is None, "numpy is not installed")
class SnapshotTest(SceneTest):
    def test_state_dict_gives_what_its_file_gives(self) -> None:
        with self.scene.client("equal") as client:
            client.submit(self.scene.checkpoint("equal/1.safetensors"), step=1, suites="quick")
            # By default, it would supersede the file's job if no worker has claimed that yet.
            self.assertTrue(client.submit_state_dict(weights(), step=2, suites="quick", policy="all"))
            self.assertTrue(client.wait(DEADLINE))
            values: "Dict[int, Dict[str, float]]" = {1: {}, 2: {}}
            for result in client.results():
                if not result.is_end:
                    values[result.step][result.key] = result.value
            self.assertGreater(values[1]["eval/digits/accuracy"], 0.9)
            self.assertEqual(values[1], values[2])
            until(lambda: client.stats().snapshots == 0, "the snapshot is released when its job ended")
            self.assertEqual(client.stats().snapshots_dropped, 0)

    def test_caller_may_change_the_weights_at_once(self) -> None:
        with self.scene.client("changed") as client:
            state = {name: value.copy() for name, value in weights().items()}
            client.submit_state_dict(state, step=1, suites="quick")
            for value in state.values():
                value.fill(0)
            self.assertTrue(client.wait(DEADLINE))
            values = [result.value for result in client.results() if result.metric == "accuracy"]
            self.assertEqual(len(values), 1)
            self.assertGreater(values[0], 0.9)

    def test_wait_ends_if_no_root_contains_the_snapshot_directory(self) -> None:
        with tempfile.TemporaryDirectory(prefix="evalq-elsewhere-") as elsewhere:
            os.chmod(elsewhere, 0o700)
            with self.scene.client("elsewhere", snapshot_directory=elsewhere) as client:
                with self.assertLogs("evalq", "WARNING") as logs:
                    self.assertTrue(client.submit_state_dict(weights(), step=1, suites="quick"))
                    self.assertFalse(client.wait(DEADLINE))
            self.assertIn(f"roots: {{shm: {elsewhere}}}", "".join(logs.output))

    def test_wrong_state_dicts_do_not_raise(self) -> None:
        with self.scene.client("wrong") as client, self.assertLogs("evalq", "WARNING") as logs:
            self.assertFalse(client.submit_state_dict({}, step=1, suites="quick"))
            self.assertFalse(client.submit_state_dict({"a": numpy.zeros(2, "c16")}, step=1, suites="quick"))
            self.assertFalse(client.submit_state_dict(3, step=1, suites="quick"))
        self.assertIn("holds no tensor", logs.output[0])
        self.assertIn("safetensors cannot hold a tensor of type complex128", logs.output[1])


@unittest.skipIf(numpy is None, "numpy is not installed")
class BoundTest(SceneTest):
    workers = False

    def test_oldest_unclaimed_snapshot_is_dropped_with_its_reason(self) -> None:
        with self.scene.client("bound", snapshots=2) as client, self.assertLogs("evalq", "WARNING") as logs:
            for step in (1, 2, 3, 4):
                self.assertTrue(client.submit_state_dict(weights(), step=step, suites="quick", policy="all"))
                self.assertTrue(client.flush(DEADLINE))
                # The client is connected even if it has submitted only snapshots.
                self.assertTrue(client.stats().connected)
                self.assertLessEqual(client.stats().snapshots, 2)
            self.assertEqual((client.stats().snapshots, client.stats().snapshots_dropped), (2, 2))
            worker = self.scene.start_worker()
            self.assertTrue(client.wait(DEADLINE))
            ends = {result.step: (result.state, result.reason) for result in client.results() if result.is_end}
            self.assertEqual({step: end[0] for step, end in ends.items()}, {1: "skipped", 2: "skipped", 3: "done", 4: "done"})
            self.assertEqual(ends[1][1], "dropped from memory for step 3")
            worker.terminate()
        self.assertIn("step 1: the snapshot was dropped: step 3 needs its place", "\n".join(logs.output))

    def test_a_variant_with_a_mapped_name_is_dropped_and_released(self) -> None:
        quiet = mock.patch.object(store.SnapshotStore, "_check_run")
        with quiet, self.scene.client("named", snapshots=1) as client, self.assertLogs("evalq", "WARNING") as logs:
            for step in (1, 2):
                self.assertTrue(client.submit_state_dict(weights(), step=step, suites="quick", variant="ema / 0.999", policy="all"))
                self.assertTrue(client.flush(DEADLINE))
            worker = self.scene.start_worker()
            self.assertTrue(client.wait(DEADLINE))
            ends = {result.step: result.state for result in client.results() if result.is_end}
            self.assertEqual(ends, {1: "skipped", 2: "done"})
            until(lambda: client.stats().snapshots == 0, "its own end releases it")
            worker.terminate()
        self.assertIn("step 1: the snapshot was dropped: step 2 needs its place", "\n".join(logs.output))

    def test_the_end_of_an_earlier_job_does_not_release_the_snapshot(self) -> None:
        """Three sessions use the same run name and step."""
        unread = mock.patch.object(
            store.SnapshotStore, "_read_earlier_ends", return_value=False
        )  # As if Redis were away.
        for life in (1, 2, 3):
            with self.scene.client("again") as client, unread if life == 3 else contextlib.nullcontext():
                state = {name: value * life for name, value in weights().items()}
                self.assertTrue(client.submit_state_dict(state, step=1, suites="quick"))
                self.assertTrue(client.flush(DEADLINE))
                snapshots = client._snapshots
                for _ in range(3):  # The background thread makes the same checks.
                    with snapshots._condition:
                        snapshots._remove_ended()
                self.assertEqual(client.stats().snapshots, 1)
                worker = self.scene.start_worker()
                self.assertTrue(client.wait(DEADLINE))
                ends = {result.job: result.state for result in client.results() if result.is_end}
                self.assertEqual(list(ends.values()), ["done"] * life, ends)
                until(lambda: client.stats().snapshots == 0, "its own end releases it")
                worker.terminate()
                worker.wait()
        # Weights that were evaluated before publish no second end.
        with self.scene.client("again") as client:
            self.assertTrue(client.submit_state_dict(state, step=1, suites="quick"))
            self.assertTrue(client.flush(DEADLINE))
            until(lambda: client.stats().snapshots == 0, "nothing of the run is open")
            self.assertEqual(client.stats().snapshots_dropped, 0)

    def test_the_end_of_a_running_earlier_job_does_not_release_the_snapshot(self) -> None:
        """Other weights of the same step are another job. The end of the first job must not release
        them."""
        quiet = mock.patch.object(store.SnapshotStore, "_check_run")
        with quiet, self.scene.client("beside") as client:
            for life in (1, 2):
                state = {name: value * life for name, value in weights().items()}
                self.assertTrue(client.submit_state_dict(state, step=1, suites="quick", priority="urgent"))
                self.assertTrue(client.flush(DEADLINE))
                if life == 1:
                    classes = [str(number) for number in range(1, 65)]
                    claim = ["evalq_v1_claim", "1", "evalq:{main}:", "by-hand", "once", "3600000", "1", "64", *classes]
                    job, token = self.scene.redis_call("FCALL", *claim).split(b"\n")[4:6]
                    self.assertEqual(job, b"beside/1/regular/quick")
            self.assertEqual(client.stats().snapshots, 2)
            self.scene.redis_call("FCALL", "evalq_v1_complete", "1", "evalq:{main}:", job.decode(), token.decode(), "")
            until(lambda: client.stats().snapshots < 2, "the first one's end releases it")
            with client._snapshots._condition:
                kept = [(list(one.open_jobs.values()), os.path.exists(one.path)) for one in client._snapshots._submitted]
            self.assertEqual(kept, [(["beside/1/regular/quick~2"], True)])
            worker = self.scene.start_worker()
            self.assertTrue(client.wait(DEADLINE))
            ends = {result.job: result.state for result in client.results() if result.is_end}
            self.assertEqual(ends, {job.decode(): "done", job.decode() + "~2": "done"})
            until(lambda: client.stats().snapshots == 0, "its own end releases it")
            worker.terminate()
            worker.wait()

    def test_the_oldest_snapshot_is_dropped_by_its_own_job(self) -> None:
        """A worker has the job of the step's earlier weights. That job must not keep the snapshot
        from being dropped."""
        with self.scene.client("room", snapshots=1) as client, self.assertLogs("evalq", "WARNING") as logs:
            client.submit(self.scene.checkpoint("room/1.safetensors"), step=1, suites="nobody", policy="all")
            self.assertTrue(client.flush(DEADLINE))
            # This makes the job look as if a part of it were published.
            self.scene.redis_call("HSET", "evalq:{main}:job:room/1/regular/nobody", "tasks", "1")
            for step in (1, 2):
                state = {name: value * 2 for name, value in weights().items()}
                self.assertTrue(client.submit_state_dict(state, step=step, suites="nobody", policy="all"))
                self.assertTrue(client.flush(DEADLINE))
            states = [self.scene.redis_call("HGET", f"evalq:{{main}}:job:room/{tag}", "state") for tag in ("1/regular/nobody~2", "2/regular/nobody")]
            self.assertEqual(states, [b"skipped\n", b"queued\n"])
        self.assertIn("step 1: the snapshot was dropped: step 2 needs its place", "\n".join(logs.output))

    def test_a_snapshot_of_a_step_that_is_not_due_is_removed_at_once(self) -> None:
        quiet = mock.patch.object(store.SnapshotStore, "_check_run")
        with quiet, self.scene.client("due", snapshots=1) as client:
            self.scene.redis_call("HSET", "evalq:{main}:class", "every:second", "2")
            self.assertTrue(client.submit_state_dict(weights(), step=1, suites="second"))
            self.assertTrue(client.flush(DEADLINE))
            until(lambda: client.stats().snapshots == 0, "no job of it will end")
            self.assertEqual(client.stats().snapshots_dropped, 0)

    def test_a_kept_snapshot_is_not_dropped_for_a_newer_one(self) -> None:
        with self.scene.client("keeps", snapshots=1) as client, self.assertLogs("evalq", "WARNING") as logs:
            self.assertTrue(client.submit_state_dict(weights(), step=1, suites="nobody", keep=True))
            self.assertTrue(client.flush(DEADLINE))
            client.submit_state_dict(weights(), step=2, suites="nobody", policy="all")
            self.assertTrue(client.flush(DEADLINE))
            self.assertEqual((client.stats().snapshots, client.stats().snapshots_dropped), (1, 1))
            self.assertEqual([one.submit.step for one in client._snapshots._submitted], [1])
        self.assertIn("step 2: the snapshot was dropped: all 1 snapshots that are allowed", "\n".join(logs.output))

    def test_nothing_stays_in_shared_memory_when_the_client_closes(self) -> None:
        client = self.scene.client("closes")
        client.submit_state_dict(weights(), step=1, suites="nobody")
        self.assertTrue(client.flush(DEADLINE))
        directory = client._snapshots._directory.path
        self.assertTrue(directory.startswith(default_root()))
        self.assertEqual(len([name for name in os.listdir(directory) if name.endswith(".safetensors")]), 1)
        with self.assertLogs("evalq", "WARNING") as logs:
            client.close()
        self.assertFalse(os.path.exists(directory))
        self.assertIn("ended before its state dict was evaluated", logs.output[0])


class DirectoryTest(unittest.TestCase):
    """Tests the directory of snapshots: only its user can write to it, and those of dead trainings
    are removed."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        self.directory = SnapshotDirectory(self.root)
        self.addCleanup(self.directory.remove)

    def left(self, name: str, held: bool, old: bool) -> str:
        """Creates a directory like a training does. held: its lock is taken, as while the training
        lives."""
        path = os.path.join(self.root, "snapshots-" + name)
        os.mkdir(path)
        fd = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        if held:
            fcntl.flock(fd, fcntl.LOCK_EX)
        if old:
            os.utime(path, (1, 1))
        return path

    def test_only_directories_of_dead_trainings_are_removed(self) -> None:
        dead = self.left("dead", held=False, old=True)
        living = self.left("living", held=True, old=True)
        new = self.left("new", held=False, old=False)  # Workers may still read it.
        self.directory.create()
        self.assertEqual([os.path.exists(path) for path in (dead, living, new)], [False, True, True])

    def test_directory_that_others_may_write_to_is_refused(self) -> None:
        for mode in (0o720, 0o702):
            os.chmod(self.root, mode)
            with self.assertRaisesRegex(EvalqError, "others can write to it"):
                self.directory.create()
        os.chmod(self.root, 0o755)
        self.directory.create()


@unittest.skipIf(numpy is None, "numpy is not installed")
class FileTest(unittest.TestCase):
    """Tests the written file byte by byte."""

    def written(self, state: "Dict[str, Any]", **metadata: str) -> "tuple[Dict[str, Any], bytes]":
        copy = state_copy.StateCopier().copy(state_copy.plan_layout(state), metadata)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.safetensors")
            state_copy.write_file(path, copy)
            self.assertEqual(os.listdir(directory), ["x.safetensors"])
            with open(path, "rb") as file:
                text = file.read(struct.unpack("<Q", file.read(8))[0])
                return json.loads(text), file.read()

    def test_keeps_types_shapes_and_order(self) -> None:
        state = {
            "model": {"a": numpy.arange(6, dtype="f4").reshape(2, 3).T, "b": numpy.float16([1.5])},
            "c": numpy.array(7, dtype="i8"),
            "empty": numpy.zeros((0, 4), dtype="f8"),
            "flag": numpy.array([True, False]),
            "step": 3,
        }
        header, data = self.written(state, run="r")
        self.assertEqual(header.pop("__metadata__"), {"run": "r", "format": "pt"})
        self.assertEqual(set(header), {"model.a", "model.b", "c", "empty", "flag"})
        self.assertEqual(header["model.a"]["dtype"], "F32")
        self.assertEqual(header["model.a"]["shape"], [3, 2])
        begin, end = header["model.a"]["data_offsets"]
        self.assertEqual(list(struct.unpack("<6f", data[begin:end])), [0, 3, 1, 4, 2, 5])
        self.assertEqual(header["c"], {"dtype": "I64", "shape": [], "data_offsets": [0, 8]})
        self.assertEqual(header["empty"]["shape"], [0, 4])
        self.assertEqual(len(data), 24 + 2 + 8 + 2)

    def test_big_endian_arrays_keep_their_values(self) -> None:
        header, data = self.written({"a": numpy.array([1.5, -2], dtype=">f4"), "b": numpy.array([7], dtype=">i8")})
        self.assertEqual((header["a"]["dtype"], header["b"]["dtype"]), ("F32", "I64"))
        self.assertEqual(struct.unpack("<q2f", data), (7, 1.5, -2.0))

    def test_tied_tensors_are_written_once(self) -> None:
        shared = numpy.ones((4, 4), dtype="f4")
        header, data = self.written({"embed": shared, "head": shared, "part": shared[:2]})
        self.assertEqual(header["__metadata__"]["head"], "embed")
        self.assertNotIn("head", header)
        self.assertEqual(header["part"]["shape"], [2, 4])
        self.assertEqual(len(data), 64 + 32)


@unittest.skipIf(numpy is None, "numpy is not installed")
@unittest.skipUnless(os.geteuid() == 0, "mounting a tmpfs needs root")
class FullTest(unittest.TestCase):
    def test_full_shared_memory_is_reported_and_training_continues(self) -> None:
        with scene(NATIVE) as made:
            memory = os.path.join(made.directory, "memory")
            os.mkdir(memory)
            mount = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", memory], capture_output=True, check=False
            )
            if mount.returncode != 0:
                self.skipTest("a tmpfs cannot be mounted here")
            try:
                self.fill(made, memory)
            finally:
                subprocess.run(["umount", memory], check=True)

    def fill(self, made: Scene, memory: str) -> None:
        made.write_config(NATIVE.replace("roots:", f"roots:\n  shm: {memory}"))
        made.start_worker()
        with made.client("full", snapshot_directory=memory) as client, self.assertLogs("evalq", "WARNING") as logs:
            self.assertTrue(client.submit_state_dict(weights(), step=1, suites="quick"))
            until(lambda: client.stats().snapshots_dropped == 1, "the large one is dropped")
            self.assertTrue(client.submit_state_dict({"a": numpy.zeros(8, "f4")}, step=2, suites="quick"))
            self.assertTrue(client.flush(DEADLINE))
            small = {name: value[:8, :8] if value.ndim == 2 else value[:8] for name, value in weights().items()}
            self.assertTrue(client.submit_state_dict(small, step=3, suites="quick"))
            self.assertTrue(client.flush(DEADLINE))
            self.assertTrue(client.submit(made.checkpoint("full/4.safetensors"), step=4, suites="quick"))
            self.assertTrue(client.wait(DEADLINE))
            ends = {result.step: result.state for result in client.results() if result.is_end}
            self.assertEqual(ends[4], "done")
            self.assertNotIn(1, ends)
        text = "\n".join(logs.output)
        self.assertIn("No space left on device", text)
        self.assertIn("free space in /dev/shm", text)
        self.assertEqual(len([line for line in logs.output if "was dropped" in line]), 1)


@unittest.skipIf(numpy is None, "numpy is not installed")
class ThreadsTest(SceneTest):
    """Several threads, and processes made by fork(), submit weights at the same time."""

    config = """
roots:
  out: $OUT
evaluators:
  own:
    kind: persistent
    argv: [$PYTHON, -m, evalq.serve, "weights_of:evaluate"]
    directory: $OUT
    env: {PYTHONPATH: "%s", EVALQ_LIBRARY: "%s"}
suites:
  weights: {evaluator: own, tasks: [{name: w}]}
worker: {devices: cpu, threads: 1}
""" % (PACKAGE, os.environ["EVALQ_LIBRARY"])
    workers = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        with open(os.path.join(cls.scene.out, "weights_of.py"), "w", encoding="utf-8") as file:
            # All elements are the same number, so a mixture of two state dicts is noticed.
            file.write(
                "def evaluate(checkpoint, task, report):\n"
                "    values = [float(v) for array in checkpoint.load().values() for v in (array.min(), array.max())]\n"
                "    return {'least': min(values), 'most': max(values)}\n"
            )
        cls.scene.start_worker("--slots", "2")

    def state(self, number: float) -> "Dict[str, Any]":
        return {f"layer{at}": numpy.full((64, 256), number, "f4") for at in range(8)}

    def values(self, client: Any) -> "Dict[tuple[str, int], tuple[float, float]]":
        found: "Dict[tuple[str, int], Dict[str, float]]" = {}
        for result in client.results():
            if not result.is_end:
                found.setdefault((result.variant, result.step), {})[result.metric] = result.value
        return {key: (metrics["least"], metrics["most"]) for key, metrics in found.items()}

    def test_threads_submit_weights_at_the_same_time(self) -> None:
        count, each = 6, 5
        with self.scene.client("threads", snapshots=count * each) as client:
            ready = threading.Barrier(count)
            good = []

            def work(thread: int) -> None:
                for step in range(1, each + 1):
                    state = self.state(100 * thread + step)
                    ready.wait()
                    given = client.submit_state_dict(state, step=step, suites="weights", variant=f"t{thread}", policy="all")
                    for array in state.values():
                        array.fill(-1)  # The caller may change the array again.
                    good.append(given and client.flush(DEADLINE))

            threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(good, [True] * (count * each))
            self.assertTrue(client.wait(DEADLINE))
            wanted = {(f"t{thread}", step): (100.0 * thread + step,) * 2 for thread in range(count) for step in range(1, each + 1)}
            self.assertEqual(self.values(client), wanted)
            self.assertEqual(client.stats().snapshots_dropped, 0)

    def test_older_weights_of_a_slower_thread_are_refused(self) -> None:
        with self.scene.client("late") as client:
            snapshots = client._snapshot_store()
            # The background thread waits while the test holds the condition.
            with snapshots._condition:
                self.assertTrue(client.submit_state_dict(self.state(2), step=2, suites="weights"))
                with self.assertLogs("evalq", "WARNING") as logs:
                    self.assertFalse(client.submit_state_dict(self.state(1), step=1, suites="weights"))
            self.assertIn("step 2", logs.output[0])
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual(self.values(client), {("regular", 2): (2.0, 2.0)})

    def test_policy_all_keeps_each_small_snapshot(self) -> None:
        with self.scene.client("each", snapshots=3) as client:
            snapshots = client._snapshot_store()
            for limit, kept in ((store._UNWRITTEN_BYTES_MAX, (2, 3, 4)), (0, (4,))):
                # The background thread waits while the test holds the condition.
                with mock.patch.object(store, "_UNWRITTEN_BYTES_MAX", limit), snapshots._condition:
                    for step in (1, 2, 3, 4):
                        self.assertTrue(
                            client.submit_state_dict(self.state(step), step=step, suites="weights", variant=f"v{limit}", policy="all")
                        )
                self.assertTrue(client.wait(DEADLINE))
                self.assertEqual(self.values(client), {(f"v{limit}", step): (float(step),) * 2 for step in kept})

    def forked(self, run: str, in_child: "Callable[[Any], bool]") -> None:
        """Forks a child while another thread submits weights, so that locks are held at the moment
        of the fork."""
        with self.scene.client(run, snapshots=64) as client:
            stop = threading.Event()
            steps = []

            def work() -> None:
                step = 0
                while not stop.is_set():
                    step += 1
                    steps.append(client.submit_state_dict(self.state(step), step=step, suites="weights", policy="all"))
                    client.flush(DEADLINE)

            thread = threading.Thread(target=work)
            thread.start()
            try:
                until(lambda: len(steps) > 1, "weights are handed over")
                children = []
                for _ in range(4):
                    child = os.fork()
                    if child == 0:
                        code = 1
                        try:
                            faulthandler.dump_traceback_later(DEADLINE + 15, exit=True)
                            code = 0 if in_child(client) else 2
                        finally:
                            os._exit(code)
                    children.append(child)
                for child in children:
                    self.assertEqual(os.waitpid(child, 0)[1], 0)
            finally:
                stop.set()
                thread.join()
            self.assertTrue(all(steps))
            self.assertTrue(client.submit_state_dict(self.state(9000), step=9000, suites="weights", policy="all"))
            self.assertTrue(client.wait(DEADLINE))
            self.assertEqual(self.values(client)[("regular", 9000)], (9000.0, 9000.0))

    def test_forked_children_submit_their_own_weights(self) -> None:
        def in_child(client: Any) -> bool:
            step = 10000 + os.getpid()
            variant = f"p{os.getpid()}"
            given = client.submit_state_dict(self.state(float(step)), step=step, suites="weights", variant=variant)
            own: "list[Any]" = []  # wait() would also wait for the parent's jobs.

            def ended() -> bool:
                own.extend(result for result in client.results() if result.variant == variant)
                return any(result.is_end for result in own)

            until(ended, "its weights are evaluated")
            found = {(result.step, result.metric): result.value for result in own if not result.is_end}
            client.close()
            return given and found == {(step, "least"): step, (step, "most"): step}

        self.forked("forked", in_child)

    def test_an_idle_forked_child_changes_nothing(self) -> None:
        self.forked("idle-child", lambda client: True)

    def test_a_forked_child_does_not_keep_the_snapshots_of_a_dead_parent(self) -> None:
        with self.scene.client("dead-parent") as client:
            self.assertTrue(client.submit_state_dict(self.state(1), step=1, suites="nobody"))
            self.assertTrue(client.flush(DEADLINE))
            read_fd, write_fd = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.close(write_fd)
                    os.read(read_fd, 1)  # The child lives until it is told to end.
                finally:
                    os._exit(0)
            os.close(read_fd)
            try:
                # As when the parent dies, its descriptor is closed, and with it the lock.
                directory = client._snapshots._directory
                os.close(directory._lock_fd)
                fd = os.open(os.path.join(directory.path, ".lock"), os.O_RDWR)
                directory._lock_fd = fd
                until(lambda: free(fd), "the child has let go of the lock")
            finally:
                os.close(write_fd)
                os.waitpid(child, 0)


if __name__ == "__main__":
    unittest.main()
