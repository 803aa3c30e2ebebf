"""Running a graph in workers, wherever they are.

This file is about ``WorkersReadingService``: it starts the workers for a divided graph, begins
their epochs, and changes their number where that is chosen.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from asyncloader.arguments import (
    checked_auto,
    checked_count,
    checked_flag,
    checked_function,
    checked_graph,
    checked_seconds,
    function_name,
)
from asyncloader.datapipes.edges import pipes_in
from asyncloader.datapipes.prefetching import Prefetcher
from asyncloader.datapipes.running.cursors import Cursors
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    attributes,
    hands_over,
    is_of_package,
    lives_with_loader,
)
from asyncloader.datapipes.sources import iterable_source
from asyncloader.deadline import time_left
from asyncloader.errors import ResourceExhausted, WorkerStartupError
from asyncloader.graph.cut import cut_graph
from asyncloader.graph.edit import copy_graph
from asyncloader.graph.refusals import Purpose, check_graph, first_refusal
from asyncloader.graph.walk import Graph, breadth_first, pipes_of
from asyncloader.places.elastic import check_division, fits_any_number, spread
from asyncloader.runtime import begin_closing, begin_task, in_thread, released
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import (
    IterResetFn,
    ReadingServiceInterface,
    as_reset,
    result_of,
    unchanged,
)
from asyncloader.services.division import Division, divide, warn_of_repeats
from asyncloader.services.from_workers import FromWorkers, Outlet
from asyncloader.services.heavy import warn_of_weight
from asyncloader.services.hooks import Adjustable, ServiceHooks
from asyncloader.services.in_process import HERE
from asyncloader.services.tuned_workers import TunedWorkers
from asyncloader.services.workplace import Workplace
from asyncloader.transport.code import unsendable_in
from asyncloader.transport.parcel import Parcel
from asyncloader.tuning import AUTO, Window
from asyncloader.waiting import do_nothing
from asyncloader.worker_info import WorkerInfo, get_worker_info
from asyncloader.workers.graph_part import NO_RESETS, check_alike, dump_resets, resets_name
from asyncloader.workers.pool import CLOSE_GRACE, WorkerPool, expect_workers
from asyncloader.workers.process.process import WorkerEngine
from asyncloader.workers.worker import WorkerPlan
from asyncloader.workers.worker_stats import WorkerStats
from asyncloader.workers.worker_stream import PoolSettings

logger = logging.getLogger("asyncloader")

InitFn = Callable[[Any, WorkerInfo], Any]
ResetFn = Callable[[Any, WorkerInfo, SeedGenerator], Any]


class WorkersReadingService(ReadingServiceInterface, ServiceHooks, ABC):
    """Runs a graph in workers, which stay alive between epochs.

    The services that users make are dataclasses. Each has these parameters as fields, with its own
    defaults, and says what they mean; ``workplace`` says where its workers run.
    """

    num_workers: int | Literal["auto"]
    worker_prefetch_cnt: int | Literal["auto"]
    main_prefetch_cnt: int
    worker_init_fn: InitFn | None
    worker_reset_fn: ResetFn | None
    in_order: bool
    timeout: float | None
    prefetch_bytes: int
    on_worker_death: Literal["raise", "restart"] | None
    max_restarts: int
    max_workers: int | None

    @abstractmethod
    def workplace(self) -> Workplace:
        """Check the parameters that only this service has, and return where the workers run."""

    def __post_init__(self) -> None:
        self._workplace = workplace = self.workplace()
        self._check_parameters()
        self.chooses_workers = self.num_workers == AUTO
        most = workplace.most if self.max_workers is None else self.max_workers
        self._tuned = TunedWorkers(
            self.num_workers, self.worker_prefetch_cnt, most, workplace.first
        )
        self._tuned.bound(least=workplace.least)
        #: What runs now, and what was started to take its place.
        self._running = self._prepared = NOTHING
        #: The graph as it was given, to be divided again.
        self._given: Graph | None = None
        #: Whether the rest of an epoch can run with another number of workers.
        self.is_elastic = False
        #: What ends the workers whose place others have taken.
        self._closing: set[asyncio.Task[None]] = set()
        #: How many processes were replaced in pools that were closed.
        self._restarts = 0
        #: A graph and its length, as long as the workers run.
        self._measured: tuple[Any, int] = (None, 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_workers={self.num_workers!r})"

    def _check_parameters(self) -> None:
        """Raise TypeError or ValueError for a wrong parameter, and give each its plain form."""
        self.in_order = checked_flag("in_order", self.in_order)
        if self.on_worker_death not in ("raise", "restart", None):
            raise ValueError(
                f'on_worker_death must be "raise", "restart" or None, got {self.on_worker_death!r}'
            )
        least = self._workplace.least
        self.num_workers = checked_auto("num_workers", self.num_workers, at_least=least)
        self.worker_prefetch_cnt = checked_auto(
            "worker_prefetch_cnt", self.worker_prefetch_cnt, at_least=0
        )
        if self.max_workers is not None:
            checked_count("max_workers", self.max_workers, at_least=1)
            if self.num_workers != AUTO:
                raise ValueError('max_workers goes with num_workers="auto"')
        self.main_prefetch_cnt = checked_count(
            "main_prefetch_cnt", self.main_prefetch_cnt, at_least=0
        )
        if self.worker_init_fn is not None:
            checked_function("worker_init_fn", self.worker_init_fn, takes=2)
        if self.worker_reset_fn is not None:
            checked_function("worker_reset_fn", self.worker_reset_fn, takes=3)
        if self.timeout is not None:
            self.timeout = checked_seconds("timeout", self.timeout)
        self.prefetch_bytes = checked_count("prefetch_bytes", self.prefetch_bytes, at_least=0)
        self.max_restarts = checked_count("max_restarts", self.max_restarts, at_least=0)

    async def initialize(self, datapipe: Any) -> Any:
        self._restarts, self._given, self.is_elastic = 0, None, False
        room = await self._workplace.begin(datapipe)
        if room is not None:
            self._tuned.begin_within(room)
        if AUTO in (self.num_workers, self.worker_prefetch_cnt):
            self._given = Graph(copy_graph(datapipe))
            await in_thread(self._look_at, self._given)
        self._running = await self._started(datapipe, self._tuned.workers)
        return self._running.root

    def _look_at(self, graph: Graph) -> None:
        """Bound the number of workers by what the graph allows."""
        self.is_elastic = self.in_order and fits_any_number(graph)
        if self.is_elastic:
            # A state of a larger machine may have named more.
            self._tuned.bound()
        parts = cut_graph(graph).parts
        if not parts or any(map(lives_with_loader, graph.pipes)):
            self._given = None
        elif not all(part.is_sharded for part in parts):
            # Every item would come once from each worker.
            self._tuned.bound(most=1)
        functions = self.worker_init_fn, self.worker_reset_fn
        is_guarded = self.timeout is not None or self.on_worker_death == "restart"
        if is_guarded or functions != (None, None):
            self._tuned.bound(least=1)

    async def _started(self, datapipe: Any, workers: int) -> RunningGraph:
        """Divide a graph among so many workers, and start them."""
        if workers == 0:
            return await self._started_here(datapipe)
        _check_is_here(datapipe)
        graph = Graph(datapipe)
        await in_thread(self._check, graph, workers)
        division = await in_thread(self._divided, graph, workers)
        if not division.outlets:
            return RunningGraph(datapipe)
        if workers > 1:
            warn_of_repeats(division)
        engine = self._workplace.engine(workers)
        settings = self._settings(workers, is_fed=division.fed is not None)
        worker_plan = division.plan(self.worker_init_fn)
        dispatch_plan = division.dispatch_plan(self.prefetch_bytes)
        await engine.begin([each for each in (worker_plan, dispatch_plan) if each is not None])
        plan = await in_thread(_packed_plan, engine, worker_plan)
        deal = await in_thread(division.deal_plan, engine, dispatch_plan)
        pool = WorkerPool(engine, plan, len(division.outlets), settings, deal, division.fed)
        await pool.start()
        if pool.has_other_length():
            division.forget_lengths()
        is_last = isinstance(division.root, FromWorkers)
        root = division.root if is_last else self._prefetched(division.root)
        return RunningGraph(root, division, pool, partial(check_division, division.parts), workers)

    def _divided(self, graph: Graph, workers: int) -> Division:
        restarts = self.on_worker_death == "restart"
        return divide(graph, workers, in_order=self.in_order, restarts=restarts)

    def _check(self, graph: Graph, workers: int) -> None:
        """Raise ValueError for a graph that cannot be divided among so many workers."""
        check_graph(graph, Purpose.WORKERS, workers=workers)
        self._workplace.check(graph, workers)
        refusal = first_refusal(graph, Purpose.RESTART)
        if self.on_worker_death == "restart" and refusal is not None:
            raise ValueError(f'on_worker_death="restart" is not possible: {refusal}')

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        await self._workplace.look()
        reset = as_reset(iter_reset_fn)
        pool, division = self._running.pool, self._running.division
        if seed_generator.taken_with is not None:
            self._running.check_refit(seed_generator.taken_with)
        if pool is None or division is None:
            return self._reset_here(seed_generator, reset)
        resets = await self._pickled_resets(reset)
        if pool.has_dead():
            await pool.restart()
        shared_seeds = division.shared.draw(seed_generator)
        streams = pool.begin_epoch(shared_seeds, seed_generator, resets)
        may_be_changed = self.worker_init_fn is not None or resets != NO_RESETS
        seeds = {} if may_be_changed else division.seeds_of_shufflers(shared_seeds)
        division.connect(streams, seeds)
        return reset

    def seed_rest(self) -> None:
        division = self._running.division
        if division is not None:
            division.shared.seed_here()

    async def finalize_iteration(self) -> None:
        pool = self._running.pool
        if pool is not None:
            pool.end_epoch()

    async def finalize(self) -> None:
        running, prepared = self._running, self._prepared
        self._running = self._prepared = NOTHING
        self._measured = (None, 0)
        if running.pool is not None:
            self._restarts += running.pool.restarts
        await all_closed(filter(None, [running.pool, prepared.pool]))
        loop = asyncio.get_running_loop()
        closing = [task for task in self._closing if task.get_loop() is loop]
        if closing:
            await asyncio.wait(closing, timeout=time_left(CLOSE_GRACE))

    def expect_start(self) -> None:
        workers = self.worker_count()
        # A module that makes a loader may be imported by workers too, which do not iterate it.
        if workers and get_worker_info() is None:
            expect_workers(self._workplace.engine(workers))

    def needs_finalize(self) -> bool:
        # A dropped pool ends its processes itself, with a warning.
        return False

    def worker_stats(self) -> list[WorkerStats]:
        return [] if self._pool is None else self._pool.stats()

    def restarts(self) -> int:
        return self._restarts + (0 if self._pool is None else self._pool.restarts)

    def pause(self) -> None:
        if self._pool is not None:
            self._pool.pause(True)

    def resume(self) -> None:
        if self._pool is not None:
            self._pool.pause(False)

    def length(self, datapipe: Any) -> int:
        workers = self.worker_count()
        if workers == 0:
            return len(datapipe)
        graph, length = self._measured
        if graph is datapipe:
            return length
        length = len(divide(Graph(copy_graph(datapipe)), workers).root)
        if self._pool is not None and not self._workplace.shares_data:
            # The workers' graph does not change any more, and every list() asks again.
            self._measured = (datapipe, length)
        return length

    def graph_changer(self) -> str:
        init_fn = self.worker_init_fn
        if init_fn is None or getattr(init_fn, "func", None) is with_number_alone:
            return ""
        return f"worker_init_fn={function_name(init_fn)}"

    def is_in_order(self) -> bool:
        return self.in_order or self.worker_count() == 0

    def worker_count(self) -> int:
        # Before the start: as many as there will be.
        return self._tuned.workers if self._running.workers < 0 else self._running.workers

    # Changing the number of workers ------------------------------------------------------

    def adjustable(self) -> Adjustable | None:
        is_auto = AUTO in (self.num_workers, self.worker_prefetch_cnt)
        # What a user's subclass does to the graph would not be done again.
        is_auto = is_auto and is_of_package(type(self).initialize)
        has_started = self._running.workers >= 0
        return self if is_auto and not (has_started and self._given is None) else None

    def running(self) -> int:
        return self._running.workers

    def note(self, window: Window) -> None:
        workers = self._running.workers
        handles = [] if self._pool is None else self._pool.handles
        pids = [handle.process.pid for handle in handles]
        self._tuned.note(window, workers, self._workplace.room(workers, pids))

    def wants_change(self) -> bool:
        pool, tuned = self._pool, self._tuned
        credits = tuned.prefetch if pool is None else pool.settings.credits
        return (self._running.workers, credits) != (tuned.workers, tuned.prefetch)

    async def prepare(self) -> None:
        workers, running = self._tuned.workers, self._running
        if workers == self._prepared.workers:
            return
        await self._drop_prepared()
        if workers == running.workers or not await self._has_room_beside(workers):
            return
        prepared = await self._changed_to(workers)
        if prepared is not None:
            await self._keep(prepared, running)

    async def _has_room_beside(self, workers: int) -> bool:
        """Whether so many workers can be started while those that run go on."""
        has_room = await self._workplace.has_room_beside(workers)
        if has_room is None:
            # Nothing can be started now, so what runs must not be given up.
            self._tuned.refuse(workers, self._running.workers)
        return bool(has_room)

    async def _keep(self, prepared: RunningGraph, running: RunningGraph) -> None:
        """Keep what is to take the place of ``running``, unless that was finalized meanwhile."""
        if self._running is running:
            self._prepared = prepared
        else:
            await all_closed(filter(None, [prepared.pool]))

    async def _changed_to(self, workers: int) -> RunningGraph | None:
        """Start another number of workers; None if that fails."""
        try:
            async with asyncio.timeout(self._workplace.change_seconds):
                return await self._started(self._copied(), workers)
        except Exception as error:  # noqa: BLE001 - as many as before are as good as before
            logger.warning("%d workers could not be started: %r", workers, error)
            self._tuned.refuse(workers, self._running.workers)
            return None

    def drain(self) -> None:
        if self._pool is not None:
            self._pool.is_draining = True

    async def adopt(self) -> Any | None:
        if self._running.workers < 0:
            return None
        await self.prepare()
        if self._pool is not None:
            self._pool.settings = replace(self._pool.settings, credits=self._tuned.prefetch)
        is_missing = self._prepared.workers < 0 <= self._running.workers
        if is_missing and self._running.workers != self._tuned.workers:
            await self._make_room()
        if self._prepared.workers < 0:
            return None
        pool, self._running = self._pool, self._prepared
        self._prepared, self._measured = NOTHING, (None, 0)
        if pool is not None:
            self._restarts += pool.restarts
            # Its workers may be in the middle of an item: nobody has to wait for that.
            closing = begin_task(asyncio.get_running_loop(), pool.aclose(), "asyncloader closing")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return self._running.root

    async def _make_room(self) -> None:
        """Prepare workers for which there is no room beside those that run, by ending these."""
        running = self._running
        if running.pool is not None:
            await running.pool.end()
        prepared = await self._changed_to(self._tuned.workers)
        if prepared is None:
            prepared = await self._started(self._copied(), running.workers)
        await self._keep(prepared, running)

    def resume_with(self, workers: int) -> None:
        self._tuned.resume_with(workers)

    def fitted(self, cursors: Cursors) -> Cursors:
        if self._given is None or not self.is_elastic:
            return cursors
        return spread(self._given, cursors, self._running.workers)

    def portable(self, cursors: Cursors, workers: int) -> tuple[Cursors, int]:
        if self._given is None or not self.is_elastic:
            return cursors, workers
        # Any number of workers can resume it, so it does not matter if they change meanwhile.
        return spread(self._given, cursors, 1), max(1, workers)

    def choices(self) -> list[str]:
        return self._tuned.choices()

    def _copied(self) -> Any:
        """Return a copy of the graph as it was given, to be divided."""
        assert self._given is not None, "only a graph that was kept is divided again"
        return copy_graph(self._given.end)

    async def _drop_prepared(self) -> None:
        prepared, self._prepared = self._prepared, NOTHING
        await all_closed(filter(None, [prepared.pool]))

    @property
    def _pool(self) -> WorkerPool | None:
        return self._running.pool

    async def _pickled_resets(self, iter_reset_fn: IterResetFn) -> bytes:
        if iter_reset_fn is unchanged and self.worker_reset_fn is None:
            return NO_RESETS
        own = self.worker_reset_fn
        sent = None if own is None else self._workplace.in_messages(own)
        return await in_thread(_pickled_resets, iter_reset_fn, sent, resets_name(own))

    async def _started_here(self, datapipe: Any) -> RunningGraph:
        given = datapipe
        pipes = pipes_of(given)
        init_fn = self.worker_init_fn
        if init_fn is not None:
            returned = await result_of(init_fn(datapipe, HERE))
            datapipe = iterable_source(checked_graph("worker_init_fn", init_fn, returned))

        def check_refit(taken_with: int) -> None:
            check_alike(pipes, datapipe, self.graph_changer())
            # Where only the ranks differ, no worker's items are divided again.
            if taken_with:
                check_division(cut_graph(given).parts, taken_with)

        return RunningGraph(self._prefetched(datapipe), check_refit=check_refit)

    def _prefetched(self, datapipe: Any) -> Any:
        # What hands over runs ahead itself, and nothing may follow it.
        if hands_over(datapipe):
            return datapipe
        # With a Feed nothing runs ahead: waiting requests can still join a batch.
        if not self.main_prefetch_cnt or any(map(lives_with_loader, breadth_first(datapipe))):
            return datapipe
        return Prefetcher(datapipe, self.main_prefetch_cnt)

    def _reset_here(self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn) -> IterResetFn:
        worker_reset_fn = self.worker_reset_fn
        has_resets = worker_reset_fn is not None or iter_reset_fn is not unchanged
        if not has_resets or self._running.workers:
            return iter_reset_fn

        async def reset(datapipe: Any) -> Any:
            given = pipes_of(datapipe)
            datapipe = await iter_reset_fn(datapipe)
            if worker_reset_fn is not None:
                datapipe = await result_of(worker_reset_fn(datapipe, HERE, seed_generator))
                datapipe = checked_graph("worker_reset_fn", worker_reset_fn, datapipe)
            if seed_generator.taken_with is not None:
                check_alike(given, datapipe, resets_name(worker_reset_fn))
            return datapipe

        return reset

    def _settings(self, workers: int, *, is_fed: bool) -> PoolSettings:
        # A server that has lost its last worker would answer nobody any more.
        restarts = is_fed if self.on_worker_death is None else self.on_worker_death == "restart"
        return PoolSettings(
            num_workers=workers,
            credits=self._tuned.prefetch,
            in_order=self.in_order,
            timeout=self.timeout,
            prefetch_bytes=self.prefetch_bytes,
            max_restarts=self.max_restarts if restarts else None,
        )


def with_number_alone(function: Callable[[int], Any], pipe: Any, info: WorkerInfo) -> Any:
    """Call an init function as torch does, which leaves the pipe as it is."""
    function(info.worker_id)
    return pipe


@dataclass(frozen=True)
class RunningGraph:
    """A graph that was divided among workers, which run; or one that runs in this process."""

    #: What the loader iterates.
    root: Any
    division: Division | None = None
    pool: WorkerPool | None = None
    #: Raises SnapshotError if it cannot resume a state of so many workers.
    check_refit: Callable[[int], None] = do_nothing
    workers: int = 0


#: What runs before the start and after the end: nothing.
NOTHING = RunningGraph(None, workers=-1)


async def all_closed(pools: Iterable[WorkerPool]) -> None:
    """End the workers of all pools, together."""
    closing = [begin_closing(pool.aclose) for pool in pools]
    await asyncio.gather(*closing, return_exceptions=True)
    for each in closing:
        released(each.result())


def _check_is_here(datapipe: Any) -> None:
    if any(isinstance(pipe, Outlet) for pipe in breadth_first(datapipe)):
        raise ValueError(
            "the graph runs in workers already; give SequentialReadingService only one service with"
            " workers"
        )


def _packed_plan(engine: WorkerEngine, plan: WorkerPlan) -> Parcel:
    try:
        parcel = engine.pack(plan)
    except ResourceExhausted as error:
        raise WorkerStartupError(f"the workers were not started: {error}") from error
    except (Exception, SystemExit) as error:
        raise WorkerStartupError(
            f"the graph cannot be sent to the workers{_culprit_in(plan)}: {error!r}; let functions"
            f" make in the workers what cannot be pickled{engine.instead_of_sending}"
        ) from error
    if engine.instead_of_sending:
        warn_of_weight(plan.ends, parcel, engine.why_not_forked)
    return parcel


def _culprit_in(plan: WorkerPlan) -> str:
    """Return which part of a plan cannot be pickled, in words."""
    pipes = {id(pipe): pipe for end in plan.ends for pipe in breadth_first(end)}
    for pipe in pipes.values():
        for name, value in attributes(pipe):
            if not any(True for _ in pipes_in(value)):
                found = unsendable_in(value, f"its {name!r}")
                if found:
                    return f", because of {found} in {stage_name(pipe)}"
    found = unsendable_in(plan.init_fn, "the function itself")
    return f", because of {found} in worker_init_fn" if found else ""


def _pickled_resets(
    iter_reset_fn: IterResetFn, worker_reset_fn: ResetFn | None, name: str
) -> bytes:
    try:
        return dump_resets(iter_reset_fn, worker_reset_fn)
    except WorkerStartupError:
        raise  # it names the service already
    except (Exception, SystemExit) as error:
        raise WorkerStartupError(
            f"{name} cannot be sent to the workers: {error!r}; let it capture plain values only"
        ) from error
