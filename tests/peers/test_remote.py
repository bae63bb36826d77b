"""Checkpoints in remote stores: a real S3 server on loopback behind a proxy that makes faults."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import unittest
import zlib
from typing import Any, Dict, List, Optional

from peers import needs

needs("moto", "s3fs", "boto3")
from remote_store import BUCKET, Fault, Store  # noqa: E402
from scene import DATA, DEADLINE, PACKAGE, Scene, until  # noqa: E402

MODEL = os.path.join(DATA, "mlp_784_512_128_32_10.safetensors")
MB = 1 << 20
CONFIG = """
roots:
  ckpt: s3://training/run
evaluators:
  sizes: {kind: command, argv: [$PYTHON, $OUT/sizes.py]}
suites:
  quick:
    tasks:
      - name: digits
        type: classification
        model: {activation: relu}
        data: {format: idx, inputs: $DATA/t10k-images-idx3-ubyte.gz, labels: $DATA/t10k-labels-idx1-ubyte.gz, scale: 1/255, limit: 1000}
  sizes: {evaluator: sizes, tasks: [{name: sizes}]}
  again: {evaluator: sizes, tasks: [{name: sizes}]}
  marked: {evaluator: sizes, ready: done.txt, tasks: [{name: sizes}]}
worker:
  devices: cpu
  threads: 1
  slots: 2
  lease_ms: 6000
  heartbeat_ms: 1000
  cache: {directory: $OUT/cache, bytes: 100MB}
"""
# Writes how many bytes the checkpoint holds, and a checksum of them.
PROGRAM = """
import json, os, zlib
place = os.environ["EVALQ_CHECKPOINT"]
names = sorted(os.path.join(folder, name) for folder, _, found in os.walk(place) for name in found) or [place]
content = b"".join(open(name, "rb").read() for name in names)
with open(os.environ["EVALQ_RESULT"], "w") as file:
    json.dump({"bytes": len(content), "crc": zlib.crc32(content), "files": len(names)}, file)
"""

CLIENT = """
import sys, evalq
url, config, ring = sys.argv[1:]
with evalq.Client(url, "r", config=config, ring_directory=ring, raise_errors=True) as client:
    for suite in ("sizes", "again"):
        client.submit("s3://training/run/step-1", step=1, suites=suite)
    assert client.flush(100)
    try:
        client.submit("https://me:word@host/step-1", step=1, suites="sizes")
    except evalq.EvalqError as error:
        print(error)
"""


def helpers(directory: str) -> List[int]:
    """The helper processes of a scene."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                is_helper = b"\0evalq.fetch" in file.read()
            with open(f"/proc/{pid}/environ", "rb") as file:
                if is_helper and directory.encode() in file.read():
                    found.append(pid)
    return found


class Remote(unittest.TestCase):
    """A store, a queue, and what the tests ask of them."""

    config = CONFIG

    def setUp(self) -> None:
        self.store = Store()
        self.addCleanup(self.store.close)
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        with open(os.path.join(self.scene.out, "sizes.py"), "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        self.scene.variables = {"PYTHONPATH": PACKAGE, "EVALQ_PYTHON": sys.executable, **self.store.environment()}
        self.scene.write_config(self.config)
        self.scene.start_redis()

    def evalq(self, *words: str, code: int = 0) -> str:
        done = self.scene.evalq(*words)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr + self.worker_log())
        return done.stdout if code == 0 else done.stderr

    def worker_log(self) -> str:
        with contextlib.suppress(OSError):
            return self.scene.log("evalq-worker")[-3000:]
        return ""

    def put(self, name: str, size: int, seed: int = 1) -> Dict[str, float]:
        """Uploads a checkpoint, and returns what the program will find in it."""
        data = bytes([seed]) + os.urandom(size)
        self.store.put(f"run/{name}/model.bin", data)
        self.store.put(f"run/{name}/sub/config.json", b"{}")
        whole = data + b"{}"
        return {"bytes": len(whole), "crc": zlib.crc32(whole), "files": 2}

    def submit(self, name: str, *words: str, suite: str = "sizes", code: int = 0) -> str:
        return self.evalq("submit", f"s3://{BUCKET}/run/{name}", "--run", "r", "--suite", suite, *words, code=code)

    def metrics(self, name: str, *words: str, suite: str = "sizes") -> Dict[str, float]:
        told = json.loads(self.submit(name, "--wait", "--json", *words, suite=suite))
        self.assertEqual([job["state"] for job in told["jobs"]], ["done"])
        return dict(told["results"][0]["metrics"])

    def show(self, job: str) -> Dict[str, Any]:
        told = json.loads(self.evalq("show", job, "--json"))
        return {**told["job"], "attempts": int(told["job"].get("attempts", 0)), "detail": str(told.get("detail")), "why": str(told)}

    def job_of(self, told: str) -> str:
        return told.split()[0]

    def await_state(self, job: str, state: str) -> Dict[str, Any]:
        until(lambda: self.show(job)["state"] == state, f"{job} is {state}")
        return self.show(job)


