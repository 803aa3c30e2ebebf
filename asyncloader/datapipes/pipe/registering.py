"""Fluent methods, put in place.

This file is about ``register``: the method that a class of pipes gets when a pipe is
given a functional name. A worker imports what its graph is made of and no more, so it is told
where the loader's process has the other methods from, and brings them when they are called.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from asyncloader.main_script import MAIN, home_of

#: The modules that define what the methods of a name build: of those here, and of those that
#: only another process has so far.
_homes: dict[str, set[str]] = {}
_elsewhere: dict[str, set[str]] = {}


def register(base: type, name: str, pipe_class: type) -> None:
    """Make ``pipe.name(...)`` build ``pipe_class(pipe, ...)`` for the pipes of class ``base``."""
    taken = getattr(base, name, None)
    builds = getattr(taken, "builds", None)
    # Running a notebook cell again replaces what it registered before.
    if taken is not None and _identity(builds) != _identity(pipe_class):
        by = taken if builds is None else f"{builds.__module__}.{builds.__qualname__}"
        raise ValueError(f"the functional name {name!r} is already taken by {by}; choose another")

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        return pipe_class(self, *args, **kwargs)

    build.__name__ = name
    build.__qualname__ = f"{base.__name__}.{name}"
    build.__doc__ = pipe_class.__doc__
    # The names in its signature are those of the pipe's own file.
    build.__module__ = pipe_class.__module__
    build.__signature__ = _method_signature(pipe_class)  # type: ignore[attr-defined]
    build.builds = pipe_class  # type: ignore[attr-defined]
    setattr(base, name, build)
    _homes.setdefault(name, set()).add(home_of(pipe_class) or MAIN)


def homes_of_methods() -> dict[str, set[str]]:
    """Return the modules that define what fluent methods build, by the methods' names."""
    names = _homes.keys() | _elsewhere.keys()
    return {name: _homes.get(name, set()) | _elsewhere.get(name, set()) for name in names}


def expect_methods(homes: Mapping[str, set[str]]) -> None:
    """Have pipes bring these methods, which were not registered here, when they are called."""
    _elsewhere.update({name: set(modules) for name, modules in homes.items()})


def bring(name: str) -> bool:
    """Import what registers a method that another process has; whether there was anything."""
    modules = _elsewhere.get(name, set())
    missing = modules - {MAIN}
    modules -= missing
    for module in missing:
        importlib.import_module(module)
    return bool(missing)


def is_of_script(name: str) -> bool:
    """Whether another process has the method from its main script, which is not imported here."""
    return MAIN in _elsewhere.get(name, ())


def _method_signature(pipe_class: type) -> inspect.Signature:
    signature = inspect.signature(pipe_class)
    others = list(signature.parameters.values())
    # `self` is the first source. A pipe of several takes the others under its own name.
    if others and others[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del others[0]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature.replace(parameters=[itself, *others])


def _identity(pipe_class: type | None) -> tuple[str, str] | None:
    return None if pipe_class is None else (pipe_class.__module__, pipe_class.__qualname__)
