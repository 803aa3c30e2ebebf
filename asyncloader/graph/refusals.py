"""Graphs that are refused, each with what to do instead.

This file is about ``refusals``: all that keeps a graph from being run, from being divided among
workers or ranks, from a state, and from a restart of its workers. Nothing has to be started to
know it.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, combinations, count, product
from typing import Any

from asyncloader.datapipes.base import DataPipe, is_iter_pipe, is_pipe
from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.caching.memory_caching import InMemoryCacheHolder
from asyncloader.datapipes.call import itself
from asyncloader.datapipes.combining import Together
from asyncloader.datapipes.edges import drawn_above, pipes_from, read_apart
from asyncloader.datapipes.grouping import TokenBatcher
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.random_splitting import RandomSplit
from asyncloader.datapipes.recording import Numbering
from asyncloader.datapipes.rollouts import Rollout
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    acts_for,
    attributes,
    can,
    draws,
    goes_by_clock,
    hands_over,
    has_own_state,
    is_async_pipe,
    is_filter_of_shards,
    is_fullsync,
    is_ours,
    is_repeatable,
    is_shuffler,
    is_splitter,
    is_without_order,
    lives_with_loader,
    raises_errors,
    reads_ahead,
    shards_itself,
    shares_passes,
    stands_in,
    takes_turns,
    vars_of,
)
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.sources import IterableWrapper, divided_twice, draws_in_each_worker
from asyncloader.datapipes.splitting import Branch
from asyncloader.graph.cut import (
    cut_graph,
    cut_or_nothing,
    dividers_of,
    is_read_again,
    read_again,
    read_at_once,
    read_without_fork,
)
from asyncloader.graph.recorded import (
    beginning,
    counts_all,
    hard_behind,
    hard_to_record,
    keeps_parts,
    makes_fresh_batches,
    puts_together,
    recorded_from,
    section,
    unrepeatable,
)
from asyncloader.graph.walk import Graph, breadth_first, pipes_of


class Purpose(StrEnum):
    """What a graph is wanted for, in words."""

    RUN = "to run"
    REQUESTS = "to answer requests"
    SHARDS = "in shards"
    WORKERS = "in workers"
    ACTORS = "in Ray's actors"
    THREADS = "in threads"
    RANKS = "on ranks"
    SAME_ITEMS = "on ranks that load the same items"
    PADDED = 'on ranks with uneven="pad"'
    STATE = "for a state"
    STATE_AS_READY = "for a state of workers with in_order=False"
    STATE_ON_RANKS = "for a state on ranks"
    ACKNOWLEDGE = "to acknowledge items"
    DELIVER = "without acknowledge=True"
    RESTART = "for a restart of workers"


@dataclass(frozen=True)
class Refusal:
    """Why a graph cannot be used for a purpose, and what to do instead."""

    purpose: Purpose
    why: str
    remedy: str

    def __str__(self) -> str:
        is_sentence = self.remedy[:1].isupper()
        return f"{self.why}{'. ' if is_sentence else '; '}{self.remedy}"


#: Why a graph is refused, and the remedy.
Said = tuple[str, str]

Finder = Callable[[Graph], Iterator[Said]]


def refusals(datapipe: Any, purpose: Purpose, *, workers: int = 0) -> Iterator[Refusal]:
    """Yield all that keeps a graph from being used for a purpose, with so many workers.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> shared = IterableWrapper([1])
    >>> [refusal.remedy for refusal in refusals(shared.zip(shared), Purpose.STATE)]
    ['read it through fork()']
    """
    graph = Graph.of(datapipe)
    found = chain.from_iterable(find(graph) for find in _finders(purpose, workers))
    known: set[Said] = set()
    for said in found:
        if said not in known:
            known.add(said)
            yield Refusal(purpose, *said)


def first_refusal(datapipe: Any, purpose: Purpose, *, workers: int = 0) -> Refusal | None:
    """Return the first of what keeps a graph from being used for a purpose, or None."""
    return next(refusals(datapipe, purpose, workers=workers), None)


def check_graph(datapipe: Any, purpose: Purpose, *, workers: int = 0) -> None:
    """Raise ValueError for a graph that cannot be used for a purpose."""
    refusal = first_refusal(datapipe, purpose, workers=workers)
    if refusal is not None:
        raise ValueError(str(refusal))


def every_refusal(datapipe: Any, workers: int) -> Iterator[Refusal]:
    """Yield all that a graph is refused for, whatever it is wanted for, with so many workers."""
    graph = Graph.of(datapipe)
    only_in_workers = {Purpose.WORKERS, Purpose.ACTORS, Purpose.THREADS, Purpose.RESTART}
    for purpose in Purpose:
        if workers or purpose not in only_in_workers:
            yield from refusals(graph, purpose, workers=workers)


def _finders(purpose: Purpose, workers: int) -> Sequence[Finder]:
    match purpose:
        case Purpose.RUN:
            return (
                *(_raced_branches, _split_after_drawing, _kept_after_drawing),
                *(_not_last, _left_behind, _drawn_for_several, _not_recorded),
                *(_let_wait, _batches_too_large, _not_judged),
            )
        case Purpose.REQUESTS:
            return _several_feeds, _not_for_requests
        case Purpose.SHARDS:
            return (_sharded_twice,)
        case Purpose.WORKERS if workers > 1:
            several = _divided_again, _other_keys, _out_of_order_in_workers
            return _not_cut, *several, _read_more_than_once, _counted_in_workers
        case Purpose.WORKERS:
            return _not_cut, _read_more_than_once, _counted_in_workers
        case Purpose.ACTORS:
            return (_fed,)
        case Purpose.THREADS:
            return (_not_for_threads,) if workers > 1 else ()
        case Purpose.RANKS:
            return _out_of_order_on_ranks, _synced_before_work
        case Purpose.SAME_ITEMS:
            return (_ready_in_other_orders,)
        case Purpose.PADDED:
            return (_left_out_before_the_end,)
        case Purpose.STATE:
            return _never_again, _without_a_place, _without_a_record
        case Purpose.STATE_AS_READY:
            return (_without_a_record_as_ready,)
        case Purpose.STATE_ON_RANKS:
            return (_synced_before_section,)
        case Purpose.ACKNOWLEDGE:
            return (_never_again_to_acknowledge,)
        case Purpose.DELIVER:
            return (_lag_unknown,)
        case Purpose.RESTART:
            return _dealt_without_order, _without_a_place_in_workers, _without_a_record_in_workers


# To run ---------------------------------------------------------------------------------


def _several_feeds(graph: Graph) -> Iterator[Said]:
    feeds = _feeds(graph)
    if len(feeds) > 1:
        yield f"a graph can have one Feed only, got {feeds}", "make a loader for each of them"


def _not_for_requests(graph: Graph) -> Iterator[Said]:
    """Yield what keeps a graph that begins with a Feed from giving each request its answer."""
    if not _feeds(graph):
        return
    pipes = [pipe for pipe in reversed(graph.pipes) if not lives_with_loader(pipe)]
    for pipe in pipes:
        if is_splitter(pipe) or len(graph.sources(pipe)) != 1:
            yield (
                f"{stage_name(pipe)} cannot be used in a graph with a Feed",
                "only a single chain of pipes from the Feed to the end gives each request one"
                " answer",
            )
        else:
            yield from _not_for_envelopes(pipe)
    for batcher in [pipe for pipe in pipes if isinstance(pipe, Batcher)][1:]:
        yield (
            "requests can be batched only once",
            f"remove {stage_name(batcher)}, the second batch after the Feed",
        )


def _feeds(graph: Graph) -> list[Any]:
    """Return the pipes that change the graph to run, which a Feed does."""
    living = [pipe for pipe in graph.pipes if lives_with_loader(pipe)]
    return [
        pipe
        for pipe in living
        if isinstance(pipe, DataPipe) and type(pipe).rewired is not DataPipe.rewired
    ]


def _not_for_envelopes(pipe: Any) -> Iterator[Said]:
    if isinstance(pipe, Batcher):
        if pipe.drop_last:
            yield (
                f"{stage_name(pipe)} follows a Feed, where drop_last would drop requests that wait"
                " for an answer",
                "leave drop_last out",
            )
    elif isinstance(pipe, DataPipe) and pipe.carry(itself):
        return
    elif is_ours(pipe) and not raises_errors(pipe):
        yield (
            f"{stage_name(pipe)} follows a Feed, where an error is the answer to its own request",
            "leave on_error out, or catch the error in the function",
        )
    elif isinstance(pipe, OneToOne) and not is_ours(pipe):
        if is_async_pipe(pipe):
            yield (
                f"{stage_name(pipe)} cannot follow a Feed, because it has an __aiter__: each"
                " request would wait for the one before it",
                "await in a function for async_map instead",
            )
    else:
        yield (
            f"{stage_name(pipe)} cannot follow a Feed: it does not make exactly one item of each"
            " item, so requests would lose their answers",
            "Use map, async_map, thread_map, collate and batch, or a pipe of your own that"
            " derives from OneToOne",
        )


def _raced_branches(graph: Graph) -> Iterator[Said]:
    for pipe in graph.pipes:
        raced = _branch_raced_for(pipe.sources) if isinstance(pipe, Together) else None
        if raced is not None:
            branch, ahead = raced
            yield (
                f"{pipe!r} reads {branch!r} by two of its sources, where each reader ends the pass"
                f" of the one before, and {ahead!r} reads ahead, so nobody knows when",
                "Give each source a branch of its own, by a larger fork",
            )


def _branch_raced_for(sources: Iterable[Any]) -> tuple[Any, Any] | None:
    """Return a branch that several sources read at a time, and a pipe that reads it ahead, or None.

    Each reader begins the branch anew, which ends the pass of the one before. When that is
    depends on how far ahead it has read.
    """
    read: dict[int, Any] = {}
    for source in sources:
        above = [*pipes_from(source, is_splitter)]
        ahead = next(filter(reads_ahead, above), None)
        for branch in above:
            if isinstance(branch, Branch):
                either = ahead if ahead is not None else read.get(id(branch))
                if id(branch) in read and either is not None:
                    return branch, either
                read[id(branch)] = either
    return None


def _split_after_drawing(graph: Graph) -> Iterator[Said]:
    splits = (pipe for pipe in graph.pipes if isinstance(pipe, RandomSplit))
    yield from filter(None, (split.refusal() for split in splits))


def _kept_after_drawing(graph: Graph) -> Iterator[Said]:
    for pipe in graph.pipes:
        drawn = drawn_above(pipe) if isinstance(pipe, InMemoryCacheHolder) else None
        if drawn is not None:
            yield (
                f"{pipe!r} keeps its first pass, while {drawn!r} before it gives another order to"
                " every process and epoch that does not have that pass: items would be lost and"
                " come twice",
                f"Put {pipe!r} before {drawn!r}",
            )


def _not_last(graph: Graph) -> Iterator[Said]:
    for pipe in graph.pipes:
        if pipe is not graph.end and hands_over(pipe):
            yield (
                f"{stage_name(pipe)} must be the last pipe of a loader's graph, because it copies"
                " to the device of the thread that takes the items",
                "move the pipes that follow it before it",
            )


def _left_behind(graph: Graph) -> Iterator[Said]:
    for each in branches_left_behind(graph):
        # Where nothing reads ahead, the order of reading is always the same.
        if each[-1] is not None:
            left, again, branch, ahead = map(stage_name, each)
            yield (
                f"{again} reads {branch} in several passes, each of which ends that of {left}, and"
                f" {ahead} reads ahead, so nobody knows where",
                f"Let {again} read what the branches are joined to",
            )


def branches_left_behind(end: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield branches whose pass is ended because another of their splitter is read again.

    How much they had yielded before depends on how far each was read. With each come the pipe
    that reads again, the branch it reads, and a pipe that reads ahead, or None: then it depends
    on time, too.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> one, other = IterableWrapper([1]).fork(2)
    >>> list(branches_left_behind(one.cycle(2).mux_longest(other.prefetch(1))))
    [(fork(2)[1], cycle(2), fork(2)[0], prefetch(1))]
    """
    graph = Graph.of(end)
    splitters = list(filter(shares_passes, graph.pipes))
    read_again = [pipe for pipe in graph.pipes if splitters and is_read_again(pipe, graph)]
    for splitter, again in product(splitters, read_again):
        above = graph.upstream([again])
        branches = graph.readers(splitter)
        inside = [branch for branch in branches if id(branch) in above]
        outside = [branch for branch in branches if id(branch) not in above]
        for branch, left in product(inside, outside):
            own, others = graph.downstream(branch), graph.downstream(left)
            apart = read_apart(own, others)
            if apart is not None:
                yield left, again, branch, next(filter(reads_ahead, apart), None)


