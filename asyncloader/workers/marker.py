"""Where a stream stands, noted as it goes.

This file is about ``Marker``: it begins a stream's pipes where an earlier worker's stood,
and says between two frames where they stand now, so that another worker can go on there.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import thread_time
from typing import Any

from asyncloader.datapipes.cursors import Cursors, dropped, put_cursors, resume
from asyncloader.datapipes.kinds import is_without_order
from asyncloader.datapipes.marks import Pace
from asyncloader.datapipes.reading import begin
from asyncloader.datapipes.replaying import with_orders
from asyncloader.workers.messages import FIRST, Mark
from asyncloader.workers.part import Prepared
from asyncloader.workers.random_states import RandomStates, set_states


class Marker:
    """Notes the places of one stream of an epoch.

    ``states`` are those that the random generators had when the graph was ready for it.
    """

    def __init__(
        self, prepared: Prepared, states: RandomStates, mark: Mark = FIRST, unwanted: int = 0
    ) -> None:
        self._pipe, self._pipes = prepared
        self._states = states
        self._from = mark
        self._unwanted = unwanted
        self._pace = Pace()
        self._makes_again = True
        #: The latest mark, where it says for every frame anew what was handed out since.
        self.repeated: Mark | None = None
        #: How many items the epoch's stream had before the first that is sent.
        self.first = mark.position + unwanted

    def begin(self) -> Iterator[Any]:
        """Return the stream's items, without those that were sent before."""
        mark = self._from
        pipes = self._pipes
        if not pipes:
            # A reset may have returned any iterable, which can only begin at its first item.
            return dropped(iter(self._pipe), self.first)
        if mark.states is not None:
            set_states(mark.states)
        cursors = with_orders(pipes, mark.cursors)
        self._makes_again = any(getattr(pipe, "makes_again", True) for pipe in pipes)
        if any(is_without_order(pipe) for pipe in pipes):
            # Made again, the unwanted would be others.
            self.repeated = Mark(mark.position, cursors, mark.states)
            resume(self._pipe, self.first, cursors)
            return begin(self._pipe)
        if mark.position:
            resume(self._pipe, mark.position, cursors)
        return dropped(begin(self._pipe), self._unwanted)

    def mark(self, position: int) -> Mark | None:
        """Return a mark after ``position`` items, or None if none is due.

        What it says may grow until its frame is sent.
        """
        # Before the first item there is nothing to note beside where it begins.
        if position == self.first or not self._pace.is_due():
            return None
        begun = thread_time()
        cursors: Cursors = {}
        put_cursors(self._pipe, cursors)
        states = self._states.changed()
        self._pace.made(begun)
        if states is not None and self._makes_again:
            # What is made once more would draw other numbers than before. From a mark at
            # which nobody had drawn yet, everything comes out as it did.
            return None
        mark = Mark(position, cursors, states)
        if self.repeated is not None:
            self.repeated = mark
        return mark
