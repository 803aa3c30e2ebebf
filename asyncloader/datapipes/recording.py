"""What became of each item, where the work cannot be repeated.

This file is about a recorded section: from a pipe whose function answers differently each time to
the end of the graph, each item carries the number that it had in the stream before the section.

    source ─▶ Numbering ─▶ the pipes of the section, on numbered items ─▶ Settling ─▶ the loader

A number is settled when the loader has settled the item that was made of it (delivered it, or had
it acknowledged), or when a pipe has left it out, for one reason; ``Ledger`` knows which. A state
is a place of the source at or before the first number that is not settled, and the settled numbers
after that, so that a resumed section works on the others only.

Each of n workers runs a section of its own, on its share: its items 0, 1, 2, … are the numbers
k, n + k, 2n + k, … of the whole. It tells the loader, which has the only ledger that counts, which
of them are in each frame and which it has left out (``Telling``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from types import CoroutineType
from typing import Any

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.call import is_async, unawaited
from asyncloader.datapipes.envelope import Envelope, Key
from asyncloader.datapipes.running.cursor_forms import copied
from asyncloader.datapipes.running.cursors import (
    Cursor,
    Cursors,
    close_items,
    groups_of,
    items_of,
    number_of,
)
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.traits import (
    is_async_pipe,
    is_ours,
    is_replicable,
    keeps_results,
    waits,
)
from asyncloader.datapipes.settled import (
    ItemPart,
    Ledger,
    Reason,
    Recorded,
    Telling,
    elements_of,
)
from asyncloader.errors import LoaderError, SnapshotError
from asyncloader.safe_error_text import repr_of


class NumberedItem(Envelope):
    """An item in a section, with its number, or those of the items that it was made of."""

    __slots__ = ("ledger",)

    def __init__(self, key: Key, item: Any, ledger: Ledger) -> None:
        super().__init__(key, item)
        self.ledger = ledger

    def with_item(self, item: Any) -> NumberedItem:
        """Return another item with the same numbers."""
        return NumberedItem(self.key, item, self.ledger)

    def leave_out(self, reason: str) -> None:
        """Settle its numbers: nothing will be made of it."""
        self.ledger.leave_out(self.key, reason)


# The pipes at both ends, and between -----------------------------------------------------


#: What a stage makes of an item of which it yields nothing.
NOTHING: Any = object()


class Stage(IterDataPipe[Any]):
    """A pipe that a section is made with. It says what it makes of each item, or of all."""

    is_stand_in = True
    times_with = "source"

    makes_again = False

    #: Whether workers may run copies of it, as of the pipe in whose place it is.
    is_copied = True

    def __init__(self, source: Any) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return self.is_copied

    def is_async(self) -> bool:
        return is_async_pipe(self.source)

    def new_pass(self, edge: Edge[Any]) -> StagePass:
        return StagePass(edge)

    def made_of(self, item: Any) -> Any:
        """Return what is yielded for an item, or NOTHING."""
        raise NotImplementedError

    def run(self, source: Edge[Any], state: StagePass) -> Iterator[Any]:
        """Yield what is made of the source's items."""
        items = source.begin()
        try:
            for item in items:
                made = state.made_of(item)
                # Keep no item alive while the next one is made.
                del item
                if made is not NOTHING:
                    yield made
                del made
        finally:
            close_items(items)

    async def groups(self, source: Edge[Any], state: StagePass) -> AsyncGenerator[list[Any], None]:
        """Yield the same in lists, on an event loop."""
        async with aclosing(groups_of(source.abegin())) as groups:
            async for group in groups:
                made = [state.made_of(item) for item in group]
                del group
                made = [each for each in made if each is not NOTHING]
                if made:
                    yield made
                del made


class StagePass(Pass[Any]):
    """One pass over a stage. The place of a section is asked of its ``Numbering`` alone."""

    has_place = False
    waits_for_source = True

    #: How many errors were tolerated.
    errors: int = 0

    def made_of(self, item: Any) -> Any:
        """Return what is yielded for an item, or NOTHING."""
        return self.pipe.made_of(item)

    def __iter__(self) -> Iterator[Any]:
        items: Iterator[Any] = self.pipe.run(self.source, self)
        return items

    def __aiter__(self) -> AsyncIterator[Any]:
        return items_of(self.groups())

    def groups(self) -> AsyncGenerator[list[Any], None]:
        """Yield the items in lists."""
        groups: AsyncGenerator[list[Any], None] = self.pipe.groups(self.source, self)
        return groups


