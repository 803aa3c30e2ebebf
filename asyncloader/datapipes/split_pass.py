"""One pass that several branches share.

This file is about ``SplitPass``: it draws items from the source, puts them into the
branches' queues, and knows which branches are in the pass and when it is over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import thread_time
from typing import Any, Protocol, TypeVar

from asyncloader.datapipes.bridge import draw_for_all
from asyncloader.datapipes.call import calling
from asyncloader.datapipes.cursor_forms import (
    COUNT,
    Form,
    ascending,
    counts,
    cursors,
    each_of,
    fields,
    just,
)
from asyncloader.datapipes.cursors import Cursor, Cursors, LastingError, close_items, number_of
from asyncloader.datapipes.edges import beginning, pipes_from
from asyncloader.datapipes.marks import Pace, thinned
from asyncloader.datapipes.randomness import Seeded
from asyncloader.datapipes.run import Pass, Run
from asyncloader.errors import IteratorInvalidated

T = TypeVar("T")


class Split(Protocol):
    """How a pipe is split: what its pass has to know."""

    source: Any
    num_instances: int
    buffer_size: int

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function that ``takers`` needs, which may be async."""
        ...

    def takers(self, item: Any, number: int, function: Callable[..., Any]) -> Iterable[int]:
        """Return the branches that get an item, given its number and the callable function."""
        ...

    def held(self, lengths: Iterable[int]) -> int:
        """Return what ``buffer_size`` bounds, given how many items wait for each other branch."""
        ...

    def branches_above(self) -> list[Any]:
        """Return the branches of other splitters that the source is made of."""
        ...


def split_form(branches: int, splitter: int | None, index: int) -> Form:
    """Return the form of what ``SplitPass.cursor_of`` returns for a branch."""
    indices = ascending(below=branches)
    return fields(
        {
            "splitter": just(splitter),
            "index": just(index),
            "left": indices,
            "gone": indices,
            "given": each_of(branches, COUNT),
            "above": cursors,
            **counts("yielded", "taken"),
        },
        ("a branch was given items that were taken", _were_taken),
    )


def _were_taken(cursor: Cursor) -> bool:
    return bool(max(cursor["given"]) <= cursor["taken"])


@dataclass(frozen=True)
class SplitStart:
    """A place in the source, and how many of the items before it each branch was given."""

    taken: int
    given: tuple[int, ...]
    cursors: Cursors


def _taken(start: SplitStart) -> int:
    return start.taken


