"""One round's directory with its Redis, its proxy, its programs, and what may be done to them. Each process dies with this
one; each is ended by its pid."""

from __future__ import annotations

import collections
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, Iterable, List, Optional

import history

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREFIX = "evalq:{main}:"
PR_SET_PDEATHSIG = 1
UNREACHABLE = 5  # How a program ends that finds no Redis when it starts (docs/troubleshooting.md),
INTERRUPTED = 130  # and one that is told to stop meanwhile.
TOLD = (0, -signal.SIGTERM, UNREACHABLE, INTERRUPTED)  # How one ends that is told to. All but 0: it had only begun.
libc = ctypes.CDLL(None)


class Broken(Exception):
    """The round has failed."""


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def until(condition: Callable[[], Any], what: str, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Broken(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


class Member:
    """A program of the round: started again when it was killed, done when it ends by itself and may."""

    def __init__(self, site: "Site", kind: str, name: str, words: List[str], ends: bool, environment: Optional[Dict[str, str]] = None) -> None:
        self.site, self.kind, self.name, self.words, self.ends = site, kind, name, words, ends
        self.environment = environment
        self.process: Optional[subprocess.Popen] = None
        self.wake_at = 0.0  # Monotonic; 0: it is not stopped.
        self.done = False
        self.start()

    def start(self) -> None:
        with open(self.site.path(self.name + ".log"), "ab") as log:
            self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.site.directory,
                                            env=self.environment, preexec_fn=die_with_parent)

    def wake(self) -> None:
        if self.wake_at > 0:
            self.wake_at = 0.0
            os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.wake_at = 0.0
        self.site.counts["kill " + self.kind] += 1
        self.start()

    def drain(self) -> None:
        """An orderly end, and a new start."""
        self.wake()
        self.process.terminate()
        self.look(self.process.wait(120), TOLD)
        self.site.counts["drain " + self.kind] += 1
        self.start()

    def pause(self, seconds: float) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        self.wake_at = time.monotonic() + seconds
        self.site.counts["pause " + self.kind] += 1

    def look(self, code: Optional[int], good: Any = (0,)) -> None:
        if code is not None and code not in good:
            with open(self.site.path(self.name + ".log"), encoding="utf-8", errors="replace") as log:
                raise Broken(f"{self.name} ended by itself with {code}: {log.read()[-600:]}")

    def tend(self) -> None:
        """Wakes it in time; sees whether it has ended."""
        if self.wake_at > 0 and time.monotonic() >= self.wake_at:
            self.wake()
        if self.done or self.process.poll() is None:
            return
        if self.process.returncode == UNREACHABLE:
            self.site.counts["again " + self.kind] += 1  # As systemd and compose do.
            self.start()
            return
        self.look(self.process.returncode)
        if not self.ends:
            raise Broken(f"{self.name} ended by itself")
        self.done = True

    def stop(self) -> None:
        if not self.done:
            self.wake()
            self.process.terminate()
            self.look(self.process.wait(120), TOLD)
            self.done = True


def counted(lines: Iterable[str]) -> Dict[str, int]:
    """What a proxy prints of its counts."""
    words = [line.rsplit(" ", 1) for line in lines if " " in line]
    return {name: int(number) for name, number in words}


class Proxy:
    """A fault_proxy of the round, told what to do on its standard input."""

    def __init__(self, site: "Site", listen: str, rules: List[str], words: List[str]) -> None:
        self.listen = listen
        self.process = subprocess.Popen([site.program("fault_proxy"), "--listen", listen, "--to", site.socket, "--seed", str(site.seed), *words, *rules],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        if not self.process.stdout.readline().startswith("listening"):
            raise Broken("the proxy does not listen")

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def counts(self) -> Dict[str, int]:
        """Until now: "requests VERB" and "fault KIND VERB"."""
        self.say("counts")
        return counted(iter(self.process.stdout.readline, "end\n"))

    def close(self) -> Dict[str, int]:
        """Its counts at its end."""
        text, _ = self.process.communicate("quit\n", 60)
        if self.process.returncode != 0:
            raise Broken(f"the proxy ended with {self.process.returncode}")
        return counted(text.splitlines())


class Site:
    def __init__(self, build: str, seed: int, fsync: str) -> None:
        self.build, self.seed, self.fsync = build, seed, fsync
        self.directory = tempfile.mkdtemp(prefix="evq-fault-")
        self.socket = self.path("redis.sock")
        self.counts: Dict[str, int] = collections.Counter()
        self.members: List[Member] = []
        self.redis: Optional[subprocess.Popen] = None
        self.asker: Optional[history.Redis] = None
        self.proxy: Optional[Proxy] = None
        self.tracer: Optional[subprocess.Popen] = None
        self.marked = time.monotonic()
        os.mkdir(self.path("ckpt"))

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def program(self, name: str) -> str:
        return os.path.join(self.build, "bin", name)

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        fd = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def took(self, phase: str) -> None:
        """Counts the milliseconds since the phase before."""
        before, self.marked = self.marked, time.monotonic()
        self.counts["took " + phase] = int(1000 * (self.marked - before))

    # ---- Redis ----

    def redis_start(self) -> None:
        self.redis = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", self.directory, "--logfile", "redis.log",
                                       "--save", "", "--daemonize", "no", "--appendonly", "yes", "--appendfsync", self.fsync, "--no-appendfsync-on-rewrite", "no",
                                       "--auto-aof-rewrite-percentage", "0"],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def redis_answers(self) -> bool:
        try:
            redis = history.Redis(self.socket)
            redis.call("PING")
            redis.close()
            return True
        except (OSError, RuntimeError):
            return False

    def redis_kill(self) -> bool:
        self.redis.kill()
        self.redis.wait()
        self.counts["kill redis"] += 1
        self.redis_start()
        return True

    def ask(self, *words: Any) -> Any:
        """A command beside the proxy; None while Redis is away."""
        try:
            if self.asker is None:
                self.asker = history.Redis(self.socket)
            return self.asker.call(*words)
        except (OSError, RuntimeError):
            if self.asker is not None:
                self.asker.close()
            self.asker = None
            return None

    def open_jobs(self) -> Optional[int]:
        """Jobs that have not ended; None: Redis cannot say."""
        reply = self.ask("HGETALL", PREFIX + "n")
        if reply is None:
            return None
        return sum(int(reply[i + 1]) for i in range(0, len(reply), 2) if reply[i].split(b":")[0] in (b"queued", b"delayed", b"running"))

    def ended_jobs(self) -> Optional[List[int]]:
        """How many jobs have ended in each way; None: Redis cannot say."""
        numbers = [self.ask("ZCARD", PREFIX + "ended:" + state) for state in history.STATES_ENDED]
        return None if None in numbers else numbers

    def sinks_behind(self, sinks: List[str]) -> int:
        """Entries that some sink has not acknowledged; -1: Redis cannot say."""
        groups = self.ask("XINFO", "GROUPS", PREFIX + "results")
        if groups is None:
            return -1
        behind = 0
        for group in groups:
            fields = {history.text(group[i]): group[i + 1] for i in range(0, len(group), 2)}
            if history.text(fields["name"]) in sinks:
                behind += fields["pending"] + (1 if fields["lag"] is None else fields["lag"])
        return behind

    # ---- the round ----

    def begin(self, rules: List[str], wire: bool) -> None:
        self.redis_start()
        until(self.redis_answers, "Redis answers", 120)
        installed = subprocess.run([self.program("evalq"), "admin", "install", "--url", "unix://" + self.socket], capture_output=True, text=True, check=False)
        if installed.returncode != 0:
            raise Broken(installed.stderr)
        self.ask("FCALL", "evalq_v1_init", 1, PREFIX)
        self.ask("FCALL", "evalq_v1_sink_open", 1, PREFIX, "keeper")  # It never acknowledges: nothing is trimmed.
        words = ["--history", self.path("wire.history"), "--name", "wire"] if wire else []
        self.proxy = Proxy(self, self.path("proxy.sock"), rules, words)
        self.url = "unix://" + self.proxy.listen

    def mutate(self, changes: Dict[str, str]) -> None:
        """Puts other words into the function library that is installed; each must be there once."""
        library = self.ask("FUNCTION", "LIST", "LIBRARYNAME", "evalq_v1", "WITHCODE")[0]
        code = history.text({history.text(library[i]): library[i + 1] for i in range(0, len(library), 2)}["library_code"])
        for words, others in changes.items():
            if code.count(words) != 1:
                raise Broken(f"the library holds '{words}' {code.count(words)} times")
            code = code.replace(words, others)
        if self.ask("FUNCTION", "LOAD", "REPLACE", code) != b"evalq_v1":
            raise Broken("the other library is refused")

    def trace(self) -> None:
        script = os.path.join(SOURCE, "tests", "faults", "history.py")
        self.tracer = subprocess.Popen(["python3", "-B", script, "trace", self.socket, self.path("trace.history")], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        if self.tracer.stdout.readline() != b"ready\n":
            raise Broken("the trace does not begin")

    def trace_end(self) -> None:
        if self.tracer is not None:
            self.tracer.stdin.close()
            self.tracer.stdout.close()
            if self.tracer.wait(120) != 0:
                raise Broken("the trace failed")

    def add(self, kind: str, name: str, words: List[str], ends: bool = False, environment: Optional[Dict[str, str]] = None) -> Member:
        member = Member(self, kind, name, words, ends, environment)
        self.members.append(member)
        return member

    def tend(self) -> None:
        for member in self.members:
            member.tend()
        if self.redis.poll() is not None:
            raise Broken(f"Redis ended by itself with {self.redis.returncode}")

    def close(self, keep: bool) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.process.kill()
                member.process.wait()
        for process in (self.tracer, self.proxy.process if self.proxy is not None else None, self.redis):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)
