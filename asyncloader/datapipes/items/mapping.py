"""One item in, one item out.

This file is about pipes that apply something to every item and keep their
number and order: map, collate, enumerate, set_length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.items.collating import Allocate, Collation, is_torchs_own
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns.applying import Applier
from asyncloader.datapipes.pipe.answers import answer_of
from asyncloader.datapipes.pipe.arguments import (
    checked_count,
    checked_function,
    checked_integer,
    iterable_source,
    keyed_source,
)
from asyncloader.datapipes.pipe.base import (
    IterDataPipe,
    MapDataPipe,
    functional_datapipe,
)
from asyncloader.datapipes.pipe.columns import ColumnFunction
from asyncloader.datapipes.pipe.function import calling, is_async
from asyncloader.datapipes.pipe.run import Pass, Run
from asyncloader.datapipes.pipe.tolerance import OnError

T = TypeVar("T")


@functional_datapipe("map")
class Mapper(Applier[T]):
    """Yield ``fn(item)`` for each item.

    ``input_col`` picks what is handed to ``fn`` out of a tuple, list or dict, and
    ``output_col`` says where the result goes (default: where the input was).

    ``on_error="skip"`` leaves out the items that ``fn`` fails on, and a function
    ``on_error(error, item)`` answers in its place. More than ``max_errors`` of them in
    one pass (and one worker) raise ``TooManyErrors``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).map(str))
    ['1', '2']
    >>> list(IterableWrapper(["1", "two", "3"]).map(int, on_error="skip"))
    [1, 3]
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self._apply = ColumnFunction.of(fn, input_col, output_col)

    def waits(self) -> bool:
        return is_async(self.fn)

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        self._apply = wrap(self._apply)
        return self.tolerance.is_strict

    def function(self) -> Callable[[Any], Any]:
        return self._apply

    def __len__(self) -> int:
        return self.tolerance.length(self, self.source)


@functional_datapipe("map")
class MapMapper(MapDataPipe[T]):
    """Look items up as ``fn(source[key])``.

    Every key has its item, so that nothing can be left out; ``on_error`` is for pipes that
    are iterated, as ``to_iter_datapipe().map(fn, on_error="skip")``.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> SequenceWrapper([1, 2]).map(str)[1]
    '2'
    """

    def __init__(self, datapipe: MapDataPipe[Any], fn: Callable[[Any], Any]) -> None:
        self.source = keyed_source(datapipe)
        self.fn = checked_function("fn", fn, takes=1)

    def waits(self) -> bool:
        return is_async(self.fn)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Any) -> T:
        return answer_of(self, self._apply, self.source[key])  # type: ignore[no-any-return]

    def _apply(self, item: Any) -> T:
        if not self.waits():
            return self.fn(item)  # type: ignore[no-any-return]
        with calling(self.fn, self) as apply:
            return apply(item)  # type: ignore[no-any-return]


@functional_datapipe("collate")
class Collator(Mapper[T]):
    """Yield each batch made into tensors, or into what ``collate_fn`` makes of it.

    The default is torch's ``default_collate``, with which torch is imported when
    the first batch is there. ``conversion`` is another name for ``collate_fn``,
    which wins where both are given. ``on_error`` and ``max_errors`` are those of
    ``map``, for batches that cannot be collated.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2, 3, 4]).batch(2).collate(sum))
    [3, 7]
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        conversion: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        self.conversion = conversion
        self.collate_fn = collate_fn
        for name, given in (("conversion", conversion), ("collate_fn", collate_fn)):
            if given is not None:
                checked_function(name, given, takes=1)
        function = conversion if collate_fn is None else collate_fn
        if function is None or is_torchs_own(function):
            function = Collation()
        super().__init__(datapipe, function, on_error=on_error, max_errors=max_errors)

    def make_in(self, allocate: Allocate) -> None:
        if isinstance(self.fn, Collation):
            self.fn.allocate = allocate


@functional_datapipe("enumerate")
class Enumerator(IterDataPipe[tuple[int, T]]):
    """Yield ``(index, item)``, counting from ``starting_index``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper("ab").enumerate())
    [(0, 'a'), (1, 'b')]
    """

    makes_again = False

    def __init__(self, source_datapipe: Iterable[T], starting_index: int = 0) -> None:
        self.source = iterable_source(source_datapipe)
        self.starting_index = checked_integer("starting_index", starting_index)

    def __len__(self) -> int:
        return len(self.source)

    def new_pass(self, run: Run[Any]) -> EnumeratePass[T]:
        return EnumeratePass(run, self.starting_index)


@dataclass
class EnumeratePass(Pass[tuple[int, T]]):
    """One pass over an Enumerator, and the index of its first item."""

    marks = ()

    first: int

    def __iter__(self) -> Iterator[tuple[int, T]]:
        yield from enumerate(self.source.begin(), self.first)

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.first += position
        self.source.resume(position, cursors)
        return 0


@functional_datapipe("set_length")
class LengthSetter(OneToOne, IterDataPipe[T]):
    """Yield the source's items and say that there are ``length`` of them.

    What is said is not held against what comes.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> len(IterableWrapper(range(10)).filter(lambda n: n % 2 == 0).set_length(5))
    5
    """

    makes_again = False

    def __init__(self, source_datapipe: Iterable[T], length: int) -> None:
        self.source = iterable_source(source_datapipe)
        self.length = checked_count("length", length, at_least=0)

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        return True

    def __len__(self) -> int:
        return self.length

    def results(self, source: Run[Any]) -> Iterator[T]:
        return source.begin()
