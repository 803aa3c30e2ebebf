"""The graph that a command is about.

This file is about ``module:pipe``: the module is imported, or the file is, and the name
in it is a pipe, a ``DataLoader2``, or a function of no arguments that returns one.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncloader.datapipes.pipe.base import is_pipe
from asyncloader.loader.dataloader2 import DataLoader2


class TargetError(ValueError):
    """A command was told of something that is no graph; the cause is the user's own error."""


@dataclass(frozen=True)
class Target:
    """A graph that ends in an iter pipe, and in how many workers its own loader runs it."""

    graph: Any
    #: None where there is no loader that says it.
    workers: int | None


def load_target(text: str) -> Target:
    """Import what ``module:pipe`` or ``path/to/file.py:pipe`` names, or raise TargetError."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise TargetError(
            f"name the module and the pipe in it, as in train:pipe or src/train.py:pipe;"
            f" got {text!r}"
        )
    module = _module_of(place)
    return _target(text, _made(text, _attribute(module, name)))


def _module_of(place: str) -> ModuleType:
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise TargetError(f"there is no file {place!r} in {Path.cwd()}")
    name = path.stem if is_file else place
    if is_file and "." in name:
        raise TargetError(
            f"a file named {path.name} cannot be imported, as there is a dot in its name; give it"
            " another name"
        )
    # As for a script that is run by its path. Workers import the module by the same name.
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module ran
        raise TargetError(_why_not(name, error)) from _own_error(name, error)
    if is_file and not _is_of(module, path):
        raise TargetError(
            f"a file named {path.name} cannot be told from the module {module.__name__!r} that"
            " is imported already; give it another name"
        )
    return module


def _why_not(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and _leads_to(name, error.name):
        return (
            f"there is no module {error.name!r} in {Path.cwd()} nor on Python's path; for a"
            " file elsewhere give its path, as in src/train.py:pipe"
        )
    if isinstance(error, SystemExit):
        return (
            f"importing {name} ended the program; put what is to run behind `if __name__ =="
            ' "__main__":`'
        )
    return f"importing {name} failed: {error!r}"


def _own_error(name: str, error: BaseException) -> BaseException | None:
    """Return the error whose traceback leads into the user's code, if it does."""
    if isinstance(error, ModuleNotFoundError) and _leads_to(name, error.name):
        return None
    return error


def _leads_to(name: str, missing: str | None) -> bool:
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return attrgetter(name)(module)
    except AttributeError:
        near = difflib.get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else _listed(_graphs_in(module))
        raise TargetError(f"{module.__name__} has no {name!r}{hint}") from None


def _graphs_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if _is_graph(value)]


def _listed(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"; what it has are {listed}" if listed else ", and no pipe by another name"


def _made(text: str, value: Any) -> Any:
    """Return the pipe or loader, by a call where it is a function that makes one."""
    if _is_graph(value) or not callable(value):
        return value
    if inspect.iscoroutinefunction(value):
        raise TargetError(f"{text} is an async function; let a plain one return the pipe")
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise TargetError(f"{text} is called without arguments, but {error}") from None
    except ValueError:
        pass  # it does not tell its parameters
    try:
        return value()
    except (Exception, SystemExit) as error:
        raise TargetError(f"{text}() failed: {error!r}") from error


def _is_graph(value: Any) -> bool:
    return isinstance(value, DataLoader2) or is_pipe(value)


def _target(text: str, value: Any) -> Target:
    if isinstance(value, DataLoader2):
        if value.datapipe is None:
            raise TargetError(f"{text} is a DataLoader2 that has no graph yet")
        return Target(value.datapipe, value.reading_service.worker_count())
    if not is_pipe(value):
        raise TargetError(
            f"{text} is {_described(value)}; name a pipe, a DataLoader2, or a function of no"
            " arguments that returns one"
        )
    try:
        return Target(DataLoader2(value).datapipe, None)
    except Exception as error:
        raise TargetError(f"{text} is a graph that no loader takes: {error}") from error


def _described(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value)
    return f"of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
