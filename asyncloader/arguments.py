"""Arguments that a user gives.

This file is about checks that return the value in its plain form, or raise an error that names
the argument; and about what a message calls a user's function, or a value of a wrong type.
"""

from __future__ import annotations

import codecs
import functools
import inspect
import math
import operator
import sys
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping
from numbers import Real
from typing import Any

from asyncloader.tuning import AUTO


def checked_count(name: str, value: Any, *, at_least: int) -> int:
    """Return an integer that is large enough; raise TypeError or ValueError otherwise."""
    count = checked_integer(name, value)
    if count < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {count}")
    # Larger numbers do not fit range() and len().
    return min(count, sys.maxsize)


def checked_auto(name: str, value: Any, *, at_least: int) -> Any:
    """Return an integer that is large enough, or "auto"."""
    if isinstance(value, str):
        if value != AUTO:
            raise TypeError(f'{name} must be a number or "auto", got {value!r}')
        return value
    return checked_count(name, value, at_least=at_least)


def checked_flag(name: str, value: Any) -> bool:
    """Return True or False, also of 1 or 0; raise ValueError otherwise."""
    if value not in (True, False):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def checked_integer(name: str, value: Any) -> int:
    """Return an integer; raise TypeError otherwise."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from None


def checked_seconds(name: str, value: Any) -> float:
    """Return a number of seconds above 0; raise TypeError or ValueError otherwise."""
    seconds = _number_of_seconds(name, value)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} must be more than 0 seconds, and finite, got {value}")
    return seconds


def checked_wait(name: str, value: Any) -> float:
    """Return how many seconds to wait: 0 or more, or infinity; raise an error otherwise."""
    seconds = _number_of_seconds(name, value)
    if not seconds >= 0:
        raise ValueError(f"{name} must be at least 0 seconds, got {value}")
    return seconds


def checked_limit(name: str, value: Any) -> float | None:
    """Return a time limit in seconds, or None; a negative limit allows no time."""
    if value is None:
        return None
    seconds = _number_of_seconds(name, value)
    if math.isnan(seconds):
        raise ValueError(f"{name} must be a number of seconds, got {value}")
    return seconds


def _number_of_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, got {type(value).__name__}")
    # NumPy's numbers become Python's.
    return value if isinstance(value, int | float) else float(value)


def checked_function(name: str, value: Any, *, takes: int | None = None) -> Any:
    """Return something that can be called; raise TypeError otherwise.

    Raise ValueError if its signature shows that it does not take ``takes`` arguments.
    """
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    if takes is not None:
        check_takes(name, value, takes)
    return value


def check_takes(name: str, function: Callable[..., Any], count: int) -> None:
    """Raise ValueError for a function that cannot be called with ``count`` arguments."""
    if refusal := _refusal(function, count):
        raise ValueError(
            f"{name} must take its arguments: {function_name(function)} cannot be called with"
            f" {count} positional argument(s) ({refusal})"
        )


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with ``count`` arguments; True if it has no signature."""
    return not _refusal(function, count)


def _refusal(function: Callable[..., Any], count: int) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""  # functions written in C often cannot tell
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        return str(error)
    return ""


def checked_mapping(name: str, value: Any) -> Any:
    """Return a mapping; raise TypeError otherwise."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, got {type(value).__name__}")
    return value


def checked_names(name: str, value: Any) -> list[Any]:
    """Return names as a list; raise TypeError for a single text and for what is not iterable."""
    if isinstance(value, str):
        raise TypeError(f"{name} must be a list of names, got the text {value!r}")
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of names, got {type(value).__name__}")
    return list(value)


def checked_key(name: str, value: Any) -> Any:
    """Return a hashable value; raise TypeError otherwise."""
    if not isinstance(value, Hashable):
        raise TypeError(f"{name} must be hashable, got {type(value).__name__}")
    return value


def checked_encoding(encoding: Any) -> str:
    """Return the name of an encoding that Python knows; raise an error otherwise."""
    return _looked_up("encoding", encoding, codecs.lookup)


def checked_errors(errors: Any) -> str:
    """Return the name of a way to treat undecodable bytes; raise an error otherwise."""
    return _looked_up("errors", errors, codecs.lookup_error)


def _looked_up(name: str, value: Any, look_up: Callable[[str], object]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {type(value).__name__}")
    try:
        look_up(value)
    except LookupError as error:
        raise LookupError(f"{name} must be one that Python knows: {error}") from None
    return value


def checked_graph(name: str, function: object, value: Any) -> Any:
    """Return the pipe that a function returned; raise TypeError if it returned something else."""
    if isinstance(value, Iterable | AsyncIterable) or hasattr(type(value), "__getitem__"):
        return value
    raise TypeError(
        f"{name} must return the pipe to use, but {function_name(function)} returned"
        f" {type(value).__name__}"
    )


def checked_length(value: Any) -> int:
    """Return a number of items, or -1 for an unknown one; raise an error otherwise."""
    return checked_count("length", value, at_least=-1)


def checked_indices(value: Any) -> Any:
    """Return a sequence of keys, or None for all; raise TypeError otherwise."""
    # A stream says only when it is asked that it has no keys.
    is_stream = isinstance(value, AsyncIterable)
    if value is None or (
        hasattr(value, "__len__") and hasattr(value, "__getitem__") and not is_stream
    ):
        return value
    raise TypeError(f"indices must be a sequence, got {type(value).__name__}; make it a list")


def checked_weight(of: object, weight: Any, *, may_be_0: bool) -> float:
    """Return a finite weight that is large enough; raise TypeError or ValueError otherwise."""
    number = _number(of, weight)
    if not 0 <= number < math.inf or (number == 0 and not may_be_0):
        least = "at least 0" if may_be_0 else "above 0"
        raise ValueError(f"the weight of {of!r} must be finite and {least}, got {weight}")
    return number


def _number(of: object, weight: Any) -> float:
    # float() would accept text too.
    if not isinstance(weight, str | bytes | bytearray | bool):
        try:
            return float(weight)
        except OverflowError:
            raise ValueError(f"the weight of {of!r} is too large; it must fit a float") from None
        except (TypeError, ValueError):
            pass
    raise TypeError(f"the weight of {of!r} must be a number, got {type(weight).__name__}")


# Names of what a user gave ----------------------------------------------------------------


def function_name(function: object) -> str:
    """Return a name for a callable that a reader recognises."""
    if isinstance(function, functools.partial):
        return f"partial({function_name(function.func)})"
    name = getattr(function, "__qualname__", None)
    return str(name).rpartition("<locals>.")[2] if name else type(function).__name__


def kind_name(value: object) -> str:
    """Return the name of a wrong value's type; for a class, the class's own name."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