def _drawn_for_several(graph: Graph) -> Iterator[Said]:
    """Yield pipes that draw an order for each pass, where nobody knows whose pass begins next."""
    at_once = read_without_fork(graph)
    shared = set(map(id, at_once))
    for pipe in at_once:
        inside = _made_for_each_reader(pipe, graph)
        for drawn in filter(draws, inside):
            behind = [each for each in inside if id(drawn) in graph.upstream([each])]
            several = (each for each in behind if id(each) not in shared)
            again = next((each for each in several if is_read_again(each, graph)), None)
            ahead = next(filter(reads_ahead, behind), None)
            if again is not None and ahead is not None:
                yield (
                    f"{stage_name(drawn)} draws an order for each pass, {stage_name(again)} makes"
                    f" several passes, and {stage_name(ahead)} reads ahead, for several readers at"
                    " once, so nobody knows who gets which order",
                    "Let them read it through fork()",
                )


def _made_for_each_reader(pipe: Any, graph: Graph) -> list[Any]:
    """Return the pipes of which each reader of a pipe has passes of its own, at the same time."""
    readers = graph.readers(pipe)
    ways = [graph.downstream(reader) for reader in readers]
    apart = [read_apart(one, other) for one, other in combinations(ways, 2)]
    if all(each is None for each in apart) and not any(
        read_at_once(each, pipe) for each in readers
    ):
        return []
    above = graph.upstream([pipe])
    own = [each for each in graph.pipes if id(each) in above]
    return [*own, *chain.from_iterable(filter(None, apart))]


