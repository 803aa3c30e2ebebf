"""The examples in docstrings run, and every public pipe has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import asyncloader.datapipes
import asyncloader.datapipes.iter
import asyncloader.datapipes.map
from asyncloader.datapipes.base import DataPipe

MODULES = [
    f"asyncloader.datapipes.{module.name}"
    for module in pkgutil.iter_modules(asyncloader.datapipes.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("module", [asyncloader.datapipes.iter, asyncloader.datapipes.map])
def test_every_public_pipe_has_an_example(module: object) -> None:
    pipes = [value for _, value in inspect.getmembers(module, inspect.isclass)]
    concrete = [p for p in pipes if issubclass(p, DataPipe) and p.__module__ != DataPipe.__module__]

    assert [p for p in concrete if ">>>" not in (p.__doc__ or "")] == []
