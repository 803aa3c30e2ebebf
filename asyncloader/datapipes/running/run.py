"""The state of a graph while it runs.

A pipe only describes the work; it holds no state of an iteration. This file is about the three
things that do:

    RunTree   one epoch of a graph in one process: the latest pass of each pipe, and what
              is kept from one pass to the next
    Edge      one reader's use of a pipe in an epoch: where the next pass begins, and the
              pipe's cursors at the reader's position
    Pass      one iteration of a pipe, from its first item or from where its edge resumes. It
              reads the pipe's sources through edges of its own, so that edges and passes form
              a tree parallel to the graph

A pipe that is iterated alone, as by ``list(pipe)``, gets a tree of its own.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from asyncloader.datapipes.running.bridge import from_loop, from_thread
from asyncloader.datapipes.running.cursor_history import Count, CursorHistory, followed_by
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    aclose_items,
    adropped,
    close_items,
    cursor_of,
    dropped,
    picked,
    put_cursor,
)
from asyncloader.datapipes.running.exchange import Exchange, Nobody
from asyncloader.datapipes.running.in_flight import current_device, handed_over
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    begins_anywhere,
    hands_over,
    has_own_state,
    has_passes,
    is_async_pipe,
    is_our_stream,
    picks,
    waits,
    yields_groups,
)
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.datapipes.running.watch.watching import NOT_WATCHED, UNCOUNTED, Watching
from asyncloader.errors import SnapshotError
from asyncloader.waiting import do_nothing

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Stride(NamedTuple):
    """``width`` items from ``start`` on, and as many after every further ``step`` positions.

    >>> list(Stride(start=1, step=3).positions(8))
    [1, 4, 7]
    >>> list(Stride(start=1, step=3).of_batches(2).positions(10))
    [2, 3, 8, 9]
    """

    start: int
    step: int
    width: int = 1

    @property
    def before(self) -> int:
        """How many items of the share lie before its start; an earlier pass had them."""
        return self.start // self.step * self.width

    def of_batches(self, size: int) -> Stride:
        """Return the positions of the items that the share's batches of ``size`` are made of."""
        return Stride(self.start * size, self.step * size, self.width * size)

    def positions(self, length: int) -> Iterable[int]:
        """Return the positions of the share in a stream of ``length`` items."""
        starts = range(self.start, length, self.step)
        if self.width == 1:
            return starts
        return chain.from_iterable(range(at, min(at + self.width, length)) for at in starts)


