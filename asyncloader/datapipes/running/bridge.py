"""The bridge between threads and loops.

This file is about how a sync pipe is read from a loop and an async one from a
thread, and how an async function is called from a thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

from asyncloader.datapipes.running.cursor_history import CursorHistory
from asyncloader.datapipes.running.exchange import Exchange, Nobody
from asyncloader.datapipes.running.run_place import PLACE, Home, Startable, present_waiter
from asyncloader.runtime import LoopThread, contained, released
from asyncloader.waiting import LoopWaiter, Stopped, ThreadWaiter, do_nothing

T = TypeVar("T")

#: Large items come in groups of few.
_FEW = 16


async def from_thread(run: Startable[T], crossing: Exchange[T] | None = None) -> AsyncIterator[T]:
    """Yield a sync pipe's items on the loop while it runs in a thread."""
    place = PLACE.get()
    loop = asyncio.get_running_loop()
    shared = place[0] if place is not None and place[0].is_here() else None
    home = shared or Home(loop)
    taker = LoopWaiter(loop)
    exchange = crossing or _unmarked()
    exchange.taker = taker
    giver = home.start_thread(run, exchange)
    try:
        while True:
            await taker.until(exchange.is_ready)
            group = exchange.take()
            if not group:
                return
            for item in group:
                yield item
            # Do not keep yielded items alive while waiting for the next.
            del group, item
    finally:
        # The home waits for the thread. If a reader drops this generator instead of closing
        # it, a wait here would be cut off when the loop ends.
        giver.stop()
        exchange.drop()
        if shared is None:
            # With what the thread has begun here, which it may be waiting for.
            await home.aclose()


def from_loop(run: Startable[T], crossing: Exchange[T] | None = None) -> Iterator[T]:
    """Yield an async pipe's items in this thread while it runs on a loop.

    The loop is that of the running pass; a pipe that is used alone gets one for
    itself, in a thread.
    """
    place = PLACE.get()
    exchange = crossing or _unmarked()
    if place is not None and not place[0].is_here():
        yield from taken_at(place[0], run, exchange)
        return
    thread = LoopThread()
    try:
        yield from _taken(Home(thread), run, exchange, ThreadWaiter())
    finally:
        thread.close()


def taken_at(
    home: Home, run: Startable[T], exchange: Exchange[T] | None = None
) -> Generator[T, None, None]:
    """Yield an async pipe's items in this thread while it runs at ``home``."""
    return _taken(home, run, exchange or _unmarked(), present_waiter())


def _unmarked() -> Exchange[Any]:
    """Return an exchange for items whose cursors nobody needs."""
    return Exchange(Nobody(), partial(CursorHistory, do_nothing))


def _taken(
    home: Home, run: Startable[T], exchange: Exchange[T], waiter: ThreadWaiter
) -> Generator[T, None, None]:
    exchange.taker = waiter
    giver = home.prepare_task(run, exchange)
    home.loop.call_soon_threadsafe(giver.start)
    try:
        while True:
            waiter.until(exchange.is_ready)
            group = exchange.take()
            if not group:
                return
            if len(group) > _FEW:
                yield from group
            else:
                # They may be large, so none is kept until the last of them is wanted.
                group.reverse()
                yield from map(list.pop, repeat(group, len(group)))
            del group
    finally:
        # A closed loop has ended its tasks; a closing home ends them itself.
        with contextlib.suppress(RuntimeError, Stopped):
            home.loop.call_soon_threadsafe(giver.stop)
            waiter.until(lambda: giver.is_done)
        exchange.drop()


def draw_for_all(items: Iterator[T]) -> T:
    """Return the next of items that several threads draw, one at a time.

    Waits in here end only with the pass: closing the thread that draws at the moment must
    not end them for the others.
    """
    place = PLACE.get()
    if place is None or place[1] is None:
        return next(items)
    token = PLACE.set((place[0], None))
    try:
        return next(items)
    finally:
        PLACE.reset(token)


@contextlib.contextmanager
def loop_calls() -> Iterator[Callable[..., Any]]:
    """Give ``call(function, *args)``, which runs an async function and waits for its result.

    It runs where ``from_loop`` would run a pipe: on the loop of the running pass.
    """
    place = PLACE.get()
    if place is not None and not place[0].is_here():
        yield functools.partial(_called, place[0].loop, present_waiter())
        return
    thread = LoopThread()
    try:
        yield functools.partial(_called, thread.loop, ThreadWaiter())
    finally:
        thread.close()


def call_on(
    loop: asyncio.AbstractEventLoop,
    waiter: ThreadWaiter,
    function: Callable[..., Coroutine[Any, Any, T]],
    *args: Any,
) -> T:
    """Run an async function on a loop of another thread, and wait for its result."""
    future = asyncio.run_coroutine_threadsafe(contained(function, *args), loop)
    future.add_done_callback(lambda _: waiter.wake())
    try:
        waiter.until(future.done)
        return released(future.result())
    finally:
        # A caller that stops waiting cancels the call too.
        future.cancel()


def _called(*args: Any) -> Any:
    try:
        return call_on(*args)
    except concurrent.futures.CancelledError as error:
        # The function itself raised this, so it is an ordinary error.
        raise asyncio.CancelledError(*error.args) from None
