#!/usr/bin/env python3
"""What Redis can do to those who use it: full, read-only, loading, flushed, cut off, set back. Each state comes upon a
worker with a job under way, a logger, and a training that submits; it must have struck (counted by Redis's own
statistics of errors, or by what was lost), and after it has passed all jobs end, each with one result, recorded once."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from typing import Any, List

from small_disk import SmallDisk
from stage import CONFIG, DEADLINE, PREFIX, TOOLS, Redis, Refused, Stage, arguments, free_port, until
from trial import Trial, run_all

GATE = '#!/bin/sh\ntouch "$SITE/started"\nwhile [ ! -e "$SITE/go" ]; do sleep 0.02; done\necho \'{"value": 1}\' >"$EVALQ_RESULT"\n'


class State(Trial):
    """One of them. begin() brings it about, end() ends it."""

    programs = ("evalq-worker", "evalq-logger")
    word = ""  # What the refusals of Redis begin with.
    options: tuple = ()  # Of redis-server.
    enough = 5  # Refusals.
    lossy = False  # Jobs may be lost; a scan brings them again.
    flush_ms = 50  # How long the training waits for its submits.

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stage = Stage(CONFIG)
        self.lost = 0

    def prepare(self) -> None:
        self.stage.write("echo.sh", GATE.replace("$SITE", self.stage.directory), 0o755)
        self.stage.start_redis(*self.options)

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def refusals(self) -> int:
        """How many calls Redis has refused so."""
        found = re.search(rb"errorstat_%s:count=(\d+)" % self.word.encode(), self.stage.call("INFO", "errorstats"))
        return int(found.group(1)) if found else 0

    def during(self) -> None:
        """While it lasts: until it has struck the programs."""
        until(lambda: self.refusals() >= self.enough, f"{self.name} strikes")
        self.struck = self.refusals()

    def said(self) -> str:
        """The sentence of the first program that has one."""
        for program in ("evalq-worker", "evalq-logger"):
            found = re.search(r'(?:redis_away|sink_waits|_refused).*reason="([^"]*)', self.stage.log(program))
            if found:
                return f"{program}: {found.group(1)}"
        return self.stage.said.split("\n")[0]

    def go(self) -> None:
        self.stage.write("go", "")

    def run(self) -> None:
        stage = self.stage
        self.prepare()
        stage.put("before", range(1, 5))
        worker, logger = self.working(), stage.start("evalq-logger")
        # A logger that loses Redis before this ends with 5, as one that never reached Redis.
        until(lambda: stage.count("evalq-logger", "event=logger_started") == 1, "the logger has started")
        self.begin()
        training = threading.Thread(target=stage.trainer, args=("during", 1, 3, "echo", self.flush_ms))
        training.start()
        self.during()
        self.go()  # The job under way ends in the midst of it.
        training.join()
        self.sentence = self.said()
        self.end()
        stage.trainer("during", 4, 1)  # Sends what the first one left, too.
        if self.lossy:
            self.again()
        until(stage.ended, "every job ends")
        stage.put("after", [1])
        until(stage.ended, "what comes after it ends")
        try:
            until(self.recorded, "every result is recorded")
        except AssertionError as fault:
            missing = sorted(self.wanted() - set(stage.recorded()))
            jobs = {name.partition("#")[0] for name in missing}
            records = [(job, stage.call("HGETALL", f"{PREFIX}job:{job}")) for job in jobs]
            raise AssertionError(f"{fault}: {missing}, of {records}") from None
        for program in (worker, logger):
            program.terminate()
            if program.wait(DEADLINE) != 0:
                raise AssertionError(f"a program ended with {program.returncode}")
        self.check()

    def working(self) -> "subprocess.Popen[bytes]":
        """A worker with a job under way. On a busy machine Redis may not answer it at its start within half a second."""
        while True:
            worker = self.stage.start("evalq-worker")
            until(lambda: os.path.exists(self.stage.path("started")) or worker.poll() is not None, "a job is under way")
            if worker.poll() != 5:
                return worker
            self.stage.processes.remove(worker)

    def summary(self) -> str:
        return super().summary() + (f", {self.lost} jobs lost and brought again" if self.lossy else "")

    def check(self) -> None:
        self.stage.all_done()
        twice = {name: count for name, count in self.stage.recorded().items() if count != 1}
        if twice:
            raise AssertionError(f"recorded more than once: {twice}")

    def wanted(self) -> set:
        jobs = [f"{run}/{step}/regular/{suite}" for run, step, suite in self.stage.runs]
        return {f"{job}#one" for job in jobs} | {f"{job}#=done.1" for job in jobs}

    def recorded(self) -> bool:
        return self.wanted() <= set(self.stage.recorded())

    def again(self) -> None:
        """Scans submit what is on disk and not in the queue."""
        self.stage.evalq("admin", "install", code=0)
        for run in ("before", "during"):
            self.lost += sum(1 for job in self.stage.runs if job[0] == run and not self.stage.state(*job))
            self.stage.evalq("scan", os.path.join(self.stage.out, run), "--run", run, "--suite", "echo", code=0)

    def set(self, name: str, value: Any) -> None:
        self.stage.call("CONFIG", "SET", name, value)


class Oom(State):
    """A full Redis refuses submits, and lets the jobs that it has end."""

    name, word = "out of memory", "OOM"
    enough = 1  # Nobody but who submits is refused:
    flush_ms = 5000  # he must come to it, on a busy machine too.

    def begin(self) -> None:
        self.set("maxmemory", 1)

    def during(self) -> None:
        super().during()
        self.go()
        until(lambda: all(self.stage.state("before", step, "echo") == "done" for step in range(1, 5)), "a full Redis drains")

    def end(self) -> None:
        self.set("maxmemory", 0)


class ReadOnly(State):
    name, word = "a replica that serves reads", "READONLY"

    def begin(self) -> None:
        self.stage.call("REPLICAOF", "127.0.0.1", 1)

    def end(self) -> None:
        self.stage.call("REPLICAOF", "NO", "ONE")


class MasterDown(ReadOnly):
    name, word = "a replica without its primary", "MASTERDOWN"
    options = ("--replica-serve-stale-data", "no")


class NoReplicas(State):
    name, word = "too few replicas", "NOREPLICAS"

    def begin(self) -> None:
        self.set("min-replicas-to-write", 1)

    def end(self) -> None:
        self.set("min-replicas-to-write", 0)


class NoFunctions(State):
    name, word = "functions flushed", "ERR"

    def begin(self) -> None:
        self.stage.call("FUNCTION", "FLUSH")

    def end(self) -> None:
        self.stage.evalq("admin", "install", code=0)


class Busy(State):
    """A script of somebody else's holds the server."""

    name, word = "busy with a script", "BUSY"

    def begin(self) -> None:
        self.set("busy-reply-threshold", 20)
        self.stage.call("CONFIG", "RESETSTAT")
        self.script = Redis(self.stage.socket)
        self.script.send("EVAL", "while true do end", "0")

    def during(self) -> None:
        # Who is refused asks again until it is told that all is well: nobody can ask Redis how often.
        until(lambda: "BUSY" in self.stage.log("evalq-worker"), "the worker hears of it")

    def end(self) -> None:
        self.stage.call("SCRIPT", "KILL")
        until(self.counted, "the script is gone")
        self.script.close()

    def counted(self) -> bool:
        try:
            self.struck = self.refusals()
            return True
        except Refused:
            return False


