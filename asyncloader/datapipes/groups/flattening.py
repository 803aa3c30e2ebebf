"""More items out than in.

This file is about pipes that take an item apart: unbatch and flatmap.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor
from asyncloader.datapipes.going_on.forms import Form
from asyncloader.datapipes.patterns.expansion import (
    EXPANSION,
    TOLERANT_EXPANSION,
    Expansion,
    TolerantExpansion,
    yielded_at,
)
from asyncloader.datapipes.patterns.parts import END, next_part, parts_of, pass_over
from asyncloader.datapipes.pipe.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.columns import reading
from asyncloader.datapipes.pipe.function import calling, is_async, is_async_generator, itself
from asyncloader.datapipes.pipe.run import Run
from asyncloader.datapipes.pipe.tolerance import OnError, Tolerance

T = TypeVar("T")


@functional_datapipe("unbatch")
class UnBatcher(IterDataPipe[T]):
    """Yield what is in the source's lists, ``unbatch_level`` levels deep.

    0 yields the items as they are and -1 goes as deep as there are lists. A level
    at which something is no list is an IndexError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([[1, 2], [3]]).unbatch())
    [1, 2, 3]
    """

    def __init__(self, datapipe: Iterable[Any], unbatch_level: int = 1) -> None:
        self.source = iterable_source(datapipe)
        self.unbatch_level = checked_count("unbatch_level", unbatch_level, at_least=-1)

    def new_pass(self, run: Run[Any]) -> UnbatchPass[T]:
        return UnbatchPass(run)

    def cursor_form(self) -> Form:
        return EXPANSION

    def yielded_at(self, cursor: Cursor) -> int:
        return yielded_at(cursor)

    def leaves(self, item: Any) -> Iterator[T]:
        """Yield what an item holds, in order."""
        return self._leaves(item, self.unbatch_level)

    def _leaves(self, item: Any, level: int) -> Iterator[T]:
        if level == 0 or (level < 0 and not isinstance(item, list)):
            yield item
        elif level == 1 and isinstance(item, list):
            yield from item
        elif isinstance(item, list):
            for part in item:
                yield from self._leaves(part, level - 1 if level > 0 else level)
        else:
            raise IndexError(
                f"unbatch_level={self.unbatch_level} goes deeper than the lists that"
                f" {self!r} reads: there is a {type(item).__name__}"
            )


@dataclass
class UnbatchPass(Expansion[T]):
    """One pass over an UnBatcher, which knows how far it is inside the batch it took last."""

    def __iter__(self) -> Iterator[T]:
        for batch in self.begin():
            for item in self.rest(self.pipe.leaves(batch)):
                self.offset += 1
                yield item
            self.finish()


@functional_datapipe("flatmap")
class FlatMapper(IterDataPipe[T]):
    """Yield each item of ``fn(item)``; without ``fn`` the items of each item.

    ``fn`` may be a generator function, which is read as far as its items are
    asked for, or an async generator function, whose items are collected for each
    item first. ``input_col`` picks what is handed to it out of a tuple, list or dict; without
    ``fn``, an item is taken apart into the columns that it names.

    Where ``fn`` fails, maybe after some of its items, ``on_error="skip"`` leaves out the
    rest, and a function ``on_error(error, item)`` returns the rest in its place. More than
    ``max_errors`` of them in one pass (and one worker) raise ``TooManyErrors``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).flatmap(lambda n: [n] * n))
    [1, 2, 2]
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        fn: Callable[..., Any] | None = None,
        input_col: Any = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.fn = itself if fn is None else checked_function("fn", fn)
        self.input_col = input_col
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)
        self._expand = expanding(fn, input_col)

    def waits(self) -> bool:
        return is_async(self._expand)

    def new_pass(self, run: Run[Any]) -> FlatMapPass[T]:
        return FlatMapPass(run, self._expand)

    def cursor_form(self) -> Form:
        return TOLERANT_EXPANSION

    def yielded_at(self, cursor: Cursor) -> int:
        return yielded_at(cursor)


def expanding(fn: Callable[..., Any] | None, input_col: Any) -> Callable[..., Any]:
    """Return the function that says what is in an item; without ``fn``, what its columns hold."""
    if fn is None:
        function = _columns_of if isinstance(input_col, list | tuple) else itself
    else:
        function = collecting(fn)
    return reading(function, input_col)


def _columns_of(*columns: Any) -> Any:
    return columns if len(columns) != 1 else columns[0]


def collecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results can be iterated: an async generator's as a list."""
    if is_async_generator(function):
        return functools.partial(_collected, function)
    return function


async def _collected(function: Callable[..., AsyncIterable[Any]], *args: Any) -> Iterable[Any]:
    items: list[Any] = []
    try:
        async for item in function(*args):
            items.append(item)  # noqa: PERF401 - what came before an error counts
    except Exception as error:  # noqa: BLE001 - user code ran; it is raised in its place
        return _followed_by(error, items)
    return items


def _followed_by(error: Exception, items: list[Any]) -> Iterator[Any]:
    yield from items
    try:
        raise error
    finally:
        # Its traceback holds this frame.
        del error


@dataclass
class FlatMapPass(TolerantExpansion[T]):
    """One pass over a FlatMapper, which knows how far it is inside the last expansion."""

    expand: Callable[..., Any] = field(repr=False)

    def __iter__(self) -> Iterator[T]:
        pipe = self.pipe
        with calling(self.expand, pipe) as expand:
            for item in self.begin():
                parts = parts_of(self, expand, item)
                pass_over(parts, self.known(), pipe)
                while (part := next_part(parts, pipe)) is not END:
                    self.offset += 1
                    yield part
                self.finish()
