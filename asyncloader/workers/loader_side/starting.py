"""Processes of a pool, from nothing to ready.

This file is about ``Starter``: it starts workers together, with the process that deals to
them if there is one, and tells each what it is; all of them become ready, or none is left.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asyncloader.datapipes.pipe.registering import homes_of_methods
from asyncloader.errors import ResourceExhausted, WorkerDied, WorkerStartupError
from asyncloader.runtime import descriptors_for
from asyncloader.transport.code import Parcel
from asyncloader.waiting import LoopWaiter
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.conversation.messages import Setup
from asyncloader.workers.loader_side.link import Link
from asyncloader.workers.loader_side.patience import Patience
from asyncloader.workers.loader_side.worker_stream import PoolSettings
from asyncloader.workers.process.process import Process, ProcessPlan, close_processes
from asyncloader.workers.process.start import start_process

logger = logging.getLogger("asyncloader")

START_SECONDS = 60.0

_MAIN = "asyncloader.workers.worker_side.main"
_DISPATCH = "asyncloader.workers.worker_side.dispatch"


@dataclass(frozen=True)
class DealPlan:
    """What the dispatching process is told to run, and for whom."""

    plan: Parcel
    #: The number of its last pipe.
    pipe: int
    #: The stream that is made of what it deals; there may be others beside it.
    stream: int


class Started(NamedTuple):
    """Processes that are ready, and detached from any loop."""

    links: list[Link]
    dispatcher: Link | None

    def all_links(self) -> list[Link]:
        """Return the links to all processes, the dispatching one among them."""
        return [*self.links, *filter(None, [self.dispatcher])]


class Starter:
    """Starts the processes of one pool, and knows all that were not ended."""

    def __init__(
        self,
        plan: Parcel,
        settings: PoolSettings,
        deal: DealPlan | None,
        *,
        has_lines: bool = False,
    ) -> None:
        self.processes: list[Process] = []
        self._plan = plan
        self._settings = settings
        self._deal = deal
        # Whether each worker has a channel for what the loader sends it.
        self._has_lines = has_lines

    async def start(self, workers: Iterable[int]) -> Started:
        """Start these workers, or none: WorkerStartupError with the cause, and nothing left."""
        begun = len(self.processes)
        links: list[Link] = []
        try:
            async with asyncio.timeout(START_SECONDS):
                started = await self._start_processes(list(workers), links)
                await self._get_ready(started)
        except BaseException as error:
            for link in links:
                link.close()
            await self.end(self.processes[begun:], grace=0.0)
            if isinstance(error, TimeoutError):
                raise WorkerStartupError(
                    f"the workers did not start in {START_SECONDS:g} s"
                ) from None
            if isinstance(error, ResourceExhausted):
                raise WorkerStartupError(f"the workers were not started: {error}") from error
            raise
        for link in links:
            link.detach()
        return started

    async def start_again(self, workers: Sequence[int], patience: Patience) -> Started:
        """Start these workers; those that are killed meanwhile as often as ``patience`` allows."""
        while True:
            try:
                return await self.start(workers)
            except WorkerStartupError as error:
                is_death = isinstance(error.__cause__, WorkerDied)
                if not is_death or not patience.allows(has_delivered=False):
                    raise
                logger.warning("%s; it is started again", error)
            await patience.wait()

    async def end(self, processes: Iterable[Process], *, grace: float) -> None:
        """End processes that were asked to end ``grace`` seconds ago at most, and forget them."""
        ending = list(processes)
        for process in ending:
            self.processes.remove(process)
        await close_processes(ending, grace=grace)

    async def _start_processes(self, workers: Sequence[int], links: list[Link]) -> Started:
        """Start processes; ``links`` gets their links as soon as there are any."""
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
            failure = failures.exceptions[0]
            raise failure from failure.__cause__
        dispatcher = None
        if self._deal is not None:
            dispatcher = Link("the dispatching process", None, starts.pop().result())
        copy_beyond = self._share() // 2
        started = [
            Link(f"worker {worker}", worker, start.result(), copy_beyond=copy_beyond)
            for worker, start in zip(workers, starts, strict=True)
        ]
        links += [*started, *filter(None, [dispatcher])]
        return Started(started, dispatcher)

    async def _start_one(self, plan: ProcessPlan) -> Process:
        process = await start_process(plan, method=self._settings.method, timeout=START_SECONDS)
        self.processes.append(process)
        return process

    async def _get_ready(self, started: Started) -> None:
        loop = asyncio.get_running_loop()
        waiter = LoopWaiter(loop)
        for link in started.all_links():
            link.attach(loop, waiter.wake)
        with descriptors_for("what the workers are told", self._most_told(len(started.links))):
            self._set_up(started)
        await waiter.until(lambda: _are_ready(started.all_links()))
        failures = [link.failure for link in started.all_links() if link.failure is not None]
        if failures:
            raise _as_startup_error(failures[0])

    def _set_up(self, started: Started) -> None:
        """Tell each process what it is, and give the dispatching one a channel to each worker."""
        dealt = []
        for link in started.links:
            fds = self._plan.fds()
            if started.dispatcher is not None:
                from_dispatcher, to_worker = socket.socketpair()
                fds.append(from_dispatcher.detach())
                dealt.append(to_worker.detach())
            if self._has_lines:
                from_loader, to_loader = socket.socketpair()
                fds.append(from_loader.detach())
                link.add_line(to_loader, self._share())
            link.send(self._setup(link.worker or 0, self._plan), fds=fds)
        if started.dispatcher is not None and self._deal is not None:
            fds = self._deal.plan.fds() + dealt
            started.dispatcher.send(self._setup(0, self._deal.plan), fds=fds)

    def _most_told(self, workers: int) -> int:
        """Return how many descriptors ``_set_up`` may have open at once."""
        deal = () if self._deal is None else self._deal.plan.shared
        channels = [self._has_lines, self._deal is not None].count(True)
        return workers * (len(self._plan.shared) + 2 * channels) + len(deal)

    def _setup(self, worker: int, plan: Parcel) -> Setup:
        info = WorkerInfo(num_workers=self._settings.num_workers, worker_id=worker)
        homes = homes_of_methods()
        return Setup(info, plan.data, self._share(), plan_fds=len(plan.shared), homes=homes)

    def _share(self) -> int:
        return self._settings.prefetch_bytes // self._settings.num_workers


def _are_ready(links: list[Link]) -> bool:
    return any(link.failure is not None for link in links) or all(link.is_ready for link in links)


def _as_startup_error(failure: BaseException) -> WorkerStartupError:
    if isinstance(failure, WorkerStartupError):
        return failure
    error = WorkerStartupError(f"a worker ended while it was starting: {failure}")
    error.__cause__ = failure
    return error
