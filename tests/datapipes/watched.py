"""An iterable that notes how it is read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.running.run_place import Makers, some_home
from asyncloader.datapipes.running.watch.watching import NOT_WATCHED
from asyncloader.datapipes.thread_calls import Crew, ThreadMapPass


class Watched(IterDataPipe[Any]):
    """Yields items and counts those that were taken and the iterators that are open."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = list(items)
        self.taken = 0
        self.open = 0

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        self.open += 1
        try:
            for item in self.items:
                self.taken += 1
                yield item
        finally:
            self.open -= 1


class WatchedAsync(IterDataPipe[Any]):
    """The same on an event loop."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = list(items)
        self.open = 0

    def __len__(self) -> int:
        return len(self.items)

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.open += 1
        try:
            for item in self.items:
                yield item
        finally:
            self.open -= 1


class Failing(IterDataPipe[Any]):
    """Yields some items, then raises."""

    def __init__(self, items: Iterable[Any], error: BaseException) -> None:
        self.items = list(items)
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        yield from self.items
        raise self.error


@contextlib.contextmanager
def crew_of(pipe: Any) -> Iterator[Crew]:
    """Give the crew of a thread_map, whose reader is the test."""
    running: ThreadMapPass[Any] = ThreadMapPass(Edge(pipe, RunTree()))
    count, room = pipe.counts(None)
    with (
        contextlib.closing(pipe.threads(pipe.fn)) as threads,
        some_home(NOT_WATCHED) as home,
        Makers(home) as makers,
    ):
        yield Crew(running, makers, threads, count=count, room=room)
