"""Orders and shares of 10^12 rows and of 10^6 shards, at both ends.

No list has so many rows, so the data set computes each from its number.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.shuffling import permutation
from asyncloader.graph.fingerprint import fingerprint
from asyncloader.places.elastic import items_before, whole_position
from asyncloader.places.snapshot import Snapshot, SnapshotEncoder, decode

ROWS = 10**12
SHARDS = 10**6
#: It takes a fiftieth of this and less, but machines differ, and other processes need them, too.
SECONDS = 10.0

near_rows = st.integers(ROWS - 1000, ROWS)
ranks = st.integers(1, 10_000)
workers = st.integers(1, 64)


class Rows:
    """Rows that are their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        if not 0 <= number < self.count:
            raise IndexError(number)
        return number


def rows(count: int = ROWS) -> Any:
    return SequenceWrapper(Rows(count), deepcopy=False)


def share(pipe: Any, rank: int, ranks: int, worker: int, workers: int) -> Any:
    """Return a graph that ends in a sharding_filter as a worker of a rank has it."""
    pipe.apply_sharding(ranks, rank, SHARDING_PRIORITIES.DISTRIBUTED)
    pipe.apply_sharding(workers, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
    return pipe


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """A rank of so many, and a worker of so many; often the first or the last one."""
    of_ranks, of_workers = draw(ranks), draw(workers)
    ends = st.sampled_from([0, of_ranks - 1]), st.sampled_from([0, of_workers - 1])
    rank = draw(ends[0] | st.integers(0, of_ranks - 1))
    worker = draw(ends[1] | st.integers(0, of_workers - 1))
    return rank, of_ranks, worker, of_workers


def at(pipe: Any, state: Snapshot, position: int) -> DataLoader2[Any]:
    """Return a loader that resumes after so many items of the epoch of a state."""
    later = SnapshotEncoder(fingerprint(pipe)).encode(replace(state, items=position))
    return DataLoader2.from_state(later, datapipe=pipe)


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield what tells the most memory that was allocated at a time since then."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Rows ---------------------------------------------------------------------------------------------


@pytest.mark.soak
@settings(max_examples=4, deadline=None)
@given(near_rows, places(), st.integers(0, 2**64 - 1), st.integers(1, 5))
def test_a_share_of_a_shuffled_trillion_begins_and_ends_where_its_order_does(
    count, place, seed, left
):
    pytest.importorskip("numpy")
    rank, of_ranks, worker, of_workers = place
    shares = of_ranks * of_workers
    own = range(rank * of_workers + worker, count, shares)
    pipe = share(rows(count).shuffle().sharding_filter(), *place)
    assert len(pipe) == len(own)
    with DataLoader2(pipe, seed=seed) as loader:
        begun = process_time()
        items = [*islice(loader, 3)]
        assert process_time() - begun < SECONDS
        state = decode(loader.state_dict(include_datapipe=False))
    (cursor,) = state.cursors.values()
    order = permutation(count, cursor["seed"])
    assert items == [order[number] for number in own[:3]]
    with at(pipe, state, len(own) - left) as loader:
        assert list(iter(loader)) == [order[number] for number in own[-left:]]


@settings(max_examples=10, deadline=None)
@given(near_rows, places(), st.integers(1, 5))
@pytest.mark.parametrize("make", [rows, lambda count: IterableWrapper(range(count))])
def test_a_share_in_order_begins_and_ends_where_the_rows_do(make, count, place, left):
    rank, of_ranks, worker, of_workers = place
    own = range(rank * of_workers + worker, count, of_ranks * of_workers)
    pipe = share(make(count).sharding_filter(), *place)
    with DataLoader2(pipe) as loader:
        assert [*islice(loader, 3)] == [*own[:3]]
        state = decode(loader.state_dict(include_datapipe=False))
    with at(pipe, state, len(own) - left) as loader:
        assert list(iter(loader)) == [*own[-left:]]


@given(near_rows, ranks, workers)
def test_the_shares_of_a_trillion_rows_differ_by_one_at_most(count, of_ranks, of_workers):
    shares = of_ranks * of_workers
    # Each share has as many rows as the one before it, or one less.
    numbers = {0, shares // 2, count % shares, max(count % shares - 1, 0), shares - 1}
    pipes = [
        share(rows(count).sharding_filter(), *divmod_of(number, of_workers, of_ranks))
        for number in sorted(numbers)
    ]
    lengths = [len(pipe) for pipe in pipes]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
    with_more = count % shares
    assert with_more * (count // shares + 1) + (shares - with_more) * (count // shares) == count
    assert lengths == [count // shares + (number < with_more) for number in sorted(numbers)]


def divmod_of(number: int, of_workers: int, of_ranks: int) -> tuple[int, int, int, int]:
    rank, worker = divmod(number, of_workers)
    return rank, of_ranks, worker, of_workers


@settings(max_examples=30, deadline=None)
@given(near_rows, ranks, workers)
def test_what_all_ranks_have_yielded_of_a_trillion_rows_is_known(position, of_ranks, of_workers):
    counts = [items_before(position, rank, of_ranks, of_workers) for rank in range(of_ranks)]
    assert sum(counts) == position
    assert whole_position(counts, of_workers) == position


def test_the_memory_for_an_order_of_a_trillion_rows_stays_the_same_as_items_come():
    pytest.importorskip("numpy")
    loader = DataLoader2(rows().shuffle().batch(1000), seed=1)
    with loader, traced() as peak:
        batches = iter(loader)
        next(batches)
        first = peak()
        assert first < 64 * 2**20
        for _ in range(5):
            next(batches)
        assert peak() < first + 4 * 2**20


def test_an_order_of_more_items_than_a_state_can_count_is_refused_by_name():
    with (
        DataLoader2(rows(2**48 + 1).shuffle()) as loader,
        pytest.raises(ValueError, match=r"shuffle\(\) orders at most 281474976710656 items"),
    ):
        next(iter(loader))


# Shards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffles", [False, True])
def test_the_last_of_8000_shares_of_a_million_shards_begins_at_once(shuffles):
    pipe = IterableWrapper([f"shard-{number:06}.tar" for number in range(SHARDS)], deepcopy=False)
    last = share((pipe.shuffle() if shuffles else pipe).sharding_filter(), 999, 1000, 7, 8)
    assert len(last) == SHARDS // 8000
    with DataLoader2(last, seed=1) as loader:
        begun = process_time()
        first = next(iter(loader))
        assert process_time() - begun < SECONDS
    assert shuffles or first == "shard-007999.tar"


@given(places())
@settings(max_examples=10, deadline=None)
def test_each_share_of_a_million_shards_begins_and_ends_with_its_own(place):
    rank, of_ranks, worker, of_workers = place
    own = range(SHARDS)[rank * of_workers + worker :: of_ranks * of_workers]
    assert [*share(IterableWrapper(range(SHARDS)).sharding_filter(), *place)] == [*own]
