"""The same number of items on every rank.

This file is about fullsync, which reads ahead of its consumer and yields items once all ranks
have as many. The ranks agree on windows, which are the items they hold at that time, so that
one collective covers many items. A ``Meeting`` makes these agreements, also where ranks leave
an epoch at different places.

    source ─▶ held: [ agreed │ not yet ] ─▶ consumer
                      ▲ the least that any rank has

A service may want uneven shares padded instead. Then a rank whose share has ended repeats its
last item for as long as another has more. Its newest item is held back until the next one has
come, so that the last item is known before the consumer has it and may change it.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Generic, Literal, Self, TypeVar

from asyncloader.arguments import checked_seconds
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.running.conveyor import RunningAhead
from asyncloader.datapipes.running.cursors import Cursor, Cursors, groups_of
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.run_place import cancelled
from asyncloader.datapipes.running.traits import is_async_pipe
from asyncloader.datapipes.running.watch.watching import UNCOUNTED
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import RankError, SnapshotError
from asyncloader.ranks import (
    Flags,
    RankGroup,
    Statement,
    Topic,
    open_group,
    ranks_in_words,
    world_size,
)
from asyncloader.runtime import begin_task
from asyncloader.waiting import LoopWaiter

T = TypeVar("T")

#: What happens to items that not all ranks have: they are left out, the other ranks repeat their
#: last item, or they are an error.
Uneven = Literal["drop", "pad", "error"]


class Meeting:
    """Agreements between the ranks of a group, one after another, numbered as moments.

    Ranks may leave an epoch early at different moments, and a collective that has begun cannot
    be cancelled. So a rank repeats its statement until all others have reached its moment.
    """

    def __init__(self, group: RankGroup, uneven: Uneven = "drop") -> None:
        self.group = group
        self.uneven = uneven
        self.epoch = 0
        #: How many of the items before the one at which the epoch resumes were padding.
        self.padding = 0
        #: How many items of the epoch are this rank's own, if it pads and its share has ended.
        self.own_items: int | None = None

    async def begin_epoch(self, seed: int, flags: Flags) -> list[Statement]:
        """Begin an epoch with all ranks; return each rank's statement of its seed."""
        self.epoch += 1
        while True:
            said = await self._exchange(Topic.SEED, 0, seed, flags)
            if len({each.moment for each in said}) == 1:
                return said
            # A rank that never read an epoch has counted fewer than the others and catches up.
            self.epoch = max(each.epoch for each in said)

    async def agree(
        self, kind: Topic, *, window: int = 0, count: int = 0, flags: Flags = Flags.NONE
    ) -> list[Statement]:
        """Return each rank's statement at this moment; RankError if others are past it."""
        while True:
            said = await self._exchange(kind, window, count, flags)
            moment = (self.epoch, kind, window)
            ahead = [rank for rank, each in enumerate(said) if each.moment > moment]
            if ahead:
                raise RankError(
                    f"{ranks_in_words(ahead)} left the epoch that rank {self.group.rank} is still"
                    " reading; leave an epoch after the same number of items on every rank",
                    ranks=tuple(ahead),
                )
            if all(each.moment == moment for each in said):
                return said

    async def _exchange(
        self, kind: Topic, window: int, count: int, flags: Flags
    ) -> list[Statement]:
        return await self.group.exchange(Statement(self.epoch, kind, window, count, flags))


#: How many items are held at first, and at most.
FIRST_ROOM = 2
MOST_ROOM = 1024

#: Items that arrive within this many seconds of each other are agreed on together.
WINDOW_SECONDS = 0.001


@functional_datapipe("fullsync")
class FullSync(OneToOne, IterDataPipe[T]):
    """Yield the source's items, as many on every rank as on the rank that has the fewest.

    A few items are held ready, more where they come quickly. An error of the source on
    one rank is raised on all of them, after the items before it; a rank that is lost, or
    not heard of for ``timeout`` seconds, is a RankError. Without a distributed run, or with
    one rank, the items pass as they are. The pipe stays in the loader's process.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).fullsync(timeout=60))
    [0, 1, 2]
    """

    #: The meeting of the loader's ranks; a pipe that is used alone opens a group for each pass.
    meeting: Meeting | None = None

    def __init__(self, datapipe: IterDataPipe[T], timeout: float = 1800) -> None:
        self.source = iterable_source(datapipe)
        self.timeout = checked_seconds("timeout", timeout)

    def is_replicable(self) -> bool:
        return False

    def is_async(self) -> bool:
        return world_size() > 1 or is_async_pipe(self.source)

    def waits(self) -> bool:
        return world_size() > 1

    def __len__(self) -> int:
        """The number of this rank's own items; the last of them may be left out."""
        return len(self.source)

    def picks(self) -> bool:
        return False

    def new_pass(self, edge: Edge[Any]) -> FullSyncPass[T]:
        return FullSyncPass(edge)


