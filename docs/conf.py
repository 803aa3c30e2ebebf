"""The site made of README.md and of the pages of docs/, by Sphinx: see docs/contributing.md.

The pages are plain Markdown, and links between them are paths, so that a repository browser
shows them as they are. What only the site needs is here: its table of contents is made of
the tables of docs/index.md. Building it imports nothing of asyncloader.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "asyncloader"
author = "the authors of asyncloader"
release = version = about["version"]

# Sphinx reads from the root of the repository, so that README is a page like the others.
root_doc = "README"
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = ["**/.*", "site"]
extensions = ["myst_parser"]
# Those of a repository browser.
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = "asyncloader"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False


def setup(app: Sphinx) -> None:
    """Add what only the site needs."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", copy_front_page)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the table of contents to the front page, which shows it beside each page."""
    if page == root_doc:
        source[0] += contents_of((ROOT / "docs" / "index.md").read_text())


def contents_of(index: str) -> str:
    """Return Sphinx's tables of contents of the sections of docs/index.md."""
    found = ["\n\n```{toctree}\n:hidden:\n\nTable of contents <docs/index>\n```"]
    for section in index.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        rows = re.findall(r"^\| \[.*?\]\((.*?)\)", text, re.MULTILINE)
        pages = "\n".join(posixpath.normpath(posixpath.join("docs", path)) for path in rows)
        found.append(f"\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```")
    return "".join(found)


def copy_front_page(app: Sphinx, error: Exception | None) -> None:
    """Let the folder of the site open with its front page."""
    if error is None:
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))
