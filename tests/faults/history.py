#!/usr/bin/env python3
"""What happened, joined from what every process wrote down, and what is left of it.

A history is lines in files, one file a process, a line (or some whole lines) a write:

    NS PROCESS CALL PHASE OP ID TOKEN DETAIL

NS is CLOCK_MONOTONIC, CALL a number that joins an outcome to its invoke, PHASE one of invoke, ok, fail, unknown; an invoke
without an outcome is unknown too (its process was killed). A word that is not there is "-". Torn last lines are left out.

    history.py trace SOCKET OUT [QUEUE]              writes every change of state that Redis makes, as MONITOR tells it, until its input ends
    history.py collect SOCKET OUT [QUEUE [SINK...]]  what Redis and the sinks hold, as JSON; SINK: jsonl=DIR or tensorboard=DIR
    history.py check COLLECTED HISTORY...            proves the rules of history_check.py; prints what breaks them, 1 if any

Standard library alone. SOCKET is the path of Redis's unix socket."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import history_sinks

STATES_ENDED = ("done", "dead", "skipped", "cancelled")


class Line(NamedTuple):
    ns: int
    process: str
    call: str
    phase: str
    op: str
    id: str
    token: str
    detail: str


def read(paths: List[str]) -> List[Line]:
    """All lines of these files, in the order of time."""
    lines = []
    for path in paths:
        with open(path, encoding="ascii", errors="replace") as file:
            for text in file:
                words = text.split(" ")
                if not text.endswith("\n"):
                    break  # Its writer was killed.
                if len(words) != 8:
                    raise ValueError(f"{path}: {text!r} is no line of a history")
                lines.append(Line(int(words[0]), *words[1:7], words[7][:-1]))
    lines.sort(key=lambda line: line.ns)  # Stable: a file's own order stands.
    return lines


class Writer:
    """A process's own file; each line is one write."""

    def __init__(self, path: str, process: str) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.process = process

    def line(self, call: int, phase: str, op: str, id: str, token: str = "-", detail: str = "-") -> None:
        words = [re.sub(r"[^!-~]", "_", word) or "-" for word in (self.process, str(call), phase, op, id, token, detail)]
        os.write(self.fd, f"{time.monotonic_ns()} {' '.join(words)}\n".encode())

    def close(self) -> None:
        os.close(self.fd)


class Redis:
    """As much of a client as is needed here: one connection, one command after the other."""

    def __init__(self, path: str, timeout: float = 60) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *words: Any) -> None:
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        self.socket.sendall(b"".join(parts))

    def reply(self) -> Any:
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("Redis went")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        return rest.decode()

    def call(self, *words: Any) -> Any:
        self.send(*words)
        return self.reply()

    def many(self, commands: List[List[Any]]) -> Iterator[Any]:
        for at in range(0, len(commands), 500):
            for words in commands[at:at + 500]:
                self.send(*words)
            for _ in commands[at:at + 500]:
                yield self.reply()


def text(data: Optional[bytes]) -> str:
    return "" if data is None else data.decode("utf-8", "replace")


def stream(redis: Redis, prefix: str) -> Iterator[Dict[str, str]]:
    """The entries of the results, but for their records."""
    start = "-"
    while True:
        page = redis.call("XRANGE", prefix + "results", start, "+", "COUNT", 1000)
        for id, fields in page:
            entry = {text(fields[i]): text(fields[i + 1]) for i in range(0, len(fields), 2) if fields[i] != b"record"}
            entry["stream"] = text(id)
            yield entry
        if len(page) < 1000:
            return
        start = "(" + text(page[-1][0])


def audit(redis: Redis, prefix: str) -> List[str]:
    problems, cursor = [], ""
    while True:
        view = json.loads(redis.call("FCALL_RO", "evalq_v1_audit", 1, prefix, cursor))
        problems += view["problems"]
        cursor = view["cursor"]
        if cursor == "":
            return problems


def collect(path: str, queue: str = "main", sinks: Optional[List[str]] = None) -> Dict[str, Any]:
    """What is left: jobs, results, what audit says, what the sinks hold."""
    redis = Redis(path)
    prefix = "evalq:{%s}:" % queue
    ids, cursor = [], "0"
    while True:
        cursor, keys = redis.call("SCAN", cursor, "MATCH", prefix + "job:*", "COUNT", 2000)
        ids += [text(key)[len(prefix) + 4:] for key in keys]
        if cursor in (b"0", "0"):
            break
    ids = sorted(set(ids))
    fields = ["state", "reason", "attempts", "token"]
    jobs = {}
    for id, values in zip(ids, redis.many([["HMGET", prefix + "job:" + id, *fields] for id in ids])):
        jobs[id] = dict(zip(fields, map(text, values)))
    counters = redis.call("HGETALL", prefix + "n")
    left = {"jobs": jobs, "results": list(stream(redis, prefix)), "audit": audit(redis, prefix),
            "counters": {text(counters[i]): int(counters[i + 1]) for i in range(0, len(counters), 2)},
            "losses": redis.call("LLEN", prefix + "loss"), "sinks": {}}
    for sink in sinks or []:
        kind, _, directory = sink.partition("=")
        left["sinks"][kind] = history_sinks.READERS[kind](directory)
    redis.close()
    return left


