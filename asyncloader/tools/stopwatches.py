"""How long each stage of a graph takes.

This file is about ``Stopwatch``, which measures one stage, and ``timed``, which puts a pair
of pipes on every edge of a graph:

    source ─ TimedSource ─ TimedReads ─ reader
             measures what the source takes, and leaves out of the reader's time what it waits

The two need not run in the same thread: a pipe that waits is read from a thread, and a pipe
that computes from a loop. Unlike ``loader.stats()``, which samples the threads of a running
loader and costs it nothing, this slows the graph down, but it is exact for every item.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from asyncloader.datapipes.base import (
    IterDataPipe,
    MapDataPipe,
    is_iter_pipe,
)
from asyncloader.datapipes.cursors import aclose_items, close_items
from asyncloader.datapipes.edges import is_splitter
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import OneToOne, OneToOnePass
from asyncloader.datapipes.run import Run, is_async_pipe
from asyncloader.graph.edit import copy_graph, replace_edge
from asyncloader.graph.walk import Wiring

_END = object()


class Stopwatch:
    """The time of one stage: from being asked to answering, less the time of its sources.

    A pipe that runs ahead of its reader, with calls in progress, does not wait for its
    source: its time is what its reader waits for it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.items = 0
        self._seconds = 0.0
        self._taken = 0
        self._asked = 0  # a splitter is asked by all its branches
        self._asking = 0
        self._runs_ahead = False
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The time of the stage so far, up to now if it has not answered yet."""
        since = self._since
        return self._seconds + (0.0 if since is None else time.perf_counter() - since)

    def begin_again(self) -> None:
        """Start again from zero; to be called while nothing is asked of the stage."""
        self._seconds, self.items, self._taken = 0.0, 0, 0

    def asked(self) -> None:
        """Note that the stage's reader asks for an item."""
        self._asked += 1
        self._note()

    def answered(self, is_item: bool) -> None:
        """Note that the stage's reader has the item, or the end."""
        self._asked -= 1
        self.items += is_item
        self._note()

    def asks(self) -> None:
        """Note that the stage asks one of its sources for an item."""
        self._runs_ahead |= not self._asked
        self._asking += 1
        self._note()

    def got(self, is_item: bool) -> None:
        """Note that the stage has the item, or the end."""
        self._asking -= 1
        self._taken += is_item
        self._note()

    def _note(self) -> None:
        now, since = time.perf_counter(), self._since
        if since is not None:
            self._seconds += now - since
        self._since = now if self._asked and not self._waits_for_source() else None

    def _waits_for_source(self) -> bool:
        return bool(self._asking) and not (self._runs_ahead and self._taken > self.items)


def timed(datapipe: Any) -> tuple[Any, list[Stopwatch]]:
    """Return a copy of the graph that is timed, and the stopwatch of each stage, sources first."""
    datapipe = copy_graph(datapipe)
    wiring = Wiring(datapipe)
    stopwatches: dict[int, Stopwatch] = {}
    for pipe in wiring.sources_first():
        stopwatches[id(pipe)] = _stopwatch_of(pipe, wiring, stopwatches)
    for reader in wiring.pipes:
        for source in wiring.sources(reader):
            if not is_splitter(source):
                edge = _timed_edge(source, stopwatches[id(source)], stopwatches[id(reader)])
                replace_edge(reader, source, edge)
    end = _timed_source(datapipe, stopwatches[id(datapipe)])
    return end, list(dict.fromkeys(stopwatches.values()))


def _stopwatch_of(pipe: Any, wiring: Wiring, stopwatches: dict[int, Stopwatch]) -> Stopwatch:
    # A splitter is not iterated itself: it works when one of its branches is.
    splitters = [source for source in wiring.sources(pipe) if is_splitter(source)]
    return stopwatches[id(splitters[0])] if splitters else Stopwatch(stage_name(pipe))


def _timed_edge(source: Any, stopwatch: Stopwatch, reader: Stopwatch) -> Any:
    if not is_iter_pipe(source):
        return TimedLookUps(source, stopwatch, reader)
    return TimedReads(_timed_source(source, stopwatch), reader.asks, reader.got)


def _timed_source(source: Any, stopwatch: Stopwatch) -> Any:
    timed_source = AsyncTimedSource if is_async_pipe(source) else TimedSource
    return timed_source(source, stopwatch.asked, stopwatch.answered)


class _TimedEdge(OneToOne, IterDataPipe[Any]):
    """Yields a source's items, and tells a stopwatch before and after each."""

    def __init__(
        self, source: Any, before: Callable[[], None], after: Callable[[bool], None]
    ) -> None:
        self.source = source
        self.before = before
        self.after = after

    def __len__(self) -> int:
        return len(self.source)

    def new_pass(self, run: Run[Any]) -> TimedPass:
        return TimedPass(run)


class TimedPass(OneToOnePass):
    """One pass over an edge, by ``for`` or ``async for``."""

    def __iter__(self) -> Iterator[Any]:
        return _timed_items(self.source.begin(), self.pipe.before, self.pipe.after)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _timed_async(aiter(self.source.abegin()), self.pipe.before, self.pipe.after)


class TimedSource(_TimedEdge):
    """Yield a source's items while its stopwatch runs."""


class AsyncTimedSource(_TimedEdge):
    """Yield an async source's items while its stopwatch runs."""

    def is_async(self) -> bool:
        return True


class TimedReads(_TimedEdge):
    """Yield items while the stopwatch of their reader stands still."""

    def is_async(self) -> bool:
        return True

    def waits(self) -> bool:
        return False


def _timed_items(
    items: Iterator[Any], before: Callable[[], None], after: Callable[[bool], None]
) -> Iterator[Any]:
    try:
        while True:
            item = _END
            before()
            try:
                item = next(items, _END)
            finally:
                after(item is not _END)
            if item is _END:
                return
            yield item
            del item
    finally:
        close_items(items)


async def _timed_async(
    items: AsyncIterator[Any], before: Callable[[], None], after: Callable[[bool], None]
) -> AsyncIterator[Any]:
    try:
        while True:
            item = _END
            before()
            try:
                item = await anext(items, _END)
            finally:
                after(item is not _END)
            if item is _END:
                return
            yield item
            del item
    finally:
        await aclose_items(items)


class TimedLookUps(MapDataPipe[Any]):
    """Look items up while their stopwatch runs and the reader's stands still."""

    def __init__(self, source: Any, stopwatch: Stopwatch, reader: Stopwatch) -> None:
        self.source = source
        self.stopwatch = stopwatch
        self.reader = reader

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Any) -> Any:
        self.reader.asks()
        self.stopwatch.asked()
        try:
            return self.source[key]
        finally:
            self.stopwatch.answered(True)
            self.reader.got(True)
