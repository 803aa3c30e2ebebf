"""Base classes of pipes and passes.

``Applier`` makes at most one result of each item, ``Expansion`` and ``Expander`` several items
out of one. A ``LaggingPass`` holds items after it has read them, and a ``Rereader`` reads such
items again for a resumed pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, ClassVar, Generic, TypeVar

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.call import blame, calling, unawaited
from asyncloader.datapipes.cursor_forms import (
    COUNT,
    Form,
    FormOf,
    Rule,
    counts,
    fields,
    list_of,
    no_cursor,
    refuse,
    sieve,
    truth,
)
from asyncloader.datapipes.cursors import Cursor, Cursors, close_items, dropped
from asyncloader.datapipes.marks import Marks
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.one_to_one import OneToOne, OneToOnePass
from asyncloader.datapipes.run import Pass, Run, picks
from asyncloader.datapipes.sources import iterable_source
from asyncloader.datapipes.tolerance import SKIPPED, OnError, Tolerance, stand_in
from asyncloader.errors import SnapshotError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Held(Generic[T]):
    """An item, its number in the source, and the source's cursors before it."""

    number: int
    item: T
    before: Cursors


class Rereader(Generic[T]):
    """Reads the items that were held at a cursor, then the source from number ``taken`` on."""

    def __init__(self, source: Run[T], were_held: list[int], taken: int, cursors: Cursors) -> None:
        """Begin a pass over ``source``.

        ``were_held`` are the ascending numbers of the items to hold again, and ``cursors``
        are from before the first of them.
        """
        again, self._items = begin_with(source, were_held, taken, cursors)
        self.again = [
            Held(number, item, cursors) for number, item in zip(were_held, again, strict=True)
        ]
        self.taken = taken
        # Each held item keeps the cursors it needs, so the marks need not.
        self._marks = Marks(source.put_cursors, lambda: self.taken)
        self._marks.restart(taken, cursors)

    def __iter__(self) -> Iterator[Held[T]]:
        return self

    def __next__(self) -> Held[T]:
        item = next(self._items)
        held = Held(self.taken, item, self._marks.at(self.taken))
        self.taken += 1
        self._marks.passed(self.taken)
        return held

    def close(self) -> None:
        """Close the source."""
        close_items(self._items)


def begin_with(
    source: Run[T], held: list[int], taken: int, cursors: Cursors
) -> tuple[list[T], Iterator[T]]:
    """Return the items at the ascending positions ``held``, and what follows the first ``taken``.

    If the source can pick items, only the held ones are made again; otherwise all items from
    the first held one on, and ``cursors`` must be from before that.
    """
    if not held:
        if taken:
            source.resume(taken, cursors)
        return [], source.begin()
    if picks(source.pipe):
        source.pick(held)
        items = list(source.begin())
        _check_whole(source, held, items)
        source.resume(taken, cursors)
        return items, source.begin()
    first = held[0]
    source.resume(first, cursors)
    following, wanted = source.begin(), set(held)
    again = zip(range(first, taken), following, strict=False)
    items = [item for position, item in again if position in wanted]
    _check_whole(source, held, items)
    return items, following


def _check_whole(source: Run[T], held: list[int], items: list[T]) -> None:
    if len(items) < len(held):
        raise SnapshotError(
            f"the state does not fit the data: item {held[len(items)]} of"
            f" {stage_name(source.pipe)} is missing, which was held when the state was taken"
        )


@contextlib.contextmanager
def closing_items(iterator: Iterator[Any]) -> Iterator[None]:
    """Close an iterator at the end, if it can be closed."""
    try:
        yield
    finally:
        close_items(iterator)


def add_cursors(cursors: Cursors, into: Cursors) -> None:
    """Add the cursors of pipes that have none there yet.

    A source's first cursors are those of a whole graph: a pipe that has moved
    since then has added its own already.
    """
    for place, cursor in cursors.items():
        into.setdefault(place, cursor)


def runs_of(numbers: Iterable[int]) -> list[int]:
    """Return ascending numbers as a flat list: the first of each run, and the run's length.

    >>> runs_of([3, 4, 5, 9])
    [3, 3, 9, 1]
    """
    runs: list[int] = []
    for number in numbers:
        if runs and runs[-2] + runs[-1] == number:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs


