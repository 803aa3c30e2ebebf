"""All the workers of a loader.

This file is about ``WorkerPool``: workers start together, run epoch after epoch,
and are closed together; and about ``WorkerStream``, the items of one branch of
the graph from all of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from asyncloader.errors import WorkerStartupError, WorkerTimeout
from asyncloader.runtime import LoopWaiter, WorkerInfo, call_soon, in_thread
from asyncloader.seeds import SeedGenerator
from asyncloader.workers.link import Link
from asyncloader.workers.merging import AsTheyCome, InOrder, Merge
from asyncloader.workers.messages import (
    EndEpoch,
    Grant,
    Hurry,
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

logger = logging.getLogger("asyncloader")

START_SECONDS = 60.0
WARN_SECONDS = 30.0
HURRY_SECONDS = 0.05

_MAIN = "asyncloader.workers.main"
_DISPATCH = "asyncloader.workers.dispatch"


@dataclass(frozen=True)
class PoolSettings:
    """How many workers there are, how they start, and how far they may run ahead."""

    num_workers: int
    method: str | None
    credits: int
    in_order: bool
    timeout: float | None
    prefetch_bytes: int


class WorkerPool:
    """The workers of one loader, from ``start`` to ``aclose``."""

    def __init__(
        self, plan: bytes, streams: int, settings: PoolSettings, dispatch_plan: bytes | None = None
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
            fds = []
            if self._dispatcher is not None:
                from_dispatcher, to_worker = socket.socketpair()
                fds.append(from_dispatcher.detach())
                dealt.append(to_worker.detach())
            link.send(self._setup(worker, self._plan), fds)
        if self._dispatcher is not None and self._dispatch_plan is not None:
            self._dispatcher.send(self._setup(0, self._dispatch_plan), dealt)

    def _setup(self, worker: int, plan: bytes) -> Setup:
        info = WorkerInfo(num_workers=self.settings.num_workers, worker_id=worker)
        return Setup(info=info, plan=plan, arena_bytes=self._share())

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


class WorkerStream:
    """The items of one branch in one epoch, from all workers."""

    def __init__(
        self,
        links: list[Link],
        watched: list[Link],
        number: int,
        epoch: int,
        waiter: LoopWaiter,
        settings: PoolSettings,
    ) -> None:
        self._links = links
        self._watched = watched
        self._number = number
        self._epoch = epoch
        self._waiter = waiter
        self._settings = settings
        self._inboxes = [link.inboxes[number] for link in links]
        order = InOrder if settings.in_order else AsTheyCome
        self._merge: Merge = order(self._inboxes)

    async def take(self) -> list[Any]:
        """Wait for the next items; [] at the end, and an error in the place of its item."""
        items: list[Any] = []
        while not items and not self._merge.is_over():
            await self._until_ready()
            await self._open_heavy()
            items = self._merge.take()
            self._grant()
        return items

    async def _until_ready(self) -> None:
        begun = time.monotonic()
        while not self._merge.is_ready():
            failure = self._failure()
            if failure is not None:
                raise failure
            self._ask()
            hurry = asyncio.get_running_loop().call_later(HURRY_SECONDS, self._hurry)
            try:
                async with asyncio.timeout(self._patience(begun)):
                    await self._waiter.until(self._has_news)
            except TimeoutError:
                self._complain(begun)
            finally:
                hurry.cancel()

    def _has_news(self) -> bool:
        return self._merge.is_ready() or self._failure() is not None

    def _failure(self) -> BaseException | None:
        failures = (link.failure or link.epoch_failure for link in self._watched)
        return next((failure for failure in failures if failure is not None), None)

    def _ask(self) -> None:
        """Grant a frame to every worker that has nothing, where workers make nothing ahead."""
        if self._settings.credits:
            return
        for link, inbox in zip(self._links, self._inboxes, strict=True):
            if not inbox.is_asked and not inbox.has_something():
                inbox.is_asked = True
                link.send(Grant(self._epoch, self._number, 1))

    def _hurry(self) -> None:
        for inbox in self._merge.awaited():
            self._links[inbox.worker].send(Hurry(self._epoch, self._number))

    def _grant(self) -> None:
        if not self._settings.credits:
            return
        # A grant wakes the worker, so several go together; it has credits left meanwhile.
        for link, inbox in zip(self._links, self._inboxes, strict=True):
            if inbox.credits_done > self._settings.credits // 2:
                link.send(Grant(self._epoch, self._number, inbox.credits_done))
                inbox.credits_done = 0

    async def _open_heavy(self) -> None:
        for inbox in self._inboxes:
            if inbox.is_heavy():
                await in_thread(inbox.open)

    def _patience(self, begun: float) -> float:
        limit = self._settings.timeout
        return WARN_SECONDS if limit is None else max(0.0, limit - self._silence(begun))

    def _silence(self, begun: float) -> float:
        """How long the worker that owes an item has said nothing, since it was waited for."""
        return time.monotonic() - max(self._most_silent().last_heard, begun)

    def _most_silent(self) -> Link:
        owing = (self._links[inbox.worker] for inbox in self._merge.awaited())
        return min(owing, key=lambda link: link.last_heard)

    def _complain(self, begun: float) -> None:
        link = self._most_silent()
        owing, silence = link.worker, self._silence(begun)
        limit = self._settings.timeout
        if limit is None:
            logger.warning("waiting for worker %d for %.0f s", owing, silence)
            return
        if silence < limit:
            return
        failure = WorkerTimeout(
            f"worker {owing} (pid {link.process.pid}) owes an item and said nothing for"
            f" {silence:.1f} s (timeout={limit:g}); it was killed",
            worker=owing,
        )
        link.fail(failure)
        link.process.kill()
        raise failure


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