def _not_recorded(graph: Graph) -> Iterator[Said]:
    """Yield the pipes in which a record of what becomes of each item would break off."""
    # A graph that is run is recorded already.
    if unrepeatable(graph) is None or any(isinstance(pipe, Numbering) for pipe in graph.pipes):
        return
    for feed in filter(lives_with_loader, graph.pipes):
        yield (
            f"{stage_name(unrepeatable(graph))} has repeatable=False, and {stage_name(feed)} serves"
            " live requests, which never come again",
            "Leave out repeatable",
        )
    first = beginning(graph)
    for pipe in hard_to_record(graph, section(graph, first)):
        yield _hard(pipe, first)


def _hard(pipe: Any, first: Any) -> Said:
    """Say why it cannot be recorded what becomes of the items of a pipe behind another."""
    name, what = stage_name(first), "whose results cannot be repeated"
    instead = f"Put {stage_name(pipe)} before {name}"
    if is_repeatable(first):
        what, instead = "which yields results as they are ready", f"{instead}, pass ordered=True"
    if is_fullsync(pipe):
        instead = f"Put {stage_name(pipe)} at the end of the graph"
    return (
        f"{stage_name(pipe)} follows {name}, {what}. From there on it is recorded what becomes of"
        f" each item, which cannot be told of what {stage_name(pipe)} yields",
        f"{instead}, or do its work in your loop, behind the loader",
    )


