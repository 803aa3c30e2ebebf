"""Where a graph is divided between processes."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.iter import (
    SHARDING_PRIORITIES,
    Concater,
    IterableWrapper,
    IterDataPipe,
    ShardingRoundRobinDispatcher,
    Zipper,
)
from asyncloader.datapipes.map import MapDataPipe, SequenceWrapper
from asyncloader.graph import breadth_first, cut_graph, edges_of
from asyncloader.graph.refusals import branches_left_behind

DISTRIBUTED, MULTIPROCESSING = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING


class Pinned(IterDataPipe[Any]):
    """Runs once only."""

    def __init__(self, source: Any = None) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return False


class ZippedOnce(Zipper):
    """Joins, and runs once only."""

    def is_replicable(self) -> bool:
        return False


class Live(IterDataPipe[Any]):
    """A source that lives with the loader."""

    def lives_with_loader(self) -> bool:
        return True

    def is_replicable(self) -> bool:
        return False


def source() -> IterDataPipe[int]:
    return IterableWrapper([1, 2])


def dealt(pipe: Any) -> Any:
    return ShardingRoundRobinDispatcher(pipe, MULTIPROCESSING)


def everywhere(end: Any) -> dict[str, set[int]]:
    return {place: ids(*pipes_in(place, end)) for place in ("dispatcher", "workers", "loader")}


def pipes_in(place: str, end: Any) -> list[Any]:
    return [pipe for pipe, where in cut_graph(end).places if where == place]


def ends_of_parts(end: Any) -> list[Any]:
    return [part.end for part in cut_graph(end).parts]


def ids(*pipes: Any) -> set[int]:
    return {id(pipe) for pipe in pipes}


def upto(*ends: Any) -> set[int]:
    return {id(pipe) for end in ends for pipe in breadth_first(end)}


# One part -----------------------------------------------------------------------------


def test_a_replicable_graph_runs_in_the_workers() -> None:
    end = source().sharding_filter().map(str)
    cut = cut_graph(end)
    assert (cut.dispatch, cut.feed) == (None, None)
    assert [part.end for part in cut.parts] == [end]
    assert cut.parts[0].pipes == tuple(breadth_first(end))
    assert pipes_in("workers", end) == breadth_first(end)


def test_pipes_that_run_once_stay_with_the_loader_and_so_does_all_below() -> None:
    work = source().map(str)
    pinned = Pinned(work)
    end = pinned.map(len)
    assert ends_of_parts(end) == [work]
    assert everywhere(end) == {
        "dispatcher": set(),
        "workers": upto(work),
        "loader": ids(pinned, end),
    }


def test_a_source_that_runs_once_leaves_nothing_to_the_workers() -> None:
    end = Pinned().map(str)
    assert cut_graph(end).parts == ()
    assert pipes_in("loader", end) == breadth_first(end)


def test_torch_pipes_are_cut_as_well() -> None:
    work = torch_iter.IterableWrapper([1]).shuffle().sharding_filter().map(str)
    assert ends_of_parts(Pinned(work)) == [work]


# Dispatching ----------------------------------------------------------------------------


def test_a_chain_is_cut_after_the_dispatch() -> None:
    dispatch = dealt(source().shuffle())
    work = dispatch.map(str).batch(2)
    end = Pinned(work)
    cut = cut_graph(end)
    assert cut.dispatch is dispatch
    (part,) = cut.parts
    assert (part.end, part.inlets, part.is_sharded) == (work, (dispatch,), True)
    assert everywhere(end) == {
        "dispatcher": upto(dispatch),
        "workers": ids(work, work.source),
        "loader": ids(end),
    }


def test_pipes_that_run_once_may_stand_above_the_dispatch() -> None:
    dispatch = dealt(Pinned(source()))
    end = dispatch.map(str)
    assert everywhere(end) == {
        "dispatcher": upto(dispatch),
        "workers": ids(end),
        "loader": set(),
    }


@pytest.mark.parametrize("wrap", [lambda pipe: pipe, Pinned])
def test_below_a_dispatch_at_the_end_workers_have_nothing_to_run(wrap: Any) -> None:
    dispatch = dealt(source())
    (part,) = cut_graph(wrap(dispatch)).parts
    assert (part.end, part.pipes, part.inlets) == (dispatch, (), (dispatch,))


def test_two_dispatches_are_cut_below_both() -> None:
    both = dealt(source()).map(str).zip(dealt(source()))
    end = both.map(len)
    assert cut_graph(end).dispatch is both
    assert everywhere(end) == {
        "dispatcher": upto(both),
        "workers": ids(end),
        "loader": set(),
    }


def test_of_two_dispatches_on_one_path_the_lower_one_counts() -> None:
    lower = dealt(dealt(source()).map(str))
    assert cut_graph(lower.map(len)).dispatch is lower


def test_a_dispatch_in_one_of_two_zipped_branches_leaves_the_other_to_the_workers() -> None:
    dispatch = dealt(source())
    other = source().sharding_filter()
    end = dispatch.map(str).zip(other)
    cut = cut_graph(end)
    assert cut.dispatch is dispatch
    assert everywhere(end) == {
        "dispatcher": upto(dispatch),
        "workers": ids(end, edges_of(end)[0]) | upto(other),
        "loader": set(),
    }


@pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])
def test_a_branch_that_shares_a_splitter_with_a_dispatch_goes_along(wrap: Any) -> None:
    left, right = wrap(range(4)).fork(2)
    both = dealt(left).zip(right.map(str))
    end = both.map(len)
    assert cut_graph(end).dispatch is both
    assert everywhere(end)["workers"] == ids(end)


def test_a_branch_that_shares_a_plain_source_with_a_dispatch_goes_along() -> None:
    shared = source()
    both = dealt(shared).zip(shared.map(str))
    assert cut_graph(both.map(len)).dispatch is both


def test_a_diamond_above_the_dispatch_stays_above_it() -> None:
    left, right = source().fork(2)
    dispatch = dealt(left.map(str).zip(right))
    assert cut_graph(dispatch.map(len)).dispatch is dispatch


def test_a_diamond_below_the_dispatch_runs_in_the_workers() -> None:
    dispatch = dealt(source())
    left, right = dispatch.fork(2)
    end = left.map(str).zip(right)
    assert cut_graph(end).dispatch is dispatch
    assert everywhere(end)["workers"] == upto(end) - upto(dispatch)


def test_a_dispatch_that_is_read_twice_cannot_be_the_cut() -> None:
    dispatch = dealt(source())
    both = dispatch.map(str).zip(dispatch.map(int))
    assert cut_graph(both.map(len)).dispatch is both


def test_a_dispatch_that_one_reads_twice_cannot_be_the_cut() -> None:
    for join in (Zipper, Concater):
        dispatch = dealt(source())
        both = join(dispatch, dispatch)
        assert cut_graph(both.map(len)).dispatch is both


def test_what_one_with_the_loader_reads_twice_stays_with_the_loader() -> None:
    shard = source().sharding_filter()
    shared = shard.map(str)
    (part,) = cut_graph(ZippedOnce(shared, shared)).parts
    assert part.end is shard


def test_a_dispatch_on_each_branch_of_a_splitter_is_cut_where_they_meet() -> None:
    left, right = source().demux(2, lambda n: n % 2)
    both = dealt(left).zip(dealt(right))
    assert cut_graph(both.map(len)).dispatch is both


# Several parts -----------------------------------------------------------------------


def test_several_replicable_parts_are_each_cut() -> None:
    one, other = source().map(str), source().map(int)
    end = Pinned(one).zip(Pinned(other))
    cut = cut_graph(end)
    assert [part.end for part in cut.parts] == [one, other]
    assert everywhere(end)["workers"] == upto(one, other)


def test_a_part_directly_beside_a_pipe_that_runs_once_is_cut_too() -> None:
    one, other = source().map(str), source().map(int)
    assert ends_of_parts(Pinned(one).zip(other)) == [other, one]


@pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])
def test_a_splitter_whose_branches_end_in_different_places_stays_with_the_loader(
    wrap: Any,
) -> None:
    top = wrap(range(4)).map(str)
    left, right = top.fork(2)
    end = Pinned(left).zip(right.map(int))
    assert ends_of_parts(end) == [top]
    assert everywhere(end)["loader"] == upto(end) - upto(top)


def test_a_pipe_with_two_readers_at_the_loader_is_not_cut() -> None:
    shared = source().map(str)
    end = Pinned(shared).zip(Pinned(shared))
    assert ends_of_parts(end) == [shared.source]


def test_what_is_looked_up_by_key_is_not_cut_off() -> None:
    class ByKey(IterDataPipe[Any]):
        def __init__(self, pipe: Any) -> None:
            self.pipe = pipe

        def is_replicable(self) -> bool:
            return False

    assert cut_graph(ByKey(SequenceWrapper("abc").map(str))).parts == ()


# Sources that live with the loader --------------------------------------------------------


def test_the_graph_is_cut_right_after_a_source_that_lives_with_the_loader() -> None:
    feed = Live()
    work = feed.map(str)
    end = Pinned(work)
    cut = cut_graph(end)
    assert cut.feed is feed
    (part,) = cut.parts
    assert (part.end, part.pipes, part.inlets) == (work, (work,), (feed,))
    assert part.is_sharded
    assert everywhere(end)["loader"] == ids(end, feed)


def test_a_feed_that_only_the_loader_reads_sends_nothing() -> None:
    cut = cut_graph(Pinned(Live()).map(str))
    assert (cut.feed, cut.parts) == (None, ())
    assert cut_graph(Live()).parts == ()


def test_two_feeds_meet_at_the_loader() -> None:
    both = Live().zip(Live())
    end = both.map(str)
    assert cut_graph(end).feed is both
    assert everywhere(end) == {"dispatcher": set(), "workers": ids(end), "loader": upto(both)}


def test_a_feed_and_a_dispatch_on_one_path_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"Live\(\) runs in the loader"):
        cut_graph(dealt(Live()).map(str))
    with pytest.raises(ValueError, match="remove the dispatching pipe"):
        cut_graph(Live().zip(dealt(source()).zip(Live())).map(str))


def test_a_feed_beside_a_dispatch_is_two_inlets() -> None:
    feed, dispatch = Live(), dealt(source())
    (part,) = cut_graph(feed.zip(dispatch).map(str)).parts
    assert part.inlets == (feed, dispatch)


# Sharding -------------------------------------------------------------------------------


def test_a_part_is_sharded_where_any_of_its_pipes_shards() -> None:
    plain, sharded = source(), source().sharding_filter()
    (part,) = cut_graph(plain.map(str).zip(sharded)).parts
    assert part.is_sharded
    (part,) = cut_graph(plain.map(str)).parts
    assert not part.is_sharded


def test_a_filter_among_ranks_does_not_shard_among_workers() -> None:
    (part,) = cut_graph(source().sharding_filter(DISTRIBUTED)).parts
    assert not part.is_sharded


def test_a_filter_that_runs_with_the_loader_does_not_shard_among_workers() -> None:
    (part,) = cut_graph(Pinned(source()).sharding_filter()).parts
    assert not part.is_sharded


def test_circles_cannot_be_cut() -> None:
    first = Pinned()
    second = Pinned(first)
    first.source = second
    with pytest.raises(ValueError, match="in a circle: Pinned"):
        cut_graph(second)


def test_a_large_graph_is_cut_in_one_pass() -> None:
    end: Any = source()
    for _ in range(500):
        left, right = end.fork(2)
        end = left.zip(right)
    assert len(pipes_in("workers", Pinned(end))) == 2001


def test_two_dispatches_that_only_a_map_pipe_joins_are_an_error() -> None:
    class ByKey(MapDataPipe[Any]):
        def __init__(self, *pipes: Any) -> None:
            self.pipes = pipes

    with pytest.raises(ValueError, match="can be cut nowhere below sharding_round_robin_dispatch"):
        cut_graph(ByKey(dealt(source()), dealt(source())))


def test_a_fork_of_many_branches_is_looked_through_at_once():
    one, *others = IterableWrapper(range(3)).fork(400)
    joined = one.zip(*[other.map(str) for other in others])
    began = time.process_time()
    assert not list(branches_left_behind(joined))
    assert not list(branches_left_behind(joined.cycle(2)))
    # To look at each pair of branches takes ten seconds.
    assert time.process_time() - began < 3
