"""Running a graph in worker processes.

This file is about ``MultiProcessingReadingService``: it cuts the graph, sends the part that
can be copied to workers, and puts their items where that part was (``divide``).

    source ─ shuffle ─ sharding_filter ─ map ┆ pin_memory
    each worker runs a copy                  ┆ the loader runs the rest
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from asyncloader.datapipes.arguments import (
    checked_count,
    checked_function,
    checked_graph,
    checked_seconds,
)
from asyncloader.datapipes.cursors import (
    number_of,
    take_number_of,
)
from asyncloader.datapipes.edges import functional_name, lives_with_loader
from asyncloader.datapipes.naming import function_name, stage_name
from asyncloader.datapipes.prefetching import Prefetcher
from asyncloader.datapipes.randomness import Shuffling
from asyncloader.datapipes.replaying import is_replayed
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.sources import (
    IterableWrapper,
    draws_in_each_worker,
    iterable_source,
    twice,
)
from asyncloader.errors import WorkerStartupError
from asyncloader.graph.cut import (
    Cut,
    WorkerPart,
    cut_graph,
    divided_twice,
    dividers_of,
    no_order_in_dealing,
    no_order_in_dividing,
    read_again,
    read_without_fork,
)
from asyncloader.graph.edit import copy_graph, replaced
from asyncloader.graph.settings import SeedPlaces, SharedPipes
from asyncloader.graph.walk import breadth_first, pipes_of
from asyncloader.places.elastic import check_division
from asyncloader.runtime import in_thread
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import (
    IterResetFn,
    ReadingServiceInterface,
    as_reset,
    result_of,
    unchanged,
)
from asyncloader.services.from_workers import FedFromWorkers, FromWorkers
from asyncloader.services.in_process import HERE
from asyncloader.transport.code import Parcel, pack_code
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.dispatch_source import FromDispatcher, FromLoader
from asyncloader.workers.dispatcher import DispatchPlan
from asyncloader.workers.graph_part import NO_RESETS, check_alike, dump_resets, resets_name
from asyncloader.workers.messages import Pause, Resume
from asyncloader.workers.pool import DealPlan, WorkerPool
from asyncloader.workers.process.process import WorkerEngine
from asyncloader.workers.process.start import ProcessEngine, check_method
from asyncloader.workers.worker import WorkerPlan, shard_for_worker
from asyncloader.workers.worker_stats import WorkerStats
from asyncloader.workers.worker_stream import PoolSettings

InitFn = Callable[[Any, WorkerInfo], Any]
ResetFn = Callable[[Any, WorkerInfo, SeedGenerator], Any]


class MultiProcessingReadingService(ReadingServiceInterface):
    """Run the graph in ``num_workers`` processes, which stay alive between epochs.

    The part of the graph that can be copied runs in every worker; a sharding pipe in it says
    which items belong to which worker. Pipes that cannot be copied stay in the loader's
    process. With ``num_workers=0`` everything runs in this process.

    ``worker_prefetch_cnt`` is how many portions a worker may run ahead: a portion is one large
    or slow item, or the quick small ones of 2 ms, at most 1,024 items and 1 MiB. So it bounds
    the number of items where that matters, and their bytes always (0: one item at a time, on
    demand). ``prefetch_bytes`` bounds the bytes that all workers together run ahead; a worker
    is always allowed one item, and 4 KiB a portion.
    ``main_prefetch_cnt`` is how many items are held ready after the loader's own pipes.
    ``worker_init_fn(pipe, info)`` is called once in each worker,
    ``worker_reset_fn(pipe, info, seed_generator)`` at each epoch; both return the pipe and may
    be async. A state from the middle of an epoch can be resumed with another number of
    workers only if the pipes that they add are one to one; otherwise a SnapshotError says so.
    ``multiprocessing_context`` is None for a template process of our own, or "fork", "spawn"
    or "forkserver".

    If a worker owes an item and is silent for ``timeout`` seconds, it is killed, and a
    ``WorkerTimeout`` says where it was; if it waits for the dispatching process, that one is
    killed. Time in which the loader's own process is stopped hardly counts. Without a timeout
    there is a warning every 30 s.

    With ``on_worker_death="restart"`` a worker that dies or is killed is replaced by one that
    resumes at the same place, so every item still comes once and in its order.
    ``max_restarts`` is how many workers in a row may die before they deliver an item.

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
        #: Raises SnapshotError if what runs cannot resume a state of so many workers.
        self._check_refit: Callable[[int], None] = _nothing_to_check
        #: How many processes were replaced before the pool was closed.
        self._restarts = 0
        #: A graph and its length, as long as the workers run.
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
            _warn_of_repeats(division)
        plan = await in_thread(_pickled_plan, division.plan(self.worker_init_fn))
        deal = await in_thread(division.deal_plan, self.prefetch_bytes)
        self._check_refit = partial(check_division, division.parts)
        self._division = division
        self._pool = WorkerPool(
            self._engine(),
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
        seeds = {} if may_be_changed else self._division.seeds_of_shufflers(shared_seeds)
        self._division.connect(streams, seeds, may_be_changed=may_be_changed)
        return reset

    def seed_rest(self) -> None:
        if self._division is not None:
            self._division.shared.seed_here()

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
        # A dropped pool ends its processes itself, with a warning.
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
            # The workers' graph does not change any more, and every list() asks again.
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
            # Where only the ranks differ, no worker's items are divided again.
            if taken_with:
                check_division(cut_graph(given).parts, taken_with)

        self._check_refit = check_refit
        return self._prefetched(datapipe)

    def _prefetched(self, datapipe: Any) -> Any:
        # With a Feed nothing runs ahead: waiting requests can still join a batch.
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

    def _engine(self) -> WorkerEngine:
        return ProcessEngine(self.multiprocessing_context)

    def _settings(self) -> PoolSettings:
        return PoolSettings(
            num_workers=self.num_workers,
            credits=self.worker_prefetch_cnt,
            in_order=self.in_order,
            timeout=self.timeout,
            prefetch_bytes=self.prefetch_bytes,
            max_restarts=self.max_restarts if self.on_worker_death == "restart" else None,
        )


def _nothing_to_check(taken_with: int) -> None:
    """Do nothing: there is no graph yet."""


def _check_is_here(datapipe: Any) -> None:
    if any(isinstance(pipe, FromWorkers | FedFromWorkers) for pipe in breadth_first(datapipe)):
        raise ValueError(
            "the graph runs in worker processes already; give SequentialReadingService only one"
            " MultiProcessingReadingService"
        )


def _no_place(division: Division) -> str | None:
    """Return why no process could resume where one that died was, or None."""
    ends = [*division.ends, *([] if division.dispatch is None else [division.dispatch])]
    for pipe in (pipe for end in ends for pipe in read_without_fork(end)):
        return (
            f"{stage_name(pipe)} is read in several passes at once, so its place is not known."
            " Use fork() to read it several times"
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
                    f"{stage_name(reader)} reads its source more than once in an epoch, but"
                    " follows sharding_round_robin_dispatch(), which sends each item only once. Put"
                    f" {stage_name(reader)} before sharding_round_robin_dispatch()"
                )
    for outlet in division.outlets:
        reader = read_again(division.root, outlet)
        if reader is not None:
            raise ValueError(
                f"{stage_name(reader)} runs in the loader's process and reads its source more than"
                " once in an epoch, but the workers' items come only once. Put it before the pipes"
                " that have to run in the loader's process"
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
        raise  # it names the service already
    except (Exception, SystemExit) as error:
        raise WorkerStartupError(
            f"{resets_name(worker_reset_fn)} cannot be sent to the workers: {error!r}; let it"
            " capture plain values only"
        ) from error


@dataclass(frozen=True)
class Division:
    """The loader's part of a graph, and the parts that workers run."""

    #: What the loader iterates.
    root: Any
    #: The parts that workers run, as they were cut out of the graph.
    parts: tuple[WorkerPart, ...]
    #: The last pipe of each part.
    ends: tuple[Any, ...]
    #: What takes the place of each part in the loader's graph.
    outlets: tuple[FromWorkers | FedFromWorkers, ...]
    seed_places: tuple[SeedPlaces, ...]
    shared: SharedPipes
    #: The last pipe of what the dispatching process runs, if there is one.
    dispatch: Any | None
    #: The names of pipes in the parts that may drop items.
    droppers: tuple[str, ...]
    #: The shuffling pipes, by their ids, that each worker reads once in an epoch.
    read_once: frozenset[int]

    def forget_lengths(self) -> None:
        """Note that the workers may yield another number of items than these pipes."""
        for outlet in self.outlets:
            if isinstance(outlet, FromWorkers):
                outlet.is_changed = True

    def deal_plan(self, backlog_bytes: int) -> DealPlan | None:
        """Return what the dispatching process is told to run, or None if there is none."""
        if self.dispatch is None:
            return None
        places = self.shared.places_in(self.dispatch)
        plan = DispatchPlan(self.dispatch, places, backlog_bytes, self.droppers)
        dealt = [self.dispatch in part.inlets for part in self.parts]
        number = number_of(self.dispatch)
        return DealPlan(pack_code(plan), -1 if number is None else number, dealt.index(True))

    def plan(self, init_fn: Callable[[Any, WorkerInfo], Any] | None) -> WorkerPlan:
        """Return what each worker is told to run."""
        return WorkerPlan(self.ends, self.seed_places, init_fn)

    @property
    def fed(self) -> int | None:
        """The index of the part whose source lives in the loader's process, if there is one."""
        fed = (at for at, outlet in enumerate(self.outlets) if isinstance(outlet, FedFromWorkers))
        return next(fed, None)

    def connect(
        self, streams: Sequence[Any], seeds: dict[int | None, int], *, may_be_changed: bool
    ) -> None:
        """Let the outlets yield an epoch's items.

        ``seeds`` are those that all workers shuffle with, by the pipes' numbers, as far as they
        are known. ``may_be_changed`` says whether the workers may run other pipes than these.
        """
        for outlet, stream in zip(self.outlets, streams, strict=True):
            outlet.begin_epoch(stream, seeds, may_be_changed=may_be_changed)

    def seeds_of_shufflers(self, shared_seeds: Sequence[int]) -> dict[int | None, int]:
        """Return the seeds of the shuffling pipes that workers read once, by their numbers."""
        seeds = zip(self.shared.pipes, shared_seeds, strict=True)
        return {number_of(pipe): seed for pipe, seed in seeds if id(pipe) in self.read_once}


def divide(datapipe: Any, num_workers: int) -> Division:
    """Take the parts for workers out of the graph, which is changed in place."""
    shared = SharedPipes(datapipe)
    cut = cut_graph(datapipe)
    if num_workers > 1:
        _check_divided_once(cut)
    is_read = any(cut.dispatch in part.inlets for part in cut.parts)
    dispatch = cut.dispatch if is_read else None
    root, outlets, ends = datapipe, [], []
    droppers: tuple[str, ...] = ()
    for part in cut.parts:
        droppers += tuple(stage_name(pipe) for pipe in part.pipes if _may_drop(pipe))
        is_fed = cut.feed is not None and any(inlet is cut.feed for inlet in part.inlets)
        outlet: Any = FedFromWorkers(part.end, cut.feed) if is_fed else FromWorkers(part.end)
        root = replaced(root, part.end, outlet)
        end = part.end
        for inlet in part.inlets:
            stand_in = FromLoader() if inlet is cut.feed else FromDispatcher()
            unknown = (stage_name(pipe) for pipe in part.pipes if is_replayed(pipe))
            stand_in.readers = " or ".join(unknown)
            take_number_of(stand_in, inlet)
            end = replaced(end, inlet, stand_in)
        if not is_fed:
            outlet.length = _dealt_length(end, dispatch, num_workers)
        outlets.append(outlet)
        ends.append(end)
    readers = [stage_name(pipe) for pipe in breadth_first(root) if is_replayed(pipe)]
    for outlet in outlets:
        outlet.readers = " or ".join(readers)
    return Division(
        root=root,
        parts=cut.parts,
        outlets=tuple(outlets),
        ends=tuple(ends),
        seed_places=tuple(shared.places_in(end) for end in ends),
        shared=shared,
        dispatch=dispatch,
        droppers=droppers if dispatch is not None else (),
        read_once=frozenset(id(pipe) for end in ends for pipe in _read_once(end)),
    )


def _read_once(end: Any) -> Iterator[Any]:
    shuffling = (pipe for pipe in breadth_first(end) if isinstance(pipe, Shuffling))
    return (pipe for pipe in shuffling if read_again(end, pipe) is None)


def _check_divided_once(cut: Cut) -> None:
    """Raise ValueError if workers would divide items that are divided already.

    An iterable that divides its items without saying so is found out when it calls
    ``get_worker_info``.
    """
    found = divided_twice(cut)
    if found is not None:
        pipe, divider = found
        raise ValueError(twice(pipe, stage_name(divider)))
    for part in cut.parts:
        for divider in dividers_of(part, cut.dispatch):
            for source in pipes_of(divider):
                if isinstance(source, IterableWrapper):
                    _check_sampler(source, divider)
                    source.divided_by = stage_name(divider)


def _check_sampler(source: IterableWrapper[Any], divider: Any) -> None:
    if draws_in_each_worker(source.iterable):
        raise ValueError(
            f"{source!r} draws other keys in each worker, so items would be lost and come twice:"
            f" put sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING) in the place"
            f" of {stage_name(divider)}, which runs the sampler once, for all workers"
        )


def _may_drop(pipe: Any) -> bool:
    return functional_name(pipe) in {"filter", "flatmap", "demux", "header", "groupby"}


def _dealt_length(end: Any, dispatch: Any, num_workers: int) -> int | None:
    try:
        dealt = 0 if dispatch is None else len(dispatch)
        infos = (WorkerInfo(num_workers, worker) for worker in range(num_workers))
        return sum(_dealt_length_in(end, dealt, info) for info in infos)
    except TypeError:
        return None


def _dealt_length_in(end: Any, dealt: int, info: WorkerInfo) -> int:
    copy = copy_graph(end)
    for pipe in breadth_first(copy):
        if isinstance(pipe, FromDispatcher):
            pipe.length = len(range(info.worker_id, dealt, info.num_workers))
    shard_for_worker(copy, info)
    return len(copy)


def _warn_of_repeats(division: Division) -> None:
    """Warn of parts that nothing shards, so that every worker yields all items."""
    for part in division.parts:
        if not part.is_sharded:
            warnings.warn(
                f"nothing shards the graph above {stage_name(part.end)}: every item will come"
                " once from each worker. Put .sharding_filter() where items are to be divided"
                " (after shuffle), or give the loader a ShardingPolicy adapter. If your iterable"
                " uses get_worker_info() to take its share, say so:"
                " IterableWrapper(..., shards_itself=True)",
                stacklevel=2,
            )