class FullSyncPass(Pass[T]):
    """One pass over a FullSync: with several ranks, the items that were read ahead."""

    runs_ahead = True

    def __init__(self, edge: Edge[Any]) -> None:
        super().__init__(edge)
        meeting = self.pipe.meeting
        self.pads = meeting is not None and meeting.uneven == "pad"
        #: How many items of the source come before those that are counted here. If the ranks pad,
        #: the last of them is read again: it is what is repeated if no other follows.
        self.first = 0
        #: How many were read, and how many yielded, padding too.
        self.taken = self.yielded = 0
        #: Those that were not taken by the consumer, and how many they may be.
        self.held: deque[T] = deque()
        self.room = 0

    def __iter__(self) -> Iterator[T]:
        return self.source.begin()

    def __aiter__(self) -> AsyncIterator[T]:
        return self._agreed() if world_size() > 1 else aiter(self.source.abegin())

    def groups(self) -> AsyncGenerator[list[T], None]:
        """Yield the items in the lists in which the ranks agreed on them."""
        return self._agreed_groups() if world_size() > 1 else groups_of(self.source.abegin())

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.first = position - self.pipe.meeting.padding if self.pads else position
        self.source.resume(max(self.first - 1, 0) if self.pads else self.first, cursors)
        return 0

    def lags(self) -> bool:
        return world_size() > 1

    def needs(self) -> int:
        if self.pads:
            return self.first + min(self.yielded, self.taken) - 1
        return self.first + self.yielded

    def counts(self) -> tuple[int, int, bool, int]:
        return super().counts() if world_size() > 1 else (UNCOUNTED, UNCOUNTED, True, 0)

    def fullness(self) -> tuple[int, int]:
        return len(self.held), self.room

    async def _agreed(self) -> AsyncIterator[T]:
        async with aclosing(self._windows()) as windows:
            async for group in windows:
                for item in group:
                    self.yielded += 1
                    yield item

    async def _agreed_groups(self) -> AsyncGenerator[list[T], None]:
        async with aclosing(self._windows()) as windows:
            async for group in windows:
                self.yielded += len(group)
                yield group
                del group

    async def _windows(self) -> AsyncGenerator[list[T], None]:
        """Yield the items that the ranks have agreed on."""
        pipe: FullSync[T] = self.pipe
        meeting, is_given = pipe.meeting, pipe.meeting is not None
        if meeting is None:
            meeting = Meeting(await open_group(pipe.timeout))
        try:
            async with AgreedAhead(self, meeting).running(repr(pipe)) as ahead:
                while await ahead.has_next():
                    yield ahead.take()
        finally:
            if not is_given:
                await meeting.group.aclose()


