"""Base classes of pipes.

This file is about ``Pipe``, a class with one method, ``run``, and a ``State`` that says where a run
is; and about the pass that is the same for all of them.
``Applier`` makes at most one result of each item, and ``Expander`` several items out of one.
``Finished`` is the place of a pipe that reads what it holds again.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import CoroutineType
from typing import Any, ClassVar, TypeVar

from asyncloader.arguments import kind_name
from asyncloader.datapipes.base import IterDataPipe, is_pipe
from asyncloader.datapipes.call import blame, calling, unawaited
from asyncloader.datapipes.edges import (
    EndedBranches,
    at_beginning,
    beginning,
    edges_of,
    resume_one,
)
from asyncloader.datapipes.one_to_one import OneToOne, OneToOnePass
from asyncloader.datapipes.recording import on_numbered
from asyncloader.datapipes.running.cursor_forms import (
    COUNT,
    Count,
    Fields,
    Form,
    FormOf,
    Sieved,
    State,
    list_of,
    refuse,
)
from asyncloader.datapipes.running.cursors import Cursor, Cursors, close_items
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.traits import setting
from asyncloader.datapipes.running.watch.watching import UNCOUNTED
from asyncloader.datapipes.sources import iterable_source
from asyncloader.datapipes.tolerance import (
    SKIPPED,
    OnError,
    RecordedTolerance,
    Tolerance,
    stand_in,
)
from asyncloader.errors import SnapshotError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: In the class whose attribute has its name.
_Taken = State


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


class Pipe(IterDataPipe[T_co]):
    """A pipe that remembers items, or something about them, and resumes exactly where it was.

    Write ``run``, a generator that reads ``source``, which is the edge to ``self.source``, by
    ``for``; or ``arun``, an async generator that reads it by ``async for``. What it remembers from
    one item to the next is in ``state``, an object of the class ``State``, and nowhere else. A pipe
    with ``self.sources`` is given a tuple of edges, and one with neither is given None.

    A run begins where its state says: at item ``state.taken`` of the source, in a new epoch at 0.
    ``source.again(positions)`` gives items before that again.

    >>> class EveryOther(Pipe):
    ...     def __init__(self, source):
    ...         self.source = source
    ...     def run(self, source, state):
    ...         for number, item in enumerate(source, state.taken):
    ...             if number % 2 == 0:
    ...                 yield item
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(EveryOther(IterableWrapper("abcde")))
    ['a', 'c', 'e']
    """

    State: type[Fields] | None = _Taken

    #: Whether it may end when it has taken an item of some of several sources, which it drops.
    ends_in_a_round: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_class(cls)

    def run(self, source: Any, state: Any) -> Iterator[T_co]:
        """Read the source from where the state says, and yield what is made of it."""
        raise NotImplementedError(f"{type(self).__qualname__} must define run or arun")

    def arun(self, source: Any, state: Any) -> AsyncIterator[T_co]:
        """Do the same as ``run`` on an event loop."""
        raise NotImplementedError

    def start(self, position: int) -> tuple[int, int]:
        """Return where to begin to yield the items from a position on, without a ``State``.

        That is how many items of the source come before the first that is read, and how many
        results are dropped then.
        """
        raise NotImplementedError

    def new_state(self) -> Any:
        """Return the state with which a run begins at the first item."""
        return None if self.State is None else self.State()

    def new_pass(self, edge: Edge[Any]) -> Pass[T_co]:
        reads = setting(self, "source", None)
        if reads is not None and not is_pipe(reads):
            raise TypeError(
                f"the source of {self!r} must be a pipe, got {kind_name(reads)}; wrap it:"
                " IterableWrapper(...)"
            )
        several = setting(self, "sources", None)
        kind = PipePass if several is None else SeveralPass
        return kind(edge, state=self.new_state())

    def is_async(self) -> bool:
        return type(self).arun is not Pipe.arun or super().is_async()


def _check_class(cls: type[Pipe[Any]]) -> None:
    """Raise TypeError for a class that could not be run."""
    own = vars(cls)
    run, arun, kind = own.get("run"), own.get("arun"), own.get("State")
    name = cls.__qualname__
    if inspect.isasyncgenfunction(run) or inspect.iscoroutinefunction(run):
        raise TypeError(f"{name}.run is async; name it arun, and read the source by `async for`")
    if arun is not None and not inspect.isasyncgenfunction(arun):
        raise TypeError(
            f"{name}.arun is no async generator: write `async def` and yield the items; if it"
            " awaits nothing, write run instead"
        )
    if run is not None and arun is not None:
        raise TypeError(f"{name} has run and arun; define one of the two, both forms work then")
    if "__iter__" in own or "__aiter__" in own:
        raise TypeError(
            f"{name} is a Pipe, which is iterated by its run: rename __iter__ to run(self, source,"
            " state), or derive from IterDataPipe"
        )
    is_other = isinstance(kind, type) and not issubclass(kind, Fields)
    if is_other or not isinstance(kind, type | property | None):
        raise TypeError(f"{name}.State must be a class that derives from asyncloader.State")


@dataclass
class PipePass(Pass[T]):
    """One pass over a Pipe, which is run on the edge to its source.

    Its place is its state. What it takes and yields is counted by the edges.
    """

    counts_edges = True

    @property
    def taken(self) -> int:
        """How many items of the source have come."""
        return self.source.count()

    @property
    def yielded(self) -> int:
        """How many items were yielded."""
        return self.edge.made()

    def __iter__(self) -> Iterator[T]:
        items: Iterator[T] = self.pipe.run(self.reading(), self.state)
        if not hasattr(items, "__next__"):
            raise TypeError(
                f"{type(self.pipe).__qualname__}.run must be a generator: it yields its items one"
                f" by one, and returned {type(items).__name__}"
            )
        return items

    def __aiter__(self) -> AsyncIterator[T]:
        items: AsyncIterator[T] = self.pipe.arun(self.reading(), self.state)
        return items

    def reading(self) -> Any:
        """Return what the pipe is given to read."""
        if self.reads() is not None:
            return self.source
        if edges_of(self.pipe):
            raise TypeError(
                f"{type(self.pipe).__qualname__} reads a pipe, and run does not know which: keep"
                " it in self.source, or several of them in self.sources"
            )
        return None

    def reads(self) -> Any:
        return setting(self.pipe, "source", None)

    @property
    def errors(self) -> int:
        """How many errors were tolerated."""
        return getattr(self.state, "errors", 0)

    def needs(self) -> int | None:
        taken = self.source.count()
        if self.state is None:
            needed: int = self.pipe.start(self.edge.made())[0]
        else:
            needed = self.state.needs(taken)
            if not isinstance(needed, int):
                raise TypeError(
                    f"needs of {type(self.state).__qualname__} must return the position of an item,"
                    f" got {kind_name(needed)}: remember positions of items, and not the items"
                )
        return needed if needed < taken else None

    def lags(self) -> bool:
        if self.state is None:
            return bool(self.pipe.start(1)[1])
        return bool(self.state.lags())

    def cursor(self) -> Cursor:
        # One that has not moved is where it began, and its state says so.
        if self.state is not None and self.has_moved():
            self.fill()
        return super().cursor()

    def has_moved(self) -> bool:
        """Whether it has taken or yielded anything."""
        return self.edge.has_moved() or self.source.has_moved()

    def fill(self) -> None:
        """Write into the state what it does not say yet; it is saved next."""
        self.state.fill(self.source.count(), self.edge.made())

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if self.state is None:
            taken, behind = self.pipe.start(position)
            self.resume_sources(taken, cursors)
            return int(behind)
        if cursor is None:
            if began_with := at_beginning(self.pipe, cursors):
                self.resume_sources(0, began_with)
            return position
        self.state.load(cursor)
        self.pipe.begin_at(self.state)
        self.resume_sources(None, cursors)
        return position - int(self.state.position())

    def resume_sources(self, taken: int | None, cursors: Cursors) -> None:
        """Resume what the pipe reads, behind so many items, or where its state says."""
        if self.reads() is not None:
            self.source.resume(self.state.first() if taken is None else taken, cursors)


@dataclass
class SeveralPass(PipePass[T]):
    """One pass over a Pipe that reads several sources, each as far as it likes."""

    sources: tuple[Edge[Any], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.sources = tuple(self.edge.of(each, self) for each in self.pipe.sources)
        # The sources' cursors when this pass began or resumed. A source that was not read since
        # may have none of its own.
        self._began_with: list[Cursors] = [{} for _ in self.sources]
        self._ended = EndedBranches()
        for source in self.sources:
            source.note_end = partial(self._ended.note, source, is_read_again=True)

    def reading(self) -> Any:
        # They have not begun yet.
        self._began_with = [beginning(source) for source in self.sources]
        return self.sources

    def lags(self) -> bool:
        # At its end some sources are one item further than it needs.
        return self.pipe.ends_in_a_round or super().lags()

    def has_moved(self) -> bool:
        return self.edge.has_moved() or any(source.has_moved() for source in self.sources)

    def taken_each(self) -> list[int]:
        """Return how many items of each source have come."""
        return [source.count() for source in self.sources]

    def counts(self) -> tuple[int, int, bool, int]:
        return UNCOUNTED, self.edge.made(), False, self.errors

    def fill(self) -> None:
        self.state.fill_each(self.taken_each(), self.edge.made())

    def needs_of(self, source: Edge[Any]) -> int | None:
        if self.state is None:
            needed = self.pipe.start(self.edge.made())[0]
        else:
            needed = self.state.needs_each(self.taken_each())[self.sources.index(source)]
        return needed if needed < source.count() else None

    def put_source_cursors(self, into: Cursors) -> None:
        behind: list[tuple[Edge[Any], int]] = []
        for source, began_with in zip(self.sources, self._began_with, strict=True):
            needed = self.needs_of(source) if self.lags() else None
            if not source.has_moved():
                into.update(began_with)
            elif needed is None:
                source.put_cursors(into)
            else:
                behind.append((source, needed))
        # Where a source lags, what it noted may have older cursors of what others read.
        for source, needed in behind:
            add_cursors(source.place(needed), into)
        self._ended.put(into, self.sources)

    def resume_sources(self, taken: int | None, cursors: Cursors) -> None:
        each = self.state.first_each() if taken is None else [taken] * len(self.sources)
        if len(each) != len(self.sources):
            raise SnapshotError(
                f"the state contradicts itself: {stage_name(self.pipe)} reads {len(self.sources)}"
                f" sources, and had taken {each} items of them"
            )
        for source, count in zip(self.sources, each, strict=True):
            resume_one(source, count, cursors)


class Finished(State):
    """The place of a pipe that has finished with ``taken`` items, and holds what it read since.

    It reads that again when it resumes, and counts by itself.
    """

    def needs(self, taken: int) -> int:
        return self.taken

    def fill(self, taken: int, yielded: int) -> None:
        pass


class Applier(OneToOne, Pipe[T]):
    """A pipe that yields a function's result for each item, and may skip items that fail."""

    makes_again = False

    #: Whether its items are numbered.
    _is_in_section = False

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

    def in_section(self) -> Any:
        self._is_in_section = True
        self.tolerance = RecordedTolerance.of(self.tolerance)
        return self

    def _applied(self) -> Callable[[Any], Any]:
        function = self.function()
        return on_numbered(function, self) if self._is_in_section else function

    def new_pass(self, edge: Edge[Any]) -> Pass[T]:
        # With one result for each item no counts are needed; with skipped items they are.
        return OneToOnePass(edge) if self.tolerance.is_strict else Pipe.new_pass(self, edge)

    @property
    def State(self) -> type[Sieved] | None:  # type: ignore[override]
        return None if self.tolerance.is_strict else Sieved

    def picks(self) -> bool:
        return self.tolerance.is_strict and super().picks()

    def run(self, source: Edge[Any], state: Sieved | None) -> Iterator[T]:
        return self._results(source) if state is None else self._passed(source, state)

    def _results(self, source: Edge[Any]) -> Iterator[T]:
        with calling(self._applied(), self) as apply:
            for item in source:
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

    def _passed(self, source: Edge[Any], state: Sieved) -> Iterator[T]:
        """Yield the results but for those that are left out."""
        with calling(self._applied(), self) as apply:
            for item in source:
                try:
                    result = apply(item)
                except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
                    result = stand_in(error, item, self, state)
                if result.__class__ is CoroutineType:
                    raise unawaited(self, result)
                if result is not SKIPPED:
                    yield result
                # Free their memory now: it is in the CPU cache, and the next item can use it.
                del item, result


