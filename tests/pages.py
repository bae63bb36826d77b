"""Every link of the pages leads to a file here, and to a heading of it where it names one; lines of prose are at most 160 columns wide."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COLUMNS_MAX = 160


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
    for number, line in prose(page):
        if len(line) > COLUMNS_MAX and not line.startswith(("|", "    ")):
            yield f"line {number} has {len(line)} columns, allowed {COLUMNS_MAX}"


def main():
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = [f"{name}: {fault}" for name in names for fault in faults(ROOT / name)]
    for fault in found:
        print(f"pages: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
