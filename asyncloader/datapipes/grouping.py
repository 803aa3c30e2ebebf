"""Items put together by what they have in common.

This file is about groupby, about bucketbatch, which sorts buckets of items before it batches
them, and about max_token_bucketize, whose batches have as many items as fit into a count of
tokens.
"""

from __future__ import annotations

import heapq
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from itertools import islice
from typing import Annotated, Any, TypeVar

from asyncloader.arguments import checked_count, checked_function
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.call import answer_of, calling, is_async, key_of
from asyncloader.datapipes.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns import Finished, Pipe, closing_items
from asyncloader.datapipes.recording import Joining, of_numbered
from asyncloader.datapipes.running.cursor_forms import (
    Of,
    State,
    ascending,
    at_most,
)
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.settled import Reason
from asyncloader.datapipes.shuffling import InBatchShuffler, Shuffler
from asyncloader.datapipes.sources import iterable_source

T = TypeVar("T")


class Grouped(State):
    """The place of a Grouper, and the positions of the items that it holds."""

    held: Annotated[list[int], Of(lambda pipe: ascending(most=pipe.buffer_size))] = field(
        default_factory=list
    )
    _groups: Groups = field(default_factory=lambda: Groups())

    def needs(self, taken: int) -> int:
        return self._groups.oldest(taken)

    def fill(self, taken: int, yielded: int) -> None:
        super().fill(taken, yielded)
        self.held = self._groups.positions()

    def check(self, pipe: Any) -> Iterator[str]:
        were_taken = not self.held or self.held[-1] < self.taken
        if not (were_taken and self.yielded + len(self.held) <= self.taken):
            yield "the held items were taken, and each taken item was yielded or is held"