#: Returned after the last part.
END: Any = object()


def parts_of(pipe: Any, state: Any, expand: Callable[[Any], Any], item: Any) -> Iterator[Any]:
    """Return the parts that a pipe makes of an item; errors are counted in ``state.errors``."""
    try:
        result = expand(item)
        # ``iter`` may run the user's code too.
        is_iterable = result.__class__ in _LISTS or isinstance(result, Iterable)
        parts = iter(result) if is_iterable else None
    except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
        return _instead(error, item, pipe, state)
    if parts is None:
        raise _no_parts(result, pipe)
    return parts if pipe.tolerance.is_strict else _tolerated(parts, item, pipe, state)


def users_parts(
    pipe: Any, state: Any, expand: Callable[[Any], Any], item: Any, skip: int = 0
) -> Iterator[Any]:
    """Return the parts that a user's function makes of an item, without the first ``skip``.

    The function's errors name the pipe.
    """
    parts = parts_of(pipe, state, expand, item)
    if type(parts) not in _WITHOUT_CODE:
        parts = _blamed(parts, pipe)
    return after(parts, skip) if skip else parts


#: To ask a class whether it is Iterable takes longer than to make an iterator.
_LISTS = frozenset({list, tuple})

#: No code of a user's runs in these.
_WITHOUT_CODE = frozenset(map(type, (iter([]), iter(()))))


