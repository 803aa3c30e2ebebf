"""A run's place under another number of ranks.

This file is about ``regroup``: the places of all ranks of a run, made the place of one
rank of a run with other ranks. That can be done where all ranks together have handed out
the beginning of one order, and where each item behind the division among them is made of
one item before it. Each rank has as many items in a row as it has workers:

    2 ranks with 2 workers each    0 1 │ 2 3 │ 0 1 │ 2 3 │ …
    3 ranks without workers        0 │ 1 │ 2 │ 0 │ 1 │ 2 │ …
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.branches.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.going_on.cursors import Cursors, number_of
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.kinds import is_filter_of_shards
from asyncloader.errors import SnapshotError
from asyncloader.graph.cut import cut_graph
from asyncloader.graph.settings import acts_for
from asyncloader.graph.walk import Wiring, breadth_first
from asyncloader.services.base import ReadingServiceInterface
from asyncloader.services.elastic import divides, refit, takes_turns
from asyncloader.workers.graph_part import keeps_positions


@dataclass(frozen=True)
class Role:
    """Which rank of how many a loader is, and in how many workers its graph runs."""

    workers: int
    in_order: bool
    rank: int
    ranks: int

    @classmethod
    def of(cls, service: ReadingServiceInterface) -> Role:
        """Return the role of the loader that has this service."""
        rank, ranks = service.rank()
        return cls(service.worker_count(), service.is_in_order(), rank, ranks)


@dataclass(frozen=True)
class RankPlace:
    """How many items a rank has handed out, and where its pipes stood then or before."""

    items: int
    cursors: Cursors
    #: How many of those items it has handed out more than the rank with the fewest.
    ahead: int = 0


def regroup(
    datapipe: Any, places: Sequence[RankPlace], *, taken_with: int, role: Role
) -> RankPlace:
    """Return where a rank goes on from the places of all ranks of a run.

    SnapshotError, naming the pipe in the way, where it cannot. Each of the ranks had
    ``taken_with`` workers; ``datapipe`` is the graph before it was divided.
    """
    counts = [place.items for place in places]
    if not any(counts):
        return RankPlace(0, {})
    division = _division(datapipe, len(places), role)
    position = whole_position(counts, _block(datapipe, division, taken_with))
    above = {number_of(pipe) for pipe in breadth_first(division)} - {number_of(division)}
    # The first rank's cursors are those of its last item or before, and so before the position.
    alone = refit(datapipe, places[0].cursors, taken_with=taken_with, run_with=0)
    whole = {number: cursor for number, cursor in alone.items() if number in above}
    block = _block(datapipe, division, role.workers)
    items = [items_before(position, rank, role.ranks, block) for rank in range(role.ranks)]
    cursors = refit(datapipe, whole, taken_with=0, run_with=role.workers)
    return RankPlace(items[role.rank], cursors, items[role.rank] - min(items))


def divides_alike(datapipe: Any, workers: int, other: int) -> bool:
    """Whether each rank has the same items with one number of workers as with another."""
    divisions = [pipe for pipe in breadth_first(datapipe) if _divides_among_ranks(pipe)]
    return all(
        _block(datapipe, each, workers) == _block(datapipe, each, other) for each in divisions
    )


def items_before(position: int, rank: int, ranks: int, block: int) -> int:
    """Return how many of the first ``position`` items of the whole order are a rank's."""
    rounds, rest = divmod(position, ranks * block)
    return rounds * block + min(max(rest - rank * block, 0), block)


def whole_position(counts: Sequence[int], block: int) -> int:
    """Return how many items of the whole order were handed out, by so many on each rank.

    SnapshotError where those are not the first of that order.
    """
    position, ranks = sum(counts), len(counts)
    expected = [items_before(position, rank, ranks, block) for rank in range(ranks)]
    if list(counts) != expected:
        advice = "the same number of items on every rank"
        if block > 1:
            advice += f", which is a multiple of the number of workers ({block})"
        raise SnapshotError(
            "another number of ranks or workers goes on from where all items up to one were handed"
            f" out and none after it, but those of the states ({_listed(counts)}, by rank) have"
            f" gaps between them; take the states after {advice}"
        )
    return position


def _division(datapipe: Any, ranks: int, role: Role) -> Any:
    """Return the pipe that divides the items among ranks, if only one-to-one pipes follow it."""
    if not any(map(_divides_among_ranks, breadth_first(datapipe))):
        raise SnapshotError(
            f"the states were taken on {_ranks(ranks)} and here are {_ranks(role.ranks)}: nothing"
            " divides the items among the ranks, so that each has a place of its own. Use as many"
            " ranks as before"
        )
    for pipe in _way_up(datapipe):
        if _divides_among_ranks(pipe) and takes_turns(pipe):
            return pipe
        # What divides them among the workers of a rank leaves their order as it is.
        if not keeps_positions(pipe) and not divides(pipe):
            break
    raise SnapshotError(
        f"the states were taken on {_ranks(ranks)} and here are {_ranks(role.ranks)}, with"
        f" {role.workers} workers each: {stage_name(pipe)} comes out otherwise for another number"
        " of them. Put it before the pipe that divides the items among the ranks, or use as many"
        " ranks and workers as before"
    )


def _block(datapipe: Any, division: Any, workers: int) -> int:
    """Return how many items in a row are one rank's."""
    if not workers:
        return 1
    for pipe in _way_up(datapipe):
        if pipe is division:
            break
        if divides(pipe):
            # The workers divide among them what is the rank's already.
            return 1
    parts = cut_graph(datapipe).parts
    is_in_workers = any(pipe is division for part in parts for pipe in part.pipes)
    return workers if is_in_workers else 1


def _way_up(datapipe: Any) -> Iterator[Any]:
    """Yield the pipes from the last one up to the first that has several sources, or none."""
    wiring, pipe = Wiring(datapipe), datapipe
    while True:
        yield pipe
        sources = wiring.sources(pipe)
        if len(sources) != 1:
            return
        pipe = sources[0]


def _divides_among_ranks(pipe: Any) -> bool:
    return is_filter_of_shards(pipe) and acts_for(pipe, SHARDING_PRIORITIES.DISTRIBUTED)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))
