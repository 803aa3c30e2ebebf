"""The API reference: every public name has a docstring with an example, and examples run."""

from __future__ import annotations

import doctest
import importlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reference
from tests.test_readme import PAGES, command_under

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "asyncloader"

#: Files that have an example in them.
EXAMPLES = [
    path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.filterwarnings("ignore:pin_memory")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_examples_of_a_file_run(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert result.failed == 0


@pytest.mark.parametrize("module", reference.MODULES)
def test_every_public_name_has_an_example(module: str) -> None:
    missing = [
        name
        for name, value in reference.public_names(module)
        if ">>> " not in (value.__doc__ or "")
    ]
    assert missing == [], f"give these a docstring with an example, in >>> lines, in {module}"


def test_the_reference_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site is built by Sphinx, of the extra [docs]")
    _, *arguments = shlex.split(command_under("Build the site", "docs/contributing.md"))
    arguments = arguments[arguments.index("-m") :]
    assert "-W" in arguments
    assert arguments.pop() == "site"
    done = subprocess.run(
        [sys.executable, *arguments, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    site = {
        path: tmp_path.joinpath(path).with_suffix(".html").read_text(encoding="utf-8")
        for path in PAGES
    }
    entries = "".join(text for path, text in site.items() if "/reference/" in path)
    for module in reference.MODULES:
        names = [name for name, _ in reference.public_names(module)]
        missing = [name for name in names if f">{name}<a" not in entries]
        assert missing == []