def _blamed(parts: Iterator[Any], pipe: object) -> Iterator[Any]:
    is_making = True
    try:
        for part in parts:
            is_making = False
            yield part
            is_making = True
            # Do not keep the yielded part alive while the next one is made.
            del part
    except BaseException as error:
        # Otherwise this is being closed.
        if is_making:
            blame(error, pipe)
        raise


def after(items: Iterable[T], count: int) -> Iterator[T]:
    """Return an iterator that has left out the first ``count`` items."""
    rest = iter(items)
    next(islice(rest, count, count), None)
    return rest


def _tolerated(parts: Iterator[Any], item: Any, pipe: Any, state: Any) -> Iterator[Any]:
    with closing_items(parts):
        while True:
            try:
                part = next(parts, END)
            except BaseException as error:  # noqa: BLE001 - user code ran; the pipe says what then
                yield from _instead(error, item, pipe, state)
                return
            if part is END:
                return
            yield part
            # Do not keep the yielded part alive while the next one is made.
            del part


def _instead(error: BaseException, item: Any, pipe: Any, state: Any) -> Iterator[Any]:
    answer = stand_in(error, item, pipe, state)
    if answer is SKIPPED:
        return iter(())
    if not isinstance(answer, Iterable):
        raise _no_parts(answer, pipe)
    return iter(answer)


