"""Mutation of the guards: guards.txt names each, with the test that must fail without it. See run.sh."""
import functools
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "faults"))
from done import Done  # noqa: E402

COPY = ROOT / "build" / "mutants" / "tree"
BUILD = ROOT / "build" / "mutants" / "build"
TRIED = ROOT / "build" / "mutants" / "tried"  # A line for each entry and commit.
ONLY = BUILD / "only.so"
SECONDS = 120  # For one case.
PROGRAMS = ("evalq-worker", "evalq-logger", "evalq-gateway", "evalq_cli", "evalq", "publish_results")


def guards():
    """Yields (file, test program, test case, text, text instead) of each entry of guards.txt."""
    for entry in (ROOT / "tests/mutants/guards.txt").read_text().split("\n\n"):
        lines = [line for line in entry.split("\n") if line and not line.startswith("#")]
        if not lines:
            continue
        file, program, case = lines[0].split()
        before = "\n".join(line[2:] for line in lines[1:] if line.startswith("- "))
        after = "\n".join(line[2:] for line in lines[1:] if line.startswith("+ "))
        yield file, program, case, before, after


def test_source(program):
    """The file of a test program."""
    places = [ROOT / "tests/python" / program] + [ROOT / "tests" / kind / (program + ".c") for kind in ("unit", "integration")]
    return next(place for place in places if place.is_file())


def copy_tree():
    """The tracked files as they are now, and no others, so that nothing of the working tree is touched."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    names = {name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()}
    for path in [path for path in COPY.rglob("*") if path.is_file() and str(path.relative_to(COPY)) not in names]:
        path.unlink()  # Of an earlier commit: CMake would build it still.
    for name in sorted(names):
        source, target = ROOT / name, COPY / name
        if not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    subprocess.run(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DEVQ_TESTS=ON", "-DEVQ_CUDA=OFF", *launcher],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", ONLY, ROOT / "tests/mutants/only.c"], check=True)


def build(program):
    """The program under test and the programs that it starts; the end of the compiler's words when it fails."""
    source = test_source(program)
    alone = source.parent.name == "unit" and "EVQ_TEST_BIN" not in source.read_text()
    targets = ([] if program.endswith(".py") else [program]) + ([] if alone else list(PROGRAMS))
    done = subprocess.run(["ninja", "-j2", "-C", BUILD, *targets], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout[-400:]


def case_fails(program, case):
    """Runs one case: whether it failed (None: no end in time), and the end of what it said."""
    environment = {**os.environ, "EVALQ_TEST_BUILD": str(BUILD), "EVALQ_TEST_DEADLINE": "30", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, COPY / "tests/python" / program, "-k", case]
    if not program.endswith(".py"):
        command = [BUILD / "bin" / program]
        environment.update(EVQ_TEST_ONLY=case, LD_PRELOAD=str(ONLY))
    test = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=BUILD, env=environment,
                            start_new_session=True)
    try:
        said = test.communicate(timeout=SECONDS)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(test.pid, signal.SIGKILL)
        return None, test.communicate()[0].decode(errors="replace")
    if not re.search(r"^\[ RUN      \] %s$|^Ran [1-9]" % case, said, re.M):
        return None, "no such case was run"
    failed = re.search(r"^(\[ +(FAILED|ERROR) +\] %s$|(FAIL|ERROR): %s )" % (case, case), said, re.M)
    return bool(failed) or test.returncode < 0, said


@functools.lru_cache(maxsize=None)
def passes_unchanged(program, case):
    """What is wrong with the case where no guard is missing; None: it passes."""
    problem = build(program)
    if problem:
        return problem
    failed, said = case_fails(program, case)
    return None if failed is False else said[-400:]


def try_one(file, program, case, before, after):
    """Says what became of one mutant: noticed, or how not."""
    path = COPY / file
    text = path.read_text()
    if text.count(before) != 1:
        return "NOT THERE", "its text is there %d times" % text.count(before)
    problem = passes_unchanged(program, case)
    if problem:
        return "FAILS ANYHOW", problem
    path.write_text(text.replace(before, after))
    try:
        problem = build(program)
        if problem:
            return "NOT BUILT", problem
        failed, said = case_fails(program, case)
    finally:
        path.write_text(text)
    if failed is None:
        return "HUNG", "no end in %d s" % SECONDS
    return ("noticed", "") if failed else ("SURVIVED", said[-400:])


def texts_are_there():
    """1 where the code has moved on from an entry of guards.txt: that guard would be tried no more."""
    gone = [guard for guard in guards() if (ROOT / guard[0]).read_text().count(guard[3]) != 1]
    for file, program, case, before, _ in gone:
        print("mutants: %s does not hold this text once, of %s %s: %s" % (file, program, case, before.strip()), file=sys.stderr)
    unnamed = [guard for guard in guards() if not re.search(r"\b%s\(" % guard[2], test_source(guard[1]).read_text())]
    for _, program, case, _, _ in unnamed:
        print("mutants: %s has no case %s" % (program, case), file=sys.stderr)
    return 1 if gone or unnamed else 0


def commit_here():
    """HEAD, and whether tracked files differ from it: nobody knows later what was tried then."""
    describe = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.run(describe, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def try_and_note(guard, commit, done, resume):
    """The outcome of one entry, also written to TRIED; what was noticed at this commit is not tried again by a resumed run."""
    key = hashlib.sha256("\n".join(guard).encode()).hexdigest()[:16]
    point = " ".join(("", commit, key, *guard[:3]))
    if resume and not commit.endswith("-dirty") and done.has("noticed" + point):
        return "noticed", "before"
    outcome, detail = try_one(*guard)
    done.add(outcome + point)
    return outcome, detail


def main():
    words = sys.argv[1:]
    if words == ["--texts"]:
        return texts_are_there()
    resume = words[:1] == ["--resume"]
    words = words[resume:] or [""]
    commit = commit_here()
    chosen = [guard for guard in guards() if any(word in " ".join(guard) for word in words)]
    copy_tree()
    done = Done(str(TRIED))
    counts = {}
    for guard in chosen:
        outcome, detail = try_and_note(guard, commit, done, resume)
        counts[outcome] = counts.get(outcome, 0) + 1
        print("%-9s %s: %s" % (outcome, guard[0], " ".join(guard[3].split())[:100]))
        print("          %s %s%s" % (guard[1], guard[2], " (%s)" % detail if detail else ""), flush=True)
    print("%d mutants: %s" % (len(chosen), ", ".join("%d %s" % (n, o) for o, n in sorted(counts.items()))))
    return 0 if chosen and set(counts) == {"noticed"} else 1


if __name__ == "__main__":
    sys.exit(main())
