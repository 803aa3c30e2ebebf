"""Where and how a graph is sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.adapters import ShardingPolicy
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import apply_sharding, copy_graph, to_text

DISTRIBUTED, MULTIPROCESSING = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING
FILTER, DISPATCH = "sharding_filter()", "sharding_round_robin_dispatch(sharding_group_filter=3)"

wrappers = pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])


def source() -> IterDataPipe[int]:
    return IterableWrapper(range(12))


def lines(end: Any) -> list[str]:
    """Return the graph's pipes below the source, by name."""
    return [line.partition("(")[0].strip() for line in to_text(end).splitlines()][1:]


def shares(end: Any, of: int = 2) -> list[list[Any]]:
    return [list(apply_sharding(copy_graph(end), of, index)) for index in range(of)]


def test_a_source_that_shards_itself_is_left() -> None:
    end = IterableWrapper(range(12), shards_itself=True).shuffle()
    assert lines(ShardingPolicy()(end)) == ["shuffle"]
    with pytest.raises(
        ValueError, match="is a source that shards itself, and its sharding cannot be moved"
    ):
        ShardingPolicy("end")(end)


# Adding ---------------------------------------------------------------------------------


def test_sharding_is_added_after_the_shuffle() -> None:
    end = ShardingPolicy()(source().shuffle().map(str).batch(2))
    assert lines(end) == ["shuffle", "sharding_filter", "map", "batch"]


def test_without_a_shuffle_it_is_added_after_the_source() -> None:
    assert shares(ShardingPolicy()(source().map(str)))[1] == ["1", "3", "5", "7", "9", "11"]
    assert lines(ShardingPolicy()(source())) == ["sharding_filter"]


def test_where_several_sources_meet_it_is_added_below() -> None:
    end = ShardingPolicy("after_source")(source().zip(source().map(str)).map(len))
    assert lines(end)[-3:] == ["zip", "sharding_filter", "map"]
    left, right = source().fork(2)
    assert lines(ShardingPolicy()(left.zip(right).map(len)))[-3:] == [
        "zip",
        "sharding_filter",
        "map",
    ]


def test_a_shuffle_in_the_batch_is_no_shuffle_of_items() -> None:
    end = ShardingPolicy()(source().batch(2).in_batch_shuffle())
    assert lines(end) == ["sharding_filter", "batch", "in_batch_shuffle"]


def test_whole_batches_do_not_depend_on_the_number_of_workers() -> None:
    end = ShardingPolicy("after_batch")(source().batch(3).map(tuple))
    assert lines(end) == ["batch", "sharding_filter", "map"]
    for workers in (1, 2, 4):
        batches = [batch for share in shares(end, workers) for batch in share]
        assert sorted(batches) == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]


def test_batches_that_the_loader_makes_are_not_divided_but_may_be_dealt() -> None:
    across = source().batch(3, across_workers=True)
    pinned = source().sharding_filter().pin_memory().batch(3).map(tuple)
    for end in (across, source().sharding_filter().batch(3, across_workers=True), pinned):
        with pytest.raises(
            ValueError, match=r"batch\(3.*\) runs in the loader's process, on the items"
        ):
            ShardingPolicy("after_batch")(end)
    assert lines(ShardingPolicy("after_batch", dispatch=True)(across))[-2:] == [
        "sharding_filter",
        "sharding_round_robin_dispatch",
    ]
    within = ShardingPolicy("after_batch")(
        source().batch(2).map(tuple).unbatch().batch(3, across_workers=True)
    )
    assert lines(within) == ["batch", "sharding_filter", "map", "unbatch", "batch"]


def test_the_end_is_where_the_workers_end() -> None:
    end = ShardingPolicy("end")(source().map(str).pin_memory())
    assert lines(end) == ["map", "sharding_filter", "pin_memory"]
    end = ShardingPolicy("end")(source().map(str).pin_memory().map(len))
    assert lines(end) == ["map", "sharding_filter", "pin_memory", "map"]


def test_what_the_loader_shuffles_is_divided_before() -> None:
    end = ShardingPolicy()(source().shuffle().map(str).pin_memory().shuffle())
    assert lines(end) == ["shuffle", "sharding_filter", "map", "pin_memory", "shuffle"]


@pytest.mark.parametrize("place", [None, "after_source", "end"])
def test_where_all_that_is_not_in_the_loader_is_above_a_fork_it_is_added_there(place: Any) -> None:
    one, other = source().batch(3, across_workers=True).fork(2)
    end = ShardingPolicy(place)(one.zip(other))
    assert lines(end)[:2] == ["sharding_filter", "batch"]
    assert to_text(end).count(FILTER) == 1


@wrappers
def test_a_group_is_named(wrap: Any) -> None:
    end = ShardingPolicy(group=DISTRIBUTED)(wrap(range(4)))
    assert end.sharding_group_filter == DISTRIBUTED


def test_dispatching_is_added_with_a_filter_among_ranks() -> None:
    end = ShardingPolicy(dispatch=True)(source().shuffle().map(str))
    assert lines(end) == ["shuffle", "sharding_filter", "sharding_round_robin_dispatch", "map"]


