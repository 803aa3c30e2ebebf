"""How a class of pipes says that it is iterated.

This file is about ``check_colours``: a method of the wrong colour is an error where the class
is defined, and not, in words of Python's, where a pipe of it runs.
"""

from __future__ import annotations

import inspect


def check_colours(cls: type) -> None:
    """Raise TypeError for a class whose ``__iter__`` is async, or whose ``__aiter__`` is not."""
    iterate, aiterate = vars(cls).get("__iter__"), vars(cls).get("__aiter__")
    if inspect.isasyncgenfunction(iterate) or inspect.iscoroutinefunction(iterate):
        raise TypeError(
            f"{cls.__qualname__}.__iter__ is async; call it __aiter__, and __iter__ comes with it"
        )
    if inspect.isgeneratorfunction(aiterate) or inspect.iscoroutinefunction(aiterate):
        raise TypeError(
            f"{cls.__qualname__}.__aiter__ is no async generator: write `async def` and yield the"
            " items, or, where nothing is awaited, __iter__"
        )
