"""The marks of a stream: positions from which another worker can resume it.

This file is about ``Marker``: it begins a stream's pipes at an earlier worker's mark, and makes
new marks between frames.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter, thread_time
from typing import Any

from asyncloader.datapipes.envelope import Key
from asyncloader.datapipes.recording import NumberingPass
from asyncloader.datapipes.running.cursor_history import Pace
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    close_items,
    cursor_of,
    dropped,
    put_cursor,
)
from asyncloader.datapipes.settled import (
    NOTHING_SETTLED,
    NOTHING_TOLD,
    Pending,
    Recorded,
    Settled,
    SettledRuns,
    Telling,
)
from asyncloader.errors import LoaderError
from asyncloader.places.marks import FIRST, Mark
from asyncloader.places.random_states import RandomStates
from asyncloader.workers.dispatch_source import FromDispatcher
from asyncloader.workers.graph_part import Branches, PreparedPart


class Marker:
    """Makes the marks of one stream of an epoch.

    ``states`` are the random generators' states when the graph was ready for the epoch.
    """

    def __init__(
        self,
        prepared: PreparedPart,
        states: RandomStates,
        mark: Mark = FIRST,
        unwanted: int = 0,
        settled: SettledRuns | None = None,
        kept: Sequence[Sequence[Any]] = (),
    ) -> None:
        self._run, self._pipes = prepared
        self._states = states
        self._from = mark
        self._unwanted = unwanted
        self._pace = Pace()
        #: Whether ``told`` has to be asked with each frame.
        self.tells = False
        # What is told with the first frame.
        self._unrecorded = b""
        # Of items of which nothing is recorded.
        self._keys = itertools.count()
        # What is settled of the items, where that is recorded.
        self._settled = settled
        self._kept = kept
        # Of items that are counted as they are sent: those that are settled.
        self._known = Settled.of(settled or NOTHING_SETTLED)
        self._known_before = self._known.end
        if settled is not None and not prepared.pipes.tells:
            self._unwanted = max(self._known.frontier - mark.position, 0) + self._known.ahead()
        #: How many items of the epoch's stream come before the first that is sent, or were settled.
        self.first = mark.position + self._unwanted

    def begin(self) -> Iterator[Any]:
        """Return the stream's items, without those that were sent before."""
        mark = self._from
        pipes = self._pipes
        if not pipes:
            # A reset may have returned any iterable, which can begin only at its first item.
            return dropped(iter(self._run.pipe), self.first)
        if mark.states is not None:
            self._states.restore(mark.states)
        run = self._run
        if self._settled is not None and pipes.tells:
            return self._begin_section(self._settled)
        # Items that the loader feeds cannot be made again anyway.
        if pipes.unrecorded and not pipes.is_fed:
            self._unrecorded, self.tells = pickle.dumps(pipes.unrecorded, protocol=5), True
        if mark.position:
            run.resume(mark.position, mark.cursors)
        if self._known.unsettled:
            return self._without_known(run.begin())
        return dropped(run.begin(), self._unwanted)

    def _without_known(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items that are not settled."""
        try:
            for number in range(self._from.position, self._known_before):
                item = next(items, _END)
                if item is _END:
                    return
                if number not in self._known:
                    yield item
                del item
            yield from items
        finally:
            close_items(items)

    def _begin_section(self, settled: SettledRuns) -> Iterator[Any]:
        """Return the items of a section; those that are settled are not made again."""
        numbering = self._pipes.numbering
        self.tells = True
        if numbering is None:
            # So the loader can have no state, and none to go on from.
            if settled != NOTHING_SETTLED:
                raise LoaderError(
                    f"{self._pipes.unrecorded} was added by worker_init_fn, or a reset, to a graph"
                    " that resumes from a state in which it was not; add it to the graph before the"
                    " loader is made"
                )
            return self._run.begin()
        own = {numbering.number: Recorded.of(settled, [], Pending(self._kept)).saved()}
        self._run.tree.set_start(numbering, {**self._from.cursors, **own})
        return self._run.begin()

    def _numbered(self) -> NumberingPass | None:
        """Return what numbers the items, once it has begun."""
        numbering = self._pipes.numbering
        found: NumberingPass | None = numbering and self._run.tree.latest_pass(numbering)
        return found

    def mark(self, position: int) -> Mark | None:
        """Return a mark after ``position`` items, or None if none is due.

        In a section it is after the items that are settled.
        """
        numbered = None
        if self._settled is not None and self._pipes.tells:
            numbered = self._numbered()
            if numbered is None:
                return None
        elif position == self.first or position < self._known_before:
            # Until then it is not known how many of those that are settled were read.
            return None
        if perf_counter() < self._pace.not_before:
            return None
        begun = thread_time()
        cursors: Cursors = {}
        if numbered is None:
            self._run.put_cursors(cursors)
        else:
            position, cursors = numbered.source_place()
        if self._pipes.dealt:
            self._note_dealt(cursors)
        states = self._states.changed()
        self._pace.made(begun)
        if states is not None and self._pipes.makes_again:
            # Items that are made again would draw other random numbers. From a mark before
            # the first draw, everything is made as before.
            return None
        return Mark(position, cursors, states)

    def _note_dealt(self, cursors: Cursors) -> None:
        """Add how many of the dealt items are not needed to resume from here.

        A pipe without a cursor reads them from the first one on. A splitter reads them from
        the start that its branches' cursors name.
        """
        for inlet, branches, is_replayed in self._pipes.dealt:
            taken = 0 if is_replayed else _least_taken(inlet, branches, cursors)
            put_cursor(inlet, {"taken": taken}, cursors)

    def told(self, count: int) -> bytes:
        """Return what the loader is told with the next ``count`` items, or b""."""
        if not self._pipes.tells:
            unrecorded, self._unrecorded, self.tells = self._unrecorded, b"", False
            return unrecorded
        if self._pipes.numbering is None:
            keys: list[Key] = list(islice(self._keys, count))
            told = NOTHING_TOLD._replace(keys=keys, unrecorded=self._pipes.unrecorded)
            return pickle.dumps(told, protocol=5)
        numbered = self._numbered()
        ledger = None if numbered is None else numbered.ledger
        news = ledger.told(count) if isinstance(ledger, Telling) else None
        return b"" if news is None else pickle.dumps(news, protocol=5)

    def tell_by(self, tell: Callable[[], object]) -> None:
        """Let ``tell`` be called now and then, where items are left out and none is sent."""
        if self._settled is not None:
            self._run.tree.tell = tell


def dealt_before(inlet: FromDispatcher, cursors: Cursors) -> int:
    """Return how many items were dealt before to a worker that resumes from these cursors."""
    cursor = cursor_of(inlet, cursors) or {"taken": 0}
    return int(cursor["taken"])


def _least_taken(inlet: FromDispatcher, branches: Branches, cursors: Cursors) -> int:
    """Return how many dealt items are not needed, by the pipe's own cursor or its branches'."""
    if cursor_of(inlet, cursors):
        return dealt_before(inlet, cursors)
    said = [each for each in _cursors_in(cursors) if each.get("splitter") in branches]
    for splitter, indices in branches.items():
        own = [each for each in said if each["splitter"] == splitter]
        gone = {index for each in own for index in each["gone"]}
        if not indices <= gone | {each["index"] for each in own}:
            # A branch without a cursor begins at the beginning, and so the splitter does too.
            return 0
    return int(
        min((_taken_above(inlet, branches, dict(each["above"])) for each in said), default=0)
    )


def _cursors_in(cursors: Cursors) -> Iterator[Cursor]:
    for cursor in cursors.values():
        yield cursor
        yield from _cursors_in(dict(cursor.get("above", ())))


def _taken_above(inlet: FromDispatcher, branches: Branches, cursors: Cursors) -> float:
    """Return where a splitter resumes; infinity if another splitter in its source decides it."""
    is_below = any(each.get("splitter") in branches for each in cursors.values())
    return math.inf if is_below else dealt_before(inlet, cursors)


_END = object()
