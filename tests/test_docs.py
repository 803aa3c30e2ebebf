"""The API reference: every public name has a docstring with an example, and examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "asyncloader"

#: What users import from.
PUBLIC = [
    "asyncloader",
    "asyncloader.adapters",
    "asyncloader.datapipes.iter",
    "asyncloader.datapipes.map",
    "asyncloader.errors",
    "asyncloader.graph",
]

#: Files that have an example in them.
EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.filterwarnings("ignore:pin_memory")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_examples_of_a_file_run(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert result.failed == 0


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_example(module: str) -> None:
    missing = [name for name, value in public_names(module) if ">>> " not in (value.__doc__ or "")]
    assert missing == [], f"give these a docstring with an example, in >>> lines, in {module}"


def test_the_reference_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="the reference is built by pdoc, of the extra [docs]")
    reference = (ROOT / "docs" / "reference.md").read_text()
    (command,) = re.findall(r"&& \.venv/bin/(python -c .* pdoc.*)$", reference, re.MULTILINE)
    _, *arguments = shlex.split(command)
    arguments[arguments.index("api")] = str(tmp_path)
    assert set(arguments) >= set(PUBLIC)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for module in PUBLIC:
        page = tmp_path.joinpath(*module.split(".")).with_suffix(".html").read_text()
        missing = [name for name, _ in public_names(module) if f'id="{name}"' not in page]
        assert missing == []


def public_names(module: str) -> list[tuple[str, object]]:
    """Return the classes and functions that a module offers, by name."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if getattr(value, "__module__", "") == module and not name.startswith("_")
    ]
    values = [(name, getattr(found, name)) for name in names]
    return [(n, value) for n, value in values if inspect.isclass(value) or inspect.isroutine(value)]
