#!/usr/bin/env python3
"""Secrets of their own kind are planted where evalq takes secrets: the password of Redis in a file and in the
environment, the key of a certificate, tokens of the gateway, the key of a webhook, user, password and token of MLflow, the key
of W&B, which its helper alone is to have. All programs work and fail
with them, at the log level debug. Then none may stand in a log, in what a program prints, in the arguments of a process,
in the environment of a child, in a job's log, in a file of results, or anywhere in Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Dict, Iterator, List, Tuple

from stage import BIN, CONFIG, DEADLINE, Redis, Stage, arguments, free_port, until
from tls import Authority

SECRETS = {
    name: f"planted-{name}-{os.urandom(12).hex()}"
    for name in ("redis", "wrong", "gateway", "webhook", "mlflow-password", "mlflow-token", "wandb")
}
SINKS = (
    "{kind: jsonl}, {kind: webhook, url: 'http://127.0.0.1:1/hook', secret_file: $SITE/webhook, allow_private: true}, "
    "{name: one, kind: mlflow, uri: 'http://127.0.0.1:1', username: me, password_file: $SITE/mlflow-password}, "
    "{name: two, kind: mlflow, uri: 'http://127.0.0.1:1', token_file: $SITE/mlflow-token}, "
    "{kind: wandb, command: [$SITE/wandb.sh]}"
)
REDIS = "redis: {password_file: redis, tls: {ca: $SITE/tls/ca.pem, cert: $SITE/tls/127.0.0.1.pem, key: $SITE/tls/127.0.0.1.key}}\n"
# Takes what it gets and does not answer before it is let go; then says no, as the SDK does with a wrong key.
HELPER = """#!/bin/sh
touch "$SITE/helper"
while read -r line; do
    while [ ! -e "$SITE/seen" ]; do sleep 0.02; done
    case $line in *flush*) echo '{"error": "the key was refused"}' ;; esac
done
"""
WAITS = '#!/bin/sh\nenv\ntouch "$SITE/started"\nwhile [ ! -e "$SITE/go" ]; do sleep 0.02; done\necho \'{"value": 1}\' >"$EVALQ_RESULT"\n'


class Planted(Stage):
    """Its Redis wants a password, and its connection gives it."""

    def __init__(self) -> None:
        config = CONFIG.replace("{kind: jsonl}, {kind: csv}, {kind: tensorboard}, {kind: best, enabled: false}", SINKS + ", {kind: best, enabled: false}")
        super().__init__(config + REDIS)  # The password's file is beside that of configuration.
        self.authority = Authority(self.path("tls"))
        with open(self.authority.key, encoding="ascii") as file:
            self.key = file.read()
        SECRETS["tls"] = self.key.splitlines()[1]  # The first line of what it holds.
        self.started: List["subprocess.Popen[bytes]"] = []
        for name, secret in SECRETS.items():
            if name not in ("tls", "wandb"):
                self.write(name, secret + "\n", 0o600)
        self.write("wandb.sh", HELPER.replace("$SITE", self.directory), 0o755)
        self.write("tokens", f"me write {SECRETS['gateway']}\n", 0o600)
        self.write("echo.sh", WAITS.replace("$SITE", self.directory), 0o755)
        self.pages: List[Tuple[str, bytes]] = []  # What was seen, and where.
        self.helpers = 0  # Of W&B, that had its key.

    def begin(self) -> None:
        self.port = free_port()
        files = [self.authority.ca, self.authority.certificate, self.authority.key]
        names = ["--tls-ca-cert-file", "--tls-cert-file", "--tls-key-file"]
        self.start_redis("--tls-port", str(self.port), "--bind", "127.0.0.1", *(word for pair in zip(names, files) for word in pair))
        self.connection = Redis(self.socket)
        self.call("CONFIG", "SET", "requirepass", SECRETS["redis"])

    def look(self, where: str, data: bytes) -> None:
        self.pages.append((where, data))

    def say(self, *words: str, **variables: str) -> int:
        done = subprocess.run(
            [os.path.join(BIN, words[0]), *words[1:]], env=dict(self.environment(), **variables), cwd=self.directory,
            capture_output=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
        self.look(" ".join(words), done.stdout + done.stderr)
        return done.returncode

    def family(self) -> Iterator[Tuple[int, int]]:
        """pid and parent of all that came from here."""
        parents: Dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                        parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
                except OSError:
                    pass
        mine = {process.pid for process in self.started}
        grown = True
        while grown:
            grown = False
            for pid, parent in parents.items():
                if parent in mine and pid not in mine:
                    mine.add(pid)
                    grown = True
        for pid in mine:
            yield pid, parents.get(pid, 0)

    def is_helper(self, pid: int) -> bool:
        """Or of its group."""
        with open(f"/proc/{os.getpgid(pid)}/cmdline", "rb") as file:
            return b"wandb.sh" in file.read()

    def look_at_processes(self) -> int:
        """Arguments of all; the environment of those that a program of evalq's started. How many of the latter."""
        children = 0
        started = {process.pid for process in self.started}
        for pid, _ in self.family():
            for what in ("cmdline", "environ") if pid not in started else ("cmdline",):
                try:
                    with open(f"/proc/{pid}/{what}", "rb") as file:
                        data = file.read()
                        if what == "environ" and self.is_helper(pid):
                            self.helpers += SECRETS["wandb"].encode() in data
                            data = data.replace(SECRETS["wandb"].encode(), b"")
                        self.look(f"{what} of {pid}", data)
                        children += what == "environ"
                except OSError:
                    pass
        return children

    def look_at_redis(self) -> int:
        cursor, keys = b"0", 0
        while True:
            cursor, names = self.call("SCAN", cursor, "COUNT", 1000)
            for name in names:
                keys += 1
                self.look("key", name)
                self.look("value of " + name.decode(errors="replace"), self.everything(name))
            if cursor == b"0":
                return keys

    def everything(self, name: bytes) -> bytes:
        read = {
            b"string": ("GET", name), b"hash": ("HGETALL", name), b"list": ("LRANGE", name, 0, -1),
            b"set": ("SMEMBERS", name), b"zset": ("ZRANGE", name, 0, -1), b"stream": ("XRANGE", name, "-", "+"),
        }  # fmt: skip
        return flat(self.call(*read[self.call("TYPE", name)]))

    def look_at_files(self) -> int:
        """All but the files of secrets themselves and what Redis writes."""
        files = 0
        for place, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(place, name)
                if name in SECRETS or name == "tokens" or name.endswith(".key") or not os.path.isfile(path) or "appendonly" in path:
                    continue
                files += 1
                with open(path, "rb") as file:
                    self.look(os.path.relpath(path, self.directory), file.read())
        return files

    def found(self) -> List[str]:
        return sorted({f"{name} in {where}" for where, data in self.pages for name, secret in SECRETS.items() if secret.encode() in data})