def _rollouts(graph: Graph) -> Iterator[tuple[Rollout[Any], list[Any]]]:
    """Yield the rollouts with ``max_lag``, each with the pipes that follow it."""
    # A graph that is run was looked at before.
    if any(isinstance(pipe, Numbering) for pipe in graph.pipes):
        return
    for pipe in graph.pipes:
        if isinstance(pipe, Rollout) and pipe.max_lag is not None:
            yield pipe, section(graph, pipe)[1:]


def _batches_too_large(graph: Graph) -> Iterator[Said]:
    """Yield batches that need more prompts than may be begun before one of them is trained."""
    for rollout, pipes in _rollouts(graph):
        capacity, size = rollout.admission.capacity, 1
        batches = [pipe for pipe in pipes if isinstance(pipe, Batcher) and pipe.max_wait is None]
        for batch in batches:
            size *= batch.batch_size
        if capacity is not None and size > capacity:
            yield (
                f"{' and '.join(map(stage_name, batches))} would wait for {size} prompts, and"
                f" {stage_name(rollout)} begins at most {capacity} before one is acknowledged, so"
                " it would wait for ever",
                "Make the batches smaller, or raise per_step or max_lag",
            )


def _not_judged(graph: Graph) -> Iterator[Said]:
    """Yield what keeps a batch from looking which of its items are too old for it."""
    for rollout, pipes in _rollouts(graph):
        first = next(filter(puts_together, pipes), None)
        if rollout.judges and (first is None or not makes_fresh_batches(first)):
            yield (
                f'{stage_name(rollout)} has order="ready" and max_lag, where a batch is made only'
                " of what is young enough when it is trained, and no pipe behind it makes batches"
                " by their size",
                'Add batch (without max_wait) or batch_tokens, or use order="source"',
            )


