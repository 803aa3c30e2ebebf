"""All the workers of a loader.

This file is about ``WorkerPool``: workers start together, run epoch after epoch,
and are closed together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from asyncloader.errors import WorkerDied, WorkerStartupError
from asyncloader.runtime import LoopWaiter, WorkerInfo, call_soon
from asyncloader.seeds import SeedGenerator
from asyncloader.transport.codec import Parcel
from asyncloader.workers.dealing import Dealing
from asyncloader.workers.fed_stream import FedStream
from asyncloader.workers.inbox import Inbox
from asyncloader.workers.link import Link
from asyncloader.workers.messages import (
    BeginStream,
    DealStart,
    EndEpoch,
    Pause,
    Resume,
    Setup,
    StartEpoch,
)
from asyncloader.workers.patience import Patience
from asyncloader.workers.place import StreamPlace, WorkerStart, start_after_arrived
from asyncloader.workers.process import (
    Process,
    ProcessPlan,
    close_processes,
    kill_processes_now,
    start_process,
)
from asyncloader.workers.worker_stream import PoolSettings, WorkerStream

logger = logging.getLogger("asyncloader")

START_SECONDS = 60.0
#: How long the channel of a dead worker may stay open.
DRAIN_SECONDS = 1.0

#: More frames than a stream will ever have.
UNBOUNDED = 1 << 62

_MAIN = "asyncloader.workers.main"
_DISPATCH = "asyncloader.workers.dispatch"


@dataclass(frozen=True)
class DealPlan:
    """What the dispatching process is told to run, and the place of its last pipe."""

    plan: Parcel
    place: int


class EpochOrders:
    """How an epoch begins, for every process alike; also for one that comes in its middle."""

    def __init__(
        self,
        epoch: int,
        shared_seeds: tuple[int, ...],
        seed_generator: SeedGenerator,
        resets: bytes,
    ) -> None:
        self.is_given = False
        self._epoch = epoch
        self._shared_seeds = shared_seeds
        self._seed_generator = seed_generator
        self._resets = resets

    def for_worker(self, worker: int) -> StartEpoch:
        """Return the order for a worker, which has random numbers of its own."""
        generator = self._seed_generator.spawn(worker)
        return StartEpoch(self._epoch, self._shared_seeds, generator, self._resets)

    def for_dispatcher(self, deal: DealStart | None) -> StartEpoch:
        """Return the order for the dispatching process."""
        generator = self._seed_generator.clone()
        return StartEpoch(self._epoch, self._shared_seeds, generator, self._resets, deal)


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
        self._plan = plan
        self._deal = deal
        #: The stream whose source lives with the loader, if there is one.
        self._fed = fed
        self._streams = streams
        self._dispatcher: Link | None = None
        #: Those that died in this epoch, whose frames may still wait to be opened.
        self._retired: list[Link] = []
        self._processes: list[Process] = []
        self._waiters: list[LoopWaiter] = []
        self._epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start: EpochOrders | None = None
        self._recovering = asyncio.Lock()
        self._patience = Patience(settings.max_restarts)
        self._watch_over_processes()

    async def start(self) -> None:
        """Start all workers, or none: WorkerStartupError with the cause, and nothing left."""
        try:
            self.links, self._dispatcher = await self._started(range(self.settings.num_workers))
        except BaseException:
            await self.aclose()
            raise
        for link in self.all_links():
            link.detach()

    async def restart(self) -> None:
        """Start all workers anew, after one has died."""
        await self.aclose()
        self._watch_over_processes()
        await self.start()

    def begin_epoch(
        self, shared_seeds: Sequence[int], seed_generator: SeedGenerator, resets: bytes
    ) -> list[WorkerStream | FedStream]:
        """Begin an epoch on the running loop; return its streams."""
        loop = asyncio.get_running_loop()
        self._epoch += 1
        self._waiters = [LoopWaiter(loop) for _ in range(self._streams)]
        self._loop = loop
        generator = seed_generator.clone()
        self._start = EpochOrders(self._epoch, tuple(shared_seeds), generator, resets)
        for link in self.all_links():
            link.begin_epoch(self._epoch)
            link.attach(loop, self._wake)
        return [self._stream(number, waiter) for number, waiter in enumerate(self._waiters)]

    def begin_stream(self, number: int, place: StreamPlace) -> list[Inbox]:
        """Have every worker begin a stream; return where its items arrive."""
        assert self._start is not None
        if not self._start.is_given:
            self._give_orders(self._start, place.deal)
        pairs = zip(self.links, place.starts, strict=True)
        return [self._begin_stream(link, number, start) for link, start in pairs]

    def end_epoch(self) -> None:
        """End the epoch and leave the loop; the workers stay."""
        if self._loop is None:
            return
        self._loop = None
        for link in self.all_links():
            link.send(EndEpoch(self._epoch))
            link.end_epoch()
            link.detach()
        for link in self._retired:
            link.close()
        self._retired.clear()

    def tell_all(self, command: Pause | Resume) -> None:
        """Pause or resume every worker, from any thread; nothing happens between epochs."""
        if self._loop is not None:
            call_soon(self._loop, self._tell_all, command)

    def has_dead(self) -> bool:
        """Whether a worker has ended, so that the pool cannot run another epoch."""
        links = self.all_links()
        return any(link.failure is not None or link.process.is_dead() for link in links)

    def all_links(self) -> list[Link]:
        """Return the links to all processes, the dispatching one among them."""
        return self.links if self._dispatcher is None else [*self.links, self._dispatcher]

    def deal_start(self, number: int) -> DealStart | None:
        """Return how dealing goes on after what was taken of a stream, where there is any."""
        if self._deal is None or self._dispatcher is None:
            return None
        marks = [link.inboxes[number].mark.read() for link in self.links]
        dealing = self._dispatcher.dealing
        dealing.forget_before(self._deal.place, marks)
        return dealing.start(self._deal.place, marks)

    async def recover(self) -> bool:
        """Replace the workers that died; whether there were any and that may be done."""
        async with self._recovering:
            dead = [link for link in self.all_links() if isinstance(link.failure, WorkerDied)]
            if not dead or self._start is None or not self._patience.allows(dead):
                return False
            for link in dead:
                logger.warning("%s; it is replaced", link.failure)
            await self._patience.wait()
            # What a dispatching process has dealt nobody else can deal again.
            lost = self.all_links() if self._dispatcher is not None else dead
            await self._replace(lost)
            self.restarts += len(dead)
        return True

    async def aclose(self) -> None:
        """End all workers within three seconds in total."""
        self.end_epoch()
        for link in self.all_links():
            link.close()
        self.links, self._dispatcher = [], None
        processes = list(self._processes)
        self._processes.clear()
        self._finalizer.detach()
        await close_processes(processes)

    async def _replace(self, lost: list[Link]) -> None:
        for link in lost:
            link.process.kill()
        await self._read_to_the_end(lost)
        numbers = [link.worker for link in lost if link.worker is not None]
        deal = self._deal_after_arrived()
        links, dispatcher = await self._started(numbers)
        for link in lost:
            link.detach()
        assert self._start is not None
        assert self._loop is not None
        for link in filter(None, [*links, dispatcher]):
            link.begin_epoch(self._epoch)
            link.detach()
            link.attach(self._loop, self._wake)
        self._retired += lost
        if dispatcher is not None and self._dispatcher is not None:
            dispatcher.dealing = self._dispatcher.dealing
            dispatcher.send(self._start.for_dispatcher(deal))
            self._dispatcher = dispatcher
        for number, link in zip(numbers, links, strict=True):
            self._hand_over(self.links[number], link)
            self.links[number] = link
        self._wake()

    def _hand_over(self, lost: Link, link: Link) -> None:
        assert self._start is not None
        assert link.worker is not None
        link.send(self._start.for_worker(link.worker))
        starts = {number: start_after_arrived(inbox) for number, inbox in lost.inboxes.items()}
        link.go_on_for(lost)
        for number, start in starts.items():
            link.send(self._order(number, start))

    def _deal_after_arrived(self) -> DealStart | None:
        if self._deal is None or self._dispatcher is None:
            return None
        # With a dispatching process there is one stream.
        marks = [link.inboxes[0].latest_mark.read() for link in self.links if link.inboxes]
        return self._dispatcher.dealing.start(self._deal.place, marks) if marks else None

    async def _read_to_the_end(self, lost: list[Link]) -> None:
        waiter = LoopWaiter(asyncio.get_running_loop())
        for link in lost:
            link.on_news = waiter.wake
        # A process that the dead one left behind may hold the channel open.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await waiter.until(lambda: all(link.is_cut for link in lost))

    def _give_orders(self, orders: EpochOrders, deal: DealStart | None) -> None:
        orders.is_given = True
        for worker, link in enumerate(self.links):
            link.send(orders.for_worker(worker))
        if self._dispatcher is not None:
            if deal is not None:
                self._dispatcher.dealing = Dealing(deal.mark)
            self._dispatcher.send(orders.for_dispatcher(deal))

    def _begin_stream(self, link: Link, number: int, start: WorkerStart) -> Inbox:
        inbox = link.begin_stream(number, start.mark, start.unwanted)
        link.send(self._order(number, start))
        return inbox

    def _stream(self, number: int, waiter: LoopWaiter) -> WorkerStream | FedStream:
        if number == self._fed:
            return FedStream(self, number, waiter, self.settings)
        return WorkerStream(self, number, self._epoch, waiter, self.settings)

    def _order(self, number: int, start: WorkerStart) -> BeginStream:
        if number == self._fed:
            # What a worker may send is bounded by what it is dealt. What it is dealt never
            # comes again, so there is nothing to go on from.
            return BeginStream(self._epoch, number, UNBOUNDED, one_by_one=False)
        credits = self.settings.credits
        return BeginStream(self._epoch, number, credits, credits == 0, start.mark, start.unwanted)

    async def _started(self, workers: Sequence[int]) -> tuple[list[Link], Link | None]:
        """Start these workers, and with all of them the dispatching process, if there is one."""
        loop = asyncio.get_running_loop()
        waiter = LoopWaiter(loop)
        all_links: list[Link] = []
        try:
            async with asyncio.timeout(START_SECONDS):
                links, dispatcher = await self._start_processes(workers)
                all_links += [*links, *filter(None, [dispatcher])]
                for link in all_links:
                    link.attach(loop, waiter.wake)
                self._set_up(links, dispatcher)
                await waiter.until(lambda: _are_started(all_links))
        except TimeoutError:
            _close_all(all_links)
            raise WorkerStartupError(f"the workers did not start in {START_SECONDS:g} s") from None
        except BaseException:
            _close_all(all_links)
            raise
        failures = [link.failure for link in all_links if link.failure is not None]
        if failures:
            _close_all(all_links)
            raise _as_startup_error(failures[0])
        return links, dispatcher

    def _watch_over_processes(self) -> None:
        self._finalizer = weakref.finalize(self, _leave_nothing, self._processes)
        # When the interpreter exits, the processes are ended without a word.
        self._finalizer.atexit = False

    async def _start_processes(self, workers: Sequence[int]) -> tuple[list[Link], Link | None]:
        plans = [
            ProcessPlan(f"asyncloader worker {worker}", f"{_MAIN}:main", preload=(_MAIN,))
            for worker in workers
        ]
        if self._deal is not None:
            plans.append(
                ProcessPlan("asyncloader dispatcher", f"{_DISPATCH}:main", preload=(_MAIN,))
            )
        try:
            async with asyncio.TaskGroup() as group:
                starts = [group.create_task(self._start_one(plan)) for plan in plans]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        dispatcher = None
        if self._deal is not None:
            dispatcher = Link("the dispatching process", None, starts.pop().result())
        copy_beyond = self._share() // 2
        links = [
            Link(f"worker {worker}", worker, start.result(), copy_beyond=copy_beyond)
            for worker, start in zip(workers, starts, strict=True)
        ]
        return links, dispatcher

    async def _start_one(self, plan: ProcessPlan) -> Process:
        process = await start_process(plan, method=self.settings.method, timeout=START_SECONDS)
        self._processes.append(process)
        return process

    def _set_up(self, links: list[Link], dispatcher: Link | None) -> None:
        """Tell each process what it is, and give the dispatching one a channel to each worker."""
        dealt = []
        for link in links:
            fds = self._plan.fds()
            if dispatcher is not None:
                from_dispatcher, to_worker = socket.socketpair()
                fds.append(from_dispatcher.detach())
                dealt.append(to_worker.detach())
            if self._fed is not None:
                from_loader, to_loader = socket.socketpair()
                fds.append(from_loader.detach())
                link.add_line(to_loader, self._share())
            link.send(self._setup(link.worker or 0, self._plan), fds)
        if dispatcher is not None and self._deal is not None:
            fds = self._deal.plan.fds() + dealt
            dispatcher.send(self._setup(0, self._deal.plan), fds)

    def _setup(self, worker: int, plan: Parcel) -> Setup:
        info = WorkerInfo(num_workers=self.settings.num_workers, worker_id=worker)
        return Setup(info, plan.data, self._share(), plan_fds=len(plan.shared))

    def _share(self) -> int:
        return self.settings.prefetch_bytes // self.settings.num_workers

    def _tell_all(self, command: Pause | Resume) -> None:
        for link in self.all_links():
            link.send(command)

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.wake()


def _close_all(links: list[Link]) -> None:
    for link in links:
        link.close()


def _are_started(links: list[Link]) -> bool:
    if any(link.failure is not None for link in links):
        return True
    return all(link.is_ready for link in links)


def _as_startup_error(failure: BaseException) -> WorkerStartupError:
    if isinstance(failure, WorkerStartupError):
        return failure
    error = WorkerStartupError(f"a worker ended while it was starting: {failure}")
    error.__cause__ = failure
    return error


def _leave_nothing(processes: list[Process]) -> None:
    """Kill the workers of a pool that was dropped without being closed."""
    if any(process.is_ours() for process in processes):
        warnings.warn(
            f"{len(processes)} worker processes were still running when their loader was dropped;"
            " use `async with loader`, `with loader`, aclose() or shutdown()",
            ResourceWarning,
            stacklevel=2,
        )
        kill_processes_now(processes)
