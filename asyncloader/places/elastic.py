"""The place of a run, made that of a run with other numbers of workers or ranks.

This file is about ``refit``: cursors taken under one number of workers become the cursors
that another number of workers, or none, resumes from. That is possible where the order does
not depend on the number: where each item after the division is made of one item before it.

    source ─ shuffle ─ sharding_filter ─ map ─ map      the same order for 0, 1, 2 … workers
    source ─ shuffle ─ sharding_filter ─ batch          each number has batches of its own

And it is about ``regroup``: the places of all ranks of a run become the place of one rank of
a run with other ranks. That is possible where all ranks together have yielded the beginning
of one order, and where each item after the division among the ranks is made of one item
before it. Each rank has as many items in a row as it has workers:

    2 ranks with 2 workers each    0 1 │ 2 3 │ 0 1 │ 2 3 │ …
    3 ranks without workers        0 │ 1 │ 2 │ 0 │ 1 │ 2 │ …
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from asyncloader.datapipes.base import is_iter_pipe, is_map_pipe
from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.recording import Numbering
from asyncloader.datapipes.replaying import is_replayed, keeps_positions
from asyncloader.datapipes.running.cursors import Cursor, Cursors, number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    acts_for,
    goes_by_clock,
    has_own_state,
    is_dispatch,
    is_filter_of_shards,
    is_splitter,
    is_without_order,
    lives_with_loader,
    stands_in_for_dealt,
    takes_turns,
)
from asyncloader.datapipes.settled import Pending, Recorded, Settled, SettledRuns
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.errors import SnapshotError
from asyncloader.graph.cut import WorkerPart, cut_graph, read_without_fork
from asyncloader.graph.recorded import recorded_from
from asyncloader.graph.walk import Graph, breadth_first
from asyncloader.places.marks import DealStart, Mark
from asyncloader.places.snapshot import Snapshot
from asyncloader.places.stream_place import (
    SPREAD,
    StreamPlace,
    WorkerStart,
    place_of_cursor,
    place_of_shares,
    shares_recorded,
)


def refit(
    graph: Graph, cursors: Cursors, *, taken_with: int, run_with: int, in_order: bool = True
) -> Cursors:
    """Return the cursors for ``run_with`` workers; SnapshotError names a pipe that prevents it.

    ``graph`` is the one before it was divided; ``in_order`` says whether workers take turns.
    """
    if taken_with == run_with:
        return cursors
    return _refitted(graph, cursors, taken_with, run_with, in_order=in_order)


def spread(graph: Graph, cursors: Cursors, run_with: int) -> Cursors:
    """Return cursors taken with any number of workers, for any other than none, or for none.

    The graph is one that ``fits_any_number``.
    """
    return _refitted(graph, cursors, run_with, run_with, in_order=True)


def _refitted(
    graph: Graph, cursors: Cursors, taken_with: int, run_with: int, *, in_order: bool
) -> Cursors:
    fitted = dict(cursors)
    clash = (
        f"the state was taken with {_workers(taken_with)} and cannot be resumed with"
        f" {_workers(run_with)}"
    )
    part = recorded_part(graph, in_order=in_order)
    if part is not None:
        above = _numbers_above(_worker_division(_numbered(graph, part), clash))
        place = _whole_record(graph, part, above, cursors, taken_with)
        return _record_for(graph, part, place, run_with)
    for part in cut_graph(graph).parts:
        below = set(map(_number, graph.downstream(part.end).values()))
        of_part = partial(
            _fitted_of_part,
            part=part,
            division=_worker_division(part.end, clash),
            taken_with=taken_with,
            run_with=run_with,
        )
        fitted = _fitted(fitted, below, of_part)
    return fitted


def _fitted(cursors: Cursors, below: set[int], of_part: Callable[[Cursors], Cursors]) -> Cursors:
    """Return the cursors of a run, or those that a branch keeps inside of its own.

    ``below`` are the numbers of the pipes that read the part.
    """
    fitted = of_part(cursors)
    for number, cursor in list(fitted.items()):
        inside = dict(cursor.get("above", ()))
        if inside and number in below:
            pairs = list(map(list, _fitted(inside, below, of_part).items()))
            fitted[number] = {**cursor, "above": pairs}
    return fitted


def _fitted_of_part(
    cursors: Cursors, part: WorkerPart, division: Any, taken_with: int, run_with: int
) -> Cursors:
    above = _numbers_above(division)
    fitted, end = dict(cursors), _number(part.end)
    own = fitted.pop(end, None)
    found = {number: fitted.pop(number) for number in list(fitted) if number in above}
    if own is not None and "workers" in own:
        place = place_of_cursor(own)
        positions = [start.mark.position for start in place.starts]
        found = _least_advanced(place, positions, above)
    elif own is not None and SPREAD in own:
        found = dict(own[SPREAD])
    for pipe in part.pipes:
        fitted.pop(_number(pipe), None)
    if run_with:
        deals = _number(division) if is_dispatch(division) else None
        fitted[end] = {SPREAD: list(map(list, found.items())), "deals": deals}
    else:
        fitted |= found
    return fitted


def recorded_part(graph: Graph, *, in_order: bool) -> WorkerPart | None:
    """Return the part for workers in which it is recorded what becomes of each item, or None.

    Where items are taken from workers as they are ready, it is recorded of what they send.
    """
    first = recorded_from(graph)
    parts = cut_graph(graph).parts if first is not None or not in_order else ()
    found = [part for part in parts if any(pipe is first for pipe in part.pipes)]
    return next(iter(found or ([] if in_order else parts)), None)


def _numbered(graph: Graph, part: WorkerPart | None) -> Any:
    """Return the pipe whose items have the numbers that are recorded."""
    first = recorded_from(graph)
    if part is not None and not any(pipe is first for pipe in part.pipes):
        return part.end
    return graph.sources(first)[0]


class WholeRecord(NamedTuple):
    """What is settled of all workers' shares together, in the order before the division."""

    settled: Settled
    left_out: list[list[Any]]
    #: What is known of numbers that are not settled.
    pending: Pending
    #: From where the pipes above the division make again what is not settled.
    above: Cursors


