"""What takes the place, in the loader's graph, of the pipes that workers run.

This file is about ``FromWorkers``: it yields the items of a part of the graph that runs in
workers, and knows where all the workers are. And it is about ``FedFromWorkers``, for a part
whose source lives in the loader's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.recording import Ledger, Settled
from asyncloader.datapipes.replaying import with_those_above
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    number_of,
    take_number_of,
)
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Pass, Run, RunTree
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.datapipes.running.traits import is_without_order
from asyncloader.datapipes.running.unordered import Journal, unnumbered_in
from asyncloader.errors import LoaderError, SnapshotError
from asyncloader.graph.walk import breadth_first
from asyncloader.places.elastic import spread_place
from asyncloader.places.marks import DealStart, Mark
from asyncloader.places.stream_place import (
    SPREAD,
    Stand,
    Streaming,
    StreamPlace,
    Stretch,
    counts_of,
    cursor_of_place,
    cursor_of_shares,
    later_place,
    parted,
    place_of_cursor,
    place_of_shares,
    stretches_between,
)
from asyncloader.runtime import begin_task
from asyncloader.waiting import do_nothing
from asyncloader.workers.fed_stream import FedStream
from asyncloader.workers.worker_stream import WorkerStream


class FromWorkers(IterDataPipe[Any]):
    """Yield the items of a part that runs in workers, in whose place it is.

    Where items are taken from workers in the order they arrive, or workers yield in the order
    that results arrive, that order does not repeat by itself. Then a cursor also has what was
    taken after it, and what the workers told since.
    """

    edges = ()

    is_stand_in = True

    def __init__(self, end: Any) -> None:
        self.part = stage_name(end)
        self.length: int | None = None
        #: Whether the workers run other pipes, which may yield another number of items.
        self.is_changed = False
        #: The names of pipes that may read this twice: how they read is not known.
        self.readers = ""
        #: The name of a pipe in the workers of which no state can be taken, or "".
        self.unnumbered = ""
        #: Whether its items are numbered, as workers tell what becomes of each; and whether they
        #: leave the recorded section here, so that what follows gets them without numbers.
        self.is_numbered = self.settles = False
        self.stream: WorkerStream | None = None
        self._workers_have_order = not any(map(is_without_order, breadth_first(end)))
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

    def is_made_elsewhere(self) -> bool:
        return True

    def is_async(self) -> bool:
        return True

    def new_pass(self, run: Run[Any]) -> FromWorkersPass:
        return RecordedPass(run) if self.is_numbered else FromWorkersPass(run)

    def begin_epoch(
        self,
        stream: WorkerStream,
        seeds: dict[int | None, int],
        *,
        may_be_changed: bool = False,
    ) -> None:
        """Yield the items of this stream in the next iteration.

        ``seeds`` are those that all workers shuffle with, by the pipes' numbers;
        ``may_be_changed`` says whether the workers may run other pipes than those of the part.
        """
        self.stream = stream
        self.unnumbered = ""
        self.seeds = seeds
        self.is_in_order = stream.is_in_order
        if self.is_numbered:
            stream.is_recorded = True
            self.tells, self.is_repeated = False, True
            return
        self.tells = may_be_changed or not self._workers_have_order
        #: Whether another run has the same order of itself.
        self.is_repeated = self.is_in_order and not self.tells
        if self.tells:
            stream.keep_told()
        if not self.is_repeated:
            self.stretches, self.told = Journal(), Journal()

    def has_no_order(self) -> bool:
        """Whether the order of the items depends on which results arrive first."""
        return self.stream is not None and not self.is_repeated

    def first_cursor(self, tree: RunTree) -> Cursor:
        """Return the initial cursor, which records what is taken after it."""
        assert self.stream is not None
        return self.cursor(0, self.later(), self.stream.first_place)

    def cursor(self, taken: int, later: Cursor, place: StreamPlace) -> Cursor:
        """Return the cursor of a place of the stream, of which so many items were taken."""
        own = cursor_of_place(place)
        return Streaming(taken=taken, in_order=self.is_in_order, **later, **own).saved()

    def later(self, stretches: Iterable[Stretch] = (), told: Iterable[Any] = ()) -> Cursor:
        """Return these and, where the order does not repeat, all that will follow them."""
        return {
            "runs": [*stretches] if self.is_in_order else self.stretches.since_now(stretches),
            "told": self.told.since_now(told) if self.tells else [*told],
        }

    def read_twice(self) -> LoaderError:
        """Return the error of a second reading in one epoch."""
        return LoaderError(
            f"{self.readers or 'a pipe'} reads the workers' items twice in one epoch, but they"
            " come only once. Read them once, or put the pipe that reads twice before the pipes"
            " that have to run in the loader's process"
        )

    def __repr__(self) -> str:
        return f"FromWorkers({self.part})"


class FromWorkersPass(Pass[Any]):
    """The one pass over a FromWorkers: what was taken from its stream.

    It is read by ``take_ready`` and, where that finds nothing, ``take``; or by ``groups``,
    which does the same for pipes that run in the loader's process.
    """

    runs_ahead = True

    def __init__(self, run: Run[Any]) -> None:
        super().__init__(run)
        #: The stream, once items are taken from it.
        self._stream: WorkerStream | None = None
        self.taken = 0
        self._unwanted = 0
        # Where the pass was before the items that are read one by one now.
        self._before: Stand | None = None
        self._is_repeated = run.pipe.is_repeated

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.begin(do_nothing)
        self._before = self.stand()
        while items := await self.take():
            for item in items:
                yield item
            # Keep no item alive while waiting for the next.
            del items, item
            self._before = self.stand()

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they are taken from the workers."""
        self.begin(do_nothing)
        while items := await self.take():
            yield items
            # Keep nothing alive while waiting for more.
            del items

    def begin(self, listener: Callable[[], object]) -> WorkerStream:
        """Let the workers begin; the listener is called when something came from one."""
        pipe: FromWorkers = self.run.pipe
        stream, pipe.stream = pipe.stream, None
        if stream is None:
            raise pipe.read_twice()
        self._stream = stream
        stream.listen(listener)
        stream.begin()
        return stream

    def end(self) -> None:
        """Call the listener no more."""
        if self._stream is not None:
            self._stream.listen(do_nothing)

    def take_ready(self) -> list[Any]:
        """Return the items that are there; raise an error in the place of its item.

        If there are none, ``take`` has to be awaited where the stream ``needs_take``.
        """
        stream = self._stream
        assert stream is not None
        if self._unwanted:
            return []
        seen = None if self._is_repeated else stream.positions()
        items = stream.take_ready()
        if seen is not None:
            self._note(stream, seen)
        self.taken += len(items)
        return items

    async def take(self, *, is_late: bool = False) -> list[Any]:
        """Wait for the next items; [] at the end."""
        stream = self._stream
        assert stream is not None
        while True:
            seen = None if self._is_repeated else stream.positions()
            items = await stream.take(is_late=is_late)
            if seen is not None:
                self._note(stream, seen)
            self.taken += len(items)
            if self._unwanted >= len(items) > 0:
                self._unwanted -= len(items)
                continue
            unwanted, self._unwanted = self._unwanted, 0
            return items[unwanted:] if unwanted else items

    def holds_much(self) -> bool:
        return self._stream is not None and self._stream.holds_much()

    def stand(self) -> Stand:
        """Return where the pass is."""
        stream = self._stream
        assert stream is not None
        later = None if self._is_repeated else self.run.pipe.later()
        return stream.stand(self.taken, later)

    def cursor_at(self, stand: Stand) -> Cursor:
        """Return the cursor of a place where the pass was."""
        pipe: FromWorkers = self.pipe
        return pipe.cursor(stand.taken, stand.later or pipe.later(), stand.place())

    def cursor(self) -> Cursor:
        if self._stream is None:
            return {}
        stand = self._before or self.stand()
        stand.forget_dealing_before()
        return self.cursor_at(stand)

    def _note(self, stream: WorkerStream, seen: list[int]) -> None:
        """Note in which order items were taken, and what the workers told of them."""
        pipe: FromWorkers = self.pipe
        if not pipe.is_in_order:
            for stretch in stretches_between(seen, stream.positions()):
                pipe.stretches.add(stretch)
        for worker, pieces in stream.told():
            pipe.unnumbered = pipe.unnumbered or unnumbered_in(pieces)
            pipe.told.add([worker, pieces])

    def put_source_cursors(self, into: Cursors) -> None:
        """Add nothing: the pipes above run in the workers."""

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        stream: WorkerStream | None = self.pipe.stream
        if stream is None:
            raise self.pipe.read_twice()
        if cursor is None:
            self._unwanted = position
        elif SPREAD in cursor:
            self.taken = position
            stream.resume_at(spread_place(cursor, position, stream.workers))
        else:
            self._go_on_from(stream, position, cursor)
        return 0

    def _go_on_from(self, stream: WorkerStream, position: int, cursor: Cursor) -> None:
        before, following = parted(cursor["runs"], position - cursor["taken"])
        told = list(cursor["told"])
        place = later_place(place_of_cursor(cursor), counts_of(before), told)
        self._check_seeds(place)
        self.taken = cursor["taken"] + sum(count for _, count in before)
        self._unwanted = position - self.taken
        if self._unwanted < 0:
            raise SnapshotError(
                f"the state contradicts itself: {self.taken} items were taken from {self.pipe!r},"
                f" but only {position} were passed on; the state is damaged, load another one"
            )
        # A pipe of which nothing is known reads all items again, in their order.
        stream.resume_at(place, following)
        # The cursor stays valid later on, because it records what follows.
        cursor |= self.pipe.later(before, told)

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


