"""Two sources joined by keys.

This file is about zip_with_iter and zip_with_map: for each item of one source, the
item that has the same key in another.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Annotated, Any

from asyncloader.arguments import checked_count, checked_function
from asyncloader.datapipes.base import MapDataPipe, functional_datapipe
from asyncloader.datapipes.call import answer_of, blame, calling, is_async, key_of
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns import Pipe, numbers_in, runs_form, runs_of
from asyncloader.datapipes.running.cursor_forms import (
    MOST_HELD,
    Count,
    Fields,
    Form,
    Of,
)
from asyncloader.datapipes.running.cursors import close_items
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.sources import iterable_source, keyed_source


class Joiner(Pipe[Any]):
    """Yields one result for each item of ``source``."""

    source: Any
    key_fn: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any]
    keep_key: bool

    def waits(self) -> bool:
        return is_async(self.key_fn) or is_async(self.merge)

    def __len__(self) -> int:
        return len(self.source)

    def result(self, key: Any, merge: Callable[[Any, Any], Any], item: Any, other: Any) -> Any:
        """Return the result for two items with the same key."""
        result = answer_of(self, merge, item, other)
        return (key, result) if self.keep_key else result


def pair(item: Any, other: Any) -> tuple[Any, Any]:
    """Return both items: the default ``merge_fn``."""
    return item, other


def checked_merge(merge_fn: Any) -> Callable[[Any, Any], Any]:
    """Return the user's merge function, or ``pair`` if there is none."""
    return pair if merge_fn is None else checked_function("merge_fn", merge_fn, takes=2)


def _waiting_form(pipe: IterKeyZipper) -> Form:
    return runs_form(MOST_HELD if pipe.buffer_size is None else pipe.buffer_size)


class Joined(Fields):
    """The place of an IterKeyZipper: which items of the other source wait."""

    yielded: Count = 0
    ref_taken: Count = 0
    dropped: Count | None = None
    waiting: Annotated[list[int], Of(_waiting_form)] = field(default_factory=list)
    #: Their numbers and the items, by their keys, the oldest first.
    _waiting: dict[Any, tuple[int, Any]] = field(default_factory=dict)

    def first_each(self) -> list[int]:
        return [self.yielded, self.ref_taken]

    def needs_each(self, taken: list[int]) -> list[int]:
        oldest = next((number for number, _ in self._waiting.values()), taken[1])
        return [taken[0], oldest]

    def fill_each(self, taken: list[int], yielded: int) -> None:
        self.ref_taken = taken[1]
        self.waiting = runs_of(number for number, _ in self._waiting.values())

    def check(self, pipe: Any) -> Iterator[str]:
        if sum(self.waiting[-2:]) > self.ref_taken:
            yield "the waiting items were taken of ref_datapipe"
        waiting = sum(self.waiting[1::2])
        if self.ref_taken != self.yielded + (self.dropped or 0) + waiting:
            yield "each item taken of ref_datapipe was yielded, was dropped, or waits"


