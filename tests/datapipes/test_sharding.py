from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES as TORCH_PRIORITIES

from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper

DEFAULT, DISTRIBUTED, MULTIPROCESSING = SHARDING_PRIORITIES


@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 4))
def test_shares_cover_everything_once_as_in_torch(items: int, ranks: int, workers: int) -> None:
    shares = []
    for rank in range(ranks):
        for worker in range(workers):
            ours = IterableWrapper(range(items)).sharding_filter()
            theirs = torch_iter.IterableWrapper(range(items)).sharding_filter()
            for pipe in (ours, theirs):
                pipe.apply_sharding(workers, worker, TORCH_PRIORITIES.MULTIPROCESSING)
                pipe.apply_sharding(ranks, rank, TORCH_PRIORITIES.DISTRIBUTED)
            assert ours.num_of_instances == ranks * workers
            assert ours.instance_id == rank * workers + worker
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs) == len(list(ours))
            shares += ours

    assert sorted(shares) == list(range(items))


def test_a_group_filter_restricts_sharding_to_its_group() -> None:
    pipe = IterableWrapper(range(6)).sharding_filter(DISTRIBUTED)
    pipe.apply_sharding(3, 1, MULTIPROCESSING)
    assert list(pipe) == list(range(6))
    pipe.apply_sharding(2, 1, DISTRIBUTED)

    assert list(pipe) == [1, 3, 5]


def test_sharding_can_be_applied_anew() -> None:
    pipe = IterableWrapper(range(6)).sharding_filter()
    pipe.apply_sharding(2, 1)
    pipe.apply_sharding(3, 0)

    assert list(pipe) == [0, 3]


@pytest.mark.parametrize("groups", [(DEFAULT, DISTRIBUTED), (MULTIPROCESSING, DEFAULT)])
def test_the_default_group_goes_with_no_other(groups: Any) -> None:
    pipe = IterableWrapper(range(6)).sharding_filter()
    pipe.apply_sharding(2, 1, groups[0])

    with pytest.raises(RuntimeError, match="DEFAULT"):
        pipe.apply_sharding(2, 0, groups[1])
    assert list(pipe) == [1, 3, 5]


@pytest.mark.parametrize(
    ("count", "instance", "message"),
    [(2, 2, r"less than num_of_instances \(2\), got 2"), (2, -1, "got -1"), (0, 0, "got 0")],
)
def test_an_instance_is_one_of_those_there_are(count: int, instance: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IterableWrapper([1]).sharding_filter().apply_sharding(count, instance)


def test_a_group_is_one_of_three() -> None:
    with pytest.raises(ValueError, match=r"must be one of SHARDING_PRIORITIES.*got 7"):
        IterableWrapper([1]).sharding_filter(7)


def test_a_share_counts_what_it_has_yielded() -> None:
    pipe = IterableWrapper(range(9)).sharding_filter()
    pipe.apply_sharding(3, 2)

    assert [(n, pipe.current_pass.yielded) for n in pipe] == [(2, 1), (5, 2), (8, 3)]


@pytest.mark.parametrize("group", [MULTIPROCESSING, TORCH_PRIORITIES.MULTIPROCESSING])
def test_dispatch_passes_items_through_in_one_process(group: Any) -> None:
    pipe = IterableWrapper(range(5)).sharding_round_robin_dispatch(group)

    assert list(pipe) == list(range(5))
    assert len(pipe) == 5


@pytest.mark.parametrize("group", [None, DEFAULT, DISTRIBUTED])
def test_dispatch_is_for_worker_processes_only(group: Any) -> None:
    with pytest.raises(NotImplementedError, match="MULTIPROCESSING"):
        IterableWrapper(range(5)).sharding_round_robin_dispatch(group)