_IN_WORKER = -1


class Numbering(Stage):
    """The beginning of the section that ``first`` begins: it gives each item its number."""

    times_with = "reader"

    def __init__(self, source: Any, first: Any) -> None:
        super().__init__(source)
        # Where the cursor of the section is found: ``first`` has no other.
        self.number = number_of(first)
        self.reader = stage_name(first)
        self.is_copied = is_replicable(first)
        #: Whether it runs in a worker, which tells the loader what becomes of each item.
        self.tells = False
        #: The pipe that keeps the parts it has made, by its number, or None.
        self.keeper: int | None = None

    def tell(self) -> None:
        """Let a worker tell the loader what becomes of each item."""
        # Its place is never saved with those of the pipes.
        self.tells, self.number = True, _IN_WORKER

    def new_pass(self, edge: Edge[Any]) -> NumberingPass:
        return NumberingPass(edge)


@dataclass
class NumberingPass(StagePass):
    """One pass over a ``Numbering``, with the ledger of the items that it has numbered."""

    state: Recorded = field(default_factory=Recorded, kw_only=True)

    def __post_init__(self) -> None:
        self._begin()

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        own = cursors.get(self.pipe.number)
        if own is not None:
            self.state = Recorded.loaded(own)
            self._begin()
        above = {number: each for number, each in cursors.items() if number != self.pipe.number}
        self.source.resume(self._next, above)
        return 0

    def _begin(self) -> None:
        tree, state = self.edge.tree, self.state
        settled, pending = state.numbers(), state.pending()
        self.ledger = (
            Telling(settled, pending, tree.tell)
            if self.pipe.tells
            else Ledger(
                tree.settled_items,
                [settled],
                state.left_out,
                reader=self.pipe.reader,
                pending=pending,
            )
        )
        self._next = state.frontier
        # Numbers that will be read again and are not handed on, and the first after them: those
        # that are settled, and those whose parts were made.
        self._known = state.numbers()
        self._made = {number for pipe, number, _ in pending.kept if pipe == self.pipe.keeper}
        self._known_before = max(settled.end, 1 + max(self._made, default=-1))

    def made_of(self, item: Any) -> Any:
        number, self._next = self._next, self._next + 1
        if number < self._known_before and (number in self._known or number in self._made):
            return NOTHING
        return NumberedItem(number, item, self.ledger)

    def needs(self) -> int:
        return self.ledger.frontier()

    def place(self) -> Cursors:
        """Return where the section and its source are."""
        [settled], left_out, pending = self.ledger.state()
        state = Recorded.of(settled, left_out, pending)
        return {**self.source.place(state.frontier), self.pipe.number: state.saved()}

    def leave_out_rest(self, items: int, reason: str) -> None:
        """Settle what was read and will not come, after the end; so many items were delivered."""
        read = {*range(self.ledger.frontier(), self._next), *self._made}
        self.ledger.leave_out_rest(items, sorted(read), reason)

    def source_place(self) -> tuple[int, Cursors]:
        """Return the lowest number that is not settled, and where the source was then or before."""
        frontier = self.ledger.frontier()
        return frontier, self.source.place(frontier)


class Settling(Stage):
    """The end of a section: it yields what the numbered items carry."""

    def __init__(self, source: Any, numbering: Numbering) -> None:
        super().__init__(source)
        self.numbering = numbering
        # The other end is not read from here.
        self.edges = (source,)

    def new_pass(self, edge: Edge[Any]) -> SettlingPass:
        return SettlingPass(edge)

    def __len__(self) -> int:
        return len(self.source)

    def made_of(self, item: Any) -> Any:
        item.ledger.hand_on(item.key)
        return item.item


class SettlingPass(StagePass):
    """One pass over a ``Settling``: what was settled before, the ledger knows."""

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.edge.tree.set_start(self.pipe.numbering, cursors)
        return 0


