"""Items with fewer, or other, columns.

This file is about pipes that take apart what an item holds in its places (tuples and
lists) or under its keys (dicts): slice, drop and flatten.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any

from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.pipe.arguments import checked_integer, checked_key, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import blame
from asyncloader.datapipes.pipe.run import Run


class Reshaper(OneToOne, IterDataPipe[Any]):
    """Yields for each item one of the same kind that holds something else."""

    def __init__(self, datapipe: Iterable[Any]) -> None:
        self.source = iterable_source(datapipe)

    def __len__(self) -> int:
        return len(self.source)

    def results(self, source: Run[Any]) -> Iterator[Any]:
        complaints: set[str] = set()
        for item in source.begin():
            try:
                found, result = complaints.union(self.complaints(item)), self.reshaped(item)
            except TypeError as error:
                blame(error, self)
                raise
            for complaint in found - complaints:
                warnings.warn(f"{self!r} {complaint}; said once a pass", stacklevel=2)
            complaints = found
            yield result

    def reshaped(self, item: Any) -> Any:
        """Return what is yielded for an item, which stays as it is."""
        raise NotImplementedError

    def complaints(self, item: Any) -> Iterator[str]:
        """Yield what a user should know of an item that does not have what was asked for."""
        raise NotImplementedError


@functional_datapipe("slice")
class Slicer(Reshaper):
    """Yield parts of items: ``item[index:stop:step]``, or what is at a list of places.

    A list of places (of tuples and lists) or of keys (of dicts) keeps what is there,
    in the item's own order. Of a dict a single key may be given as ``index``. What is
    no tuple, list or dict, or has nothing there, is yielded with a warning.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> rows = IterableWrapper([(0, 10, 100), (1, 11, 111)])
    >>> list(rows.slice(0, 2)), list(rows.slice([0, -1]))
    ([(0, 10), (1, 11)], [(0, 100), (1, 111)])
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        index: Any,
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(datapipe)
        if step == 0:
            raise ValueError("step must not be 0")
        self.index = index
        self._indices = _as_tuple("index", index)
        self.stop = None if stop is None else checked_integer("stop", stop)
        self.step = None if step is None else checked_integer("step", step)
        if isinstance(index, list) and (stop is not None or step is not None):
            warnings.warn(
                f"{self!r} has a list of indices, which count alone: leave out stop and step",
                stacklevel=2,
            )

    def reshaped(self, item: Any) -> Any:
        if not isinstance(item, tuple | list | dict):
            return item
        if isinstance(self.index, list):
            return _keeping(item, _present(item, self._indices).__contains__)
        if not isinstance(item, dict):
            return item[self.index : self.stop : self.step]
        return {self.index: item[self.index]} if self.index in item else item

    def complaints(self, item: Any) -> Iterator[str]:
        if isinstance(self.index, list):
            yield from _missing(item, self._indices)
        elif isinstance(item, dict) and self.index not in item:
            yield f"yields dicts without the key {self.index!r} as they are"
        elif not isinstance(item, tuple | list | dict):
            yield _unchanged(item)


@functional_datapipe("drop")
class Dropper(Reshaper):
    """Yield items without what is at some places, or under some keys.

    ``indices`` is one of them, or a list: places of tuples and lists, keys of dicts.
    What is no tuple, list or dict is yielded as it is, with a warning.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([(0, 10, 100), (1, 11, 111)]).drop(1))
    [(0, 100), (1, 111)]
    """

    def __init__(self, datapipe: Iterable[Any], indices: Hashable | list[Hashable]) -> None:
        super().__init__(datapipe)
        self.indices = indices
        self._indices = _as_tuple("indices", indices)

    def reshaped(self, item: Any) -> Any:
        if not isinstance(item, tuple | list | dict):
            return item
        dropped = _present(item, self._indices)
        return _keeping(item, lambda place: place not in dropped)

    def complaints(self, item: Any) -> Iterator[str]:
        yield from _missing(item, self._indices)