def runs_form(most: int) -> Form:
    """Return the form of a result of ``runs_of`` for at most ``most`` numbers."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        list_of(COUNT)(value, where, form_of)
        firsts, lengths = value[::2], value[1::2]
        if len(firsts) != len(lengths) or sum(lengths) > most:
            refuse(where, f"runs of at most {most} numbers", value)
        end = 0
        for first, length in zip(firsts, lengths, strict=True):
            if first < end or not length:
                refuse(where, "runs of ascending numbers", value)
            end = first + length

    return check


def numbers_in(runs: list[int]) -> list[int]:
    """Return the numbers that ``runs_of`` has put into runs.

    >>> numbers_in([3, 3, 9, 1])
    [3, 4, 5, 9]
    """
    pairs: Any = zip(runs[::2], runs[1::2], strict=True)
    return [number for first, length in pairs for number in range(first, first + length)]


#: The form of a LaggingPass's cursors.
LAGGING = fields(counts("taken", "yielded"))


@dataclass
class LaggingPass(Pass[T]):
    """One pass that has finished with ``taken`` items and holds the items after them."""

    marks: ClassVar[tuple[str, ...]] = ("taken", "yielded")

    taken: int = field(default=0, kw_only=True)
    yielded: int = field(default=0, kw_only=True)
    above: Marks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.above = Marks(self.source.put_cursors, lambda: self.taken)

    def put_source_cursors(self, into: Cursors) -> None:
        into.update(self.above.at(self.taken))

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        behind = super().resume_at(position, cursor, cursors)
        self.above.restart(self.taken, cursors)
        return behind


class Applier(OneToOne, IterDataPipe[T]):
    """A pipe that yields a function's result for each item, and may skip items that fail."""

    makes_again = False

    def __init__(
        self, datapipe: Iterable[Any], *, on_error: OnError, max_errors: int | None
    ) -> None:
        self.source = iterable_source(datapipe)
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)

    def function(self) -> Callable[[Any], Any]:
        """Return the function to call with each item."""
        raise NotImplementedError

    def new_pass(self, run: Run[Any]) -> Pass[T]:
        # With one result for each item no counts are needed; with skipped items they are.
        return OneToOnePass(run) if self.tolerance.is_strict else ApplyPass(run)

    def cursor_form(self) -> Form:
        return no_cursor if self.tolerance.is_strict else sieve(tolerates=True)

    def picks(self) -> bool:
        return self.tolerance.is_strict and super().picks()

    def results(self, source: Run[Any]) -> Iterator[T]:
        with calling(self.function(), self) as apply:
            for item in source.begin():
                # The body of answer_of: a call for each item would be slower.
                try:
                    result = apply(item)
                except BaseException as error:
                    blame(error, self)
                    raise
                if result.__class__ is CoroutineType:
                    raise unawaited(self, result)
                yield result
                # Free their memory now: it is in the CPU cache, and the next item can use it.
                del item, result


@dataclass
class ApplyPass(Pass[T]):
    """One pass over an Applier that tolerates errors and counts them."""

    marks = ("taken", "yielded", "errors")

    taken: int = 0
    yielded: int = 0
    errors: int = 0

    def __iter__(self) -> Iterator[T]:
        with calling(self.pipe.function(), self.pipe) as apply:
            for item in self.source.begin():
                try:
                    result = apply(item)
                except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
                    result = stand_in(error, item, self)
                if result.__class__ is CoroutineType:
                    raise unawaited(self.pipe, result)
                self.taken += 1
                if result is not SKIPPED:
                    self.yielded += 1
                    yield result
                # Free their memory now: it is in the CPU cache, and the next item can use it.
                del item, result


#: Returned after the last part.
END: Any = object()


def parts_of(running: Any, expand: Callable[[Any], Any], item: Any) -> Iterator[Any]:
    """Return the parts of an item, in a pass that has a ``pipe`` and counts its ``errors``."""
    try:
        result = expand(item)
        # ``iter`` may run the user's code too.
        parts = iter(result) if isinstance(result, Iterable) else None
    except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
        return _instead(error, item, running)
    if parts is None:
        raise _no_parts(result, running.pipe)
    return parts if running.pipe.tolerance.is_strict else _tolerated(parts, item, running)


def next_part(parts: Iterator[Any], pipe: object) -> Any:
    """Return the next part, or END. The user's code runs to make it."""
    try:
        return next(parts, END)
    except BaseException as error:
        blame(error, pipe)
        raise


def pass_over(parts: Iterator[Any], count: int, pipe: object) -> None:
    """Make the next ``count`` parts and drop them; fewer if there are not so many."""
    for _ in range(count):
        if next_part(parts, pipe) is END:
            return


def _tolerated(parts: Iterator[Any], item: Any, running: Any) -> Iterator[Any]:
    with closing_items(parts):
        while True:
            try:
                part = next(parts, END)
            except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
                yield from _instead(error, item, running)
                return
            if part is END:
                return
            yield part
            # Do not keep the yielded part alive while the next one is made.
            del part


def _instead(error: BaseException, item: Any, running: Any) -> Iterator[Any]:
    answer = stand_in(error, item, running)
    if answer is SKIPPED:
        return iter(())
    if not isinstance(answer, Iterable):
        raise _no_parts(answer, running.pipe)
    return iter(answer)


def _no_parts(result: Any, pipe: object) -> TypeError:
    if result.__class__ is CoroutineType:
        return unawaited(pipe, result)
    return TypeError(
        f"fn must return something to iterate, got {type(result).__name__}"
        f" from the function of {pipe!r}"
    )


