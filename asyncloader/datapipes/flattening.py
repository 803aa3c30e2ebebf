"""More items out than in.

This file is about pipes that take an item apart: unbatch, flatmap, map_batches, and
shuffled_flatmap, which has several expansions open at a time and draws from which of them each
item comes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, TypeVar

from asyncloader.arguments import checked_count, checked_function
from asyncloader.datapipes.base import IterDataPipe, OfSource, functional_datapipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.call import calling, is_async, is_async_generator, itself
from asyncloader.datapipes.columns import reading
from asyncloader.datapipes.patterns import (
    END,
    Expander,
    Pipe,
    after,
    closing_items,
    users_parts,
)
from asyncloader.datapipes.randomness import Shuffling, fractions
from asyncloader.datapipes.running.cursor_forms import (
    COUNT,
    Count,
    Fields,
    Of,
    Seed,
    is_ascending,
    list_of,
    row,
)
from asyncloader.datapipes.running.cursors import Cursor, close_items
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.sources import IterableWrapper, iterable_source
from asyncloader.datapipes.tolerance import OnError, Tolerance

T = TypeVar("T")


@functional_datapipe("unbatch")
class UnBatcher(Expander[T]):
    """Yield what is in the source's lists, ``unbatch_level`` levels deep.

    0 yields the items as they are and -1 goes as deep as there are lists. A level
    at which something is no list is an IndexError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([[1, 2], [3]]).unbatch())
    [1, 2, 3]
    """

    can_keep_parts = True

    def __init__(self, datapipe: Iterable[Any], unbatch_level: int = 1) -> None:
        super().__init__(datapipe)
        self.unbatch_level = checked_count("unbatch_level", unbatch_level, at_least=-1)

    def parts(self, item: Any, skip: int = 0) -> Iterator[T]:
        is_flat = self.unbatch_level == 1 and isinstance(item, list)
        parts = iter(item) if is_flat else self._leaves(item, self.unbatch_level)
        return after(parts, skip) if skip else parts

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


@functional_datapipe("flatmap")
class FlatMapper(Expander[T]):
    """Yield each item of ``fn(item)``; without ``fn`` the items of each item.

    ``fn`` may be a generator function, which is read as far as its items are
    asked for, or an async generator function, whose items are collected for each
    item first. ``input_col`` picks what is passed to it out of a tuple, list or dict; without
    ``fn``, an item is taken apart into the columns that it names.

    Where ``fn`` fails, maybe after some of its items, ``on_error="skip"`` leaves out the
    rest, and a function ``on_error(error, item)`` returns the rest in its place. More than
    ``max_errors`` of them in one pass (and one worker) raise ``TooManyErrors``.

    With ``repeatable=False`` the function may give other items the next time: what became
    of each is recorded from here on, so that a state resumes exactly. All items of one call are
    then made at once, and kept until the last of them was delivered: a state has them, as plain
    data, and the function is not called again for them.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).flatmap(lambda n: [n] * n))
    [1, 2, 2]
    """

    can_keep_parts = True

    def __init__(
        self,
        datapipe: Iterable[Any],
        fn: Callable[..., Any] | None = None,
        input_col: Any = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.repeatable = repeatable
        self.fn = itself if fn is None else checked_function("fn", fn)
        self.input_col = input_col
        self._expand = expanding(fn, input_col)

    def waits(self) -> bool:
        return is_async(self._expand)

    @contextlib.contextmanager
    def expanding(self, state: Any) -> Iterator[Callable[[Any, int], Iterator[T]]]:
        with calling(self._expand, self) as expand:
            yield functools.partial(users_parts, self, state, expand)


def expanding(fn: Callable[..., Any] | None, input_col: Any) -> Callable[..., Any]:
    """Return the function that expands an item: ``fn``, or without it the item's columns."""
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
        # Break the cycle: the traceback refers to this frame.
        del error


