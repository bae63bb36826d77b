"""Checks the pages: every link leads to a file and heading, lines are short, the files and functions that the
READMEs, docs/architecture.md and docs/CONTRIBUTING.md name exist, and the documentation site lists every page."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COLUMNS_MAX = 100
DESIGN = re.compile(r"README\.md$|^docs/(architecture|CONTRIBUTING)\.md$")  # Pages that explain the code.
SITE = ROOT / "deploy" / "site" / "mkdocs.yml"


def prose(page):
    """The lines of a page with their numbers, less fenced code, in which neither links nor headings count."""
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def headings(page):
    """The anchors that GitHub gives a page's headings."""
    titles = (line.lstrip("#").strip().lower() for _, line in prose(page) if re.match(r"#+ ", line))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def faults(page):
    """Yields what is wrong with a page."""
    text = "\n".join(line for _, line in prose(page))
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists():
            yield f"the link '{link}' leads to no file"
        elif anchor and anchor not in headings(target):
            yield f"the link '{link}' leads to no heading"
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield f"line {number} has {len(line)} columns, allowed {COLUMNS_MAX}"


def missing_names(page, files):
    """Yields the files and functions that a page names and the tree does not have. A README also names files from its
    own folder on, and a file without a folder can be anywhere."""
    names = {pathlib.PurePath(name).name for name in files}
    for name in sorted(set(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))):
        if re.fullmatch(r"[a-z_]+/[A-Za-z0-9_/.*-]+", name) and not name.startswith("build/"):
            if not any(True for folder in (ROOT, page.parent) for _ in folder.glob(name.replace("NAME", "*"))):
                yield f"'{name}' does not exist"
        elif re.fullmatch(r"[a-z0-9_-]+\.(c|h|cu|cuh|lua|py|sh|cmake)", name) and name not in names:
            yield f"no file has the name '{name}'"
        elif re.fullmatch(r"[a-z0-9_]+\(\)", name):
            search = ["git", "grep", "-qw", name[:-2], "--", "*.c", "*.h", "*.lua", "*.py"]
            if subprocess.run(search, cwd=ROOT, check=False).returncode != 0:
                yield f"no source has a function '{name}'"


def unlisted_pages():
    """Yields the pages of docs/ that the navigation of the documentation site does not name."""
    names = set(re.findall(r"[\w-]+\.md", SITE.read_text(encoding="utf-8")))
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name not in names:
            yield f"the navigation lacks docs/{page.name}"


def main():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    names = [name for name in files if name.endswith(".md")]
    found = [f"{name}: {fault}" for name in names for fault in faults(ROOT / name)]
    found += [f"{name}: {fault}" for name in names if DESIGN.search(name) for fault in missing_names(ROOT / name, files)]
    found += [f"deploy/site/mkdocs.yml: {fault}" for fault in unlisted_pages()]
    for fault in found:
        print(f"pages: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
