"""How long each stage of a graph takes.

This file is about ``Stage``, a stopwatch for one pipe, and ``timed``, which puts a graph's
pipes under stopwatches by a pair of pipes on every edge:

    source ─ Answers ─ Asks ─ reader
             stops what the source takes, and what the reader waits for it

The two need not run in the same thread, since a pipe that waits is read from a thread, and
one that computes from a loop.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from asyncloader.datapipes.going_on.iterating import aclose_items, close_items
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns.reading import abegin, begin
from asyncloader.datapipes.pipe.base import (
    IterDataPipe,
    MapDataPipe,
    is_async_pipe,
    is_iter_pipe,
)
from asyncloader.datapipes.pipe.kinds import is_splitter
from asyncloader.graph.edit import copy_graph, replace_edge
from asyncloader.graph.walk import Wiring

_END = object()


class Stage:
    """What one pipe takes by itself: from being asked to answering, less what its sources take.

    A pipe that runs ahead of its reader, with calls under way, is not held up by its source:
    its own time is what its reader waits for it.
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
        """The time the stage took so far, up to now if it has not answered yet."""
        since = self._since
        return self._seconds + (0.0 if since is None else time.perf_counter() - since)

    def begin_again(self) -> None:
        """Forget what was counted; to be called while nothing is asked of it."""
        self._seconds, self.items, self._taken = 0.0, 0, 0

    def asked(self) -> None:
        """Its reader wants an item."""
        self._asked += 1
        self._note()

    def answered(self, is_item: bool) -> None:
        """Its reader has the item, or the end."""
        self._asked -= 1
        self.items += is_item
        self._note()

    def asks(self) -> None:
        """It wants an item of one of its sources."""
        self._runs_ahead |= not self._asked
        self._asking += 1
        self._note()

    def got(self, is_item: bool) -> None:
        """It has the item, or the end."""
        self._asking -= 1
        self._taken += is_item
        self._note()

    def _note(self) -> None:
        now, since = time.perf_counter(), self._since
        if since is not None:
            self._seconds += now - since
        self._since = now if self._asked and not self._is_held_up() else None

    def _is_held_up(self) -> bool:
        return bool(self._asking) and not (self._runs_ahead and self._taken > self.items)


def timed(datapipe: Any) -> tuple[Any, list[Stage]]:
    """Return a copy of the graph under stopwatches, and its stages, sources first."""
    datapipe = copy_graph(datapipe)
    wiring = Wiring(datapipe)
    stages: dict[int, Stage] = {}
    for pipe in wiring.sources_first():
        stages[id(pipe)] = _stage_of(pipe, wiring, stages)
    for reader in wiring.pipes:
        for source in wiring.sources(reader):
            if not is_splitter(source):
                edge = _edge(source, stages[id(source)], stages[id(reader)])
                replace_edge(reader, source, edge)
    return _answers(datapipe, stages[id(datapipe)]), list(dict.fromkeys(stages.values()))


def _stage_of(pipe: Any, wiring: Wiring, stages: dict[int, Stage]) -> Stage:
    # A splitter is not iterated itself: it works when one of its branches is.
    splitters = [source for source in wiring.sources(pipe) if is_splitter(source)]
    return stages[id(splitters[0])] if splitters else Stage(stage_name(pipe))


def _edge(source: Any, stage: Stage, reader: Stage) -> Any:
    if not is_iter_pipe(source):
        return LookUps(source, stage, reader)
    return Asks(_answers(source, stage), reader.asks, reader.got)


def _answers(source: Any, stage: Stage) -> Any:
    return (AsyncAnswers if is_async_pipe(source) else Answers)(source, stage.asked, stage.answered)


class _Edge(IterDataPipe[Any]):
    """Yields a source's items, and tells a stopwatch of it before and after each."""

    def __init__(
        self, source: Any, before: Callable[[], None], after: Callable[[bool], None]
    ) -> None:
        self.source = source
        self.before = before
        self.after = after

    def __len__(self) -> int:
        return len(self.source)


class Answers(OneToOne, _Edge):
    """Yield a source's items while its stopwatch runs."""

    def __iter__(self) -> Iterator[Any]:
        return _watched(begin(self.source), self.before, self.after)


class AsyncAnswers(OneToOne, _Edge):
    """Yield an async source's items while its stopwatch runs."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return _awatched(aiter(abegin(self.source)), self.before, self.after)


class Asks(OneToOne, _Edge):
    """Yield items while the stopwatch of the pipe that reads them stands still."""

    def __iter__(self) -> Iterator[Any]:
        return _watched(begin(self.source), self.before, self.after)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _awatched(aiter(abegin(self.source)), self.before, self.after)


def _watched(
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


async def _awatched(
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


class LookUps(MapDataPipe[Any]):
    """Look items up while a stopwatch runs and that of the reader stands still."""

    def __init__(self, source: Any, stage: Stage, reader: Stage) -> None:
        self.source = source
        self.stage = stage
        self.reader = reader

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Any) -> Any:
        self.reader.asks()
        self.stage.asked()
        try:
            return self.source[key]
        finally:
            self.stage.answered(True)
            self.reader.got(True)
