"""One source, several branches.

This file is about fork, demux and round_robin_demux. A splitter is one pipe that
reads the source, and each of its branches is a pipe that reads the splitter:

    source ──▶ splitter ──┬──▶ branch 0
                          └──▶ branch 1

All branches share a pass over the source. What one branch draws for another waits
in that one's queue. An iterator of a branch joins the pass that is under way if the
branch is not in it yet; otherwise it begins a new one, and the iterators of the
pass before are invalid. Branches may be read in different threads.
"""

from __future__ import annotations

import copy as copying
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import CoroutineType
from typing import Any, Literal, TypeVar

from asyncloader.datapipes.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.function import blame, is_async, itself, unawaited
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.split_pass import SplitPass

T = TypeVar("T")


class Branch(IterDataPipe[T]):
    """One of the streams that a splitter makes of its source."""

    def __init__(self, splitter: Splitter[T], index: int) -> None:
        self.source = splitter
        self.index = index

    def __len__(self) -> int:
        return self.source.branch_length(self.index)

    def __iter__(self) -> Iterator[T]:
        return BranchIterator(self.source.join(self.index), self.index, self.source.copied)

    def __repr__(self) -> str:
        return f"{stage_name(self.source)}[{self.index}]"


class BranchIterator(Iterator[T]):
    """Reads a branch's share of one pass; dropped or closed, it leaves the pass."""

    def __init__(self, split: SplitPass[T], index: int, copied: Callable[[T], T]) -> None:
        self.split = split
        self.index = index
        self.copied = copied

    def __next__(self) -> T:
        item = self.split.next_of(self.index)
        return item if self.copied is itself else self.copied(item)

    def close(self) -> None:
        """Take no more; the pass is over when no branch takes any."""
        self.split.leave(self.index)

    def __del__(self) -> None:
        self.close()


class Splitter(IterDataPipe[T]):
    """Reads the source for all branches."""

    #: What a branch does to an item that it hands out.
    copied: Callable[[Any], Any] = staticmethod(itself)

    #: The pass that the branches share, if they were iterated.
    current_pass: SplitPass[T] | None = None

    def __init__(self, datapipe: Iterable[T], num_instances: int, buffer_size: int) -> None:
        self.source = iterable_source(datapipe)
        self.num_instances = checked_count("num_instances", num_instances, at_least=1)
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=-1)
        self._joining = threading.Lock()
        if buffer_size == -1:
            warnings.warn(
                f"{self!r} holds as many items as one branch is ahead of another, without bound",
                stacklevel=5,
            )

    def is_splitter(self) -> bool:
        return True

    def branches(self) -> list[Branch[T]]:
        """Return a pipe for each branch."""
        return [Branch(self, index) for index in range(self.num_instances)]

    def join(self, index: int) -> SplitPass[T]:
        """Return the pass under way, now with this branch in it, or a new pass."""
        with self._joining:
            split = self.current_pass
            if split is None or not split.join(index):
                if split is not None:
                    split.invalidate()
                self.current_pass = split = SplitPass(self)
                split.join(index)
            return split

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function that a split needs, if it needs one."""
        return itself

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        """Return the branches that get the item with this number."""
        raise NotImplementedError

    def held(self, lengths: Iterable[int]) -> int:
        """Return what ``buffer_size`` bounds: the items that wait for the other branches."""
        return sum(lengths)

    def branch_length(self, index: int) -> int:
        """Return how many items a branch has, or raise TypeError."""
        raise TypeError(f"{self!r} cannot say how many items each branch gets")

    def __iter__(self) -> Iterator[T]:
        raise TypeError(f"{self!r} is read through its branches: iterate those")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_joining"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._joining = threading.Lock()


@functional_datapipe("fork")
class Forker(IterDataPipe[T]):
    """Return a list of branches that each yield all of the source's items.

    They yield the same objects, unless ``copy`` is "shallow" or "deep". A branch
    that gets more than ``buffer_size`` items ahead of another is a BufferError;
    -1 sets no bound.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> left, right = IterableWrapper([1, 2]).fork(2)
    >>> list(left), list(right)
    ([1, 2], [1, 2])
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: Iterable[T],
        num_instances: int,
        buffer_size: int = 1000,
        copy: Literal["shallow", "deep"] | None = None,
    ) -> list[Branch[T]]:
        return ForkSplitter(datapipe, num_instances, buffer_size, copy).branches()


