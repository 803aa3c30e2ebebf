from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES as TORCH_PRIORITIES

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.converting import MapToIterConverter
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.datapipes.shuffling import MapShuffler
from tests.datapipes.resuming import assert_goes_on

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
    RunTree([pipe])
    pipe.apply_sharding(3, 2)

    assert [(n, latest_pass(pipe).yielded) for n in pipe] == [(2, 1), (5, 2), (8, 3)]


class Lookups:
    """A dataset that knows what was looked up in it."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.looked_up: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> int:
        self.looked_up.append(number)
        return number


SOURCES: dict[str, Callable[[Any], IterDataPipe[Any]]] = {
    "range": lambda data: IterableWrapper(range(len(data))),
    "list": lambda data: IterableWrapper(list(range(len(data)))),
    "tuple": lambda data: IterableWrapper(tuple(range(len(data))), deepcopy=False),
    "list as it is": lambda data: IterableWrapper(list(range(len(data))), deepcopy=False),
    "set": lambda data: IterableWrapper(set(range(len(data)))),
    "text": lambda data: IterableWrapper("x" * len(data)),
    "lookups": lambda data: SequenceWrapper(data, deepcopy=False).to_iter_datapipe(),
    "some lookups": lambda data: SequenceWrapper(data, deepcopy=False).to_iter_datapipe(
        range(1, len(data), 2)
    ),
    "shuffled lookups": lambda data: SequenceWrapper(data, deepcopy=False).shuffle().set_seed(3),
    "lookups in order": lambda data: (
        SequenceWrapper(data, deepcopy=False).shuffle().set_shuffle(False)
    ),
    "shuffled": lambda data: IterableWrapper(range(len(data))).shuffle().set_seed(3),
    "in two steps": lambda data: sharded(
        SequenceWrapper(data, deepcopy=False).shuffle().set_seed(3), 2, 1, DISTRIBUTED
    ),
}
BATCHES: dict[str, Callable[[Any], IterDataPipe[Any]]] = {
    "none": lambda pipe: pipe,
    "of three": lambda pipe: pipe.batch(3),
    "whole ones": lambda pipe: pipe.batch(3, drop_last=True),
    "of batches": lambda pipe: pipe.batch(2).batch(2),
}


def sharded(pipe: Any, count: int, instance: int, group: Any = DEFAULT) -> Any:
    pipe = pipe.sharding_filter() if group is DEFAULT else pipe.sharding_filter(group)
    pipe.apply_sharding(count, instance, group)
    return pipe


every_batch = pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


@pytest.mark.sweep
@every_batch
@every_source
@settings(max_examples=20)
@given(items=st.integers(0, 30), count=st.integers(1, 4))
def test_a_share_is_every_nth_item(source: Any, batches: Any, items: int, count: int) -> None:
    everything = list(batches(source(Lookups(items))))
    for instance in range(count):
        pipe = sharded(batches(source(Lookups(items))), count, instance)
        RunTree([pipe])
        assert list(pipe) == everything[instance::count]
        assert latest_pass(pipe).yielded == len(everything[instance::count])


@pytest.mark.sweep
@every_batch
@every_source
def test_a_share_goes_on_from_everywhere(source: Any, batches: Any) -> None:
    for instance in (0, 1):
        assert_goes_on(lambda at=instance: sharded(batches(source(Lookups(40))), 2, at), least=2)


@pytest.mark.parametrize(
    "graph",
    [
        lambda pipe: pipe.to_iter_datapipe(),
        lambda pipe: pipe.shuffle().set_seed(1),
        lambda pipe: pipe.shuffle().set_seed(1).batch(4),
        lambda pipe: pipe.batch(4).shuffle().set_seed(1),
        lambda pipe: pipe.shuffle().set_seed(1).batch(2).batch(2),
    ],
)
def test_what_is_looked_up_is_looked_up_for_one_share_only(graph: Any) -> None:
    data = Lookups(26)
    for instance in range(3):
        list(sharded(graph(SequenceWrapper(data, deepcopy=False)), 3, instance))

    assert sorted(data.looked_up) == list(range(26))


def test_each_worker_looks_up_its_own_items_only() -> None:
    graph = SequenceWrapper(Counting(40)).shuffle().batch(4).sharding_filter()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        batches = list(loader)

    assert sorted(number for batch in batches for number, _ in batch) == list(range(40))
    assert max(lookups for batch in batches for _, lookups in batch) == 20


class Counting:
    """A dataset whose items say how many lookups there were in their process."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.lookups = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[int, int]:
        self.lookups += 1
        return number, self.lookups


