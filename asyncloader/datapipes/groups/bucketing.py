"""Batches of items that are alike.

This file is about bucketbatch, which sorts buckets of items before it batches them, and
max_token_bucketize, whose batches have as many items as fit into a count of tokens.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import Form, Rule, at_most, counts, fields
from asyncloader.datapipes.groups.batching import Batcher
from asyncloader.datapipes.groups.flattening import FlatMapper, UnBatcher
from asyncloader.datapipes.groups.shuffling import InBatchShuffler, Shuffler
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns.rereading import add_cursors, closing_items
from asyncloader.datapipes.pipe.answers import answer_of
from asyncloader.datapipes.pipe.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import calling, is_async
from asyncloader.datapipes.pipe.run import Pass, Run

T = TypeVar("T")


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

    def results(self, source: Run[Any]) -> Iterator[list[T]]:
        return source.begin()

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
    """Yields the items of buckets, as ``sort_key`` has them; errors are those of bucketbatch."""

    functional_name = "bucketbatch"


@functional_datapipe("max_token_bucketize")
class MaxTokenBucketizer(IterDataPipe[list[T]]):
    """Yield batches of items of like length, of at most ``max_token_count`` tokens each.

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

    def waits(self) -> bool:
        return is_async(self.len_fn)

    def new_pass(self, run: Run[Any]) -> BucketizePass[T]:
        return BucketizePass(run)

    def cursor_form(self) -> Form:
        whole_sections: Rule = (
            f"what was taken are sections of {self.section} items each",
            lambda cursor: cursor["taken"] % self.section == 0,
        )
        return fields(counts("taken", "yielded"), whole_sections, at_most("yielded", "taken"))

    def lets_pass(self, length: Any) -> bool:
        """Whether an item of some length is not left out; TypeError for what is no number."""
        try:
            return bool(self.min_len <= length <= self.max_len)
        except TypeError:
            raise TypeError(
                f"len_fn of {self!r} must return a number, got {type(length).__name__}"
            ) from None

    @property
    def section(self) -> int:
        """How many items are taken before the buffer is emptied."""
        return min(max(2 * self.buffer_size, 1000), sys.maxsize)


@dataclass
class BucketizePass(Pass[list[T]]):
    """One pass over a MaxTokenBucketizer, which knows where its latest section began.

    Sections have nothing to do with one another, so a pass can go on from the beginning
    of any: ``taken`` and ``yielded`` count what came before it.
    """

    marks = ("taken", "yielded")

    taken: int = 0
    yielded: int = 0
    taken_since: int = 0
    yielded_since: int = 0
    began_with: Cursors = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[list[T]]:
        self.began_with = self.source.first_cursors()
        items = self.source.begin()
        with calling(self.pipe.len_fn) as length_of, closing_items(items):
            while True:
                for batch in self._section(items, length_of):
                    self.yielded_since += 1
                    yield batch
                if self.taken_since < self.pipe.section:
                    return
                self._begin_section()

    def _section(self, items: Iterator[T], length_of: Callable[..., Any]) -> Iterator[list[T]]:
        pipe, batch = self.pipe, _Batch(self.pipe)
        heap: list[tuple[Any, int, T]] = []
        for number, item in enumerate(islice(items, pipe.section)):
            length = answer_of(pipe, length_of, item)
            self.taken_since += 1
            if not pipe.lets_pass(length):
                continue
            heapq.heappush(heap, (length, number, item))
            if len(heap) == pipe.buffer_size:
                yield from batch.add(heapq.heappop(heap))
        while heap:
            yield from batch.add(heapq.heappop(heap))
        if batch.items:
            yield batch.items

    def _begin_section(self) -> None:
        self.taken += self.taken_since
        self.yielded += self.yielded_since
        self.taken_since = self.yielded_since = 0
        self.began_with = {}
        self.source.put_cursors(self.began_with)

    def put_above(self, into: Cursors) -> None:
        add_cursors(self.began_with, into)

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        self.taken, self.yielded = cursor["taken"], cursor["yielded"]
        self.source.resume(self.taken, cursors)
        return position - self.yielded


class _Batch(Generic[T]):
    """The batch that is being filled, and what it counts for."""

    def __init__(self, pipe: MaxTokenBucketizer[T]) -> None:
        self.pipe = pipe
        self.items: list[T] = []
        self.tokens = 0
        self.longest = 0

    def add(self, entry: tuple[Any, int, T]) -> Iterator[list[T]]:
        """Take an item; yield the batch so far, and begin another, if it does not fit."""
        length, _, item = entry
        if self._with(length) > self.pipe.max_token_count:
            full, self.items, self.tokens, self.longest = self.items, [], 0, 0
            yield full
        self.tokens = self._with(length)
        self.longest = max(self.longest, length)
        self.items.append(item)

    def _with(self, length: int) -> int:
        if self.pipe.include_padding:
            return (len(self.items) + 1) * max(self.longest, length)
        return self.tokens + length
