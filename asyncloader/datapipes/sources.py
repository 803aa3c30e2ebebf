"""Pipes that read no other pipe.

This file is about wrappers of iterables and sequences that are in memory or make their
own items.
"""

from __future__ import annotations

import copy
import sys
import warnings
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from asyncloader.arguments import kind_name
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, is_iter_pipe, is_pipe, most_of
from asyncloader.datapipes.lookups import answers_many, items_under
from asyncloader.datapipes.running.bridge import from_loop, from_thread
from asyncloader.datapipes.running.cursor_forms import MOST
from asyncloader.datapipes.running.cursors import (
    Cursors,
    aclose_items,
    close_items,
    dropped,
    picked,
)
from asyncloader.datapipes.running.run import Edge, RunTree, Stride
from asyncloader.errors import IteratorInvalidated
from asyncloader.worker_info import Unaware, this_worker

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


#: Immutable types: they need no copy.
_UNCHANGING = frozenset({int, float, complex, bool, str, bytes, type(None)})

#: Types whose iteration runs no user code.
_CANNOT_ASK = frozenset({list, tuple, range, dict, set, frozenset, str, bytes})

#: The iterators of lists, tuples and ranges, of long ranges too.
_BY_INDEX = frozenset(map(type, (iter([]), iter(()), iter(range(0)), iter(range(2**70)))))


