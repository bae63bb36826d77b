"""How many instructions the server executes for a job of each queue verb: figures that repeat on a busy machine.

    python3 tests/bench/count_queue.py LIBRARY... [--jobs N]     needs redis-server, valgrind

LIBRARY is the joined Lua of a build, BUILD/shared/functions_text.c.lua; several are counted one after another. `floor` stands
for no library: an empty function with a submit's arguments, and the 13 commands of a submit with nothing around them.
Counts are of the whole server: sockets, parsing, Lua and its collector, commands. Records of 272 bytes, 100 runs.
"""
import argparse
import socket
import subprocess
import tempfile
import time

import callgrind

PREFIX = "evalq:{main}:"
RUNS = 100
RECORD = b"\x8f" + b"r" * 271
FLOOR = """#!lua name=floor
local function of(args)
    local run, step = args[1], args[3]
    return run .. '/regular/quick', run .. '/' .. step .. '/regular/quick', run, step
end
redis.register_function('empty', function(keys, args) return { 'queued', 'id', 'queued' } end)
redis.register_function('submit', function(keys, args)
    local call, P, now = redis.call, keys[1], '1700000000000'
    local flow, id, run, step = of(args)
    call('TIME')
    call('HMGET', P .. 'flow:' .. flow, 'policy', 'session', 'ord', 'top', 'gens', 'ledger', 'submitted')
    call('EXISTS', P .. 'job:' .. id)
    call('HMGET', P .. 'class', 'quick *', 'every:quick')
    call('HSET', P .. 'flow:' .. flow, 'submitted', now, 'top', step)
    call('SET', P .. 'msg:' .. id, args[13])
    call('ZADD', P .. 'open:' .. flow, step, step)
    call('HSET', P .. 'job:' .. id, 'run', run, 'step', step, 'variant', 'regular', 'suite', 'quick', 'class', '1',
        'priority', '2', 'place', step, 'submitted', now, 'fingerprint', args[9], 'state', 'queued')
    call('ZADD', P .. 'wait:' .. flow .. ':1:2', step, step)
    call('ZSCORE', P .. 'ready:1:2', flow)
    call('HINCRBY', P .. 'n', 'submitted', '1')
    call('HINCRBY', P .. 'n', 'queued:1', '1')
    call('HINCRBY', P .. 'run:' .. run, 'n:queued', '1')
    return { 'queued', id, 'queued' }
end)
"""


class Server:
    """A redis-server under callgrind, on a socket in a directory of its own."""

    def __init__(self):
        self.counter = callgrind.Counter()
        self.dir = tempfile.TemporaryDirectory()
        path = self.dir.name + "/socket"
        self.process = subprocess.Popen(
            [*self.counter.words, "redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", self.dir.name,
             "--hz", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        self.socket = socket.socket(socket.AF_UNIX)
        while self.socket.connect_ex(path) != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("count_queue: redis-server does not start under valgrind")
            time.sleep(0.05)
        self.file = self.socket.makefile("rb")

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()
        self.dir.cleanup()
        self.counter.close()

    def read(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise SystemExit("count_queue: redis-server answers " + rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(max(int(rest), 0))]
        return int(rest) if kind == b":" else rest

    def many(self, commands):
        out = []
        for words in commands:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            out.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        self.socket.sendall(b"".join(out))
        return [self.read() for _ in commands]

    def call(self, *words):
        return self.many([words])[0]

    def count(self, work):
        """Instructions while work runs."""
        return self.counter.count(self.process.pid, work)


def submit_words(at, step, runs=RUNS):
    return ("run-%03d" % (at % runs), 1, (step + at // runs) * 100, "regular", "quick", "all", 2, 0, "1" * 32, 0, "", 0, RECORD)


class Queue:
    """The verbs over `jobs` jobs each; a step is never submitted twice."""

    def __init__(self, server, jobs):
        self.server, self.jobs, self.step, self.requests, self.held = server, jobs, 0, 0, []

    def fcall(self, name, *words):
        return ("FCALL", name, 1, PREFIX) + words

    def submit(self, name="evalq_v1_submit"):
        for low in range(0, self.jobs, 64):
            self.server.many([self.fcall(name, *submit_words(at, self.step)) for at in range(low, min(self.jobs, low + 64))])
        self.step += self.jobs // RUNS + 1

    def submit_batch(self, runs=RUNS):
        for low in range(0, self.jobs, 100):
            words = [word for at in range(low, low + 100) for word in submit_words(at, self.step, runs)]
            self.server.call(*self.fcall("evalq_v1_submit_batch", 100, *words))
        self.step += self.jobs // runs + 1

    def submit_batch_of_one(self):
        self.submit_batch(1)

    def claim(self):
        self.requests += 1
        return self.server.call(*self.fcall("evalq_v1_claim", "worker-1", "r%d" % self.requests, 15000, 16, 1, 1))[4:]

    def claim_all(self):
        rows = self.claim()
        while rows:
            self.held.append(rows)
            rows = self.claim()

    def complete_all(self):
        for rows in self.held:
            words = [word for row in rows for word in (row[0], row[1], "")]
            self.server.call(*self.fcall("evalq_v1_complete_many", len(rows), *words))
        self.held = []


def count_library(path, jobs):
    server = Server()
    try:
        server.call("FUNCTION", "LOAD", FLOOR if path == "floor" else open(path, "rb").read())
        queue = Queue(server, jobs)
        if path == "floor":
            queue.submit("submit")  # What the first calls cost is not counted.
            return [(name, server.count(lambda name=name: queue.submit(name)) / jobs) for name in ("empty", "submit")]
        server.call(*queue.fcall("evalq_v1_suite", "quick", "d" * 32, "", 1, 1, "{}", "here", "register", "worker-1"))
        for warm in (queue.submit, queue.claim_all, queue.complete_all):
            warm()
        rows = (("submit, 64 in flight", queue.submit), ("claim 16", queue.claim_all),
                ("complete_many of 16", queue.complete_all), ("submit, 100 a call", queue.submit_batch),
                (None, queue.claim_all), (None, queue.complete_all),
                ("submit, 100 a call, one run", queue.submit_batch_of_one),
                ("claim 16, one run", queue.claim_all), ("complete_many of 16, one run", queue.complete_all))
        return [(name, count / jobs) for name, count in [(name, server.count(work)) for name, work in rows] if name]
    finally:
        server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+")
    parser.add_argument("--jobs", type=int, default=800)
    given = parser.parse_args()
    for path in given.library:
        print(path)
        for name, count in count_library(path, given.jobs // 100 * 100):
            print("  %-30s %9.0f instructions a job" % (name, count), flush=True)


if __name__ == "__main__":
    main()
