"""All the workers of a loader.

This file is about ``WorkerPool``: workers start together, run epoch after epoch, are replaced when
they die, and are closed together; with them the process that deals to them, if there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from asyncloader.datapipes.base import homes_of_methods
from asyncloader.errors import ResourceExhausted, WorkerDied, WorkerStartupError, WorkerTimeout
from asyncloader.places.marks import FIRST, DealStart
from asyncloader.places.stream_place import Dealing, StreamPlace, WorkerStart
from asyncloader.runtime import descriptors_for
from asyncloader.seeds import SeedGenerator
from asyncloader.transport.parcel import Parcel
from asyncloader.waiting import AwaitsOthers, LoopWaiter, call_soon
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.fed_stream import FedStream
from asyncloader.workers.handle import LOST, READY, STARTING, WorkerHandle
from asyncloader.workers.inbox import Inbox
from asyncloader.workers.messages import (
    UNBOUNDED,
    BeginStream,
    Instruction,
    Setup,
    StartEpoch,
    dump_message,
)
from asyncloader.workers.process.process import (
    ProcessPlan,
    WorkerEngine,
    WorkerProcess,
    close_processes,
    kill_processes_now,
)
from asyncloader.workers.worker_stats import WorkerStats
from asyncloader.workers.worker_stream import PoolSettings, WorkerStream

logger = logging.getLogger("asyncloader")

#: How many seconds the channel of a dead worker may stay open.
DRAIN_SECONDS = 1.0
#: How many seconds workers that were told to end have before they are killed.
CLOSE_GRACE = 2.0

#: The failures after which a worker is replaced.
GONE = (WorkerDied, WorkerTimeout)


class WorkerPool:
    """The workers of one loader, from ``start`` to ``aclose``."""

    def __init__(
        self,
        engine: WorkerEngine,
        plan: Parcel,
        streams: int,
        settings: PoolSettings,
        deal: DealPlan | None = None,
        fed: int | None = None,
    ) -> None:
        self.settings = settings
        #: The workers, in their order; and all processes, the dispatching one after the workers.
        self.handles: list[WorkerHandle] = []
        self.all_handles: list[WorkerHandle] = []
        self.restarts = 0
        self.is_draining = False
        self._restarts_of: Counter[str] = Counter()
        self._deal = deal
        self._starter = Starter(engine, plan, settings, deal, has_lines=fed is not None)
        #: The stream whose source lives with the loader, if there is one.
        self._fed = fed
        self._count = streams
        #: The streams of this epoch.
        self._streams: list[WorkerStream | FedStream] = []
        self._dispatcher: WorkerHandle | None = None
        #: Workers that died in this epoch, until all of their frames are opened.
        self._retired: list[WorkerHandle] = []
        self._epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The epoch's start command, which a replacement process gets too.
        self._start: StartEpoch | None = None
        #: What the workers are told before their first stream.
        self._untold: list[bytes] = []
        #: How many items had been taken at the last replacement.
        self._taken = 0
        self._recovering = asyncio.Lock()
        self._watch_over_processes()

    async def start(self) -> None:
        """Start all workers; if one fails, end the others and raise WorkerStartupError."""
        try:
            handles = await self._starter.start(self._workers())
        except BaseException:
            # Nobody closes a pool that was not started.
            await self._starter.close()
            raise
        self._hold(handles)

    async def restart(self) -> None:
        """Start all workers anew, after one has died."""
        await self.end()
        self._watch_over_processes()
        self._hold(await self._starter.start_again(self._workers()))

    def begin_epoch(
        self, shared_seeds: Sequence[int], seed_generator: SeedGenerator, resets: bytes
    ) -> list[WorkerStream | FedStream]:
        """Begin an epoch on the running loop; return its streams."""
        loop = asyncio.get_running_loop()
        self._epoch += 1
        self.is_draining = False
        self._loop = loop
        # A new lock: an asyncio lock belongs to the loop on which it was first awaited.
        self._recovering = asyncio.Lock()
        generator = seed_generator.clone()
        self._start = StartEpoch(self._epoch, tuple(shared_seeds), generator, resets)
        self._untold = [dump_message(self._start)]
        self._taken = 0
        self._streams = [self._stream(number, self.settings) for number in range(self._count)]
        news = self._news()
        for handle in self.all_handles:
            handle.join_epoch(self._epoch, loop, news)
        return self._streams

    def begin_stream(self, number: int, place: StreamPlace) -> list[Inbox]:
        """Let every worker begin a stream; return the inboxes of its items."""
        assert self._start is not None
        first, self._untold = self._untold, []
        if self._dispatcher is not None and self._is_dealt(number):
            # Only the dealt stream knows where dealing resumes, and it may not be the first stream.
            self._direct(self._dispatcher, self._start, place.deal)
        inboxes = []
        for handle, start in zip(self.handles, place.starts, strict=True):
            inboxes.append(handle.begin_stream(number, start.mark, start.unwanted))
            handle.say(*first, dump_message(self._order(number, start)))
        return inboxes

    def end_epoch(self) -> None:
        """End the epoch and leave the loop; the workers stay."""
        if self._loop is None:
            return
        self._loop = None
        self._streams = []
        for handle in self.all_handles:
            handle.leave_epoch()
        if self._retired:
            self._close_retired(self._retired)

    def pause(self, is_paused: bool) -> None:
        """Pause or resume every worker, from any thread; do nothing between epochs."""
        if self._loop is not None:
            call_soon(self._loop, self._pause, is_paused)

    def has_dead(self) -> bool:
        """Whether a worker has ended, or all were, so that the pool cannot run another epoch."""
        return not self.handles or any(
            handle.life is LOST or handle.process.is_dead() for handle in self.all_handles
        )

    def has_other_length(self) -> bool:
        """Whether a worker's init function may have changed how many items it yields."""
        return any(handle.has_other_length for handle in self.handles)

    def stats(self) -> list[WorkerStats]:
        """Return the statistics of all processes in this epoch, or in the last one."""
        return [handle.stats(self._restarts_of[handle.name]) for handle in self.all_handles]

    def dealing_of(self, number: int) -> Dealing | None:
        """Return the marks of the process that deals a stream's items; None if none does."""
        if self._dispatcher is None or not self._is_dealt(number):
            return None
        return self._dispatcher.dealing

    async def recover(self) -> bool:
        """Replace the dead workers; False if there are none or they may not be replaced."""
        async with self._recovering:
            dead = [handle for handle in self.all_handles if isinstance(handle.failure, GONE)]
            # No other process can deal again what a dispatching process has dealt.
            lost = self.all_handles if self._dispatcher is not None else dead
            if not dead or self._start is None:
                return False
            if not self._starter.may_replace(has_delivered=self._has_delivered(dead)):
                return False
            if any(map(self._is_lost_for_good, lost)):
                return False
            for handle in dead:
                stack = getattr(handle.failure, "stack", None)
                logger.warning(
                    "%s; it is replaced%s", handle.failure, f"\n{stack}" if stack else ""
                )
            await self._starter.wait()
            await self._replace(lost)
            self.restarts += len(dead)
            self._restarts_of.update(handle.name for handle in dead)
        return True

    async def aclose(self) -> None:
        """End all workers for good, within three seconds in total."""
        await self.end()
        self._deal = None
        await self._starter.close()

    async def end(self) -> None:
        """End all workers; ``restart`` starts others, with what these were sent or inherited."""
        self.end_epoch()
        for handle in self.all_handles:
            handle.close()
        self._hold([])
        self._finalizer.detach()
        await self._starter.end(self._starter.processes, grace=CLOSE_GRACE)

    def _has_delivered(self, dead: list[WorkerHandle]) -> bool:
        """Whether an item came from these workers since their start, or was taken since then."""
        if self._dispatcher is None:
            return any(handle.has_delivered for handle in dead)
        if self._dispatcher in dead:
            return any(handle.has_delivered for handle in self.handles)
        # All workers are replaced together, so the items of any of them count.
        before, self._taken = self._taken, self._count_taken()
        return any(handle.has_delivered for handle in dead) or self._taken > before

    def _count_taken(self) -> int:
        return sum(inbox.position for handle in self.handles for inbox in handle.inboxes.values())

    async def _replace(self, lost: list[WorkerHandle]) -> None:
        for handle in lost:
            handle.process.kill()
        await self._read_to_the_end(lost)
        for handle in lost:
            handle.detach()
        await self._starter.end([handle.process for handle in lost], grace=0.0)
        numbers = [handle.worker for handle in lost if handle.worker is not None]
        deal = self._deal_after_arrived()
        started = await self._starter.start_again(numbers)
        handles, dispatcher = _apart(started)
        assert self._start is not None
        assert self._loop is not None
        for handle in started:
            handle.join_epoch(self._epoch, self._loop, self._news())
        self._retired += lost
        if dispatcher is not None and self._dispatcher is not None:
            dispatcher.dealing = self._dispatcher.dealing
            if deal is not None:
                dispatcher.send(replace(self._start, deal=deal))
        for number, handle in zip(numbers, handles, strict=True):
            self._hand_over(self.handles[number], handle)
        replaced = {handle.worker: handle for handle in started}
        self._hold([replaced.get(handle.worker, handle) for handle in self.all_handles])
        # An endless epoch may have any number of deaths, so drop what is used up.
        self._close_retired([handle for handle in self._retired if handle.is_used_up()])
        self._wake()

    def _hold(self, handles: list[WorkerHandle]) -> None:
        """Hold these handles in the place of those that were held."""
        self.handles, self._dispatcher = workers, dispatcher = _apart(handles)
        self.all_handles = workers if dispatcher is None else [*workers, dispatcher]

    def _close_retired(self, handles: list[WorkerHandle]) -> None:
        self._retired = [handle for handle in self._retired if handle not in handles]
        for handle in handles:
            handle.close()

    def _hand_over(self, lost: WorkerHandle, handle: WorkerHandle) -> None:
        assert self._start is not None
        starts = {number: inbox.start_after_arrived() for number, inbox in lost.inboxes.items()}
        handle.take_over(lost)
        orders = [self._order(number, start) for number, start in starts.items()]
        handle.send(self._start, *orders)

    def _deal_after_arrived(self) -> DealStart | None:
        """Return where dealing resumes after all items that have arrived, if it has begun."""
        if self._deal is None or self._dispatcher is None:
            return None
        number = self._deal.stream
        inboxes = [handle.inboxes[number] for handle in self.handles if number in handle.inboxes]
        marks = [inbox.start_after_arrived().mark for inbox in inboxes]
        return self._dispatcher.dealing.start(marks) if marks else None

    async def _read_to_the_end(self, lost: list[WorkerHandle]) -> None:
        waiter = LoopWaiter(asyncio.get_running_loop())
        for handle in lost:
            handle.on_news = waiter.wake
        # A child of the dead process may hold the channel open.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await waiter.until(lambda: all(handle.is_cut for handle in lost))

    def _direct(self, dispatcher: WorkerHandle, start: StartEpoch, deal: DealStart | None) -> None:
        assert self._deal is not None
        dispatcher.dealing = Dealing(self._deal.pipe, FIRST if deal is None else deal.mark)
        dispatcher.send(replace(start, deal=deal))

    def _is_dealt(self, number: int) -> bool:
        """Whether a stream is made of items that the dispatching process deals."""
        return self._deal is not None and number == self._deal.stream

    def _stream(self, number: int, settings: PoolSettings) -> WorkerStream | FedStream:
        if number == self._fed:
            return FedStream(self, number, settings)
        return WorkerStream(self, number, self._epoch, settings)

    def _order(self, number: int, start: WorkerStart) -> BeginStream:
        if number == self._fed:
            # A worker can send only as much as it is dealt, so credits need no limit. Dealt
            # items cannot be made again, so there is no mark. A caller waits for each of
            # them, so every item is sent alone.
            return BeginStream(self._epoch, number, UNBOUNDED, one_by_one=True)
        credits = self.settings.credits
        return BeginStream(self._epoch, number, credits, credits == 0, *start)

    def _is_lost_for_good(self, handle: WorkerHandle) -> bool:
        """Whether a process's yielded items are unknown; if so, set its failure to say it."""
        inboxes = (inbox for number, inbox in handle.inboxes.items() if number != self._fed)
        name = next(filter(None, (inbox.unrecorded for inbox in inboxes)), "")
        if name and handle.failure is not None:
            handle.failure.add_note(
                f"{handle.name} is not replaced: {name} yields results as soon as they are ready,"
                " and the loader does not know which it has yielded, because a reading service, or"
                " its function, added it to the graph; add it before the loader is made, or pass"
                " ordered=True"
            )
        return bool(name)

    def _watch_over_processes(self) -> None:
        self._finalizer = weakref.finalize(self, _leave_nothing, self._starter.processes)
        # When the interpreter exits, the processes are ended without a warning.
        self._finalizer.atexit = False

    def _workers(self) -> range:
        return range(self.settings.num_workers)

    def _pause(self, is_paused: bool) -> None:
        for handle in self.all_handles:
            handle.send(Instruction.PAUSE if is_paused else Instruction.RESUME)
            handle.set_paused(is_paused)

    def _news(self) -> Callable[[], None]:
        """Return what to call at news: most epochs have one stream."""
        return self._streams[0].news if len(self._streams) == 1 else self._wake

    def _wake(self) -> None:
        for stream in self._streams:
            stream.news()


