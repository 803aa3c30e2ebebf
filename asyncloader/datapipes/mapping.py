"""One item in, one item out.

This file is about pipes that yield one item for each item, in the same order: map, collate,
enumerate, add_index, set_length; and slice, drop, flatten and rows2columnar, which change the
structure of each item.
"""

from __future__ import annotations

import functools
import operator
import sys
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence, Sized
from typing import Any, TypeVar

from asyncloader.arguments import (
    checked_count,
    checked_function,
    checked_integer,
    checked_key,
    checked_names,
)
from asyncloader.datapipes.base import Allocate, IterDataPipe, MapDataPipe, functional_datapipe
from asyncloader.datapipes.call import answer_of, blame, calling, is_async
from asyncloader.datapipes.columns import changing
from asyncloader.datapipes.lookups import answers_many, items_under
from asyncloader.datapipes.one_to_one import OneToOne, OneToOnePass
from asyncloader.datapipes.patterns import Applier
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.sources import iterable_source, keyed_source
from asyncloader.datapipes.tolerance import OnError, checked_keeping
from asyncloader.worker_info import this_worker

T = TypeVar("T")


def own_memory(nbytes: int) -> None:
    """Give no memory: results allocate their own."""


class Collation:
    """Collates as torch's ``default_collate`` does; torch is imported with the first batch.

    In a worker torch's version stacks tensors into shared memory that it creates; this one
    uses the memory that ``allocate`` returns, or ordinary memory.
    """

    def __init__(self) -> None:
        self.allocate: Allocate = own_memory

    def __call__(self, batch: Any) -> Any:
        import torch
        from torch.utils.data._utils import collate

        _check_is_batch(batch)
        kinds = collate.default_collate_fn_map
        if kinds.get(torch.Tensor) not in (collate.collate_tensor_fn, _in_own_memory):
            # The user registered another way to collate tensors.
            return torch.utils.data.default_collate(batch)
        kinds = {**kinds, torch.Tensor: self._stacked}
        return collate.collate(batch, collate_fn_map=kinds)

    def _stacked(self, batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        import torch

        memory = self.allocate(sum(each.nbytes for each in batch)) if _is_plain(batch) else None
        if memory is None:
            return torch.stack(list(batch))
        shape = (len(batch), *batch[0].shape)
        out = torch.frombuffer(memory, dtype=batch[0].dtype).view(shape)
        return torch.stack(list(batch), out=out)


def _check_is_batch(batch: Any) -> None:
    try:
        batch[0]
    except (TypeError, KeyError) as error:
        raise TypeError(
            f"collate() makes tensors of batches, got a single item of type {type(batch).__name__};"
            " put .batch(batch_size) before it, or turn single items into tensors by .map(fn)"
        ) from error


def collate_in_own_memory() -> None:
    """Let torch's ``default_collate`` make batches in this process's memory, in a worker as well.

    There it makes a file of shared memory for each batch, with new pages that have to be cleared.
    Ours go to the loader in memory that is used again, or as they are. Nothing changes elsewhere.
    """
    import torch
    from torch.utils.data._utils import collate

    kinds = collate.default_collate_fn_map
    if kinds.get(torch.Tensor) is collate.collate_tensor_fn:
        kinds[torch.Tensor] = _in_own_memory


def _in_own_memory(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    import torch
    from torch.utils.data._utils import collate

    if this_worker() is not None and _is_plain(batch):
        return torch.stack(list(batch))
    return collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def is_torchs_own(function: Any) -> bool:
    """Whether a function is torch's ``default_collate``; does not import torch."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and function is getattr(data, "default_collate", None)


def _is_plain(batch: Sequence[Any]) -> bool:
    """Whether a batch can be stacked by just copying its memory."""
    import torch

    first = batch[0]
    is_memory = first.layout is torch.strided and first.is_cpu and not first.is_quantized
    return is_memory and first.nbytes > 0 and all(_is_like(each, first) for each in batch)


def _is_like(tensor: Any, first: Any) -> bool:
    is_same = type(tensor) is type(first) and tensor.dtype is first.dtype
    return is_same and tensor.shape == first.shape and not tensor.requires_grad


@functional_datapipe("map")
class Mapper(Applier[T]):
    """Yield ``fn(item)`` for each item.

    ``input_col`` picks what is passed to ``fn`` out of a tuple, list or dict, and
    ``output_col`` says where the result goes (default: where the input was).

    ``on_error="skip"`` leaves out the items that ``fn`` fails on, and a function
    ``on_error(error, item)`` answers in its place. More than ``max_errors`` of them in
    one pass (and one worker) raise ``TooManyErrors``.

    With ``repeatable=False`` the function may give another result the next time: what became
    of each item is recorded from here on, so that a state resumes exactly.

    ``keep_results=True`` goes with it: a state has the results that are not settled, as plain
    data, so that the function is not called again for them. The pipe stays with the loader then.

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
        repeatable: bool = True,
        keep_results: bool = False,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.repeatable = repeatable
        self.keep_results = checked_keeping(keep_results, repeatable)
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col
        self._apply = changing(fn, input_col, output_col)

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
        return self._answer(self.source[key])

    @property
    def __getitems__(self) -> Callable[[list[Any]], list[T]] | None:
        return self._look_up if answers_many(self.source) else None

    def _look_up(self, keys: list[Any]) -> list[T]:
        return [self._answer(item) for item in items_under(self.source, keys)]

    def _answer(self, item: Any) -> T:
        return answer_of(self, self._apply, item)  # type: ignore[no-any-return]

    def _apply(self, item: Any) -> T:
        if not self.waits():
            return self.fn(item)  # type: ignore[no-any-return]
        with calling(self.fn, self) as apply:
            return apply(item)  # type: ignore[no-any-return]


@functional_datapipe("collate")
class Collator(Mapper[T]):
    """Yield each batch made into tensors, or into what ``collate_fn`` makes of it.

    The default is torch's ``default_collate``, with which torch is imported when
    the first batch is there; it takes lists of items, so ``batch`` comes before it.
    ``conversion`` is another name for ``collate_fn``,
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

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return OneToOnePass(edge)

    def run(self, source: Edge[T], state: None) -> Iterator[tuple[int, T]]:
        """Read the source and yield its items with their indices."""
        first = self.starting_index + source.first_position()
        yield from enumerate(source, first)


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

    def in_section(self) -> LengthSetter[T]:
        return self

    def __len__(self) -> int:
        return self.length

    def run(self, source: Edge[Any], state: None) -> Iterator[T]:
        return iter(source)


@functional_datapipe("add_index")
class IndexAdder(IterDataPipe[dict[Any, Any]]):
    """Yield copies of dicts that have their number in the stream under ``index_name``.

    An item that is no dict is a NotImplementedError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([{"a": 1}, {"a": 5}]).add_index("order"))
    [{'a': 1, 'order': 0}, {'a': 5, 'order': 1}]
    """

    def __init__(
        self, source_datapipe: Iterable[dict[Any, Any]], index_name: str = "index"
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.index_name = checked_key("index_name", index_name)

    def __len__(self) -> int:
        return len(self.source)

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        return OneToOnePass(edge)

    def run(self, source: Edge[dict[Any, Any]], state: None) -> Iterator[dict[Any, Any]]:
        """Read the source and yield copies of its items with their indices."""
        first = source.first_position()
        for index, item in enumerate(source, first):
            if not isinstance(item, dict):
                raise NotImplementedError(
                    f"{self!r} adds an index to dicts, got {type(item).__name__}; use enumerate"
                    " for other items"
                )
            yield {**item, self.index_name: index}


class Reshaper(OneToOne, IterDataPipe[Any]):
    """Yields each item in another shape: the same kind of container with other contents."""

    def __init__(self, datapipe: Iterable[Any]) -> None:
        self.source = iterable_source(datapipe)

    def __len__(self) -> int:
        return len(self.source)

    def run(self, source: Edge[Any], state: None) -> Iterator[Any]:
        complaints: set[str] = set()
        for item in source:
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
        """Yield warnings about an item that lacks a requested place or key."""
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
                f"{self!r} ignores stop and step, because index is a list; leave out stop and step",
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
                yield "found the same key more than once in a dict and keeps one of the values"


def _as_tuple(name: str, indices: Any) -> tuple[Any, ...]:
    each = indices if isinstance(indices, list) else [indices]
    return tuple(_plain(checked_key(name, index)) for index in each)


def _plain(index: Any) -> Any:
    # NumPy's integers equal Python's as keys, and count as places too.
    return operator.index(index) if hasattr(index, "__index__") else index


def _present(item: Any, indices: tuple[Any, ...]) -> Collection[Any]:
    """Return the places (from 0) or keys of ``indices`` that an item has."""
    if isinstance(item, dict):
        return [index for index in indices if index in item]
    return _places(indices, len(item), type(item).__name__)[0]


def _missing(item: Any, indices: tuple[Any, ...]) -> Iterator[str]:
    if not isinstance(item, tuple | list | dict):
        yield _unchanged(item)
    elif not _has_all(item, indices):
        yield "got items that lack some of its indices"


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


# Cached, as most items of a stream have the same length. Callers pass only int: 1.0 == 1.
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


@functional_datapipe("rows2columnar")
class Rows2Columnar(OneToOne, IterDataPipe[dict[Any, list[Any]]]):
    """Yield for each batch of rows a dict of columns: lists of what the rows hold.

    Rows are dicts, of which the columns named in ``column_names`` are taken (default:
    all), or sequences, for whose values ``column_names`` are the names. A dict without
    a named column is a KeyError, a sequence longer than the names an IndexError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([[{"a": 1, "b": 2}, {"a": 3}]]).rows2columnar())
    [{'a': [1, 3], 'b': [2]}]
    >>> list(IterableWrapper([[[0, 1], [2, 3]]]).rows2columnar(["x", "y"]))
    [{'x': [0, 2], 'y': [1, 3]}]
    """

    def __init__(
        self,
        source_datapipe: Iterable[Iterable[Any]],
        column_names: Sequence[str] | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        names = () if column_names is None else column_names
        self.column_names = checked_names("column_names", names)

    def __len__(self) -> int:
        return len(self.source)

    def run(self, source: Edge[Any], state: None) -> Iterator[dict[Any, list[Any]]]:
        for batch in source:
            if not isinstance(batch, Iterable):
                raise TypeError(f"{self!r} reads batches of rows, got {type(batch).__name__}")
            columns: dict[Any, list[Any]] = {}
            for row in batch:
                for name, value in self._cells(row):
                    columns.setdefault(name, []).append(value)
            yield columns

    def _cells(self, row: Any) -> Iterable[tuple[Any, Any]]:
        names = self.column_names
        if not isinstance(row, dict):
            if not (isinstance(row, Sized) and isinstance(row, Iterable)):
                raise TypeError(
                    f"{self!r} reads rows that are dicts or sequences, got {type(row).__name__}"
                )
            if len(row) > len(names):
                raise IndexError(
                    f"{self!r} got a row of {len(row)} values for {len(names)} column_names;"
                    " name every column"
                )
            return zip(names, row, strict=False)
        for name in names:
            if name not in row:
                raise KeyError(f"{self!r} got a row without the column {name!r}")
        return ((name, row[name]) for name in names) if names else row.items()