def _no_parts(result: Any, pipe: object) -> TypeError:
    if result.__class__ is CoroutineType:
        return unawaited(pipe, result)
    return TypeError(
        f"fn must return something to iterate, got {type(result).__name__}"
        f" from the function of {pipe!r}"
    )


class Expanded(Fields):
    """The place of an Expander.

    While it is ``inside`` the last of the items that it has taken, ``offset`` counts the parts of
    it that were yielded.
    """

    taken: Count = 0
    inside: bool = False
    offset: Count = 0
    #: How many parts of earlier items were yielded, and how many of the errors belong to those. A
    #: state of an earlier version has none of an unbatch.
    before: Count = 0
    errors_before: Count | None = 0
    #: How many items could not be expanded, or not to their end.
    _errors: int = 0

    @property
    def errors(self) -> int:
        """How many items could not be expanded, or not to their end."""
        return self._errors

    @errors.setter
    def errors(self, errors: int) -> None:
        self._errors = errors

    def first(self) -> int:
        # To resume inside an item, it is taken again.
        return self.taken - self.inside

    def position(self) -> int:
        return self.before + self.offset

    def needs(self, taken: int) -> int:
        return taken - self.inside

    def fill(self, taken: int, yielded: int) -> None:
        self.taken = taken

    def check(self, pipe: Any) -> Iterator[str]:
        if self.taken == 0 if self.inside else self.offset:
            yield (
                "a pass is inside an item that it has taken, and its offset counts parts of that"
                " item"
            )


class Expander(Pipe[T]):
    """A pipe that yields the parts of each item of its source, one item after another.

    ``on_error`` says what happens to an item that cannot be expanded, or not to its end.
    """

    State = Expanded

    #: Whether the parts of an item can be made at once and kept, where they cannot be made again.
    can_keep_parts: ClassVar[bool] = False

    def __init__(
        self, datapipe: Iterable[Any], *, on_error: OnError = "raise", max_errors: int | None = None
    ) -> None:
        self.source = iterable_source(datapipe)
        self.on_error = on_error
        self.max_errors = max_errors
        self.tolerance = Tolerance(on_error, max_errors)

    def parts(self, item: Any, skip: int = 0) -> Iterator[T]:
        """Return the parts of an item in order, without the first ``skip``.

        They close what they open, also when they are closed early.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def expanding(self, state: Any) -> Iterator[Callable[[Any, int], Iterator[T]]]:
        """Give what is to be used as ``parts`` in a pass, whose ``state`` counts the errors."""
        if self.tolerance.is_strict:
            yield self.parts
        else:
            # What is made in place of an item's rest is made again only if the item fails again.
            yield lambda item, skip: after(parts_of(self, state, self.parts, item), skip)

    def run(self, source: Edge[Any], state: Expanded) -> Iterator[T]:
        # How many parts of the first item were yielded already.
        known, state.offset, state.inside = state.offset, 0, False
        state.errors = state.errors_before = state.errors_before or 0
        with self.expanding(state) as parts_in:
            for item in source:
                state.inside = True
                state.offset, known = known, 0
                parts = parts_in(item, state.offset)
                try:
                    del item
                    for part in parts:
                        state.offset += 1
                        yield part
                        # Do not keep the yielded part alive while the next one is made.
                        del part
                finally:
                    close_items(parts)
                # All of the item's parts were yielded.
                state.before += state.offset
                state.offset = 0
                state.inside = False
                state.errors_before = state.errors
