"""One pass that several branches share.

This file is about ``SplitPass``: it draws items from the source, puts them into the
branches' queues, and knows which branches are in the pass and when it is over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from time import thread_time
from typing import Annotated, Any, TypeVar

from asyncloader.datapipes.call import calling
from asyncloader.datapipes.edges import beginning, branches_above, pipes_from
from asyncloader.datapipes.randomness import (
    SeedPairs,
    Seeds,
    in_pairs,
    seeded_in,
    seeds_to_come,
    set_seeds,
)
from asyncloader.datapipes.running.bridge import draw_for_all
from asyncloader.datapipes.running.cursor_forms import (
    COUNT,
    Count,
    Fields,
    Of,
    ascending,
    cursors,
    each_of,
    just,
)
from asyncloader.datapipes.running.cursor_history import Pace, thinned
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    LastingError,
    close_items,
    number_of,
    put_cursor,
)
from asyncloader.datapipes.running.run import Edge, Pass, RunTree
from asyncloader.datapipes.running.traits import is_branch
from asyncloader.errors import IteratorInvalidated, SnapshotError

T = TypeVar("T")


#: In a state: indices of branches.
Indices = Annotated[list[int], Of(lambda branch: ascending(below=branch.source.num_instances))]


class Branching(Fields):
    """The place of a branch, and a start from which the whole split can be made again.

    That is ``taken``, ``given`` and the cursors ``above``; ``SplitPass`` says what the rest is.
    """

    splitter: Annotated[int | None, Of(lambda branch: just(number_of(branch.source)))]
    index: Annotated[int, Of(lambda branch: just(branch.index))]
    yielded: Count
    left: Indices
    gone: Indices
    taken: Count
    given: Annotated[list[int], Of(lambda branch: each_of(branch.source.num_instances, COUNT))]
    above: Annotated[list[Any], cursors]
    #: In a later pass of an epoch: the seeds of all that the splitter reads.
    seeds: SeedPairs | None = None

    def check(self, pipe: Any) -> Iterator[str]:
        if max(self.given) > self.taken:
            yield "a branch was given items that were taken"


def _branches_above(cursors: Cursors) -> Cursors:
    """Return the cursors of the branches that other splitters' sources read.

    They are where those splitters begin: the first that draws would otherwise begin another one
    without knowing where the others are.
    """
    own_of: dict[int, dict[int, Cursor]] = {}
    _put_branches(cursors, own_of)
    found: Cursors = {}
    while own_of:
        # One that another reads is told by that one where it is.
        told_later = set().union(*map(_splitters_above, own_of.values()))
        first = next((number for number in own_of if number not in told_later), None)
        if first is None:
            break  # splitters do not read each other: the state is damaged
        own = own_of.pop(first)
        index = _who_begins({index: each["taken"] for index, each in own.items()}, _present(own))
        if index is None:
            continue
        told = {number: each for number, each in own[index]["above"] if "splitter" in each}
        found |= told
        _put_branches(told, own_of)
    return found


def _of_one_pass(index: int, own: dict[int, Cursor]) -> dict[int, Cursor]:
    """Return those of a splitter's branches' cursors that are of the pass of one branch.

    Others are of branches whose readers have ended in an earlier pass of the epoch.
    """
    seeds = own[index].get("seeds") if index in own else None
    return own if seeds is None else {at: c for at, c in own.items() if c.get("seeds") == seeds}


def _put_branches(cursors: Cursors, into: dict[int, dict[int, Cursor]]) -> None:
    """Sort branches' cursors by the numbers of their splitters and their indices."""
    for cursor in cursors.values():
        if "splitter" in cursor:
            into.setdefault(cursor["splitter"], {})[cursor["index"]] = cursor


def _splitters_above(own: dict[int, Cursor]) -> set[int]:
    """Return the numbers of the splitters that the source of one reads, directly or not."""
    found: set[int] = set()
    waiting = [*own.values()]
    while waiting:
        for _, cursor in waiting.pop()["above"]:
            if "splitter" in cursor:
                found.add(cursor["splitter"])
                waiting.append(cursor)
    return found


def _present(own: dict[int, Cursor]) -> set[int]:
    """Return the branches that get items where a splitter resumes, given their cursors."""
    count = len(next(iter(own.values()))["given"])
    return set(range(count)) - _gone_in(own)


def _gone_in(own: dict[int, Cursor]) -> set[int]:
    """Return the branches that had left, and whose readers knew it."""
    gone = {index for cursor in own.values() for index in cursor["gone"]} - own.keys()
    return gone | {index for index, cursor in own.items() if index in cursor["left"]}


