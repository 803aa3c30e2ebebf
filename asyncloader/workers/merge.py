"""One stream out of those of several workers.

This file is about the order of items: strictly in turn, so that it is the same in
every run; or as they arrive; or in the order in which an earlier run took them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from asyncloader.workers.inbox import Inbox

#: A frame with so many items holds tiny ones. Several such frames are taken at once, because
#: passing items to the consumer has a cost per group.
_MANY = 32
_ENOUGH = 1024


class Merge(Protocol):
    """Draws the next items from several inboxes."""

    def is_ready(self) -> bool:
        """Whether ``take`` would return or raise something now, or everything was taken."""
        ...

    def is_over(self) -> bool:
        """Whether everything was taken, and no error is due."""
        ...

    def take(self) -> list[Any]:
        """Return the items that are there, or raise an error that is due, every time.

        The list may be empty, if only the end of a worker's items has arrived.
        """
        ...

    def awaited(self) -> list[Inbox]:
        """Return the inboxes that ``take`` waits for; one of them is enough."""
        ...

    def turns(self) -> list[int]:
        """Return the workers that have not ended, in the order of their turns."""
        ...


class TakeInTurn:
    """Takes one item from each inbox in turn; an inbox that is over is left out."""

    def __init__(self, inboxes: Iterable[Inbox]) -> None:
        # The first is the one whose turn it is.
        self._turns = deque(inboxes)

    def is_ready(self) -> bool:
        return not self._turns or self._turns[0].has_something()

    def is_over(self) -> bool:
        return not self._turns

    def take(self) -> list[Any]:
        items: list[Any] = []
        turns = self._turns
        are_open = self._open_all()
        while turns:
            while are_open:
                rounds = self._take_rounds(items)
                are_open = rounds >= _MANY and len(items) < _ENOUGH and self._open_all()
            first = turns[0]
            while first.left:
                items += first.take(1)
                turns.rotate(-1)
                first = turns[0]
            if not first.is_over() or (items and first.error is not None):
                break
            if first.error is not None:
                raise first.error
            turns.popleft()
            are_open = all(inbox.left for inbox in turns)
        return items

    def awaited(self) -> list[Inbox]:
        return [self._turns[0]]

    def turns(self) -> list[int]:
        return [inbox.worker for inbox in self._turns]

    def _open_all(self) -> bool:
        """Open a frame of every inbox whose open frame is empty; whether all have items."""
        return min([inbox.open() for inbox in self._turns], default=0) > 0

    def _take_rounds(self, items: list[Any]) -> int:
        """Take as many items from every inbox as the one with the fewest has."""
        inboxes = self._turns
        rounds = min([inbox.left for inbox in inboxes])
        if len(inboxes) == 1:
            items += inboxes[0].take(rounds)
            return rounds
        start = len(items)
        items += [None] * (rounds * len(inboxes))
        for place, inbox in enumerate(inboxes, start):
            items[place :: len(inboxes)] = inbox.take(rounds)
        return rounds


class TakeAsReady:
    """Takes the items that are there, from the workers in turn; skips those that have none."""

    def __init__(self, inboxes: Iterable[Inbox]) -> None:
        self._inboxes = list(inboxes)

    def is_ready(self) -> bool:
        return not self._inboxes or any(inbox.has_something() for inbox in self._inboxes)

    def is_over(self) -> bool:
        return not self._inboxes

    def take(self) -> list[Any]:
        items: list[Any] = []
        for inbox in self._inboxes:
            count = inbox.open()
            if count:
                items += inbox.take(count)
        if items:
            return items
        for inbox in self._inboxes:
            if inbox.is_over() and inbox.error is not None:
                raise inbox.error
        self._inboxes = [inbox for inbox in self._inboxes if not inbox.is_over()]
        return items

    def awaited(self) -> list[Inbox]:
        return [inbox for inbox in self._inboxes if not inbox.has_something()]

    def turns(self) -> list[int]:
        return [inbox.worker for inbox in self._inboxes]


class TakeInRuns:
    """Takes given numbers of items from given inboxes, and then follows another Merge."""

    def __init__(self, runs: Iterable[tuple[Inbox, int]], following: Merge) -> None:
        self._runs = deque(runs)
        self._following = following

    def is_ready(self) -> bool:
        if not self._runs:
            return self._following.is_ready()
        return self._runs[0][0].has_something()

    def is_over(self) -> bool:
        return not self._runs and self._following.is_over()

    def take(self) -> list[Any]:
        # One run at a time: the code that notes the order sees only how many each inbox gave.
        while self._runs:
            inbox, wanted = self._runs[0]
            count = min(wanted, inbox.open())
            if count:
                self._runs[0] = inbox, wanted - count
                return inbox.take(count)
            if wanted and not inbox.is_over():
                return []
            if wanted and inbox.error is not None:
                raise inbox.error
            self._runs.popleft()
        return self._following.take()

    def awaited(self) -> list[Inbox]:
        return [self._runs[0][0]] if self._runs else self._following.awaited()

    def turns(self) -> list[int]:
        return self._following.turns()
