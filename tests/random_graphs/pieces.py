"""What random graphs are made of: sources of ids, functions, and a user's own pipes.

Every item is made of ids (whole numbers, each from one place of one source) in tuples, lists and
dicts, so that what was lost or doubled on the way can be seen in the end.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import hashlib
import pickle
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from asyncloader import adapters as ad  # noqa: F401 - graphs are built with their names
from asyncloader.datapipes.iter import *  # noqa: F403
from asyncloader.datapipes.iter import IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper, SharedSequence  # noqa: F401
from tests.random_graphs.data_sets import *  # noqa: F403
from tests.random_graphs.data_sets import ids, plain

# Sources ----------------------------------------------------------------------------------------


class WithState(IterDataPipe[int]):
    """A source that finds its place by itself."""

    def __init__(self, source: int, count: int) -> None:
        self.ids = ids(source, count)
        self.first = self.next = 0

    def __iter__(self) -> Iterator[int]:
        # A pass has its place to itself: two of them may run at once.
        first, self.first = self.first, 0
        for place in range(first, len(self.ids)):
            self.next = place + 1
            yield self.ids[place]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["next"]


class Later:
    """An async iterable."""

    def __init__(self, source: int, count: int) -> None:
        self.ids = ids(source, count)

    async def __aiter__(self) -> AsyncIterator[int]:
        for each in self.ids:
            await asyncio.sleep(0)
            yield each


# What items are made of -------------------------------------------------------------------------


def sources(item: Any) -> Iterator[int]:
    """Yield the ids in an item."""
    if isinstance(item, int):
        yield item
    elif isinstance(item, (list, tuple)):
        for each in item:
            yield from sources(each)
    elif isinstance(item, dict):
        yield from sources(list(item.values()))


def number(item: Any) -> int:
    """A number for a choice that depends on the item alone."""
    return sum(sources(item))


# Functions --------------------------------------------------------------------------------------


def tag(item: Any) -> Any:
    return "t", item


async def tag_soon(item: Any) -> Any:
    await asyncio.sleep(0)
    return "s", item


def tag_all(items: list[Any]) -> list[Any]:
    return [("a", item) for item in items]


def texted(numbered: tuple[int, Any]) -> Any:
    """Make the number of an item none that could be an id."""
    return str(numbered[0]), numbered[1]


def pair(item: Any) -> Any:
    return item, tag(item)


def thrice(item: Any) -> list[Any]:
    return [("1", item), ("2", item), ("3", item)]


def is_kept(item: Any) -> bool:
    return number(item) % 3 > 0


def kind(item: Any) -> int:
    return number(item) % 2


def size(item: Any) -> int:
    return 1 + number(item) % 4


def by_size(items: list[Any]) -> list[Any]:
    return sorted(items, key=size)


def noisy(item: Any) -> Any:
    """Draw from the global generator of the process."""
    return item, random.random()


def as_it_is(item: Any, device: Any) -> Any:
    return item


# A user's pipes ---------------------------------------------------------------------------------


class OverOne(IterDataPipe[Any]):
    """A pipe over one other."""

    def __init__(self, source: Any) -> None:
        self.source = source


class Twice(OverOne):
    """Yields more than it reads."""

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield "first", item
            yield "second", item


class EveryOther(OverOne):
    """Yields less than it reads."""

    def __iter__(self) -> Iterator[Any]:
        for place, item in enumerate(self.source):
            if place % 2 == 0:
                yield item


class Held(OverOne):
    """Holds up to three items back, and yields them the other way round."""

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for item in self.source:
            held.append(item)
            if len(held) == 3:
                yield from reversed(held)
                held = []
        yield from held


class ReadTwice(OverOne):
    """Reads its source once more when it has ended."""

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield "first", item
        for item in self.source:
            yield "again", item


class Waiting(OverOne):
    """Waits for each item."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self.source:
            await asyncio.sleep(0)
            yield item


class Alone(OverOne):
    """Is not to be copied to workers."""

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


# More than one line -----------------------------------------------------------------------------


#: The pipes that the functions below make, and those that bucketbatch, data sets and adapters do.
HELPERS = (
    *("unzip", "random_split", "concat", "on_disk_cache", "end_caching", "map"),
    *("batch", "unbatch", "shuffle", "collate", "to_iter_datapipe", "fullsync", "pin_memory"),
    *("sharding_filter", "sharding_round_robin_dispatch", "prefetch", "SampledItems"),
    "IterableWrapper",
)


def pairs(source: Any) -> Any:
    """Two columns, which are taken apart."""
    return source.map(pair).unzip(2)


def rows(data: Any) -> Any:
    """Items that are looked up, made of ids."""
    return SequenceWrapper(data).map(plain)


def zipped_rows(first: Any, second: Any) -> Any:
    return rows(first).zip(rows(second))


def chained_rows(first: Any, second: Any) -> Any:
    return rows(first).concat(rows(second))


def columns(data: Any) -> Any:
    """Items that are looked up in two columns of one data set."""
    first, second = rows(data).map(pair).unzip(2)
    return first.zip(second)


def split_and_joined(source: Any, seed: int) -> Any:
    """Shares, one after the other, since one is read at a time."""
    first, second = source.random_split({"a": 1, "b": 2}, seed, total_length=1000)
    return first.concat(second)


def cached_on_disk(source: Any) -> Any:
    """Items that are kept as files, which outlive the graph."""
    begun = source.on_disk_cache(_Folder().path)
    paths = begun.map(_with_content).end_caching("wb", same_filepath_fn=True)
    return paths.map(_of_file)


class _Folder:
    """A folder of which no setting of a pipe tells the name: states fit any process's."""

    def __init__(self) -> None:
        self.name = _folder()

    def path(self, item: Any) -> str:
        return str(Path(self.name, hashlib.sha256(repr(item).encode()).hexdigest()))


def _with_content(item: Any) -> tuple[Any, bytes]:
    return item, pickle.dumps(item)


def _of_file(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


@functools.cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="asyncloader-graphs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