class IterableWrapper(IterDataPipe[T]):
    """Yield the items of an iterable, or of an async iterable.

    With ``deepcopy`` each pass reads a copy, so that items changed in place are
    whole again in the next; what cannot be copied is read as it is, with a
    warning. A generator, a file and other iterators can be read only once: a second pass is a
    TypeError. One whose ``__iter__`` starts from the beginning can be read again.
    ``shards_itself`` says that the iterable takes a worker's share by itself, as one does
    that asks ``get_worker_info``, and as Hugging Face's iterable data sets do. False hides the
    worker from it: ``get_worker_info``, ours and torch's, answers None in it. A stream of theirs
    resumes by its own state, unless it shuffles or maps in batches: then it is read again.
    A set has the same order in all processes of a loader; sort it if another run will resume
    from a state.

    >>> list(IterableWrapper([1, 2, 3]))
    [1, 2, 3]
    """

    makes_again = False

    edges = ()

    def __init__(
        self,
        iterable: Iterable[T] | AsyncIterable[T],
        deepcopy: bool = True,
        *,
        shards_itself: bool | None = None,
    ) -> None:
        if is_pipe(iterable):
            raise TypeError(
                f"{iterable!r} is a pipe already; use it as it is, or, to iterate a map"
                " pipe, .to_iter_datapipe()"
            )
        if not isinstance(iterable, Iterable | AsyncIterable):
            is_looked_up = hasattr(type(iterable), "__getitem__")
            hint = "; what is looked up by index goes into SequenceWrapper" * is_looked_up
            raise TypeError(f"iterable must be iterable, got {type(iterable).__name__}{hint}")
        self.iterable = iterable
        self.deepcopy = deepcopy
        self.shards_itself = (
            _is_of_hugging_face(iterable) if shards_itself is None else shards_itself
        )
        #: The sharding pipe that divides the items among workers.
        self.divided_by = ""
        self._hides_worker = shards_itself is False
        self._passes = Passes(iterable)
        self._stream: Any = None
        self._state: Any = None

    def __len__(self) -> int:
        if self.shards_itself:
            raise TypeError(f"{self!r} has no length: nobody knows how many items each worker gets")
        return len(self.iterable)  # type: ignore[arg-type]  # a TypeError, as for any iterable

    def __getstate__(self) -> Any:
        state = vars(self)
        if isinstance(self.iterable, set | frozenset):
            # A set of texts has another order in every process, so shares would overlap.
            return {**state, "iterable": list(self.iterable)}
        return state

    def use_own_iterable(self) -> None:
        """Iterate an object of its own from here on, which has what the iterable has.

        What an ``__iter__`` notes on its object is then not seen by those of other threads.
        """
        self.iterable = with_own_attributes(self.iterable)

    def is_async(self) -> bool:
        return isinstance(self.iterable, AsyncIterable)

    def waits(self) -> bool:
        return self.is_async()

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self.iterable, Iterable):
            return from_loop(Edge(self, RunTree()))
        if self._must_not_ask():
            return _unaware_items(partial(self._items, self.iterable), self._unaware())
        return self._items(self.iterable)

    def iter_from(self, position: int) -> Iterator[T]:
        """Iterate the items from a position on, without those before it where that is possible."""
        items = iter(self)
        if type(items) not in _BY_INDEX:
            return dropped(items, position)
        # It is new, and begins anywhere at once, as copies and pickles of it do.
        items.__setstate__(min(position, sys.maxsize))  # type: ignore[attr-defined]
        return items

    def has_own_state(self) -> bool:
        """Whether the iterable says its exact place itself; a stream of Hugging Face's may."""
        cls = type(self)
        if cls.load_state_dict is not IterableWrapper.load_state_dict:
            # That of a user's own class.
            return True
        is_read_here = cls.__iter__ is IterableWrapper.__iter__
        return is_read_here and _is_of_hugging_face(self.iterable) and _is_exact(self.iterable)

    def state_dict(self) -> Any:
        """Return the place of the iterable in the current pass."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Let the next pass begin at a place of the iterable."""
        self._state = state

    def _resumed(self, stream: Any) -> Any:
        """Return the stream for one pass, at the place that was loaded."""
        # It would begin every later pass there too, so the place is given to another object.
        self._stream = object.__new__(type(stream))
        vars(self._stream).update(vars(stream))
        state, self._state = self._state, None
        if state is not None:
            self._stream.load_state_dict(state)
        return self._stream

    def _items(self, iterable: Iterable[T]) -> Iterator[T]:
        if not self._passes.are_free:
            return self._passes.items(self, iterable)
        data = changeable_copy(iterable) if self.deepcopy else iterable
        if self.has_own_state():
            return iter(self._resumed(data))
        items = iter(data)
        # Another object, and one of Python's own, has an iterator of its own.
        if data is not iterable or type(data) in _CANNOT_ASK:
            return items
        return self._passes.checked(self, items)

    def _aitems(self, iterable: AsyncIterable[T]) -> AsyncIterator[T]:
        if not self._passes.are_free:
            return self._passes.aitems(self, iterable)
        items = aiter(iterable)
        self._passes.check_is_new(self, items)
        return items

    def _must_not_ask(self) -> bool:
        # Python's own containers never ask which worker they are in.
        can_ask = type(self.iterable) not in _CANNOT_ASK and this_worker() is not None
        return can_ask and (self._hides_worker or bool(self.divided_by))

    def _unaware(self) -> Unaware:
        return Unaware(
            "" if self._hides_worker else ". ".join(divided_twice(self, self.divided_by))
        )

    def most_items(self) -> int:
        # A list that is not copied may grow.
        return most_of(self.iterable) if self.deepcopy else MOST

    def picks(self) -> bool:
        is_free = self._passes.are_free and isinstance(self.iterable, Iterable)
        return is_free and not self.has_own_state()

    def iter_at(self, positions: list[int]) -> Iterator[T]:
        if not isinstance(self.iterable, Sequence):
            return picked(iter(self), positions)
        data = changeable_copy(self.iterable) if self.deepcopy else self.iterable
        return (data[position] for position in positions if position < len(data))

    def can_share(self) -> bool:
        # A list that is not copied may grow while it is read.
        return type(self.iterable) in (tuple, range) or (
            type(self.iterable) is list and self.deepcopy
        )

    def iter_share(self, edge: Edge[Any], share: Stride, cursors: Cursors) -> Iterator[T]:
        data: Any = self.iterable
        if share.width == 1:
            # Copy only the items of the share.
            wanted = data[share.start :: share.step]
            return iter(changeable_copy(wanted) if self.deepcopy else wanted)
        data = changeable_copy(data) if self.deepcopy else data
        return (data[position] for position in share.positions(len(data)))

    def __aiter__(self) -> AsyncIterator[T]:
        if isinstance(self.iterable, AsyncIterable):
            if self._must_not_ask():
                return _unaware_aitems(partial(self._aitems, self.iterable), self._unaware())
            return self._aitems(self.iterable)
        return from_thread(Edge(self, RunTree()))


def with_own_attributes(value: Any) -> Any:
    """Return another object with the same attributes, or this one where that cannot be.

    It is made without code of its class, whose copies may leave something out. So is one of each of
    torch's iterable data sets in it, such as those that a ``ChainDataset`` reads.

    >>> with_own_attributes([1])
    [1]
    """
    return _with_own_attributes(value, {})


def _with_own_attributes(value: Any, made: dict[int, Any]) -> Any:
    """Return another object; ``made`` has those that were made, by the ids of what they are of."""
    if id(value) in made:
        return made[id(value)]
    cls = type(value)
    # An iterator has its place elsewhere too; and what a class closes at the end is everybody's.
    if isinstance(value, Iterator | AsyncIterator) or hasattr(cls, "__del__"):
        return value
    if not hasattr(value, "__dict__"):
        return value
    try:
        twin = object.__new__(cls)
    except TypeError:
        return value  # of a class that derives from one written in C
    made[id(value)] = twin
    state = object.__getstate__(value)
    for fields in state if isinstance(state, tuple) else (state,):
        for name, field in (fields or {}).items():
            object.__setattr__(twin, name, _with_own_streams(field, made))
    return twin