class Joining(Stage):
    """Makes one numbered item of a list of them; ``together`` makes its item of theirs.

    Those of a list with fewer than ``least`` are left out.
    """

    def __init__(
        self, source: Any, together: Callable[[list[Any]], Any] = list, least: int = 1
    ) -> None:
        super().__init__(source)
        self.together = together
        self.least = least

    def __len__(self) -> int:
        return len(self.source)

    def made_of(self, items: list[NumberedItem]) -> Any:
        if len(items) < self.least:
            for each in items:
                each.leave_out(Reason.DROP_LAST)
            return NOTHING
        whole = self.together([each.item for each in items])
        return NumberedItem(joined(each.key for each in items), whole, items[0].ledger)


def joined(keys: Iterable[Key]) -> Key:
    """Return the numbers of several items as those of one."""
    return tuple(element for key in keys for element in elements_of(key))


class Around(Stage):
    """A stage that runs another pipe on what is in the numbered items."""

    times_with = ""

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe.source)
        self.pipe = pipe
        self.edges = (pipe.source,)

    def is_async(self) -> bool:
        return False


class Expanding(Around):
    """Runs an ``Expander`` on numbered items: each part has its item's number, and its own.

    Not on items that were made of several: those will be put together in another way. Where an
    item's parts would be others the next time, it keeps them: all are made at once, and a run that
    resumes yields those that are not settled, without the item.
    """

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        self.keeps_parts = False
        #: Where the section begins: its pass has the ledger.
        self.numbering: Any = None

    def waits(self) -> bool:
        return waits(self.pipe)

    def run(self, source: Edge[Any], state: StagePass) -> Iterator[Any]:
        items = source.begin()
        has_begun = not self.keeps_parts
        try:
            with self.pipe.expanding(state) as parts_in:
                for numbered in items:
                    if not has_begun:
                        # Before the first item there may be no ledger.
                        has_begun = True
                        yield from self._kept(numbered.ledger)
                    yield from self._expanded(numbered, parts_in, state)
            if not has_begun:
                yield from self._kept(source.tree.latest_pass(self.numbering).ledger)
        finally:
            close_items(items)

    def _kept(self, ledger: Ledger) -> Iterator[NumberedItem]:
        """Yield what is not settled of the parts that an earlier run has made."""
        for number, parts in ledger.kept_parts(number_of(self)):
            if not isinstance(parts, list):
                raise SnapshotError(
                    f"the state does not fit the graph: what it kept of item {number} are no parts"
                    f" that {stage_name(self)} made, but {repr_of(parts)}"
                )
            made = yield from self._numbered(number, iter(parts), 0, ledger)
            ledger.end_parts(number, made)

    def _expanded(
        self,
        numbered: NumberedItem,
        parts_in: Callable[[Any, int], Iterator[Any]],
        state: StagePass,
    ) -> Iterator[NumberedItem]:
        number, ledger = numbered.key, numbered.ledger
        assert isinstance(number, int)
        own = number_of(self)
        # Those of earlier runs count as well.
        state.errors = errors = state.errors or ledger.failed_before(own)
        known = ledger.settled_parts(number)
        first = next(index for index in count() if index not in known)
        parts = parts_in(numbered.item, first)
        kept = list(parts) if self.keeps_parts else []
        if is_failure := state.errors > errors:
            ledger.note_failure(own, number)
        if self.keeps_parts:
            if kept and own is not None:
                ledger.keep(own, number, kept)
            parts = iter(kept)
        made = yield from self._numbered(number, parts, first, ledger)
        if state.errors > errors and not is_failure:
            ledger.note_failure(own, number)
        if made:
            ledger.end_parts(number, made)
        else:
            is_skipped = state.errors > errors and self.pipe.tolerance.leaves_out
            ledger.leave_out(number, Reason.ERROR if is_skipped else Reason.EMPTY)

    def _numbered(
        self, number: int, parts: Iterator[Any], first: int, ledger: Ledger
    ) -> Generator[NumberedItem, None, int]:
        """Yield an item's parts from the first on, but for those that are settled; count all."""
        known = ledger.settled_parts(number)
        at = first - 1
        try:
            for at, part in enumerate(parts, first):
                if at not in known:
                    yield NumberedItem((ItemPart(number, at),), part, ledger)
                # Keep no part alive while the next one is made.
                del part
        finally:
            close_items(parts)
        if at < max(known, default=-1):
            raise SnapshotError(
                f"the state does not fit the data: part {max(known)} of item {number} was settled,"
                f" but {stage_name(self)} makes only {at + 1} parts of it now; its functions"
                " have to repeat"
            )
        return at + 1