TOKEN = re.compile(r"\d+\.[0-9A-Za-z]+")
WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Trace:
    """Turns lines of MONITOR into changes of state, VERB=STATE; VERB.held=running: no new token was given, it runs on. Redis
    tells a function's call before the commands that it runs."""

    def __init__(self, queue: str, writer: Writer) -> None:
        self.job = b'"evalq:{%s}:job:' % queue.encode()
        self.res = b'"evalq:{%s}:res:' % queue.encode()
        self.writer = writer
        self.verb = "-"
        self.words: List[bytes] = []
        self.call: bytes = b""
        self.calls = 0

    def token_of(self, id: bytes) -> str:
        """The word after the id in the call: what fences it."""
        if not self.words and len(self.call) < 1 << 20:
            self.words = WORD.findall(self.call)
        try:
            token = self.words[self.words.index(id, 4) + 1].decode()
            return token if TOKEN.fullmatch(token) else "-"
        except (ValueError, IndexError):
            return "-"

    def take(self, line: bytes) -> None:
        if b" lua] " not in line[:40]:
            begin = line.find(b'"evalq_v1_', 0, 120)
            if begin >= 0:
                self.verb = line[begin + 10:line.index(b'"', begin + 10)].decode()
                self.call, self.words = line, []
                self.calls += 1
        elif self.job in line and b'"state"' in line and b'"HSET"' in line[:60]:
            words = WORD.findall(line)
            id, state = words[1][len(self.job) - 1:], words[words.index(b"state", 2) + 1].decode()
            at = words.index(b"token", 2) if b"token" in words[2:] else 0
            given = state == "running" and at > 0
            verb = self.verb if given or state != "running" else self.verb + ".held"
            token = words[at + 1].decode() if given else self.token_of(id)
            self.writer.line(self.calls, "ok", "state", id.decode(), token, verb + "=" + state)
        elif self.res in line and b'"HSETNX"' in line[:60]:
            words = WORD.findall(line)
            id = words[1][len(self.res) - 1:]
            self.writer.line(self.calls, "ok", "result", id.decode(), self.token_of(id), words[2].decode())

    def gap(self) -> None:
        self.writer.line(self.calls, "unknown", "gap", "-")


def stopped() -> bool:
    """Standard input has ended."""
    return bool(select.select([0], [], [], 0)[0]) and os.read(0, 1) == b""


def trace(path: str, out: str, queue: str = "main") -> None:
    """Until standard input ends. Says "ready" when the first connection listens."""
    tracer = Trace(queue, Writer(out, "trace"))
    connections = 0
    while not stopped():
        try:
            redis = Redis(path, 0.2)
            redis.call("MONITOR")
        except (OSError, RuntimeError):
            time.sleep(0.02)
            continue
        connections += 1
        if connections == 1:
            print("ready", flush=True)
        else:
            tracer.gap()
        follow(redis, tracer)


def follow(redis: Redis, tracer: Trace) -> None:
    rest = b""
    while True:
        try:
            data = redis.socket.recv(1 << 20)
        except socket.timeout:
            if stopped():
                sys.exit(0)  # All that was said has been read: 0.2 s without a word.
            continue
        except OSError:
            data = b""
        if not data:
            return
        lines = (rest + data).split(b"\r\n")
        rest = lines.pop()
        for line in lines:
            tracer.take(line)


def main(words: List[str]) -> int:
    if len(words) >= 3 and words[0] == "trace":
        trace(*words[1:4])
        return 0
    if len(words) >= 3 and words[0] == "collect":
        left = collect(words[1], words[3] if len(words) > 3 else "main", words[4:])
        with open(words[2], "w", encoding="utf-8") as file:
            json.dump(left, file)
        return 0
    if len(words) >= 3 and words[0] == "check":
        import history_check
        with open(words[1], encoding="utf-8") as file:
            left = json.load(file)
        report = history_check.check(read(words[2:]), left)
        for problem in report.problems[:50]:
            print(problem)
        if len(report.problems) > 50:
            print(f"... and {len(report.problems) - 50} more")
        print(json.dumps(report.counts))
        return 1 if report.problems else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
