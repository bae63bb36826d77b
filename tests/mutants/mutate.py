"""Mutation of the guards: guards.txt names each, with the test that must fail without it. See run.sh."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants" / "tree"
BUILD = ROOT / "build" / "mutants" / "build"
SECONDS = 300  # For one test program.


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


def copy_tree():
    """The tracked files as they are now, so that nothing of the working tree is touched."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in names.decode().split("\0"):
        source, target = ROOT / name, COPY / name
        if name and source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    subprocess.run(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DEVQ_TESTS=ON", "-DEVQ_CUDA=OFF", *launcher],
                   check=True, stdout=subprocess.DEVNULL)


def build(program):
    """The program under test and the programs that it starts; the end of the compiler's words when it fails."""
    targets = [program] + (["evalq-worker"] if "worker" in program else [])
    done = subprocess.run(["ninja", "-j2", "-C", BUILD, *targets], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout[-400:]


def failed_cases(program):
    """Names of the cases that failed, and whether the program ended in time: a mutant can make a later case hang."""
    try:
        done = subprocess.run([BUILD / "bin" / program], capture_output=True, timeout=SECONDS, cwd=BUILD,
                              env={**os.environ, "EVALQ_TEST_BUILD": str(BUILD), "EVALQ_TEST_DEADLINE": "30"})
        ended = True
    except subprocess.TimeoutExpired as late:
        done, ended = late, False
    said = ((done.stdout or b"") + (done.stderr or b"")).decode(errors="replace")
    return sorted(set(re.findall(r"^\[  FAILED  \] (\w+)$", said, re.M))), ended


def try_one(file, program, case, before, after):
    """Says what became of one mutant: noticed, or how not."""
    path = COPY / file
    text = path.read_text()
    if text.count(before) != 1:
        return "NOT THERE", "its text is there %d times" % text.count(before)
    path.write_text(text.replace(before, after))
    try:
        problem = build(program)
        if problem:
            return "NOT BUILT", problem
        failed, ended = failed_cases(program)
    finally:
        path.write_text(text)
    if case in failed:
        return "noticed", ", ".join(failed[:4])
    if not ended:
        return "HUNG", "no end in %d s" % SECONDS
    return "SURVIVED", "failed instead: " + (", ".join(failed) or "nothing")


def texts_are_there():
    """1 where the code has moved on from an entry of guards.txt: that guard would be tried no more."""
    gone = [guard for guard in guards() if (ROOT / guard[0]).read_text().count(guard[3]) != 1]
    for file, program, case, before, _ in gone:
        print("mutants: %s does not hold this text once, of %s %s: %s" % (file, program, case, before.strip()), file=sys.stderr)
    return 1 if gone else 0


def main():
    if sys.argv[1:] == ["--texts"]:
        return texts_are_there()
    words = sys.argv[1:] or [""]
    chosen = [guard for guard in guards() if any(word in " ".join(guard) for word in words)]
    copy_tree()
    counts = {}
    for guard in chosen:
        outcome, detail = try_one(*guard)
        counts[outcome] = counts.get(outcome, 0) + 1
        print("%-9s %s: %s" % (outcome, guard[0], " ".join(guard[3].split())[:100]))
        print("          %s %s (%s)" % (guard[1], guard[2], detail), flush=True)
    print("%d mutants: %s" % (len(chosen), ", ".join("%d %s" % (n, o) for o, n in sorted(counts.items()))))
    return 0 if chosen and set(counts) == {"noticed"} else 1


if __name__ == "__main__":
    sys.exit(main())