class RunTree:
    """The state of one epoch of a graph, in one process.

    A built-in pipe knows its tree, so that it is used when a user's pipe iterates the built-in
    one. A copy of a pipe belongs to no tree.
    """

    #: Measures the time of the threads that run it.
    watching: Watching = NOT_WATCHED

    #: Says how many of the items that a loader has got it needs no more.
    settled_items: Callable[[], int] = staticmethod(lambda: 0)

    #: Says how many of its items a loader has delivered.
    delivered_items: Callable[[], int] = staticmethod(lambda: 0)

    #: Says which number an item of this rank has before the division among ranks.
    whole_number: Callable[[int], int] = int

    #: Tells the loader at once what a worker has left out.
    tell: Callable[[], object] = staticmethod(lambda: None)

    #: Returns the cursors of a pipe that does not begin as it would in a new epoch.
    beginning_of: Callable[[RunTree, Any], Cursors] = staticmethod(lambda tree, pipe: {})

    def __init__(self, pipes: Iterable[Any] = ()) -> None:
        self._ids: set[int] = set()
        #: All that it runs.
        self.pipes: list[Any] = []
        self._passes: dict[int, Pass[Any]] = {}
        self._starts: dict[int, Cursors] = {}
        self.add(pipes)

    def add(self, pipes: Iterable[Any]) -> None:
        """Add pipes to those that this tree runs."""
        for pipe in pipes:
            self._ids.add(id(pipe))
            self.pipes.append(pipe)
            if has_passes(pipe) or (is_our_stream(pipe) and pipe.is_splitter()):
                pipe._tree = self

    def has(self, pipe: Any) -> bool:
        """Whether this tree runs the pipe."""
        return id(pipe) in self._ids

    def __reduce__(self) -> Any:
        # A copy of a pipe has not been iterated yet, so it must not share the tree.
        return _nothing, ()

    # Passes -----------------------------------------------------------------------------

    def note_pass(self, pipe: Any, begun: Pass[Any]) -> None:
        """Note the latest pass of a pipe."""
        self._passes[id(pipe)] = begun

    def latest_pass(self, pipe: Any) -> Any:
        """Return the latest pass of a pipe, or None if there was none."""
        return self._passes.get(id(pipe))

    def set_paused(self, is_paused: bool) -> None:
        """Stop all passes from reading ahead of their consumers, or let them again."""
        for each in list(self._passes.values()):
            each.set_paused(is_paused)

    def close_sources(self) -> None:
        """Close what passes keep open for readers that may still come."""
        for each in list(self._passes.values()):
            # The epoch is over, so errors of user code that is being closed do not matter.
            with contextlib.suppress(Exception):
                each.close_source()

    # What outlasts a pass -----------------------------------------------------------------

    def set_start(self, pipe: Any, cursors: Cursors) -> None:
        """Let a pipe's next pass begin with these cursors, unless its reader gives others."""
        self._starts[id(pipe)] = cursors

    def take_start(self, pipe: Any) -> Cursors | None:
        """Return the cursors set for a pipe's next pass, and forget them."""
        return self._starts.pop(id(pipe), None)

    def start_of(self, pipe: Any) -> Cursors:
        """Return the cursors that are set for a pipe's next pass, or with which it begins."""
        own = self._starts.get(id(pipe))
        return self.beginning_of(self, pipe) if own is None else own

    def forget_starts(self, pipes: Iterable[Any]) -> None:
        """Let the next passes of these pipes begin at their first items."""
        for pipe in pipes:
            self._starts.pop(id(pipe), None)


def _nothing() -> None:
    """The tree of a copied pipe: none."""


def tree_of(pipe: Any) -> RunTree:
    """Return the tree that runs a pipe, or a new one for a pipe that is used alone."""
    tree: RunTree | None = vars(pipe).get("_tree")
    return tree if tree is not None and tree.has(pipe) else RunTree()


def own_tree_of(pipe: Any) -> RunTree:
    """Return the tree that runs a pipe; a pipe that is used alone gets one and keeps it."""
    tree = tree_of(pipe)
    if not tree.has(pipe):
        tree.add([pipe])
    return tree


_END: Any = object()

#: Counts nothing, before a pass begins and where nobody asks.
_NONE_CAME = Count()