class ForkSplitter(Splitter[T]):
    """Gives every branch every item."""

    functional_name = "fork"

    def __init__(
        self,
        datapipe: Iterable[T],
        num_instances: int,
        buffer_size: int = 1000,
        copy: Literal["shallow", "deep"] | None = None,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        if copy not in _COPIES:
            raise ValueError(f'copy must be None, "shallow" or "deep", got {copy!r}')
        self.copy = copy
        self.copied = _COPIES[copy]

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        return range(self.num_instances)

    def held(self, lengths: Iterable[int]) -> int:
        # The branches share the items: the one that is furthest behind needs them all.
        return max(lengths, default=0)

    def branch_length(self, index: int) -> int:
        return len(self.source)


_COPIES: dict[str | None, Callable[[Any], Any]] = {
    None: itself,
    "shallow": copying.copy,
    "deep": copying.deepcopy,
}


@functional_datapipe("demux")
class Demultiplexer(IterDataPipe[T]):
    """Return a list of branches, of which ``classifier_fn(item)`` picks one for each item.

    It returns the branch's index, or None for an item that no branch gets, which
    ``drop_none`` must allow. More than ``buffer_size`` items waiting for branches
    that do not take them are a BufferError; -1 sets no bound.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> even, odd = IterableWrapper(range(5)).demux(2, lambda n: n % 2)
    >>> list(even), list(odd)
    ([0, 2, 4], [1, 3])
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: Iterable[T],
        num_instances: int,
        classifier_fn: Callable[[T], Any],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[Branch[T]]:
        splitter = DemuxSplitter(datapipe, num_instances, classifier_fn, drop_none, buffer_size)
        return splitter.branches()


class DemuxSplitter(Splitter[T]):
    """Gives each item to the branch that a function picks for it."""

    functional_name = "demux"

    def __init__(
        self,
        datapipe: Iterable[T],
        num_instances: int,
        classifier_fn: Callable[[T], Any],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.classifier_fn: Callable[[T], Any] = checked_function("classifier_fn", classifier_fn)
        self.drop_none = drop_none

    def waits(self) -> bool:
        return is_async(self.classifier_fn)

    @property
    def function(self) -> Callable[..., Any]:
        return self.classifier_fn

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        try:
            answer = function(item)
        except BaseException as error:
            blame(error, self)
            raise
        if answer is None and self.drop_none:
            return ()
        return (self._checked(answer),)

    def _checked(self, answer: Any) -> int:
        if answer.__class__ is CoroutineType:
            raise unawaited(self)
        last = self.num_instances - 1
        if answer is None:
            raise ValueError(
                f"classifier_fn returned None; return 0 to {last}, or pass drop_none=True"
            )
        try:
            index = operator.index(answer)
        except TypeError:
            raise TypeError(
                f"classifier_fn must return an integer, got {type(answer).__name__}"
            ) from None
        if not 0 <= index <= last:
            raise ValueError(f"classifier_fn must return 0 to {last}, got {index}")
        return index


@functional_datapipe("round_robin_demux")
class RoundRobinDemultiplexer(IterDataPipe[T]):
    """Return a list of branches that get the source's items in turn.

    More than ``buffer_size`` items waiting for branches that do not take them are
    a BufferError; -1 sets no bound.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> first, second = IterableWrapper(range(5)).round_robin_demux(2)
    >>> list(first), list(second)
    ([0, 2, 4], [1, 3])
    """

    def __new__(  # type: ignore[misc]
        cls, datapipe: Iterable[T], num_instances: int, buffer_size: int = 1000
    ) -> list[Branch[T]]:
        return RoundRobinSplitter(datapipe, num_instances, buffer_size).branches()


class RoundRobinSplitter(Splitter[T]):
    """Gives each branch every n-th item."""

    functional_name = "round_robin_demux"

    def __init__(self, datapipe: Iterable[T], num_instances: int, buffer_size: int = 1000) -> None:
        super().__init__(datapipe, num_instances, buffer_size)

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        return (number % self.num_instances,)

    def branch_length(self, index: int) -> int:
        return len(range(index, len(self.source), self.num_instances))
