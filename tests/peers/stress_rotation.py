"""The example of a Trainer that keeps one checkpoint, again and again, while Redis is killed, stopped and emptied.

    python tests/peers/stress_rotation.py [SECONDS [SEED]]

Whatever happens, training ends well and each of its four evaluations comes to it; none is `skipped: vanished`. Not a
test of the suite: it takes as long as it is given (default 300 s) and prints what it did. Ends with 1 when anything
was lost.
"""

from __future__ import annotations

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))
from scene import BIN, PACKAGE, SOURCE  # noqa: E402

EXAMPLES = os.path.join(SOURCE, "producer", "examples")


def environment(directory: str) -> Dict[str, str]:
    path = os.pathsep.join([os.path.dirname(sys.executable), BIN, os.environ["PATH"]])
    made = dict(os.environ, PATH=path, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TMPDIR=directory)
    return dict(made, XDG_STATE_HOME=os.path.join(directory, "state"))


def redis_pid(up: int) -> int:
    """Of the redis-server that `evalq up` runs; 0: there is none now."""
    try:
        with open(f"/proc/{up}/task/{up}/children", encoding="utf-8") as file:
            for pid in file.read().split():
                with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
                    if comm.read().startswith("redis-server"):
                        return int(pid)
    except OSError:
        pass
    return 0


def disturb(what: str, directory: str, up: int, pause: float) -> bool:
    pid = redis_pid(up)
    if pid == 0:
        return False
    if what == "kill":
        os.kill(pid, signal.SIGKILL)
    elif what == "stop":
        os.kill(pid, signal.SIGSTOP)
        time.sleep(pause)
        os.kill(pid, signal.SIGCONT)
    else:
        state = os.path.join(directory, ".evalq")
        with open(os.path.join(state, "password"), encoding="utf-8") as file:
            password = file.read().strip()
        words = ["redis-cli", "-s", os.path.join(state, "redis.sock"), "--no-auth-warning", "-a", password, "FLUSHALL"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return True


def once(directory: str, faults: List[str], generator: random.Random) -> List[str]:
    """One training; what was wrong with it."""
    done: List[str] = []
    log_path = os.path.join(directory, "log")
    with open(log_path, "wb") as log:
        up = subprocess.Popen(
            [os.path.join(BIN, "evalq"), "up", "--", "python", "transformers_trainer.py"],
            cwd=directory, env=environment(directory), stdout=log, stderr=log,
        )  # fmt: skip
        until = time.monotonic() + 180
        for fault in faults:
            wake = time.monotonic() + generator.uniform(0.2, 8)
            while time.monotonic() < wake and up.poll() is None:
                time.sleep(0.05)
            if up.poll() is None and disturb(fault, directory, up.pid, generator.uniform(0.1, 3)):
                done.append(fault)
        try:
            code = up.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            up.terminate()
            up.wait(60)
            code = -1
    with open(log_path, encoding="utf-8", errors="replace") as file:
        said = file.read()
    wrong = [] if code == 0 else [f"ended with {code}"]
    for step in (50, 100, 150, 200):
        if f"step {step:>4}: eval_loss" not in said:
            wrong.append(f"no evaluation of step {step}")
    for name in glob.glob(os.path.join(directory, ".evalq", "results", "**", "*.jsonl"), recursive=True):
        with open(name, encoding="utf-8") as file:
            for entry in map(json.loads, file):
                if entry.get("state") in ("skipped", "dead"):
                    wrong.append(f"{entry.get('job')} {entry.get('state')}: {entry.get('reason')}")
    if wrong:
        print(said[-6000:])
    print("faults:", " ".join(done) or "none", "->", "; ".join(wrong) or "all there", flush=True)
    return wrong


def main(arguments: List[str]) -> int:
    seconds = float(arguments[0]) if arguments else 300.0
    seed = int(arguments[1]) if len(arguments) > 1 else int(time.time())
    generator = random.Random(seed)
    print("seed", seed)
    end = time.monotonic() + seconds
    runs = bad = 0
    while time.monotonic() < end:
        directory = tempfile.mkdtemp(prefix="evalq-stress-")
        try:
            for name in ("transformers_trainer.py", "evalq.yaml"):
                shutil.copy(os.path.join(EXAMPLES, name), directory)
            faults = [generator.choice(["kill", "kill", "stop", "flush"]) for _ in range(generator.randrange(4))]
            bad += bool(once(directory, faults, generator))
            runs += 1
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{runs} trainings, {bad} of them with something lost")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
