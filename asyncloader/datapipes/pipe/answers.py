"""What a user's function answers.

This file is about ``answer_of``, for pipes that call functions in several places.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

from asyncloader.datapipes.pipe.function import blame, unawaited


def answer_of(pipe: object, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function that was given to ``pipe`` returns for ``args``.

    An error that it raises is noted to come from the pipe, and a coroutine that nobody
    would await is a TypeError.
    """
    try:
        answer = function(*args)
    except BaseException as error:
        blame(error, pipe)
        raise
    if answer.__class__ is CoroutineType:
        raise unawaited(pipe, answer)
    return answer


def key_of(pipe: object, function: Callable[..., Any], item: Any) -> Any:
    """Return the key that a function which was given to ``pipe`` has for an item."""
    return checked_key_of(pipe, answer_of(pipe, function, item))


def checked_key_of(pipe: object, key: Any) -> Any:
    """Return what can be a key of a dict; raise a TypeError that names ``pipe`` otherwise."""
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(
            f"{pipe!r} got a key of type {type(key).__name__}, which can be none ({error}); make it"
            " a tuple or text"
        ) from None
    return key
