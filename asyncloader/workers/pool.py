"""All the workers of a loader.

This file is about ``WorkerPool``: workers start together, run epoch after epoch,
and are closed together.
"""

from __future__ import annotations

import asyncio
import socket
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import replace

from asyncloader.errors import WorkerStartupError
from asyncloader.runtime import LoopWaiter, WorkerInfo, call_soon
from asyncloader.seeds import SeedGenerator
from asyncloader.transport.codec import Parcel
from asyncloader.workers.link import Link
from asyncloader.workers.messages import (
    EndEpoch,
    Pause,
    Resume,
    Setup,
    StartEpoch,
)
from asyncloader.workers.process import (
    Process,
    ProcessPlan,
    close_processes,
    kill_processes_now,
    start_process,
)
from asyncloader.workers.worker_stream import PoolSettings, WorkerStream

START_SECONDS = 60.0

_MAIN = "asyncloader.workers.main"
_DISPATCH = "asyncloader.workers.dispatch"


class WorkerPool:
    """The workers of one loader, from ``start`` to ``aclose``."""

    def __init__(
        self,
        plan: Parcel,
        streams: int,
        settings: PoolSettings,
        dispatch_plan: Parcel | None = None,
    ) -> None:
        self.settings = settings
        self._plan = plan
        self._dispatch_plan = dispatch_plan
        self._streams = streams
        self._links: list[Link] = []
        self._dispatcher: Link | None = None
        self._processes: list[Process] = []
        self._waiters: list[LoopWaiter] = []
        self._epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch_over_processes()

    async def start(self) -> None:
        """Start all workers, or none: WorkerStartupError with the cause, and nothing left."""
        loop = asyncio.get_running_loop()
        waiter = LoopWaiter(loop)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._start_processes()
                for link in self._all():
                    link.attach(loop, waiter.wake)
                self._set_up()
                await waiter.until(self._is_started)
        except TimeoutError:
            await self.aclose()
            raise WorkerStartupError(f"the workers did not start in {START_SECONDS:g} s") from None
        except BaseException:
            await self.aclose()
            raise
        for link in self._all():
            link.detach()
        failures = [link.failure for link in self._all() if link.failure is not None]
        if failures:
            await self.aclose()
            raise _as_startup_error(failures[0])

    async def restart(self) -> None:
        """Start all workers anew, after one has died."""
        await self.aclose()
        self._watch_over_processes()
        await self.start()

    def begin_epoch(
        self, shared_seeds: Sequence[int], seed_generator: SeedGenerator, resets: bytes
    ) -> list[WorkerStream]:
        """Begin an epoch on the running loop; return its streams."""
        loop = asyncio.get_running_loop()
        self._epoch += 1
        self._waiters = [LoopWaiter(loop) for _ in range(self._streams)]
        self._loop = loop
        start = StartEpoch(
            epoch=self._epoch,
            credits=self.settings.credits,
            one_by_one=self.settings.credits == 0,
            shared_seeds=tuple(shared_seeds),
            seed_generator=seed_generator.clone(),
            resets=resets,
        )
        for worker, link in enumerate(self._links):
            link.begin_epoch(self._epoch, self._streams)
            link.attach(loop, self._wake)
            link.send(replace(start, seed_generator=seed_generator.spawn(worker)))
        if self._dispatcher is not None:
            self._dispatcher.begin_epoch(self._epoch, streams=0)
            self._dispatcher.attach(loop, self._wake)
            self._dispatcher.send(start)
        return [self._stream(number) for number in range(self._streams)]

    def end_epoch(self) -> None:
        """End the epoch and leave the loop; the workers stay."""
        if self._loop is None:
            return
        self._loop = None
        for link in self._all():
            link.send(EndEpoch(self._epoch))
            link.end_epoch()
            link.detach()

    def tell_all(self, command: Pause | Resume) -> None:
        """Pause or resume every worker, from any thread; nothing happens between epochs."""
        if self._loop is not None:
            call_soon(self._loop, self._tell_all, command)

    def has_dead(self) -> bool:
        """Whether a worker has ended, so that the pool cannot run another epoch."""
        return any(link.failure is not None or link.process.is_dead() for link in self._all())

    async def aclose(self) -> None:
        """End all workers within three seconds in total."""
        self.end_epoch()
        for link in self._all():
            link.close()
        self._links, self._dispatcher = [], None
        processes = list(self._processes)
        self._processes.clear()
        self._finalizer.detach()
        await close_processes(processes)

    def _watch_over_processes(self) -> None:
        self._finalizer = weakref.finalize(self, _leave_nothing, self._processes)
        # When the interpreter exits, the processes are ended without a word.
        self._finalizer.atexit = False

    async def _start_processes(self) -> None:
        plans = [
            ProcessPlan(f"asyncloader worker {worker}", f"{_MAIN}:main", preload=(_MAIN,))
            for worker in range(self.settings.num_workers)
        ]
        if self._dispatch_plan is not None:
            plans.append(
                ProcessPlan("asyncloader dispatcher", f"{_DISPATCH}:main", preload=(_MAIN,))
            )
        try:
            async with asyncio.TaskGroup() as group:
                starts = [group.create_task(self._start_one(plan)) for plan in plans]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if self._dispatch_plan is not None:
            self._dispatcher = Link("the dispatching process", None, starts.pop().result())
        for worker, start in enumerate(starts):
            link = Link(f"worker {worker}", worker, start.result(), copy_beyond=self._share() // 2)
            self._links.append(link)

    async def _start_one(self, plan: ProcessPlan) -> Process:
        process = await start_process(plan, method=self.settings.method, timeout=START_SECONDS)
        self._processes.append(process)
        return process

    def _set_up(self) -> None:
        """Tell each process what it is, and give the dispatching one a channel to each worker."""
        dealt = []
        for worker, link in enumerate(self._links):
            fds = self._plan.fds()
            if self._dispatcher is not None:
                from_dispatcher, to_worker = socket.socketpair()
                fds.append(from_dispatcher.detach())
                dealt.append(to_worker.detach())
            link.send(self._setup(worker, self._plan), fds)
        if self._dispatcher is not None and self._dispatch_plan is not None:
            fds = self._dispatch_plan.fds() + dealt
            self._dispatcher.send(self._setup(0, self._dispatch_plan), fds)

    def _setup(self, worker: int, plan: Parcel) -> Setup:
        info = WorkerInfo(num_workers=self.settings.num_workers, worker_id=worker)
        return Setup(info, plan.data, self._share(), plan_fds=len(plan.shared))

    def _share(self) -> int:
        return self.settings.prefetch_bytes // self.settings.num_workers

    def _all(self) -> list[Link]:
        return self._links if self._dispatcher is None else [*self._links, self._dispatcher]

    def _is_started(self) -> bool:
        if any(link.failure is not None for link in self._all()):
            return True
        return all(link.is_ready for link in self._all())

    def _tell_all(self, command: Pause | Resume) -> None:
        for link in self._all():
            link.send(command)

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.wake()

    def _stream(self, number: int) -> WorkerStream:
        return WorkerStream(
            self._links,
            self._all(),
            number,
            self._epoch,
            self._waiters[number],
            self.settings,
        )


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
