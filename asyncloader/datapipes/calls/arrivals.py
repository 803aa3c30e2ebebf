"""Which of many results is next.

This file is about calls that were begun and whose results were not yet taken: the oldest
comes first (``OldestFirst``), or whichever is ready (``ReadyFirst``).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

C = TypeVar("C")


class OldestFirst(Generic[C]):
    """Calls in the order in which they were begun."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, C]] = deque()
        #: The positions of those that are done.
        self._done: set[int] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def begun(self, position: int, call: C) -> None:
        """Note that the item at a position has its call."""
        self._calls.append((position, call))

    def finished(self, position: int, call: C) -> None:
        """Note that a call is done."""
        self._done.add(position)

    def is_ready(self) -> bool:
        """Whether there is one to take."""
        return bool(self._calls) and self._calls[0][0] in self._done

    def take(self) -> tuple[int, C]:
        """Return the next, with the position of its item."""
        position, call = self._calls.popleft()
        self._done.remove(position)
        return position, call

    def clear(self) -> None:
        """Forget them all."""
        self._calls.clear()
        self._done.clear()

    def wants(self, position: int) -> bool:
        """Whether none can be taken before the item at a position, or a later one, is begun."""
        return False


class ReadyFirst(Generic[C]):
    """Calls in the order in which they are done, after those whose ``turns`` are known."""

    def __init__(self, turns: deque[int]) -> None:
        self._turns = turns
        self._ready: deque[tuple[int, C]] = deque()
        self._early: dict[int, C] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._early)

    def begun(self, position: int, call: C) -> None:
        """Note that the item at a position has its call."""

    def finished(self, position: int, call: C) -> None:
        """Note that a call is done."""
        if not self._turns:
            self._ready.append((position, call))
            return
        self._early[position] = call
        while self._turns and self._turns[0] in self._early:
            turn = self._turns.popleft()
            self._ready.append((turn, self._early.pop(turn)))
        if not self._turns:
            self._ready.extend(self._early.items())
            self._early.clear()

    def is_ready(self) -> bool:
        """Whether there is one to take."""
        return bool(self._ready)

    def take(self) -> tuple[int, C]:
        """Return the next, with the position of its item."""
        return self._ready.popleft()

    def clear(self) -> None:
        """Forget them all."""
        self._ready.clear()
        self._early.clear()

    def wants(self, position: int) -> bool:
        """Whether none can be taken before the item at a position, or a later one, is begun."""
        return bool(self._turns) and not self._ready and self._turns[0] >= position


def calls_in_order(ordered: bool, turns: deque[int]) -> OldestFirst[Any] | ReadyFirst[Any]:
    """Return what keeps the calls of one pass."""
    return OldestFirst() if ordered else ReadyFirst(turns)
