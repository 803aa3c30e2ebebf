"""The threads of one graph in one process.

This file is about ``Watching``: which threads iterate the pipes of a graph, and how long
they were in each of them.
"""

from __future__ import annotations

import asyncio
import weakref
from types import CodeType
from typing import Any

from asyncloader.datapipes.watch.watched import FindPipes, Watched

#: A thread is looked at when it has run for so long: most epochs of few items are shorter.
BEGIN_SECONDS = 0.05


class Watching:
    """The threads that iterate the pipes of one graph in this process."""

    def __init__(self) -> None:
        self.threads: list[Watched] = []
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
        self.threads = []
        self._find, self._pipes = find, None

    def add(self, watched: Watched, loop: asyncio.AbstractEventLoop) -> None:
        """Have a thread belong to the graph, and watch it once it has run for a while.

        To be called on the loop.
        """
        if self._find is not list:
            self.threads.append(watched)
            loop.call_later(BEGIN_SECONDS, begin_weakly, weakref.ref(watched))

    def new(self, end: Any, inside: CodeType, loop: asyncio.AbstractEventLoop) -> Watched:
        """Return a thread that will iterate ``end`` and what that reads; as for ``add``."""
        watched = Watched(lambda: [end, *(x for x in self.pipes if x is not end)], inside)
        self.add(watched, loop)
        return watched

    def seconds(self) -> dict[int, float]:
        """Return how many seconds the threads spent in the pipes, by the pipes' ids."""
        found: dict[int, float] = {}
        for thread in list(self.threads):
            for place, seconds in thread.seconds().items():
                if place >= 0:
                    key = id(thread.pipes[place])
                    found[key] = found.get(key, 0.0) + seconds
        return found


def begin_weakly(watched: weakref.ref[Watched]) -> None:
    """Look at a thread, if anybody still wants to know."""
    thread = watched()
    if thread is not None:
        thread.begin()
