"""Finds source files that need each other in a circle: circles.py BUILD_DIRECTORY.

An object file needs another one if it uses a symbol that the other one defines. A circle means that
none of its files can be understood, tested or reused alone. Headers are checked by their includes.
Exits with 1 and names each circle with the symbols that tie it.
"""

import glob
import os
import re
import subprocess
import sys
from typing import Dict, List, Set

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ("evq_shared", "evq_producer", "evq_cli", "evq_gateway", "evq_worker", "evq_engine", "evq_logger", "evq_kernels_cpu")
Graph = Dict[str, Dict[str, List[str]]]  # From, to, and the names that tie them.


def needs_of_objects(build: str) -> Graph:
    """Which object of the product's libraries uses which symbols of which other object."""
    objects = [path for path in glob.glob(os.path.join(build, "**", "*.o"), recursive=True)
               if re.search(r"/(" + "|".join(LIBRARIES) + r")\.dir/", path)]
    if not objects:
        sys.exit(f"circles: '{build}' holds no objects: build first")
    defined: Dict[str, str] = {}
    used: Dict[str, Set[str]] = {}
    for path in objects:
        name = re.sub(r"CMakeFiles/[^/]*\.dir/", "", os.path.relpath(path, build))[:-2]
        for line in subprocess.check_output(["nm", path], text=True).splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in "TDBRC":
                defined[words[2]] = name
            elif len(words) == 2 and words[0] == "U":
                used.setdefault(name, set()).add(words[1])
    graph: Graph = {}
    for name, symbols in used.items():
        for symbol in sorted(symbols):
            other = defined.get(symbol, name)
            if other != name:
                graph.setdefault(name, {}).setdefault(other, []).append(symbol)
    return graph


def includes_of_headers() -> Graph:
    """Which header includes which other header of the project."""
    graph: Graph = {}
    for name in subprocess.check_output(["git", "-C", SOURCE, "ls-files", "*.h", "*.cuh"], text=True).split():
        with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
            for other in re.findall(r'^ *# *include *"([^"]+)"', file.read(), re.MULTILINE):
                graph.setdefault(name, {}).setdefault(other, []).append("include")
    return graph


def circles(graph: Graph) -> List[List[str]]:
    """Strongly connected sets of two or more files (Tarjan's algorithm)."""
    number: Dict[str, int] = {}
    low: Dict[str, int] = {}
    stack: List[str] = []
    found: List[List[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in graph.get(name, {}):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in list(graph):
        if name not in number:
            visit(name)
    return found


def main() -> int:
    sys.setrecursionlimit(10000)
    bad = 0
    for graph in (needs_of_objects(sys.argv[1]), includes_of_headers()):
        for circle in circles(graph):
            bad += 1
            print(f"circles: {len(circle)} files need each other: {', '.join(circle)}")
            for name in circle:
                for other, why in graph.get(name, {}).items():
                    if other in circle:
                        print(f"  {name} needs {other}: {', '.join(why[:6])}")
    if bad == 0:
        print("circles: none")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