def _let_wait(graph: Graph) -> Iterator[Said]:
    """Yield pipes because of which a result may wait until the policy is too new for it."""
    for rollout, pipes in _rollouts(graph):
        for pipe in pipes:
            is_batch = isinstance(pipe, Batcher | TokenBatcher)
            if (
                is_shuffler(pipe)
                or is_without_order(pipe)
                or (puts_together(pipe) and not is_batch)
            ):
                yield (
                    f"{stage_name(pipe)} may let a result of {stage_name(rollout)} wait while later"
                    " ones are trained, so max_lag would not hold",
                    f"Put {stage_name(pipe)} before it, or let it keep the order",
                )


def _lag_unknown(graph: Graph) -> Iterator[Said]:
    for rollout, _ in _rollouts(graph):
        yield (
            f"{stage_name(rollout)} has max_lag, so the loader must know what was trained",
            "Pass acknowledge=True to it, and call ack() after each step, once the version is"
            " advanced",
        )


# In workers, and on ranks ---------------------------------------------------------------


def _sharded_twice(graph: Graph) -> Iterator[Said]:
    """Yield pairs of filters on one path for one group."""
    for group in (SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING):
        yield from sharded_twice(graph, group)


def sharded_twice(graph: Graph, group: int) -> Iterator[Said]:
    """Yield why items would be lost if each filter were told its shard of a group."""
    filters = [pipe for pipe in graph.pipes if is_filter_of_shards(pipe) and acts_for(pipe, group)]
    reached = {id(pipe): graph.upstream([pipe]) for pipe in filters}
    for one, other in combinations(filters, 2):
        if id(one) in reached[id(other)] or id(other) in reached[id(one)]:
            yield (
                f"{stage_name(one)} and {stage_name(other)} shard the same path, so items would be"
                " lost",
                "keep one of them, or give each a sharding group of its own",
            )


def _not_cut(graph: Graph) -> Iterator[Said]:
    try:
        cut_graph(graph)
    except ValueError as error:
        why, _, remedy = str(error).partition("; ")
        yield why, remedy


def _read_more_than_once(graph: Graph) -> Iterator[Said]:
    """Yield pipes that read again what comes once, because another process sends it."""
    cut = cut_or_nothing(graph)
    for part in cut.parts:
        if cut.deals_to(part):
            reader = read_again(part.end, cut.dispatch)
            if reader is not None and reader is not cut.dispatch:
                yield (
                    f"{stage_name(reader)} reads its source more than once in an epoch, but follows"
                    " sharding_round_robin_dispatch(), which sends each item only once",
                    f"Put {stage_name(reader)} before sharding_round_robin_dispatch()",
                )
    for part in cut.parts:
        reader = read_again(graph.end, part.end)
        if reader is not None and reader is not part.end:
            yield (
                f"{stage_name(reader)} runs in the loader's process and reads its source more than"
                " once in an epoch, but the workers' items come only once",
                "Put it before the pipes that have to run in the loader's process",
            )