def _whole_record(
    graph: Graph, part: WorkerPart, above: set[int | None], cursors: Cursors, taken_with: int
) -> WholeRecord:
    if not taken_with:
        return _record_here(graph, cursors, above)
    own = cursors[_number(part.end)]
    shares = [Settled.of(SettledRuns(*share)) for share in own["shares"]]
    own_above = _least_advanced(place_of_shares(own), [each.frontier for each in shares], above)
    pending = Pending(own.get("kept", ()), own.get("attempts", ()))
    return WholeRecord(joined_shares(shares), own["left_out"], pending, own_above)


def _record_here(graph: Graph, cursors: Cursors, above: set[int | None]) -> WholeRecord:
    """Return the record of a run without workers."""
    record = Recorded.loaded(cursors[_number(recorded_from(graph))])
    own_above = _only(cursors, above)
    return WholeRecord(record.numbers(), record.left_out, record.pending(), own_above)


def _record_for(
    graph: Graph, part: WorkerPart | None, whole: WholeRecord, run_with: int
) -> Cursors:
    """Return the cursors with which so many workers, or none, go on after what is settled."""
    settled, left_out, pending, above = whole
    if part is None or not run_with:
        first = recorded_from(graph)
        return {**above, _number(first): Recorded.of(settled.plain(), left_out, pending).saved()}
    shares = [share.plain() for share in shared(settled, run_with)]
    division = _worker_division(_numbered(graph, part), "")
    deal, marks = None, [Mark(frontier, above) for frontier, *_ in shares]
    if is_dispatch(division):
        taken = tuple(frontier for frontier, *_ in shares)
        marks = [Mark(count, {_number(division): {"taken": count}}) for count in taken]
        deal = DealStart(Mark(settled.frontier, above), taken)
    return {_number(part.end): shares_recorded(shares, marks, left_out, deal, pending)}


