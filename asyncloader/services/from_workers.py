"""What takes the place, in the loader's graph, of the pipes that workers run.

This file is about ``FromWorkers``: it yields the items of a part of the graph that runs in
workers, and knows where all the workers are. And it is about ``FedFromWorkers``, for a part
whose source lives in the loader's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.replaying import with_those_above
from asyncloader.datapipes.running.cursor_history import CursorHistory
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    items_of,
    number_of,
    put_cursor,
    take_number_of,
)
from asyncloader.datapipes.running.exchange import MadeElsewhere
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.datapipes.settled import NOTHING_PENDING, Ledger, Pending, Settled, SettledRuns
from asyncloader.errors import LoaderError, SnapshotError
from asyncloader.graph.walk import breadth_first
from asyncloader.places.elastic import spread_place
from asyncloader.places.marks import DealStart, Mark
from asyncloader.places.stream_place import (
    SPREAD,
    Stand,
    StreamPlace,
    cursor_of_place,
    cursor_of_shares,
    place_of_cursor,
    place_of_shares,
    with_kept_parts,
)
from asyncloader.runtime import begin_task
from asyncloader.workers.fed_stream import FedStream
from asyncloader.workers.worker_stream import WorkerStream


def added_without_order(name: str) -> str:
    """Return why no state can be taken where a service added a pipe without order."""
    return (
        f"{name} yields results as they come, and no state can say which ones it has yielded,"
        " because a reading service (or a function of one) added it to the graph; add it before"
        " the loader is made, or pass ordered=True"
    )


class Outlet(IterDataPipe[Any]):
    """Yield what workers make of a part of the graph, in whose place it is, once in an epoch."""

    is_stand_in = True

    def __init__(self, end: Any) -> None:
        self.part = stage_name(end)
        #: What its next pass reads; None once one does.
        self.stream: Any = None
        #: The names of pipes that may read this twice: how they read is not known.
        self.readers = ""

    def is_async(self) -> bool:
        return True

    def begin_epoch(self, stream: Any, seeds: dict[int | None, int]) -> None:
        """Yield the items of this stream in the next iteration.

        ``seeds`` are those that all workers shuffle with, by the pipes' numbers.
        """
        self.stream = stream

    def unread(self) -> Any:
        """Return the stream; LoaderError if it was read in this epoch."""
        if self.stream is None:
            raise LoaderError(
                f"{self.readers or 'a pipe'} reads the workers' items twice in one epoch, but they"
                " come only once. Read them once, or put the pipe that reads twice before the pipes"
                " that have to run in the loader's process"
            )
        return self.stream

    def take_stream(self) -> Any:
        """Return the same, to be read now."""
        stream, self.stream = self.unread(), None
        return stream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.part})"


class FromWorkers(Outlet):
    """Yields the items of a part that workers run from its sources on."""

    edges = ()

    stream: WorkerStream | None

    def __init__(self, end: Any) -> None:
        super().__init__(end)
        self.length: int | None = None
        #: Whether the workers run other pipes, which may yield another number of items.
        self.is_changed = False
        #: Whether its items are numbered, as workers tell what becomes of each; and whether they
        #: leave the recorded section here, so that what follows gets them without numbers.
        self.is_numbered = self.settles = False
        #: Whether the numbers of a worker's items are those in which it sends them, one by one.
        self.is_counted = False
        #: The pipe that keeps the parts it has made, by its number, and whether workers run it.
        self.keeper: int | None = None
        self.keeps_inside = False
        self._begun: WorkerStream | None = None
        # Pipes that a reading service added have no number.
        numbered = (pipe for pipe in breadth_first(end) if number_of(pipe) is not None)
        take_number_of(self, next(numbered, end))

    def __len__(self) -> int:
        if self.is_changed:
            raise TypeError(
                f"{self!r} has no length, because worker_init_fn returned pipes that may yield"
                " another number of items; put them into the graph instead, where they are counted"
            )
        if self.length is None:
            raise TypeError(f"{self!r} has no length")
        return self.length

    def new_pass(self, edge: Edge[Any]) -> FromWorkersPass:
        self.unread()
        return RecordedPass(edge) if self.is_numbered else FromWorkersPass(edge)

    def begin_epoch(self, stream: WorkerStream, seeds: dict[int | None, int]) -> None:
        super().begin_epoch(stream, seeds)
        self._begun = stream
        self.seeds = seeds
        stream.is_recorded, stream.is_counted = self.is_numbered, self.is_counted
        # Then its items come by themselves, and their numbers in ranges.
        stream.is_numbered = self.is_numbered and not (self.is_counted and self.settles)

    @property
    def unrecorded(self) -> str:
        """The name of a pipe without order that was added in the workers, or ""."""
        return "" if self._begun is None else self._begun.unrecorded()


class FromWorkersPass(MadeElsewhere, Pass[Any]):
    """The one pass over a FromWorkers: what was taken from its stream."""

    runs_ahead = True

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        #: The stream, once items are taken from it.
        self._stream: WorkerStream | None = None
        self.taken = 0
        self._unwanted = 0
        # Where the pass was before the items that are read one by one now.
        self._before: Stand | None = None

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.begin()
        self._before = self.stand()
        while items := await self.take():
            for item in items:
                yield item
            # Keep no item alive while waiting for the next.
            del items, item
            self._before = self.stand()

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they are taken from the workers."""
        self.begin()
        while items := await self.take():
            yield items
            # Keep nothing alive while waiting for more.
            del items

    def begin(self) -> None:
        """Let the workers begin."""
        stream: WorkerStream = self.pipe.take_stream()
        self._stream = stream
        stream.begin()

    async def come(self) -> None:
        if self._stream is not None:
            await self._stream.come()

    async def take(self) -> list[Any]:
        """Wait for the next items; [] at the end."""
        stream = self._stream
        assert stream is not None
        while True:
            items = await stream.take()
            self.taken += len(items)
            if self._unwanted >= len(items) > 0:
                self._unwanted -= len(items)
                continue
            unwanted, self._unwanted = self._unwanted, 0
            return items[unwanted:] if unwanted else items

    def under_way(self) -> Iterable[UnderWay]:
        return () if self._stream is None else self._stream.holding_up()

    def new_history(self, first: Cursors, needed: Callable[[], int]) -> StandHistory:
        return StandHistory(self, first, needed)

    def holds_much(self) -> bool:
        return self._stream is not None and self._stream.holds_much()

    def stand(self) -> Stand:
        """Return where the pass is."""
        stream = self._stream
        assert stream is not None
        return stream.stand(self.taken)

    def cursor_at(self, stand: Stand) -> Cursor:
        """Return the cursor of a place where the pass was."""
        return cursor_of_place(stand.taken, stand.place())

    def cursor(self) -> Cursor:
        if self._stream is None:
            return {}
        stand = self._before or self.stand()
        stand.forget_dealing_before()
        return self.cursor_at(stand)

    def put_source_cursors(self, into: Cursors) -> None:
        """Add nothing: the pipes above run in the workers."""

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        stream: WorkerStream = self.pipe.unread()
        if cursor is None:
            self._unwanted = position
        elif SPREAD in cursor:
            self.taken = position
            stream.resume_at(spread_place(cursor, position, stream.workers))
        else:
            self._go_on_from(stream, position, cursor)
        return 0

    def _go_on_from(self, stream: WorkerStream, position: int, cursor: Cursor) -> None:
        place = place_of_cursor(cursor)
        self._check_seeds(place)
        self.taken = cursor["taken"]
        self._unwanted = position - self.taken
        if self._unwanted < 0:
            raise SnapshotError(
                f"the state contradicts itself: {self.taken} items were taken from {self.pipe!r},"
                f" but only {position} were passed on; the state is damaged, load another one"
            )
        # A pipe of which nothing is known reads all items again, in their order.
        stream.resume_at(place)

    def _check_seeds(self, place: StreamPlace) -> None:
        """Raise SnapshotError if a worker would shuffle otherwise than those at their beginning."""
        for start in place.starts:
            for number, cursor in with_those_above(start.mark.cursors).items():
                seed = self.pipe.seeds.get(number)
                if seed is not None and cursor.get("seed", seed) != seed:
                    raise SnapshotError(
                        "the state contradicts itself: the items were shuffled with another seed"
                        " than the epoch has; the state is damaged, load another one"
                    )