def _counted_in_workers(graph: Graph) -> Iterator[Said]:
    """Yield pipes that count all items of a section, of which a worker knows only its own."""
    first = recorded_from(graph)
    recorded = set(map(id, section(graph, first)))
    for part in cut_or_nothing(graph).parts:
        for pipe in part.pipes:
            if id(pipe) in recorded and counts_all(pipe):
                yield (
                    f"{stage_name(pipe)} counts what comes out of {stage_name(first)} in each"
                    " worker, but where its results, or their order, cannot be repeated only the"
                    " loader's process knows how many there are",
                    f"Put {stage_name(pipe)} before it, or count in your loop",
                )


def _divided_again(graph: Graph) -> Iterator[Said]:
    """Yield pipes that shard themselves, with another on their path that divides items too."""
    cut = cut_or_nothing(graph)
    for part in cut.parts:
        dividers = dividers_of(part, cut.dispatch)
        for pipe in filter(shards_itself, part.pipes):
            above = graph.upstream([pipe])
            for divider in dividers:
                if id(pipe) in graph.upstream([divider]) or id(divider) in above:
                    yield divided_twice(pipe, stage_name(divider))
            if id(cut.dispatch) in above:
                yield divided_twice(pipe, stage_name(cut.dispatch))


def _other_keys(graph: Graph) -> Iterator[Said]:
    """Yield samplers that draw other keys in each worker, where a filter divides their items."""
    cut = cut_or_nothing(graph)
    for part in cut.parts:
        for divider in dividers_of(part, cut.dispatch):
            for source in pipes_of(divider):
                if isinstance(source, IterableWrapper) and draws_in_each_worker(source.iterable):
                    yield (
                        f"{source!r} draws other keys in each worker, so items would be lost and"
                        " come twice",
                        "put sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING) in"
                        f" the place of {stage_name(divider)}, which runs the sampler once, for all"
                        " workers",
                    )


def _out_of_order_in_workers(graph: Graph) -> Iterator[Said]:
    cut = cut_or_nothing(graph)
    for part in cut.parts:
        yield from _out_of_order(
            part.pipes, part.inlets, SHARDING_PRIORITIES.MULTIPROCESSING, "workers"
        )


def _out_of_order_on_ranks(graph: Graph) -> Iterator[Said]:
    yield from _out_of_order(graph.pipes, (), SHARDING_PRIORITIES.DISTRIBUTED, "ranks")


def _synced_before_work(graph: Graph) -> Iterator[Said]:
    """Yield the same as for a state, where the results of a section cannot be repeated."""
    pipes = section(graph, recorded_from(graph))
    if any(not is_repeatable(pipe) or keeps_parts(pipe) for pipe in pipes):
        yield from _synced_before_section(graph)


def _synced_before_section(graph: Graph) -> Iterator[Said]:
    """Yield what ranks would agree on otherwise after a resume, as each reads from its own place.

    Some would read more than they had before, and others less.
    """
    first = recorded_from(graph)
    above = {} if first is None else graph.upstream([first])
    for pipe in filter(is_fullsync, graph.pipes):
        if id(pipe) in above and pipe is not first:
            yield (
                f"{stage_name(pipe)} comes before {stage_name(first)}, from which on it is recorded"
                " what becomes of each item: to resume, each rank reads what it has not settled,"
                " so the ranks would agree on other items than before",
                f"Put {stage_name(pipe)} at the end of the graph, or leave it out:"
                " DistributedReadingService adds one there",
            )


def _out_of_order(
    pipes: Iterable[Any], inlets: Sequence[Any], group: int, whom: str
) -> Iterator[Said]:
    """Yield pipes because of which several of ``whom`` could not divide the same items.

    Items that came from inlets are divided already.
    """
    for division in pipes:
        if not (takes_turns(division) and acts_for(division, group)):
            continue
        above = breadth_first(division)
        is_divided = any(each is inlet for each in above for inlet in inlets)
        for pipe in [] if is_divided or any(map(stands_in, above)) else above:
            if is_without_order(pipe) or goes_by_clock(pipe):
                yield (
                    f"each of the {whom} would have the items in another order where"
                    f" {stage_name(division)} divides them, and some would be lost: what"
                    f" {stage_name(pipe)} yields is in no certain order",
                    "Put the sharding pipe before it, or give it an order (ordered=True, no"
                    " max_wait)",
                )


