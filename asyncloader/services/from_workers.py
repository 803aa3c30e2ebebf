"""What stands in the loader's graph for what workers run.

This file is about ``FromWorkers``: it yields the items of a part, and knows where all its
workers stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

from asyncloader.datapipes.going_on.cursors import (
    Cursor,
    Cursors,
    number_of,
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
from asyncloader.datapipes.pipe.run import Epoch, Pass, Run
from asyncloader.errors import LoaderError, SnapshotError
from asyncloader.graph.walk import breadth_first
from asyncloader.services.elastic import SPREAD, spread_place
from asyncloader.workers.loader_side.place import (
    cursor_of_place,
    later_place,
    place_form,
    place_of_cursor,
)
from asyncloader.workers.loader_side.worker_stream import WorkerStream

#: A worker, and how many items of it were taken one after the other.
Stretch = list[int]


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

    def is_async(self) -> bool:
        return True

    def new_pass(self, run: Run[Any]) -> FromWorkersPass:
        return FromWorkersPass(run)

    def begin_epoch(self, stream: WorkerStream, *, may_be_changed: bool = False) -> None:
        """Yield the items of this stream when iterated next.

        ``may_be_changed`` says whether the workers may run other pipes than this stands for.
        """
        self.stream = stream
        self.unnumbered = ""
        self.is_in_order = stream.is_in_order
        self.tells = may_be_changed or not self._workers_have_order
        if self.tells:
            stream.keep_told()
        self.stretches, self.told = Journal(), Journal()

    def has_no_order(self) -> bool:
        """Whether the workers' items are taken, or may be handed out there, as they come."""
        return self.stream is not None and (self.tells or not self.is_in_order)

    def first_cursor(self, epoch: Epoch) -> Cursor:
        """Return the cursor of the beginning, which is to know what is taken after it."""
        assert self.stream is not None
        return self.cursor(self.stream, 0)

    def cursor(self, stream: WorkerStream, taken: int) -> Cursor:
        """Return where a stream stands of which so many items were taken."""
        return {
            "taken": taken,
            "in_order": self.is_in_order,
            **self.later(),
            **cursor_of_place(stream.place()),
        }

    def later(self, stretches: Iterable[Stretch] = (), told: Iterable[Any] = ()) -> Cursor:
        """Return these and, where no order says it, all that will follow them."""
        return {
            "runs": [*stretches] if self.is_in_order else self.stretches.since_now(stretches),
            "told": self.told.since_now(told) if self.tells else [*told],
        }

    def read_twice(self) -> LoaderError:
        """Return the error of a second reading in one epoch."""
        return LoaderError(
            f"{self.readers or 'a pipe'} reads twice in one epoch what comes from the workers, in"
            " which it comes once. Read it once, or put the pipe that reads twice before those"
            " that have to stay in the loader's process"
        )

    def __repr__(self) -> str:
        return f"FromWorkers({self.part})"


class FromWorkersPass(Pass[Any]):
    """The one pass over a FromWorkers: what was taken of its stream."""

    marks = ()

    def __init__(self, run: Run[Any]) -> None:
        super().__init__(run)
        #: The stream, once items are taken of it.
        self._stream: WorkerStream | None = None
        self.taken = 0
        self._unwanted = 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for items in self.groups():
            for item in items:
                yield item
            # Nothing handed out is kept alive here while the next is waited for.
            del items, item

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they are taken from the workers."""
        pipe: FromWorkers = self.pipe
        stream, pipe.stream = pipe.stream, None
        if stream is None:
            raise pipe.read_twice()
        self._stream = stream
        while items := await self._take(pipe, stream):
            unwanted = min(self._unwanted, len(items))
            self._unwanted -= unwanted
            self.taken += len(items)
            if unwanted < len(items):
                yield items[unwanted:] if unwanted else items
            # What was yielded is not kept alive here while more is waited for.
            del items

    async def _take(self, pipe: FromWorkers, stream: WorkerStream) -> list[Any]:
        if pipe.is_in_order and not pipe.tells:
            return await stream.take()
        seen = stream.positions()
        items = await stream.take()
        if not pipe.is_in_order:
            for stretch in _stretches(seen, stream.positions()):
                pipe.stretches.add(stretch)
        for worker, pieces in stream.told():
            pipe.unnumbered = pipe.unnumbered or unnumbered_in(pieces)
            pipe.told.add([worker, pieces])
        return items

    def cursor(self) -> Cursor:
        stream = self._stream
        cursor: Cursor = {} if stream is None else self.pipe.cursor(stream, self.taken)
        return cursor

    def put_above(self, into: Cursors) -> None:
        """Add nothing: what is above runs in the workers."""

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        stream: WorkerStream | None = self.pipe.stream
        if stream is None:
            raise self.pipe.read_twice()
        if cursor is None:
            self._unwanted = position
        elif SPREAD in cursor:
            self.taken = position
            stream.go_on(spread_place(cursor, position, stream.workers))
        else:
            self._go_on_from(stream, position, cursor)
        return 0

    def _go_on_from(self, stream: WorkerStream, position: int, cursor: Cursor) -> None:
        before, following = _parted(cursor["runs"], position - cursor["taken"])
        told = list(cursor["told"])
        place = later_place(place_of_cursor(cursor), _counts(before), told)
        self.taken = cursor["taken"] + sum(count for _, count in before)
        self._unwanted = position - self.taken
        if self._unwanted < 0:
            raise SnapshotError(
                f"the state contradicts itself: {self.taken} items were taken of {self.pipe!r},"
                f" but only {position} handed on"
            )
        # A pipe of which nothing is known reads all of it again, and goes by its order.
        stream.go_on(place, following)
        # The cursor stays good for what follows, as long as that belongs to it.
        cursor |= self.pipe.later(before, told)


def _parted(runs: Iterable[Sequence[int]], count: int) -> tuple[list[Stretch], list[Stretch]]:
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


def _counts(runs: Iterable[Stretch]) -> Counter[int]:
    """Return how many items of each worker these runs have."""
    counts: Counter[int] = Counter()
    for worker, count in runs:
        counts[worker] += count
    return counts


def _stretches(before: Sequence[int], now: Sequence[int]) -> list[Stretch]:
    """Return what was taken of each worker, where so many of each were taken before and now."""
    counts = (after - earlier for earlier, after in zip(before, now, strict=True))
    return [[worker, count] for worker, count in enumerate(counts) if count]
