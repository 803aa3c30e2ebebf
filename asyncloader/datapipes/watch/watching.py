"""The threads of one graph in one process.

This file is about ``Watching``: which threads iterate the pipes of a graph, and how long
they were in each of them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from types import CodeType
from typing import Any

from asyncloader.datapipes.watch.watched import FindPipes, Watched

#: A thread is looked at when it has run for so long: most epochs of few items are shorter.
BEGIN_SECONDS = 0.05


class Watching:
    """The threads that iterate the pipes of one graph in this process."""

    def __init__(self) -> None:
        # A signal's handler may ask how a loader is doing, in the midst of this.
        self._lock = threading.RLock()
        self._threads: list[Watched] = []
        #: What those came to that have ended, by the pipes' ids.
        self._ended: dict[int, float] = {}
        self._find: FindPipes = list
        self._pipes: list[Any] | None = None

    @property
    def pipes(self) -> list[Any]:
        """All pipes of the graph, the last one first."""
        if self._pipes is None:
            self._pipes = self._find()
        return self._pipes

    def begin(self, find: FindPipes) -> None:
        """Begin anew, with the pipes that are found; before that, nothing is watched."""
        with self._lock:
            self._threads, self._ended = [], {}
            self._find, self._pipes = find, None

    def own(self, watched: Watched) -> None:
        """Have a thread belong to the graph."""
        with self._lock:
            self._threads.append(watched)

    def add(self, watched: Watched, loop: asyncio.AbstractEventLoop) -> None:
        """Have a thread belong to the graph, and watch it once it has run for a while.

        To be called on the loop.
        """
        if self._find is not list:
            self.own(watched)
            loop.call_later(BEGIN_SECONDS, begin_weakly, weakref.ref(watched))

    def new(self, end: Any, inside: CodeType, loop: asyncio.AbstractEventLoop) -> Watched:
        """Return a thread that will iterate ``end`` and what that reads; as for ``add``."""
        watched = Watched(lambda: [end, *(x for x in self.pipes if x is not end)], inside)
        self.add(watched, loop)
        return watched

    def end(self, watched: Watched) -> None:
        """Look at a thread no more, and keep of it only what it came to."""
        watched.end()
        # An epoch may have no end, and begin any number of threads.
        with self._lock:
            if watched in self._threads:
                self._threads.remove(watched)
                _add_seconds(watched, self._ended)

    def seconds(self) -> dict[int, float]:
        """Return how many seconds the threads spent in the pipes, by the pipes' ids."""
        with self._lock:
            found = dict(self._ended)
            for thread in self._threads:
                _add_seconds(thread, found)
        return found


def _add_seconds(thread: Watched, into: dict[int, float]) -> None:
    for place, seconds in thread.seconds().items():
        if place >= 0:
            key = id(thread.pipes[place])
            into[key] = into.get(key, 0.0) + seconds


def begin_weakly(watched: weakref.ref[Watched]) -> None:
    """Look at a thread, if anybody still wants to know."""
    thread = watched()
    if thread is not None:
        thread.begin()
