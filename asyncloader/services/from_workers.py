"""What stands in the loader's graph for what workers run.

This file is about ``FromWorkers``: it yields the items of a part, and knows where all its
workers stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

from asyncloader.datapipes.going_on.cursors import (
    Cursor,
    Cursors,
    cursor_of,
    number_of,
    put_cursor,
    take_number_of,
)
from asyncloader.datapipes.going_on.forms import (
    COUNT,
    Form,
    FormOf,
    cursors,
    fields,
    just,
    list_of,
    row,
    whole,
)
from asyncloader.datapipes.going_on.journal import Journal
from asyncloader.datapipes.going_on.tidings import piece, unnumbered_in
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.kinds import is_without_order
from asyncloader.errors import LoaderError, SnapshotError
from asyncloader.graph.walk import breadth_first
from asyncloader.services.elastic import SPREAD, spread_place
from asyncloader.workers.place import (
    cursor_of_place,
    later_place,
    place_form,
    place_of_cursor,
)
from asyncloader.workers.worker_stream import WorkerStream

#: A worker, and how many items of it were taken one after the other.
Run = list[int]


def from_workers_form(
    workers: int, *, in_order: bool, dispatch: int | None, inside: FormOf
) -> Form:
    """Return the form of the cursors of a part that ran in so many workers.

    ``dispatch`` is the number of the pipe that dealt its items, if there was one, and ``inside``
    says what form the cursors of the part's pipes have.
    """
    place, may_have = place_form(workers, dispatch)
    worker = whole(most=workers - 1)
    own = fields(
        {
            "taken": COUNT,
            "in_order": just(in_order),
            "runs": list_of(row(worker, whole(least=1))),
            "told": list_of(row(worker, list_of(piece))),
            **place,
        },
        ("each worker has one turn", lambda cursor: _differ(cursor["turns"])),
        ("what was taken is what was taken of all workers", _adds_up),
        ("the workers go on with what was dealt to them", partial(_is_dealt, dispatch)),
        may_have=may_have,
    )
    spread = fields({SPREAD: cursors, "deals": just(dispatch)})

    def check(value: Any, where: str, form_of: FormOf) -> None:
        is_spread = type(value) is dict and SPREAD in value
        (spread if is_spread else own)(value, where, inside)

    return check


def _differ(numbers: list[int]) -> bool:
    return len(set(numbers)) == len(numbers)


def _adds_up(cursor: Cursor) -> bool:
    return bool(cursor["taken"] == sum(mark[0] + more for mark, more in cursor["workers"]))


def _is_dealt(dispatch: int | None, cursor: Cursor) -> bool:
    if dispatch is None:
        return True
    marks = [dict(mark[1]) for mark, _ in cursor["workers"]]
    dealt = [mark[dispatch]["taken"] if dispatch in mark else 0 for mark in marks]
    if "deal" not in cursor:
        return not any(dealt)
    first = min(taken * len(dealt) + worker for worker, taken in enumerate(dealt))
    mark, had = cursor["deal"]
    return bool(had == dealt and mark[0] <= first)


class FromWorkers(IterDataPipe[Any]):
    """Yield the items of a part that runs in workers; stands in the part's place.

    Where workers are taken as they come, or hand out as they come, no order comes again by
    itself: then what was taken after a cursor belongs to it, and what the workers told since.
    """

    edges = ()

    is_stand_in = True

    def __init__(self, end: Any) -> None:
        self.part = stage_name(end)
        self.length: int | None = None
        #: Whether the workers run pipes that may yield another number of items.
        self.is_changed = False
        #: The names of those who may read this twice, as nobody knows how they read.
        self.readers = ""
        #: The name of a pipe in the workers of which no state can be taken, if there is one.
        self.unnumbered = ""
        self.stream: WorkerStream | None = None
        self._running: WorkerStream | None = None
        self._taken = 0
        self._unwanted = 0
        self._workers_have_order = not any(map(is_without_order, breadth_first(end)))
        # What a reading service put into the graph has no number there.
        numbered = (pipe for pipe in breadth_first(end) if number_of(pipe) is not None)
        take_number_of(self, next(numbered, end))

    def __len__(self) -> int:
        if self.is_changed:
            raise TypeError(
                f"{self!r} has no length, as worker_init_fn returned pipes that may yield another"
                " number of items; put them into the graph instead, where they are counted"
            )
        if self.length is None:
            raise TypeError(f"{self!r} has no length")
        return self.length

    def is_made_elsewhere(self) -> bool:
        return True

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they are taken from the workers."""
        stream = self._taken_stream()
        while items := await self._take(stream):
            unwanted = min(self._unwanted, len(items))
            self._unwanted -= unwanted
            self._taken += len(items)
            if unwanted < len(items):
                yield items[unwanted:] if unwanted else items
            # What was yielded is not kept alive here while more is waited for.
            del items

    def begin_epoch(self, stream: WorkerStream, *, may_be_changed: bool = False) -> None:
        """Yield the items of this stream when iterated next.

        ``may_be_changed`` says whether the workers may run other pipes than this stands for.
        """
        self.stream, self._running = stream, None
        self._taken = self._unwanted = 0
        self.unnumbered = ""
        self._is_in_order = stream.is_in_order
        self._tells = may_be_changed or not self._workers_have_order
        if self._tells:
            stream.keep_told()
        self._runs, self._told = Journal(), Journal()

    def has_no_order(self) -> bool:
        """Whether the workers' items are taken, or may be handed out there, as they come."""
        return self.stream is not None and (self._tells or not self._is_in_order)

    def first_cursor(self) -> Cursor:
        """Return the cursor of the beginning, which is to know what is taken after it."""
        assert self.stream is not None
        return self._cursor(self.stream, 0)

    def put_cursors(self, into: Cursors) -> None:
        if self._running is not None:
            put_cursor(self, self._cursor(self._running, self._taken), into)

    def _cursor(self, stream: WorkerStream, taken: int) -> Cursor:
        return {
            "taken": taken,
            "in_order": self._is_in_order,
            **self._later(),
            **cursor_of_place(stream.place()),
        }

    def _later(self, runs: Iterable[Run] = (), told: Iterable[Any] = ()) -> Cursor:
        """Return these and, where no order says it, all that will follow them."""
        return {
            "runs": [*runs] if self._is_in_order else self._runs.since_now(runs),
            "told": self._told.since_now(told) if self._tells else [*told],
        }

    def aiter_from(self, position: int, cursors: Cursors) -> AsyncIterable[Any]:
        if self.stream is None:
            raise self._read_twice()
        cursor = cursor_of(self, cursors)
        if cursor is None:
            self._unwanted = position
        elif SPREAD in cursor:
            self._taken = position
            self.stream.go_on(spread_place(cursor, position, self.stream.workers))
        else:
            self._go_on(self.stream, position, cursor)
        return self

    def _go_on(self, stream: WorkerStream, position: int, cursor: Cursor) -> None:
        before, following = _parted(cursor["runs"], position - cursor["taken"])
        told = list(cursor["told"])
        place = later_place(place_of_cursor(cursor), _counts(before), told)
        self._taken = cursor["taken"] + sum(count for _, count in before)
        self._unwanted = position - self._taken
        if self._unwanted < 0:
            raise SnapshotError(
                f"the state contradicts itself: {self._taken} items were taken of {self!r}, but"
                f" only {position} handed on"
            )
        # A pipe of which nothing is known reads all of it again, and goes by its order.
        stream.go_on(place, following)
        # The cursor stays good for what follows, as long as that belongs to it.
        cursor |= self._later(before, told)

    async def _take(self, stream: WorkerStream) -> list[Any]:
        if self._is_in_order and not self._tells:
            return await stream.take()
        seen = stream.positions()
        items = await stream.take()
        if not self._is_in_order:
            for run in _runs(seen, stream.positions()):
                self._runs.add(run)
        for worker, pieces in stream.told():
            self.unnumbered = self.unnumbered or unnumbered_in(pieces)
            self._told.add([worker, pieces])
        return items

    def _read_twice(self) -> LoaderError:
        return LoaderError(
            f"{self.readers or 'a pipe'} reads twice in one epoch what comes from the workers, in"
            " which it comes once. Read it once, or put the pipe that reads twice before those"
            " that have to stay in the loader's process"
        )

    def _taken_stream(self) -> WorkerStream:
        stream, self.stream = self.stream, None
        if stream is None:
            raise self._read_twice()
        self._running = stream
        return stream

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for items in self.groups():
            for item in items:
                yield item
            # Nothing handed out is kept alive here while the next is waited for.
            del items, item

    def __repr__(self) -> str:
        return f"FromWorkers({self.part})"


def _parted(runs: Iterable[Sequence[int]], count: int) -> tuple[list[Run], list[Run]]:
    """Return the runs of the first ``count`` items, and those of the others."""
    before, following = [], []
    for worker, items in runs:
        first = max(0, min(items, count))
        if first:
            before.append([worker, first])
        if first < items:
            following.append([worker, items - first])
        count -= first
    return before, following


def _counts(runs: Iterable[Run]) -> Counter[int]:
    """Return how many items of each worker these runs have."""
    counts: Counter[int] = Counter()
    for worker, count in runs:
        counts[worker] += count
    return counts


def _runs(before: Sequence[int], now: Sequence[int]) -> list[Run]:
    """Return what was taken of each worker, where so many of each were taken before and now."""
    counts = (after - earlier for earlier, after in zip(before, now, strict=True))
    return [[worker, count] for worker, count in enumerate(counts) if count]
