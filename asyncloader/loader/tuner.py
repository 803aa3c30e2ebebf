"""Measuring an epoch, so that its service can choose how many workers it has.

This file is about ``Tuner``, a task that looks at a running epoch now and then, tells the service
what it saw, and has the workers that the service wants started beside those that run.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from asyncloader.datapipes.running.watch.watching import Watching
from asyncloader.deadline import time_left
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.loader.lifecycle import CLOSE_SECONDS
from asyncloader.runtime import begin_task, running_loop
from asyncloader.services.hooks import Adjustable, ServiceHooks
from asyncloader.tuning import Window
from asyncloader.waiting import call_soon

#: A window is at least so long, and has at least so many items.
_WINDOW_SECONDS = 0.4
_WINDOW_ITEMS = 8
#: What is left at the end of an epoch counts if it is this long.
_REST_SECONDS = 0.05
#: With fewer items, a window is at most so long.
_MOST_SECONDS = 20.0
#: About what it takes to pass an item from one thread of a process to another.
_PASSING_SECONDS = 15e-6
#: How often it looks.
_LOOK_SECONDS = 0.1

#: A consumer that stays away for so long, and so many times as long as usual, does something else
#: than usual (a validation, a breakpoint), which says nothing about the loader.
_AWAY_SECONDS = 1.0
_AWAY_TIMES = 8


class _Counts(NamedTuple):
    """What was counted up to a moment."""

    items: int
    #: Seconds in which the consumer waited, and in which it was away.
    waited: float
    away: float
    #: Seconds in which the workers worked, the part of it between pipes and loader, and items.
    working: float
    handing: float
    made: int

    def seconds(self) -> float:
        """Return how long the epoch has run."""
        return self.waited + self.away

    def window(self, before: _Counts, workers: int, lost: float) -> Window:
        """Return what happened since ``before``."""
        waited, away = self.waited - before.waited, self.away - before.away
        seconds, items = max(waited + away, 1e-9), self.items - before.items
        working, made = max(0.0, self.working - before.working), self.made - before.made
        alone = 0.0
        if made > 0:
            making = (working - max(0.0, self.handing - before.handing)) / made
            # Without workers, the consumer's process makes the items too.
            alone = 1 / (making + away / items + _PASSING_SECONDS)
        return Window(
            seconds,
            items,
            waited=min(1.0, waited / seconds),
            busy=min(1.0, working / (workers * seconds)) if workers else 1.0,
            alone=alone,
            lost=lost,
        )


class Tuner:
    """The task that measures one epoch, or a part of one.

    ``changed_at`` is when the settings were changed in the middle of the epoch, or None.
    ``on_change`` is called when others are ready, in the middle of an epoch too.
    """

    def __init__(
        self,
        hooks: ServiceHooks,
        watching: Watching,
        buffer: ItemBuffer,
        changed_at: float | None,
        on_change: Callable[[], None],
    ) -> None:
        self._hooks = hooks
        self._watching = watching
        # A loader that is dropped drops its buffer, and nothing has to be measured any more.
        self._buffer = weakref.ref(buffer)
        self._passed = buffer.passed
        self._changed_at = changed_at
        self._on_change = on_change
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        # Where the present window began, and what was lost before it.
        self._before: _Counts | None = None
        self._lost = 0.0
        self._has_noted = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure; from any thread."""
        self._loop = loop
        if running_loop() is loop:
            self._begin()
        else:
            call_soon(loop, self._begin)

    async def aclose(self) -> None:
        """Stop measuring, from any loop."""
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        if running_loop() is loop:
            await self._end()
        elif loop.is_running():
            ending = asyncio.run_coroutine_threadsafe(self._end(), loop)
            await asyncio.wait([asyncio.wrap_future(ending)], timeout=time_left(CLOSE_SECONDS))

    def _begin(self) -> None:
        if self._loop is not None:
            self._task = begin_task(self._loop, self._measure(), "asyncloader tuner")

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=time_left(CLOSE_SECONDS))
        adjustable, now, least_items = self._hooks.adjustable(), self._counts(), _WINDOW_ITEMS
        if adjustable is None or adjustable.running() < 0 or adjustable.wants_change():
            return
        if not self._has_noted:
            # The epoch was too short for a window: it is one.
            self._before, least_items = _Counts(self._passed, 0.0, 0.0, 0.0, 0.0, 0), 1
        self._note(adjustable, now, _REST_SECONDS, least_items)

    def _note(
        self,
        adjustable: Adjustable,
        now: _Counts,
        least_seconds: float,
        least_items: int = _WINDOW_ITEMS,
    ) -> bool:
        """Tell the service what happened since the last time, if that is enough to tell."""
        before = self._before
        assert before is not None
        items, seconds = now.items - before.items, now.seconds() - before.seconds()
        is_enough = seconds >= least_seconds and items >= least_items
        if is_enough or (items > 0 and seconds > _MOST_SECONDS):
            adjustable.note(now.window(before, adjustable.running(), self._lost))
            self._before, self._lost, self._has_noted = now, 0.0, True
            return True
        return False

    async def _measure(self) -> None:
        before = self._counts()
        # The first item shows that the service has begun the epoch.
        while before.items == self._passed:
            if self._is_over():
                return
            await asyncio.sleep(_LOOK_SECONDS)
            before = self._counts()
        adjustable = self._hooks.adjustable()
        if adjustable is None:
            return
        self._before = before
        self._lost = 0.0 if self._changed_at is None else perf_counter() - self._changed_at
        while await self._until_change_is_wanted(adjustable):
            if not adjustable.is_elastic:
                return
            await adjustable.prepare()
            # If they could not be started, they are not wanted any more.
            if adjustable.wants_change():
                self._on_change()
                return

    async def _until_change_is_wanted(self, adjustable: Adjustable) -> bool:
        """Measure until other settings are wanted; False if the epoch is over before."""
        latest, longest = self._counts(), math.inf
        while not adjustable.wants_change():
            await asyncio.sleep(_LOOK_SECONDS)
            if self._is_over():
                return False
            now = self._counts()
            if now.items == latest.items and now.waited == latest.waited:
                continue
            if now.away - latest.away > longest:
                self._before = now
            latest, before = now, self._before
            if before is not None and self._note(adjustable, now, _WINDOW_SECONDS):
                usual = (now.away - before.away) / (now.items - before.items)
                longest = max(_AWAY_SECONDS, _AWAY_TIMES * usual)
        return True

    def _is_over(self) -> bool:
        buffer = self._buffer()
        return buffer is None or buffer.is_ended or self._watching.main.is_over

    def _counts(self) -> _Counts:
        buffer = self._buffer()
        waited, away = self._watching.main.times()
        workers = [each for each in self._hooks.worker_stats() if not each.is_dispatcher]
        return _Counts(
            0 if buffer is None else buffer.passed,
            waited,
            away,
            sum(worker.working for worker in workers),
            sum(worker.handing for worker in workers),
            sum(worker.items for worker in workers),
        )
