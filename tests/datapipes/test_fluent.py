"""The declared fluent methods are those that are there."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import asyncloader.datapipes.iter
import asyncloader.datapipes.map  # so that all pipes are registered
from asyncloader.datapipes import fluent
from asyncloader.datapipes.pipe.base import IterDataPipe, MapDataPipe

PACKAGE = fluent.__name__

BASES = {"IterFluent": IterDataPipe, "MapFluent": MapDataPipe}


def declared(name: str) -> dict[str, Any]:
    """Return the methods of a class of the declarations as a type checker sees them."""
    ours = [base for base in getattr(fluent, name).__mro__ if base.__module__.startswith(PACKAGE)]
    return {key: value for base in ours for key, value in _declared_in(base).items()}


def _declared_in(cls: type) -> dict[str, Any]:
    path = Path(inspect.getfile(cls))
    namespace: dict[str, Any] = {"__name__": cls.__module__}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typing, "TYPE_CHECKING", True)
        exec(compile(path.read_text(), str(path), "exec"), namespace)
    return {key: value for key, value in vars(namespace[cls.__name__]).items() if callable(value)}


def registered(base: type) -> dict[str, Any]:
    found = {key: getattr(base, key) for key in dir(base)}
    return {key: value for key, value in found.items() if _is_ours(getattr(value, "builds", None))}


def _is_ours(pipe: Any) -> bool:
    """Whether a pipe is one of the package's modules, and not of an example in a docstring."""
    module = getattr(pipe, "__module__", "")
    return module.startswith("asyncloader.") and hasattr(sys.modules[module], pipe.__name__)


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


@pytest.mark.parametrize("name", BASES)
def test_every_registered_name_is_declared_and_the_other_way_round(name: str) -> None:
    assert declared(name).keys() == registered(BASES[name]).keys()


def test_no_method_is_declared_twice() -> None:
    families = fluent.IterFluent.__bases__
    names = [name for family in families for name in _declared_in(family)]

    assert len(names) == len(set(names)) > 70


@pytest.mark.parametrize("name", BASES)
def test_declarations_have_the_parameters_of_the_constructors(name: str) -> None:
    methods = declared(name)

    for key, method in registered(BASES[name]).items():
        assert shape(methods[key]) == shape(method), key


def test_a_bound_method_shows_what_it_takes() -> None:
    pipe = asyncloader.datapipes.iter.IterableWrapper([1])

    positional = ["fn", "input_col", "output_col"]
    assert list(inspect.signature(pipe.map).parameters)[:3] == positional
    assert list(inspect.signature(pipe.zip).parameters) == ["datapipes"]
    assert list(inspect.signature(pipe.fork).parameters) == ["num_instances", "buffer_size", "copy"]


def test_a_pipe_of_ones_own_has_all_methods_whatever_was_imported() -> None:
    script = (
        "import asyncloader; print(*dir(asyncloader.IterDataPipe), *dir(asyncloader.MapDataPipe))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    everything = {*registered(IterDataPipe), *registered(MapDataPipe)}
    assert everything <= set(found.stdout.split())


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
