"""Tests the Redis roles as compose makes them. deploy/redis/secrets.sh writes the passwords, the ACL
file and the tokens, and redis-server runs with deploy/redis/redis.conf. A table says what each role
can call; everything else must answer NOPERM. Then every program does its job in its role, and
Redis' ACL log must have no refusal. All tests of this file share one server."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from typing import Any, Dict, List, Tuple

import yaml
from scene import BIN, DATA, DEADLINE, SOURCE, free_port, until

ROLES = ("init", "producer", "worker", "logger", "gateway", "viewer", "admin")
# These roles may change the queue's state.
QUEUE = ("producer", "worker", "logger", "gateway", "admin")
# Function that changes the queue -> the roles besides admin that may call it.
FUNCTIONS = {
    "adopt": ("worker",),
    "bad": ("logger",),
    "best_put": ("logger",),
    "cancel": ("producer", "gateway"),
    "claim": ("worker",),
    "complete": ("worker",),
    "complete_claim": ("worker",),
    "complete_many": ("worker",),
    "fail": ("worker",),
    "forget": (),
    "gc": (),
    "gpus": ("worker",),
    "heartbeat": ("worker",),
    "idle": ("producer",),
    "init": (),
    "leave": ("worker",),
    "limit": (),
    "loss_forget": (),
    "pause": ("gateway",),
    "publish": ("worker",),
    "put": ("producer", "gateway"),
    "release": ("worker",),
    "republish": (),
    "retry": ("gateway",),
    "samples_add": ("worker",),
    "samples_remove": ("logger",),
    "sink_ack": ("logger",),
    "sink_open": ("logger",),
    "sink_remove": (),
    "sink_replay": (),
    "sink_serve": ("logger",),
    "split": ("worker",),
    "submit": ("producer", "gateway"),
    "submit_batch": ("producer", "gateway"),
    "suite": ("worker",),
    "ticket_cancel": ("gateway",),
    "ticket_put": ("gateway",),
    "tickets": ("gateway",),
}

# The commands, and the roles that may use them.
TABLE: List[Tuple[Tuple[str, ...], Tuple[str, ...]]] = [
    (("PING",), ROLES),
    (("TIME",), ROLES),
    (("FCALL_RO", "evalq_v1_stats", "1", "evalq:{main}:"), ROLES),
    (("FCALL", "evalq_v1_pause", "1", "evalq:{main}:", "queue", "", "0"), ("gateway", "admin")),
    (("HGET", "evalq:{main}:meta", "epoch"), ROLES),
    (("HSET", "evalq:{main}:meta", "of-a-test", "1"), QUEUE),
    (("FUNCTION", "LIST"), ROLES),
    (("FUNCTION", "LOAD", "no library"), ("init", "admin")),
    (("FUNCTION", "DELETE", "nothing"), ("init", "admin")),
    (("BZPOPMIN", "evalq:{main}:none", "0.01"), ("worker", "admin")),
    (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "evalq:{main}:none", ">"), ("logger", "admin")),
    (("XAUTOCLAIM", "evalq:{main}:none", "g", "c", "0", "0"), ("logger", "admin")),
    (("XREAD", "COUNT", "1", "STREAMS", "evalq:{main}:none", "0"), ("logger", "gateway")),
    (("CONFIG", "GET", "maxmemory"), ("admin",)),
    (("CONFIG", "GET", "masterauth"), ("admin",)),
    (("CONFIG", "SET", "maxmemory-samples", "5"), ("admin",)),
    (("CLIENT", "KILL", "ID", "4294967295"), ("admin",)),
    (("ACL", "LIST"), ("admin",)),
    (("SCAN", "0"), ROLES[1:]),  # The function audit uses it, so names of keys are visible.
    # These keys belong to another queue. The role that installs the library may read the version of
    # any queue.
    (("HGET", "evalq:{other}:meta", "epoch"), ("init",)),
    (("FCALL_RO", "evalq_v1_stats", "1", "evalq:{other}:"), ("init",)),
    (("HSET", "evalq:{other}:meta", "x", "1"), ()),
    (("FCALL", "evalq_v1_pause", "1", "evalq:{other}:", "queue", "", "0"), ()),
    # These are keys of other programs, and commands of the server.
    (("GET", "mine"), ()),
    (("SET", "mine", "1"), ()),
    (("KEYS", "*"), ()),
    (("FLUSHALL",), ()),
    (("FLUSHDB",), ()),
    (("SWAPDB", "0", "1"), ()),
    (("EVAL", "return 1", "0"), ()),
    (("SCRIPT", "FLUSH"), ()),
    (("FUNCTION", "FLUSH"), ()),
    (("ACL", "SETUSER", "worker", "+@all"), ()),
    (("ACL", "SAVE"), ()),
    (("CONFIG", "REWRITE"), ()),
    (("REPLICAOF", "127.0.0.1", "1"), ()),
    (("MIGRATE", "127.0.0.1", "1", "evalq:{main}:meta", "0", "1"), ()),
    (("MODULE", "LIST"), ()),
    (("MONITOR",), ()),
    (("SUBSCRIBE", "all"), ()),
    (("PUBLISH", "all", "x"), ()),
    (("SAVE",), ()),
    (("SHUTDOWN", "NOSAVE"), ()),
]

CONFIG = """
redis: {queue: main}
roots: {checkpoints: $DIR/checkpoints}
suites:
  heldout:
    tasks:
      - {name: digits, type: classification, model: {activation: relu},
         data: {format: idx, inputs: $DATA/t10k-images-idx3-ubyte.gz, labels: $DATA/t10k-labels-idx1-ubyte.gz, scale: 1/255, limit: 64}}