def _who_begins(taken: dict[int, int], present: set[int]) -> int | None:
    """Return the branch whose start is the latest that no branch is behind; None for the beginning.

    A branch that had finished is behind nothing, even if it joined again.
    """
    if not present <= taken.keys():
        return None
    if present:
        return min(present, key=taken.__getitem__)
    return max(taken, key=taken.__getitem__, default=None)


def seeds_ahead(pipes: Sequence[Any], tree: RunTree) -> Seeds:
    """Return the seeds with which pipes will be read, which is about to begin.

    Those are of their next passes, or of passes that they join through a branch.
    """
    seeded = seeded_in(pipes)
    joining = [pipe for pipe in pipes if is_branch(pipe) and pipe.joins_others(tree)]
    above = {id(each) for pipe in joining for each in pipes_from(pipe)}
    passes = [(pipe, tree.latest_pass(pipe)) for pipe in seeded if id(pipe) in above]
    under_way = {
        number_of(pipe): begun.state.seed
        for pipe, begun in passes
        # A shuffle that is switched off draws nothing.
        if begun is not None and begun.state is not None
    }
    return {**seeds_to_come(seeded), **under_way}


def _beginning_in(tree: RunTree, pipe: Any) -> Cursors:
    """Return the cursors of branches that a pipe will read from a later pass of the epoch."""
    cursors: Cursors = {}
    for branch in branches_above(pipe):
        split = branch.split_in(tree)
        if split is not None and split.awaits_later(branch.index):
            put_cursor(branch, split.cursor_of(branch.index), cursors)
    return cursors


@dataclass(frozen=True)
class SplitStart:
    """A position in the source, and how many items each branch had been given there."""

    taken: int
    given: tuple[int, ...]
    cursors: Cursors


class BranchLife(Enum):
    """Where a branch is in the pass that it shares with others, and what moves it.

    ABSENT ───▶ READING  ``join``: its reader begins
    READING ──▶ LEFT     ``leave``: its reader is done; to read it again begins a new pass
    ABSENT ───▶ AWAITED  the pass resumes, where the branch had left ahead of its reader
    ABSENT ───▶ GONE     the pass resumes, where the branch had left and its reader knew it
    AWAITED ──▶ READING  ``join``: until then it holds up nobody who runs ahead
    GONE ─────▶ READING  ``join``, of a reader that resumes it: there is nothing to come
    """

    ABSENT = "absent"
    READING = "reading"
    LEFT = "left"
    AWAITED = "awaited"
    GONE = "gone"

    @property
    def is_over(self) -> bool:
        """Whether the branch gets no more items."""
        return self in (BranchLife.LEFT, BranchLife.GONE)

    @property
    def has_begun(self) -> bool:
        """Whether the branch has been in the pass, or had left before it."""
        return self not in (BranchLife.ABSENT, BranchLife.AWAITED)


ABSENT, READING, LEFT, AWAITED, GONE = BranchLife


def _nobodys_queue() -> deque[Any]:
    """Return the queue of a branch that gets no more items: it keeps nothing."""
    return deque(maxlen=0)


