"""Running a graph in worker processes.

This file is about ``MultiProcessingReadingService``: it cuts the graph, sends its
replicable part to workers, and puts their items where that part was.

    source ─ shuffle ─ sharding_filter ─ map ┆ pin_memory
    each worker runs a copy                  ┆ the loader runs the rest
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from asyncloader.datapipes.branches.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.calls.prefetching import Prefetcher
from asyncloader.datapipes.naming import function_name, stage_name
from asyncloader.datapipes.pipe.arguments import (
    checked_count,
    checked_function,
    checked_graph,
    checked_seconds,
    iterable_source,
)
from asyncloader.datapipes.pipe.kinds import lives_with_loader
from asyncloader.errors import WorkerStartupError
from asyncloader.graph.copying import copy_graph
from asyncloader.graph.cut import cut_graph, no_order_in_dealing, no_order_in_dividing, read_again
from asyncloader.graph.fingerprint import read_without_fork
from asyncloader.graph.walk import breadth_first, pipes_of
from asyncloader.runtime import in_thread
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import IterResetFn, ReadingServiceInterface, unchanged
from asyncloader.services.calls import as_reset, result_of
from asyncloader.services.division import Division, divide, warn_of_repeats
from asyncloader.services.elastic import check_division
from asyncloader.services.fed import FedFromWorkers
from asyncloader.services.from_workers import FromWorkers
from asyncloader.services.in_process import HERE
from asyncloader.transport.code import Parcel, pack_code
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.dispatch_source import FromDispatcher
from asyncloader.workers.graph_part import NO_RESETS, check_alike, dump_resets, resets_name
from asyncloader.workers.messages import Pause, Resume
from asyncloader.workers.pool import WorkerPool
from asyncloader.workers.process.start import check_method
from asyncloader.workers.worker import WorkerPlan
from asyncloader.workers.worker_stats import WorkerStats
from asyncloader.workers.worker_stream import PoolSettings

InitFn = Callable[[Any, WorkerInfo], Any]
ResetFn = Callable[[Any, WorkerInfo, SeedGenerator], Any]


class MultiProcessingReadingService(ReadingServiceInterface):
    """Run the graph in ``num_workers`` processes, which persist across epochs.

    The part of the graph that can be copied runs in every worker; a sharding pipe
    in it says which items are whose. Pipes that cannot be copied stay with the
    loader. With ``num_workers=0`` everything runs in this process.

    ``worker_prefetch_cnt`` is how far a worker may be ahead: by so many times 64 items or
    1 MiB of them, whichever is less, or one that is larger (0: one item at a time, on
    demand); ``main_prefetch_cnt`` is what is held ready after the loader's own pipes.
    ``worker_init_fn(pipe, info)`` is called once in each worker,
    ``worker_reset_fn(pipe, info, seed_generator)`` at each epoch; both return the
    pipe and may be async. What they add to it has to be one to one where a state that was
    taken in the middle of an epoch is to go on with another number of workers; otherwise
    that is refused by a SnapshotError. ``multiprocessing_context`` is None for a template process
    of our own, or "fork", "spawn" or "forkserver".

    A worker that owes an item and says nothing for ``timeout`` seconds is killed, and a
    ``WorkerTimeout`` says where it stood; or the dispatching process is, if the worker waits for
    that. While the loader's program is stopped itself, little of that time passes. Without a
    timeout there is a warning every 30 s.

    With ``on_worker_death="restart"`` a worker that is killed, for its silence too, is replaced by
    one that goes on where it stood, so that every item still comes once and in its place;
    ``max_restarts`` is how often in a row that is tried for workers that die before they
    have delivered anything.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(6)).sharding_filter().map(lambda number: number * number)
    >>> service = MultiProcessingReadingService(num_workers=2)
    >>> with DataLoader2(pipe, reading_service=service) as loader:
    ...     list(loader)
    [0, 1, 4, 9, 16, 25]
    """

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: InitFn | None = None,
        worker_reset_fn: ResetFn | None = None,
        *,
        in_order: bool = True,
        timeout: float | None = None,
        prefetch_bytes: int = 256 << 20,
        on_worker_death: Literal["raise", "restart"] = "raise",
        max_restarts: int = 3,
    ) -> None:
        check_method(multiprocessing_context)
        if in_order not in (True, False):
            raise ValueError(f"in_order must be True or False, got {in_order!r}")
        if on_worker_death not in ("raise", "restart"):
            raise ValueError(
                f'on_worker_death must be "raise" or "restart", got {on_worker_death!r}'
            )
        self.num_workers = checked_count("num_workers", num_workers, at_least=0)
        self.multiprocessing_context = multiprocessing_context
        self.worker_prefetch_cnt = checked_count(
            "worker_prefetch_cnt", worker_prefetch_cnt, at_least=0
        )
        self.main_prefetch_cnt = checked_count("main_prefetch_cnt", main_prefetch_cnt, at_least=0)
        self.worker_init_fn = (
            None
            if worker_init_fn is None
            else checked_function("worker_init_fn", worker_init_fn, takes=2)
        )
        self.worker_reset_fn = (
            None
            if worker_reset_fn is None
            else checked_function("worker_reset_fn", worker_reset_fn, takes=3)
        )
        self.in_order = in_order
        self.timeout = None if timeout is None else checked_seconds("timeout", timeout)
        self.prefetch_bytes = checked_count("prefetch_bytes", prefetch_bytes, at_least=0)
        self.on_worker_death = on_worker_death
        self.max_restarts = checked_count("max_restarts", max_restarts, at_least=0)
        self._division: Division | None = None
        self._pool: WorkerPool | None = None
        #: Raises SnapshotError where what runs cannot go on from so many workers.
        self._check_refit: Callable[[int], None] = _nothing_to_check
        #: How many processes were replaced before the pool was closed.
        self._restarts = 0
        #: A graph and its length, while there are workers for it.
        self._measured: tuple[Any, int] = (None, 0)

    async def initialize(self, datapipe: Any) -> Any:
        self._check_refit = _nothing_to_check
        if self.num_workers == 0:
            return await self._initialized_here(datapipe)
        _check_is_here(datapipe)
        division = await in_thread(divide, datapipe, self.num_workers)
        if not division.outlets:
            return datapipe
        self._check_may_restart(division)
        _check_read_once(division)
        if self.num_workers > 1:
            _check_divided_alike(division)
            warn_of_repeats(division)
        plan = await in_thread(_pickled_plan, division.plan(self.worker_init_fn))
        deal = await in_thread(division.deal_plan, self.prefetch_bytes)
        self._check_refit = partial(check_division, division.parts)
        self._division = division
        self._pool = WorkerPool(
            plan,
            len(division.outlets),
            self._settings(),
            deal,
            division.fed,
        )
        self._restarts = 0
        await self._pool.start()
        if self._pool.has_other_length():
            division.forget_lengths()
        if isinstance(division.root, FromWorkers):
            return division.root
        return self._prefetched(division.root)

    def _check_may_restart(self, division: Division) -> None:
        refusal = no_order_in_dealing(division.dispatch) or _no_place(division)
        if self.on_worker_death == "restart" and refusal is not None:
            raise ValueError(f'on_worker_death="restart" is not possible: {refusal}')

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        reset = as_reset(iter_reset_fn)
        if seed_generator.taken_with is not None:
            self._check_refit(seed_generator.taken_with)
        if self._pool is None or self._division is None:
            return self._reset_here(seed_generator, reset)
        resets = await self._pickled_resets(reset)
        if self._pool.has_dead():
            await self._pool.restart()
        shared_seeds = self._division.shared.draw(seed_generator)
        streams = self._pool.begin_epoch(shared_seeds, seed_generator, resets)
        may_be_changed = self.worker_init_fn is not None or resets != NO_RESETS
        self._division.connect(streams, may_be_changed=may_be_changed)
        return reset

    async def finalize_iteration(self) -> None:
        if self._pool is not None:
            self._pool.end_epoch()

    async def finalize(self) -> None:
        pool, self._pool, self._division = self._pool, None, None
        self._measured = (None, 0)
        self._check_refit = _nothing_to_check
        if pool is not None:
            self._restarts = pool.restarts
            await pool.aclose()

    def needs_finalize(self) -> bool:
        # A pool that is dropped ends its processes by itself, and warns.
        return False

    def worker_stats(self) -> list[WorkerStats]:
        return [] if self._pool is None else self._pool.stats()

    def restarts(self) -> int:
        return self._restarts if self._pool is None else self._pool.restarts

    def pause(self) -> None:
        if self._pool is not None:
            self._pool.tell_all(Pause())

    def resume(self) -> None:
        if self._pool is not None:
            self._pool.tell_all(Resume())

    def length(self, datapipe: Any) -> int:
        if self.num_workers == 0:
            return len(datapipe)
        graph, length = self._measured
        if graph is datapipe:
            return length
        length = len(divide(copy_graph(datapipe), self.num_workers).root)
        if self._pool is not None:
            # What the workers run does not change any more, and every list() asks again.
            self._measured = (datapipe, length)
        return length

    def graph_changer(self) -> str:
        init_fn = self.worker_init_fn
        return "" if init_fn is None else f"worker_init_fn={function_name(init_fn)}"

    def is_in_order(self) -> bool:
        return self.in_order or self.num_workers == 0

    def worker_count(self) -> int:
        return self.num_workers

    def __repr__(self) -> str:
        return f"MultiProcessingReadingService(num_workers={self.num_workers})"

    async def _pickled_resets(self, iter_reset_fn: IterResetFn) -> bytes:
        if iter_reset_fn is unchanged and self.worker_reset_fn is None:
            return NO_RESETS
        return await in_thread(_pickled_resets, iter_reset_fn, self.worker_reset_fn)

    async def _initialized_here(self, datapipe: Any) -> Any:
        given = datapipe
        pipes = pipes_of(given)
        init_fn = self.worker_init_fn
        if init_fn is not None:
            returned = await result_of(init_fn(datapipe, HERE))
            datapipe = iterable_source(checked_graph("worker_init_fn", init_fn, returned))

        def check_refit(taken_with: int) -> None:
            check_alike(pipes, datapipe, self.graph_changer())
            # Among other ranks alone, no workers' items are divided anew.
            if taken_with:
                check_division(cut_graph(given).parts, taken_with)

        self._check_refit = check_refit
        return self._prefetched(datapipe)

    def _prefetched(self, datapipe: Any) -> Any:
        # Requests wait where more of them may still join a batch, not in finished ones.
        if not self.main_prefetch_cnt or any(map(lives_with_loader, breadth_first(datapipe))):
            return datapipe
        return Prefetcher(datapipe, self.main_prefetch_cnt)

    def _reset_here(self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn) -> IterResetFn:
        worker_reset_fn = self.worker_reset_fn
        has_resets = worker_reset_fn is not None or iter_reset_fn is not unchanged
        if not has_resets or self.num_workers:
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

    def _settings(self) -> PoolSettings:
        return PoolSettings(
            num_workers=self.num_workers,
            method=self.multiprocessing_context,
            credits=self.worker_prefetch_cnt,
            in_order=self.in_order,
            timeout=self.timeout,
            prefetch_bytes=self.prefetch_bytes,
            max_restarts=self.max_restarts if self.on_worker_death == "restart" else None,
        )


def _nothing_to_check(taken_with: int) -> None:
    """What there is to check before there is a graph."""


def _check_is_here(datapipe: Any) -> None:
    if any(isinstance(pipe, FromWorkers | FedFromWorkers) for pipe in breadth_first(datapipe)):
        raise ValueError(
            "the graph is in worker processes already; give SequentialReadingService one"
            " MultiProcessingReadingService only"
        )


def _no_place(division: Division) -> str | None:
    """Say what keeps anybody from going on where a process that died stood, if anything does."""
    ends = [*division.ends, *([] if division.dispatch is None else [division.dispatch])]
    for pipe in (pipe for end in ends for pipe in read_without_fork(end)):
        return (
            f"{stage_name(pipe)} is read in several passes at once, so that nobody can say where"
            " it stood. Use fork() to read it several times"
        )
    return None


def _check_divided_alike(division: Division) -> None:
    for end in division.ends:
        if refusal := no_order_in_dividing(end, SHARDING_PRIORITIES.MULTIPROCESSING, "workers"):
            raise ValueError(refusal)


def _check_read_once(division: Division) -> None:
    for end in division.ends:
        for inlet in breadth_first(end):
            reader = read_again(end, inlet) if isinstance(inlet, FromDispatcher) else None
            if reader is not None:
                raise ValueError(
                    f"{stage_name(reader)} follows sharding_round_robin_dispatch(), which deals"
                    " each item once in an epoch, and has them read more than once. Put it before"
                    " sharding_round_robin_dispatch()"
                )
    for outlet in division.outlets:
        reader = read_again(division.root, outlet)
        if reader is not None:
            raise ValueError(
                f"{stage_name(reader)} stays in the loader's process, and has the workers' items"
                " read more than once in an epoch, in which they come once. Put it before the"
                " pipes that have to stay in the loader's process"
            )


def _pickled_plan(plan: WorkerPlan) -> Parcel:
    try:
        return pack_code(plan)
    except (Exception, SystemExit) as error:
        raise WorkerStartupError(f"the graph cannot be sent to the workers: {error!r}") from error


def _pickled_resets(iter_reset_fn: IterResetFn, worker_reset_fn: ResetFn | None) -> bytes:
    try:
        return dump_resets(iter_reset_fn, worker_reset_fn)
    except WorkerStartupError:
        raise  # which says whose it is
    except (Exception, SystemExit) as error:
        raise WorkerStartupError(
            f"{resets_name(worker_reset_fn)} cannot be sent to the workers: {error!r}; let it"
            " capture plain values only"
        ) from error