worker: {scratch: $DIR/scratch, devices: cpu}
logger: {directory: $DIR/results}
"""


class Wire:
    """The test has its own connection, because redis-cli would continue as the default user if AUTH
    fails."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def call(self, *words: str) -> Any:
        out = [f"*{len(words)}\r\n".encode()]
        for word in words:
            out.append(f"${len(word.encode())}\r\n".encode() + word.encode() + b"\r\n")
        self.socket.sendall(b"".join(out))
        return self.reply()

    def reply(self) -> Any:
        line = self.file.readline().decode().rstrip("\r\n")
        kind, text = line[:1], line[1:]
        if kind == "$":
            return None if text == "-1" else self.file.read(int(text) + 2)[:-2].decode()
        if kind == "*":
            return [self.reply() for _ in range(max(0, int(text)))]
        return line  # The answer is a line such as "+OK", "-NOPERM ..." or ":1".

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class RolesTest(unittest.TestCase):
    directory = ""
    socket = ""
    server: "subprocess.Popen[bytes]"

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.mkdtemp(prefix="evalq-roles-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        for name in ("checkpoints", "data"):
            os.mkdir(cls.path(name))
        cls.make_secrets()
        with open(cls.path("evalq.yaml"), "w", encoding="utf-8") as file:
            file.write(CONFIG.replace("$DIR", cls.directory).replace("$DATA", DATA))
        places = {"dir": cls.path("data"), "aclfile": cls.path("secrets/users.acl")}
        with open(SOURCE + "/deploy/redis/redis.conf", encoding="utf-8") as file:
            lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
        with open(cls.path("redis.conf"), "w", encoding="utf-8") as file:
            for words in lines:
                file.write(" ".join([words[0], places.pop(words[0])] if words[0] in places else words) + "\n")
        assert not places, places
        cls.socket = cls.path("redis.sock")
        cls.start()
        done = cls.evalq("init", "admin", "install")
        assert done.returncode == 0, done.stderr

    @classmethod
    def start(cls) -> None:
        with open(cls.path("redis.log"), "ab") as log:
            cls.server = subprocess.Popen(
                ["redis-server", cls.path("redis.conf"), "--bind", "127.0.0.1", "--port", "0", "--unixsocket", cls.socket],
                stdout=log,
                stderr=log,
            )
        cls.addClassCleanup(cls.end, cls.server)
        until(lambda: cls.connects(), "redis-server listens")

    @classmethod
    def make_secrets(cls) -> None:
        environment = dict(os.environ, PATH=BIN + ":" + os.environ["PATH"], EVALQ_GROUP=str(os.getgid()))
        words = ["sh", SOURCE + "/deploy/redis/secrets.sh", cls.path("secrets"), cls.path("monitoring")]
        subprocess.run(words, env=environment, cwd=cls.directory, check=True, capture_output=True)

    @classmethod
    def connects(cls) -> bool:
        done = subprocess.run(["redis-cli", "-s", cls.socket, "ping"], capture_output=True, check=False)
        return done.stdout.startswith(b"NOAUTH")

    @classmethod
    def path(cls, name: str) -> str:
        return os.path.join(cls.directory, name)

    @classmethod
    def read(cls, name: str) -> str:
        with open(cls.path(name), encoding="utf-8") as file:
            return file.read().strip()

    @staticmethod
    def end(process: "subprocess.Popen[bytes]") -> int:
        process.terminate()
        try:
            return process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    @classmethod
    def environment(cls, role: str) -> Dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVALQ_")}
        kept.update(EVALQ_URL=f"unix://{role}@{cls.socket}", EVALQ_CONFIG=cls.path("evalq.yaml"))
        kept.update(EVALQ_REDIS_PASSWORD_FILE=cls.path("secrets/" + role))
        return kept

    @classmethod
    def evalq(cls, role: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [BIN + "/evalq", *words],
            env=cls.environment(role),
            cwd=cls.directory,
            text=True,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )

    def wire(self, role: str) -> Wire:
        wire = Wire(self.socket)
        self.addCleanup(wire.close)
        self.assertEqual(wire.call("AUTH", role, self.read("secrets/" + role)), "+OK", role)
        return wire

    def program(self, role: str, name: str, *words: str) -> "subprocess.Popen[bytes]":
        with open(self.path(name + ".log"), "ab") as log:
            process = subprocess.Popen([f"{BIN}/{name}", *words], env=self.environment(role), cwd=self.directory, stdout=log, stderr=log)
        self.addCleanup(self.end, process)
        return process

    def test_each_role_has_exactly_the_permissions_of_the_table(self) -> None:
        admin = self.wire("admin")
        wrong = []
        for role in ROLES:
            for words, allowed in TABLE:
                # Each command gets a new connection, so no command changes the state for the next
                # one.
                wire = Wire(self.socket)
                self.assertEqual(wire.call("AUTH", role, self.read("secrets/" + role)), "+OK")
                answer = wire.call(*words)
                wire.close()
                refused = isinstance(answer, str) and ("NOPERM" in answer or "can't access" in answer)
                if refused == (role in allowed):
                    wrong.append(f"{role}: {' '.join(words)}: {answer!r:.200}")
        admin.call("HDEL", "evalq:{main}:meta", "of-a-test")
        self.assertFalse(wrong, "\n".join(wrong))

    def test_each_role_calls_the_functions_of_its_program_and_no_other(self) -> None:
        listed = self.wire("admin").call("FUNCTION", "LIST", "LIBRARYNAME", "evalq_v1")
        functions = [dict(zip(entry[::2], entry[1::2])) for entry in dict(zip(listed[0][::2], listed[0][1::2]))["functions"]]
        self.assertEqual({f["name"][len("evalq_v1_") :] for f in functions if "+no-writes" not in f["flags"]}, set(FUNCTIONS))
        wrong = []
        for role in ROLES:
            wire = self.wire(role)
            for function in functions:
                name, reads = function["name"], "+no-writes" in function["flags"]
                if reads and role == "init":
                    # This role may read the version and little else, because Redis also checks the
                    # commands inside a function.
                    continue
                may = reads or role == "admin" or role in FUNCTIONS[name[len("evalq_v1_") :]]
                # No function accepts so many arguments, so an allowed function refuses them before
                # it changes anything.
                answer = wire.call("FCALL_RO" if reads else "FCALL", name, "1", "evalq:{main}:", *["\x01"] * 200)
                if (isinstance(answer, str) and "NOPERM" in answer) == may:
                    wrong.append(f"{role}: {name}: {answer!r:.200}")
        self.assertFalse(wrong, "\n".join(wrong))

    def test_a_missing_permission_names_the_role_that_has_it(self) -> None:
        for words, role in (
            (("pause",), "admin"),
            (("resume",), "admin"),
            (("cancel", "a/1/regular/heldout"), "producer"),
            (("gc",), "admin"),
        ):
            refused = self.evalq("viewer", *words)
            self.assertNotEqual(refused.returncode, 0, words)
            self.assertIn("NOPERM", refused.stderr, words)
            self.assertIn("(`evalq admin acl` prints the permissions of each role)", refused.stderr)
            self.assertIn(f"; `evalq {words[0]}` needs the role {role}\n", refused.stderr)
            allowed = self.evalq(role, *words)
            self.assertNotIn("NOPERM", allowed.stderr)
        self.assertEqual(self.evalq("viewer", "status").returncode, 0)

    def test_a_wrong_password_is_not_called_a_missing_role(self) -> None:
        refused = subprocess.run(
            [BIN + "/evalq", "status"],
            env={**self.environment("viewer"), "EVALQ_REDIS_PASSWORD": "wrong"},
            cwd=self.directory,
            text=True,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("WRONGPASS", refused.stderr)
        self.assertIn("of redis.password_file", refused.stderr)
        self.assertNotIn("needs the role", refused.stderr)

    def test_every_connection_needs_a_password(self) -> None:
        wire = Wire(self.socket)
        self.addCleanup(wire.close)
        self.assertTrue(wire.call("PING").startswith("-NOAUTH"))
        self.assertTrue(wire.call("AUTH", "default", "").startswith("-WRONGPASS"))
        for role in ROLES:
            self.assertTrue(wire.call("AUTH", role, "").startswith("-WRONGPASS"), role)
            self.assertTrue(wire.call("AUTH", role, self.read("secrets/" + ROLES[ROLES.index(role) - 1])).startswith("-WRONGPASS"), role)
        self.assertTrue(wire.call("PING").startswith("-NOAUTH"))

    def test_secrets_are_made_once_each_its_own_and_not_in_the_acl_file(self) -> None:
        names = ["secrets/" + role for role in ROLES] + ["secrets/gateway.tokens", "secrets/users.acl"]
        names += ["monitoring/metrics.token", "monitoring/grafana.password"]
        before = {name: self.read(name) for name in names}
        self.make_secrets()
        self.assertEqual(before, {name: self.read(name) for name in names})
        self.assertEqual(len(set(before.values())), len(names))
        for role in ROLES:
            self.assertEqual(len(before["secrets/" + role]), 64)
            self.assertNotIn(before["secrets/" + role], before["secrets/users.acl"])
        for name in names:
            if not name.endswith("users.acl"):
                self.assertEqual(stat.S_IMODE(os.stat(self.path(name)).st_mode), 0o440, name)

    def test_writes_of_functions_survive_a_restart(self) -> None:
        """Redis replays its append-only file with the permissions of the default user."""
        path = self.path("checkpoints/kept.safetensors")
        shutil.copy(os.path.join(DATA, "mlp_784_512_128_32_10.safetensors"), path)
        self.check("producer", 0, "submit", path, "--run", "kept", "--step", "1", "--suite", "of-nobody")
        self.server.kill()
        self.server.wait()
        self.start()
        self.assertIn("queued", self.evalq("viewer", "show", "kept/1/regular/of-nobody").stdout)
        with open(self.path("redis.log"), encoding="utf-8", errors="replace") as file:
            self.assertNotIn("AOF-loading-client", file.read())
        self.check("admin", 0, "forget", "kept", "--yes")

    def test_doctor_reports_missing_permissions_of_the_default_user(self) -> None:
        self.assertNotIn("default user", self.evalq("admin", "doctor").stdout)
        os.mkdir(self.path("old"))
        with open(self.path("old/users.acl"), "w", encoding="utf-8") as file:
            file.write(self.read("secrets/users.acl").replace("resetpass ~* &* +@all", "resetpass -@all"))
        words = ["redis-server", "--port", "0", "--unixsocket", self.path("old/redis.sock"), "--dir", self.path("old")]
        with open(self.path("old/redis.log"), "ab") as log:
            server = subprocess.Popen([*words, "--appendonly", "yes", "--aclfile", self.path("old/users.acl")], stdout=log, stderr=log)
        self.addCleanup(self.end, server)
        url = "unix://admin@" + self.path("old/redis.sock")
        until(lambda: self.evalq("admin", "--url", url, "admin", "install").returncode == 0, "the other server answers")
        done = self.evalq("admin", "--url", url, "doctor")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, r"fail +default user +it may not do everything")

    def test_an_acl_file_of_an_older_version_is_replaced(self) -> None:
        acl = self.read("secrets/users.acl")
        default = acl.replace("user default off resetpass ~* &* +@all", "user default off resetpass resetchannels resetkeys -@all")
        gateway = re.sub(r"(?m)^(user gateway .*) \S+\|evalq_v1_pause", r"\1", acl)
        for old in (default, gateway):
            self.assertNotEqual(old, acl)
            os.chmod(self.path("secrets/users.acl"), 0o644)
            with open(self.path("secrets/users.acl"), "w", encoding="utf-8") as file:
                file.write(old)
            self.make_secrets()
            self.assertEqual(self.read("secrets/users.acl"), acl)

    def test_tokens_of_an_older_deployment_stay_when_monitoring_comes(self) -> None:
        tokens = self.read("secrets/gateway.tokens")
        self.assertRegex(tokens, r"^compose write [0-9a-f]{64}\nprometheus read [0-9a-f]{64}$")
        os.unlink(self.path("secrets/gateway.tokens"))
        with open(self.path("secrets/gateway.tokens"), "w", encoding="utf-8") as file:
            file.write(tokens.split("\n")[0] + "\n")
        self.make_secrets()
        self.assertEqual(self.read("secrets/gateway.tokens"), tokens)

    def test_every_program_does_its_job_as_its_role(self) -> None:
        admin = self.wire("admin")
        shutil.copy(os.path.join(DATA, "mlp_784_512_128_32_10.safetensors"), self.path("checkpoints/1.safetensors"))
        began = time.monotonic()
        self.program("worker", "evalq-worker")
        self.program("logger", "evalq-logger")
        port = free_port()
        self.program("gateway", "evalq-gateway", "--listen", f"127.0.0.1:{port}", "--tokens", self.path("secrets/gateway.tokens"))
        until(lambda: self.evalq("viewer", "admin", "suite", "list").stdout.find("heldout") >= 0, "the worker offers its suite")
        self.check("producer", 0, "submit", self.path("checkpoints/1.safetensors"), "--run", "r", "--step", "1", "--suite", "heldout")
        self.check("producer", 0, "wait", "r", "--timeout", "60")
        until(lambda: self.forwarded() > 0, "the logger wrote the result")
        for words in (["status"], ["results", "r"], ["best", "r"], ["show", "r/1/regular/heldout"], ["dead"], ["doctor"]):
            self.check("viewer", 0, *words)
        for words in (["pause"], ["resume"], ["forget", "r", "--yes"], ["cancel", "r/1/regular/heldout", "--yes"]):
            self.check("viewer", 6, *words)
        self.check("admin", 0, "pause")
        self.check("admin", 0, "resume")
        self.gateway(port)
        # The log has the four rejected calls of the viewer, and no others.
        lasted = time.monotonic() - began
        entries = [dict(zip(entry[::2], entry[1::2])) for entry in admin.call("ACL", "LOG")]
        self.assertEqual([e for e in entries if float(e["age-seconds"]) < lasted and e["username"] != "viewer"], [])
        self.assertTrue([e for e in entries if float(e["age-seconds"]) < lasted])

    def check(self, role: str, code: int, *words: str) -> None:
        done = self.evalq(role, *words)
        self.assertEqual(done.returncode, code, f"{role}: {words}: {done.stdout}{done.stderr}")

    def forwarded(self) -> int:
        found = 0
        for at, _, names in os.walk(self.path("results")):
            for name in names:
                if name.endswith(".jsonl"):
                    with open(os.path.join(at, name), encoding="utf-8") as file:
                        found += sum(1 for line in file if line.endswith("\n") and json.loads(line))
        return found

    def gateway(self, port: int) -> None:
        """Reads the metrics with the token that compose gives to Prometheus, and the health with
        the command that compose uses."""
        with open(SOURCE + "/deploy/compose.yaml", encoding="utf-8") as file:
            test = yaml.safe_load(file)["services"]["gateway"]["healthcheck"]["test"]
        probe = [word.replace("$$", "$").replace("/8000", f"/{port}") for word in test[1:]]
        self.assertEqual(test[0], "CMD")
        until(lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0, "the gateway is healthy")
        gone = [word.replace(f"/{port}", f"/{free_port()}") for word in probe]
        self.assertNotEqual(subprocess.run(gone, capture_output=True, check=False).returncode, 0)
        token = self.read("monitoring/metrics.token")
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": "Bearer " + token})
        with urllib.request.urlopen(request, timeout=DEADLINE) as reply:
            self.assertIn(b"evalq_redis_up", reply.read())
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/jobs/r/1/regular/heldout/retry", b"{}",
                                           headers={**request.headers, "Content-Type": "application/json"})
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=DEADLINE)
        caught.exception.close()
        self.assertEqual(caught.exception.code, 403)


if __name__ == "__main__":
    unittest.main()