class Within(Around):
    """Runs a one-to-one pipe on what is in the numbered items."""

    def __len__(self) -> int:
        return len(self.pipe)

    def run(self, source: Edge[Any], state: StagePass) -> Iterator[Any]:
        waiting: deque[NumberedItem] = deque()
        pipe, opened = self.pipe, _Opened(source, waiting)
        if is_ours(pipe):
            results = pipe.run(opened, None)
        else:
            # It reads its source as it likes.
            pipe.source = opened
            results = iter(pipe)
        try:
            for result in results:
                if not waiting:
                    raise self._miscounted("more items than it reads")
                yield waiting.popleft().with_item(result)
                # Keep no item alive while the next one is made.
                del result
            if waiting:
                raise self._miscounted("fewer items than it reads")
        finally:
            close_items(results)

    def _miscounted(self, what: str) -> LoaderError:
        return LoaderError(
            f"{stage_name(self.pipe)} derives from OneToOne and yields {what}, so nobody knows what"
            " became of which: yield one item for each, or use filter and flatmap"
        )


class _Opened:
    """A run of numbered items, for a pipe that reads what is in them."""

    def __init__(self, source: Edge[Any], waiting: deque[NumberedItem]) -> None:
        self._source = source
        self._waiting = waiting
        self.at_once = 1

    def first_position(self) -> int:
        """Return how many items come before the first; of a section nobody knows."""
        return 0

    def __iter__(self) -> Iterator[Any]:
        items = self._source.begin()
        try:
            for numbered in items:
                self._waiting.append(numbered)
                yield numbered.item
        finally:
            close_items(items)


# How pipes work on numbered items ---------------------------------------------------------


def on_numbered(function: Callable[[Any], Any], pipe: Any) -> Callable[[NumberedItem], Any]:
    """Return a function of numbered items that calls one with what they carry.

    If the pipe is to keep its results, it is not called for items whose result was kept.
    """
    number = number_of(pipe)
    if keeps_results(pipe) and number is not None:
        return _keeping(function, pipe, number)

    def called(numbered: NumberedItem) -> NumberedItem:
        result = function(numbered.item)
        if result.__class__ is CoroutineType:
            raise unawaited(pipe, result)
        return numbered.with_item(result)

    async def awaited(numbered: NumberedItem) -> NumberedItem:
        return numbered.with_item(await function(numbered.item))

    return awaited if is_async(function) else called


def _keeping(function: Callable[[Any], Any], pipe: Any, own: int) -> Callable[[NumberedItem], Any]:
    def kept_for(numbered: NumberedItem) -> dict[int, Any]:
        # Of what is put together nothing is kept.
        assert isinstance(numbered.key, int)
        return numbered.ledger.kept_results(numbered.key)

    def keep(numbered: NumberedItem, result: Any) -> NumberedItem:
        assert isinstance(numbered.key, int)
        # What follows may change its own.
        numbered.ledger.keep(own, numbered.key, copied(result))
        return numbered.with_item(result)

    def called(numbered: NumberedItem) -> NumberedItem:
        kept = kept_for(numbered)
        if own in kept:
            return numbered.with_item(kept[own])
        result = function(numbered.item)
        if result.__class__ is CoroutineType:
            raise unawaited(pipe, result)
        return keep(numbered, result)

    async def awaited(numbered: NumberedItem) -> NumberedItem:
        kept = kept_for(numbered)
        if own in kept:
            return numbered.with_item(kept[own])
        return keep(numbered, await function(numbered.item))

    return awaited if is_async(function) else called


def of_numbered(function: Callable[[Any], Any]) -> Callable[[NumberedItem], Any]:
    """Return a function of numbered items that answers about what they carry."""

    def called(numbered: NumberedItem) -> Any:
        return function(numbered.item)

    async def awaited(numbered: NumberedItem) -> Any:
        return await function(numbered.item)

    return awaited if is_async(function) else called