@functional_datapipe("groupby")
class Grouper(Pipe[Any]):
    """Yield lists of items for which ``group_key_fn(item)`` is the same.

    A group is yielded once it has ``group_size`` items. When ``buffer_size`` items
    are held, the largest group is yielded if it has ``guaranteed_group_size``
    (default: ``group_size``); otherwise it is left out with ``drop_remaining``, and
    a RuntimeError without. At the end of the source all that is held is yielded,
    in the order the groups began. With ``keep_key`` each comes as ``(key, group)``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["apple", "beet", "avocado"]).groupby(lambda name: name[0]))
    [['apple', 'avocado'], ['beet']]
    """

    State = Grouped

    def __init__(
        self,
        datapipe: Iterable[T],
        group_key_fn: Callable[[T], Any],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.group_key_fn = checked_function("group_key_fn", group_key_fn, takes=1)
        self.keep_key = keep_key
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.group_size = _checked_size("group_size", group_size, "buffer_size", buffer_size)
        self.guaranteed_group_size = _checked_size(
            "guaranteed_group_size", guaranteed_group_size, "group_size", group_size
        )
        self.drop_remaining = drop_remaining

    def waits(self) -> bool:
        return is_async(self.group_key_fn)

    def in_section(self) -> Any:
        if self.drop_remaining:
            # Nobody is told of what it drops.
            return None
        self.group_key_fn = of_numbered(self.group_key_fn)
        return KeyedJoining(self) if self.keep_key else Joining(self)

    def run(self, source: Edge[Any], state: Grouped) -> Iterator[Any]:
        groups = state._groups
        with calling(self.group_key_fn, self) as function:
            again, items = source.again(state.held)
            for position, item in zip(state.held, again, strict=True):
                groups.add(key_of(self, function, item), item, position)
            for position, item in enumerate(items, state.taken):
                key = key_of(self, function, item)
                if groups.add(key, item, position) == self.group_size:
                    yield self._yielded(groups, key)
                if groups.count == self.buffer_size:
                    largest = groups.largest()
                    if self._may_leave(groups, largest):
                        yield self._yielded(groups, largest)
        while groups.count:
            yield self._yielded(groups, groups.first())

    def _yielded(self, groups: Groups, key: Any) -> Any:
        items = groups.take(key)
        return (key, items) if self.keep_key else items

    def _may_leave(self, groups: Groups, key: Any) -> bool:
        """Whether a group may be yielded to make room.

        One that is too small is dropped if drop_remaining allows it.
        """
        size = groups.size(key)
        least = self.guaranteed_group_size or self.group_size or 1
        if size >= least:
            return True
        if not self.drop_remaining:
            raise RuntimeError(
                f"the buffer of {self!r} is full and its largest group has {size} items, fewer"
                f" than the {least} guaranteed; make buffer_size larger, guaranteed_group_size"
                " smaller, or set drop_remaining=True to leave such groups out"
            )
        groups.take(key)
        return False


class Groups:
    """The groups that are not yet full, in the order in which they began."""

    def __init__(self) -> None:
        #: How many items there are in all groups.
        self.count = 0
        #: The positions and items of each group.
        self._groups: dict[Any, list[tuple[int, Any]]] = {}
        # A heap of (minus the size, first position, key) of every group, with outdated entries
        # too; empty until the largest is needed.
        self._by_size: list[tuple[int, int, Any]] = []

    def add(self, key: Any, item: Any, position: int) -> int:
        """Add an item to its group; return how many that has."""
        group = self._groups.setdefault(key, [])
        group.append((position, item))
        self.count += 1
        if self._by_size:
            heapq.heappush(self._by_size, (*_rank(group), key))
            if len(self._by_size) > 4 * self.count:
                # Most entries are outdated: rebuild it when the buffer is full again.
                self._by_size.clear()
        return len(group)

    def take(self, key: Any) -> list[Any]:
        """Take a group out; return its items."""
        items = [item for _, item in self._groups.pop(key)]
        self.count -= len(items)
        return items

    def size(self, key: Any) -> int:
        """Return how many items a group has."""
        return len(self._groups[key])

    def first(self) -> Any:
        """Return the key of the oldest group."""
        return next(iter(self._groups))

    def oldest(self, taken: int) -> int:
        """Return the position of the oldest item; ``taken`` if there is none."""
        group = next(iter(self._groups.values()), None)
        return taken if group is None else group[0][0]

    def positions(self) -> list[int]:
        """Return the positions of all items, in ascending order."""
        return sorted(position for group in self._groups.values() for position, _ in group)

    def largest(self) -> Any:
        """Return the key of the largest group, the oldest of several."""
        if not self._by_size:
            self._by_size = [(*_rank(group), key) for key, group in self._groups.items()]
            heapq.heapify(self._by_size)
        while True:
            *rank, key = self._by_size[0]
            if key in self._groups and [*_rank(self._groups[key])] == rank:
                return key
            heapq.heappop(self._by_size)


class KeyedJoining(Joining):
    """Makes one numbered item of a key with a list of them."""

    def made_of(self, items: Any) -> Any:
        key, members = items
        whole = super().made_of(members)
        return whole.with_item((key, whole.item))


def _checked_size(name: str, size: int | None, limit_name: str, limit: int | None) -> int | None:
    if size is None:
        return None
    checked_count(name, size, at_least=1)
    if limit is None:
        raise ValueError(f"{name}={size} needs a {limit_name} of at least {size}; give both")
    if size > limit:
        raise ValueError(f"{name} must be at most {limit_name} ({limit}), got {size}")
    return size


def _rank(group: list[tuple[int, Any]]) -> tuple[int, int]:
    """Return the sort key of a group: the largest is first, and of several the oldest."""
    return -len(group), group[0][0]


@functional_datapipe("bucketbatch")
class BucketBatcher(OneToOne, IterDataPipe[list[T]]):
    """Yield batches of items from sorted buckets, in an order drawn from a seed.

    Items are shuffled in pools of ``bucket_num`` buckets, if there are several. Each
    bucket, of ``batch_num`` batches, is replaced by ``sort_key(bucket)``, a list, and cut
    into batches, which are shuffled ``bucket_num`` at a time. Without ``sort_key`` the
    items of each pool are shuffled, and that is all. With ``use_in_batch_shuffle=False``
    they are shuffled through buffers instead: the items of a pool's size, the batches of
    a bucket's. With ``drop_last`` a last batch that is not full is left out.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([5, 1, 4, 2, 3, 0]).bucketbatch(2, sort_key=sorted))
    [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(
        self,
        datapipe: Iterable[T],
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[T]], Any] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> None:
        self.batch_size = checked_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.batch_num = checked_count("batch_num", batch_num, at_least=1)
        self.bucket_num = checked_count("bucket_num", bucket_num, at_least=1)
        self.sort_key = sort_key
        if sort_key is not None:
            checked_function("sort_key", sort_key, takes=1)
        self.use_in_batch_shuffle = use_in_batch_shuffle
        self.source = self._batches(iterable_source(datapipe))

    def __len__(self) -> int:
        return len(self.source)

    def run(self, source: Edge[Any], state: None) -> Iterator[list[T]]:
        return iter(source)

    def _batches(self, items: Any) -> IterDataPipe[Any]:
        bucket = self.batch_size * self.batch_num
        if self.sort_key is None:
            pools = self._shuffled(items, bucket * self.bucket_num)
            return Batcher(pools, self.batch_size, self.drop_last)
        if self.bucket_num > 1:
            items = self._shuffled(items, bucket * self.bucket_num)
        in_order: Any = BucketSorter(Batcher(items, bucket), self.sort_key)
        batches: Any = Batcher(in_order, self.batch_size, self.drop_last)
        return self._shuffled(batches, self.bucket_num if self.use_in_batch_shuffle else bucket)

    def _shuffled(self, items: Any, pool: int) -> IterDataPipe[Any]:
        if not self.use_in_batch_shuffle:
            return Shuffler(items, buffer_size=pool)
        return UnBatcher(InBatchShuffler(Batcher(items, pool)))


class BucketSorter(FlatMapper[T]):
    """Yields the items of buckets sorted by ``sort_key``; errors name bucketbatch."""

    functional_name = "bucketbatch"


@functional_datapipe("batch_tokens")
class TokenBatcher(Pipe[list[T]]):
    """Yield lists of items that follow one another, of at most ``max_tokens`` together.

    ``length`` says how many tokens an item has, such as the tokens of all answers of a group. An
    item that has more than ``max_tokens`` by itself comes alone.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> words = IterableWrapper(["a", "an", "ant", "antler", "at"])
    >>> list(words.batch_tokens(5))
    [['a', 'an'], ['ant'], ['antler'], ['at']]
    """

    makes_again = False
    State = Finished

    def __init__(
        self,
        datapipe: Iterable[T],
        max_tokens: int,
        length: Callable[[T], Any] = len,  # type: ignore[assignment]  # as a default of any T
    ) -> None:
        self.source = iterable_source(datapipe)
        self.max_tokens = checked_count("max_tokens", max_tokens, at_least=1)
        self.length = checked_function("length", length, takes=1)

    def waits(self) -> bool:
        return is_async(self.length)

    def in_section(self) -> Any:
        self.length = of_numbered(self.length)
        return Joining(self)

    def run(self, source: Edge[T], state: Finished) -> Iterator[list[T]]:
        batch: list[T] = []
        tokens = 0
        with calling(self.length, self) as length:
            for item in source:
                added = self._checked(answer_of(self, length, item))
                if batch and tokens + added > self.max_tokens:
                    state.taken, state.yielded = state.taken + len(batch), state.yielded + 1
                    yield batch
                    batch, tokens = [], 0
                batch.append(item)
                tokens += added
                del item
        if batch:
            state.taken, state.yielded = state.taken + len(batch), state.yielded + 1
            yield batch

    def full(self, items: list[T]) -> int:
        """Return how many of the first items are a full batch, or 0 if more may fit into it."""
        tokens = 0
        for at, item in enumerate(items):
            tokens += self._checked(answer_of(self, self.length, item))
            if at and tokens > self.max_tokens:
                return at
        return 0

    def _checked(self, tokens: Any) -> Any:
        if isinstance(tokens, bool) or not hasattr(tokens, "__index__") or tokens < 0:
            raise TypeError(
                f"length of {self!r} must return a number of tokens, from 0, got {tokens!r}"
            )
        return tokens


class Bucketized(Finished):
    """The place of a MaxTokenBucketizer: the items before its latest section.

    Sections are independent, so a pass can resume at the beginning of any.
    """

    def check(self, pipe: Any) -> Iterator[str]:
        if self.taken % pipe.section:
            yield f"the taken items are whole sections of {pipe.section} items"
        yield from at_most(self, "yielded", "taken")


@functional_datapipe("max_token_bucketize")
class MaxTokenBucketizer(Pipe[list[T]]):
    """Yield batches of items of similar length, of at most ``max_token_count`` tokens each.

    ``len_fn`` says how many tokens an item has. Items with fewer than ``min_len``, or
    more than ``max_len`` (default: ``max_token_count``), are left out. ``buffer_size``
    items are held, of which the shortest goes into the next batch. With
    ``include_padding`` a batch counts as if its items were all as long as its longest.

    Every ``2 * buffer_size`` items (or 1,000, if that is more) the buffer is emptied, so
    that long items do not have to wait for the end of the source.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> words = IterableWrapper(["a", "an", "ant", "antler", "at", "b"])
    >>> list(words.max_token_bucketize(5))
    [['a', 'b', 'an'], ['at', 'ant']]
    """

    State = Bucketized

    def __init__(
        self,
        datapipe: Iterable[T],
        max_token_count: int,
        len_fn: Callable[[T], Any] = len,  # type: ignore[assignment]
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.max_token_count = checked_count("max_token_count", max_token_count, at_least=0)
        self.len_fn = checked_function("len_fn", len_fn, takes=1)
        self.min_len = checked_count("min_len", min_len, at_least=0)
        name = "max_token_count" if max_len is None else "max_len"
        longest = max_token_count if max_len is None else max_len
        self.max_len = checked_count(name, longest, at_least=min_len)
        if self.max_len > max_token_count:
            raise ValueError(
                f"max_len must be at most max_token_count ({max_token_count}), got {max_len}"
            )
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.include_padding = include_padding
        self._leave_out: Callable[[Any], None] | None = None

    def waits(self) -> bool:
        return is_async(self.len_fn)

    def in_section(self) -> Any:
        self.len_fn = of_numbered(self.len_fn)
        self._leave_out = operator.methodcaller("leave_out", Reason.LENGTH)
        return Joining(self)

    def run(self, source: Edge[T], state: Bucketized) -> Iterator[list[T]]:
        items, yielded = iter(source), 0
        with calling(self.len_fn) as length_of, closing_items(items):
            while True:
                for batch in self._batches(self._section(items, length_of)):
                    yielded += 1
                    yield batch
                if source.count() < state.taken + self.section:
                    return
                # Both at once, so that a place is never taken in between.
                state.taken, state.yielded = source.count(), state.yielded + yielded
                yielded = 0

    def _section(
        self, items: Iterator[T], length_of: Callable[..., Any]
    ) -> Iterator[tuple[Any, int, T]]:
        """Yield the lengths, numbers and items of a section, about the shortest first."""
        heap: list[tuple[Any, int, T]] = []
        for number, item in enumerate(islice(items, self.section)):
            length = answer_of(self, length_of, item)
            if not self.lets_pass(length):
                self.leave_out(item)
                continue
            heapq.heappush(heap, (length, number, item))
            if len(heap) == self.buffer_size:
                yield heapq.heappop(heap)
        while heap:
            yield heapq.heappop(heap)

    def _batches(self, entries: Iterator[tuple[Any, int, T]]) -> Iterator[list[T]]:
        most, pads = self.max_token_count, self.include_padding
        batch: list[T] = []
        tokens = longest = 0
        for length, _, item in entries:
            longest = max(longest, length)
            tokens = (len(batch) + 1) * longest if pads else tokens + length
            if tokens > most:
                yield batch
                batch, tokens, longest = [], length, length
            batch.append(item)
        if batch:
            yield batch

    def lets_pass(self, length: Any) -> bool:
        """Whether an item of this length is kept; TypeError if the length is no number."""
        try:
            return bool(self.min_len <= length <= self.max_len)
        except TypeError:
            raise TypeError(
                f"len_fn of {self!r} must return a number, got {type(length).__name__}"
            ) from None

    def leave_out(self, item: T) -> None:
        """Note that an item is left out, where that is recorded."""
        if self._leave_out is not None:
            self._leave_out(item)

    @property
    def section(self) -> int:
        """How many items are taken before the buffer is emptied."""
        return min(max(2 * self.buffer_size, 1000), sys.maxsize)