class Copied:
    """Counts how often it is copied."""

    copies = 0

    def __deepcopy__(self, memo: Any) -> Copied:
        Copied.copies += 1
        return self


def test_what_is_left_out_is_not_copied_either() -> None:
    Copied.copies = 0
    list(sharded(IterableWrapper([Copied() for _ in range(10)]), 5, 0))

    assert Copied.copies == 2


def test_items_changed_in_place_are_whole_again_in_the_next_pass_of_a_share() -> None:
    pipe = sharded(IterableWrapper([[n] for n in range(6)]), 2, 1)
    for item in pipe:
        item.append("changed")

    assert list(pipe) == [[1], [3], [5]]


class OwnOrder(MapShuffler[Any]):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


class OwnIteration(IterableWrapper[Any]):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


class Reversed:
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))  # type: ignore[misc]


class Mixed(Reversed, MapToIterConverter[Any]):
    pass


class ReversedSequence(list[Any]):
    """A sequence that is iterated otherwise than looked up in."""

    def __iter__(self) -> Any:
        return reversed(self)


@pytest.mark.parametrize(
    "pipe",
    [
        OwnOrder(SequenceWrapper(range(6))).set_shuffle(False),
        OwnIteration(range(6)),
        Mixed(SequenceWrapper(range(6))),
        IterableWrapper(ReversedSequence(range(6)), deepcopy=False),
    ],
)
def test_what_is_iterated_in_a_users_own_way_is_shared_out_as_it_is_iterated(pipe: Any) -> None:
    assert list(sharded(pipe, 2, 1)) == [4, 2, 0]


def test_a_list_that_grows_while_it_is_read_is_shared_out_as_it_grows() -> None:
    data = [0, 1, 2]
    items = iter(sharded(IterableWrapper(data, deepcopy=False), 2, 0))
    assert next(items) == 0
    data += [3, 4]

    assert list(items) == [2, 4]


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("source", [IterableWrapper(range(8)), SequenceWrapper(range(8))])
def test_other_readers_of_a_source_that_is_shared_out_get_all_of_it(
    source: Any, batches: Any
) -> None:
    source = source if isinstance(source, IterableWrapper) else source.to_iter_datapipe()
    iter(sharded(batches(source), 2, 1))

    assert list(source) == list(range(8))


def test_what_a_share_reads_is_not_opened_before_it_is_read() -> None:
    opened = []

    def numbers() -> Any:
        opened.append(True)
        yield from range(4)

    class Numbers(IterDataPipe[int]):
        def __iter__(self) -> Any:
            return numbers()

    items = iter(sharded(Numbers(), 2, 1))
    assert not opened
    assert list(items) == [1, 3]


@pytest.mark.parametrize("group", [MULTIPROCESSING, TORCH_PRIORITIES.MULTIPROCESSING])
def test_dispatch_passes_items_through_in_one_process(group: Any) -> None:
    pipe = IterableWrapper(range(5)).sharding_round_robin_dispatch(group)

    assert list(pipe) == list(range(5))
    assert len(pipe) == 5


@pytest.mark.parametrize("group", [None, DEFAULT, DISTRIBUTED])
def test_dispatch_is_for_worker_processes_only(group: Any) -> None:
    with pytest.raises(NotImplementedError, match="MULTIPROCESSING"):
        IterableWrapper(range(5)).sharding_round_robin_dispatch(group)