class RecordedPass(FromWorkersPass):
    """The one pass over a FromWorkers whose items come with their numbers.

    Its place is which numbers are settled, and from where each worker makes the others. Only the
    loader asks for it.
    """

    has_place = False

    def __init__(self, run: Run[Any]) -> None:
        super().__init__(run)
        self._recorded: WorkerStream = run.pipe.stream
        self._begin_with([Settled() for _ in range(run.pipe.stream.workers)])

    def _begin_with(
        self, shares: Sequence[Settled], left_out: Iterable[Sequence[Any]] = ()
    ) -> None:
        self.ledger = Ledger(self.run.tree.settled_items, shares, left_out)

    def begin(self, listener: Callable[[], object]) -> WorkerStream:
        stream: WorkerStream | None = self.pipe.stream
        if stream is not None:
            stream.record_in(self.ledger)
        return super().begin(listener)

    def take_ready(self) -> list[Any]:
        return self._settled(super().take_ready())

    async def take(self, *, is_late: bool = False) -> list[Any]:
        return self._settled(await super().take(is_late=is_late))

    def _settled(self, items: list[Any]) -> list[Any]:
        """Return the items without their numbers, if they leave the section here."""
        if not self.pipe.settles:
            return items
        self.ledger.hand_on_all([each.key for each in items])
        return [each.item for each in items]

    def place(self) -> Cursors:
        """Return where the section is."""
        return {number_of(self.pipe) or 0: cursor_of_shares(self.ledger, self._marks_at)}

    def _marks_at(self, frontiers: list[int]) -> tuple[list[Mark], DealStart | None]:
        marks = self._recorded.marks(frontiers)
        return marks, self._recorded.deal_start(marks)

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        stream: WorkerStream | None = self.pipe.stream
        if stream is None:
            raise self.pipe.read_twice()
        if cursor is not None:
            self._begin_with(
                [Settled.of_runs(frontier, runs) for frontier, runs in cursor["shares"]],
                cursor["left_out"],
            )
            stream.resume_at(place_of_shares(cursor))
        return 0