def _with_own_streams(value: Any, made: dict[int, Any]) -> Any:
    """Return other objects for torch's iterable data sets, in lists, tuples and dicts too."""
    streams = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    if isinstance(value, streams):
        return _with_own_attributes(value, made)
    kind = type(value)
    if kind not in (list, tuple, dict):
        return value
    elements = value.values() if kind is dict else value
    # It may be long, and is everybody's where it holds none.
    if not any(issubclass(each, streams) for each in set(map(type, elements))):
        return value
    others = [_with_own_streams(each, made) for each in elements]
    return dict(zip(value, others, strict=True)) if kind is dict else kind(others)


# Outside of the class, so that the time counts as the iterable's own: see ``watch.frames``.


def _unaware_items(begin: Callable[[], Iterator[T]], unaware: Unaware) -> Iterator[T]:
    with unaware:
        items = begin()
    try:
        while True:
            with unaware:
                item = next(items, _END)
            unaware.check()
            if item is _END:
                return
            yield item
    finally:
        close_items(items)


async def _unaware_aitems(
    begin: Callable[[], AsyncIterator[T]], unaware: Unaware
) -> AsyncIterator[T]:
    with unaware:
        items = begin()
    try:
        while True:
            with unaware:
                item = await anext(items, _END)
            unaware.check()
            if item is _END:
                return
            yield item
    finally:
        await aclose_items(items)


def _is_of_hugging_face(iterable: object) -> bool:
    """Whether it is Hugging Face's ``IterableDataset``, which asks torch for the worker."""
    name = ("datasets.iterable_dataset", "IterableDataset")
    return any((kind.__module__, kind.__qualname__) == name for kind in type(iterable).__mro__)


#: Samplers of torch that draw from its global generator, unless they were given one.
_RANDOM_SAMPLERS = frozenset({"RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"})


def draws_in_each_worker(iterable: object) -> bool:
    """Whether it is a sampler of torch's that yields other keys in every process."""
    kind = type(iterable)
    if kind.__module__ != "torch.utils.data.sampler":
        return False
    if kind.__qualname__ == "BatchSampler":
        return draws_in_each_worker(getattr(iterable, "sampler", None))
    return kind.__qualname__ in _RANDOM_SAMPLERS and getattr(iterable, "generator", 0) is None


#: The parts of Hugging Face's streams whose places are exact. What a shuffle buffer holds, or a
#: batched map has made, is no part of a place: such streams are read again up to theirs.
_EXACT = frozenset(
    f"{name}Iterable"
    for name in (
        "Examples",
        "ArrowExamples",
        "FilteredExamples",
        "FormattedExamples",
        "MappedExamples",
        "RebatchedArrowExamples",
        "SelectColumns",
        "StepExamples",
    )
)


def _is_exact(stream: Any) -> bool:
    part = getattr(stream, "_ex_iterable", None)
    while part is not None:
        if type(part).__name__ not in _EXACT or getattr(part, "batched", False):
            return False
        part = getattr(part, "ex_iterable", None)
    return hasattr(stream, "_ex_iterable")


def divided_twice(pipe: object, divider: str) -> tuple[str, str]:
    """Return why two pipes must not both divide the items among the workers, and the remedy."""
    return (
        f"the items would be divided twice, and most lost: {pipe!r} takes a worker's share by"
        f" itself (get_worker_info), and {divider} divides again",
        f"Keep one of them: drop {divider} (or let it divide among ranks alone, by"
        " SHARDING_PRIORITIES.DISTRIBUTED), or pass IterableWrapper(..., shards_itself=False),"
        " which hides the worker from the iterable",
    )


