"""Calls of an async function, many at once.

This file is about ``Window``: whenever one call ends the next begins, with no
barrier between. One task reads the source, begins the calls, and owns them and
what they share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from asyncloader.datapipes.calls.ahead_pass import NOTHING_AHEAD, AheadPass
from asyncloader.datapipes.calls.arrivals import calls_in_order
from asyncloader.datapipes.calls.running_ahead import RunningAhead
from asyncloader.datapipes.going_on.handing_out import BEFORE
from asyncloader.datapipes.pipe.tolerance import SKIPPED, Failure
from asyncloader.datapipes.running.home import cancelled
from asyncloader.runtime import Exit, begin_task, contained, released, running_loop

T = TypeVar("T")

#: Makes a coroutine of an item.
Call = Callable[[Any], Coroutine[Any, Any, T]]

#: Results that wait for an earlier one may be as many again as the calls under way.
HELD_PER_CALL = 2


class Window(RunningAhead, Generic[T]):
    """The calls under way, and the results that wait to be taken.

    ``resource`` gives what the calls share, and is left when the last call is over;
    ``call_with`` makes of it what is called for each item.
    """

    def __init__(
        self,
        running: AheadPass[T],
        resource: AbstractAsyncContextManager[Any],
        call_with: Callable[[Any], Call[T]],
        *,
        concurrency: int,
        ordered: bool,
    ) -> None:
        super().__init__(running.source)
        self.concurrency = concurrency
        #: The calls that are not done, and the positions of their items.
        self.under_way: dict[asyncio.Task[T | Exit], int] = {}
        self.results = calls_in_order(ordered, running.positions.turns())
        #: Those of the results that may raise when they are taken.
        self._failed: set[asyncio.Task[T | Exit]] = set()
        running.calls, running.room = self.under_way, concurrency
        running.ahead = self
        self._running = running
        self._resource = resource
        self._call_with = call_with
        self._call: Call[T]

    async def work(self) -> None:
        async with self._resource as shared:
            self._call = self._call_with(shared)
            try:
                await self.read()
                await self.until(self._is_idle)
            finally:
                # What is shared may take its time to close, whoever stops waiting.
                self._may_cancel = False
                if running_loop() is not None:
                    await cancelled(self.under_way)

    def hold(self, item: Any) -> None:
        position = self._running.begin()
        if position == BEFORE:
            return
        task = begin_task(self._loop, contained(self._call, item), "asyncloader async_map")
        self.under_way[task] = position
        self.results.begun(position, task)
        task.add_done_callback(self._finish)

    def has_room(self) -> bool:
        count, held = self.concurrency, len(self.results)
        if len(self.under_way) < count and held < HELD_PER_CALL * count:
            return True
        return self.results.wants(self._running.positions.read)

    def has_something(self) -> bool:
        return self.results.is_ready()

    def is_empty(self) -> bool:
        return not self.under_way and not self.results.is_ready()

    def group(self, most: int) -> list[T]:
        """Take what is ready, which may all be left out; raise the error that is first."""
        # An error would take with it what was taken before.
        most = 1 if self._failed else most
        group: list[T] = []
        while len(group) < most and self.has_something():
            position, task = self.results.take()
            if self._failed:
                self._failed.discard(task)
            result = self._running.finish(position, released(task.result()))
            if result is not SKIPPED:
                group.append(result)
        self._reader.wake()
        return group

    def drop(self) -> None:
        self.results.clear()
        self._failed.clear()
        # The pass is remembered, and what the calls shared is not to be kept alive by it.
        self._running.ahead = NOTHING_AHEAD

    def _finish(self, task: asyncio.Task[T | Exit]) -> None:
        position = self.under_way.pop(task)
        # One error ends the iteration. Nobody asks for those of later items, and asyncio
        # would report them as forgotten, had nobody looked.
        if task.cancelled() or task.exception() or may_raise(task.result()):
            self._failed.add(task)
        self.results.finished(position, task)
        self._reader.wake()
        self._consumer.wake()

    def _is_idle(self) -> bool:
        return not self.under_way


def may_raise(result: Any) -> bool:
    """Whether taking a result may raise."""
    return result.__class__ is Failure or result.__class__ is Exit