class FedFromWorkers(IterDataPipe[Any]):
    """Send a source's items to workers, and yield their results in the order they arrive."""

    is_stand_in = True

    def __init__(self, end: Any, source: Any) -> None:
        self.part = stage_name(end)
        self.source = source
        self.stream: FedStream | None = None
        #: The names of pipes that may read this twice.
        self.readers = ""
        take_number_of(self, end)

    def is_async(self) -> bool:
        return True

    def new_pass(self, run: Run[Any]) -> FedPass:
        return FedPass(run)

    def begin_epoch(
        self,
        stream: FedStream,
        seeds: dict[int | None, int],
        *,
        may_be_changed: bool = False,
    ) -> None:
        """Yield the items of this stream in the next iteration."""
        self.stream = stream

    def __repr__(self) -> str:
        return f"FedFromWorkers({self.part})"


class FedPass(Pass[Any]):
    """The one pass over a FedFromWorkers. It has no place, because requests never come again."""

    has_place = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with aclosing(self.groups()) as groups:
            async for items in groups:
                for item in items:
                    yield item
                # Keep no item alive while waiting for the next.
                del items, item

    async def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in the lists in which they come."""
        pipe: FedFromWorkers = self.pipe
        stream, pipe.stream = pipe.stream, None
        if stream is None:
            raise LoaderError(
                f"{pipe!r} was read twice in one epoch, but the workers' items come only once;"
                " read it once"
            )
        stream.begin()
        loop = asyncio.get_running_loop()
        dealing = stream.deal(self.source.abegin())
        dealer = begin_task(loop, dealing, f"asyncloader {pipe!r}")
        try:
            while items := await stream.take():
                yield items
                del items
        finally:
            await cancelled([dealer])
            await stream.aclose()