def _leave_nothing(processes: list[WorkerProcess]) -> None:
    """Kill the workers of a pool that was dropped without being closed."""
    if any(process.is_ours() for process in processes):
        count = len(processes)
        running = "1 worker was" if count == 1 else f"{count} workers were"
        warnings.warn(
            f"{running} still running when their loader was dropped; use `async with loader`,"
            " `with loader`, aclose() or shutdown()",
            ResourceWarning,
            stacklevel=2,
        )
        kill_processes_now(processes)


_MAIN = "asyncloader.workers.worker"
_DISPATCH = "asyncloader.workers.dispatcher"


def expect_workers(engine: WorkerEngine) -> None:
    """Let an engine begin what takes long before the first worker can be started."""
    engine.expect(_worker_plan(0))


def _worker_plan(worker: int) -> ProcessPlan:
    return ProcessPlan(f"asyncloader worker {worker}", f"{_MAIN}:main", preload=(_MAIN,))


@dataclass(frozen=True)
class DealPlan:
    """What the dispatching process runs, and for which stream."""

    plan: Parcel
    #: The number of the part's last pipe.
    pipe: int
    #: The number of the stream that is made of the dealt items; there may be other streams.
    stream: int


def _apart(handles: list[WorkerHandle]) -> tuple[list[WorkerHandle], WorkerHandle | None]:
    """Return the handles to the workers, and that to the dispatching process if there is one."""
    dispatcher = next((handle for handle in handles if handle.worker is None), None)
    return [handle for handle in handles if handle is not dispatcher], dispatcher