class Loading(State):
    """Started anew, with data that take it a while to read."""

    name, word = "loading", "LOADING"

    def begin(self) -> None:
        self.set("loading-process-events-interval-bytes", 1024)
        self.set("key-load-delay", 100000)
        self.reload = Redis(self.stage.socket)
        self.reload.send("DEBUG", "RELOAD")

    options = ("--enable-debug-command", "yes")

    def during(self) -> None:
        until(self.struck_enough, "loading strikes")
        self.struck = self.refusals()

    def struck_enough(self) -> bool:
        """Loads again if the data were read before enough calls met it."""
        if select.select([self.reload.socket], [], [], 0)[0]:
            self.reload.read()
            self.reload.send("DEBUG", "RELOAD")
        return self.refusals() >= self.enough

    def end(self) -> None:
        self.struck = self.refusals()
        self.set("key-load-delay", 0)
        until(self.loaded, "the data are read")
        self.reload.close()

    def loaded(self) -> bool:
        return b"\nloading:0" in self.stage.call("INFO", "persistence")


class Clients(State):
    """All connections are cut, many times over."""

    name = "connections killed"

    def begin(self) -> None:
        self.kills = 0

    def during(self) -> None:
        for _ in range(25):
            self.go()
            before = self.kills
            until(lambda: self.killed() > before, "somebody is connected")
        self.struck = self.kills

    def killed(self) -> int:
        self.kills += self.stage.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return self.kills

    def end(self) -> None:
        pass


class TooMany(State):
    """No connection is left for those whose own was cut."""

    name, word = "too many clients", "ERR"

    def begin(self) -> None:
        self.stage.call("CONFIG", "RESETSTAT")
        self.set("maxclients", 1)
        self.stage.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def during(self) -> None:
        def rejected() -> int:
            return int(re.search(rb"rejected_connections:(\d+)", self.stage.call("INFO", "stats")).group(1))  # type: ignore

        until(lambda: rejected() >= 5, "connections are refused")
        self.struck = rejected()

    def end(self) -> None:
        self.set("maxclients", 1000)


