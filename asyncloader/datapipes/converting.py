"""From streams to lookups and back.

This file is about to_map_datapipe and to_iter_datapipe.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat, starmap
from typing import Any, TypeVar

from asyncloader.arguments import checked_function, checked_indices
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe, most_of
from asyncloader.datapipes.call import answer_of, calling, checked_key_of, is_async, itself
from asyncloader.datapipes.lookups import answers_many, blame_keys, items_under
from asyncloader.datapipes.running.cursor_forms import MOST, Seeding
from asyncloader.datapipes.running.cursors import Cursor, Cursors, cursor_of
from asyncloader.datapipes.running.run import Edge, Pass, Stride, tree_of
from asyncloader.datapipes.sources import SequenceWrapper, iterable_source, keyed_source

T = TypeVar("T")


@functional_datapipe("to_map_datapipe", on=IterDataPipe)
class IterToMapConverter(MapDataPipe[T]):
    """Look up what a stream of ``(key, value)`` pairs holds.

    ``key_value_fn`` makes a pair of each item. The stream is read once, at the
    first lookup, whichever thread asks. Of values with the same key the last
    counts, with a warning. A key that is not there is an IndexError. Every process reads
    its own, which it keeps for all later passes, and a copy of the pipe begins with none.
    Put this before what is random: what is kept is the same in every pass.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> IterableWrapper(["a", "b"]).enumerate().to_map_datapipe()[1]
    'b'
    """

    def __init__(
        self, datapipe: Iterable[Any], key_value_fn: Callable[[Any], Any] | None = None
    ) -> None:
        self.source = iterable_source(datapipe)
        self.key_value_fn = key_value_fn
        if key_value_fn is not None:
            checked_function("key_value_fn", key_value_fn, takes=1)
        self._items: dict[Any, T] | None = None
        self._loading = threading.Lock()

    def waits(self) -> bool:
        return is_async(self.key_value_fn)

    def __len__(self) -> int:
        if self._items is not None:
            return len(self._items)
        try:
            return len(self.source)
        except TypeError:
            warnings.warn(
                f"len() reads the whole source of {self!r}; use set_length"
                " before it to set the length",
                stacklevel=2,
            )
            return len(self._loaded())

    def __getitem__(self, key: Any) -> T:
        items = self._loaded()
        try:
            return items[key]
        except KeyError:
            raise IndexError(f"{self!r} has no item under the key {key!r}") from None

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_items": None}
        return {name: value for name, value in state.items() if name != "_loading"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._loading = threading.Lock()

    def _loaded(self) -> dict[Any, T]:
        with self._loading:
            if self._items is None:
                self._items = self._load()
        return self._items

    def _load(self) -> dict[Any, T]:
        items: dict[Any, T] = {}
        with calling(self.key_value_fn or itself) as key_value:
            source: Edge[Any] = Edge(self.source, tree_of(self.source))
            for item in source:
                key, value = self._checked(answer_of(self, key_value, item))
                if checked_key_of(self, key) in items:
                    warnings.warn(f"{self!r} got the key {key!r} more than once", stacklevel=4)
                items[key] = value
        return items

    def _checked(self, pair: Any) -> Any:
        try:
            length = len(pair)
        except TypeError:
            raise TypeError(
                f"{self!r} takes (key, value) pairs, got {type(pair).__name__}"
            ) from None
        if length != 2:
            raise ValueError(f"{self!r} takes (key, value) pairs, got {length} values")
        return pair


@functional_datapipe("to_iter_datapipe", on=MapDataPipe)
class MapToIterConverter(IterDataPipe[T]):
    """Yield the items that are looked up under ``indices``: by default 0 to ``len - 1``.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> list(SequenceWrapper("abc").to_iter_datapipe([2, 0]))
    ['c', 'a']
    """

    makes_again = False

    def __init__(self, datapipe: MapDataPipe[T], indices: Sequence[Any] | None = None) -> None:
        self.source = keyed_source(datapipe)
        self.indices = checked_indices(indices)

    def __len__(self) -> int:
        return len(self.source if self.indices is None else self.indices)

    def new_pass(self, edge: Edge[Any]) -> LookupPass[T]:
        return LookupPass(edge, self._keys())

    def in_order(self, positions: Iterable[int], keys: int, state: Any) -> Iterable[int]:
        """Return these of so many positions in the order in which a pass looks them up."""
        return positions

    def most_items(self) -> int:
        if not isinstance(self.source, SequenceWrapper):
            return MOST
        return most_of(self.source.sequence if self.indices is None else self.indices)

    def picks(self) -> bool:
        return True

    def can_share(self) -> bool:
        return True

    def iter_share(self, edge: Edge[Any], share: Stride, cursors: Cursors) -> Iterator[T]:
        begun: Any = edge.new_pass()
        begun.resume_at(share.before, cursor_of(self, cursors), cursors)
        begun.positions = share.positions(len(begun.keys))
        return iter(begun)

    def _keys(self) -> Sequence[Any]:
        return range(len(self.source)) if self.indices is None else self.indices


@dataclass
class LookupPass(Pass[T]):
    """One pass over keys, which can resume at any position at once."""

    follows_source = True

    keys: Sequence[Any] = field(repr=False)
    yielded: int = 0
    #: The positions in ``keys`` to look up; None for all from ``yielded`` on.
    positions: Iterable[int] | None = field(default=None, repr=False)

    def put_source_cursors(self, into: Cursors) -> None:
        """Add nothing: a map pipe has no cursor."""

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is not None:
            self.state = Seeding.loaded(cursor)
            self.pipe.follow_seed(self.state.seed)
        self.yielded = position
        return 0

    def iter_at(self, positions: list[int]) -> Iterator[T]:
        self.positions = [position for position in positions if position < len(self.keys)]
        return iter(self)

    def __iter__(self) -> Iterator[T]:
        count = len(self.keys)
        left = range(self.yielded, count) if self.positions is None else self.positions
        positions = self.pipe.in_order(left, count, self.state)
        if self.pipe.indices is None:
            # The positions are the keys.
            return self.looked_up(self.pipe.source, positions)
        return self.looked_up(self.pipe.source, (self.keys[position] for position in positions))

    def looked_up(self, source: Any, keys: Iterable[Any]) -> Iterator[T]:
        """Look up keys as they are needed: one by one, or as many as the reader takes together."""
        if self.edge.at_once == 1 or not (self.edge.holds_together or answers_many(source)):
            return self._one_by_one(source, keys)
        return chain.from_iterable(self._together(source, iter(keys)))

    def _one_by_one(self, source: Any, keys: Iterable[Any]) -> Iterator[T]:
        for key in keys:
            try:
                item = source[key]
            except Exception as error:
                blame_keys(error, [key])
                raise
            self.yielded += 1
            yield item

    def _together(self, source: Any, keys: Iterator[Any]) -> Iterator[Iterator[T]]:
        look_up = (
            source.look_up if type(source) is SequenceWrapper else partial(items_under, source)
        )
        while some := list(islice(keys, self.edge.at_once)):
            items = list(look_up(some))
            self.yielded += len(items)
            # Taken out one by one: an item that its reader has dropped is not kept here.
            items.reverse()
            yield starmap(items.pop, repeat((), len(items)))
