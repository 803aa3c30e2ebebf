"""The parts that a function makes of one item.

This file is about ``parts_of`` and ``next_part``: parts are read as far as they are wanted,
and where the function fails, maybe after some of them, its pipe's ``on_error`` says what
follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import CoroutineType
from typing import Any

from asyncloader.datapipes.patterns.rereading import closing_items
from asyncloader.datapipes.pipe.function import blame, unawaited
from asyncloader.datapipes.pipe.tolerance import SKIPPED, stand_in

#: What there is after the last part.
END: Any = object()


def parts_of(running: Any, expand: Callable[[Any], Any], item: Any) -> Iterator[Any]:
    """Return the parts of an item, in a pass that has a ``pipe`` and counts its ``errors``."""
    try:
        result = expand(item)
        # Beginning to read it is the user's code as well.
        parts = iter(result) if isinstance(result, Iterable) else None
    except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
        return _instead(error, item, running)
    if parts is None:
        raise _no_parts(result, running.pipe)
    return parts if running.pipe.tolerance.is_strict else _tolerated(parts, item, running)


def next_part(parts: Iterator[Any], pipe: object) -> Any:
    """Return the next part, or END. The user's code goes on running while it is made."""
    try:
        return next(parts, END)
    except BaseException as error:
        blame(error, pipe)
        raise


def pass_over(parts: Iterator[Any], count: int, pipe: object) -> None:
    """Make the next parts and drop them, as far as there are so many."""
    for _ in range(count):
        if next_part(parts, pipe) is END:
            return


def _tolerated(parts: Iterator[Any], item: Any, running: Any) -> Iterator[Any]:
    with closing_items(parts):
        while True:
            try:
                part = next(parts, END)
            except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
                yield from _instead(error, item, running)
                return
            if part is END:
                return
            yield part
            # The part just yielded is not kept alive here while the next is made.
            del part


def _instead(error: BaseException, item: Any, running: Any) -> Iterator[Any]:
    answer = stand_in(error, item, running)
    if answer is SKIPPED:
        return iter(())
    if not isinstance(answer, Iterable):
        raise _no_parts(answer, running.pipe)
    return iter(answer)


def _no_parts(result: Any, pipe: object) -> TypeError:
    if result.__class__ is CoroutineType:
        return unawaited(pipe, result)
    return TypeError(
        f"fn must return something to iterate, got {type(result).__name__}"
        f" from the function of {pipe!r}"
    )
