"""The items of one part of the graph, from all workers.

This file is about ``WorkerStream``: it waits for the worker whose item is next, yields the
items in their order, and grants the workers more credits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.datapipes.settled import Ledger
from asyncloader.errors import WorkerDied, WorkerTimeout
from asyncloader.places.marks import DealStart, Mark
from asyncloader.places.stream_place import Dealing, Stand, StreamPlace, first_place
from asyncloader.waiting import LoopWaiter, WaitTimer
from asyncloader.workers.handle import WorkerHandle
from asyncloader.workers.inbox import Inbox, Merge, ShareRecord, TakeAsReady, TakeInTurn
from asyncloader.workers.messages import Grant, Hurry, Instruction

logger = logging.getLogger("asyncloader")

WARN_SECONDS = 30.0
HURRY_SECONDS = 0.05
_GONE = (WorkerDied, WorkerTimeout)
#: A loop that is later than this was stopped, not just busy.
STILL_SECONDS = 0.1
#: What is taken before a stream has begun.
_NOTHING = TakeInTurn(())


@dataclass(frozen=True)
class PoolSettings:
    """How many workers there are, and how far they may run ahead."""

    num_workers: int
    credits: int
    in_order: bool
    timeout: float | None
    prefetch_bytes: int
    #: How often in a row workers that deliver no item are replaced; None for never.
    max_restarts: int | None = None


class Pool(Protocol):
    """The part of a WorkerPool that a stream needs."""

    handles: list[WorkerHandle]
    #: The handles to all processes, the dispatching one among them.
    all_handles: list[WorkerHandle]
    #: Whether the workers are to send what they have credits for, and no more.
    is_draining: bool

    def begin_stream(self, number: int, place: StreamPlace) -> list[Inbox]:
        """Have every worker begin a stream; return where its items arrive."""
        ...

    def dealing_of(self, number: int) -> Dealing | None:
        """Return the marks of the process that deals a stream's items; None if none does."""
        ...

    async def recover(self) -> bool:
        """Replace the workers that died; whether there were any and that may be done."""
        ...