@functional_datapipe("zip_with_iter")
class IterKeyZipper(Joiner):
    """Yield each item together with the item of ``ref_datapipe`` that has the same key.

    Keys are what ``key_fn`` and ``ref_key_fn`` (default: ``key_fn``) return. The result
    is a tuple of the two, or what ``merge_fn`` makes of them; with ``keep_key`` it comes
    as ``(key, result)``. At most ``buffer_size`` items of ``ref_datapipe`` (None: any
    number) wait for their partner: then the oldest is dropped, with a warning. An item
    that has no partner is a BufferError, and a key that two waiting items share is a
    ValueError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> images = IterableWrapper(["b.png", "a.png"])
    >>> labels = IterableWrapper(["a.txt", "b.txt"])
    >>> list(images.zip_with_iter(labels, key_fn=lambda name: name[0]))
    [('b.png', 'b.txt'), ('a.png', 'a.txt')]
    """

    State = Joined

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        ref_datapipe: Iterable[Any],
        key_fn: Callable[[Any], Any],
        ref_key_fn: Callable[[Any], Any] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.ref_datapipe = iterable_source(ref_datapipe)
        self.key_fn = checked_function("key_fn", key_fn, takes=1)
        self.ref_key_fn = ref_key_fn
        self.ref_key = key_fn
        if ref_key_fn is not None:
            self.ref_key = checked_function("ref_key_fn", ref_key_fn, takes=1)
        self.keep_key = keep_key
        self.buffer_size = buffer_size
        if buffer_size is not None:
            self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.merge_fn = merge_fn
        self.merge = checked_merge(merge_fn)

    def waits(self) -> bool:
        return super().waits() or is_async(self.ref_key)

    @property
    def sources(self) -> tuple[Any, Any]:
        """What is yielded, and what is looked up."""
        return self.source, self.ref_datapipe

    def run(self, source: tuple[Edge[Any], Edge[Any]], state: Joined) -> Iterator[Any]:
        items, refs = source
        waiting = state._waiting
        with contextlib.ExitStack() as stack:
            key_fn, ref_key_fn, merge = (
                stack.enter_context(calling(function))
                for function in (self.key_fn, self.ref_key, self.merge)
            )
            first, waited = refs.count(), numbers_in(state.waiting)
            again, following = refs.again(waited)
            stack.callback(close_items, following)
            numbered = enumerate(following, first)
            for number, ref in zip(waited, again, strict=True):
                waiting[key_of(self, ref_key_fn, ref)] = number, ref
            for item in items:
                key = key_of(self, key_fn, item)
                while key not in waiting:
                    self._take_for(key, numbered, ref_key_fn, state)
                result = self.result(key, merge, item, waiting[key][1])
                del waiting[key]
                state.yielded += 1
                yield result

    def _take_for(
        self,
        wanted: Any,
        refs: Iterator[tuple[int, Any]],
        ref_key_fn: Callable[..., Any],
        state: Joined,
    ) -> None:
        waiting, held = state._waiting, next(refs, None)
        if held is None:
            raise BufferError(
                f"{self!r} found no item with the key {wanted!r} in its ref_datapipe; if it"
                " was dropped before its turn, make buffer_size larger"
            )
        key = key_of(self, ref_key_fn, held[1])
        if key in waiting:
            raise ValueError(
                f"{self!r} got the key {key!r} from its ref_datapipe twice; keys must differ"
            )
        if key != wanted and len(waiting) == self.buffer_size:
            self._drop_oldest(state)
        waiting[key] = held

    def _drop_oldest(self, state: Joined) -> None:
        del state._waiting[next(iter(state._waiting))]
        state.dropped = (state.dropped or 0) + 1
        if state.dropped == 1:
            warnings.warn(
                f"{self!r} drops items that wait for their partners, the oldest first; if"
                " their partners are still to come, make buffer_size larger",
                stacklevel=4,
            )


@functional_datapipe("zip_with_map")
class MapKeyZipper(OneToOne, Joiner):
    """Yield each item together with what ``map_datapipe`` has under its key.

    The key is what ``key_fn`` returns. The result is a tuple of the two, or what
    ``merge_fn`` makes of them; with ``keep_key`` it comes as ``(key, result)``. A key
    that ``map_datapipe`` does not have is a KeyError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> prices = SequenceWrapper({"tea": 3, "bun": 2})
    >>> list(IterableWrapper(["bun", "tea"]).zip_with_map(prices, str))
    [('bun', 2), ('tea', 3)]
    """

    def __init__(
        self,
        source_iterdatapipe: Iterable[Any],
        map_datapipe: MapDataPipe[Any],
        key_fn: Callable[[Any], Any],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> None:
        self.source = iterable_source(source_iterdatapipe)
        self.map_datapipe = keyed_source(map_datapipe)
        self.key_fn = checked_function("key_fn", key_fn, takes=1)
        self.merge_fn = merge_fn
        self.merge = checked_merge(merge_fn)
        self.keep_key = keep_key

    def run(self, source: Edge[Any], state: None) -> Iterator[Any]:
        with calling(self.key_fn) as key_fn, calling(self.merge) as merge:
            for item in source:
                key = answer_of(self, key_fn, item)
                yield self.result(key, merge, item, self._looked_up(key))

    def _looked_up(self, key: Any) -> Any:
        try:
            return self.map_datapipe[key]
        except LookupError as error:
            raise KeyError(f"{self!r} finds nothing under the key {key!r}") from error
        except TypeError as error:
            blame(error, self)
            raise
