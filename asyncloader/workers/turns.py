"""Whose items were taken, where no rule says whose turn it is.

This file is about ``Turns``: without an order items are taken as they come. What was handed
out after a cursor can be known again only if somebody writes down whose items those were.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence

from asyncloader.datapipes.cursors import Growing


class Turns:
    """Notes whose turns there were, in all cursors that are still of use.

    A stream that goes on from a cursor has the turns again that are in ``known``.
    """

    def __init__(self, known: Growing) -> None:
        self._again = deque(zip(known.parts[::2], known.parts[1::2], strict=True))
        # The cursor that was gone on from is good for longer, and knows these turns already.
        self._known = known
        self._growing: weakref.WeakSet[Growing] = weakref.WeakSet()

    def from_here(self) -> Growing:
        """Return what will hold the turns that come."""
        growing = Growing([])
        self._growing.add(growing)
        return growing

    def next(self) -> tuple[int, int] | None:
        """Return whose turn it is, and for how many items; None where that is free."""
        return self._again[0] if self._again else None

    def skip(self) -> None:
        """Go on to the turn after this one."""
        self._again.popleft()

    def took(self, worker: int, count: int) -> None:
        """Note a turn, or a part of the one that ``next`` returned."""
        turn: Sequence[int] = (worker, count)
        for growing in self._growing:
            growing.parts += turn
        if not self._again:
            self._known.parts += turn
            return
        _, due = self._again.popleft()
        if due > count:
            self._again.appendleft((worker, due - count))
