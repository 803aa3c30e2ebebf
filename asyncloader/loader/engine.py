"""What runs a loader's epochs, one at a time.

This file is about ``Engine``, which a loader and its iterators share: it knows
the seed of the next epoch, the epoch that is under way and where it runs, and
closes everything in a bounded time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursors
from asyncloader.datapipes.pipe.run import waits
from asyncloader.deadline import ends_within, leaving_time, time_left
from asyncloader.errors import ForkedError, LoaderClosed, LoaderError, LoopMismatchError
from asyncloader.graph.walk import breadth_first
from asyncloader.loader.gate import Gate
from asyncloader.loader.items import AsyncItems, DirectItems, LoopItems, RunningItems
from asyncloader.loader.lifecycle import CLOSE_SECONDS, Lifecycle, bounded
from asyncloader.loader.seeding import EpochSeeds, EpochStart
from asyncloader.loader.timing import Timing
from asyncloader.runtime import LoopThread, at_exit, running_loop, uncancellable

#: What is said of a loader that was shut down.
CLOSED = "the loader was shut down; make a new DataLoader2 to iterate again"


class Engine:
    """Begins and ends the epochs of one loader."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self._seeds = EpochSeeds()
        # The epoch that is under way or was the last, with what was seen of it.
        self._start: EpochStart | None = None
        self._gate = Gate()
        self._items: RunningItems | None = None
        #: The time of that epoch.
        self.timing = Timing()
        # Where the epoch stood when it was closed.
        self._left: Cursors = {}
        self._thread: LoopThread | None = None
        # Held while the private loop goes over to who closes it: a start that failed, or a close.
        self._changing_hands = threading.Lock()
        self._closed: concurrent.futures.Future[None] | None = None
        # The loop that is at work on closing everything.
        self._closing_on: asyncio.AbstractEventLoop | None = None
        #: Why no epoch can begin any more, if that is so.
        self.refusal: LoaderError | None = None
        self._warned_of_blocking = False
        #: Held by the thread that begins an epoch: another's iterator waits, and then ends it.
        self.beginning = threading.RLock()
        # Whether a seed was given while an epoch was under way that nobody saw anything of.
        self._is_reseeded = False
        self.epochs = 0
        self._pid = os.getpid()
        _engines.add(self)

    def __del__(self) -> None:
        # Whoever collects garbage here must not be made to wait.
        if self._warn_if_dropped():
            work = _end_dropped(self._items, self.lifecycle, self._thread)
            threading.Thread(target=asyncio.run, args=(work,), daemon=True).start()

    def end_at_exit(self) -> None:
        """Close what was never shut down, while the interpreter can still do so."""
        if self._warn_if_dropped():
            self.shutdown()

    def forget_parent(self) -> None:
        """In a forked child: refuse to go on with what the parent began, and leave it alone."""
        if self._thread is None and not self.lifecycle.is_begun:
            return
        self.refusal = ForkedError(
            "this loader was started in the process that made it, and its workers and threads"
            " are not those of a forked child; make a new DataLoader2 in the child"
        )
        self._closed = uncancellable()
        self._closed.set_result(None)

    def seed(self, seed: int) -> None:
        """Begin a seed's sequence of epochs with the next epoch.

        One that another loader had begun is gone on with first.
        """
        self._seeds = EpochSeeds.from_seed(seed)
        if self._start is None or self._start.position or self._gate.was_read():
            return
        if self._items is None:
            self._start = None
        else:
            self._is_reseeded = True

    def go_on(self, seeds: EpochSeeds, start: EpochStart | None) -> None:
        """Begin with ``start``, if that is an epoch, and then as ``seeds`` say."""
        self._seeds = seeds
        self._start = start

    def place(self, gate: Gate) -> tuple[EpochSeeds, EpochStart | None]:
        """Return how to go on from here, where ``gate`` is that of the latest iterator."""
        start = self._start
        is_over = self._gate.was_read() if gate is not self._gate else self._gate.is_over()
        if start is None or is_over:
            return self._seeds, None
        passed = self._gate.passed
        if not passed:
            return self._seeds, start
        cursors = self._left if self._items is None else self._items.cursors(passed)
        position = start.position + passed
        adopted = self.lifecycle.adopted_seed
        seed = start.seed if adopted is None else adopted
        return self._seeds, replace(start, seed=seed, position=position, cursors=cursors)

    def begin_async(self, gate: Gate) -> AsyncItems:
        """Begin an epoch on the running loop; the one before has ended."""
        start, self.timing = self._next_start(gate), Timing()
        self._items = items = AsyncItems(self.lifecycle, start, self.timing, gate)
        return items

    def start_sync(self) -> None:
        """Start the service, from a thread."""
        self._check_open()
        self._warn_if_blocking("this `with`", "`async with`", stacklevel=4)
        try:
            with self.beginning:
                self._begin_with(self.lifecycle.start)
        except concurrent.futures.CancelledError:
            # Another thread has closed the loop meanwhile.
            self._check_open()
            raise

    def prepare_sync(self) -> None:
        """Start the service and end the epoch that is under way, from a thread."""
        self._refuse_own_loop("a `for`", "use `async for`, or `await iterator.aclose()` first")
        self._warn_if_blocking("this `for`", "`async for`", stacklevel=6)
        self._leave()
        self._begin_with(self._prepare)

    def begin_sync(self, gate: Gate) -> DirectItems | LoopItems:
        """Begin an epoch for a thread: in that thread itself where the graph allows it."""
        thread = self._private_loop()
        kind = LoopItems if self._needs_loop() else DirectItems
        start, timing = self._next_start(gate), Timing()
        try:
            self._items = items = kind(self.lifecycle, start, timing, gate, thread)
        except BaseException:
            # Nobody else would end what looks at this thread.
            timing.end()
            raise
        self.timing = timing
        return items

    async def end_epoch(self) -> None:
        """End the epoch that is under way, if there is one."""
        while (items := self._items) is not None:
            await items.aclose()
            # Another task may have begun the next one meanwhile.
            if self._items is items:
                self._left = items.cursors(self._gate.passed)
                self._items = None

    async def aclose(self) -> None:
        """Close everything; calls while one is at work share it."""
        if self._closed is not None:
            await asyncio.wrap_future(self._closed)
            return
        closed = self._begin_to_close()
        self._closing_on = asyncio.get_running_loop()
        try:
            with ends_within(CLOSE_SECONDS):
                await bounded(self._close())
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
        # Where there can be no loop to close on, the loader stays open, to be closed later.
        self._private_loop()
        closed = self._begin_to_close()
        with ends_within(CLOSE_SECONDS), contextlib.ExitStack() as closing:
            closing.callback(closed.set_result, None)
            closing.callback(self._close_thread)
            closing.callback(lambda: self._private_loop().call(self._close()))
            self._leave()

    def _begin_to_close(self) -> concurrent.futures.Future[None]:
        with self._changing_hands:
            self._closed, self.refusal = uncancellable(), LoaderClosed(CLOSED)
            return self._closed

    def _leave(self) -> None:
        """Close what is made in a thread of the caller's in the thread that asks for it."""
        if self._items is not None:
            self._items.leave()

    def _begin_with(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run what starts the service on the private loop, which does not outlive a failure."""
        thread = self._private_loop()
        try:
            thread.call(start())
        except BaseException:
            if self._may_drop_thread():
                thread.close()
            raise

    def _may_drop_thread(self) -> bool:
        """Forget the private loop, unless somebody needs it; whether it was forgotten."""
        with self._changing_hands:
            if self._closed is not None or self.lifecycle.is_begun:
                return False
            self._thread = None
            return True

    def _close_thread(self) -> None:
        if self._thread is not None:
            self._thread.close(time_left(CLOSE_SECONDS))

    async def _prepare(self) -> None:
        await self.end_epoch()
        await self.lifecycle.start()

    async def _close(self) -> None:
        is_elsewhere = self._thread is not None and self._thread.loop is not running_loop()
        await _close_all(self.end_epoch, self.lifecycle, self._thread if is_elsewhere else None)

    def _refuse_own_loop(self, what: str, instead: str) -> None:
        loop = running_loop()
        own = None if self._thread is None else self._thread.loop
        is_needed = self._items is not None and self._items.runs_on(loop)
        if is_needed or (loop is not None and loop in (own, self._closing_on)):
            raise LoopMismatchError(
                f"{what} would block the event loop that the loader needs in order to end what is"
                f" under way; {instead}"
            )

    def _check_open(self) -> None:
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)

    def _next_start(self, gate: Gate) -> EpochStart:
        # An epoch nobody saw anything of is not skipped: it is begun again.
        if self._start is None or self._is_reseeded or self._gate.was_read():
            self._start = self._seeds.start()
            self._seeds = self._seeds.advanced()
            self._is_reseeded = False
        if not self.epochs or self._gate.was_read():
            self.epochs += 1
        self._gate = gate
        return self._start

    def _needs_loop(self) -> bool:
        adapted = self.lifecycle.adapted
        return any(waits(pipe) for pipe in breadth_first(adapted))

    def _private_loop(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    def _warn_if_dropped(self) -> bool:
        # A forked child holds nothing of its parent's loaders.
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


async def _end_dropped(
    items: RunningItems | None, lifecycle: Lifecycle, thread: LoopThread | None
) -> None:
    async def end_epoch() -> None:
        if items is not None:
            await items.aclose()

    with ends_within(CLOSE_SECONDS):
        await _close_all(end_epoch, lifecycle, thread)


async def _close_all(
    end_epoch: Callable[[], Awaitable[None]], lifecycle: Lifecycle, thread: LoopThread | None
) -> None:
    """End an epoch, the service behind it, and a loop; each has time, and each is reached."""
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


def _forget_parents() -> None:
    for engine in list(_engines):
        engine.forget_parent()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_parents)


@at_exit
def _end_engines() -> None:
    for engine in list(_engines):
        engine.end_at_exit()