_INSIDE: Rule = (
    "a pass is inside an item that it has taken, and its offset counts parts of that item",
    lambda cursor: (cursor["taken"] > 0) if cursor["inside"] else not cursor["offset"],
)
_FIELDS = {**counts("taken", "offset", "before"), "inside": truth}

#: The forms of an Expansion's cursors, and of a TolerantExpansion's.
EXPANSION = fields(_FIELDS, _INSIDE)
TOLERANT_EXPANSION = fields(_FIELDS | counts("errors_before"), _INSIDE)


def yielded_at(cursor: Cursor) -> int:
    """Return how many parts were yielded at a cursor of an Expansion."""
    return int(cursor["before"] + cursor["offset"])


@dataclass
class Expansion(Pass[T]):
    """One pass over a pipe that yields several items for each item that it takes.

    ``taken`` counts the items taken. While the pass is ``inside`` the last of them,
    ``offset`` counts the parts of it that were yielded. To resume there, that item is
    taken again.
    """

    marks: ClassVar[tuple[str, ...]] = ("taken", "inside", "offset", "before")

    taken: int = field(default=0, kw_only=True)
    inside: bool = field(default=False, kw_only=True)
    offset: int = field(default=0, kw_only=True)
    #: How many parts of earlier items were yielded.
    before: int = field(default=0, kw_only=True)
    above: Marks = field(init=False, repr=False)
    _known: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source
        self.above = Marks(source.put_cursors, lambda: self.taken - 1, source.first_cursors())

    def begin(self) -> Iterator[Any]:
        """Yield the source's items, counting them."""
        for item in self.source.begin():
            self.taken += 1
            self.inside = True
            self.offset = 0
            yield item

    def known(self) -> int:
        """Return how many parts of the item that was taken last were yielded already."""
        self.offset, self._known = self._known, 0
        return self.offset

    def rest(self, parts: Iterator[T]) -> Iterator[T]:
        """Return the parts of an item without those that were yielded already."""
        return dropped(parts, self.known())

    def finish(self) -> None:
        """Note that all of the item's parts were yielded."""
        self.before += self.offset
        self.offset = 0
        self.inside = False
        self.above.passed(self.taken)

    def put_source_cursors(self, into: Cursors) -> None:
        into.update(self.above.at(self.taken - self.inside))

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        self.taken = cursor["taken"] - cursor["inside"]
        self._known = cursor["offset"]
        self.before = cursor["before"]
        self.above.restart(self.taken, cursors)
        self.source.resume(self.taken, cursors)
        return position - self.before - self._known


@dataclass
class TolerantExpansion(Expansion[T]):
    """An expansion that counts the items that could not be expanded, or not to their end."""

    marks: ClassVar[tuple[str, ...]] = (*Expansion.marks, "errors_before")

    errors: int = field(default=0, kw_only=True)
    #: How many of the errors belong to items before the last.
    errors_before: int = field(default=0, kw_only=True)

    def finish(self) -> None:
        super().finish()
        self.errors_before = self.errors

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is not None:
            self.errors = self.errors_before = cursor["errors_before"]
        return super().resume_at(position, cursor, cursors)


class Expander(IterDataPipe[T]):
    """A pipe that yields the parts of each item of its source, one item after another."""

    source: Iterable[Any]

    #: What happens to an item that cannot be expanded, or not to its end.
    tolerance = Tolerance()

    def parts(self, item: Any, skip: int = 0) -> Generator[T, None, None]:
        """Yield the parts of an item in order, without the first ``skip``.

        It closes what it opens, also when it is closed early.
        """
        raise NotImplementedError

    def new_pass(self, run: Run[Any]) -> ExpansionPass[T]:
        return ExpansionPass(run)

    def cursor_form(self) -> Form:
        return TOLERANT_EXPANSION

    def yielded_at(self, cursor: Cursor) -> int:
        return yielded_at(cursor)


class TolerantExpander(Expander[T]):
    """An expander that can skip or replace items that fail."""

    def __init__(
        self, datapipe: Iterable[Any], *, on_error: OnError, max_errors: int | None
    ) -> None:
        self.source = iterable_source(datapipe)
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)


@dataclass
class ExpansionPass(TolerantExpansion[T]):
    """One pass over an Expander. If it resumes inside an item, it skips the yielded parts."""

    def __iter__(self) -> Iterator[T]:
        for item in self.begin():
            parts = self._parts(item)
            with closing_items(parts):
                del item
                for part in parts:
                    self.offset += 1
                    yield part
                    # Do not keep the yielded part alive while the next one is made.
                    del part
            self.finish()

    def _parts(self, item: Any) -> Iterator[T]:
        known = self.known()
        if self.pipe.tolerance.is_strict:
            parts: Iterator[T] = self.pipe.parts(item, known)
            return parts
        # The replacement for the rest of an item is made again only if the item fails again.
        parts = parts_of(self, self.pipe.parts, item)
        pass_over(parts, known, self.pipe)
        return parts
