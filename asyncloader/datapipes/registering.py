"""Fluent methods, put in place.

This file is about ``register``: the method that a class of pipes gets when a pipe is
given a functional name.
"""

from __future__ import annotations

import inspect
from typing import Any


def register(base: type, name: str, pipe_class: type) -> None:
    """Make ``pipe.name(...)`` build ``pipe_class(pipe, ...)`` for the pipes of class ``base``."""
    taken = getattr(base, name, None)
    builds = getattr(taken, "builds", None)
    # Running a notebook cell again replaces what it registered before.
    if taken is not None and _identity(builds) != _identity(pipe_class):
        raise ValueError(f"the functional name {name!r} is already taken by {taken!r}")

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


def _method_signature(pipe_class: type) -> inspect.Signature:
    signature = inspect.signature(pipe_class)
    source, *others = signature.parameters.values()
    # `self` is the first source. A pipe of several takes the others under its own name.
    if source.kind is source.VAR_POSITIONAL:
        others.insert(0, source)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature.replace(parameters=[itself, *others])


def _identity(pipe_class: type | None) -> tuple[str, str] | None:
    return None if pipe_class is None else (pipe_class.__module__, pipe_class.__qualname__)
