"""What a user's function answers.

This file is about ``answer_of``, for pipes that call functions in several places.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType
from typing import Any

from asyncloader.datapipes.function import blame, unawaited


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
        raise unawaited(pipe)
    return answer
