"""The declared fluent methods are those that are there."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from typing import Any

import pytest

import asyncloader.datapipes.iter
from asyncloader import IterDataPipe, MapDataPipe
from tests.fluent_stub import SPECIAL, STUB, fluent_classes, stub

BASES = {"IterFluent": IterDataPipe, "MapFluent": MapDataPipe}


def declared(name: str) -> dict[str, list[ast.arguments]]:
    """Return the parameters of the methods of one of the stub's classes: of each overload."""
    classes = [each for each in ast.parse(STUB.read_text()).body if isinstance(each, ast.ClassDef)]
    (body,) = [each.body for each in classes if each.name == name]
    found: dict[str, list[ast.arguments]] = {}
    for each in body:
        if isinstance(each, ast.FunctionDef):
            found.setdefault(each.name, []).append(each.args)
    return found


def registered(base: type) -> dict[str, Any]:
    return {name: getattr(base, name) for name in fluent_classes(base)}


def names(arguments: ast.arguments) -> list[str]:
    last = (arguments.vararg, *arguments.kwonlyargs, arguments.kwarg)
    return [each.arg for each in (*arguments.args, *last) if each is not None]


def test_the_stub_is_what_the_constructors_say() -> None:
    assert STUB.read_text() == stub(), "run: python -m tests.fluent_stub"


@pytest.mark.parametrize("name", BASES)
def test_every_registered_name_is_declared_and_the_other_way_round(name: str) -> None:
    assert declared(name).keys() == registered(BASES[name]).keys()


@pytest.mark.parametrize("name", BASES)
def test_declarations_have_the_parameters_of_the_constructors(name: str) -> None:
    methods = declared(name)

    for key, method in registered(BASES[name]).items():
        parameters = list(inspect.signature(method).parameters)
        for overload in methods[key]:
            assert set(names(overload)) <= set(parameters), key
        if len(methods[key]) == 1:
            assert names(methods[key][0]) == parameters, key


@pytest.mark.parametrize("name", BASES)
def test_what_is_said_apart_from_the_constructors_is_about_methods_that_are_there(
    name: str,
) -> None:
    assert SPECIAL[name].keys() <= registered(BASES[name]).keys()


def test_a_bound_method_shows_what_it_takes() -> None:
    pipe = asyncloader.datapipes.iter.IterableWrapper([1])

    positional = ["fn", "input_col", "output_col"]
    assert list(inspect.signature(pipe.map).parameters)[:3] == positional
    assert list(inspect.signature(pipe.zip).parameters) == ["datapipes"]
    assert list(inspect.signature(pipe.fork).parameters) == ["num_instances", "buffer_size", "copy"]


@pytest.mark.parametrize("base", BASES.values())
def test_help_of_a_method_says_what_it_returns(base: type) -> None:
    for name, method in registered(base).items():
        returned = inspect.signature(method).return_annotation
        makes_itself = isinstance(method.builds, type)
        several = method.builds.__annotations__.get("return")
        assert returned == (method.builds.__name__ if makes_itself else several), name


def test_a_pipe_of_ones_own_has_all_methods_whatever_was_imported() -> None:
    script = (
        "import asyncloader; print(*dir(asyncloader.IterDataPipe), *dir(asyncloader.MapDataPipe))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    everything = {*registered(IterDataPipe), *registered(MapDataPipe)}
    assert everything <= set(found.stdout.split())


@pytest.mark.parametrize(
    "door",
    [
        "from asyncloader.datapipes.map import SequenceWrapper; one = SequenceWrapper([1])",
        "from asyncloader.datapipes.iter import IterableWrapper; one = IterableWrapper([1])",
        "from asyncloader import Feed; one = Feed()",
    ],
)
def test_a_program_that_imports_one_pipe_has_all_methods_on_what_it_leads_to(door: str) -> None:
    kinds = "kinds = [type(one)]\nif hasattr(one, 'to_iter_datapipe'):\n"
    script = f"{door}\n{kinds}    kinds.append(type(one.to_iter_datapipe()))\n"
    script += "print(*(name for kind in kinds for name in dir(kind)))"
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    assert registered(IterDataPipe).keys() <= set(found.stdout.split())


def test_the_packages_alone_offer_all_their_names_and_do_not_import_all_pipes() -> None:
    script = (
        "import asyncloader, asyncloader.datapipes as dp, sys\n"
        "for package in (asyncloader, dp):\n"
        "    print({*package.__all__} - {*dir(package)})\n"
        "print('asyncloader.datapipes.iter' in sys.modules)\n"
        "print(list(dp.map.SequenceWrapper('ab')), list(dp.iter.IterableWrapper('cd')))\n"
        "print(dp.functional_datapipe is asyncloader.functional_datapipe, hasattr(dp, 'itre'))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    lines = ["set()", "set()", "False", "['a', 'b'] ['c', 'd']", "True False"]
    assert found.stdout.splitlines() == lines
