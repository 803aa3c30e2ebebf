"""Dividing the items among ranks and workers.

This file is about the pipes that divide a graph: sharding_filter, which gives each instance every
n-th item, and sharding_round_robin_dispatch, whose sources run only once, in the dispatching
process, which sends each item to one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, TypeVar

from asyncloader.arguments import checked_count
from asyncloader.datapipes.base import (
    IterDataPipe,
    MapDataPipe,
    functional_datapipe,
    is_map_pipe,
)
from asyncloader.datapipes.converting import MapToIterConverter
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.running.cursors import Cursor, Cursors, close_items
from asyncloader.datapipes.running.run import Edge, Pass, Stride
from asyncloader.datapipes.running.traits import can_share, picks
from asyncloader.datapipes.running.watch.watching import UNCOUNTED
from asyncloader.datapipes.sources import iterable_source

T = TypeVar("T")


class SHARDING_PRIORITIES(IntEnum):
    """Among whom a stream is divided; the lower divides first.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(4)).sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)
    >>> pipe.apply_sharding(2, 1, SHARDING_PRIORITIES.MULTIPROCESSING)  # for workers: not meant
    >>> pipe.apply_sharding(2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    >>> list(pipe)
    [1, 3]
    """

    DEFAULT = 1
    DISTRIBUTED = 2
    MULTIPROCESSING = 3


@functional_datapipe("sharding_filter", on=MapDataPipe)
@functional_datapipe("sharding_filter")
class ShardingFilter(IterDataPipe[T]):
    """Yield this instance's share of the items: all of them, until sharding is applied.

    Among n instances, instance k yields the items whose number leaves k when divided
    by n. Where there are several ranks with several workers each, k is
    ``rank * workers + worker``. With ``sharding_group_filter`` only that group's
    sharding counts.

    The pipes before this one make the items of all instances, in each of them, and must yield
    the same in each. What draws random numbers of its own, such as a sampler of torch's, belongs
    in front of ``sharding_round_robin_dispatch`` instead: here items would be lost. Only two kinds
    of sources make the items of the share alone: a list, tuple or range; and the items of a
    map pipe, shuffled by the map pipe's own shuffle or not. They may be in batches, but no
    other pipe may come in between. A map pipe is read in the order of its keys.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(6)).sharding_filter()
    >>> pipe.apply_sharding(2, 1)
    >>> list(pipe)
    [1, 3, 5]
    """

    makes_again = False

    def __init__(
        self,
        source_datapipe: Iterable[T],
        sharding_group_filter: SHARDING_PRIORITIES | int | None = None,
    ) -> None:
        source: Any = source_datapipe
        self.source = iterable_source(MapToIterConverter(source) if is_map_pipe(source) else source)
        self.sharding_group_filter = _group_or_none(sharding_group_filter)
        self.groups: dict[SHARDING_PRIORITIES, tuple[int, int]] = {}
        self.num_of_instances = 1
        self.instance_id = 0

    def apply_sharding(
        self,
        num_of_instances: int,
        instance_id: int,
        sharding_group: SHARDING_PRIORITIES | int = SHARDING_PRIORITIES.DEFAULT,
    ) -> None:
        """Say which of how many instances of a group this one is.

        The DEFAULT group does not go together with others: that is a RuntimeError.
        """
        checked_count("num_of_instances", num_of_instances, at_least=1)
        checked_count("instance_id", instance_id, at_least=0)
        if instance_id >= num_of_instances:
            raise ValueError(
                f"instance_id must be less than num_of_instances ({num_of_instances}),"
                f" got {instance_id}"
            )
        group = SHARDING_PRIORITIES(sharding_group)
        groups = {**self.groups, group: (num_of_instances, instance_id)}
        if SHARDING_PRIORITIES.DEFAULT in groups and len(groups) > 1:
            raise RuntimeError(
                f"{self!r} cannot be sharded by DEFAULT and by another group too, got"
                f" {', '.join(group.name for group in sorted(groups))}"
            )
        self.groups = groups
        self.num_of_instances, self.instance_id = self._share()

    def picks(self) -> bool:
        return picks(self.source)

    def _share(self) -> tuple[int, int]:
        count, instance = 1, 0
        for group, (group_count, group_instance) in sorted(self.groups.items()):
            if self.sharding_group_filter in (None, group):
                count, instance = count * group_count, instance * group_count + group_instance
        return count, instance

    def __len__(self) -> int:
        return len(range(self.instance_id, len(self.source), self.num_of_instances))

    def new_pass(self, edge: Edge[Any]) -> ShardPass[T]:
        return ShardPass(edge, self.num_of_instances, self.instance_id)


@dataclass
class ShardPass(Pass[T]):
    """One pass over a share, which knows how many items of it have been yielded."""

    count: int
    #: The position in the source where the share begins.
    start: int
    _counted: int = 0
    #: Counts items that ``__iter__`` does not: its iterator knows how many it has left.
    _uncounted: Callable[[], int] = field(default=int, repr=False)
    _cursors: Cursors = field(default_factory=dict, repr=False)
    _has_resumed: bool = False

    @property
    def yielded(self) -> int:
        """How many items of the share were yielded."""
        return self._counted + self._uncounted()

    def counts(self) -> tuple[int, int, bool, int]:
        # Of several shares nobody counts the items of the others.
        return UNCOUNTED, self.yielded, self.count == 1, 0

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.start += position * self.count
        self._counted = position
        self._cursors = cursors
        self._has_resumed = True
        return 0

    def __iter__(self) -> Iterator[T]:
        is_shared = self.count > 1 and can_share(self.source.pipe)
        if is_shared or self.count == 1:
            # Of items that are sifted the reader takes fewer than the source makes.
            self.source.at_once = self.edge.at_once
        if not is_shared:
            return self._counting(None)
        items = self.source.begin_share(Stride(self.start, self.count), self._cursors)
        if type(items) not in _KNOWING:
            return self._counting(items)
        self._uncounted = partial(_taken_of, items, length_hint(items))
        return items

    def iter_at(self, positions: list[int]) -> Iterator[T]:
        self.source.pick([self.start + each * self.count for each in positions])
        return self.source.begin()

    def _counting(self, share: Iterator[T] | None) -> Iterator[T]:
        """Yield the share; without one, sift it from all items of the source."""
        items = self._begun() if share is None else share
        left_out = 0 if self._has_resumed else self.start
        sifted = islice(items, left_out, None, self.count) if share is None else share
        try:
            for item in sifted:
                self._counted += 1
                yield item
        finally:
            close_items(items)

    def _begun(self) -> Iterator[T]:
        if self._has_resumed:
            self.source.resume(self.start, self._cursors)
            self._cursors = {}
        return self.source.begin()


#: Iterators that can tell how many items they have left.
_KNOWING = frozenset[type]({type(iter([])), type(iter(())), type(iter(range(0)))})


def _taken_of(items: Iterator[Any], count: int) -> int:
    return count - length_hint(items)


@functional_datapipe("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(OneToOne, IterDataPipe[T]):
    """Run the pipes before this one in one process, which sends each item to one worker.

    Without worker processes the items pass as they are. The group must be
    MULTIPROCESSING; a ``sharding_filter`` before this pipe divides among ranks.

    >>> from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
    >>> pipe = IterableWrapper(range(3))
    >>> list(pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING))
    [0, 1, 2]
    """

    makes_again = False

    def __init__(
        self,
        source_datapipe: Iterable[T],
        sharding_group_filter: SHARDING_PRIORITIES | int | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.sharding_group_filter = _group_or_none(sharding_group_filter)
        if self.sharding_group_filter is not SHARDING_PRIORITIES.MULTIPROCESSING:
            raise NotImplementedError(
                "items are dealt among worker processes only: pass"
                f" SHARDING_PRIORITIES.MULTIPROCESSING, not {sharding_group_filter!r}"
            )

    def __len__(self) -> int:
        return len(self.source)

    def run(self, source: Edge[Any], state: None) -> Iterator[T]:
        return iter(source)


def _group_or_none(group: SHARDING_PRIORITIES | int | None) -> SHARDING_PRIORITIES | None:
    if group is None:
        return None
    try:
        # True would be taken for DEFAULT, which is 1.
        return SHARDING_PRIORITIES(-1 if isinstance(group, bool) else group)
    except ValueError:
        names = ", ".join(f"{each.name} ({each.value})" for each in SHARDING_PRIORITIES)
        raise ValueError(
            f"sharding_group_filter must be one of SHARDING_PRIORITIES: {names}; got {group!r}"
        ) from None