class WorkerStream:
    """The items of one part in one epoch, from all workers."""

    def __init__(self, pool: Pool, number: int, epoch: int, settings: PoolSettings) -> None:
        loop = asyncio.get_running_loop()
        self._pool = pool
        self._number = number
        self._epoch = epoch
        self._waiter = LoopWaiter(loop)
        self._is_taking = False
        self._settings = settings
        #: Whether it is recorded what becomes of each item; whether a worker sends them in order
        #: of their numbers; and whether they come with their numbers.
        self.is_recorded = self.is_counted = self.is_numbered = False
        self._resumed: StreamPlace | None = None
        self._ledger: Ledger | None = None
        self._keeper: int | None = None
        self._inboxes: list[Inbox] = []
        self._merge: Merge = _NOTHING
        self._dealing: Dealing | None = None
        self._is_late = False
        #: When the dispatching process was last asked for a sign of life.
        self._asked = -math.inf
        self._wait_timer = WaitTimer(loop, HURRY_SECONDS)

    @property
    def is_in_order(self) -> bool:
        """Whether items come strictly in turn."""
        return self._settings.in_order

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._settings.num_workers

    def resume_at(self, place: StreamPlace) -> None:
        """Begin at a place; call this before the first ``take``."""
        self._resumed = place

    def record_in(self, ledger: Ledger, keeper: int | None) -> None:
        """Record in a ledger what becomes of each item; call this before the first ``take``.

        ``keeper`` is the pipe in the workers that keeps the parts it has made, or None.
        """
        self._ledger, self._keeper = ledger, keeper

    def marks(self, frontiers: Sequence[int]) -> list[Mark]:
        """Return from where each worker makes again all from a frontier on, in a section."""
        if not self._inboxes:
            return [start.mark for start in self.first_place.starts]
        pairs = zip(self._inboxes, frontiers, strict=True)
        return [inbox.record.mark_at(frontier) for inbox, frontier in pairs if inbox.record]

    def taken_numbers(self) -> Iterator[range]:
        """Yield the numbers of the items that were taken last, in their order."""
        # They are taken from one worker after the other.
        for inbox in self._inboxes:
            if inbox.record is not None:
                yield from inbox.record.taken_before(inbox.position)

    def numbers_come(self) -> Iterator[int]:
        """Yield the numbers that have come, from the lowest that is not settled on."""
        for inbox in self._inboxes:
            if inbox.record is not None:
                yield from inbox.record.come()

    def deal_start(self, marks: Sequence[Mark]) -> DealStart | None:
        """Return where dealing resumes for workers that resume at these marks, if one deals."""
        if not self._inboxes:
            return self.first_place.deal
        return None if self._dealing is None else self._dealing.start(marks)

    def unrecorded(self) -> str:
        """Return the name of a pipe without order of which nothing is recorded, or ""."""
        return next((inbox.unrecorded for inbox in self._inboxes if inbox.unrecorded), "")

    def news(self) -> None:
        """Note that something came from a worker, or that one has ended."""
        if self._is_taking:
            self._waiter.wake()

    @property
    def first_place(self) -> StreamPlace:
        """Where the stream begins."""
        return self._resumed or first_place(self.workers, is_recorded=self.is_recorded)

    def positions(self) -> list[int]:
        """Return how many items of each worker were taken."""
        if not self._inboxes:
            return [start.position for start in self.first_place.starts]
        return [inbox.position for inbox in self._inboxes]

    def stand(self, taken: int) -> Stand:
        """Return where the stream is after so many items were taken."""
        marks = [(inbox.mark, inbox.position) for inbox in self._inboxes]
        turns = [inbox.worker for inbox in self._merge.turns]
        return Stand(marks, turns, self._dealing, taken)

    def begin(self) -> None:
        """Let the workers begin, unless they have begun."""
        if self._inboxes:
            return
        self._inboxes = self._pool.begin_stream(self._number, self.first_place)
        self._dealing = self._pool.dealing_of(self._number)
        for inbox in self._inboxes:
            # A grant wakes the worker, so collect several; it has other credits meanwhile.
            inbox.on_credits(self._grant, more_than=self._settings.credits // 2)
        if self._ledger is not None:
            for inbox, start in zip(self._inboxes, self.first_place.starts, strict=True):
                share = inbox.worker, self.workers
                inbox.record = ShareRecord(
                    self._ledger, *share, start, self._keeper, is_counted=self.is_counted
                )
                inbox.is_numbered = self.is_numbered
        order = TakeInTurn if self._settings.in_order else TakeAsReady
        self._merge = order(self._inboxes[worker] for worker in self.first_place.turns)

    def holds_much(self) -> bool:
        """Whether items that were taken hold so much of a worker's memory that it may run short."""
        return any(handle.holds_much() for handle in self._pool.handles)

    async def come(self) -> None:
        """Wait until there is something to take; take nothing."""
        # Without credits the next item is made when it is taken.
        if not self._settings.credits:
            return
        self._is_taking = True
        try:
            await self._until_ready()
        except _GONE:
            pass  # ``take`` replaces the worker, or raises it
        finally:
            self._is_taking = False

    async def take(self) -> list[Any]:
        """Wait for the next items; [] at the end. Raise an error in the place of its item."""
        self.begin()
        self._is_taking = True
        try:
            return await self._take()
        finally:
            self._is_taking = False

    async def _take(self) -> list[Any]:
        while True:
            try:
                items = self._merge.take()
                if items or self._merge.is_over():
                    return items
                await self._until_ready()
                await self._open_slow()
            except _GONE:
                # Another stream may have replaced the dead workers meanwhile.
                if not await self._pool.recover() and self._failure() is not None:
                    raise

    async def _until_ready(self) -> None:
        if self._merge.is_ready():
            return
        begun = time.monotonic()
        self._is_late = False
        self._wait_timer.begin(self._on_late)
        try:
            while not self._merge.is_ready() and not self._is_late:
                self._ask_unless_failed()
                await self._waiter.news()
        finally:
            self._wait_timer.end()
        if self._is_late:
            # Not before this, however long the loop was busy with other work.
            await self._until_ready_at_last(max(begun, time.monotonic() - HURRY_SECONDS))

    def _on_late(self) -> None:
        self._is_late = True
        self._waiter.wake()

    async def _until_ready_at_last(self, begun: float) -> None:
        self._ask_dealer()
        while not self._merge.is_ready():
            self._ask_unless_failed()
            self._hurry()
            patience, since = self._patience(begun), time.monotonic()
            try:
                async with asyncio.timeout(patience):
                    await self._waiter.news()
            except TimeoutError:
                late = time.monotonic() - since - patience
                if late > STILL_SECONDS:
                    # The program or the machine was stopped, and the workers too, so wait again.
                    begun = self._silent_since(begun) + late
                    if self._unanswering() is not None:
                        self._asked += late
                await self._complain(begun)
                self._ask_dealer()

    def _ask_unless_failed(self) -> None:
        failure = self._failure()
        if failure is not None:
            raise failure
        if not self._settings.credits:
            self._ask()

    def _failure(self) -> BaseException | None:
        failures = (handle.failure for handle in self._pool.all_handles)
        return next((failure for failure in failures if failure is not None), None)

    def _ask(self) -> None:
        """Grant a frame to every worker without items, as none works ahead."""
        for handle, inbox in zip(self._pool.handles, self._inboxes, strict=True):
            if not inbox.is_asked and not inbox.has_something():
                inbox.is_asked = True
                handle.send(Grant(self._epoch, self._number, 1))

    def holding_up(self) -> list[UnderWay]:
        """Ask the workers whose items are awaited, and the dispatching process, what they do."""
        handles = [self._pool.handles[inbox.worker] for inbox in self._merge.awaited()]
        return [each for handle in [*handles, *self._dealers()] for each in handle.holding_up()]

    def _hurry(self) -> None:
        for inbox in self._merge.awaited():
            self._pool.handles[inbox.worker].send(Hurry(self._epoch, self._number))

    def _ask_dealer(self) -> None:
        """Ask the dispatching process for a sign of life, as a worker may be waiting for it."""
        if self._unanswering() is None:
            self._asked = time.monotonic()
            for handle in self._dealers():
                handle.send(Instruction.ANSWER)

    def _unanswering(self) -> WorkerHandle | None:
        """Return the dispatching process if it was asked and has not answered."""
        return next((handle for handle in self._dealers() if handle.last_heard < self._asked), None)

    def _dealers(self) -> list[WorkerHandle]:
        return [handle for handle in self._pool.all_handles if handle.worker is None]

    def _grant(self, inbox: Inbox, credits: int) -> None:
        if self._settings.credits and not self._pool.is_draining:
            self._pool.handles[inbox.worker].send(Grant(self._epoch, self._number, credits))

    async def _open_slow(self) -> None:
        for inbox in self._inboxes:
            if inbox.has_slow_frame():
                await inbox.open_slow()

    def _patience(self, begun: float) -> float:
        limit = self._settings.timeout
        if limit is None:
            return WARN_SECONDS
        left = limit - self._silence(begun)
        if left <= 0 and self._unanswering() is not None:
            left = self._asked + limit - time.monotonic()
        # In parts, so that after a stop of the program the worker still has the other parts.
        return max(0.0, min(limit / 5, left))

    def _silence(self, begun: float) -> float:
        """How long the worker that owes an item has been silent while we waited for it."""
        return time.monotonic() - self._silent_since(begun)

    def _silent_since(self, begun: float) -> float:
        return max(self._most_silent().last_heard, begun)

    def _most_silent(self) -> WorkerHandle:
        owing = (self._pool.handles[inbox.worker] for inbox in self._merge.awaited())
        return min(owing, key=lambda handle: handle.last_heard)

    async def _complain(self, begun: float) -> None:
        # A worker may be waiting for the dispatching process, so ask that first.
        handle = self._unanswering() or self._most_silent()
        silence, limit = self._silence(begun), self._settings.timeout
        if limit is None:
            logger.warning("waiting for %s for %.0f s", handle.name, silence)
            return
        if silence < limit:
            return
        if handle.worker is None and time.monotonic() < self._asked + limit:
            # It may be busy and gets the same time to answer. Then we know which process is stuck.
            return
        failure = WorkerTimeout(
            f"{handle.name} ({handle.process.place}) owes an item and said nothing for"
            f" {silence:.1f} s (timeout={limit:g}); {handle.process.when_silent}",
            worker=handle.worker,
        )
        handle.fail(failure)
        await handle.add_stack(failure)
        handle.process.kill()
        raise failure