class Edge(Generic[T]):
    """One reader's use of what it reads, in an epoch.

    A ``Pipe`` is given it. ``for`` and ``async for`` begin where the reader's state says, at the
    first item in a new epoch.

    >>> from asyncloader import Pipe
    >>> class Numbered(Pipe):
    ...     def __init__(self, source):
    ...         self.source = source
    ...     def run(self, source, state):
    ...         for item in source:
    ...             yield source.count(), item
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(Numbered(IterableWrapper("ab")))
    [(1, 'a'), (2, 'b')]
    """

    def __init__(self, pipe: Any, tree: RunTree, reader: Pass[Any] | None = None) -> None:
        self.pipe = pipe
        self.tree = tree
        self._reader = reader
        #: How many items the reader takes together. A pipe that looks items up may do so for as
        #: many at once; where it stands counts what it has yielded all the same.
        self.at_once = 1
        #: Whether the reader itself holds them all, so that nothing is lost if they are all looked
        #: up before the first is yielded.
        self.holds_together = False
        #: The GPU that is current in the consumer's thread, if the reader takes items in flight and
        #: hands them over there. Otherwise None, and the items are done when they are yielded.
        self.current_device: int | None = None
        #: Where the next pass begins: a position with cursors from there or earlier, or a list
        #: of the only positions to yield.
        self._start: tuple[int, Cursors] | list[int] | None = None
        #: How many items come before the first that the reader gets, and before the first that
        #: is made; and what counts those that are made.
        self._first = 0
        self._made_from = 0
        self._made = _NONE_CAME
        #: The same where the reader takes them, which may be on another thread or loop.
        self._came_from = 0
        self._came = _NONE_CAME
        #: Where the pipe stood, if the reader lags behind what it has read.
        self._history: CursorHistory | None = None
        #: Called after the last item, where the reader has to know.
        self.note_end: Callable[[], object] | None = None
        #: Notes where it stands, if it is time to, when so many of its items have come: for a
        #: reader that lags and counts them itself.
        self.passed: Callable[[int], None] = do_nothing
        #: The ``Ahead`` that reads it at present, if the reader runs ahead.
        self.ahead: Any = None
        self._crossing: Exchange[T] | None = None
        self._pass: Pass[T] | None = None
        self._own_state: OwnState | None = None

    def of(self, source: Any, reader: Pass[Any] | None = None) -> Edge[Any]:
        """Return an edge to another pipe in the same tree, which that pass reads."""
        return Edge(source, self.tree, reader)

    # Where it begins --------------------------------------------------------------------

    def resume(self, position: int, cursors: Cursors) -> None:
        """Let the next pass begin after its first ``position`` items.

        The cursors may be from an earlier position: the items in between are skipped, or made
        and dropped.
        """
        self.tree.take_start(self.pipe)
        self._start = position, cursors

    def pick(self, positions: list[int]) -> None:
        """Let the next pass yield the items at these ascending positions only.

        Only for a pipe that ``picks``.
        """
        self.tree.take_start(self.pipe)
        self._start = positions

    def first_position(self) -> int:
        """Return how many items are before the one at which the next pass begins."""
        return self._start[0] if isinstance(self._start, tuple) else 0

    def count(self) -> int:
        """Return how many items come before the one that the reader gets next.

        They are counted for a ``Pipe``, and for whoever lags. Any thread may ask.
        """
        if self._start:
            return self.first_position()
        return max(self._first, self._came_from + self._came.passed())

    def rewind(self) -> None:
        """Let the next pass begin at the first item, and count what comes from there.

        What was made is counted anew when that pass begins: until then a state may say where the
        one before has ended.
        """
        self._start, self._came = None, _NONE_CAME
        self._first = self._came_from = 0

    def has_moved(self) -> bool:
        """Whether an item has come, or was made, where they are counted."""
        return self._made.passed() > 0 or self._came.passed() > 0

    def made(self) -> int:
        """Return how many of its items a pass that is counted has yielded, dropped ones too."""
        return self._made_from + self._made.passed()

    def first_cursors(self) -> Cursors:
        """Return the cursors with which the next pass begins."""
        if isinstance(self._start, tuple):
            return self._start[1]
        return self.tree.start_of(self.pipe)

    def _take_start(self) -> tuple[int, Cursors] | list[int] | None:
        start, self._start = self._start, None
        expected = self.tree.take_start(self.pipe)
        if start is None and expected is not None:
            return 0, expected
        return start

    # Reading ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:
        return self.begin()

    def __aiter__(self) -> AsyncIterator[T]:
        return aiter(self.abegin())

    def begin(self) -> Iterator[T]:
        """Iterate the pipe in this thread; an async pipe runs on a loop and is bridged."""
        self._keep_history()
        picks = isinstance(self._start, list)
        items = self._begun()
        history = self._history
        if history is not None and not picks:
            items = history.noting(items, self.count)
        return items if self.note_end is None else followed_by(self.note_end, items)

    def again(self, positions: list[int]) -> tuple[list[T], Iterator[T]]:
        """Return the items at these positions, and an iterator over those that follow as usual.

        The positions ascend, and come before those. If what is read can pick items, only these are
        made again; otherwise all from the first of them on, and a state's ``needs`` must say so.
        """
        if not positions:
            return [], self.begin()
        then, cursors = self.first_position(), self.first_cursors()
        self._check_held(positions, then)
        if picks(self.pipe):
            self.pick(positions)
            items = list(self.begin())
            self._check_whole(positions, items)
            self.resume(then, cursors)
            return items, self.begin()
        self.resume(positions[0], cursors)
        self._keep_history()
        following, wanted = self._begun(), set(positions)
        # No place is noted here: the reader does not hold yet what it needs.
        numbered = zip(range(positions[0], then), following, strict=False)
        items = [item for position, item in numbered if position in wanted]
        self._check_whole(positions, items)
        history = self._history
        return items, following if history is None else history.noting(following, self.count)

    def _check_held(self, positions: list[int], then: int) -> None:
        if positions[0] < 0 or not all(map(operator.lt, positions, [*positions[1:], then])):
            reader = self.pipe if self._reader is None else self._reader.pipe
            raise SnapshotError(
                f"the state contradicts itself: {stage_name(reader)} goes on at item {then} of its"
                f" source, and is to have those at {positions[:9]} again; such positions ascend,"
                f" and are less than {then}"
            )

    def _check_whole(self, positions: list[int], items: list[T]) -> None:
        if len(items) < len(positions):
            raise SnapshotError(
                f"the state does not fit the data: item {positions[len(items)]} of"
                f" {stage_name(self.pipe)} is missing, which was held when the state was taken"
            )

    def _begun(self) -> Iterator[T]:
        if not (is_async_pipe(self.pipe) and waits(self.pipe)):
            self._crossing = None
            return self._started_here()
        self._first = self._came_from = self.first_position()
        items = from_loop(self, self._crossed())
        if not self._counts():
            return items
        self._came = Count()
        return self._came.counted(items)

    def _counts(self) -> bool:
        reader = self._reader
        return reader is not None and (reader.counts_edges or reader.lags())

    def _counting(self, items: Iterator[T], made_from: int) -> Iterator[T]:
        return self._new_count(made_from).counted(items)

    def _new_count(self, made_from: int) -> Count:
        """Return what counts the items that are made, of which so many were made before."""
        self._made_from, self._made = made_from, Count()
        if self._crossing is None:
            # They come where they are made.
            self._came_from, self._came = made_from, self._made
        return self._made

    def _keep_history(self) -> None:
        reader = self._reader
        if reader is not None and reader.lags():
            first = self.first_position(), self.first_cursors()
            needs = partial(reader.needs_of, self)
            self._history = CursorHistory(self.put_cursors, needs, *first)
            self.passed = self._history.passed

    def abegin(self) -> AsyncIterable[T]:
        """Iterate the pipe on the running loop; a sync pipe runs in a thread and is bridged.

        A reader that lags tells how many items have come, by ``passed``.
        """
        self._keep_history()
        self._came = _NONE_CAME
        return self._counted_on_loop(self._abegun())

    def _abegun(self) -> AsyncIterable[T]:
        if is_async_pipe(self.pipe):
            self._crossing = None
            return self.astarted()
        if hands_over(self.pipe):
            self.current_device = current_device()
            return handed_over(from_thread(self, self._crossed(self.has_room)))
        return from_thread(self, self._crossed())

    def _counted_on_loop(self, items: AsyncIterable[T]) -> AsyncIterable[T]:
        """Count the items, and note where the pipe stands, where the reader does neither."""
        reader = self._reader
        if reader is None or not reader.counts_edges:
            return items
        if self._came is _NONE_CAME:
            self._first = self._came_from = self.first_position()
            self._came = Count()
            items = _ticked(aiter(items), self._came)
        return self._noted(aiter(items))

    async def _noted(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        try:
            async for item in items:
                self.passed(self.count())
                yield item
                # Do not keep the yielded item alive while the next one is made.
                del item
        finally:
            await aclose_items(items)

    async def aagain(self, positions: list[int]) -> tuple[list[T], AsyncIterator[T]]:
        """Return the same as ``again``, on the running loop."""
        if not positions:
            return [], aiter(self)
        then, cursors = self.first_position(), self.first_cursors()
        self._check_held(positions, then)
        self.resume(positions[0], cursors)
        following = aiter(self.abegin())
        # No place is noted here: the reader does not hold yet what it needs.
        noting, self.passed = self.passed, do_nothing
        items, wanted = [], set(positions)
        for position in range(positions[0], then):
            item = await anext(following, _END)
            if item is _END:
                break
            if position in wanted:
                items.append(item)
        self.passed = noting
        try:
            self._check_whole(positions, items)
        except SnapshotError:
            await aclose_items(following)
            raise
        return items, following

    def _crossed(self, may_give: Callable[[], bool] | None = None) -> Exchange[T]:
        first = self.first_cursors()
        new_history = partial(CursorHistory, self.put_own_cursors, first=first)
        self._crossing = Exchange(Nobody(), new_history, may_give)
        return self._crossing

    def begin_share(self, share: Stride, cursors: Cursors) -> Iterator[T]:
        """Iterate one share of a pipe that ``can_share``, given earlier cursors."""
        self._crossing = None
        items: Iterator[T] = self.pipe.iter_share(self, share, cursors)
        return items

    def started(self) -> Iterator[T]:
        """Begin a pass where ``resume`` said, in the thread and loop that iterate it."""
        pipe = self.pipe
        if has_passes(pipe) and is_async_pipe(pipe) and waits(pipe):
            return from_loop(self, self._crossed())
        return self._started_here()

    def _started_here(self) -> Iterator[T]:
        pipe, start = self.pipe, self._take_start()
        if isinstance(start, list):
            items = self.new_pass().iter_at(start) if has_passes(pipe) else pipe.iter_at(start)
            return items
        self._first = 0 if start is None else start[0]
        if has_own_state(pipe):
            items = OwnState.of(self, start).items()
            return self._counting(items, self._first) if self._counts() else items
        if has_passes(pipe):
            return self._iterated(self.new_pass(), start)
        if start is not None and begins_anywhere(pipe):
            items, behind = pipe.iter_from(self._first), 0
        else:
            items, behind = iter(pipe), self._first
        if self._counts():
            items = self._counting(items, self._first - behind)
        return dropped(items, behind)

    def iterated(self) -> Iterator[T]:
        """Begin a pass at the first item, in this thread."""
        expected = self.tree.take_start(self.pipe)
        return self._iterated(self.new_pass(), None if expected is None else (0, expected))

    def _iterated(self, begun: Pass[T], start: tuple[int, Cursors] | None) -> Iterator[T]:
        behind = 0
        if start is not None:
            behind = begun.resume_at(start[0], self._cursor_in(start[1]), start[1])
        items = iter(begun)
        if begun.counts_edges or self._counts():
            items = self._counting(items, self._first - behind)
        return dropped(items, behind)

    def astarted(self) -> AsyncIterable[T]:
        """Begin an async pass where ``resume`` said, on the running loop."""
        start, pipe = self._take_start(), self.pipe
        position, cursors = start if isinstance(start, tuple) else (0, {})
        if has_own_state(pipe):
            return OwnState.of(self, start).aitems()
        if not has_passes(pipe):
            # A pipe that yields groups is asked for those instead.
            items = pipe if yields_groups(pipe) else aiter(pipe)
            return items if start is None else adropped(aiter(items), position)
        begun: Any = self.new_pass()
        behind = (
            0 if start is None else begun.resume_at(position, self._cursor_in(cursors), cursors)
        )
        if begun.counts_edges:
            self._first = position
            begun = _ticked(aiter(begun), self._new_count(position - behind))
        return begun if behind == 0 else adropped(aiter(begun), behind)

    def new_pass(self) -> Pass[T]:
        """Begin a pass at the first item."""
        begun: Pass[T] = self.pipe.new_pass(self)
        self.note(begun)
        return begun

    def has_room(self) -> bool:
        """Whether the current pass may hold more items than it does."""
        held, room = (0, 1) if self._pass is None else self._pass.fullness()
        return held < room

    def note(self, begun: Pass[T]) -> None:
        """Make this the current pass."""
        self._pass = begun
        self.tree.note_pass(self.pipe, begun)

    def _cursor_in(self, cursors: Cursors) -> Cursor | None:
        return cursor_of(self.pipe, cursors)

    # Cursors ----------------------------------------------------------------------------

    def put_cursors(self, into: Cursors) -> None:
        """Add the cursors of the pipe and all pipes that it reads, at the reader's position.

        Call this between two items, after the first. Torch's pipes have no cursors.
        """
        if self._crossing is not None:
            self._crossing.put_cursors(into)
        else:
            self.put_own_cursors(into)

    def place(self, needed: int | None) -> Cursors:
        """Return the newest cursors that were noted when at most ``needed`` items had come.

        None is for the present ones; where no item has come, those are the first.
        """
        if self._history is None:
            return self.first_cursors()
        if needed is not None or not self.has_moved():
            return self._history.at(self.count() if needed is None else needed)
        present: Cursors = {}
        self.put_cursors(present)
        return present

    def put_own_cursors(self, into: Cursors) -> None:
        """Add the same cursors at the position of the thread or task that iterates the pipe."""
        if self._own_state is not None:
            put_cursor(self.pipe, self._own_state.cursor(), into)
        elif self._pass is not None and self._pass.has_place:
            self._pass.put_source_cursors(into)
            # The own cursor comes last: a pass that has not moved yet adds all of the graph's
            # cursors from its beginning.
            put_cursor(self.pipe, self._pass.cursor(), into)

    def keep_own_state(self, state: OwnState) -> None:
        """Note the pass over a source that has a ``state_dict``."""
        self._own_state = state


async def _ticked(items: AsyncIterator[T], count: Count) -> AsyncIterator[T]:
    ticks = count.counted(repeat(True))
    try:
        async for item in items:
            next(ticks)
            yield item
            # Do not keep the yielded item alive while the next one is made.
            del item
    finally:
        await aclose_items(items)


@dataclass
class Pass(Generic[T_co]):
    """One pass over a pipe, from its first item to its last.

    A pass keeps its position in its fields, never in the locals of a generator, so that
    it can be read between any two items. What is saved of it is in ``state``, of its pipe's class
    ``State``; there is none where the position says it all. A pass without a place can begin only
    at its first item; to resume it, the items before the wanted one are made and dropped.

    A pass is iterated by ``for``, or by ``async for`` where its pipe is async.
    """

    #: Whether it can begin elsewhere than at its first item.
    has_place: ClassVar[bool] = True

    #: Whether a pass holds calls that are running, so that it is busy when it is full.
    holds_calls: ClassVar[bool] = False

    #: Whether its source is read ahead of its reader, in another thread or task.
    runs_ahead: ClassVar[bool] = False

    #: Whether it does nothing on an event loop but wait for its source.
    waits_for_source: ClassVar[bool] = False

    #: Whether it yields one item for each item of its source, so that nobody need count them.
    follows_source: ClassVar[bool] = False

    #: Whether what it takes and yields is counted for it, by its edges.
    counts_edges: ClassVar[bool] = False

    edge: Edge[Any] = field(repr=False)
    state: Any = field(default=None, kw_only=True)
    # No cached_property: that would make all fields slower to read and write.
    _source: Edge[Any] | None = field(default=None, init=False, repr=False)

    @property
    def pipe(self) -> Any:
        """The pipe that this iterates."""
        return self.edge.pipe

    @property
    def source(self) -> Edge[Any]:
        """The edge to what the pipe reads."""
        if self._source is None:
            self._source = self.edge.of(self.reads(), self)
        return self._source

    def reads(self) -> Any:
        """Return what the pipe reads."""
        return self.pipe.source

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[T_co]:
        raise NotImplementedError

    def iter_at(self, positions: list[int]) -> Iterator[T_co]:
        """Iterate the items at these ascending positions, as far as there are any."""
        return picked(iter(self), positions)

    def cursor(self) -> Cursor:
        """Return the position of the pass between two items, as plain data."""
        saved: Cursor = {} if self.state is None else self.state.saved()
        return saved

    def needs(self) -> int | None:
        """Return how many items of the source a resumed pass does not need any more.

        A pass that has read items which it still needs says so here; None is for all that came.
        Asked in the thread that reads the source, and in that which asks for cursors.
        """
        return None

    def needs_of(self, source: Edge[Any]) -> int | None:
        """Return the same of one of several sources."""
        return self.needs()

    def lags(self) -> bool:
        """Whether it may need items that it has read, so that it has to be noted where they are."""
        return type(self).needs is not Pass.needs

    def put_source_cursors(self, into: Cursors) -> None:
        """Add the cursors of the pipes that the pass reads, if it has begun to."""
        self.put_place(self.source, into)

    def put_place(self, source: Edge[Any], into: Cursors) -> None:
        """Add the cursors of a source, from before the first item that a resumed pass needs."""
        if self.lags():
            into.update(source.place(self.needs_of(source)))
        else:
            source.put_cursors(into)

    def fullness(self) -> tuple[int, int]:
        """Return how many items the pass holds or is making, and the limit of that.

        May be called at any time, in any thread. It is 0 and 0 where there is no limit.
        """
        return 0, 0

    def wants_more(self) -> bool:
        """Whether a pass that runs ahead and has room waits for its source, and for nobody else.

        May be called at any time, in any thread.
        """
        return True

    def counts(self) -> tuple[int, int, bool, int]:
        """Return what stats show of it.

        These are the numbers of items it took and yielded, or UNCOUNTED; whether they are the
        same; and the number of errors that it tolerated. May be called in any thread.
        """
        taken, yielded = (getattr(self, name, UNCOUNTED) for name in ("taken", "yielded"))
        return taken, yielded, self.follows_source, getattr(self, "errors", 0)

    def under_way(self) -> Iterable[UnderWay]:
        """Return what the next item waits for: calls that are being made, the most wanted first.

        May be called at any time, in any thread.
        """
        return ()

    def set_paused(self, is_paused: bool) -> None:
        """Stop reading ahead of the consumer, or do so again; from any thread."""
        ahead = None if self._source is None else self._source.ahead
        if ahead is not None:
            ahead.set_paused(is_paused)

    def close_source(self) -> None:
        """Close what the pass keeps open although nobody reads it at present."""

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        """Move to ``cursor``; return how many items to drop from there to reach ``position``.

        The cursor was taken at item ``position`` or earlier; None is the beginning.
        ``cursors`` are for the pipes that the pass reads. Call this before iterating.
        """
        return position


class OwnState:
    """One pass over a user's source that has ``state_dict`` and ``load_state_dict``."""

    def __init__(self, pipe: Any, cursor: Cursor | None) -> None:
        self._pipe = pipe
        self._loaded = cursor
        self._before: int = 0 if cursor is None else cursor["yielded"]
        self._count: int | None = None
        self._has_ended = False
        self._position = 0

    @classmethod
    def of(cls, edge: Edge[Any], start: tuple[int, Cursors] | list[int] | None) -> OwnState:
        """Return a new pass that begins where the edge's reader wants it."""
        position, cursors = start if isinstance(start, tuple) else (0, {})
        state = cls(edge.pipe, cursor_of(edge.pipe, cursors))
        state._position = position
        edge.keep_own_state(state)
        return state

    def items(self) -> Iterator[Any]:
        """Iterate the source."""
        return dropped(self._counted(), self._position - self._before)

    def aitems(self) -> AsyncIterable[Any]:
        """Iterate the source on the running loop."""
        return adropped(self._acounted(), self._position - self._before)

    def cursor(self) -> Cursor:
        """Return the source's state, and how many items it has yielded."""
        if self._count is None:
            # Nothing was yielded yet: this pass is where it began.
            return self._loaded or {}
        # state_dict may return the object that the pipe keeps changing.
        cursor = {"yielded": self._count, "state": copy.deepcopy(self._pipe.state_dict())}
        # Many sources reset themselves at their end, so their state does not say it.
        return {**cursor, "ended": True} if self._has_ended else cursor

    def _counted(self) -> Iterator[Any]:
        # Loaded only here: a pass that never asks for an item must leave the source unchanged.
        self._give_back()
        count, items = self._before, iter(self._pipe)
        try:
            if self._begins_at_end():
                next(items, None)
                return
            for item in items:
                count += 1
                self._count = count
                yield item
            self._has_ended = True
        finally:
            close_items(items)

    async def _acounted(self) -> AsyncIterator[Any]:
        self._give_back()
        count, items = self._before, aiter(self._pipe)
        try:
            if self._begins_at_end():
                await anext(items, None)
                return
            async for item in items:
                count += 1
                self._count = count
                yield item
            self._has_ended = True
        finally:
            await aclose_items(items)

    def _begins_at_end(self) -> bool:
        # Its next pass must not begin there, and it may be at its beginning again.
        return self._loaded is not None and "ended" in self._loaded

    def _give_back(self) -> None:
        """Give the source its own state back."""
        if self._loaded is None:
            return
        try:
            self._pipe.load_state_dict(self._loaded["state"])
        except Exception as error:
            raise SnapshotError(
                f"{type(self._pipe).__qualname__}.load_state_dict refused its state: {error!r}"
            ) from error
