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
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "..")
BIN = os.path.join(os.environ.get("EVALQ_TEST_BUILD", os.path.join(SOURCE, "build", "bench")), "bin")
AOF = {
    "off": ["--appendonly", "no"],
    "everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
    "always": ["--appendonly", "yes", "--appendfsync", "always"],
}


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
def redis(mode: str) -> Iterator["Place"]:
    directory = tempfile.mkdtemp(prefix="evalq-peers-")
    place = Place(directory, free_port())
    try:
        place.start(
            ["redis-server", "--bind", "127.0.0.1", "--port", str(place.port), "--dir", directory, "--save", ""]
            + ["--maxmemory-policy", "noeviction", *AOF[mode]]
        )
        until(lambda: answers(place.port), "redis-server answers", 20)
        yield place
    finally:
        place.close()


@contextlib.contextmanager
def beanstalkd(mode: str) -> Iterator["Place"]:
    """Its log: off, written to disk once a second, or after each write."""
    directory = tempfile.mkdtemp(prefix="evalq-peers-")
    place = Place(directory, free_port())
    log = {"off": [], "everysec": ["-b", directory, "-f", "1000"], "always": ["-b", directory, "-f", "0"]}[mode]
    try:
        place.start(["beanstalkd", "-l", "127.0.0.1", "-p", str(place.port), *log])
        until(lambda: answers(place.port), "beanstalkd answers", 20)
        yield place
    finally:
        place.close()


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

    def environment(self, port: int) -> Dict[str, str]:
        more = {"PEER_PORT": str(port), "PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1", "PEER_DURABLE": self.durable}
        return {**os.environ, **more}

    def start_submit(self, place: Place, port: int, kind: str, count: int, ms: int, path: str) -> "subprocess.Popen[bytes]":
        words = [*self.submit, "submit", kind, str(count), str(ms), path]
        return place.start(words, env=self.environment(port), stdout=subprocess.PIPE)

    def start_worker(self, place: Place, port: int) -> "subprocess.Popen[bytes]":
        return place.start(self.worker, env=self.environment(port))


def celery(concurrency: int, durable: str = "", name: str = "") -> Peer:
    words = [sys.executable, "-m", "celery", "-A", "celery_peer", "worker", "-c", str(concurrency), "--loglevel", "ERROR"]
    words += ["--without-gossip", "--without-mingle"]
    return Peer(name or f"Celery, prefork {concurrency}", [sys.executable, "celery_peer.py"], words, durable)


def rq(simple: bool, durable: str = "", name: str = "") -> Peer:
    words = [sys.executable, "rq_peer.py", "worker", *(["simple"] if simple else [])]
    return Peer(name or ("RQ, SimpleWorker" if simple else "RQ, a process a job"), [sys.executable, "rq_peer.py"], words, durable)


def bullmq(concurrency: int, durable: str = "", name: str = "") -> Peer:
    if os.environ.get("BULLMQ_JS"):
        kind, words = "BullMQ", ["node", "bullmq_peer.js"]
    else:
        kind, words = "BullMQ (its Python port)", [sys.executable, "bullmq_peer.py"]
    return Peer(name or f"{kind}, {concurrency} in flight", words, [*words, "worker", str(concurrency)], durable)


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