class RemoteTest(Remote):
    def test_a_second_suite_fetches_nothing(self) -> None:
        with open(MODEL, "rb") as file:
            self.store.put("run/step-500/model.safetensors", file.read())
        self.scene.start_worker()
        self.assertGreater(self.metrics("step-500", suite="quick")["accuracy"], 0.9)
        self.assertEqual(self.store.reads(), 1)
        requests = len(self.store.requests)
        self.assertEqual(self.metrics("step-500")["bytes"], os.path.getsize(MODEL))
        # The submit listed the checkpoint. The worker asked nothing.
        self.assertLessEqual(len(self.store.requests) - requests, 3, self.store.requests)
        self.assertEqual(self.store.reads(), 1)
        self.assertNotIn("planted-secret", self.scene.log("evalq-worker"))
        self.assertNotIn(b"planted", self.scene.redis_call("--scan"))
        self.assertEqual(self.scene.message("r/500/regular/sizes")["root"], "ckpt")
        self.assertNotIn("planted", json.dumps(self.scene.message("r/500/regular/sizes"), default=str))

    def test_client_scan_and_submit_name_one_checkpoint(self) -> None:
        first, second = self.put("step-1", 100), self.put("step-2", 200, 2)
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, self.scene.url, self.scene.config, self.scene.ring],
            env=dict(self.scene.environment(), EVALQ_LIBRARY=os.environ["EVALQ_LIBRARY"]), capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual(client.returncode, 0, client.stderr)
        self.assertEqual(client.stderr.count("cannot be pinned"), 1)
        self.assertIn("has a password", client.stdout)
        self.assertEqual(helpers(self.scene.directory), [])
        self.assertIn("duplicate", self.submit("step-1"))
        told = json.loads(self.evalq("scan", f"s3://{BUCKET}/run", "--run", "r", "--suite", "sizes", "--json"))
        self.assertEqual({one["name"]: one["answer"] for one in told["checkpoints"]}, {"step-1": "duplicate", "step-2": "queued"})
        told = json.loads(self.evalq("scan", f"s3://{BUCKET}/run", "--run", "m", "--suite", "marked", "--json"))
        self.assertEqual((told["submitted"], told["incomplete"]), (0, 2))
        self.store.put("run/step-2/done.txt", b"")
        told = json.loads(self.evalq("scan", f"s3://{BUCKET}/run", "--run", "m", "--suite", "marked", "--json"))
        self.assertEqual((told["submitted"], told["incomplete"]), (1, 1))
        self.scene.start_worker()
        self.assertEqual(self.metrics("step-1"), first)
        # Its files changed after the scan, so the job of the scan does not count them.
        self.assertIn("changed", self.await_state("r/2/regular/sizes", "skipped")["why"])
        self.assertEqual(self.metrics("step-2"), {**second, "files": 3})

    def test_watch_takes_what_is_uploaded_later(self) -> None:
        self.scene.start_worker()
        self.scene.start("evalq", "scan", f"s3://{BUCKET}/run", "--run", "r", "--suite", "sizes", "--watch", "--plain")
        until(lambda: any("list-type" in path for _, path in self.store.requests), "a first listing")
        want = self.put("step-7", 1000)
        until(lambda: "r/7/" in self.scene.log("evalq"), "the scan submits it")
        self.await_state("r/7/regular/sizes", "done")
        self.assertEqual(self.metrics("step-7"), want)

    def test_changed_or_deleted_is_skipped(self) -> None:
        self.put("step-1", 1000)
        self.put("step-2", 1000)
        jobs = [self.job_of(self.submit(name)) for name in ("step-1", "step-2")]
        self.put("step-1", 1000, 9)
        self.store.delete("run/step-2/model.bin", "run/step-2/sub/config.json")
        self.scene.start_worker()
        self.assertIn("changed: ", self.await_state(jobs[0], "skipped")["why"])
        self.assertIn("vanished: ", self.await_state(jobs[1], "skipped")["why"])
        self.assertEqual(os.listdir(os.path.join(self.scene.out, "cache")), [])

    def test_changed_during_the_fetch_is_skipped(self) -> None:
        self.put("step-1", 20 * MB)
        job = self.job_of(self.submit("step-1"))
        changed: List[int] = []

        def rule(method: str, path: str) -> Optional[Fault]:
            if method == "GET" and "model.bin" in path and not changed:
                changed.append(1)
                self.store.put("run/step-1/sub/config.json", b"[]")
            return None

        self.store.rule = rule
        self.scene.start_worker()
        self.assertIn("the files changed during the fetch", self.await_state(job, "skipped")["why"])

    def test_cuts_throttling_and_slow_replies_end_well(self) -> None:
        want = self.put("step-1", 40 * MB)
        counts: Dict[str, int] = {}

        def rule(method: str, path: str) -> Optional[Fault]:
            counts[path] = counts.get(path, 0) + 1
            if method == "GET" and "model.bin" in path:
                many = counts[path]
                return {1: Fault(cut_at=MB), 2: Fault(503, "SlowDown"), 3: Fault(cut_at=0), 4: Fault(500, "InternalError")}.get(many, Fault(pause=0.001))
            return Fault(503, "SlowDown") if counts[path] == 1 else None

        self.store.rule = rule
        self.scene.start_worker()
        self.assertEqual(self.metrics("step-1"), want)
        self.assertEqual(self.show("r/1/regular/sizes")["attempts"], 1)

    def test_damaged_data_is_never_evaluated(self) -> None:
        want = self.put("step-1", MB)
        self.store.rule = lambda method, path: Fault(flip=True) if method == "GET" and "model.bin" in path else None
        job = self.job_of(self.submit("step-1"))
        self.scene.start_worker()
        until(lambda: "with the md5 digest" in self.worker_log(), "the worker tells it")
        self.assertGreaterEqual(self.show(job)["attempts"], 1)  # Or it would be fetched for ever.
        self.store.rule = None
        self.await_state(job, "done")
        self.assertEqual(self.metrics("step-1"), want)

    def test_kill_of_the_helper_and_the_worker_continues(self) -> None:
        want = self.put("step-1", 80 * MB)  # Six parts.
        slow = Fault(pause=0.02)
        first: List[str] = []

        def rule(method: str, path: str) -> Optional[Fault]:
            if method == "GET" and "model.bin" in path:
                first.append(path)
                return slow if len(first) > 2 else None  # Two parts come at once.
            return None

        self.store.rule = rule
        worker = self.scene.start_worker()
        job = self.job_of(self.submit("step-1"))
        cache = os.path.join(self.scene.out, "cache")

        def parts() -> int:
            with contextlib.suppress(OSError):
                for name in os.listdir(cache):
                    if name.endswith(".partial"):
                        with open(os.path.join(cache, name, ".evalq-parts"), encoding="ascii") as file:
                            return len(file.read().split("\n")) - 2
            return 0

        until(lambda: parts() >= 2, "two parts are there")
        until(lambda: "fetching: " in self.evalq("status"), "the status shows the progress")
        os.kill(until(lambda: helpers(self.scene.directory), "a helper")[0], signal.SIGKILL)
        until(lambda: len(first) > 6, "another attempt fetches")
        self.assertGreaterEqual(parts(), 2)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        until(lambda: not helpers(self.scene.directory), "the helper ends with the worker")
        have = parts()
        self.store.rule = None
        reads = self.store.reads("run/step-1/model.bin")
        self.scene.start_worker()
        self.await_state(job, "done")
        self.assertLessEqual(self.store.reads("run/step-1/model.bin") - reads, 7 - have)
        self.assertEqual(self.metrics("step-1"), want)

    def test_two_workers_share_one_fetch(self) -> None:
        want = self.put("step-1", 30 * MB)
        self.store.rule = lambda method, path: Fault(pause=0.005) if "model.bin" in path else None
        self.scene.start_worker()
        self.scene.start_worker()
        jobs = [self.job_of(self.submit("step-1", suite=suite)) for suite in ("sizes", "again")]
        for job in jobs:
            self.await_state(job, "done")
        self.assertEqual(self.store.reads("run/step-1/model.bin"), 2)  # Two parts.
        self.assertEqual(self.metrics("step-1"), want)

    def test_expired_credentials_are_named_and_charge_nothing(self) -> None:
        want = self.put("step-1", 1000)
        job = self.job_of(self.submit("step-1"))
        self.store.rule = lambda method, path: Fault(403, "ExpiredToken")
        self.scene.start_worker()
        until(lambda: "expired" in self.show(job)["why"], "the reason is shown")
        self.assertIn("credentials are wrong or expired (AWS_ACCESS_KEY_ID or AWS_PROFILE)", self.show(job)["why"])
        self.assertEqual(self.show(job)["attempts"], 0)
        self.assertIn("credentials are wrong or expired", self.submit("step-1", code=9))
        self.store.rule = None
        self.await_state(job, "done")
        self.assertEqual(self.metrics("step-1"), want)

    def test_checkpoint_larger_than_the_cache_is_told(self) -> None:
        self.put("step-1", 101 * 1000 * 1000)
        job = self.job_of(self.submit("step-1"))
        self.scene.start_worker()
        until(lambda: "worker.cache.bytes allows 100000000 here" in self.show(job)["why"], "the reason is shown")
        self.assertEqual(self.store.reads(), 0)

    def test_cache_evicts_what_was_used_least_recently(self) -> None:
        wants = {f"step-{step}": self.put(f"step-{step}", 40 * 1000 * 1000) for step in (1, 2, 3)}
        self.scene.start_worker()
        for name in ("step-1", "step-2"):
            self.assertEqual(self.metrics(name), wants[name])
        self.metrics("step-1", suite="again")  # So step-2 is the oldest.
        self.assertEqual(self.metrics("step-3"), wants["step-3"])
        reads = self.store.reads("run/step-1/")
        cache = os.path.join(self.scene.out, "cache")
        kept = sorted(os.listdir(os.path.join(cache, name))[0] for name in os.listdir(cache) if not name.endswith(".lock"))
        self.assertEqual(kept, ["step-1", "step-3"])
        self.assertEqual(self.store.reads("run/step-1/"), reads)

    def test_bad_addresses_and_a_missing_package_are_named(self) -> None:
        def refused(address: str, code: int = 9) -> str:
            return self.evalq("submit", address, "--run", "r", "--suite", "sizes", "--step", "1", code=code)

        self.assertIn("roots: {other: s3://other}", refused("s3://other/step-1", 3))
        self.assertIn("has a password", refused("https://me:planted@host/run"))
        self.assertIn("has a query", refused("https://host/run?sig=planted"))
        self.assertIn("unknown scheme, expected s3, gs", refused("ftp://host/run"))
        self.assertIn("the store does not have", self.submit("step-404", code=9))
        self.put("step-1", 10)
        fake = os.path.join(self.scene.directory, "fake")
        os.mkdir(fake)
        with open(os.path.join(fake, "s3fs.py"), "w", encoding="utf-8") as file:
            file.write("raise ImportError('planted')")
        self.scene.variables["PYTHONPATH"] = fake + os.pathsep + PACKAGE
        self.assertIn("'s3' addresses need the package s3fs: pip install 'evalq[remote]'", self.submit("step-1", code=9))
        self.scene.variables.update(EVALQ_PYTHON="/nowhere/python")
        self.assertIn("'/nowhere/python' cannot be started", self.submit("step-1", code=9))


