"""What the package offers is what was written down, and nothing else shows."""

from __future__ import annotations

import importlib

import pytest

from tests import public_api

BEFORE = {"a.F": "class", "a.F(x)": "by name, int, default 1", "a.G": "function"}


def test_the_public_api_is_what_was_written_down():
    found = public_api.differences(public_api.written(), public_api.offered())
    assert found == [], (
        "if you mean to change what programs rely on, read docs/versions.md, say it in"
        " docs/changelog.md, and run python -m tests.public_api"
    )


def test_a_difference_is_said_in_words():
    after = {"a.F": "class", "a.F(x)": "by name, int, default 2", "a.H": "function"}
    assert public_api.differences(BEFORE, BEFORE) == []
    assert public_api.differences(BEFORE, after) == [
        "a.G is gone; it was function",
        "a.F(x) was by name, int, default 1 and is by name, int, default 2",
        "a.H is new: function",
    ]


@pytest.mark.parametrize("module", public_api.MODULES)
def test_a_public_module_shows_its_public_names_and_nothing_else(module):
    found = importlib.import_module(module)
    # A package has those of its public modules that were imported, too.
    modules = {
        name.removeprefix(f"{module}.")
        for name in public_api.MODULES
        if name.startswith(f"{module}.")
    }
    assert set(dir(found)) - modules == set(found.__all__) - modules
    assert [name for name in found.__all__ if name.startswith("_")] == []


@pytest.mark.parametrize("module", public_api.MODULES)
def test_a_public_name_is_of_this_package(module):
    found = importlib.import_module(module)
    foreign = [
        name
        for name in found.__all__
        if not getattr(getattr(found, name), "__module__", "asyncloader").startswith("asyncloader")
    ]
    # Names of types, which are made of those of others.
    assert set(foreign) <= {"AdapterFn", "DataPipe", "DataPipeGraph", "IterResetFn"}
