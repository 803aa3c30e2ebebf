"""Items taken apart, and the parts of several mixed.

This file is about shuffled_flatmap: some expansions are open at a time, and each item
comes from one of them that is drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any, Generic, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import (
    COUNT,
    SEED,
    Form,
    Rule,
    counts,
    fields,
    is_ascending,
    list_of,
    row,
    whole,
)
from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.groups.batching import most_items
from asyncloader.datapipes.groups.flattening import expanding
from asyncloader.datapipes.items.sources import IterableWrapper
from asyncloader.datapipes.patterns.parts import END, next_part, parts_of
from asyncloader.datapipes.patterns.rereading import Held, Rereader, add_cursors, closing_items
from asyncloader.datapipes.pipe.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import calling, is_async, itself
from asyncloader.datapipes.pipe.randomness import Shuffling
from asyncloader.datapipes.pipe.run import Pass, Run
from asyncloader.datapipes.pipe.tolerance import OnError, Tolerance

T = TypeVar("T")


@functional_datapipe("shuffled_flatmap")
class ShuffledFlatMapper(Shuffling, IterDataPipe[T]):
    """Yield the items of ``fn(item)``, mixing those of up to ``buffer_size`` source items.

    Without ``fn`` the source's items are taken apart themselves. Each item that is
    yielded is the next of an expansion drawn from a seed; when one is exhausted, that of
    the next source item takes its place. ``fn`` may be a generator function, or an async
    generator function, as for flatmap, and ``input_col`` picks what is handed to it.
    ``on_error`` and ``max_errors`` are those of ``flatmap`` too: what is made in place of
    the rest of an expansion is mixed with the others.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> sorted(IterableWrapper([[3, 1], [2]]).shuffled_flatmap())
    [1, 2, 3]
    """

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
        # Only what is in memory is looked at: another source would have to be read.
        is_plain = self.fn is itself and self.input_col is None and not self.tolerance.leaves_out
        wrapped = self.source.iterable if isinstance(self.source, IterableWrapper) else None
        if is_plain and isinstance(wrapped, list | tuple | dict | set | frozenset):
            return sum(map(len, wrapped))
        raise TypeError(f"{self!r} cannot say how many items it has")

    def new_pass(self, run: Run[Any]) -> ShuffledFlatMapPass[T]:
        seed = self.next_seed() if self.shuffles else 0
        return ShuffledFlatMapPass(run, self.buffer_size if self.shuffles else 1, seed)

    def cursor_form(self) -> Form:
        opened = list_of(row(COUNT, COUNT), most=self.buffer_size if self.shuffles else 1)
        return fields(
            {
                "seed": SEED,
                "open": opened,
                "taken": whole(most=most_items(self.source)),
                **counts("drawn", "yielded", "errors"),
            },
            _OPEN_WERE_TAKEN,
            _EACH_DRAW_COUNTS,
        )


_OPEN_WERE_TAKEN: Rule = (
    "the expansions that are open are of different items that were taken",
    lambda cursor: (
        is_ascending(sorted(number for number, _ in cursor["open"]))
        and all(number < cursor["taken"] for number, _ in cursor["open"])
    ),
)
_EACH_DRAW_COUNTS: Rule = (
    "each draw is for an item, or for an expansion that has ended",
    lambda cursor: (
        cursor["drawn"] == cursor["yielded"] + cursor["taken"] - len(cursor["open"])
        and sum(offset for _, offset in cursor["open"]) <= cursor["yielded"]
    ),
)


@dataclass
class OpenExpansion(Generic[T]):
    """What a source item expands to, how much of it was taken, and whether that failed."""

    held: Held[Any]
    parts: Iterator[T]
    offset: int = 0
    errors: int = 0


@dataclass
class ShuffledFlatMapPass(Pass[T]):
    """One pass over a ShuffledFlatMapper: the expansions it has open, and the draws made.

    A pass that has one open at a time is a flatmap.
    """

    marks = ("seed", "drawn", "taken", "yielded", "errors")

    width: int
    seed: int
    drawn: int = 0
    taken: int = 0
    yielded: int = 0
    errors: int = 0
    expansions: list[OpenExpansion[T]] = field(default_factory=list, repr=False)
    #: The numbers of the source items that were open where this pass goes on from, and
    #: how much of them was taken.
    were_open: list[list[int]] = field(default_factory=list, repr=False)
    cursors: Cursors = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[T]:
        draw = Random(self.seed).random
        for _ in range(self.drawn):
            draw()
        numbers = sorted(number for number, _ in self.were_open)
        items: Rereader[Any] = Rereader(self.source, numbers, self.taken, self.cursors)
        with calling(self.pipe.expand, self.pipe) as expand, closing_items(items), self._closing():
            self._open_again(items.again, expand)
            self._fill(items, expand)
            while self.expansions:
                self.drawn += 1
                place = int(draw() * len(self.expansions))
                expansion = self.expansions[place]
                part = self._next(expansion)
                if part is END:
                    del self.expansions[place]
                    self._fill(items, expand)
                    continue
                expansion.offset += 1
                self.yielded += 1
                yield part

    def _fill(self, items: Rereader[Any], expand: Callable[..., Any]) -> None:
        for held in islice(items, self.width - len(self.expansions)):
            self._open(held, expand)
            self.taken = items.taken

    def _open(self, held: Held[Any], expand: Callable[..., Any]) -> OpenExpansion[T]:
        before = self.errors
        expansion: OpenExpansion[T] = OpenExpansion(held, parts_of(self, expand, held.item))
        expansion.errors = self.errors - before
        self.expansions.append(expansion)
        return expansion

    def _next(self, expansion: OpenExpansion[T]) -> Any:
        before = self.errors
        part = next_part(expansion.parts, self.pipe)
        expansion.errors += self.errors - before
        return part

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            for expansion in self.expansions:
                close_items(expansion.parts)
            self.expansions.clear()

    # Going on -------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        opened = [[each.held.number, each.offset] for each in self.expansions]
        # What is open is opened once more, and fails once more where it failed.
        again = sum(each.errors for each in self.expansions)
        return {**super().cursor(), "errors": self.errors - again, "open": opened}

    def put_above(self, into: Cursors) -> None:
        oldest = min(self.expansions, key=lambda each: each.held.number, default=None)
        if oldest is not None:
            add_cursors(oldest.held.before, into)
        else:
            self.source.put_cursors(into)

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        for name in self.marks:
            setattr(self, name, cursor[name])
        self.pipe.follow_seed(self.seed)
        self.were_open, self.cursors = cursor["open"], cursors
        return position - self.yielded

    def _open_again(self, held: list[Held[Any]], expand: Callable[..., Any]) -> None:
        items = {each.number: each for each in held}
        for number, offset in self.were_open:
            expansion = self._open(items[number], expand)
            while expansion.offset < offset and self._next(expansion) is not END:
                expansion.offset += 1