_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


class Starter(AwaitsOthers):
    """Starts the processes of one pool, and knows those that were not ended yet.

    It counts the deaths in a row between which no item was delivered.
    """

    def __init__(
        self,
        engine: WorkerEngine,
        plan: Parcel,
        settings: PoolSettings,
        deal: DealPlan | None,
        *,
        has_lines: bool = False,
    ) -> None:
        self.processes: list[WorkerProcess] = []
        self._engine = engine
        self._plan = plan
        self._settings = settings
        self._deal = deal
        # Whether each worker has a channel for items that the loader feeds it.
        self._has_lines = has_lines
        self._in_vain = 0
        # Those that have to get ready.
        self._starting: list[WorkerHandle] = []

    def awaited(self) -> str:
        late = [each for each in self._starting if each.life is STARTING]
        names = ", ".join(f"{each.name} ({each.process.place})" for each in late)
        return f"{names} to get ready" if late else "the processes of its workers to start"

    def their_stack(self) -> tuple[str, ...]:
        late = (each for each in self._starting if each.life is STARTING)
        return next((found.stack for each in late for found in each.holding_up()), ())

    async def start(self, workers: Iterable[int]) -> list[WorkerHandle]:
        """Start these workers, and the dispatching process; return their handles.

        They are ready and not attached to a loop. If one fails, the others are ended and
        WorkerStartupError is raised.
        """
        begun = len(self.processes)
        handles: list[WorkerHandle] = []
        try:
            async with asyncio.timeout(self._engine.start_seconds):
                await self._start_processes(list(workers), handles)
                await self._get_ready(handles)
        except BaseException as error:
            for handle in handles:
                handle.close()
            await self.end(self.processes[begun:], grace=0.0)
            if isinstance(error, TimeoutError):
                seconds, why = self._engine.start_seconds, await self._engine.why_late()
                raise WorkerStartupError(
                    f"the workers did not start in {seconds:g} s{why}"
                ) from None
            if isinstance(error, ResourceExhausted):
                raise WorkerStartupError(f"the workers were not started: {error}") from error
            raise
        for handle in handles:
            handle.detach()
        return handles

    async def start_again(self, workers: Sequence[int]) -> list[WorkerHandle]:
        """Start these workers; if some are killed meanwhile, try again as often as they may be."""
        while True:
            try:
                return await self.start(workers)
            except WorkerStartupError as error:
                is_death = isinstance(error.__cause__, WorkerDied)
                if not is_death or not self.may_replace(has_delivered=False):
                    raise
                logger.warning("%s; it is started again", error)
            await self.wait()

    def may_replace(self, *, has_delivered: bool) -> bool:
        """Count a death; return whether the worker may be replaced again."""
        most = self._settings.max_restarts
        if most is None:
            return False
        self._in_vain = 0 if has_delivered else self._in_vain + 1
        return self._in_vain <= most

    async def wait(self) -> None:
        """Wait before workers are replaced; longer after more deaths in a row."""
        if self._in_vain:
            pause = _FIRST_PAUSE * 2 ** min(self._in_vain - 1, 10)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE))

    async def end(self, processes: Iterable[WorkerProcess], *, grace: float) -> None:
        """Wait ``grace`` seconds for processes to end, then kill those left; forget them all."""
        ending = list(processes)
        for process in ending:
            self.processes.remove(process)
        await close_processes(ending, grace=grace)

    async def close(self) -> None:
        """Give up what was held for the processes, which have ended: none is started again."""
        # An old epoch may keep the pool, and this may be most of the program's memory.
        self._plan, self._deal = Parcel(b"", ()), None
        await self._engine.close()

    async def _start_processes(self, workers: Sequence[int], handles: list[WorkerHandle]) -> None:
        """Start processes; add each handle to ``handles`` as soon as it exists."""
        plans = list(map(_worker_plan, workers))
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
        processes = [start.result() for start in starts]
        copy_beyond = self._share() // 2
        for worker, process in zip(workers, processes, strict=False):
            name = f"worker {worker}"
            handles.append(WorkerHandle(name, worker, process, copy_beyond=copy_beyond))
        if self._deal is not None:
            handles.append(WorkerHandle("the dispatching process", None, processes[-1]))

    async def _start_one(self, plan: ProcessPlan) -> WorkerProcess:
        process = await self._engine.start(plan)
        self.processes.append(process)
        return process

    async def _get_ready(self, handles: list[WorkerHandle]) -> None:
        loop = asyncio.get_running_loop()
        waiter = LoopWaiter(loop)
        self._starting = handles
        for handle in handles:
            handle.attach(loop, waiter.wake)
        workers, dispatcher = _apart(handles)
        with descriptors_for("what the workers are told", self._most_told(len(workers))):
            self._set_up(workers, dispatcher)
        await waiter.until(lambda: _are_ready(handles))
        failures = [handle.failure for handle in handles if handle.failure is not None]
        if failures:
            raise _as_startup_error(failures[0])

    def _set_up(self, workers: list[WorkerHandle], dispatcher: WorkerHandle | None) -> None:
        """Send each process its Setup; give the dispatching process a channel to each worker."""
        dealt = []
        plan = self._engine.sent(self._plan)
        for handle in workers:
            fds = self._engine.shared(plan)
            if dispatcher is not None:
                ends = self._engine.link(dispatcher.process, handle.process)
                fds.append(ends[0])
                dealt.append(ends[1])
            if self._has_lines:
                ours, theirs = self._engine.line()
                fds.append(theirs)
                handle.add_line(ours, self._share())
            memory = handle.new_memory()
            setup = replace(self._setup(handle.worker or 0, plan), has_memory=bool(memory))
            handle.send(setup, fds=fds + memory)
        if dispatcher is not None and self._deal is not None:
            plan = self._engine.sent(self._deal.plan)
            dispatcher.send(self._setup(0, plan), fds=self._engine.shared(plan) + dealt)

    def _most_told(self, workers: int) -> int:
        """Return how many descriptors ``_set_up`` may have open at once."""
        deal = () if self._deal is None else self._deal.plan.shared
        channels = [self._has_lines, self._deal is not None].count(True)
        return workers * (len(self._plan.shared) + 1 + 2 * channels) + len(deal)

    def _setup(self, worker: int, plan: Parcel) -> Setup:
        info = WorkerInfo(num_workers=self._settings.num_workers, worker_id=worker)
        homes = homes_of_methods()
        return Setup(info, plan.data, self._share(), plan_fds=len(plan.shared), homes=homes)

    def _share(self) -> int:
        return self._settings.prefetch_bytes // self._settings.num_workers


def _are_ready(handles: list[WorkerHandle]) -> bool:
    lives = [handle.life for handle in handles]
    return LOST in lives or all(life is READY for life in lives)


def _as_startup_error(failure: BaseException) -> WorkerStartupError:
    if isinstance(failure, WorkerStartupError):
        return failure
    error = WorkerStartupError(f"a worker ended while it was starting: {failure}")
    error.__cause__ = failure
    return error
