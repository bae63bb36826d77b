"""Hooks of mkdocs: the README becomes a page, and links to files outside docs/ lead to the repository.

GitHub shows the same Markdown, so the pages keep links such as ../worker/models/gemma.c. Without the address of a
repository such a link becomes its text and the path.
"""
import os
import re

from mkdocs.structure.files import File

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
README = "readme.md"
STYLE = ".md-grid { max-width: 76rem; }  /* Code of 100 columns fits. */\n"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Adds the README, which is outside docs/, and the style sheet."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        files.append(File.generated(config, README, content=file.read()))
    files.append(File.generated(config, "site.css", content=STYLE))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites the links of one page that lead out of docs/, and those of the README that lead into it."""
    repository = config.extra["repository"].rstrip("/")
    folder = ROOT if page.file.src_uri == README else os.path.join(ROOT, "docs")

    def rewrite(match):
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if "://" in target:
            return match.group(0)
        path = os.path.relpath(os.path.join(folder, target), ROOT)
        if path.startswith("docs/"):
            return f"[{text}]({path[len('docs/'):]}{anchor})"
        if path == "README.md":
            return f"[{text}]({README}{anchor})"
        if not os.path.exists(os.path.join(ROOT, path)):
            return match.group(0)  # mkdocs reports it.
        if repository:
            kind = "tree" if os.path.isdir(os.path.join(ROOT, path)) else "blob"
            return f"[{text}]({repository}/{kind}/HEAD/{path}{anchor})"
        return text if path in text else f"{text} (`{path}`)"

    return LINK.sub(rewrite, markdown)
