"""A graph and its reading service, from start to shutdown.

This file is about the order in which a service's methods are called, whatever happens:
started once, one epoch at a time, every epoch ended, finalized once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from enum import Enum
from typing import Any, NamedTuple

from asyncloader.datapipes.base import is_pipe
from asyncloader.datapipes.recording import Numbering, NumberingPass
from asyncloader.datapipes.rollout_calls import Gate
from asyncloader.datapipes.rollouts import Rollout, RolloutPass, RolloutStats
from asyncloader.datapipes.running.cursors import number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.running.traits import (
    hands_over,
    is_random,
    is_without_order,
    stands_in,
)
from asyncloader.deadline import leaving_time, time_left
from asyncloader.errors import LoaderClosed, LoaderError, SnapshotError, WorkerStartupError
from asyncloader.graph.fingerprint import fingerprint
from asyncloader.graph.recorded import (
    is_recording,
    numbering_of,
    reason_to_end,
    unrepeatable,
)
from asyncloader.graph.refusals import Purpose, check_graph
from asyncloader.graph.settings import seed_newcomers, set_graph_random_seed, tell_epoch
from asyncloader.graph.walk import Graph, pipes_of
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.places.states import EpochStart
from asyncloader.runtime import begin_closing, finished_at_once, released, uncancellable
from asyncloader.safe_error_text import note, repr_of
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import (
    IterResetFn,
    ReadingServiceInterface,
    ServiceCalls,
    unchanged,
)
from asyncloader.services.from_workers import FromWorkers, RecordedPass, added_without_order
from asyncloader.services.hooks import graph_changer, hooks_of
from asyncloader.shield import shielded
from asyncloader.workers.graph_part import check_added

CLOSE_SECONDS = 3.0

_NOT_RECORDED = (
    "a reading service took out of the graph what records what becomes of each item; let it keep"
    " the pipes that it is given"
)


class Beginning(NamedTuple):
    """The task that starts a service or begins an epoch, and since when it does."""

    since: float
    task: asyncio.Task[Any] | None


class LoaderLife(Enum):
    """Where a loader is in its life, as its service knows it, and what moves it.

    NEW ──────▶ STARTED   ``start``: the service has returned the graph to iterate
    STARTED ──▶ IN_EPOCH  ``begin_epoch``: it no longer is where its state was
    IN_EPOCH ─▶ BETWEEN   ``end_epoch``: the service was told, by the first who notices the end
    BETWEEN ──▶ IN_EPOCH  ``begin_epoch``
    BETWEEN ──▶ NEW       ``start``, when another state was loaded: the service is finalized
    STARTED ──▶ NEW       the same

    ``aclose`` moves it to BETWEEN if it is IN_EPOCH, and from wherever it is then nothing starts.
    """

    NEW = "new"
    STARTED = "started"
    IN_EPOCH = "in an epoch"
    BETWEEN = "between epochs"


NEW, STARTED, IN_EPOCH, BETWEEN = LoaderLife


class Lifecycle:
    """Starts a service on a graph, begins its epochs one by one, and finalizes it."""

    def __init__(self, service: ReadingServiceInterface) -> None:
        self.life = NEW
        #: The graph that the service returned; None while this is NEW.
        self.adapted: Any = None
        #: Whether nothing may start any more.
        self.is_closed = False
        #: The seed that a service gave the present epoch in place of its own, or None.
        self.adopted_seed: int | None = None
        # Why no state of the present epoch can be taken, or "".
        self._why_no_state = ""
        #: Says which number an item of this rank has before the division among ranks; and returns
        #: what says so, once the service has begun.
        self.whole_number: Callable[[int], int] = int
        self.find_whole_number: Callable[[], Callable[[int], int]] = lambda: int
        # Whether it is recorded what becomes of each item; the pipe with which items get their
        # numbers then, and where that began.
        self._records = self._is_to_record = self._has_to_record = False
        self._numbering: Any = None
        self._recorded_end: Any = None
        self._begun_with: EpochStart | None = None
        # A graph that nobody changes, and what ``_seen`` returns for it.
        self._sealed: tuple[Any, tuple[list[Any], bool, str]] = (None, ([], False, ""))
        self._tree = RunTree()
        self._graph: Graph | None = None
        # The pipes of the graph before any service changed it.
        self._given: Sequence[Any] = ()
        # The state that the service is to start from, and the one it has started from.
        self._service_state: bytes | None = None
        self._started_from: bytes | None = None
        self._service = service
        self._calls = ServiceCalls(service)
        #: What else is asked of the service.
        self.hooks = hooks_of(service)
        # Loops of several threads may want to start the service.
        self._starting = CrossLoopLock()
        # An epoch that was left is ended by one loop, and another may want to begin the next.
        self._ending = CrossLoopLock()
        #: What starts the service or begins an epoch at the moment, and since when; None if nobody.
        self.begins: Beginning | None = None

    def use_graph(self, graph: Graph) -> None:
        """Set the graph to run, before the start."""
        self._graph = graph

    def restore_from(self, service_state: bytes | None) -> None:
        """Restore the service when it starts; raise SnapshotError if that is not possible.

        A service that has started from another state, or from none, will start again.
        """
        if service_state is not None:
            self._calls.check(service_state)
            if self.life in (IN_EPOCH, BETWEEN):
                self._started_from = None
        self._service_state = service_state

    def checkpoint(self) -> bytes | None:
        """Return the service's own state, or None if it has none."""
        if self._service_state != self._started_from:
            return self._service_state
        return self._calls.checkpoint()

    def recorded(self, start: EpochStart) -> NumberingPass | RecordedPass | None:
        """Return what numbers the items of the edge that began with ``start``.

        None where it does not record what becomes of each, or has not begun to.
        """
        if self._numbering is None or self._begun_with is not start:
            return None
        found: NumberingPass | RecordedPass | None = self._tree.latest_pass(self._numbering)
        return found

    def gates(self) -> list[Gate]:
        """Return what lets the calls of the graph's rollouts begin, or not."""
        pipes = () if self._graph is None else self._graph.pipes
        return [pipe.gate for pipe in pipes if isinstance(pipe, Rollout)]

    def rollouts(self) -> tuple[RolloutStats, ...]:
        """Return how the rollouts of the present epoch are doing."""
        passes = (self._tree.latest_pass(pipe) for pipe in self._tree.pipes)
        return tuple(each.stats() for each in passes if isinstance(each, RolloutPass))

    def reason_to_end(self, items: int) -> str:
        """Return why the epoch may have ended after so many items though more were read, or ""."""
        return reason_to_end(self._recorded_end, items)

    def why_no_state(self) -> str:
        """Return why no state of the present epoch can be taken, or ""."""
        outlets = (pipe for pipe in self._tree.pipes if isinstance(pipe, FromWorkers))
        added = next(filter(None, (outlet.unrecorded for outlet in outlets)), "")
        return added_without_order(added) if added else self._why_no_state

    @property
    def is_started(self) -> bool:
        """Whether the service has started, and from the state that it was to start from."""
        return self.life is not NEW and self._started_from == self._service_state

    @property
    def is_outdated(self) -> bool:
        """Whether the service started before it was given the state to start from."""
        return self.life is not NEW and self._started_from != self._service_state

    @property
    def is_begun(self) -> bool:
        """Whether the service is starting or has started."""
        return self.life is not NEW or self._starting.is_held()

    def needs_finalize(self) -> bool:
        """Whether the service holds something that it has not released yet."""
        return self.life is not NEW and not self.is_closed and self.hooks.needs_finalize()

    def length(self, datapipe: Any) -> int:
        """Return how many items an epoch of a graph has; TypeError if that is not known yet."""
        changer = graph_changer(self._service)
        if not changer:
            return self.hooks.length(datapipe)
        if not self.is_started:
            raise TypeError(
                f"{changer} may change how many items there are, so the loader has no length"
                " before it has started; ask within `with` or `async with`, or after start()"
            )
        return len(self.adapted)

    async def start(self) -> None:
        """Start the service; a start that fails may be tried again."""
        if self.is_started and not self.is_closed:
            return
        with self._beginning():
            async with self._starting.held():
                self._check_open()
                if self._graph is None:
                    raise RuntimeError("the loader has no graph yet: call load_state_dict first")
                if self.is_outdated:
                    await self._undo_start()
                if not self.is_started:
                    await self._initialize(self._graph)

    @contextlib.contextmanager
    def _beginning(self) -> Iterator[None]:
        """Note that the present task makes something begin, for those who wait for it."""
        before, self.begins = self.begins, Beginning(time.perf_counter(), asyncio.current_task())
        try:
            yield
        finally:
            self.begins = before

    def is_ready(self) -> bool:
        """Whether an epoch can begin, and nothing has to be done before."""
        is_between = self.life is not IN_EPOCH and not self._ending.is_held()
        is_usable = self.is_started and not self.is_closed
        return is_usable and is_between and self.hooks.adjustable() is None

    async def begin_epoch(self, start: EpochStart, buffer: ItemBuffer) -> Edge[Any]:
        """End the epoch before, begin one, and return the edge to the graph's end.

        ``buffer`` is where the loader's consumer takes its items.
        """
        if not self.is_ready():
            await self.start()
            await self.end_epoch()
            await self.adjust()
        self.life = IN_EPOCH
        try:
            with self._beginning():
                return await self._begin(start, buffer)
        except BaseException:
            await bounded(self.end_epoch)
            raise

    async def adjust(self) -> None:
        """Let the service change to other settings, between epochs, if it wants that."""
        adjustable = self.hooks.adjustable()
        if adjustable is not None:
            graph = await adjustable.adopt()
            self.adapted = self.adapted if graph is None else graph

    def begin_epoch_here(self, start: EpochStart, buffer: ItemBuffer) -> Edge[Any] | None:
        """Begin an epoch in the present thread; None if that has to be done on a loop.

        To have a loop in another thread do nothing takes longer than to make a small batch.
        """
        if not (self.hooks.begins_and_ends_at_once() and self.is_ready()):
            return None
        self.life = IN_EPOCH
        try:
            return finished_at_once(
                self._begin(start, buffer), f"{self._service!r} has to wait for something"
            )
        except BaseException:
            self.life = BETWEEN
            raise

    def end_epoch_here(self, tree: RunTree) -> bool:
        """End the epoch of ``tree`` in the present thread; False if it has to be on a loop."""
        if not self.hooks.begins_and_ends_at_once():
            return False
        if tree is self._tree and self.life is IN_EPOCH:
            self.life = BETWEEN
        return True

    async def end_epoch(self, tree: RunTree | None = None) -> None:
        """Tell the service that the epoch is over, if one runs: that of ``tree``, if given.

        When this returns the service knows it, whoever told it first.
        """
        async with self._ending.held():
            if self.life is IN_EPOCH and tree in (None, self._tree):
                self.life = BETWEEN
                await self._calls.finalize_iteration()

    def pause(self) -> None:
        """Let the service, and the pipes in this process, produce nothing for now."""
        self.hooks.pause()
        self._tree.set_paused(True)

    def resume(self) -> None:
        """Let the service, and the pipes in this process, produce items again."""
        self._tree.set_paused(False)
        self.hooks.resume()

    async def aclose(self) -> None:
        """End the epoch and finalize the service; every later start raises LoaderClosed."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            with leaving_time(1):
                await self.end_epoch()
        finally:
            if self.life is not NEW:
                await self._calls.finalize()

    def __repr__(self) -> str:
        return repr(self._service)

    def _check_open(self) -> None:
        if self.is_closed:
            raise LoaderClosed("the loader was shut down; make a new one to iterate again")

    async def _initialize(self, graph: Graph) -> None:
        self._given = graph.pipes
        try:
            given = fingerprint(graph)
            check_graph(graph, Purpose.RUN)
        except BaseException:
            # Other ranks wait for this one to start.
            await self.hooks.decline()
            raise
        try:
            state = self._service_state
            adapted = await self._adapted(graph.end, state)
            workers, in_order = self.hooks.worker_count(), self.hooks.is_in_order()
            await self.hooks.verify(given, workers, in_order=in_order)
            self._records = any(map(is_recording, pipes_of(adapted)))
            self._is_to_record = any(isinstance(pipe, Numbering) for pipe in graph.pipes)
            self._has_to_record = unrepeatable(graph) is not None
            if self._has_to_record and not self._records:
                raise LoaderError(_NOT_RECORDED)
            # A close that came meanwhile has found nothing to finalize.
            self._check_open()
            self.adapted, self._started_from, self.life = adapted, state, STARTED
        except BaseException as failure:
            # Undo what was done, so that the start may be tried again.
            try:
                await bounded(self._calls.finalize)
            except Exception as error:  # noqa: BLE001 - the failure itself matters more
                note(failure, f"finalize failed too: {repr_of(error)}")
            raise

    async def _undo_start(self) -> None:
        try:
            await self.end_epoch()
            await bounded(self._calls.finalize)
        finally:
            self.life, self.adapted, self._started_from = NEW, None, None

    async def _adapted(self, datapipe: Any, state: bytes | None) -> Any:
        if state is None:
            workers = self.hooks.worker_count()
            return await self._calls.initialize(datapipe, workers=workers)
        try:
            return await self._calls.restore(datapipe, state)
        except Exception as error:
            raise SnapshotError(
                f"{self._service!r} could not be restored from its state: {error!r}"
            ) from error

    async def _begin(self, start: EpochStart, buffer: ItemBuffer) -> Edge[Any]:
        seed_generator = start.generator()
        reset = await self._calls.initialize_iteration(seed_generator, unchanged)
        self.adopted_seed = seed_generator.adopted
        pipes, draws, added = self._seen(self.adapted)
        if pipes:
            if draws:
                set_graph_random_seed(self.adapted, seed_generator)
                tell_epoch(pipes, seed_generator.epoch)
            self.hooks.seed_rest()
        prepared = self.adapted
        if reset is not unchanged:
            prepared = await self._prepared(reset, seed_generator)
        if not isinstance(prepared, Iterable | AsyncIterable):
            raise TypeError(
                f"a reset must return the graph to iterate, but one of {self._service!r} returned"
                f" {type(prepared).__name__}"
            )
        if start.is_regrouped:
            check_added(self._given, prepared)
        if prepared is not self.adapted:
            pipes, _, added = self._seen(prepared)
        self._tree = tree = RunTree(pipes)
        tree.settled_items = lambda: buffer.settled - start.before
        tree.delivered_items = lambda: buffer.passed - start.before
        self._begun_with, self._numbering = start, self._numbering_in(prepared)
        if self._numbering is not None:
            self.whole_number = tree.whole_number = self.find_whole_number()
        self._recorded_end = prepared
        self._why_no_state = added_without_order(added) if added else self._why_no_state
        cursors = start.cursors
        if start.position and (adjustable := self.hooks.adjustable()) is not None:
            cursors = adjustable.fitted(cursors)
        edge: Edge[Any] = Edge(prepared, tree)
        if start.position or cursors:
            edge.resume(start.position, cursors)
        return edge

    def _numbering_in(self, graph: Any) -> Any:
        """Return what numbers the items of a graph that is run, or None."""
        self._why_no_state = ""
        if not self._records:
            if self._is_to_record:
                self._why_no_state = _NOT_RECORDED
            return None
        try:
            return numbering_of(graph)
        except LoaderError as error:
            if self._has_to_record:
                raise
            self._why_no_state = str(error)
            return None

    def _seen(self, graph: Any) -> tuple[list[Any], bool, str]:
        """Return a graph's pipes, whether one draws numbers, and which lets no state be taken.

        That is one without order that a service added: it has no number.

        Raise ValueError for a graph in which a pipe that hands over is not the last.
        """
        sealed, seen = self._sealed
        if graph is not sealed:
            pipes = pipes_of(graph)
            if any(map(hands_over, pipes[1:])):
                check_graph(graph, Purpose.RUN)
            added = (each for each in pipes if number_of(each) is None and is_without_order(each))
            name = next(map(stage_name, added), "")
            seen = pipes, any(map(is_random, pipes)), name
            # No user has the pipe that stands for all others, which are in the workers.
            if len(pipes) == 1 and stands_in(pipes[0]):
                self._sealed = graph, seen
        return seen

    async def _prepared(self, reset: IterResetFn, seed_generator: SeedGenerator) -> Any:
        """Return the graph that a reset makes, with seeds for the pipes that it added."""
        known = pipes_of(self.adapted)
        prepared = await self._reset(reset)
        if is_pipe(prepared):
            seed_newcomers(prepared, known, seed_generator)
        return prepared

    async def _reset(self, reset: IterResetFn) -> Any:
        try:
            return await reset(self.adapted)
        except LoaderError:
            raise
        except Exception as error:
            if not self.hooks.worker_count():
                raise
            # The same reset runs in the workers. The error is the same wherever it fails first.
            raise WorkerStartupError(
                f"the workers could not begin the epoch: a reset of {self._service!r} raised"
                f" {error!r}"
            ) from error


async def bounded(work: Callable[[], Awaitable[None]]) -> None:
    """Finish closing work, for a bounded time, even if cancelled; then raise the cancel."""
    task = begin_closing(work)
    try:
        released(await asyncio.shield(task))
    except asyncio.CancelledError:
        await _wait_out(task, time_left(CLOSE_SECONDS))
        if task.done() and not task.cancelled() and task.exception() is None:
            released(task.result())
        task.cancel()
        raise


async def _wait_out(task: asyncio.Task[Any], seconds: float) -> None:
    """Wait so long for a task, however often this is cancelled meanwhile."""
    end = time.monotonic() + seconds
    with shielded():
        while not task.done() and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=left)


class CrossLoopLock:
    """A lock for tasks of several event loops in several threads, first come, first served.

    A lock of asyncio's own belongs to the first loop on which somebody waits for it.
    """

    def __init__(self) -> None:
        # Garbage that is collected in here may release this lock.
        self._lock = threading.RLock()
        # The holder first, then those who wait.
        self._queue: deque[Future[None]] = deque()

    def is_held(self) -> bool:
        """Whether somebody holds the lock."""
        return bool(self._queue)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the lock, and hold it for the block."""
        turn: Future[None] = uncancellable()
        with self._lock:
            self._queue.append(turn)
            self._wake_first()
        try:
            if not turn.done():
                await asyncio.wrap_future(turn)
            yield
        finally:
            with self._lock:
                self._queue.remove(turn)
                self._wake_first()

    def _wake_first(self) -> None:
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)
