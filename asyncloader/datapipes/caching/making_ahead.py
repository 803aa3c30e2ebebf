"""Entries of a cache, several made at the same time.

This file is about ``MakingAhead``: a thread of its own reads for what entries are wanted, as
far as there is room, so that none that is there waits for the next to be read.

    source ──read (a thread)──▶ what is being made ──outcomes──▶ consumer
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from asyncloader.datapipes.patterns.rereading import closing_items
from asyncloader.datapipes.running.home import present_waiter
from asyncloader.datapipes.running.makers import Makers, Making
from asyncloader.waiting import ThreadWaiter

T = TypeVar("T")


#: How many are held of those that were there already.
MOST_HELD = 64


class MakingAhead(Generic[T]):
    """Up to ``room`` things that were begun and not yet taken, in their order.

    Those that were there already take no room, but there is an end to them, too.
    """

    def __init__(self, makers: Makers, room: int) -> None:
        self._makers = makers
        self._room = room
        #: What is held, and whether it takes room.
        self._held: deque[tuple[Making[T], bool]] = deque()
        self._begun = 0
        self._taken = 0
        self._reader = ThreadWaiter()
        self._is_paused = False
        self._is_wanted = False

    def outcomes(self, begun: Iterator[Making[T]]) -> Iterator[T]:
        """Yield what was made, or raise what kept it from being made, in the order of ``begun``.

        That is iterated, and closed, in the other thread.
        """
        reading = self._makers.start(self._read, begun)
        while self._has_next(reading):
            making, takes_room = self._held.popleft()
            self._taken += takes_room
            self._reader.wake()
            yield making.outcome()
        reading.outcome()

    def set_paused(self, is_paused: bool) -> None:
        """Begin nothing ahead of what is waited for, or do so again; from any thread."""
        self._is_paused = is_paused
        self._reader.wake()

    def _has_next(self, reading: Making[None]) -> bool:
        self._is_wanted = True
        if self._is_paused:
            self._reader.wake()
        self._makers.until(lambda: self._is_ready(reading))
        self._is_wanted = False
        return bool(self._held)

    def _is_ready(self, reading: Making[None]) -> bool:
        # Before it is looked what is held: the reader holds the last, and then it ends.
        has_ended = reading.is_done
        return self._held[0][0].is_done if self._held else has_ended

    def _read(self, begun: Iterator[Making[T]]) -> None:
        self._reader = present_waiter()
        with closing_items(begun):
            for making in begun:
                takes_room = not making.is_done
                self._begun += takes_room
                self._held.append((making, takes_room))
                self._makers.wake()
                self._reader.until(self._has_room)

    def _has_room(self) -> bool:
        if self._is_paused:
            return self._is_wanted and not self._held
        return self._begun - self._taken < self._room and len(self._held) < MOST_HELD