class AgreedAhead(RunningAhead, Generic[T]):
    """The task that reads ahead of a consumer on the same loop, and the one that agrees on that."""

    def __init__(self, running: FullSyncPass[T], meeting: Meeting) -> None:
        super().__init__(running.source)
        self._running = running
        self.pads = running.pads
        self.meeting = meeting
        #: The item that is repeated, once it is known.
        self.repeated: list[T] = []
        #: How many items may be yielded, those held and padding, and how many agreements there
        #: were.
        self.agreed = 0
        self.window = 0
        running.room = FIRST_ROOM
        self.is_read = False
        #: Whether the ranks have agreed that nothing follows.
        self.has_agreed_end = False
        self._last_window_at = self.loop.time()
        self._agreer = LoopWaiter(self.loop)

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[Self]:
        agreeing = begin_task(self.loop, self._agree(), f"asyncloader {name} agreeing")
        async with super().running(name):
            try:
                yield self
            finally:
                # Before what it reads is closed, which other ranks would take for its end.
                await cancelled([agreeing])

    async def work(self) -> None:
        try:
            await self.read()
        finally:
            self.is_read = True
            self._agreer.wake()

    async def _agree(self) -> None:
        """Agree with the other ranks on what is held, window after window."""
        try:
            while not self.has_agreed_end:
                await self._agreer.until(self._is_due)
                await self._let_more_come()
                counted = self._counted()
                said = await self.meeting.agree(
                    Topic.WINDOW, window=self.window, count=counted, flags=self._flags()
                )
                self._last_window_at = self.loop.time()
                self._conclude(counted, said)
        except Exception as error:  # noqa: BLE001 - whatever happened to the group
            self._end(error)

    async def has_next(self) -> bool:
        # Asked for, they are agreed on at once.
        self._agreer.wake()
        return await super().has_next()

    def set_paused(self, is_paused: bool) -> None:
        """Go on: other ranks wait for what this one reads."""

    def has_something(self) -> bool:
        return self.agreed > 0

    def is_over(self) -> bool:
        return self.has_agreed_end

    def take(self) -> list[T]:
        """Return the items that may be yielded."""
        held = self._running.held
        own = min(self.agreed, len(held))
        group = [held.popleft() for _ in range(own)]
        # The consumer may change one of them.
        group += [copy.deepcopy(self.repeated[0]) for _ in range(self.agreed - own)]
        self.agreed = 0
        self.wake_reader()
        return group

    async def hold_all(self, items: AsyncIterator[Any]) -> None:
        running = self._running
        if self.pads and running.first:
            self.repeated = [await _first_of(items)]
        await super().hold_all(items)
        if self.pads:
            if running.held:
                self.repeated = [copy.deepcopy(running.held[-1])]
            self.meeting.own_items = running.first + running.taken

    def hold(self, item: T) -> None:
        running = self._running
        running.held.append(item)
        running.taken += 1
        self.reads.passed(running.first + running.taken)
        self._agreer.wake()

    def has_room(self) -> bool:
        return len(self._running.held) < self._running.room

    def drop(self) -> None:
        self._running.held.clear()

    def _counted(self) -> int:
        """Return how many of the held items can be agreed on."""
        held_back = 1 if self.pads and not self.is_read else 0
        return max(len(self._running.held) - self.agreed - held_back, 0)

    def _is_due(self) -> bool:
        if self.is_read:
            # Padding needs no room, so that nothing else keeps it from running far ahead.
            return not self.pads or self.agreed < self._running.room
        return self._is_window() or (self._is_wanted and self._counted() > 0)

    def _is_window(self) -> bool:
        return 2 * self._counted() >= self._running.room

    async def _let_more_come(self) -> None:
        seconds = self._last_window_at + WINDOW_SECONDS - self.loop.time()
        if seconds > 0 and not self.is_read and not self._is_window():
            await asyncio.sleep(seconds)

    def _flags(self) -> Flags:
        # This must match the items counted now: whether the source has ended after them.
        if not self.is_read:
            return Flags.NONE
        if self.error is not None:
            return Flags.FAILED
        return (
            Flags.ENDED if self._running.first + self._running.taken else Flags.ENDED | Flags.EMPTY
        )

    def _conclude(self, counted: int, said: list[Statement]) -> None:
        # A rank that pads has as many as any other.
        bound = [each for each in said if not (self.pads and Flags.ENDED in each.flags)]
        count = min(each.count for each in bound) if bound else max(each.count for each in said)
        decided = [each.flags if each.count <= count else Flags.NONE for each in said]
        failed = [rank for rank, flags in enumerate(decided) if Flags.FAILED in flags]
        empty = [rank for rank, flags in enumerate(decided) if Flags.EMPTY in flags]
        ended = [rank for rank, flags in enumerate(decided) if Flags.ENDED in flags]
        more = [rank for rank, each in enumerate(said) if each.count > count]
        if count == counted and self._is_wanted and not self.has_room():
            # This rank had all its room filled, so give it more.
            self._running.room = min(2 * self._running.room, MOST_ROOM)
            self.wake_reader()
        self.window += 1
        if self.pads and empty and count:
            self._end(
                RankError(
                    f"{ranks_in_words(empty)} had no item at all, so there is none to repeat, which"
                    ' uneven="pad" does; give every rank at least one item or batch, or use "drop"',
                    ranks=tuple(empty),
                )
            )
            return
        self.agreed += count
        if failed:
            self._end(self._failure(failed))
        elif len(ended) == len(said) or (ended and self.meeting.uneven == "drop"):
            self._end(None)
        elif ended and more and self.meeting.uneven == "error":
            self._end(
                RankError(
                    f"{ranks_in_words(more)} still had items at the end of {ranks_in_words(ended)},"
                    ' which uneven="error" does not allow',
                    ranks=tuple(more),
                )
            )
        self.wake_consumer()

    def _failure(self, failed: list[int]) -> BaseException | None:
        if self.meeting.group.rank in failed:
            return self.error
        return RankError(
            f"{ranks_in_words(failed)} failed at an item; see the error that was raised there",
            ranks=tuple(failed),
        )

    def _end(self, error: BaseException | None) -> None:
        self.error = error
        self.has_agreed_end = True
        self.wake_consumer()


async def _first_of(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise SnapshotError(
            "the state does not fit the data: there are fewer items than had been yielded"
        ) from None
