"""The part of a graph by which one thing is made of another.

This file is about ``Recipe``: the pipes between the one that begins it and the one that
ends it. A recipe is run for one item at a time, each time from the beginning, so that
what comes out belongs to that item alone.

    source ──▶ beginning ──▶ pipes in between ──▶ ending
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import DataPipe, IterDataPipe
from asyncloader.datapipes.pipe.edges import edges_of
from asyncloader.datapipes.pipe.run import waits

#: The items for which recipes are run here, by the ids of the pipes that begin those.
_ITEMS: ContextVar[dict[int, Any]] = ContextVar("asyncloader_recipe_items")

_SHARDS = "sharding_round_robin_dispatch"


class Beginning(IterDataPipe[Any]):
    """Yields the one item for which its recipe is run."""

    source: Any

    def __iter__(self) -> Iterator[Any]:
        yield self._item()

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield self._item()

    def _item(self) -> Any:
        items = _ITEMS.get({})
        if id(self) not in items:
            raise RuntimeError(
                f"{stage_name(self)} is iterated by the pipe that ends what it begins: call"
                " end_caching() on the graph, and iterate that"
            )
        return items[id(self)]


class Ending(IterDataPipe[Any]):
    """Ends the recipe that begins at the nearest beginning above it."""

    source: Any


class Recipe:
    """The pipes from a beginning to the end of what is read by ``ending``."""

    def __init__(self, ending: Ending) -> None:
        self.end = ending.source
        self.pipes, beginnings = _pipes_up_to_beginnings(self.end)
        if not beginnings:
            raise RuntimeError(
                f"{stage_name(ending)} ends what on_disk_cache() begins, and there is none above"
                f" {stage_name(self.end)}"
            )
        self.beginning = beginnings[0]
        self._check_whole()

    def waits(self) -> bool:
        """Whether a pipe in between waits on an event loop."""
        return any(map(waits, self.pipes))

    def runs_at_once(self) -> bool:
        """Whether the recipe can be run for several items at the same time."""
        # A splitter has one pass at a time, as all pipes of torch have.
        return all(isinstance(pipe, DataPipe) and not pipe.is_splitter() for pipe in self.pipes)

    @contextmanager
    def run_for(self, item: Any) -> Iterator[Any]:
        """Give what is to be iterated to run the recipe for an item."""
        token = _ITEMS.set({**_ITEMS.get({}), id(self.beginning): item})
        try:
            yield self.end
        finally:
            _ITEMS.reset(token)

    def _check_whole(self) -> None:
        for pipe in self.pipes:
            name = getattr(type(pipe), "functional_name", None)
            if hasattr(pipe, "apply_sharding") or name == _SHARDS:
                raise RuntimeError(
                    f"{stage_name(pipe)} between on_disk_cache() and end_caching() would make"
                    " entries of nothing in some workers; put it before on_disk_cache()"
                )


def _pipes_up_to_beginnings(end: Any) -> tuple[list[Any], list[Beginning]]:
    """Return the pipes up to the next beginnings, and those, the nearest first."""
    pipes: list[Any] = []
    beginnings: list[Beginning] = []
    waiting, seen = deque([end]), {id(end)}
    while waiting:
        pipe = waiting.popleft()
        if isinstance(pipe, Beginning):
            beginnings.append(pipe)
            continue
        pipes.append(pipe)
        # A recipe within this one has a beginning of its own.
        above = [Recipe(pipe).beginning.source] if isinstance(pipe, Ending) else edges_of(pipe)
        fresh = [source for source in above if id(source) not in seen]
        seen.update(map(id, fresh))
        waiting.extend(fresh)
    return pipes, beginnings
