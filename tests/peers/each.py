"""Runs tests of this folder, each in a process of its own; ends with what passed, what failed, and what was not run and why.

    python each.py LOGS [--resume] [TEST[:CASE[,CASE...]]...]     such as test_serve or test_trouble:DiskTest

LOGS takes the output of each test and what became of it. --resume leaves out what passed when it was last run, of whatever tree.
Without a TEST all are run, mypy and the wheel's too. Ends with 1 when anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
FOLDERS = (HERE, os.path.join(os.path.dirname(HERE), "python"))
SECONDS = 7200.0  # Of one test: long after its own deadlines.
PACKAGES = ("torch", "transformers", "lightning", "accelerate", "peft", "deepspeed", "lm_eval", "lmms_eval")

Outcome = Dict[str, Any]  # outcome, reason, tests, seconds, commit


def all_names() -> List[str]:
    own = sorted(name[:-3] for name in os.listdir(HERE) if name.startswith("test_") and name.endswith(".py"))
    return ["mypy", *own, "test_wheel"]


def command(name: str, cases: List[str]) -> Tuple[List[str], str]:
    """The words of a test and where it runs."""
    if name == "mypy":
        return [sys.executable, "-m", "mypy", "--strict", "evalq", "build_backend"], os.path.join(SOURCE, "producer", "python")
    for folder in FOLDERS:
        path = os.path.join(folder, name + ".py")
        if os.path.exists(path):
            return [sys.executable, "-W", "ignore", path, "-v", *cases], SOURCE
    raise SystemExit(f"there is no test '{name}', expected one of {' '.join(all_names())}")


def run(name: str, cases: List[str], logs: str) -> Outcome:
    argv, place = command(name, cases)
    print(f"== {name} {' '.join(cases)}".rstrip(), flush=True)
    began = time.monotonic()
    late = threading.Event()
    text: List[str] = []
    with open(os.path.join(logs, name + ".log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            argv, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
        )

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(SECONDS, end)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                for file in (log, sys.stdout):
                    file.write(line)
                    file.flush()
                text.append(line)
            code = process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # evalq up, too, ends what it started.
            process.wait()
            raise
        finally:
            timer.cancel()
    outcome = judge(code, "".join(text))
    if late.is_set():
        outcome.update(outcome="failed", reason=f"did not end within {SECONDS:g} s")
    return dict(outcome, seconds=round(time.monotonic() - began, 1), commit=commit())


def judge(code: int, text: str) -> Outcome:
    """By how it ended and what unittest says of it. Ending with 77 is the same as skipping all."""
    lines = re.findall(r"^ *(.*) \.\.\. skipped ['\"](.*)['\"]$", text, re.MULTILINE)
    skipped = [reason for _, reason in lines]
    # The skipped parts of one test are one skipped test: "  test_a (Case.test_a) [part]".
    missed = len({re.sub(r"^(\S+ \(\S+\)).*", r"\1", name) for name, _ in lines})
    if code == 77:
        skipped += re.findall(r"^not run: (.*)$", text, re.MULTILINE) or ["it did not say why"]
    ran = re.search(r"^Ran (\d+) tests? in", text, re.MULTILINE)
    tests = int(ran.group(1)) if ran and code != 77 else 0
    reason = "; ".join(dict.fromkeys(each.removeprefix("not run: ") for each in skipped))
    if code == 77 or (code in (0, 5) and ran and tests <= missed):
        return {"outcome": "not run", "reason": reason, "tests": 0}
    if code != 0:
        wrong = re.findall(r"^(?:FAIL|ERROR): (\S+)", text, re.MULTILINE)
        said = text.strip().splitlines()
        why = ", ".join(dict.fromkeys(wrong)) or (said[-1] if said else "")
        return {"outcome": "failed", "reason": f"ended with {code}: {why}", "tests": tests}
    if skipped:
        reason = f"{missed} skipped: {reason}"
    return {"outcome": "passed", "reason": reason, "tests": tests - missed}


def commit() -> str:
    done = subprocess.run(
        ["git", "-C", SOURCE, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = ["python " + ".".join(map(str, sys.version_info[:3]))]
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


def summary(names: List[str], known: Dict[str, Outcome], seconds: float) -> int:
    """Printed; the exit status. What an interrupted run did not come to is said too."""
    counts: Dict[str, int] = {}
    print(f"\n== summary: {commit()}, {versions()}; {seconds:.0f} s")
    for name in names:
        made: Optional[Outcome] = known.get(name)
        if made is None:
            made = {"outcome": "not run", "reason": "it was not come to", "tests": 0, "seconds": 0.0, "commit": ""}
        counts[made["outcome"]] = counts.get(made["outcome"], 0) + 1
        word = "NOT RUN" if made["outcome"] == "not run" else made["outcome"]
        line = f"{word:8} {name:18} {made['tests']:4} tests {made['seconds']:7.1f} s  {made['reason']}"
        print(line.rstrip() + (f" (at {made['commit']})" if made["commit"] not in ("", commit()) else ""))
    print(", ".join(f"{counts.get(outcome, 0)} {outcome}" for outcome in ("passed", "failed", "not run")), flush=True)
    return 1 if counts.get("failed") else 0


def stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("tests", nargs="*")
    given = parser.parse_intermixed_args()
    os.makedirs(given.logs, exist_ok=True)
    path = os.path.join(given.logs, "outcomes.json")
    known: Dict[str, Outcome] = {}
    if given.resume and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            known = {name: made for name, made in json.load(file).items() if made["outcome"] == "passed"}
    chosen = {name: cases.split(",") if cases else [] for name, _, cases in (test.partition(":") for test in given.tests)}
    chosen = chosen or {name: [] for name in all_names()}
    for name, cases in chosen.items():
        command(name, cases)  # A wrong name is said before anything runs.
    signal.signal(signal.SIGTERM, stop)
    began = time.monotonic()
    status = 1
    try:
        for name, cases in chosen.items():
            if name in known and not cases:
                print(f"== {name}: passed before")
                continue
            known[name] = run(name, cases, given.logs)
            if not cases:
                keep(path, name, known[name])
    except KeyboardInterrupt:
        print("\ninterrupted; --resume goes on")
    finally:
        status = summary(list(chosen), known, time.monotonic() - began)
    return status


def keep(path: str, name: str, made: Outcome) -> None:
    known: Dict[str, Outcome] = {}
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        known = json.load(file)
    known[name] = made
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(known, file, indent=1)
    os.rename(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main())