def _ready_in_other_orders(graph: Graph) -> Iterator[Said]:
    for pipe in filter(is_without_order, graph.pipes):
        yield (
            f"{stage_name(pipe)} yields items as they are ready, so ranks that should load the same"
            " items would have them in different orders",
            "make it ordered, or divide the items among all ranks",
        )


def _left_out_before_the_end(graph: Graph) -> Iterator[Said]:
    for pipe in filter(is_fullsync, graph.pipes):
        if pipe is not graph.end:
            yield (
                f'{stage_name(pipe)} leaves out what not all ranks have, and uneven="pad" pads it,'
                " which is possible only at the end of the graph",
                "leave that pipe out",
            )


def _fed(graph: Graph) -> Iterator[Said]:
    for pipe in filter(lives_with_loader, graph.pipes):
        yield (
            f"RayReadingService cannot run {stage_name(pipe)}: a feed's requests are answered by"
            " processes of the same machine",
            "use MultiProcessingReadingService",
        )


def _not_for_threads(graph: Graph) -> Iterator[Said]:
    """Yield what several threads would read at a time, of which each would get a part only."""
    for pipe in [pipe for pipe, place in cut_or_nothing(graph).places if place == "workers"]:
        for name, value in attributes(pipe):
            if isinstance(value, Iterator | AsyncIterator) and not isinstance(value, count):
                yield (
                    f"{name} of {stage_name(pipe)} is an iterator ({type(value).__qualname__}),"
                    " which several threads would read at a time",
                    "Pass what can be iterated again, each time from the beginning, or use one"
                    " worker",
                )
            if _is_open_file(value):
                yield _read_by_several(name, pipe)
        yield from shared_files(pipe)


def shared_files(pipe: Any) -> Iterator[Said]:
    """Yield the open files in the attributes of what copies of a pipe share.

    They may have been opened when a thread looked the first item up.
    """
    for _, value in attributes(pipe):
        for words, each in [] if is_pipe(value) else _fields(value, set()):
            if _is_open_file(each):
                yield _read_by_several(words, pipe)