class SplitPass(Pass[T]):
    """One pass over a splitter: what was taken, what waits for whom, and who is in it.

    To go on where an earlier pass stood, it begins at the latest ``SplitStart`` that none
    of its branches was behind.
    """

    def __init__(self, run: Run[Any]) -> None:
        super().__init__(run)
        split: Split = run.pipe
        self.split = split
        self.taken = 0
        #: How many items each branch was given so far; the last of them wait in its queue.
        self.given = [0] * split.num_instances
        self.queues: list[deque[T]] = [deque() for _ in range(split.num_instances)]
        self._starts = deque([SplitStart(0, tuple(self.given), beginning(self.source))])
        self._expected: dict[int, SplitStart] = {}
        #: Where the branches of all splitters stand, which may be above this one.
        self._others: Cursors = {}
        # Who has said itself where it goes on; another thread may come in between joining and that.
        self._settled: set[int] = set()
        #: Those who needed no more where this pass goes on.
        self._gone: set[int] = set()
        #: Those who were further on than their readers are, and have not come yet.
        self._awaited: set[int] = set()
        #: The seeds that those above begin this pass with.
        self._seeds: dict[Seeded, int] = {}
        self._wanted_from = [0] * split.num_instances
        self._pace = Pace()
        #: Whether items were drawn, and whether the source is open.
        self._is_drawing = False
        self._is_reading = False
        self.joined: set[int] = set()
        self.left: set[int] = set()
        #: Those that are read by another splitter, in whose pass nobody is at present.
        self._resting: set[int] = set()
        self.at_end = False
        self.is_invalid = False
        self._errors: dict[int, LastingError] = {}
        #: Those that were too far ahead of others. What comes for them is counted, as for any.
        self._overrun: dict[int, LastingError] = {}
        self._drawing = threading.Lock()
        self._draws = self._draw_all()

    def join(self, index: int, *, goes_on: bool = False) -> bool:
        """Let a branch take part, if it can still get all of its items."""
        with self._drawing:
            if self.is_invalid or index in self.joined:
                return False
            # One that was at its end is there again, and needs nothing of what was drawn.
            if index in self.left and not (goes_on and index in self._gone):
                return False
            # One that was to go on begins anew: its readers are in another pass already.
            if self._wanted_from[index] and not goes_on:
                return False
            self.left.discard(index)
            self._awaited.discard(index)
            self.joined.add(index)
            return True

    def is_open_to(self, index: int) -> bool:
        """Whether items are drawn already, and a branch would join."""
        is_new = index not in self.joined | self.left
        return self._is_drawing and is_new and not self.is_invalid

    def next_of(self, index: int) -> T:
        """Return a branch's next item; raise StopIteration at its end."""
        queue = self.queues[index]
        while True:
            if self.is_invalid:
                raise IteratorInvalidated(
                    f"this iterator has been invalidated: a branch of {self.split!r} that had"
                    " taken part in its pass is being iterated again"
                )
            if index in self._overrun:
                raise self._overrun[index].again()
            # Only a draw takes the lock: a deque is safe between threads by itself.
            if queue:
                return queue.popleft()
            with self._drawing:
                if not queue and not self.is_invalid:
                    self._draw_for(index)

    def cursor_of(self, index: int) -> Cursor:
        """Return where a branch stands, and from where all of the pass can be made again."""
        with self._drawing:
            start = self._latest_start()
            return {
                "splitter": number_of(self.split),
                "index": index,
                "yielded": self._handed_out(index),
                "left": sorted(self.left),
                "gone": sorted(self._gone & self.left),
                "taken": start.taken,
                "given": list(start.given),
                "above": [[number, cursor] for number, cursor in start.cursors.items()],
            }

    def expect(self, index: int, position: int, cursors: Cursors) -> int:
        """Let a branch go on after its first items; return how many it has to drop itself."""
        with self._drawing:
            if self._is_drawing:
                return max(0, position - self._wanted_from[index])
            self._believe(self._cursors_in(cursors))
            self._others |= {place: each for place, each in cursors.items() if "splitter" in each}
            self._wanted_from[index] = position
            self._settled.add(index)
            return 0

    def _cursors_in(self, cursors: Cursors) -> dict[int, Cursor]:
        """Return the cursors of this splitter's branches, by their indices."""
        number = number_of(self.split)
        own = [cursor for cursor in cursors.values() if cursor.get("splitter", -1) == number]
        return {cursor["index"]: cursor for cursor in own}

    def _believe(self, cursors: dict[int, Cursor]) -> None:
        """Take from what the branches said where each of them is to begin, and who had left.

        Those that run ahead say what was so when they were at what their readers have seen.
        So each is believed about itself; what has left ahead of its reader comes again.
        """
        left = {index for cursor in cursors.values() for index in cursor["left"]}
        gone = {index for cursor in cursors.values() for index in cursor["gone"]} - cursors.keys()
        gone |= {index for index in left & cursors.keys() if index in cursors[index]["left"]}
        gone -= self.joined
        self._gone |= gone
        self.left |= gone
        self._awaited |= left - gone - self.joined
        for index in cursors.keys() - self._expected.keys():
            cursor = cursors[index]
            above = dict(cursor["above"])
            self._expected[index] = SplitStart(cursor["taken"], tuple(cursor["given"]), above)
            if index not in self._settled:
                self._wanted_from[index] = cursor["yielded"]

    def leave(self, index: int) -> None:
        """Give a branch no more items; while nobody is in the pass, the source is closed."""
        self.left.add(index)
        self.queues[index].clear()
        self._rest_if_deserted()

    def rest(self, index: int) -> None:
        """Keep what comes for a branch, which nobody reads at present."""
        self._resting.add(index)
        self._rest_if_deserted()

    def _rest_if_deserted(self) -> None:
        # Whoever is drawing has not left and sees to the rest when it does. So nobody
        # waits here, which an iterator that is dropped within a draw never could.
        if self._is_deserted() and self._drawing.acquire(blocking=False):
            try:
                if self._is_deserted():
                    self._rest()
            finally:
                self._drawing.release()

    def invalidate(self) -> None:
        """End the pass for all who are in it."""
        with self._drawing:
            self.is_invalid = True
            self._close()

    def _is_deserted(self) -> bool:
        # If the source was read to its end, what the others get waits in their queues.
        return not self.at_end and bool(self.joined) and self.joined <= self.left | self._resting

    def _rest(self) -> None:
        """Close the source; a branch that has not been in the pass yet may go on with it."""
        # A branch may leave twice, and what was closed no longer says where it stood.
        if not self._is_reading:
            return
        if self._is_drawing and not self._errors and len(self.left) < self.split.num_instances:
            above = self.split.branches_above()
            if above:
                # A branch that has left cannot come back to what its sisters read.
                for branch in above:
                    split: SplitPass[Any] | None = branch.split_in(self.run.tree)
                    if split is not None:
                        split.rest(branch.index)
                return
            self._note_start()
        self._is_reading = False
        close_items(self._draws)
        self._draws = self._draw_all()

    def _draw_for(self, index: int) -> None:
        self._resting.discard(index)
        if index in self._errors:
            raise self._errors[index].again()
        if self.at_end or index in self.left:
            raise StopIteration
        try:
            draw_for_all(self._draws)
        except StopIteration:
            self.at_end = True
        except BaseException as error:
            # No branch may take a source that failed for the end of the data.
            self._errors = dict.fromkeys(range(self.split.num_instances), LastingError(error))
            raise
        else:
            self._check_room(index)

    def _draw_all(self) -> Iterator[None]:
        split, queues = self.split, self.queues
        with calling(split.function, split) as function:
            items = self._begun_source()
            try:
                for item in items:
                    for taker in split.takers(item, self.taken, function):
                        self.given[taker] += 1
                        is_wanted = self.given[taker] > self._wanted_from[taker]
                        if is_wanted and taker not in self.left:
                            queues[taker].append(item)
                    self.taken += 1
                    # The queues alone keep the item alive.
                    del item
                    yield
                    if self._pace.is_due():
                        self._note_start()
            finally:
                close_items(items)

    def _begun_source(self) -> Iterator[Any]:
        if not self._is_drawing:
            self._starts = deque([self._first_start()])
            above = pipes_from(self.split.source, to_splitters=True)
            self._seeds = {pipe: pipe.fixed_seed() for pipe in above if isinstance(pipe, Seeded)}
        self._is_drawing = self._is_reading = True
        start = self._starts[-1]
        self.taken, self.given = start.taken, list(start.given)
        # What is made once more, as by those that ran ahead, is drawn as it was.
        for pipe, seed in self._seeds.items():
            pipe.settle_seed(seed)
        if start.taken or start.cursors:
            # A splitter above goes on where the last of all its branches was, of which this
            # one's start knows only its own.
            self.source.resume(start.taken, self._others | start.cursors)
        return self.source.begin()

    def _first_start(self) -> SplitStart:
        """Return the latest start that no branch is behind."""
        # One that needed no more, and is there again to be told so, is behind nothing.
        present = set(range(self.split.num_instances)) - self.left - self._gone
        if not present <= self._expected.keys():
            return self._starts[0]
        if not present:
            return max(self._expected.values(), key=_taken, default=self._starts[0])
        return min((self._expected[index] for index in present), key=_taken)

    def _note_start(self) -> None:
        begun = thread_time()
        cursors: Cursors = {}
        self.source.put_cursors(cursors)
        # A branch may stay behind for as long as the others go on.
        starts = thinned([*self._starts])
        self._starts = deque([*starts, SplitStart(self.taken, tuple(self.given), cursors)])
        self._latest_start()
        self._pace.made(begun)

    def _latest_start(self) -> SplitStart:
        starts = self._starts
        while len(starts) > 1 and self._all_are_past(starts[1]):
            starts.popleft()
        return starts[0]

    def _all_are_past(self, start: SplitStart) -> bool:
        present = set(range(self.split.num_instances)) - self.left
        return all(start.given[index] <= self._handed_out(index) for index in present)

    def _handed_out(self, index: int) -> int:
        return max(self._wanted_from[index], self.given[index] - len(self.queues[index]))

    def _check_room(self, index: int) -> None:
        size = self.split.buffer_size
        # What waits for those who were further on than this before is no more than it was.
        counted = set(range(self.split.num_instances)) - self._awaited - {index}
        others = (len(self.queues[place]) for place in counted)
        if size == -1 or self.split.held(others) <= size:
            return
        # The branch that ran ahead fails, for good. The others go on until it is too far
        # behind them: it takes no more, and reading them to the end would hide its error.
        self.queues[index].clear()
        overrun = BufferError(
            f"{self.split!r} would have to hold more than {size} items for branches that are"
            " behind; read the branches in step (zip them), or make buffer_size larger (-1:"
            " without bound)"
        )
        self._overrun[index] = LastingError(overrun)
        raise overrun

    def _close(self) -> None:
        close_items(self._draws)
        for queue in self.queues:
            queue.clear()