# Moving ---------------------------------------------------------------------------------


@wrappers
def test_a_filter_moves_up_past_pipes_that_do_the_same_to_each_item(wrap: Any) -> None:
    end = wrap(range(6)).map(int).map(str).sharding_filter().map(len)
    moved = ShardingPolicy("after_source")(copy_graph(end))
    assert "harding" in lines(moved)[0]
    assert shares(moved) == shares(end)


def test_the_filter_itself_moves_with_its_settings() -> None:
    end = source().map(str).sharding_filter(DISTRIBUTED)
    moved = ShardingPolicy("after_source")(end)
    assert lines(moved) == ["sharding_filter", "map"]
    assert moved.source is end
    assert end.sharding_group_filter == DISTRIBUTED


def test_a_filter_that_came_too_early_moves_below_the_shuffle() -> None:
    end = ShardingPolicy("after_shuffle")(source().sharding_filter().map(str).shuffle())
    assert lines(end) == ["map", "shuffle", "sharding_filter"]


def test_a_filter_moves_below_the_batch() -> None:
    end = ShardingPolicy("after_batch")(source().sharding_filter().map(str).batch(2).map(len))
    assert lines(end) == ["map", "batch", "sharding_filter", "map"]


def test_it_does_not_move_above_what_would_make_other_items_then() -> None:
    for end in (source().batch(2), source().filter(bool), source().enumerate()):
        with pytest.raises(ValueError, match=r"sharding_filter\(\) cannot be moved above"):
            ShardingPolicy("after_source")(end.sharding_filter())


def test_filters_on_both_sides_of_a_join_each_move_up() -> None:
    end = source().map(str).sharding_filter().zip(source().sharding_filter().map(len))
    moved = ShardingPolicy("after_source")(end)
    assert lines(moved) == [
        "sharding_filter",
        "map",
        "- IterableWrapper",
        "sharding_filter",
        "map",
        "zip",
    ]


def test_a_filter_that_is_in_place_stays() -> None:
    end = source().shuffle().sharding_filter().map(str)
    before = to_text(end)
    assert ShardingPolicy("after_shuffle")(end) is end
    assert ShardingPolicy()(end) is end
    assert to_text(end) == before


def test_a_map_pipe_is_sharded_once_it_is_a_stream() -> None:
    end = ShardingPolicy("after_source")(SequenceWrapper("abc").shuffle().map(str))
    assert lines(end) == ["shuffle", "sharding_filter", "map"]
    with pytest.raises(ValueError, match="has no IterDataPipe here"):
        ShardingPolicy()(SequenceWrapper("abc"))


# Changing -------------------------------------------------------------------------------


def test_a_filter_among_workers_becomes_a_dispatch() -> None:
    end = ShardingPolicy(dispatch=True)(source().sharding_filter(MULTIPROCESSING).map(str))
    assert lines(end) == ["sharding_round_robin_dispatch", "map"]


def test_a_filter_for_all_stays_to_divide_among_ranks() -> None:
    end = ShardingPolicy(dispatch=True)(source().sharding_filter().map(str))
    assert lines(end) == ["sharding_filter", "sharding_round_robin_dispatch", "map"]
    assert lines(ShardingPolicy(dispatch=True)(end)) == lines(end)


def test_a_dispatch_becomes_a_filter() -> None:
    end = ShardingPolicy(dispatch=False)(
        source().sharding_round_robin_dispatch(MULTIPROCESSING).map(str)
    )
    assert lines(end) == ["sharding_filter", "map"]
    assert end.source.sharding_group_filter is None


def test_a_dispatch_below_a_filter_is_not_replaced_by_a_second_one() -> None:
    end = source().sharding_filter().sharding_round_robin_dispatch(MULTIPROCESSING)
    assert lines(ShardingPolicy(dispatch=False)(end)) == ["sharding_filter"]
    end = source().sharding_filter(DISTRIBUTED).sharding_round_robin_dispatch(MULTIPROCESSING)
    changed = ShardingPolicy(dispatch=False)(end)
    assert lines(changed) == ["sharding_filter", "sharding_filter"]
    assert changed.sharding_group_filter == MULTIPROCESSING


def test_a_filter_is_given_a_group() -> None:
    end = ShardingPolicy(group=DISTRIBUTED)(source().sharding_filter().map(str))
    assert end.source.sharding_group_filter == DISTRIBUTED


def test_a_source_that_shards_itself_is_left_alone() -> None:
    class Sharded(IterDataPipe[int]):
        def apply_sharding(self, num_of_instances: int, instance_id: int) -> None: ...

    end = Sharded().map(str)
    assert lines(ShardingPolicy()(end)) == ["map"]
    with pytest.raises(ValueError, match="a source that shards itself"):
        ShardingPolicy("end")(end)


def test_arguments_that_make_no_sense_say_so() -> None:
    with pytest.raises(ValueError, match="place must be one of"):
        ShardingPolicy("middle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave group out"):
        ShardingPolicy(dispatch=True, group=MULTIPROCESSING)
    with pytest.raises(ValueError, match="no batch to shard after"):
        ShardingPolicy("after_batch")(source())
