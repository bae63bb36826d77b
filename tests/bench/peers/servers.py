"""Redis, beanstalkd and the peers' processes for speed.py and faults.py, all on loopback, in one temporary directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "..")
BIN = os.path.join(os.environ.get("EVALQ_TEST_BUILD", os.path.join(SOURCE, "build", "bench")), "bin")
AOF = {
    "off": ["--appendonly", "no"],
    "everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
    "always": ["--appendonly", "yes", "--appendfsync", "always"],
}
EVALQ_YAML = """
redis: {queue: main}
roots: {out: %s}
worker: {slots: %d, devices: cpu, lease_ms: %d, heartbeat_ms: %d}
evaluators:
  noop: {kind: persistent, argv: [%s/noop_evaluator, %s/noop.log]}
suites:
  noop: {evaluator: noop, limits: {seconds: 60}, tasks: [{name: t, type: any}]}
logger: {directory: %s/results, sinks: [{kind: jsonl}]}
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(condition: Callable[[], Any], what: str, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as one:
        one.sendall(b"PING\r\n")
        return one.recv(100).startswith((b"+PONG", b"UNKNOWN_COMMAND"))
    return False


@contextlib.contextmanager
def served(words: Callable[["Place"], List[str]]) -> Iterator["Place"]:
    """A place whose server answers. What its processes said is printed when something goes wrong there."""
    place = Place(tempfile.mkdtemp(prefix="evalq-peers-"), free_port())
    try:
        place.start(words(place))
        until(lambda: answers(place.port), f"{words(place)[0]} answers", 60)
        yield place
    except BaseException:
        print(place.said(), file=sys.stderr)
        raise
    finally:
        place.close()


def redis(mode: str, under: Sequence[str] = ()) -> ContextManager["Place"]:
    """under: the words of a program that runs the server, such as valgrind's."""

    def words(place: "Place") -> List[str]:
        server = ["redis-server", "--bind", "127.0.0.1", "--port", str(place.port), "--dir", place.directory, "--save", ""]
        return [*under, *server, "--maxmemory-policy", "noeviction", *AOF[mode]]

    return served(words)


def beanstalkd(mode: str, under: Sequence[str] = ()) -> ContextManager["Place"]:
    """Its log: off, written to disk once a second, or after each write."""

    def words(place: "Place") -> List[str]:
        log = {"off": [], "everysec": ["-b", place.directory, "-f", "1000"], "always": ["-b", place.directory, "-f", "0"]}[mode]
        return [*under, "beanstalkd", "-l", "127.0.0.1", "-p", str(place.port), *log]

    return served(words)


class Place:
    """A directory, a server's port, and processes that end with it."""

    def __init__(self, directory: str, port: int) -> None:
        self.directory, self.port = directory, port
        self.processes: List["subprocess.Popen[bytes]"] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self, words: List[str], log_name: str = "log", **more: Any) -> "subprocess.Popen[bytes]":
        """In a process group of its own, so that it is stopped and killed with what it starts."""
        log = open(os.path.join(self.directory, log_name), "ab")
        more.setdefault("stdout", log)
        process = subprocess.Popen(words, stderr=log, cwd=HERE, start_new_session=True, **more)
        log.close()
        self.processes.append(process)
        return process

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.processes.remove(process)

    def redis_call(self, *words: str) -> str:
        return subprocess.run(
            ["redis-cli", "-p", str(self.port), *words], capture_output=True, check=True, text=True
        ).stdout

    def said(self) -> str:
        with open(os.path.join(self.directory, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-3000:]

    def close(self) -> None:
        for process in self.processes[::-1]:
            self.end(process)
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass
class Peer:
    """A queue that speaks Redis: how its jobs are submitted and its worker is started."""

    name: str
    submit: List[str]
    worker: List[str]
    durable: str = ""  # PEER_DURABLE: seconds of its lease; "": as it comes.
    more: Dict[str, str] = field(default_factory=dict)  # Further settings, as variables.

    def environment(self, place: Place, port: int) -> Dict[str, str]:
        more = {"PEER_PORT": str(port), "PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1", "PEER_DURABLE": self.durable}
        more.update(EVALQ_URL=f"redis://127.0.0.1:{port}", EVALQ_CONFIG=os.path.join(place.directory, "evalq.yaml"), TMPDIR=place.directory)
        return {**os.environ, **more, **self.more}

    def start_submit(self, place: Place, port: int, kind: str, count: int, ms: int, path: str) -> "subprocess.Popen[bytes]":
        words = [*self.submit, "submit", kind, str(count), str(ms), path]
        return place.start(words, env=self.environment(place, port), stdout=subprocess.PIPE)

    def start_worker(self, place: Place, port: int) -> "subprocess.Popen[bytes]":
        return place.start(self.worker, env=self.environment(place, port))


def evalq(name: str, durable: str = "") -> Peer:
    library = os.path.join(os.path.dirname(BIN), "lib", "libevalq.so.1")
    return Peer(name, [sys.executable, "evalq_peer.py"], [os.path.join(BIN, "evalq-worker")], durable, {"EVALQ_LIBRARY": library})


def evalq_prepare(peer: Peer, place: Place, slots: int, lease_ms: int) -> None:
    """A configuration whose evaluator does nothing, a checkpoint, and the functions in Redis."""
    here = place.directory
    data = os.path.join(SOURCE, "tests", "data", "mnist", "mlp_784_512_128_32_10.safetensors")
    shutil.copy(data, os.path.join(here, "one.safetensors"))
    os.mkdir(os.path.join(here, "ring"), 0o700)
    with open(os.path.join(here, "evalq.yaml"), "w", encoding="utf-8") as file:
        file.write(EVALQ_YAML % (here, slots, lease_ms, lease_ms // 5, BIN, here, here))
    words = [os.path.join(BIN, "evalq"), "admin", "install"]
    subprocess.run(words, env=peer.environment(place, place.port), check=True, capture_output=True)


def celery(concurrency: int, durable: str = "", name: str = "") -> Peer:
    words = [sys.executable, "-m", "celery", "-A", "celery_peer", "worker", "-c", str(concurrency), "--loglevel", "ERROR"]
    words += ["--without-gossip", "--without-mingle"]
    return Peer(name or f"Celery, prefork {concurrency}", [sys.executable, "celery_peer.py"], words, durable)


def rq(simple: bool, durable: str = "", name: str = "") -> Peer:
    words = [sys.executable, "rq_peer.py", "worker", *(["simple"] if simple else [])]
    return Peer(name or ("RQ, SimpleWorker" if simple else "RQ, a process a job"), [sys.executable, "rq_peer.py"], words, durable)


def bullmq(concurrency: int, durable: str = "", name: str = "", removed: bool = False) -> Peer:
    """removed: a job's record goes when the job ends; as it comes, all records are kept."""
    if os.environ.get("BULLMQ_JS"):
        kind, words = "BullMQ", ["node", "bullmq_peer.js"]
    else:
        kind, words = "BullMQ (its Python port)", [sys.executable, "bullmq_peer.py"]
    name = name or f"{kind}, {concurrency} in flight{', removed' if removed else ''}"
    return Peer(name, words, [*words, "worker", str(concurrency)], durable, {"PEER_REMOVE": "1" if removed else ""})


def versions() -> str:
    def said(*words: str) -> str:
        with contextlib.suppress(OSError):
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            return (done.stdout + done.stderr).strip().splitlines()[0]
        return "not there"

    code = "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in ('celery', 'kombu', 'rq', 'bullmq', 'redis')), sep=', ')"
    node = os.environ.get("BULLMQ_JS")
    bull = f"BullMQ {os.environ.get('BULLMQ_VERSION', 'of unknown version')} on node {said('node', '--version')}" if node else "BullMQ by its Python port"
    return f"Python packages {said(sys.executable, '-c', code)}; {bull}; {said('beanstalkd', '-v')}; {said('redis-server', '--version')[:28]}"