class Denied(State):
    """The user's permissions are taken away, and given back."""

    name, word = "permission taken away", "NOPERM"

    def begin(self) -> None:
        self.stage.call("ACL", "SETUSER", "default", "-fcall", "-fcall_ro")

    enough = 3

    def end(self) -> None:
        self.stage.call("ACL", "SETUSER", "default", "+fcall", "+fcall_ro")


class DeniedEarly(State):
    """Before a logger that runs has had its first result: it waits, as those do that had some."""

    name, word = "permission taken away before the first result", "NOPERM"

    def run(self) -> None:
        stage = self.stage
        stage.start_redis()
        stage.put("before", [1])
        logger = stage.start("evalq-logger")
        until(lambda: stage.count("evalq-logger", "event=logger_started") == 1, "the logger runs")
        stage.call("ACL", "SETUSER", "default", "-@all", "+acl", "+info")
        until(lambda: stage.count("evalq-logger", "event=sink_waits") >= 3 or logger.poll() is not None, "each sink is refused")
        self.struck = self.refusals()
        stage.call("ACL", "SETUSER", "default", "+@all")
        stage.put("after", [1])
        worker = stage.start("evalq-worker")
        until(lambda: stage.ended() and stage.taken() and self.recorded(), "every result is recorded")
        for program in (logger, worker):
            program.terminate()
            if program.wait(DEADLINE) != 0:
                raise AssertionError(f"a program ended with {program.returncode}")
        self.check()


class Flushed(State):
    """FLUSHALL: what runs is adopted, the rest is submitted again."""

    name = "flushed"
    lossy = True

    def begin(self) -> None:
        self.stage.call("FLUSHALL")
        self.struck = 1

    def during(self) -> None:
        pass

    def end(self) -> None:
        pass


class FlushedRegistering(State):
    """FLUSHALL between the first sink that a logger registers and the last: none is read before all are there again, else
    results that one sink has taken would be trimmed away before the others."""

    name = "flushed while sinks are registered"

    def run(self) -> None:
        stage = self.stage
        port = free_port()  # Over TCP, where MONITOR tells who calls.
        stage.start_redis("--port", str(port), "--bind", "127.0.0.1")
        stage.url = f"redis://127.0.0.1:{port}"
        stage.put("before", [1])  # The keyspace is there.
        [library] = stage.call("FUNCTION", "LIST", "WITHCODE")
        code = dict(zip(library[::2], library[1::2]))[b"library_code"].decode()
        opens = "local ok, problem = pcall(Queue.repairing, 'results', call, 'XGROUP', 'CREATE'"
        if code.count(opens) != 1:
            raise AssertionError("sink_open is not as this test knows it")
        # The second time: the first one is the logger's start, and then each sink sees to itself.
        flush = (
            "if args[1] == 'tensorboard' and redis.call('INCR', 'opened') == 2 then "
            "redis.call('FLUSHALL') redis.call('SET', 'opened', 100) end "
        )
        stage.call("FUNCTION", "LOAD", "REPLACE", code.replace(opens, flush + opens))
        monitor = Redis(stage.socket)
        monitor.call("MONITOR")
        logger = stage.start("evalq-logger")
        calls = self.after_flush(monitor)
        logger.terminate()
        logger.wait(DEADLINE)
        for sink in ("jsonl", "csv"):
            if not any("sink_open" in call and f'"{sink}"' in call for call in calls):
                raise AssertionError(f"after the flush the sink '{sink}' was not registered before another was read: {calls}")

    def after_flush(self, monitor: Redis) -> List[str]:
        """What the connection that flushed calls from then on until it reads."""
        caller = client = ""
        calls: List[str] = []
        while True:
            line = monitor.read().decode()
            who = line[line.index("[") : line.index("]") + 1] if "[" in line else ""
            if '"FLUSHALL"' in line:
                self.struck, client = 1, caller
            elif "sink_open" in line and client == "":
                caller = who
            elif who == client:
                calls.append(line[line.index("]") + 2 :])
                if "XREADGROUP" in line:
                    return calls


class Killed(State):
    """SIGKILL, and started again after the programs have missed it."""

    name = "killed"

    def begin(self) -> None:
        self.stage.hang_up()
        self.kill()

    def kill(self) -> None:
        assert self.stage.redis is not None
        self.stage.redis.kill()
        self.stage.redis.wait()

    def during(self) -> None:
        until(lambda: "redis_away" in self.stage.log("evalq-worker"), "the worker misses it")
        self.struck = 1

    def end(self) -> None:
        self.stage.start_redis(*self.options)

    def incr(self) -> str:
        directory = self.stage.path("appendonlydir")
        return os.path.join(directory, sorted(name for name in os.listdir(directory) if name.endswith(".incr.aof"))[-1])


