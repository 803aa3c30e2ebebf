"""Where and how a graph is sharded.

This file is about ``ShardingPolicy``, which adds, moves and changes the pipes that shard.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from asyncloader.adapters.base import Adapter, appended
from asyncloader.datapipes.base import is_iter_pipe
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    does_same_to_each,
    is_batch,
    is_dispatch,
    is_replicable,
    is_sharding,
    is_splitter,
    sharding_group,
    shuffles_items,
)
from asyncloader.graph.cut import Reach, cut_or_nothing
from asyncloader.graph.edit import removed, replace_edge, replaced
from asyncloader.graph.walk import Graph

Place = Literal["after_source", "after_shuffle", "after_batch", "end"]

#: The groups of ``SHARDING_PRIORITIES``.
DISTRIBUTED, MULTIPROCESSING = 2, 3


class ShardingPolicy(Adapter):
    """Add sharding if there is none; move it to a place; change its kind or group.

    ``place`` is where the items are divided, seen from the end of the graph:

    - ``"after_shuffle"``: right after the nearest shuffle, or after the source if there is
      none. Then the pipes that do hard work work on a share only.
    - ``"after_source"``: right after the source, or where several sources come together.
    - ``"after_batch"``: right after the last batch. Whole batches are divided, so what is in
      them does not depend on the number of workers. Batches that the loader makes
      (``across_workers``) cannot be divided: that is a ValueError.
    - ``"end"``: after everything that workers run.

    Without a place existing sharding stays where it is, and new sharding is added after the
    shuffle. Sharding is moved up only past pipes that do the same to each item (a ValueError
    names another pipe).

    With ``dispatch=True`` the pipes above run in one process that sends its items to the
    workers; with ``dispatch=False`` each worker runs them and takes every n-th item. Items are
    divided among ranks by a filter either way. ``group`` restricts filters to one of
    ``SHARDING_PRIORITIES``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.graph import to_text
    >>> print(to_text(ShardingPolicy()(IterableWrapper(range(4)).shuffle().map(str))))
    IterableWrapper()
    shuffle()
    sharding_filter()
    map(str)
    """

    def __init__(
        self,
        place: Place | None = None,
        *,
        dispatch: bool | None = None,
        group: int | None = None,
    ) -> None:
        if place is not None and place not in get_args(Place):
            raise ValueError(f"place must be one of {get_args(Place)}, got {place!r}")
        if dispatch and group is not None:
            raise ValueError(
                f"with dispatch=True items go to worker processes only, got group={group!r}; leave"
                " group out"
            )
        self.place = place
        self.dispatch = dispatch
        self.group = group

    def __call__(self, datapipe: Any) -> Any:
        if not _sharding(datapipe):
            return self._added(datapipe)
        if self.place is not None:
            for pipe in _sharding(datapipe):
                datapipe = self._moved(datapipe, pipe)
        for pipe in _sharding(datapipe):
            datapipe = self._changed(datapipe, pipe)
        return datapipe

    # Adding

    def _added(self, datapipe: Any) -> Any:
        graph = Graph(datapipe)
        reach, trunk = Reach(graph), _trunk(graph, datapipe)
        if self.dispatch:
            place = self._place_among(trunk, reach, True)
            return replaced(datapipe, place, _dispatching(_filtering(place, DISTRIBUTED)))
        trunks = [trunk]
        if self.place != "after_batch" and not any(map(reach.can_copy, trunk)):
            # All of it stays in the loader's process, where nothing is divided among workers.
            trunks = [_trunk(graph, part.end) for part in cut_or_nothing(graph).parts] or trunks
        for place in [self._place_among(each, reach, False) for each in trunks]:
            datapipe = replaced(datapipe, place, _filtering(place, self.group))
        return datapipe

    # Moving

    def _moved(self, datapipe: Any, pipe: Any) -> Any:
        graph = Graph(datapipe)
        if not graph.sources(pipe):
            raise ValueError(
                f"{stage_name(pipe)} is a source that shards itself, and its sharding cannot be"
                " moved; leave place out"
            )
        (source,) = graph.sources(pipe)
        above = _trunk(graph, source)
        trunk = _trunk(graph, datapipe)
        on_trunk = any(other is pipe for other in trunk)
        places = [other for other in trunk if other is not pipe] if on_trunk else above
        is_dealt = is_dispatch(pipe) if self.dispatch is None else self.dispatch
        place = self._place_among(places, Reach(graph), is_dealt)
        if place is source:
            return datapipe
        if any(other is place for other in above):
            _check_one_to_one(above, place, pipe)
        end = removed(datapipe, pipe)
        replace_edge(pipe, source, place)
        return replaced(end, place, pipe)

    def _place_among(self, pipes: list[Any], reach: Reach, is_dealt: bool) -> Any:
        """Return which of some pipes, from the end to the source, sharding is to follow."""
        if not pipes:
            raise ValueError(
                "the graph has no IterDataPipe here that could be sharded; put .to_iter_datapipe()"
                " after its MapDataPipe"
            )
        # Pipes after one that stays in the loader's process stay there, too.
        in_workers = list(filter(reach.can_copy, pipes)) or list(filter(is_replicable, pipes))
        match self.place:
            case "end":
                return next(iter(in_workers), pipes[-1])
            case "after_batch":
                # One process makes all items that are dispatched.
                return _last_batch(pipes if is_dealt else in_workers, pipes)
            case "after_source":
                return pipes[-1]
            case _:
                return next(filter(shuffles_items, in_workers), pipes[-1])

    # Changing

    def _changed(self, datapipe: Any, pipe: Any) -> Any:
        if not Graph(datapipe).sources(pipe):
            return datapipe
        if is_dispatch(pipe):
            return self._dispatch_changed(datapipe, pipe) if self.dispatch is False else datapipe
        if self.dispatch:
            return _dealt(datapipe, pipe)
        if self.group is None or pipe.sharding_group_filter == self.group:
            return datapipe
        return _swapped(datapipe, pipe, lambda source: _filtering(source, self.group))

    def _dispatch_changed(self, datapipe: Any, pipe: Any) -> Any:
        groups = {sharding_group(other) for other in _sharding(pipe) if not is_dispatch(other)}
        if groups & {None, MULTIPROCESSING}:
            # The filter above divides among workers when there is no dispatch below it.
            return removed(datapipe, pipe)
        group = MULTIPROCESSING if groups else self.group
        return _swapped(datapipe, pipe, lambda source: _filtering(source, group))


def _sharding(datapipe: Any) -> list[Any]:
    return [pipe for pipe in Graph(datapipe).pipes if is_sharding(pipe)]


def _trunk(graph: Graph, end: Any) -> list[Any]:
    """Return the streams from ``end`` up to where several meet, or to the source."""
    trunk, sources = [], [end]
    while len(sources) == 1 and not is_splitter(sources[0]):
        trunk.append(sources[0])
        sources = graph.sources(sources[0])
    return [pipe for pipe in trunk if is_iter_pipe(pipe)]


def _last_batch(in_workers: list[Any], pipes: list[Any]) -> Any:
    found = [next(filter(is_batch, some), None) for some in (in_workers, pipes)]
    if found[0] is not None:
        return found[0]
    if found[1] is not None:
        raise ValueError(
            f"{stage_name(found[1])} runs in the loader's process, on the items of all workers, so"
            " its batches cannot be divided among the workers; make the batches in workers, or"
            " choose another place"
        )
    raise ValueError("the graph has no batch to shard after; choose another place")


def _check_one_to_one(above: list[Any], place: Any, pipe: Any) -> None:
    for other in above:
        if other is place:
            return
        if not does_same_to_each(other) and not is_sharding(other):
            raise ValueError(
                f"{stage_name(pipe)} cannot be moved above {stage_name(other)}, which would then"
                " yield other items; remove one of them, or choose another place"
            )


def _dealt(datapipe: Any, pipe: Any) -> Any:
    group = sharding_group(pipe)
    readers = Graph(datapipe).readers(pipe)
    if group == MULTIPROCESSING:
        return _swapped(datapipe, pipe, _dispatching)
    if group is None and not any(is_dispatch(reader) for reader in readers):
        # Above the dispatch, the filter divides among ranks only.
        return replaced(datapipe, pipe, _dispatching(pipe))
    return datapipe


def _filtering(source: Any, group: int | None) -> Any:
    return appended(source, "sharding_filter", group)


def _dispatching(source: Any) -> Any:
    return appended(source, "sharding_round_robin_dispatch", MULTIPROCESSING)


def _swapped(datapipe: Any, pipe: Any, make: Any) -> Any:
    (source,) = Graph(datapipe).sources(pipe)
    return replaced(datapipe, pipe, make(source))
