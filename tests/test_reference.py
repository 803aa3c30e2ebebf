"""The reference is what the code says: no name is missing, none is made up, examples run."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import re
from pathlib import Path

import pytest

from tests import reference

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "asyncloader"
TEXTS = reference.texts()
#: What a page says of its names, by the page and the heading.
ENTRIES = {
    (page, found[1]): found[2]
    for page, text in TEXTS.items()
    for found in re.finditer(r"^### (\w+)\n(.*?)(?=^##+ \w+\n|^Back to)", text, re.M | re.S)
}
ERRORS = [name for name, _ in reference.public_names("asyncloader.errors")]


@pytest.mark.parametrize("name", sorted({*TEXTS, *(p.name for p in reference.FOLDER.iterdir())}))
def test_a_page_is_what_the_docstrings_say(name):
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == TEXTS[name], (
        "run python -m tests.reference"
    )


@pytest.mark.parametrize("module", reference.MODULES)
def test_no_public_name_is_missing_from_the_reference(module):
    names = {name for name, _ in reference.public_names(module)}
    assert names - {name for _, name in ENTRIES} == set()
    others = set(getattr(importlib.import_module(module), "__all__", ())) - names
    assert [name for name in others if f"`{name}`" not in "".join(TEXTS.values())] == []


def test_the_reference_has_no_name_that_does_not_exist():
    public = {name for module in reference.MODULES for name, _ in reference.public_names(module)}
    assert {name for _, name in ENTRIES} - public == set()
    listed = {name for _, name in ENTRIES if name in reference.METHODS}
    assert listed == set(reference.METHODS)


@pytest.mark.filterwarnings("ignore:pin_memory")
@pytest.mark.parametrize(("page", "name"), ENTRIES)
def test_an_example_runs_with_nothing_but_what_it_imports(page, name):
    examples = re.findall(r"^```pycon\n(.*?)^```$", ENTRIES[page, name], re.M | re.S)
    assert examples
    # Its classes are those of tests/test_docs.py again, so that their fluent names are free.
    home = dict(reference.public_names(reference.pages()[page].module))[name].__module__
    for example in examples:
        known = {"__name__": home}
        parsed = doctest.DocTestParser().get_doctest(f"{example}\n", known, name, page, 0)
        result = doctest.DocTestRunner().run(parsed)
        assert result.attempted
        assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "LoaderError"])
def test_an_error_has_its_cause_and_its_remedy(name):
    text = ENTRIES["errors.md", name]
    assert "\n\nCause: " in text
    assert "\n\nWhat to do: " in text


def test_a_warning_has_its_cause_and_its_remedy():
    missing = [
        parts for parts in texts_of_warnings() if not any(is_in(words, parts) for words in QUOTED)
    ]
    assert missing == [], "quote these in docs/warnings.md, and say what to do"


def test_the_page_of_warnings_has_none_that_does_not_exist():
    assert QUOTED
    warnings = texts_of_warnings()
    assert [words for words in QUOTED if not any(is_in(words, each) for each in warnings)] == []


def is_in(words: str, parts: list[str]) -> bool:
    return any(words in part for part in parts)


@functools.cache
def texts_of_warnings() -> list[list[str]]:
    """Return what each warning of the package says, in the parts between its values."""
    return [
        [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    ]


#: What the page quotes of each warning.
QUOTED = re.findall(
    r"^\| “(.+?)”", (ROOT / "docs" / "warnings.md").read_text(encoding="utf-8"), flags=re.MULTILINE
)