def flat(value: object) -> bytes:
    if isinstance(value, list):
        return b"\n".join(flat(item) for item in value)
    return value if isinstance(value, bytes) else str(value).encode()


def ask(port: int, token: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/queue", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as fault:
        return fault.code
    except OSError:
        return 0


def run(stage: Planted) -> None:
    stage.begin()
    started = stage.started
    stage.put("run", [1, 2])
    stage.put("run", [1], "native")
    port = free_port()
    stage.variables = {"WANDB_API_KEY": SECRETS["wandb"]}
    started.append(stage.start("evalq-logger", "--log-level", "debug"))
    stage.variables = {"EVALQ_REDIS_PASSWORD": SECRETS["redis"]}  # And by the environment.
    started.append(stage.start("evalq-worker", "--log-level", "debug"))
    started.append(stage.start("evalq-gateway", "--log-level", "debug", "--listen", f"127.0.0.1:{port}", "--tokens", stage.path("tokens")))
    stage.variables = {}
    until(lambda: os.path.exists(stage.path("started")), "an evaluation runs")
    until(lambda: ask(port, SECRETS["gateway"]) == 200, "the gateway serves")
    children = stage.look_at_processes()
    stage.write("go", "")
    until(stage.ended, "the jobs end")
    until(lambda: os.path.exists(stage.path("helper")), "the helper of W&B is asked")
    children += stage.look_at_processes()
    stage.write("seen", "")
    until(lambda: all(f"sink={name} " in stage.log("evalq-logger") for name in ("webhook", "one", "two", "wandb")), "the sinks fail")
    over_tls = ["evalq", "status", "--url", f"rediss://127.0.0.1:{stage.port}"]
    if stage.say(*over_tls) != 0:
        raise AssertionError(f"evalq status over TLS: {stage.pages[-1][1].decode()}")
    for words in (["status"], ["doctor"], ["show", "run/1/regular/echo", "--json"], ["logs", "run/1/regular/echo"], ["results", "run"]):
        stage.say("evalq", *words)
    # And what goes wrong: a wrong password by each way, a wrong token, a secret that everybody may read, one in a URL.
    wrong = {"EVALQ_REDIS_PASSWORD": SECRETS["wrong"]}
    codes = [stage.say("evalq", "status", **wrong)]
    for key in (stage.key[:150] + "\n", stage.key.replace("PRIVATE", "PUBLIC"), stage.key[:40] + stage.key[41:]):
        stage.write("tls/127.0.0.1.key", key, 0o600)
        codes.append(stage.say(*over_tls))
    stage.write("redis", SECRETS["wrong"] + "\n", 0o600)
    for program in (["evalq", "status"], ["evalq-worker"], ["evalq-logger"], ["evalq", "doctor"]):
        codes.append(stage.say(*program))
    stage.say("evalq", "status", "--url", f"redis://user:{SECRETS['wrong']}@127.0.0.1:1")
    stage.write("redis", SECRETS["redis"] + "\n", 0o644)
    codes.append(stage.say("evalq", "status"))
    if 0 in codes:
        raise AssertionError(f"something worked that must not: {codes}")
    if ask(port, SECRETS["wrong"]) != 401:
        raise AssertionError("the gateway takes any token")
    for process in started:
        process.terminate()
    for process in started:
        process.wait(DEADLINE)
    keys, files = stage.look_at_redis(), stage.look_at_files()
    if not children or not keys or not files or not stage.helpers:
        raise AssertionError(f"looked at {children} children, {keys} keys, {files} files")
    found = stage.found()
    if found:
        raise AssertionError("found: " + "; ".join(found))
    total = sum(len(data) for _, data in stage.pages)
    print(f"secrets: {len(SECRETS)} planted, none in {children} children (W&B's key in its helper's environment alone), {keys} keys, {files} files, {total} bytes")


def main() -> int:
    arguments("secrets that must stay where they are")
    stage = Planted()
    try:
        run(stage)
    except AssertionError as fault:
        print(f"FAIL secrets: {fault}")
        print(stage.log("evalq-logger")[-3000:])
        return 1
    finally:
        stage.close()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