class OneCheckpointTest(Remote):
    """The same checkpoint in another store than S3."""

    def setUp(self) -> None:
        super().setUp()
        self.root = os.path.join(self.scene.directory, "shared")
        os.makedirs(os.path.join(self.root, "run", "step-1", "sub"))
        self.data = os.urandom(20 * MB)
        for name, data in (("model.bin", self.data), ("sub/config.json", b"{}")):
            with open(os.path.join(self.root, "run", "step-1", name), "wb") as file:
                file.write(data)
        whole = self.data + b"{}"
        self.want = {"bytes": len(whole), "crc": zlib.crc32(whole), "files": 2}

    def configure(self, address: str) -> None:
        self.scene.write_config(CONFIG.replace("s3://training/run", address))
        self.scene.start_worker()
        self.address = address

    def evaluate(self, name: str) -> Dict[str, float]:
        told = json.loads(self.evalq("submit", f"{self.address}/{name}", "--run", "r", "--step", "1", "--suite", "sizes", "--wait", "--json"))
        self.assertEqual([job["state"] for job in told["jobs"]], ["done"])
        return dict(told["results"][0]["metrics"])


@unittest.skipUnless(importlib.util.find_spec("paramiko"), "paramiko is not installed")
class OtherStoresTest(OneCheckpointTest):
    """A web server and SFTP."""

    def web(self, has_ranges: bool) -> None:
        from other_stores import serve_web

        server = serve_web(self.root, has_ranges)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.configure(f"http://127.0.0.1:{server.server_address[1]}/run")

    def test_web_server_with_ranges(self) -> None:
        self.web(has_ranges=True)
        self.assertEqual(self.evaluate("step-1"), self.want)
        told = json.loads(self.evalq("scan", self.address, "--run", "s", "--suite", "sizes", "--json"))
        self.assertEqual([one["name"] for one in told["checkpoints"]], ["step-1"])
        self.assertIn("the store does not have", self.evalq("submit", f"{self.address}/step-9", "--run", "r", "--suite", "sizes", code=9))

    def test_web_server_without_ranges(self) -> None:
        self.web(has_ranges=False)
        self.assertEqual(self.evaluate("step-1/model.bin"), {"bytes": len(self.data), "crc": zlib.crc32(self.data), "files": 1})

    def test_sftp_of_a_known_host(self) -> None:
        import paramiko
        from other_stores import Sftp

        key = paramiko.RSAKey.generate(2048)
        server = Sftp(self.root, key)
        self.addCleanup(server.close)
        home = os.path.join(self.scene.directory, "home")
        os.makedirs(os.path.join(home, ".ssh"), mode=0o700)
        key.write_private_key_file(os.path.join(home, ".ssh", "id_rsa"))
        self.scene.variables.update(HOME=home, SSH_AUTH_SOCK="")
        self.configure(f"sftp://trainer@127.0.0.1:{server.port}/run")
        # Nobody vouches for the host, so nothing is sent to it.
        said = self.evalq("submit", f"{self.address}/step-1", "--run", "r", "--suite", "sizes", code=9)
        self.assertIn("~/.ssh/known_hosts has no key of this host, or another key", said)
        with open(os.path.join(home, ".ssh", "known_hosts"), "w", encoding="ascii") as file:
            file.write(f"[127.0.0.1]:{server.port} ssh-rsa {server.host_key.get_base64()}\n")
        self.assertEqual(self.evaluate("step-1"), self.want)


