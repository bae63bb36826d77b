"""A queue with real programs for the Python tests: redis-server on a unix socket, evalq-worker and
evalq-logger, all in one temporary directory. Nothing sleeps; tests wait for conditions with a
deadline."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, Callable, Dict, Iterator, List, Optional

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EVALQ_TEST_BUILD", os.path.join(SOURCE, "build", "test"))
BIN = os.path.join(BUILD, "bin")
DATA = os.path.join(SOURCE, "tests", "data", "mnist")
PACKAGE = os.path.join(SOURCE, "producer", "python")
os.environ.setdefault("EVALQ_LIBRARY", os.path.join(BUILD, "lib", "libevalq.so.1"))
if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)

# The time limit for each condition, with reserves for a busy machine.
DEADLINE = float(os.environ.get("EVALQ_TEST_DEADLINE", "120"))


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """Waits until the condition is true, and returns its value. AssertionError: the time is up."""
    deadline = time.monotonic() + seconds
    pause = 0.005
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


_ports: List[socket.socket] = []  # Each reserves one port by its name.


def free_port() -> int:
    """Returns a free loopback port that belongs to this process until it ends. No other test gets
    it, not even one in C, and the system gives no connection a port this low."""
    while True:
        port = random.randrange(10000, 32768)
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(socket.socket(socket.AF_UNIX))
            one = stack.enter_context(socket.socket())
            try:
                name.bind(f"\0evalq-test-port-{port}")
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            _ports.append(name)
            one.close()
            stack.pop_all()
            return port


class Scene:
    """A directory with its own Redis and workers; close() ends them."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="evalq-py-")
        self.out = os.path.join(self.directory, "out")
        os.mkdir(self.out)
        self.socket = os.path.join(self.directory, "redis.sock")
        self.url = "unix://" + self.socket
        self.config = os.path.join(self.directory, "evalq.yaml")
        self.ring = os.path.join(self.directory, "ring")
        os.mkdir(self.ring, 0o700)
        self.processes: List[subprocess.Popen[bytes]] = []
        self.redis: Optional[subprocess.Popen[bytes]] = None
        # These variables change the environment of redis-server.
        self.redis_variables: Dict[str, str] = {}
        # These variables change the environment of programs that start later.
        self.variables: Dict[str, str] = {}

    def start_redis(self, *options: str) -> None:
        with open(os.path.join(self.directory, "redis.log"), "ab") as log:
            self.redis = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", self.directory]
                + ["--save", "", "--appendonly", "yes", "--appendfsync", "no", *options],
                env=dict(os.environ, **self.redis_variables),
                stdout=log,
                stderr=log,
            )
        until(
            lambda: subprocess.run(
                ["redis-cli", "-s", self.socket, "ping"], capture_output=True, check=False
            ).stdout.startswith(b"PONG"),
            "redis-server answers",
        )
        subprocess.run([os.path.join(BIN, "evalq"), "admin", "install"], env=self.environment(), check=True, capture_output=True)

    def stop_redis(self) -> None:
        if self.redis is not None:
            _end(self.redis)
            self.redis = None

    def write_config(self, text: str) -> None:
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text.replace("$DATA", DATA).replace("$OUT", self.out).replace("$PYTHON", sys.executable))

    def environment(self) -> Dict[str, str]:
        own = {"EVALQ_URL": self.url, "EVALQ_CONFIG": self.config, "TMPDIR": self.directory}
        # In the user's own directory, a scan would send what other tests left.
        own["XDG_STATE_HOME"] = os.path.join(self.directory, "state")
        return {**os.environ, **own, **self.variables}

    def start(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with open(os.path.join(self.directory, program + ".log"), "ab") as log:
            process = subprocess.Popen(
                [os.path.join(BIN, program), *arguments], env=self.environment(), stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def start_worker(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return self.start("evalq-worker", *arguments)

    def evalq(self, *words: str, url: str = "") -> "subprocess.CompletedProcess[str]":
        environment = dict(self.environment(), **({"EVALQ_URL": url} if url else {}))
        return subprocess.run([BIN + "/evalq", *words], env=environment, text=True, capture_output=True, timeout=DEADLINE, check=False)

    def results(self) -> List[Dict[str, Any]]:
        """The results in the JSONL files in results/, from whole lines only, without the ends of
        jobs."""
        found: List[Dict[str, Any]] = []
        for directory, _, names in os.walk(os.path.join(self.out, "results")):
            for name in names:
                if name.endswith(".jsonl"):
                    with open(os.path.join(directory, name), encoding="utf-8") as file:
                        lines = [json.loads(line) for line in file if line.endswith("\n")]
                    found += [line for line in lines if line["task"]]
        return found

    def client(self, run: str = "digits", **options: Any) -> Any:
        import evalq

        options.setdefault("config", self.config)
        options.setdefault("ring_directory", self.ring)
        return evalq.Client(options.pop("url", self.url), run, **options)

    def checkpoint(self, name: str) -> str:
        """Creates a copy of the trained MLP."""
        path = os.path.join(self.out, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copy(os.path.join(DATA, "mlp_784_512_128_32_10.safetensors"), path)
        return path

    def message(self, job: str) -> Dict[str, Any]:
        """Returns a job's record from Redis."""
        script = "return cjson.encode(cmsgpack.unpack(redis.call('GET', KEYS[1])))"
        return dict(json.loads(self.redis_call("EVAL", script, "1", "evalq:{main}:msg:" + job)))

    def redis_call(self, *words: str) -> bytes:
        return subprocess.run(["redis-cli", "-s", self.socket, *words], capture_output=True, check=True).stdout

    def log(self, program: str) -> str:
        path = os.path.join(self.directory, program + ".log")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def close(self) -> None:
        for process in self.processes:
            _end(process)
        self.stop_redis()
        shutil.rmtree(self.directory, ignore_errors=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def scene(config: str) -> Iterator[Scene]:
    """Creates a scene with Redis and the configuration."""
    made = Scene()
    try:
        made.write_config(config)
        made.start_redis()
        yield made
    except BaseException:
        for name in ("evalq-worker", "evalq-logger"):
            with contextlib.suppress(OSError):
                sys.stderr.write(f"--- {name}\n{made.log(name)[-4000:]}\n")
        raise
    finally:
        made.close()


NATIVE = """
roots:
  out: $OUT
suites:
  quick:
    tasks:
      - name: digits
        type: classification
        model: {activation: relu}
        data:
          format: idx
          inputs: $DATA/t10k-images-idx3-ubyte.gz
          labels: $DATA/t10k-labels-idx1-ubyte.gz
          scale: 1/255
          limit: 1000
worker:
  devices: cpu
  threads: 1
"""


class SceneTest(unittest.TestCase):
    """A test class whose tests share one scene."""

    config = NATIVE
    workers = True
    scene: Scene

    @classmethod
    def setUpClass(cls) -> None:
        if shutil.which("redis-server") is None:
            raise unittest.SkipTest("redis-server is not installed")
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.scene = stack.enter_context(scene(cls.config))
        if cls.workers:
            cls.scene.start_worker()