class Passes:
    """The passes over an iterable that is its own iterator, as generators and prefetchers are.

    Iterators written in C (generators, files, ``zip``) are read once. A Python class may begin
    again when ``iter`` is called, or by itself at its end. Only one pass at a time is read.

    Any other iterable is free: passes are read side by side. But it may hand out the same iterator
    each time. That is well where it has begun again, as that of a file and of torch's DataLoader
    with persistent workers.
    """

    def __init__(self, iterable: object) -> None:
        is_async = not hasattr(iterable, "__next__")
        self.are_free = is_async and not hasattr(iterable, "__anext__")
        method = getattr(type(iterable), "__aiter__" if is_async else "__iter__", None)
        code = getattr(method, "__code__", None)
        self.is_only_one = code is None
        #: Whether ``__iter__`` does more than ``return self`` and so may begin again.
        self.may_begin_again = code is not None and bool(code.co_names or code.co_freevars)
        self.count = 0
        self.has_ended = True
        self.gave_items = False
        # Returns the iterator of the latest pass over a free one, unless it is gone.
        self._latest: Callable[[], object] = _nothing

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_latest": _nothing}

    def checked(self, pipe: object, items: Iterator[T]) -> Iterator[T]:
        """Return the iterator that a free iterable gave; TypeError if it was read before."""
        is_known = self.check_is_new(pipe, items)
        if type(items).__module__ in _NEVER_BEGIN_AGAIN:
            return items
        return _HandedOut(self, pipe, items, begins_empty=is_known and self.gave_items)

    def check_is_new(self, pipe: object, items: object) -> bool:
        """Whether the pass before had this iterator too; TypeError if it cannot begin again."""
        is_known = self._latest() is items
        if is_known and type(items).__module__ in _NEVER_BEGIN_AGAIN:
            raise _read_only_once(pipe)
        try:
            self._latest = weakref.ref(items)
        except TypeError:
            self._latest = partial(_itself, items)
        return is_known

    def items(self, pipe: object, iterable: Iterable[T]) -> Iterator[T]:
        """Begin another pass; TypeError if the iterable cannot begin again."""
        if self.is_only_one:
            self.begin(pipe)
            return iter(iterable)
        return OwnItems(self, pipe, iter, iterable)

    def aitems(self, pipe: object, iterable: AsyncIterable[T]) -> AsyncIterator[T]:
        """Begin another pass; TypeError if the iterable cannot begin again."""
        if self.is_only_one:
            self.begin(pipe)
            return aiter(iterable)
        return OwnItems(self, pipe, aiter, iterable)

    def begin(self, pipe: object) -> int:
        """Begin another pass, and return its number."""
        if not self.has_ended and not self.may_begin_again:
            raise _read_only_once(pipe)
        self.has_ended = False
        self.count += 1
        return self.count

    def check_latest(self, number: int, pipe: object) -> None:
        """Raise IteratorInvalidated if a later pass has begun."""
        if number != self.count:
            raise IteratorInvalidated(
                f"this iterator has been invalidated: {pipe!r} wraps an object that is its own"
                " iterator, and it is being iterated again"
            )


#: The modules of iterators that nobody can let begin again: generators, ``map``, ``islice``.
_NEVER_BEGIN_AGAIN = frozenset({"builtins", "itertools"})


def _nothing() -> object:
    return None


def _itself(value: object) -> object:
    return value


class OwnItems:
    """Yields the items of an iterable, by ``for`` or ``async for``, until another pass begins.

    The iterable is its own iterator, and its attributes are those of this object too.
    """

    def __init__(
        self, passes: Passes, pipe: object, begin: Callable[[Any], Any], iterable: object
    ) -> None:
        self._number = passes.begin(pipe)
        self._iterable = iterable
        self._passes = passes
        self._pipe = pipe
        # The pass before had items, and this one has none so far.
        self._begins_empty = passes.gave_items
        self._is_over = False
        self._items = begin(iterable)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = self._got(next(self._items, _END)) if self._check() else _END
        if item is _END:
            raise StopIteration
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = self._got(await anext(self._items, _END)) if self._check() else _END
        if item is _END:
            raise StopAsyncIteration
        return item

    def _check(self) -> bool:
        """Whether there may be more items; IteratorInvalidated if another pass has begun."""
        self._passes.check_latest(self._number, self._pipe)
        return not self._is_over

    def _got(self, item: Any) -> Any:
        if item is not _END:
            self._passes.gave_items, self._begins_empty = True, False
            return item
        self._passes.has_ended = self._is_over = True
        if self._begins_empty:
            raise _read_only_once(self._pipe)
        return item

    def __getattr__(self, name: str) -> Any:
        # Closing the iterable is the user's business: it may be read again.
        is_close = name in ("close", "aclose") and self._items is self._iterable
        if name.startswith("_") or is_close:
            raise AttributeError(name)
        return getattr(self._items, name)


class _HandedOut(Iterator[T]):
    """Yields the items of an iterator that may be handed out again, and notes whether it has any.

    Its attributes are those of this object too.
    """

    def __init__(
        self, passes: Passes, pipe: object, items: Iterator[T], *, begins_empty: bool
    ) -> None:
        self._passes = passes
        self._pipe = pipe
        self._items = items
        self._begins_empty = begins_empty
        self._is_at_beginning = True

    def __next__(self) -> T:
        item: T = next(self._items, _END)
        if item is _END:
            if self._is_at_beginning and self._begins_empty:
                raise _read_only_once(self._pipe)
            raise StopIteration
        if self._is_at_beginning:
            self._is_at_beginning, self._passes.gave_items = False, True
        return item

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._items, name)