def joined_shares(shares: Sequence[Settled]) -> Settled:
    """Return what is settled of a whole, given its shares: each has every n-th number.

    >>> joined_shares([Settled(3), Settled(3, [1])]).plain().runs
    [[4, 2]]
    """
    count = len(shares)
    # A share whose last number comes later has all of its own before the end.
    end = max((share.end - 1) * count + at + 1 for at, share in enumerate(shares))
    whole = Settled(
        end,
        (
            index * count + at
            for at, share in enumerate(shares)
            for index in (*share.unsettled, *range(share.end, len(range(at, end, count))))
        ),
    )
    for at, share in enumerate(shares):
        whole.parts |= {index * count + at: parts for index, parts in share.parts.items()}
        whole.failed.update(share.failed)
    return whole


def shared(whole: Settled, count: int) -> list[Settled]:
    """Return what is settled of each of so many shares.

    >>> [(share.frontier, share.plain().runs) for share in shared(Settled(6, [3]), 2)]
    [(3, []), (1, [[2, 1]])]
    """
    shares = []
    for at in range(count):
        own = (number // count for number in whole.unsettled if number % count == at)
        share = Settled(len(range(at, whole.end, count)), own)
        share.parts = {
            number // count: parts for number, parts in whole.parts.items() if number % count == at
        }
        share.failed = part_of(whole.failed, at, count)
        shares.append(share)
    return shares


def part_of(counts: Counter[int], at: int, count: int) -> Counter[int]:
    """Return the counts of one of several, so that together they have these.

    >>> [part_of(Counter({7: 5}), at, 2) for at in range(2)]
    [Counter({7: 3}), Counter({7: 2})]
    """
    return Counter({name: len(range(at, number, count)) for name, number in counts.items()})


def check_division(parts: Iterable[WorkerPart], taken_with: int) -> None:
    """Raise SnapshotError, naming the pipe, if another number of workers cannot resume.

    ``parts`` are what workers run, as the services made it; they may be divided already.
    """
    clash = f"the state was taken with {_workers(taken_with)}, and no other number can resume it"
    for part in parts:
        numbering = [pipe for pipe in part.pipes if isinstance(pipe, Numbering)]
        _worker_division(numbering[0].source if numbering else part.end, clash)


def fits_any_number(graph: Graph) -> bool:
    """Whether any number of workers, or none, can run the rest of an epoch in the same order.

    That must not mean to run from the beginning again what comes before it.
    """
    parts = cut_graph(graph).parts
    if recorded_part(graph, in_order=True) is not None:
        return False
    if any(number_of(pipe) is None or not _resumes_anywhere(pipe) for pipe in graph.pipes):
        return False
    if read_without_fork(graph) or not all(part.is_sharded for part in parts):
        return False
    if not _is_chain_to(graph, parts):
        return False
    try:
        check_division(parts, 0)
    except SnapshotError:
        return False
    return bool(parts)


def _is_chain_to(graph: Graph, parts: Iterable[WorkerPart]) -> bool:
    """Whether one pipe after the other follows what workers run.

    The branches of a split keep the cursors of what they read inside of their own.
    """
    ends = {id(part.end) for part in parts}
    for pipe in _way_up(graph):
        if id(pipe) in ends:
            return True
        if is_splitter(pipe):
            return False
    return False


def _resumes_anywhere(pipe: Any) -> bool:
    if is_without_order(pipe) or goes_by_clock(pipe) or lives_with_loader(pipe):
        return False
    if has_own_state(pipe):
        return not any(map(is_iter_pipe, edges_of(pipe)))
    if isinstance(pipe, IterableWrapper):
        return isinstance(pipe.iterable, Sequence)
    # A map pipe is looked up, at any key.
    return is_map_pipe(pipe) or not is_replayed(pipe)


def spread_place(cursor: Cursor, position: int, workers: int) -> StreamPlace:
    """Return where each worker resumes after ``position`` items of all of them together."""
    above: Cursors = dict(cursor[SPREAD])
    deals = cursor["deals"]
    taken = [len(range(worker, position, workers)) for worker in range(workers)]
    turns = tuple((position + turn) % workers for turn in range(workers))
    if deals is None:
        starts = tuple(WorkerStart(Mark(count, above), 0) for count in taken)
        return StreamPlace(starts, turns)
    marks = (Mark(count, {deals: {"taken": count}}) for count in taken)
    starts = tuple(WorkerStart(mark, 0) for mark in marks)
    return StreamPlace(starts, turns, DealStart(Mark(position, above), tuple(taken)))


def _worker_division(end: Any, clash: str) -> Any:
    """Return the pipe that divides a part's items, if only one-to-one pipes follow it."""
    graph, pipe = Graph(end), end
    is_dealt = any(map(_deals, graph.pipes))
    # Items from a dispatcher are divided already: a filter after it divides among ranks only.
    while not (_deals(pipe) if is_dealt else divides(pipe)):
        sources = graph.sources(pipe)
        if len(sources) != 1 or not keeps_positions(pipe):
            raise SnapshotError(
                f"{clash}: {_name_of(pipe)} yields other items for another number of workers."
                " Run it in the loader's process (for a batch: across_workers=True), or put it"
                " before the pipe that divides the items, or use as many workers as before"
            )
        pipe = sources[0]
    return pipe


def _deals(pipe: Any) -> bool:
    """Whether a pipe deals items to workers, or stands for one that does."""
    return is_dispatch(pipe) or stands_in_for_dealt(pipe)


def _name_of(pipe: Any) -> str:
    is_ours = number_of(pipe) is not None
    return stage_name(pipe) if is_ours else f"{stage_name(pipe)}, which a reading service added,"


def divides(pipe: Any) -> bool:
    """Whether a pipe divides items among workers."""
    return is_dispatch(pipe) or (
        takes_turns(pipe) and acts_for(pipe, SHARDING_PRIORITIES.MULTIPROCESSING)
    )


def _least_advanced(
    place: StreamPlace, positions: Sequence[int], above: set[int | None]
) -> Cursors:
    """Return the place, above the division, of the worker that was furthest behind.

    ``positions`` are those of the workers, each in its own share.
    """
    if place.deal is not None:
        return place.deal.mark.cursors
    # The first of those that are level has the earliest item.
    behind = positions.index(min(positions))
    return _only(place.starts[behind].mark.cursors, above)


def _only(cursors: Cursors, numbers: set[int | None]) -> Cursors:
    return {number: cursor for number, cursor in cursors.items() if number in numbers}


def _numbers_above(division: Any) -> set[int | None]:
    return {number_of(pipe) for pipe in breadth_first(division)} - {number_of(division)}


def _number(pipe: Any) -> int:
    number = number_of(pipe)
    return -1 if number is None else number


def _workers(count: int) -> str:
    return "no workers" if count == 0 else f"{count} worker{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Role:
    """Which rank of how many a loader is, and in how many workers its graph runs."""

    workers: int
    in_order: bool
    rank: int
    ranks: int
    #: Whether uneven shares are padded.
    pads: bool = False


def regroup(graph: Graph, moment: Sequence[Snapshot], role: Role) -> tuple[int, Cursors, int]:
    """Return where a rank resumes, given the snapshots of all ranks of the earlier run.

    That is how many items it has yielded, its cursors then or earlier, and how many more items it
    has yielded than the rank with the fewest. SnapshotError names the pipe that prevents it.
    ``graph`` is the one before it was divided.
    """
    counts = [snapshot.items for snapshot in moment]
    if not any(counts):
        return 0, {}, 0
    taken_with = moment[0].workers
    division = _rank_division(graph, len(moment), role)
    position = whole_position(counts, _block_size(graph, division, taken_with))
    above = _numbers_above(division)
    # The first rank's cursors are of its last item or earlier, so they are not after position.
    alone = refit(graph, moment[0].cursors, taken_with=taken_with, run_with=0)
    whole = _only(alone, above)
    block = _block_size(graph, division, role.workers)
    items = [items_before(position, rank, role.ranks, block) for rank in range(role.ranks)]
    cursors = refit(graph, whole, taken_with=0, run_with=role.workers)
    return items[role.rank], cursors, items[role.rank] - min(items)


def united(graph: Graph, moment: Sequence[Snapshot], role: Role) -> tuple[int, Cursors]:
    """Return where a rank goes on with what no rank of the earlier run has settled.

    That is how many items it counts as yielded, and its cursors. ``moment`` are the snapshots of
    all ranks; SnapshotError names the pipe that prevents it.
    """
    counts = [snapshot.items for snapshot in moment]
    before, part = moment[0], recorded_part(graph, in_order=role.in_order)
    division = _rank_division(graph, len(moment), role, _numbered(graph, part))
    block = _block_size(graph, division, before.workers)
    above = _numbers_above(division)
    read = _reader_of_records(graph, part, above)
    records = [
        (RankOrder(rank, len(moment), block), read(each) if each.cursors else _NO_RECORD)
        for rank, each in enumerate(moment)
    ]
    numbers = [order.number(record.settled.frontier) for order, record in records]
    end = max(order.number(record.settled.end - 1) + 1 for order, record in records)
    whole = Settled(
        end,
        (
            order.number(index)
            for order, record in records
            for index in (*record.settled.unsettled, *range(record.settled.end, order.before(end)))
        ),
    )
    for order, record in records:
        whole.parts |= {order.number(at): parts for at, parts in record.settled.parts.items()}
        whole.failed.update(record.settled.failed)
    own_above = _only(records[numbers.index(min(numbers))][1].above, above)
    own = RankOrder(role.rank, role.ranks, _block_size(graph, division, role.workers))
    # Each number is counted once, whoever has left it out.
    left_out = _sum_of([record.left_out for _, record in records]) if role.rank == 0 else []
    of_each = (record.pending.renumbered(order.number) for order, record in records)
    pending = Pending.together(each.renumbered(own.own_index) for each in of_each)
    mine = WholeRecord(own.share_of(whole), left_out, pending, own_above)
    cursors = _record_for(graph, part, mine, role.workers)
    if part is None:
        cursors = refit(graph, cursors, taken_with=0, run_with=role.workers)
    return max(1, sum(counts) // role.ranks), cursors


_NO_RECORD = WholeRecord(Settled(), [], Pending(), {})


def _reader_of_records(
    graph: Graph, part: WorkerPart | None, above: set[int | None]
) -> Callable[[Snapshot], WholeRecord]:
    """Return what reads the record in the snapshot of a rank; it looks at the graph once."""
    if part is not None:
        clash = "the states cannot be resumed by other ranks or workers"
        in_workers = _numbers_above(_worker_division(_numbered(graph, part), clash))
        return lambda one: _whole_record(graph, part, in_workers, one.cursors, one.workers)

    def read(one: Snapshot) -> WholeRecord:
        alone = refit(graph, one.cursors, taken_with=one.workers, run_with=0)
        return _record_here(graph, alone, above)

    return read


def _sum_of(tables: Iterable[Iterable[Sequence[Any]]]) -> list[list[Any]]:
    counts: Counter[str] = Counter()
    for table in tables:
        for reason, count in table:
            counts[reason] += count
    return [[reason, count] for reason, count in sorted(counts.items())]


class RankOrder(NamedTuple):
    """Which numbers of the whole are a rank's: ``block`` in a row, then as many of each other."""

    rank: int
    ranks: int
    block: int

    def number(self, index: int) -> int:
        """Return the number in the whole of an item of the rank's.

        >>> [RankOrder(1, 2, 3).number(index) for index in range(5)]
        [3, 4, 5, 9, 10]
        """
        rounds, rest = divmod(index, self.block)
        return (rounds * self.ranks + self.rank) * self.block + rest

    def own_index(self, number: int) -> int | None:
        """Return which of the rank's items a number of the whole is, or None if it has it not."""
        blocks, rest = divmod(number, self.block)
        rounds, rank = divmod(blocks, self.ranks)
        return rounds * self.block + rest if rank == self.rank else None

    def before(self, number: int) -> int:
        """Return how many of the rank's items come before a number of the whole."""
        return items_before(number, self.rank, self.ranks, self.block)

    def share_of(self, whole: Settled) -> Settled:
        """Return what of the rank's share is settled."""
        indices = map(self.own_index, whole.unsettled)
        share = Settled(self.before(whole.end), (each for each in indices if each is not None))
        own = ((self.own_index(number), parts) for number, parts in whole.parts.items())
        share.parts = {index: parts for index, parts in own if index is not None}
        share.failed = part_of(whole.failed, self.rank, self.ranks)
        return share


def whole_number(graph: Graph, role: Role) -> Callable[[int], int]:
    """Return what says which number something has before the division among ranks.

    It is given the number on this rank, which is the same where nothing divides among ranks, or
    other pipes than one-to-one follow.
    """
    if role.ranks > 1:
        part = recorded_part(graph, in_order=role.in_order)
        with contextlib.suppress(SnapshotError):
            division = _rank_division(graph, role.ranks, role, _numbered(graph, part))
            block = _block_size(graph, division, role.workers)
            return RankOrder(role.rank, role.ranks, block).number
    return int


def divides_alike(graph: Graph, workers: int, other: int) -> bool:
    """Whether each rank has the same items with one number of workers as with another."""
    divisions = [pipe for pipe in graph.pipes if _divides_among_ranks(pipe)]
    return all(
        _block_size(graph, each, workers) == _block_size(graph, each, other) for each in divisions
    )


def items_before(position: int, rank: int, ranks: int, block: int) -> int:
    """Return how many of the first ``position`` items of the whole order are a rank's."""
    rounds, rest = divmod(position, ranks * block)
    return rounds * block + min(max(rest - rank * block, 0), block)


def whole_position(counts: Sequence[int], block: int) -> int:
    """Return how many items of the whole order were yielded, given the number on each rank.

    SnapshotError if those are not the first items of that order.
    """
    position, ranks = sum(counts), len(counts)
    expected = [items_before(position, rank, ranks, block) for rank in range(ranks)]
    if list(counts) != expected:
        advice = "the same number of items on every rank"
        if block > 1:
            advice += f", which is a multiple of the number of workers ({block})"
        listed = ", ".join(map(str, counts))
        raise SnapshotError(
            "another number of ranks or workers can resume only where all ranks together yielded"
            f" the first items and no later ones, but the states ({listed} items, by rank)"
            f" leave gaps; take the states after {advice}"
        )
    return position


def _rank_division(graph: Graph, ranks: int, role: Role, end: Any = None) -> Any:
    """Return the pipe that divides the items among ranks, if only one-to-one pipes follow it.

    They follow it up to ``end``, or to the end of the graph.
    """
    if not any(map(_divides_among_ranks, graph.pipes)):
        raise SnapshotError(
            f"the states were taken on {_ranks(ranks)}, and this run has {_ranks(role.ranks)}:"
            " nothing divides the items among the ranks, so each rank's place is its own. Use as"
            " many ranks as before"
        )
    for pipe in _way_up(graph, end):
        if _divides_among_ranks(pipe) and takes_turns(pipe):
            return pipe
        # A pipe that divides items among the workers of a rank leaves their order as it is.
        if not keeps_positions(pipe) and not divides(pipe):
            break
    raise SnapshotError(
        f"the states were taken on {_ranks(ranks)}, and this run has {_ranks(role.ranks)} with"
        f" {role.workers} workers each: {stage_name(pipe)} yields other items for other numbers."
        " Put it before the pipe that divides the items among the ranks, or use as many ranks and"
        " workers as before"
    )


def _block_size(graph: Graph, division: Any, workers: int) -> int:
    """Return how many items in a row are one rank's."""
    if not workers:
        return 1
    for pipe in _way_up(graph):
        if pipe is division:
            break
        if divides(pipe):
            # The workers divide what belongs to this rank already.
            return 1
    parts = cut_graph(graph).parts
    is_in_workers = any(pipe is division for part in parts for pipe in part.pipes)
    return workers if is_in_workers else 1


def _way_up(graph: Graph, end: Any = None) -> Iterator[Any]:
    """Yield the pipes from the last one, or ``end``, up to one with several sources, or none."""
    pipe = graph.end if end is None else end
    while True:
        yield pipe
        sources = graph.sources(pipe)
        if len(sources) != 1:
            return
        pipe = sources[0]


def _divides_among_ranks(pipe: Any) -> bool:
    return is_filter_of_shards(pipe) and acts_for(pipe, SHARDING_PRIORITIES.DISTRIBUTED)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