class StandHistory(CursorHistory):
    """Where the workers were after each group of items.

    What their place would be made from costs nothing to keep; it is made when somebody asks for a
    state, and only once, as a state may be taken at every step.
    """

    def __init__(self, begun: FromWorkersPass, first: Cursors, needed: Callable[[], int]) -> None:
        super().__init__(begun.edge.put_own_cursors, needed, first=first)
        self._begun = begun
        # The cursors of the stand that was asked for last.
        self._latest: tuple[Stand | None, Cursors] = None, {}

    def passed(self, count: int) -> None:
        """Note where the workers are now."""
        stand = self._begun.stand()
        self._add(count, stand)
        oldest = self._entries[0][1]
        if stand.dealing is not None and isinstance(oldest, Stand):
            oldest.forget_dealing_before()

    def _cursors_of(self, entry: Any) -> Cursors:
        if not isinstance(entry, Stand):
            return super()._cursors_of(entry)
        asked_for, cursors = self._latest
        if asked_for is not entry:
            cursors = {}
            put_cursor(self._begun.pipe, self._begun.cursor_at(entry), cursors)
            self._latest = entry, cursors
        return cursors


class RecordedPass(FromWorkersPass):
    """The one pass over a FromWorkers whose items come with their numbers.

    Its place is which numbers are settled, and from where each worker makes the others. Only the
    loader asks for it.
    """

    has_place = False

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        self._recorded: WorkerStream = edge.pipe.stream
        self._begin_with([Settled() for _ in range(edge.pipe.stream.workers)])

    def _begin_with(
        self,
        shares: Sequence[Settled],
        left_out: Iterable[Sequence[Any]] = (),
        pending: Pending = NOTHING_PENDING,
    ) -> None:
        pipe: FromWorkers = self.pipe
        self.ledger = Ledger(
            self.edge.tree.settled_items,
            shares,
            left_out,
            reader=pipe.part,
            pending=pending,
        )

    def begin(self) -> None:
        stream: WorkerStream | None = self.pipe.stream
        if stream is not None:
            stream.record_in(self.ledger, self.pipe.keeper if self.pipe.keeps_inside else None)
        super().begin()

    async def take(self) -> list[Any]:
        return self._settled(await super().take())

    def _settled(self, items: list[Any]) -> list[Any]:
        """Return the items without their numbers, if they leave the section here."""
        if not self.pipe.settles:
            return items
        if not self._recorded.is_numbered:
            self.ledger.hand_on_all(self._recorded.taken_numbers())
            return items
        self.ledger.hand_on_all([each.key for each in items])
        return [each.item for each in items]

    def leave_out_rest(self, items: int, reason: str) -> None:
        """Settle what has come and is not delivered, after the end of so many items."""
        self.ledger.leave_out_rest(items, list(self._recorded.numbers_come()), reason)

    def place(self) -> Cursors:
        """Return where the section is."""
        return {number_of(self.pipe) or 0: cursor_of_shares(self.ledger, self._marks_at)}

    def _marks_at(self, frontiers: list[int]) -> tuple[list[Mark], DealStart | None]:
        marks = self._recorded.marks(frontiers)
        return marks, self._recorded.deal_start(marks)

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        stream: WorkerStream = self.pipe.unread()
        if cursor is not None:
            self._begin_with(
                [Settled.of(SettledRuns(*share)) for share in cursor["shares"]],
                cursor["left_out"],
                Pending(cursor.get("kept", ()), cursor.get("attempts", ())),
            )
            place, pipe = place_of_shares(cursor), self.pipe
            if pipe.keeper is not None:
                place = with_kept_parts(
                    place, self.ledger, pipe.keeper, is_inside=pipe.keeps_inside
                )
            stream.resume_at(place)
        return 0


class FedFromWorkers(Outlet):
    """Sends a source's items to workers, and yields their results in the order they arrive."""

    stream: FedStream | None

    def __init__(self, end: Any, source: Any) -> None:
        super().__init__(end)
        self.source = source
        take_number_of(self, end)

    def new_pass(self, edge: Edge[Any]) -> FedPass:
        return FedPass(edge)


class FedPass(Pass[Any]):
    """The one pass over a FedFromWorkers. It has no place, because requests never come again."""

    has_place = False

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        self._stream: FedStream | None = None

    def under_way(self) -> Iterable[UnderWay]:
        return () if self._stream is None else self._stream.holding_up()

    def __aiter__(self) -> AsyncIterator[Any]:
        return items_of(self.groups())

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they come."""
        stream: FedStream = self.pipe.take_stream()
        self._stream = stream
        stream.begin()
        loop = asyncio.get_running_loop()
        dealing = stream.deal(self.source.abegin())
        dealer = begin_task(loop, dealing, f"asyncloader {self.pipe!r}")
        try:
            while items := await stream.take():
                yield items
                del items
        finally:
            await cancelled([dealer])
            await stream.aclose()