@unittest.skipUnless(importlib.util.find_spec("huggingface_hub"), "huggingface_hub is not installed")
class HubTest(OneCheckpointTest):
    """The real client of the Hugging Face Hub, and a server on loopback that speaks the Hub's API."""

    def setUp(self) -> None:
        from hub_store import Hub

        super().setUp()
        self.hub = Hub("org/name", "planted-token")
        self.addCleanup(self.hub.close)
        self.hub.files = {"run/step-1/model.bin": self.data, "run/step-1/sub/config.json": b"{}"}
        self.scene.variables.update(HF_ENDPOINT=self.hub.url, HF_TOKEN=self.hub.token, HF_HOME=os.path.join(self.scene.directory, "hf"))

    def test_hub_repository_at_a_revision(self) -> None:
        self.configure("hf://org/name@main/run")
        self.assertEqual(self.evaluate("step-1"), self.want)
        told = json.loads(self.evalq("scan", self.address, "--run", "s", "--suite", "sizes", "--json"))
        self.assertEqual([one["name"] for one in told["checkpoints"]], ["step-1"])
        self.assertIn("the store does not have", self.evalq("submit", f"{self.address}/step-9", "--run", "r", "--suite", "sizes", code=9))

    def test_hub_refuses_a_wrong_token(self) -> None:
        self.scene.variables["HF_TOKEN"] = "another-token"
        self.configure("hf://org/name@main/run")
        said = self.evalq("submit", f"{self.address}/step-1", "--run", "r", "--suite", "sizes", code=9)
        self.assertIn("credentials are wrong or expired (HF_TOKEN)", said)
        self.assertNotIn("another-token", said)

    def test_damaged_files_of_the_hub_are_never_evaluated(self) -> None:
        self.configure("hf://org/name@main/run")
        self.hub.damaged = "run/step-1/sub/config.json"  # Its digest is git's.
        told = json.loads(self.evalq("submit", f"{self.address}/step-1", "--run", "r", "--step", "1", "--suite", "sizes", "--json"))
        self.assertEqual(len(told["jobs"]), 1)
        until(lambda: "was fetched with the git digest" in self.evalq("status", "--json"), "the reason")
        self.hub.damaged = ""
        self.assertEqual(self.evaluate("step-1"), self.want)


