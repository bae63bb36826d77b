"""Each mutant of tests/mutants/guards.txt must compile, or load into Redis; otherwise it proves
nothing. tests/mutants/run.sh runs the tests with the mutants."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import unittest
from typing import Dict, List, Tuple

from scene import BUILD, SOURCE, scene

sys.path.insert(0, os.path.join(SOURCE, "tests", "mutants"))
from mutate import guards  # noqa: E402


def mutants(ending: str) -> List[Tuple[str, str, str]]:
    """Returns (file, text, text without the guard) for each entry with such a file."""
    found = []
    for file, _, _, before, after in guards():
        if file.endswith(ending):
            text = pathlib.Path(SOURCE, file).read_text(encoding="utf-8")
            found.append((file, text, text.replace(before, after)))
    return found


def compile_words() -> Dict[str, List[str]]:
    """Returns for each C file the command that checks source code from standard input."""
    said = subprocess.run(["ninja", "-C", BUILD, "-t", "compdb"], capture_output=True, check=True).stdout
    found = {}
    for one in json.loads(said):
        words = shlex.split(one["command"])
        if one["file"].endswith(".c") and "-MD" in words:
            found[os.path.relpath(one["file"], SOURCE)] = words[: words.index("-MD")] + ["-fsyntax-only", "-x", "c", "-"]
    return found


def complaint(file: str, words: List[str], text: str) -> str:
    """Returns the compiler's errors; "": none."""
    done = subprocess.run(words, cwd=BUILD, input=text, capture_output=True, text=True, check=False)
    return f"{file}: {done.stderr}" if done.returncode != 0 else ""


class Mutants(unittest.TestCase):
    def test_c_compiles(self) -> None:
        words = compile_words()
        tried = [(file, words[file], without) for file, _, without in mutants(".c") if file in words]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            said = list(pool.map(lambda one: complaint(*one), tried))
        self.assertEqual([text for text in said if text], [])
        self.assertGreater(len(tried), 200)

    def test_lua_loads(self) -> None:
        path = pathlib.Path(BUILD, "shared", "functions_text.c.lua")
        whole = path.read_text(encoding="utf-8")
        tried = mutants(".lua")
        with scene("roots: {out: $OUT}\n") as here:
            for file, text, without in tried:
                self.assertEqual(whole.count(text), 1, file)
                load = ["redis-cli", "-s", here.socket, "-x", "FUNCTION", "LOAD", "REPLACE"]
                done = subprocess.run(load, input=whole.replace(text, without).encode(), capture_output=True, check=True)
                self.assertEqual(done.stdout.strip(), b"evalq_v1", file)
        self.assertGreater(len(tried), 100)

    def test_python_compiles(self) -> None:
        tried = mutants(".py")
        for file, _, without in tried:
            compile(without, file, "exec")
        self.assertGreater(len(tried), 20)


if __name__ == "__main__":
    unittest.main()