@functional_datapipe("flatten")
class Flattener(Reshaper):
    """Yield items in which nested tuples, lists or dicts are taken apart by one level.

    Tuples and lists within a tuple or list, and dicts within a dict, give up what they
    hold to it: all of them, or those at ``indices`` (a place or key, or a list of
    them). Of a key that comes twice the dict's own value is kept, else the first, with
    a warning.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([(0, (1, 2)), (3, (4, 5))]).flatten())
    [(0, 1, 2), (3, 4, 5)]
    >>> list(IterableWrapper([((0, 1), (2, 3))]).flatten(0))
    [(0, 1, (2, 3))]
    """

    def __init__(
        self, datapipe: Iterable[Any], indices: Hashable | list[Hashable] | None = None
    ) -> None:
        super().__init__(datapipe)
        self.indices = indices
        self._indices = None if indices is None else _as_tuple("indices", indices)

    def reshaped(self, item: Any) -> Any:
        if isinstance(item, dict):
            return self._flat_dict(item)
        if not isinstance(item, tuple | list):
            return item
        chosen = range(len(item)) if self._indices is None else _present(item, self._indices)
        flat: list[Any] = []
        for place, part in enumerate(item):
            if place in chosen and isinstance(part, tuple | list):
                flat.extend(part)
            else:
                flat.append(part)
        return tuple(flat) if isinstance(item, tuple) else flat

    def _flat_dict(self, item: dict[Any, Any]) -> dict[Any, Any]:
        flat: dict[Any, Any] = {}
        for key, value in item.items():
            if not self._opens(key, value):
                flat[key] = value
                continue
            for inner in value:
                if inner not in item or self._opens(inner, item[inner]):
                    flat.setdefault(inner, value[inner])
        return flat

    def _opens(self, key: Any, value: Any) -> bool:
        return isinstance(value, dict) and (self._indices is None or key in self._indices)

    def complaints(self, item: Any) -> Iterator[str]:
        yield from _missing(item, self._indices or ())
        if isinstance(item, dict):
            keys: list[Any] = []
            for key, value in item.items():
                keys.extend(value if self._opens(key, value) else [key])
            if len(set(keys)) < len(keys):
                yield "found a key more than once in a dict, and keeps one value"


def _as_tuple(name: str, indices: Any) -> tuple[Any, ...]:
    each = indices if isinstance(indices, list) else [indices]
    return tuple(_plain(checked_key(name, index)) for index in each)


def _plain(index: Any) -> Any:
    # NumPy's integers are equal to Python's as keys, and are places as well.
    return operator.index(index) if hasattr(index, "__index__") else index


def _present(item: Any, indices: tuple[Any, ...]) -> Collection[Any]:
    """Return the places, from 0, or keys that indices mean in an item, which may lack some."""
    if isinstance(item, dict):
        return [index for index in indices if index in item]
    return _places(indices, len(item), type(item).__name__)[0]


def _missing(item: Any, indices: tuple[Any, ...]) -> Iterator[str]:
    if not isinstance(item, tuple | list | dict):
        yield _unchanged(item)
    elif not _has_all(item, indices):
        yield "got items that have nothing at some of its indices"


def _has_all(item: Any, indices: tuple[Any, ...]) -> bool:
    if isinstance(item, dict):
        return all(index in item for index in indices)
    return _places(indices, len(item), type(item).__name__)[1]


def _places(indices: tuple[Any, ...], length: int, kind: str) -> tuple[frozenset[int], bool]:
    """Return the places that are there, from 0, and whether all are."""
    for index in indices:
        if not isinstance(index, int):
            raise TypeError(f"places of a {kind} are integers, got {type(index).__name__}")
    return _places_there(indices, length)


# Items of a stream are mostly of one length. 1.0 would be found here as 1.
@functools.lru_cache(maxsize=256)
def _places_there(indices: tuple[int, ...], length: int) -> tuple[frozenset[int], bool]:
    there = [index for index in indices if -length <= index < length]
    return frozenset(index % length for index in there), len(there) == len(indices)


def _unchanged(item: Any) -> str:
    return f"changes tuples, lists and dicts, and yields a {type(item).__name__} as it is"


def _keeping(item: Any, keeps: Callable[[Any], bool]) -> Any:
    if isinstance(item, dict):
        return {key: value for key, value in item.items() if keeps(key)}
    kept = [part for place, part in enumerate(item) if keeps(place)]
    return tuple(kept) if isinstance(item, tuple) else kept