@functional_datapipe("map_batches")
class BatchMapper(FlatMapper[T]):
    """Yield each item of ``fn(items)``, which is given ``batch_size`` items at a time.

    The last list may be shorter. With ``input_col``, ``fn`` is given that column of each
    item, or a list of the columns where there are several. ``on_error`` and ``max_errors``
    are those of ``flatmap``, for whole lists.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(5)).map_batches(lambda batch: [sum(batch)], 2))
    [1, 5, 4]
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[[list[Any]], Iterable[T]],
        batch_size: int,
        input_col: Any = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        checked_function("fn", fn, takes=1)
        columns = fn if input_col is None else of_columns(collecting(fn), input_col)
        batches = Batcher(datapipe, batch_size)
        super().__init__(batches, columns, on_error=on_error, max_errors=max_errors)
        self.fn = fn
        self.input_col = input_col


def of_columns(fn: Callable[[list[Any]], Any], input_col: Any) -> Callable[[list[Any]], Any]:
    """Return a function of whole items that hands some of their columns to ``fn``."""
    return functools.partial(_of_columns_async if is_async(fn) else _of_columns, fn, input_col)


def _of_columns(fn: Callable[[list[Any]], Any], input_col: Any, items: list[Any]) -> Any:
    return fn([_columns_in(item, input_col) for item in items])


async def _of_columns_async(fn: Callable[[list[Any]], Any], input_col: Any, items: Any) -> Any:
    return await fn([_columns_in(item, input_col) for item in items])


def _columns_in(item: Any, input_col: Any) -> Any:
    if isinstance(input_col, list | tuple):
        return [item[column] for column in input_col]
    return item[input_col]


class Mixing(Fields):
    """The place of a ShuffledFlatMapper.

    Of the items in ``open`` some parts are still to come; each has its number, and how many came.
    """

    seed: Seed
    taken: OfSource = 0
    drawn: Count = 0
    yielded: Count = 0
    errors: Count = 0
    open: Annotated[
        list[list[int]],
        Of(lambda pipe: list_of(row(COUNT, COUNT), most=pipe.buffer_size if pipe.shuffles else 1)),
    ] = field(default_factory=list)
    #: The expansions that are open, and how many may be.
    _expansions: list[OpenExpansion] = field(default_factory=list)
    _width: int = 1

    def needs(self, taken: int) -> int:
        return min((each.number for each in self._expansions), default=taken)

    def fill(self, taken: int, yielded: int) -> None:
        self.taken, self.yielded = taken, yielded
        self.open = [[each.number, each.offset] for each in self._expansions]

    def saved(self) -> Cursor:
        # A resumed run opens these again, and those that failed fail again.
        again = sum(each.errors for each in self._expansions)
        return {**super().saved(), "errors": self.errors - again}

    def check(self, pipe: Any) -> Iterator[str]:
        numbers = sorted(number for number, _ in self.open)
        if not (is_ascending(numbers) and all(number < self.taken for number in numbers)):
            yield "the open expansions are of different items that were taken"
        is_each_for_one = self.drawn == self.yielded + self.taken - len(self.open)
        if not (is_each_for_one and sum(offset for _, offset in self.open) <= self.yielded):
            yield "each draw is for an item, or for an expansion that has ended"


@functional_datapipe("shuffled_flatmap")
class ShuffledFlatMapper(Shuffling, Pipe[T]):
    """Yield the items of ``fn(item)``, mixing those of up to ``buffer_size`` source items.

    Without ``fn`` the source's items are taken apart themselves. Each item that is
    yielded is the next of an expansion drawn from a seed; when one is exhausted, that of
    the next source item takes its place. ``fn`` may be a generator function, or an async
    generator function, as for flatmap, and ``input_col`` picks what is passed to it.
    ``on_error`` and ``max_errors`` are those of ``flatmap`` too: what is made in place of
    the rest of an expansion is mixed with the others.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> sorted(IterableWrapper([[3, 1], [2]]).shuffled_flatmap())
    [1, 2, 3]
    """

    State = Mixing

    def __init__(
        self,
        datapipe: Iterable[Any],
        fn: Callable[..., Any] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.fn = itself if fn is None else checked_function("fn", fn)
        self.input_col = input_col
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)
        self.expand = expanding(fn, input_col)

    def waits(self) -> bool:
        return is_async(self.expand)

    def __len__(self) -> int:
        # Only data in memory is counted; any other source would have to be read.
        is_plain = self.fn is itself and self.input_col is None and not self.tolerance.leaves_out
        wrapped = self.source.iterable if isinstance(self.source, IterableWrapper) else None
        if is_plain and isinstance(wrapped, list | tuple | dict | set | frozenset):
            return sum(map(len, wrapped))
        raise TypeError(f"{self!r} cannot say how many items it has")

    def new_state(self) -> Mixing:
        shuffles = self.shuffles
        return Mixing(
            seed=self.next_seed() if shuffles else 0, _width=self.buffer_size if shuffles else 1
        )

    def run(self, source: Edge[Any], state: Mixing) -> Iterator[T]:
        draw = fractions(state.seed, state.drawn).__next__
        expansions, first = state._expansions, state.taken
        numbers = sorted(number for number, _ in state.open)
        again, following = source.again(numbers)
        items = enumerate(following, first)
        with calling(self.expand, self) as expand, closing_items(following), _closing(expansions):
            self._open_again(state, dict(zip(numbers, again, strict=True)), expand)
            self._fill(state, items, expand)
            while expansions:
                state.drawn += 1
                place = int(draw() * len(expansions))
                expansion = expansions[place]
                part = _next(expansion, state)
                if part is END:
                    del expansions[place]
                    self._fill(state, items, expand)
                    continue
                expansion.offset += 1
                yield part

    def _fill(
        self, state: Mixing, items: Iterator[tuple[int, Any]], expand: Callable[..., Any]
    ) -> None:
        for number, item in islice(items, state._width - len(state._expansions)):
            self._open(state, number, item, expand)

    def _open(
        self, state: Mixing, number: int, item: Any, expand: Callable[..., Any]
    ) -> OpenExpansion:
        before = state.errors
        expansion = OpenExpansion(number, users_parts(self, state, expand, item))
        expansion.errors = state.errors - before
        state._expansions.append(expansion)
        return expansion

    def _open_again(self, state: Mixing, items: dict[int, Any], expand: Callable[..., Any]) -> None:
        for number, offset in state.open:
            expansion = self._open(state, number, items[number], expand)
            while expansion.offset < offset and _next(expansion, state) is not END:
                expansion.offset += 1


@dataclass
class OpenExpansion:
    """The items of a source item, how many of them were taken, and how many errors there were."""

    number: int
    parts: Iterator[Any]
    offset: int = 0
    errors: int = 0


def _next(expansion: OpenExpansion, state: Mixing) -> Any:
    before = state.errors
    part = next(expansion.parts, END)
    expansion.errors += state.errors - before
    return part


@contextlib.contextmanager
def _closing(expansions: list[OpenExpansion]) -> Iterator[None]:
    try:
        yield
    finally:
        for expansion in expansions:
            close_items(expansion.parts)
            # A state may still say how far it was, if who reads this has ended before it.
            expansion.parts = iter(())