@unittest.skipUnless(importlib.util.find_spec("gcsfs") and importlib.util.find_spec("gcp_storage_emulator"), "gcsfs or its server is not installed")
class GoogleTest(OneCheckpointTest):
    """gcsfs, and a server of Google Cloud Storage's JSON API on loopback (gcp-storage-emulator)."""

    def setUp(self) -> None:
        from gcp_storage_emulator.server import create_server

        super().setUp()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = create_server("127.0.0.1", port, in_memory=True, default_bucket="training")
        server.start()
        self.addCleanup(server.stop)
        # The second one keeps gcsfs from asking Google's gRPC servers what kind the bucket is.
        variables = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        self.scene.variables.update(variables)
        program = "import gcsfs, sys; gcsfs.GCSFileSystem(token='anon').put(sys.argv[1], 'training/run', recursive=True)"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, os.path.join(self.root, "run") + "/"], env={**os.environ, **variables},
            capture_output=True, text=True, check=False, timeout=DEADLINE,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_google_cloud_storage(self) -> None:
        self.configure("gs://training/run")
        self.assertEqual(self.evaluate("step-1"), self.want)
        told = json.loads(self.evalq("scan", self.address, "--run", "s", "--suite", "sizes", "--json"))
        self.assertEqual([one["name"] for one in told["checkpoints"]], ["step-1"])
        self.assertIn("the store does not have", self.evalq("submit", f"{self.address}/step-9", "--run", "r", "--suite", "sizes", code=9))


@unittest.skipUnless(os.geteuid() == 0, "only root can mount a small disk")
class FullDiskTest(Remote):
    def test_full_disk_pauses_and_charges_nothing(self) -> None:
        cache = os.path.join(self.scene.out, "cache")
        os.mkdir(cache)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", cache], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            self.skipTest(f"a small disk cannot be mounted: {mounted.stderr}")
        self.addCleanup(subprocess.run, ["umount", "-l", cache], check=True)
        want = self.put("step-1", 20 * MB)
        job = self.job_of(self.submit("step-1"))
        self.scene.start_worker()
        until(lambda: "the disk of worker.cache is full" in self.scene.log("evalq-worker"), "the worker tells it")
        until(lambda: self.show(job)["state"] == "queued", "the job waits")
        self.assertEqual((self.show(job)["attempts"], self.store.reads()), (0, 0))
        subprocess.run(["mount", "-o", "remount,size=100m", cache], check=True)
        self.await_state(job, "done")
        self.assertEqual(self.metrics("step-1"), want)


if __name__ == "__main__":
    unittest.main()