_END: Any = object()


def _read_only_once(pipe: object) -> TypeError:
    return TypeError(
        f"{pipe!r} wraps an iterator, which can be read only once; wrap a list, or an"
        " object whose __iter__ starts from the beginning, to iterate again"
    )


class Lookup(Protocol[T_co]):
    """Something with ``[...]``: a list, a dict, a torch dataset."""

    def __getitem__(self, key: Any, /) -> T_co: ...


class SequenceWrapper(MapDataPipe[T]):
    """Look items up in a sequence, a mapping, or a dataset of torch's.

    With ``deepcopy`` the data is copied once, when the pipe is made. What has ``__getitems__``,
    as data sets of Hugging Face do, is asked for all items of a batch at once.

    >>> SequenceWrapper(["a", "b"])[1]
    'b'
    """

    edges = ()

    def __init__(self, sequence: Sequence[T] | Lookup[T], deepcopy: bool = True) -> None:
        if is_pipe(sequence):
            raise TypeError(
                f"{sequence!r} is a pipe already; use it as it is, or, to look up the"
                " items of an iter pipe, .to_map_datapipe()"
            )
        if not hasattr(type(sequence), "__getitem__"):
            raise TypeError(
                f"sequence must support [...], got {type(sequence).__name__}; for"
                " something that can only be iterated use IterableWrapper"
            )
        self.sequence: Any = changeable_copy(sequence) if deepcopy else sequence
        self.deepcopy = deepcopy

    def __getitem__(self, key: Any) -> T:
        item: T = self.sequence[key]
        return item

    @property
    def __getitems__(self) -> Callable[[list[Any]], Sequence[T]] | None:
        return self.look_up if answers_many(self.sequence) else None

    def look_up(self, keys: list[Any]) -> Sequence[T]:
        """Return the items under several keys."""
        return items_under(self.sequence, keys)

    def __len__(self) -> int:
        return len(self.sequence)


def changeable_copy(data: Any) -> Any:
    """Return a copy of data that could be changed in place; immutable data itself."""
    if isinstance(data, str | bytes | range) or hasattr(data, "__next__"):
        return data
    if type(data) in (list, tuple) and _UNCHANGING.issuperset(map(type, data)):
        return data[:]
    try:
        return copy.deepcopy(data)
    except Exception as error:  # noqa: BLE001 - a user's __deepcopy__ ran
        warnings.warn(
            f"{type(data).__name__} cannot be copied ({error}); it is read as it is, and items"
            " changed in place stay changed. Pass deepcopy=False to say that this is meant",
            stacklevel=4,
        )
        return data


def iterable_source(value: Any) -> Any:
    """Return a pipe over ``value``, or ``value`` itself if it is a pipe; TypeError otherwise."""
    if is_pipe(value):
        return value
    _check_is_one_source(value)
    if isinstance(value, Iterable):
        return IterableWrapper(value, deepcopy=False)
    if hasattr(type(value), "__getitem__"):
        return value
    if isinstance(value, AsyncIterable):
        raise TypeError(
            f"an async iterable ({type(value).__name__}) is read through IterableWrapper(...)"
        )
    raise TypeError(f"a pipe reads from pipes and iterables, got {kind_name(value)}")


def iterable_sources(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one or more things a pipe can read from; raise an error otherwise."""
    if not values:
        raise ValueError("at least one source is needed, got none")
    return tuple(iterable_source(value) for value in values)


def keyed_source(value: Any) -> Any:
    """Return something that items can be looked up in; raise TypeError otherwise."""
    _check_is_one_source(value)
    if not hasattr(type(value), "__getitem__") or is_iter_pipe(value):
        raise TypeError(f"items are looked up in map pipes, got {kind_name(value)}")
    return value


def keyed_sources(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one or more things that items can be looked up in; raise an error otherwise."""
    if not values:
        raise ValueError("at least one source is needed, got none")
    return tuple(keyed_source(value) for value in values)


def _check_is_one_source(value: Any) -> None:
    # Such as the list that fork returns.
    if isinstance(value, list | tuple) and value and is_pipe(value[0]):
        raise TypeError(
            f"a pipe reads from pipes and iterables, got a {type(value).__name__} of pipes; pass"
            " each of them by itself, as *pipes does"
        )