class SplitPass(Pass[T]):
    """One pass over a splitter: the items taken, the branches' queues, and who is reading.

    A resumed pass begins at the latest ``SplitStart`` that no branch is behind.
    """

    has_place = False

    def __init__(self, edge: Edge[Any], before: SplitPass[T] | None = None) -> None:
        super().__init__(edge)
        self.split = split = edge.pipe
        #: Branches that have begun in earlier passes of the same epoch.
        self._begun_before = set() if before is None else before.begun()
        #: In a later pass of the epoch: the seeds of all that it reads.
        self._seeds: Seeds = {}
        self._is_later = before is not None
        #: Branches of which it is known that they may begin a new pass.
        self.may_begin_again: set[int] = set() if before is None else before.may_begin_again
        self.taken = 0
        #: How many items each branch was given so far; those not read yet are in its queue.
        self.given = [0] * split.num_instances
        self.queues: list[deque[T]] = [deque() for _ in range(split.num_instances)]
        self._starts = deque([SplitStart(0, tuple(self.given), beginning(self.source))])
        self._expected: dict[int, SplitStart] = {}
        #: The cursors of all splitters' branches: the source may read other splitters.
        self._others: Cursors = {}
        # Branches that called ``expect``. Another thread may act between ``join`` and that.
        self._settled: set[int] = set()
        #: Where each branch is.
        self._lives = [ABSENT] * split.num_instances
        #: Branches that were gone where this pass resumes, also if they joined again.
        self._gone: set[int] = set()
        self._wanted_from = [0] * split.num_instances
        self._pace = Pace()
        #: Whether drawing has begun.
        self._is_drawing = False
        self.at_end = False
        self.is_invalid = False
        self._errors: dict[int, LastingError] = {}
        #: Branches that ran too far ahead of others. Their items are still counted.
        self._overrun: dict[int, LastingError] = {}
        self._drawing = threading.Lock()
        self._draws = self._draw_all()

    def join(self, index: int, *, resumes: bool = False) -> bool:
        """Let a branch join the pass; False if it has missed items, so that it needs a new one."""
        with self._drawing:
            life = self._lives[index]
            if self.is_invalid or life in (READING, LEFT):
                return False
            # A resumed branch that had finished needs no items, so it may join again.
            if life is GONE and not resumes:
                return False
            if self._wanted_from[index] and not resumes:
                if self.at_end or READING not in self._lives:
                    # Its reader begins another round.
                    return False
                raise SnapshotError(
                    f"the state does not fit the graph: it says where a branch of {self.split!r}"
                    " was, but not where the pipe was that reads it"
                )
            self._lives[index] = READING
            if life is GONE:
                self.queues[index] = deque()
            return True

    def is_open_to(self, index: int) -> bool:
        """Whether drawing has begun and the branch was not in this pass, nor before it resumed."""
        is_new = not self._lives[index].has_begun and not self._wanted_from[index]
        return self._is_drawing and is_new and not self.is_invalid

    def has_left(self, index: int) -> bool:
        """Whether a branch has left, so that to read it again begins a new pass."""
        return self._lives[index].is_over

    def begun(self) -> set[int]:
        """Return the branches that have been in this pass or an earlier one of the epoch."""
        begun = {index for index, life in enumerate(self._lives) if life.has_begun}
        return begun | self._begun_before

    def next_of(self, index: int) -> T:
        """Return a branch's next item; raise StopIteration at its end."""
        queue = self.queues[index]
        while True:
            if self.is_invalid:
                raise IteratorInvalidated(
                    f"this iterator has been invalidated: a branch of {self.split!r} was iterated"
                    " again, which began a new pass"
                )
            if index in self._overrun:
                raise self._overrun[index].again()
            # A deque is thread-safe; only drawing needs the lock.
            if queue:
                return queue.popleft()
            with self._drawing:
                if not queue and not self.is_invalid:
                    self._draw_for(index)

    def counts(self) -> tuple[int, int, bool, int]:
        return self.taken, sum(map(self.yielded_by, range(len(self.given)))), False, 0

    def cursor_of(self, index: int) -> Cursor:
        """Return a branch's position, and a start from which the pass can be made again."""
        with self._drawing:
            start, left = self._latest_start(), self._left()
            cursor = self._cursor(index, start, self.yielded_by(index), left, self._gone & left)
            if self._seeds:
                cursor["seeds"] = in_pairs(self._seeds)
            return cursor

    def first_cursor_of(self, index: int) -> Cursor:
        """Return the beginning of a pass as a branch's position."""
        return self._cursor(index, SplitStart(0, (0,) * self.split.num_instances, {}), 0)

    def _cursor(
        self,
        index: int,
        start: SplitStart,
        yielded: int,
        left: Collection[int] = (),
        gone: Collection[int] = (),
    ) -> Cursor:
        cursor = vars(
            Branching(
                splitter=number_of(self.split),
                index=index,
                yielded=yielded,
                left=sorted(left),
                gone=sorted(gone),
                taken=start.taken,
                given=list(start.given),
                above=[[number, cursor] for number, cursor in start.cursors.items()],
            )
        )
        del cursor["seeds"]
        return cursor

    def expect(self, index: int, position: int, cursors: Cursors) -> int:
        """Resume a branch after ``position`` items; return how many it must drop itself."""
        with self._drawing:
            if self._is_drawing:
                if position < self._wanted_from[index]:
                    if index in self._gone:
                        # Its reader had taken more than it needs again, and ends as it did then.
                        return 0
                    raise SnapshotError(
                        f"the state contradicts itself: a branch of {self.split!r} was further than"
                        " the pipe that reads it; the state is damaged, load another one"
                    )
                return position - self._wanted_from[index]
            # A reader that is behind another splitter has its place in the cursors of that one.
            above = _branches_above(cursors)
            self._believe(_of_one_pass(index, self._cursors_in(above | cursors)))
            self._others |= above
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
        """Set where each branch begins, and which branches had left, from their cursors.

        Each cursor is from the moment when the branch was at its reader's position, so each
        is trusted about its own branch. A branch that left ahead of its reader joins again.
        """
        left = {index for cursor in cursors.values() for index in cursor["left"]}
        gone = _gone_in(cursors)
        for index in left | gone:
            if self._lives[index].has_begun:
                continue
            self._lives[index] = AWAITED
            if index in gone:
                self._lives[index] = GONE
                self._gone.add(index)
                self.queues[index] = _nobodys_queue()
        for cursor in cursors.values():
            self._seeds |= dict(cursor.get("seeds", ()))
        for index in cursors.keys() - self._expected.keys():
            cursor = cursors[index]
            above = dict(cursor["above"])
            self._expected[index] = SplitStart(cursor["taken"], tuple(cursor["given"]), above)
            if index not in self._settled:
                self._wanted_from[index] = cursor["yielded"]

    def leave(self, index: int) -> None:
        """Give a branch no more items; close the source when all branches have left.

        For a branch that comes later the source stays open: if it were read again, it could
        yield other items.
        """
        self._lives[index] = LEFT
        self.queues[index] = _nobodys_queue()
        if all(life.is_over for life in self._lives):
            self.close_source()

    def close_source(self) -> None:
        # A branch that is drawing has not left, and calls this when it does. So this need not
        # wait for the lock; an iterator that is dropped within a draw would wait for ever.
        if self._drawing.acquire(blocking=False):
            try:
                close_items(self._draws)
            finally:
                self._drawing.release()

    def invalidate(self) -> None:
        """End the pass for all its branches."""
        with self._drawing:
            self.is_invalid = True
            self._close()

    def _draw_for(self, index: int) -> None:
        if index in self._errors:
            raise self._errors[index].again()
        if self.at_end or self._lives[index].is_over:
            raise StopIteration
        try:
            draw_for_all(self._draws)
        except StopIteration:
            self.at_end = True
        except BaseException as error:
            # Every branch must raise this, or it would take the failure for the end of the data.
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
                        if self.given[taker] > self._wanted_from[taker]:
                            queues[taker].append(item)
                    self.taken += 1
                    # Only the queues may keep the item alive.
                    del item
                    yield
                    if self._pace.is_due():
                        self._note_start()
            finally:
                close_items(items)

    def _begun_source(self) -> Iterator[Any]:
        start = self._first_start()
        self._starts = deque([start])
        self._is_drawing = True
        self._begin_seeds()
        self.taken, self.given = start.taken, list(start.given)
        if start.taken or start.cursors or self._others:
            # A splitter in the source resumes at the slowest of all its branches; this start
            # knows only those that this source reads.
            self.source.resume(start.taken, self._others | start.cursors)
        return self.source.begin()

    def _begin_seeds(self) -> None:
        """Let what is read in a later pass of an epoch draw as it did, or note how it will."""
        above, tree = list(pipes_from(self.split.source)), self.edge.tree
        if self._seeds:
            # What another reader has begun has its seeds.
            set_seeds(seeded_in(each for each in above if not tree.latest_pass(each)), self._seeds)
        elif self._is_later:
            self._seeds = seeds_ahead(above, tree)
        if self._seeds:
            tree.beginning_of = _beginning_in

    def awaits_later(self, index: int) -> bool:
        """Whether a branch may begin in this pass, which is a later one of the epoch."""
        return bool(self._seeds) and self.is_open_to(index)

    def _first_start(self) -> SplitStart:
        """Return the latest start that no branch is behind."""
        present = set(range(self.split.num_instances)) - self._left() - self._gone
        taken = {index: start.taken for index, start in self._expected.items()}
        index = _who_begins(taken, present)
        return self._starts[0] if index is None else self._expected[index]

    def _note_start(self) -> None:
        begun = thread_time()
        cursors: Cursors = {}
        self.source.put_cursors(cursors)
        # A slow branch may keep many starts alive.
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
        present = set(range(self.split.num_instances)) - self._left()
        return all(start.given[index] <= self.yielded_by(index) for index in present)

    def yielded_by(self, index: int) -> int:
        """Return how many items a branch has yielded."""
        return max(self._wanted_from[index], self.given[index] - len(self.queues[index]))

    def _check_room(self, index: int) -> None:
        size = self.split.buffer_size
        # Items for branches that were further before the resume were not counted then either.
        others = [
            len(queue)
            for place, queue in enumerate(self.queues)
            if place != index and self._lives[place] is not AWAITED
        ]
        if size == -1 or self.split.held(others) <= size:
            return
        # The branch that ran ahead fails for good. Its items still count as waiting, so the
        # others fail too before they could end normally and hide this error.
        self.queues[index].clear()
        overrun = BufferError(
            f"{self.split!r} would have to hold more than {size} items for branches that are"
            " behind; read the branches in step (zip them), or make buffer_size larger (-1:"
            " without bound)"
        )
        self._overrun[index] = LastingError(overrun)
        raise overrun

    def _left(self) -> set[int]:
        """Return the branches that get no more items."""
        return {index for index, life in enumerate(self._lives) if life.is_over}

    def _close(self) -> None:
        close_items(self._draws)
        for queue in self.queues:
            queue.clear()
