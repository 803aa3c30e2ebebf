"""One source, several streams.

This file is about fork, demux and round_robin_demux: who gets which item. Each
returns a list of branches, which share passes as ``branching`` says.
"""

from __future__ import annotations

import copy as copying
import operator
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from asyncloader.datapipes.branches.branching import Branch, Splitter
from asyncloader.datapipes.pipe.answers import answer_of
from asyncloader.datapipes.pipe.arguments import checked_function
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import is_async, itself

T = TypeVar("T")


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
        if copy not in (None, "shallow", "deep"):
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
        self.classifier_fn: Callable[[T], Any] = checked_function(
            "classifier_fn", classifier_fn, takes=1
        )
        self.drop_none = drop_none

    def waits(self) -> bool:
        return is_async(self.classifier_fn)

    @property
    def function(self) -> Callable[..., Any]:
        return self.classifier_fn

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        answer = answer_of(self, function, item)
        if answer is None and self.drop_none:
            return ()
        return (self._checked(answer),)

    def _checked(self, answer: Any) -> int:
        last = self.num_instances - 1
        if answer is None:
            raise ValueError(
                f"classifier_fn returned None; return 0 to {last}, or pass drop_none=True"
            )
        try:
            # Python's bools are integers, NumPy's are not.
            index = operator.index(answer.item() if _is_bool_of_numpy(answer) else answer)
        except TypeError:
            raise TypeError(
                f"classifier_fn must return an integer, got {type(answer).__name__}"
            ) from None
        if not 0 <= index <= last:
            raise ValueError(f"classifier_fn must return 0 to {last}, got {index}")
        return index


def _is_bool_of_numpy(answer: Any) -> bool:
    dtype = getattr(answer, "dtype", None)
    return getattr(dtype, "kind", None) == "b" and answer.shape == ()


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
