"""All the workers of a loader.

This file is about ``WorkerPool``: workers start together, run epoch after epoch,
and are closed together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from asyncloader.errors import WorkerDied, WorkerTimeout
from asyncloader.seeds import SeedGenerator
from asyncloader.transport.code import Parcel
from asyncloader.waiting import LoopWaiter, call_soon
from asyncloader.workers.conversation.messages import (
    BeginStream,
    DealStart,
    EndEpoch,
    Pause,
    Resume,
    StartEpoch,
    dump_message,
)
from asyncloader.workers.loader_side.dealing import Dealing
from asyncloader.workers.loader_side.fed_stream import FedStream
from asyncloader.workers.loader_side.inbox import Inbox
from asyncloader.workers.loader_side.link import Link
from asyncloader.workers.loader_side.patience import Patience
from asyncloader.workers.loader_side.place import StreamPlace, WorkerStart, start_after_arrived
from asyncloader.workers.loader_side.starting import DealPlan, Starter
from asyncloader.workers.loader_side.worker_stream import PoolSettings, WorkerStream
from asyncloader.workers.process.process import Process, kill_processes_now
from asyncloader.workers.worker_side.account import WorkerStats

logger = logging.getLogger("asyncloader")

#: How long the channel of a dead worker may stay open.
DRAIN_SECONDS = 1.0
#: How long workers that were told to end may take before they are killed.
CLOSE_GRACE = 2.0

#: What leaves a place that another worker may take.
GONE = (WorkerDied, WorkerTimeout)

#: More frames than a stream will ever have.
UNBOUNDED = 1 << 62


class WorkerPool:
    """The workers of one loader, from ``start`` to ``aclose``."""

    def __init__(
        self,
        plan: Parcel,
        streams: int,
        settings: PoolSettings,
        deal: DealPlan | None = None,
        fed: int | None = None,
    ) -> None:
        self.settings = settings
        self.links: list[Link] = []
        self.restarts = 0
        self._restarts_of: Counter[str] = Counter()
        self._deal = deal
        self._starter = Starter(plan, settings, deal, has_lines=fed is not None)
        #: The stream whose source lives with the loader, if there is one.
        self._fed = fed
        self._streams = streams
        self._dispatcher: Link | None = None
        #: Those that died in this epoch, until all of their frames are opened.
        self._retired: list[Link] = []
        self._waiters: list[LoopWaiter] = []
        self._epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        #: What every process is told of the epoch, also one that takes the place of another.
        self._start: StartEpoch | None = None
        #: Whether the workers were told.
        self._is_told = False
        #: How many items had been taken when somebody was replaced.
        self._taken = 0
        self._recovering = asyncio.Lock()
        self._patience = Patience(settings.max_restarts)
        self._watch_over_processes()

    async def start(self) -> None:
        """Start all workers, or none: WorkerStartupError with the cause, and nothing left."""
        self.links, self._dispatcher = await self._starter.start(self._workers())

    async def restart(self) -> None:
        """Start all workers anew, after one has died."""
        await self.aclose()
        self._watch_over_processes()
        started = await self._starter.start_again(self._workers(), self._patience)
        self.links, self._dispatcher = started

    def begin_epoch(
        self, shared_seeds: Sequence[int], seed_generator: SeedGenerator, resets: bytes
    ) -> list[WorkerStream | FedStream]:
        """Begin an epoch on the running loop; return its streams."""
        loop = asyncio.get_running_loop()
        self._epoch += 1
        self._waiters = [LoopWaiter(loop) for _ in range(self._streams)]
        self._loop = loop
        # A lock belongs to the loop on which somebody first waited for it.
        self._recovering = asyncio.Lock()
        generator = seed_generator.clone()
        in_order = generator.taken_in_order
        # What was begun in turn, or as items came, is gone on with in the same way.
        settings = self.settings if in_order is None else replace(self.settings, in_order=in_order)
        self._start = StartEpoch(self._epoch, tuple(shared_seeds), generator, resets)
        self._is_told = False
        self._taken = 0
        for link in self.all_links():
            link.begin_epoch(self._epoch)
            link.attach(loop, self._wake)
        return [
            self._stream(number, waiter, settings) for number, waiter in enumerate(self._waiters)
        ]

    def begin_stream(self, number: int, place: StreamPlace) -> list[Inbox]:
        """Have every worker begin a stream; return where its items arrive."""
        assert self._start is not None
        is_first, self._is_told = not self._is_told, True
        if self._dispatcher is not None and self._is_dealt(number):
            # Where dealing goes on is known with its own stream, which may not be the first.
            self._direct(self._dispatcher, self._start, place.deal)
        inboxes = []
        first = [dump_message(self._start)] if is_first else []
        for link, start in zip(self.links, place.starts, strict=True):
            inboxes.append(link.begin_stream(number, start.mark, start.unwanted))
            link.say(*first, dump_message(self._order(number, start)))
        return inboxes

    def end_epoch(self) -> None:
        """End the epoch and leave the loop; the workers stay."""
        if self._loop is None:
            return
        self._loop = None
        for link in self.all_links():
            # One that has sent everything has nothing to end.
            if not link.is_idle():
                link.send(EndEpoch(self._epoch))
            link.end_epoch()
            link.detach()
        self._close_retired(self._retired)

    def tell_all(self, command: Pause | Resume) -> None:
        """Pause or resume every worker, from any thread; nothing happens between epochs."""
        if self._loop is not None:
            call_soon(self._loop, self._tell_all, command)

    def has_dead(self) -> bool:
        """Whether a worker has ended, so that the pool cannot run another epoch."""
        links = self.all_links()
        return any(link.failure is not None or link.process.is_dead() for link in links)

    def has_other_length(self) -> bool:
        """Whether a worker's init function may have changed how many items it yields."""
        return any(link.has_other_length for link in self.links)

    def all_links(self) -> list[Link]:
        """Return the links to all processes, the dispatching one among them."""
        return self.links if self._dispatcher is None else [*self.links, self._dispatcher]

    def stats(self) -> list[WorkerStats]:
        """Return how all processes are doing in this epoch, or how they did in the last."""
        return [link.stats(self._restarts_of[link.name]) for link in self.all_links()]

    def deal_start(self, number: int) -> DealStart | None:
        """Return how dealing goes on after what was taken of a stream, where there is any."""
        if self._deal is None or self._dispatcher is None or not self._is_dealt(number):
            return None
        marks = [link.inboxes[number].mark.read() for link in self.links]
        dealing = self._dispatcher.dealing
        dealing.forget_before(self._deal.pipe, marks)
        return dealing.start(self._deal.pipe, marks)

    async def recover(self) -> bool:
        """Replace the workers that died; whether there were any and that may be done."""
        async with self._recovering:
            dead = [link for link in self.all_links() if isinstance(link.failure, GONE)]
            # What a dispatching process has dealt nobody else can deal again.
            lost = self.all_links() if self._dispatcher is not None else dead
            if not dead or self._start is None:
                return False
            if not self._patience.allows(has_delivered=self._has_delivered(dead)):
                return False
            if any(map(self._is_lost_for_good, lost)):
                return False
            for link in dead:
                stack = getattr(link.failure, "stack", None)
                logger.warning("%s; it is replaced%s", link.failure, f"\n{stack}" if stack else "")
            await self._patience.wait()
            await self._replace(lost)
            self.restarts += len(dead)
            self._restarts_of.update(link.name for link in dead)
        return True

    async def aclose(self) -> None:
        """End all workers within three seconds in total."""
        self.end_epoch()
        for link in self.all_links():
            link.close()
        self.links, self._dispatcher = [], None
        self._finalizer.detach()
        await self._starter.end(self._starter.processes, grace=CLOSE_GRACE)

    def _has_delivered(self, dead: list[Link]) -> bool:
        """Whether anything came of these since they were started, or was taken since then."""
        if self._dispatcher is None:
            return any(link.has_delivered for link in dead)
        if self._dispatcher in dead:
            return any(link.has_delivered for link in self.links)
        # All are replaced with each of them, so that another delivers whenever this one dies.
        before, self._taken = self._taken, self._count_taken()
        return any(link.has_delivered for link in dead) or self._taken > before

    def _count_taken(self) -> int:
        return sum(inbox.position for link in self.links for inbox in link.inboxes.values())

    async def _replace(self, lost: list[Link]) -> None:
        for link in lost:
            link.process.kill()
        await self._read_to_the_end(lost)
        for link in lost:
            link.detach()
        await self._starter.end([link.process for link in lost], grace=0.0)
        numbers = [link.worker for link in lost if link.worker is not None]
        deal = self._deal_after_arrived()
        started = await self._starter.start_again(numbers, self._patience)
        links, dispatcher = started
        assert self._start is not None
        assert self._loop is not None
        for link in started.all_links():
            link.begin_epoch(self._epoch)
            link.attach(self._loop, self._wake)
        self._retired += lost
        if dispatcher is not None and self._dispatcher is not None:
            dispatcher.dealing = self._dispatcher.dealing
            self._dispatcher = dispatcher
            if deal is not None:
                dispatcher.send(replace(self._start, deal=deal))
        for number, link in zip(numbers, links, strict=True):
            self._hand_over(self.links[number], link)
            self.links[number] = link
        # An epoch may have no end, and any number of deaths.
        self._close_retired([link for link in self._retired if link.is_used_up()])
        self._wake()

    def _close_retired(self, links: list[Link]) -> None:
        self._retired = [link for link in self._retired if link not in links]
        for link in links:
            link.close()

    def _hand_over(self, lost: Link, link: Link) -> None:
        assert self._start is not None
        starts = {number: start_after_arrived(inbox) for number, inbox in lost.inboxes.items()}
        link.go_on_for(lost)
        orders = [self._order(number, start) for number, start in starts.items()]
        link.send(self._start, *orders)

    def _deal_after_arrived(self) -> DealStart | None:
        """Return how dealing goes on after all that has arrived, if it has begun."""
        if self._deal is None or self._dispatcher is None:
            return None
        number = self._deal.stream
        inboxes = [link.inboxes[number] for link in self.links if number in link.inboxes]
        marks = [inbox.latest_mark.read() for inbox in inboxes]
        return self._dispatcher.dealing.start(self._deal.pipe, marks) if marks else None

    async def _read_to_the_end(self, lost: list[Link]) -> None:
        waiter = LoopWaiter(asyncio.get_running_loop())
        for link in lost:
            link.on_news = waiter.wake
        # A process that the dead one left behind may hold the channel open.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await waiter.until(lambda: all(link.is_cut for link in lost))

    def _direct(self, dispatcher: Link, start: StartEpoch, deal: DealStart | None) -> None:
        if deal is not None:
            dispatcher.dealing = Dealing(deal.mark)
        dispatcher.send(replace(start, deal=deal))

    def _is_dealt(self, number: int) -> bool:
        """Whether a stream is made of what the dispatching process deals."""
        return self._deal is not None and number == self._deal.stream

    def _stream(
        self, number: int, waiter: LoopWaiter, settings: PoolSettings
    ) -> WorkerStream | FedStream:
        if number == self._fed:
            return FedStream(self, number, waiter, settings)
        return WorkerStream(self, number, self._epoch, waiter, settings)

    def _order(self, number: int, start: WorkerStart) -> BeginStream:
        if number == self._fed:
            # What a worker may send is bounded by what it is dealt. What it is dealt never
            # comes again, so there is nothing to go on from. Somebody waits for each of them,
            # so none waits for company.
            return BeginStream(self._epoch, number, UNBOUNDED, one_by_one=True)
        credits = self.settings.credits
        return BeginStream(self._epoch, number, credits, credits == 0, start.mark, start.unwanted)

    def _is_lost_for_good(self, link: Link) -> bool:
        """Whether nobody knows what a process has handed out, which its failure says then."""
        inboxes = (inbox for number, inbox in link.inboxes.items() if number != self._fed)
        name = next(filter(None, (inbox.latest_mark.unnumbered() for inbox in inboxes)), "")
        if name and link.failure is not None:
            link.failure.add_note(
                f"{link.name} is not replaced: {name} hands out as results come, and nobody knows"
                " what it has handed out, as it was put into the graph by a reading service, or a"
                " function of one; put it there before the loader is made, or pass ordered=True"
            )
        return bool(name)

    def _watch_over_processes(self) -> None:
        self._finalizer = weakref.finalize(self, _leave_nothing, self._starter.processes)
        # When the interpreter exits, the processes are ended without a word.
        self._finalizer.atexit = False

    def _workers(self) -> range:
        return range(self.settings.num_workers)

    def _tell_all(self, command: Pause | Resume) -> None:
        for link in self.all_links():
            link.send(command)
            link.set_paused(isinstance(command, Pause))

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.wake()


def _leave_nothing(processes: list[Process]) -> None:
    """Kill the workers of a pool that was dropped without being closed."""
    if any(process.is_ours() for process in processes):
        count = len(processes)
        running = "1 worker process was" if count == 1 else f"{count} worker processes were"
        warnings.warn(
            f"{running} still running when their loader was dropped; use `async with loader`,"
            " `with loader`, aclose() or shutdown()",
            ResourceWarning,
            stacklevel=2,
        )
        kill_processes_now(processes)