def _fields(value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of something, and of data sets in them, with their names."""
    seen.add(id(value))
    fields = list(vars_of(value).items())
    # What several threads may read at a time: it has what each needs, or lets them take turns.
    if isinstance(value, threading.local) or any(isinstance(each, _LOCKS) for _, each in fields):
        return
    for of, field in fields:
        yield f"{type(value).__qualname__}.{of}", field
        is_list = type(field) is list and len(field) <= _MOST_DATA_SETS
        for each in field if is_list else [field]:
            if vars_of(each) and can(each, "__getitem__") and id(each) not in seen:
                yield from _fields(each, seen)


_LOCKS = type(threading.Lock()), type(threading.RLock())
#: A longer list is one of items.
_MOST_DATA_SETS = 1000


def _is_open_file(value: Any) -> bool:
    """Whether something has a place in a file, which a reader moves."""
    tarfile = sys.modules.get("tarfile")
    if tarfile is not None and isinstance(value, tarfile.TarFile):
        return not value.closed
    return isinstance(value, io.IOBase) and not value.closed and value.readable()


def _read_by_several(words: str, pipe: Any) -> Said:
    return (
        f"{words} of {stage_name(pipe)} is an open file, which several threads would read at a"
        " time",
        "keep one for each thread in a threading.local, which each opens when it reads first",
    )


# For a state, and for a restart ---------------------------------------------------------


def _never_again(graph: Graph) -> Iterator[Said]:
    recorded = set(map(id, section(graph, recorded_from(graph))))
    for pipe in graph.pipes:
        if lives_with_loader(pipe):
            yield (
                f"{stage_name(pipe)} serves live requests; there is no place to resume from",
                "Begin anew, without a state",
            )
        elif goes_by_clock(pipe) and id(pipe) not in recorded:
            yield (
                f"{stage_name(pipe)} depends on time, so its items would not be the same again",
                "leave it out, or what makes it so (of a batch: max_wait)",
            )


def _never_again_to_acknowledge(graph: Graph) -> Iterator[Said]:
    for pipe in filter(lives_with_loader, graph.pipes):
        yield (
            f"acknowledge=True does not go with {stage_name(pipe)}, because its requests never come"
            " again",
            "leave it out",
        )


def _without_a_place(graph: Graph) -> Iterator[Said]:
    """Yield why no cursors of a graph's pipes say where it is."""
    for pipe in read_without_fork(graph):
        yield (
            f"{stage_name(pipe)} is read several times, each in a pass of its own, so no single"
            " place in it says how far the graph is",
            "read it through fork()",
        )
    for pipe in graph.pipes:
        # A map pipe is looked up and has no place.
        streams = [stage_name(edge) for edge in graph.sources(pipe) if is_iter_pipe(edge)]
        if streams and has_own_state(pipe):
            yield (
                f"{stage_name(pipe)} has load_state_dict and reads {', '.join(streams)}, which"
                " would begin again at its first item",
                "Leave out state_dict and load_state_dict, so that it is run again up to its place;"
                " or give the class edges = (), if its state includes that of what it reads",
            )
    yield from _held_while_read_again(graph)


def _held_while_read_again(graph: Graph) -> Iterator[Said]:
    """Yield splitters that hold a branch's items of one pass while a sister begins the next.

    A branch's place is one in the latest pass of all branches. Where no chance decides what is read
    next, the splitter goes on as it did before its sister is read again.
    """
    for left, again, branch, _ in branches_left_behind(graph):
        inside = graph.upstream([again])
        behind = graph.downstream(left)
        join = next(pipe for each, pipe in graph.downstream(branch).items() if each in behind)
        if not draws(join):
            continue
        for holder in graph.pipes:
            if shares_passes(holder) and id(holder) in behind and id(holder) not in inside:
                holds, reads, first, other = map(stage_name, (holder, again, left, branch))
                yield (
                    f"{holds} holds items of {first} while {reads} reads {other} again, so no"
                    " single place in them says how far the graph is",
                    f"Let {reads} read what the branches are joined to, or read each from a source"
                    " of its own",
                )


def _without_a_record(graph: Graph) -> Iterator[Said]:
    """Yield why no state can say what became of each item where nothing repeats an order."""
    first = beginning(graph)
    if first is not None and recorded_from(graph) is None:
        for pipe in hard_to_record(graph, section(graph, first)):
            yield _hard(pipe, first)


def _without_a_record_as_ready(graph: Graph) -> Iterator[Said]:
    for part in cut_or_nothing(graph).parts:
        for pipe in hard_behind(graph, part.pipes, part.end):
            yield (
                f"{stage_name(pipe)} reads what workers send, which comes as it is ready, and it"
                " cannot be told what becomes of each item there",
                f"Put {stage_name(pipe)} before the pipes that workers run, pass in_order=True, or"
                " do its work in your loop, behind the loader",
            )


def _without_a_record_in_workers(graph: Graph) -> Iterator[Said]:
    """Yield why no process could repeat the order of one that died, or say what it has sent."""
    for part in cut_or_nothing(graph).parts:
        yield from _without_a_record(Graph(part.end))


def _dealt_without_order(graph: Graph) -> Iterator[Said]:
    """Yield why a new dispatching process could not repeat the order of one that died."""
    cut = cut_or_nothing(graph)
    for pipe in pipes_of(cut.dispatch) if cut.is_dealt else ():
        if is_without_order(pipe):
            yield (
                f"{stage_name(pipe)} yields results as they come, in the dispatching process, which"
                " cannot dispatch them in that order again",
                "pass ordered=True, or let it follow sharding_round_robin_dispatch",
            )


def _without_a_place_in_workers(graph: Graph) -> Iterator[Said]:
    """Yield why no process could resume where one that died was."""
    cut = cut_or_nothing(graph)
    for part in cut.parts:
        yield from _without_a_place(Graph(part.end))