class PowerLoss(Killed):
    """Cut back to what was on disk at the last sync, within a record: with `always` nothing acknowledged is lost."""

    name = "power lost (always)"
    options = ("--appendfsync", "always")

    def prepare(self) -> None:
        with open(self.stage.path("synced"), "wb") as file:
            file.write(bytes(8))
        preload = os.path.join(TOOLS, "libnote_sync.so")
        self.stage.redis_variables = {"EVQ_SYNC_FILE": self.stage.path("synced"), "LD_PRELOAD": preload}
        super().prepare()

    def kill(self) -> None:
        super().kill()
        with open(self.stage.path("synced"), "rb") as file:
            synced = int.from_bytes(file.read(), sys.byteorder)
        path = self.incr()
        if synced == 0:
            raise AssertionError("nothing was ever synced")
        self.cut = os.path.getsize(path) - synced
        os.truncate(path, synced + min(self.cut, 7))  # The first record that was not synced is torn.

    def during(self) -> None:
        super().during()
        self.struck = 1


class PowerLossLate(PowerLoss):
    """The same with a sync each second: what came after the last is lost, and a scan brings it again."""

    name = "power lost (everysec)"
    options = ("--appendfsync", "everysec")
    lossy = True

    def begin(self) -> None:
        until(lambda: any(open(self.stage.path("synced"), "rb").read()), "something is synced")
        assert self.stage.redis is not None
        pid = self.stage.redis.pid
        step = 5
        while True:  # Until one is acknowledged and not synced, which it is not while the server stands still.
            self.stage.put("before", [step])
            step += 1
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)
            with open(self.stage.path("synced"), "rb") as file:
                if os.path.getsize(self.incr()) > int.from_bytes(file.read(), sys.byteorder):
                    break
            os.kill(pid, signal.SIGCONT)
        super().begin()

    def during(self) -> None:
        super().during()
        self.struck = 1 if self.cut > 0 else 0


class OlderReplica(State):
    """The primary dies; a replica that had been cut off for a while takes its place."""

    name = "failover to an older replica"
    lossy = True

    def prepare(self) -> None:
        port = free_port()
        self.options = ("--port", str(port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
        super().prepare()
        directory = self.stage.path("replica")
        os.mkdir(directory)
        self.other = os.path.join(directory, "redis.sock")
        with open(os.path.join(directory, "log"), "wb") as log:
            words = ["--port", "0", "--unixsocket", self.other, "--dir", directory, "--save", ""]
            self.replica = subprocess.Popen(
                ["redis-server", *words, "--replicaof", "127.0.0.1", str(port)], stdout=log, stderr=log
            )
        until(self.synced, "the replica has everything")

    def synced(self) -> bool:
        try:
            self.link = Redis(self.other)
            return b"master_link_status:up" in self.link.call("INFO", "replication")
        except (OSError, Refused):
            return False

    def begin(self) -> None:
        self.stage.call("WAIT", 1, 5000)
        self.link.call("REPLICAOF", "NO", "ONE")
        self.stage.put("before", range(5, 15))  # Acknowledged, and then lost.
        self.stage.hang_up()
        assert self.stage.redis is not None
        self.stage.redis.kill()
        self.stage.redis.wait()
        os.replace(self.other, self.stage.socket)
        self.stage.redis = self.replica

    def during(self) -> None:
        self.struck = sum(1 for step in range(5, 15) if not self.stage.state("before", step, "echo"))

    def end(self) -> None:
        self.link.close()


class DiskFull(State):
    """The disk of the append-only file is full: Redis refuses writes, until there is room."""

    name, word = "disk full (everysec)", "MISCONF"
    options = ("--appendfsync", "everysec")

    def prepare(self) -> None:
        self.disk = SmallDisk(self.stage, "disk")
        self.options += ("--dir", self.disk.path)
        super().prepare()

    def begin(self) -> None:
        self.disk.fill()

    def end(self) -> None:
        self.disk.make_room()


class DiskFullAlways(DiskFull):
    """With `always` the server exits instead."""

    name = "disk full (always)"
    options = ("--appendfsync", "always")

    def during(self) -> None:
        assert self.stage.redis is not None
        until(lambda: self.stage.redis.poll() is not None, "the server exits")  # type: ignore
        self.stage.hang_up()
        self.struck = 1

    def end(self) -> None:
        self.disk.make_room()
        self.stage.start_redis(*self.options)


STATES = [
    Oom, ReadOnly, MasterDown, NoReplicas, NoFunctions, Busy, Loading, Clients, TooMany, Denied, DeniedEarly, Flushed,
    FlushedRegistering, Killed, PowerLoss, PowerLossLate, OlderReplica, DiskFull, DiskFullAlways,
]  # fmt: skip


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all("redis_states", STATES, arguments("what Redis can do to those who use it"), 20, 4))
