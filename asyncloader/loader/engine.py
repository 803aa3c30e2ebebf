"""What runs a loader's epochs, one at a time.

This file is about ``Engine``, which a loader and its iterators share: it knows the seed of
the next epoch, the epoch that runs now and where, and closes everything in a bounded time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from asyncloader.datapipes.recording import NumberingPass
from asyncloader.datapipes.running.cursor_history import newest
from asyncloader.datapipes.running.cursors import Cursors
from asyncloader.datapipes.running.run_place import warn_left_behind
from asyncloader.datapipes.running.traits import reads_ahead, requested_for, waits
from asyncloader.datapipes.running.watch.watching import NOT_WATCHED
from asyncloader.datapipes.sampling import SampledItems
from asyncloader.deadline import ends_within, leaving_time, time_left
from asyncloader.errors import (
    ForkedError,
    IteratorInvalidated,
    LoaderClosed,
    LoaderError,
    LoopMismatchError,
)
from asyncloader.graph.walk import breadth_first
from asyncloader.loader.epoch import AsyncEpoch, DirectEpoch, Epoch, EpochLife, SyncEpoch
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.loader.lifecycle import CLOSE_SECONDS, Lifecycle, bounded
from asyncloader.loader.long_waits import LOOKOUT, LongWaits, Since
from asyncloader.loader.tuner import Tuner
from asyncloader.places.states import EpochSeeds, EpochStart
from asyncloader.runtime import (
    LoopThread,
    at_exit,
    close_in_thread,
    running_loop,
    uncancellable,
)
from asyncloader.services.from_workers import RecordedPass
from asyncloader.system import in_forked_child, unless_exiting

#: The message about a loader that was shut down.
CLOSED = "the loader was shut down; make a new DataLoader2 to iterate again"

_OF_BEFORE = (
    "a state was loaded after this iterator had yielded these items, and they come again: drop"
    " them, and take a new iterator from the loader"
)


class Engine:
    """Begins and ends the epochs of one loader."""

    def __init__(self, lifecycle: Lifecycle, first: ItemBuffer) -> None:
        self.lifecycle = lifecycle
        self._seeds = EpochSeeds()
        # The present or the last epoch: where it began, what was taken of it, and how it runs.
        self._start: EpochStart | None = None
        self._buffer = first
        self._epoch: Epoch | None = None
        #: Measures the time of that epoch.
        self.watching = NOT_WATCHED
        #: For how many seconds its consumer waited, and was away, before its settings changed.
        self.earlier = (0.0, 0.0)
        self._tuner: Tuner | None = None
        self._changed_at: float | None = None
        # Where the items of that epoch that are not acknowledged begin, if those came before its
        # settings changed.
        self._kept: EpochStart | None = None
        # Where that epoch was when it was closed: after so many items, oldest first.
        self._left_at: list[tuple[int, Cursors]] = []
        self._thread: LoopThread | None = None
        # Held to decide who closes the private loop: a start that failed, or a close.
        self._closing_thread = threading.Lock()
        self._closed: concurrent.futures.Future[None] | None = None
        # The loop that closes everything, while it does.
        self._closing_on: asyncio.AbstractEventLoop | None = None
        #: Why no epoch can begin any more; None as long as one can.
        self.refusal: LoaderError | None = None
        self._warned_of_blocking = False
        #: Held by the thread that begins an epoch: another thread's iterator waits, then ends it.
        self.beginning = threading.RLock()
        # What a thread that begins an epoch asks by for the end of the one before.
        self._latest_begin: object = None
        # Whether a seed was given while an epoch ran of which nothing was taken yet.
        self._is_reseeded = False
        # The graph that the service returned, and whether it needs a loop.
        self._looked_at: tuple[Any, bool] = None, False
        self.epochs = 0
        #: Whether a state was loaded, and no epoch has begun since.
        self.is_set_back = False
        #: What the consumer waits for, if that takes long.
        self.long_waits = LongWaits(self)
        self._pid = os.getpid()
        _engines.add(self)

    @unless_exiting
    def __del__(self) -> None:
        LOOKOUT.abandon(self.long_waits)
        # This may run in the garbage collector of any thread, which must not wait.
        if self._warn_if_dropped():
            close_in_thread(_end_dropped(self._epoch, self.lifecycle, self._thread))

    def end_at_exit(self) -> None:
        """Close what was never shut down, while the interpreter still can."""
        if self._warn_if_dropped():
            self.shutdown()
        elif self._closed is None and self._is_begun():
            # What it started ends now, each by itself. A later shutdown finds nothing to do.
            self._leave_all(LoaderClosed("the interpreter is exiting, which has ended this loader"))

    def forget_parent(self) -> None:
        """In a forked child: refuse to use what the parent started, and leave it alone."""
        # A thread of the parent may hold it.
        self._buffer.lock = threading.RLock()
        if self._is_begun():
            self._leave_all(
                ForkedError(
                    "this loader was started in the parent process, and its workers and threads do"
                    " not belong to this forked child; make a new DataLoader2 in the child"
                )
            )

    def present_wait(self) -> Since | None:
        """Return what the consumer waits for; None if it does not wait, or waits for requests."""
        epoch, begins = self._epoch, self.lifecycle.begins
        position = self.position(self._buffer) or 0
        if epoch is None or not (since := epoch.waits_since()):
            return None if begins is None else Since(begins.since, position, begins.task)
        requested = min(map(requested_for, self.watching.pipes), default=math.inf)
        since = max(since, perf_counter() - requested) if requested < math.inf else since
        return Since(since, position, None if begins is None else begins.task)

    def seed(self, seed: int) -> None:
        """Begin a seed's sequence of epochs with the next epoch.

        An epoch that is resumed from a state comes first.
        """
        self._seeds = EpochSeeds.from_seed(seed)
        if self._start is None or self._start.position or self._buffer.was_read():
            return
        if self._epoch is None:
            self._start = None
        else:
            self._is_reseeded = True

    def begin_with(self, seeds: EpochSeeds, start: EpochStart | None, buffer: ItemBuffer) -> None:
        """Begin with the epoch ``start``, unless that is None; then follow ``seeds``.

        What ran before is given up, and nothing was taken yet from ``buffer``.
        """
        with self.beginning:
            if self._epoch is not None:
                self._epoch.abandon()
            with self._buffer.lock:
                self._buffer.outdate(IteratorInvalidated(_OF_BEFORE))
                self._seeds, self._start, self._buffer = seeds, start, buffer
                self._left_at, self._kept, self._is_reseeded = [], None, False
                self.is_set_back = True

    def place(self, buffer: ItemBuffer) -> tuple[EpochSeeds, EpochStart | None]:
        """Return where a loader would resume from here; the latest iterator has ``buffer``."""
        # The cursors that are needed here are kept only until more is acknowledged.
        with self._buffer.lock:
            is_left = buffer is not self._buffer
            is_over = self._buffer.was_read() if is_left else self._buffer.is_over()
            if self._start is None or (is_over and not self._buffer.unacknowledged):
                self._seeds = self._seeds.known()
                return self._seeds, None
            return self._seeds, self._place_after(self._buffer.settled, self._start)

    def _place_after(self, count: int, start: EpochStart) -> EpochStart:
        """Return where a loader would resume after ``count`` items of the present iterator.

        ``start`` is where the present run of its epoch began.
        """
        recorded = self._recorded()
        has_begun = recorded is not None and recorded.ledger.has_begun()
        if count == start.before and (recorded is None or not (start.position or has_begun)):
            return start
        if recorded is not None:
            return self._moved(start, count, recorded.place())
        if self._kept is not None and count < start.before:
            return self._moved(self._kept, count, self._kept.cursors)
        return self._moved(start, count, self._cursors(count - start.before))

    def _moved(self, start: EpochStart, count: int, cursors: Cursors) -> EpochStart:
        position = start.position + count - start.before
        adopted = self.lifecycle.adopted_seed
        seed = start.seed if adopted is None else adopted
        padding = self._padding(position)
        return replace(start, seed=seed, position=position, cursors=cursors, padding=padding)

    def _cursors(self, passed: int) -> Cursors:
        """Return the cursors after so many items of the present run, or somewhat earlier."""
        if self._epoch is not None:
            return self._epoch.cursors(passed)
        return self._left_at[newest(self._left_at, passed)][1]

    def ack(self, count: int, buffer: ItemBuffer | None = None) -> None:
        """Acknowledge the oldest items of an iterator's buffer that were not; from any thread.

        Without a ``buffer`` that is the one of the present epoch.
        """
        # Asked for first: if a state is loaded meanwhile, it refuses.
        present = self._buffer
        buffer = present if buffer is None else buffer
        start, recorded = self._start, self._recorded()
        if recorded is None or start is None or buffer is not present:
            buffer.ack(count)
            return
        ledger, before = recorded.ledger, start.before
        buffer.ack(count, lambda settled: ledger.check_ack(settled - before))
        ledger.catch_up()

    @property
    def unacknowledged(self) -> int:
        """How many items were yielded and not acknowledged."""
        return self._buffer.unacknowledged

    def check_acknowledged(self) -> None:
        """Raise RuntimeError if the next epoch would lose items that are not acknowledged."""
        if count := self._buffer.unacknowledged:
            raise RuntimeError(
                f"the next epoch cannot begin while {count} items of this one are not acknowledged:"
                f" call loader.ack({count}) when you are done with them, or use cycle() in the"
                " graph for endless data"
            )

    def position(self, buffer: ItemBuffer) -> int | None:
        """Return how many items of its epoch were yielded, if ``buffer`` is of the present one."""
        if self._start is None or buffer is not self._buffer:
            return None
        return self._start.position + buffer.passed - self._start.before

    def is_padding(self, buffer: ItemBuffer) -> bool:
        """Whether the item that was yielded last is padding, if ``buffer`` is of this epoch."""
        position = self.position(buffer)
        return position is not None and self._padding(position) > 0

    def _padding(self, position: int) -> int:
        """Return how many of the first ``position`` items of the epoch are padding."""
        own = self.lifecycle.hooks.own_items()
        return 0 if own is None else max(position - own, 0)

    def begin_async(self, buffer: ItemBuffer) -> AsyncEpoch:
        """Begin an epoch on the running loop; the one before has ended."""
        return self._begun_async(self._next_start(buffer), buffer)

    def _recorded(self) -> NumberingPass | RecordedPass | None:
        """Return what knows what became of each item of the present run, or None."""
        start = self._start
        recorded = None if start is None else self.lifecycle.recorded(start)
        if recorded is not None and start is not None and self._buffer.is_over():
            passed = self._buffer.passed - start.before
            if reason := self.lifecycle.reason_to_end(start.position + passed):
                recorded.leave_out_rest(passed, reason)
        return recorded

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of the item that was delivered last, where they are recorded."""
        start, recorded = self._start, self._recorded()
        if recorded is None or start is None:
            return ()
        return recorded.ledger.numbers_of(self._buffer.passed - start.before)

    def left_out(self) -> dict[str, int]:
        """Return how many numbers were left out, by the reason, where they are recorded."""
        recorded = self._recorded()
        return {} if recorded is None else recorded.ledger.left_out()

    def _begun_async(self, start: EpochStart, buffer: ItemBuffer) -> AsyncEpoch:
        epoch = AsyncEpoch(self.lifecycle, start, buffer)
        self.watching, self._epoch = epoch.watching, epoch
        self._begin_tuner(buffer, asyncio.get_running_loop())
        return epoch

    async def start(self) -> None:
        """Start the service, on the running loop."""
        self._look_out()
        try:
            await self._start_service()
        except BaseException:
            if not self.lifecycle.is_begun:
                LOOKOUT.forget(self.long_waits)
            raise

    async def _start_service(self) -> None:
        if self.lifecycle.is_outdated:
            # It will be finalized first.
            await self.end_epoch()
        await self.lifecycle.start()

    def _look_out(self) -> None:
        """Let somebody look whether the consumer waits long, unless all is closed."""
        LOOKOUT.watch(self.long_waits)
        # Looked at after that: whoever closes says so before it forgets.
        if self._closed is not None:
            LOOKOUT.forget(self.long_waits)

    async def prepare_to_continue(self) -> None:
        """End the part of an epoch that ran with earlier settings, on the running loop."""
        self._changed_at = perf_counter()
        await self.end_epoch()

    def change_settings(self) -> None:
        """Let the rest of the present epoch run with what the service wants; from any thread."""
        adjustable, epoch = self.lifecycle.hooks.adjustable(), self._epoch
        # A record begins anew with the rest, and knows no items that wait for an ack.
        is_kept = self._buffer.acknowledged is not None and self._recorded() is not None
        if adjustable is not None and epoch is not None and not is_kept:
            adjustable.drain()
            epoch.change_settings()

    def continue_async(self, buffer: ItemBuffer) -> AsyncEpoch:
        """Begin the rest of an epoch on the running loop, with other settings."""
        return self._begun_async(self._rest(buffer), buffer)

    def continue_sync(self, buffer: ItemBuffer) -> DirectEpoch | SyncEpoch:
        """End the part of an epoch that ran with earlier settings, and begin the rest."""
        self._changed_at = perf_counter()
        self.prepare_sync()
        return self._begun_sync(self._rest(buffer), buffer)

    def _rest(self, buffer: ItemBuffer) -> EpochStart:
        """Return where the rest of the present epoch begins."""
        waited, away = self.watching.main.times()
        self.earlier = self.earlier[0] + waited, self.earlier[1] + away
        with buffer.lock:
            present, settled, passed = self._start, buffer.settled, buffer.passed
            assert present is not None
            if settled < passed:
                self._kept = replace(self._place_after(settled, present), before=settled)
            # One assignment: another thread may ask for the place at any moment.
            self._start = rest = replace(self._place_after(passed, present), before=passed)
        return rest

    def _begin_tuner(self, buffer: ItemBuffer, loop: asyncio.AbstractEventLoop) -> None:
        changed_at, self._changed_at = self._changed_at, None
        if self.lifecycle.hooks.adjustable() is None:
            return
        self._tuner = Tuner(
            self.lifecycle.hooks,
            self.watching,
            buffer,
            changed_at,
            partial(_change_settings, weakref.ref(self)),
        )
        self._tuner.start(loop)

    def start_sync(self) -> None:
        """Start the service, from a thread."""
        self.check_open()
        self._warn_if_blocking("this `with`", "`async with`", stacklevel=4)
        try:
            with self.beginning:
                self._run_start(self._start_service)
        except concurrent.futures.CancelledError:
            # Another thread closed the loop meanwhile.
            self.check_open()
            raise

    def prepare_sync(self) -> None:
        """Start the service and end the present epoch, from a thread."""
        if running_loop() is not None:
            self._refuse_own_loop("a `for`", "use `async for`, or `await iterator.aclose()` first")
            self._warn_if_blocking("this `for`", "`async for`", stacklevel=6)
        self._leave()
        self._latest_begin = asked = object()
        epoch = self._epoch
        is_over = epoch is None or epoch.life is EpochLife.OVER
        if self._tuner is None and self.lifecycle.is_ready() and is_over:
            # To ask the private loop to do nothing takes longer than to begin an epoch.
            self._forget(epoch)
        else:
            self._run_start(partial(self._prepare, asked))

    def begin_sync(self, buffer: ItemBuffer) -> DirectEpoch | SyncEpoch:
        """Begin an epoch for a thread: in that thread itself where the graph allows it."""
        return self._begun_sync(self._next_start(buffer), buffer)

    def _begun_sync(self, start: EpochStart, buffer: ItemBuffer) -> DirectEpoch | SyncEpoch:
        thread = self._private_loop()
        kind = SyncEpoch if self._needs_loop() else DirectEpoch
        epoch = kind(self.lifecycle, start, buffer, thread)
        self.watching, self._epoch = epoch.watching, epoch
        self._begin_tuner(buffer, thread.loop)
        return epoch

    async def end_epoch(self, asked: object = None) -> None:
        """End the present epoch, if there is one.

        What ``asked`` for it may have been interrupted, and have begun another since: that stays.
        """
        while (epoch := self._epoch) is not None and asked in (None, self._latest_begin):
            if self._tuner is not None:
                await self._tuner.aclose()
            await epoch.aclose()
            # Another task may have begun the next one meanwhile.
            if self._epoch is epoch:
                self._forget(epoch)

    def _forget(self, epoch: Epoch | None) -> None:
        """Keep of an epoch that has ended only where it was."""
        if epoch is not None:
            with self._buffer.lock:
                # Nobody resumes an epoch at its end.
                self._left_at = []
                is_over = self._buffer.is_over() and not self._buffer.unacknowledged
                if not (is_over or self.is_set_back) and self._recorded() is None:
                    before = 0 if self._start is None else self._start.before
                    counts = self._buffer.settled - before, self._buffer.passed - before
                    ends = sorted({max(count, 0) for count in counts})
                    self._left_at = [(count, epoch.cursors(count)) for count in ends]
                self._epoch = None

    async def aclose(self) -> None:
        """Close everything; a second call waits for the first."""
        if self._closed is not None:
            await asyncio.wrap_future(self._closed)
            return
        closed = self._begin_to_close()
        self._closing_on = asyncio.get_running_loop()
        try:
            with ends_within(CLOSE_SECONDS):
                await bounded(self._close)
        finally:
            self._closing_on = None
            closed.set_result(None)

    def check_may_shut_down(self) -> None:
        """Raise LoopMismatchError in the thread of a loop that the close needs."""
        self._refuse_own_loop("shutdown()", "use `await loader.aclose()`")

    def shutdown(self) -> None:
        """Close everything, from a thread."""
        self.check_may_shut_down()
        if self._closed is not None:
            self._closed.result(timeout=2 * CLOSE_SECONDS)
            return
        if not self._is_begun():
            self.lifecycle.is_closed = True
            self._begin_to_close().set_result(None)
            return
        # If no loop can be made to close on, this raises and the loader stays open.
        self._private_loop()
        closed = self._begin_to_close()
        with ends_within(CLOSE_SECONDS), contextlib.ExitStack() as closing:
            closing.callback(closed.set_result, None)
            closing.callback(self._close_on_private_loop)
            self._leave()

    def _is_begun(self) -> bool:
        """Whether anything was started."""
        return self._thread is not None or self.lifecycle.is_begun

    def _leave_all(self, refusal: LoaderError) -> None:
        """Refuse to use what was started, and leave its end to others."""
        self.refusal = refusal
        self._closed = uncancellable()
        self._closed.set_result(None)

    def _begin_to_close(self) -> concurrent.futures.Future[None]:
        with self._closing_thread:
            self._closed, self.refusal = uncancellable(), LoaderClosed(CLOSED)
        LOOKOUT.forget(self.long_waits)
        return self._closed

    def _leave(self) -> None:
        """Close generators of the caller's thread in the thread that asks for it."""
        if self._epoch is not None:
            self._epoch.leave()

    def _run_start(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run what starts the service on the private loop, and close that if it fails."""
        thread = self._private_loop()
        self._look_out()
        try:
            thread.call(start)
        except BaseException:
            if self._may_drop_thread():
                LOOKOUT.forget(self.long_waits)
                thread.close()
            raise

    def _may_drop_thread(self) -> bool:
        """Forget the private loop unless it is needed; whether it was forgotten."""
        with self._closing_thread:
            if self._closed is not None or self.lifecycle.is_begun:
                return False
            self._thread = None
            return True

    def _close_on_private_loop(self) -> None:
        thread = self._private_loop()
        still: threading.Thread | None = None
        try:
            still = thread.call_unless_still(self._close, CLOSE_SECONDS)
        finally:
            if still is None:
                thread.close(time_left(CLOSE_SECONDS))
        if still is not None:
            # An async function of the user's blocks.
            warn_left_behind(still, CLOSE_SECONDS)

    async def _prepare(self, asked: object) -> None:
        await self.end_epoch(asked)
        await self.lifecycle.start()
        await self.lifecycle.end_epoch()
        await self.lifecycle.adjust()

    async def _close(self) -> None:
        is_elsewhere = self._thread is not None and self._thread.loop is not running_loop()
        await _close_all(self.end_epoch, self.lifecycle, self._thread if is_elsewhere else None)

    def _refuse_own_loop(self, what: str, instead: str) -> None:
        loop = running_loop()
        if loop is None:
            return
        own = None if self._thread is None else self._thread.loop
        is_needed = self._epoch is not None and self._epoch.runs_on(loop)
        if is_needed or loop in (own, self._closing_on):
            raise LoopMismatchError(
                f"{what} would block the event loop that the loader needs to end its present"
                f" epoch; {instead}"
            )

    def check_open(self) -> None:
        """Raise why no epoch can begin any more, if none can."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)

    def _next_start(self, buffer: ItemBuffer) -> EpochStart:
        # Another thread's iterator may have yielded one since the loader was asked for this one.
        self.check_acknowledged()
        self._look_out()
        # An epoch of which nothing was taken is not skipped, but begun again.
        was_read = self._buffer.was_read()
        if self._start is None or self._is_reseeded or was_read:
            # A state that another thread takes meanwhile may draw the seed, too.
            with self._buffer.lock:
                self._start, self._seeds = self._seeds.next_epoch()
            self._is_reseeded = False
        self.earlier = (0.0, 0.0)
        if not self.epochs or was_read or self.is_set_back:
            self.epochs += 1
        self._buffer, self._kept, self.is_set_back = buffer, None, False
        return self._start

    def _needs_loop(self) -> bool:
        adapted, needs_loop = self._looked_at
        if adapted is not self.lifecycle.adapted:
            adapted = self.lifecycle.adapted
            pipes = breadth_first(adapted)
            # A thread asks the consumer for a sampler's keys, while that waits for an item.
            is_asked = any(isinstance(pipe, SampledItems) for pipe in pipes)
            needs_loop = any(waits(each) or (is_asked and reads_ahead(each)) for each in pipes)
            self._looked_at = adapted, needs_loop
        return needs_loop

    def _private_loop(self) -> LoopThread:
        if self._thread is None:
            thread = LoopThread()
            # Started here, where a failure leaves the loader as it was.
            thread.start()
            self._thread = thread
        return self._thread

    def _warn_if_dropped(self) -> bool:
        # A forked child owns nothing of its parent's loaders.
        is_ours = self._pid == os.getpid()
        is_dropped = is_ours and self._closed is None and self.lifecycle.needs_finalize()
        if is_dropped:
            warnings.warn(
                f"a loader was dropped without a shutdown, so {self.lifecycle!r} is finalized"
                " now; use `with loader` or `async with loader`",
                ResourceWarning,
                stacklevel=3,
            )
        return is_dropped

    def _warn_if_blocking(self, what: str, instead: str, stacklevel: int) -> None:
        if running_loop() is not None and not self._warned_of_blocking:
            self._warned_of_blocking = True
            warnings.warn(
                f"{what} blocks the event loop that runs in its thread; use {instead}",
                RuntimeWarning,
                stacklevel=stacklevel,
            )


def _change_settings(engine: weakref.ref[Engine]) -> None:
    found = engine()
    if found is not None:
        found.change_settings()


async def _end_dropped(
    epoch: Epoch | None, lifecycle: Lifecycle, thread: LoopThread | None
) -> None:
    async def end_epoch() -> None:
        if epoch is not None:
            await epoch.aclose()

    with ends_within(CLOSE_SECONDS):
        await _close_all(end_epoch, lifecycle, thread)


async def _close_all(
    end_epoch: Callable[[], Awaitable[None]], lifecycle: Lifecycle, thread: LoopThread | None
) -> None:
    """End an epoch, the service and a loop; each gets time, even if one before it fails."""
    try:
        with leaving_time(2):
            async with asyncio.timeout(CLOSE_SECONDS):
                await end_epoch()
    finally:
        try:
            with leaving_time(1):
                await lifecycle.aclose()
        finally:
            if thread is not None:
                await thread.aclose(time_left(CLOSE_SECONDS))


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@in_forked_child
def _forget_parents() -> None:
    for engine in list(_engines):
        engine.forget_parent()


@at_exit
def _end_engines() -> None:
    for engine in list(_engines):
        engine.end_at_exit()
