"""N6, N15: what an iterable does by itself: share itself among workers, or begin again."""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import IterableDataset

from asyncloader import (
    DataLoader2,
    IterDataPipe,
    MultiProcessingReadingService,
    get_worker_info,
)
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from tests.faults.asking import COUNT, AsksInALoop, AsksOurs

HOW_OFTEN_DIVIDED = r"divided twice.*IterableWrapper\(.*sharding_filter\(\).*shards_itself=False"


def loader_of(pipe, num_workers=2, **settings):
    service = MultiProcessingReadingService(num_workers, **settings) if num_workers else None
    return DataLoader2(pipe, reading_service=service)


def first_of(loader):
    with loader:
        return next(iter(loader))


# N6: shared by the iterable itself, and by a sharding pipe ----------------------------------


class AsksTorch(IterableDataset):
    """Numbers of which each worker takes its own, as torch's documentation has it."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from range(COUNT) if info is None else range(info.id, COUNT, info.num_workers)


class AsksLate:
    """Asks only when some items are out already."""

    def __iter__(self):
        yield from range(10)
        yield from (number for number in AsksTorch() if number >= 10)


class AsksAndCatches:
    """Takes whatever happens for having no worker."""

    def __iter__(self):
        try:
            yield from AsksTorch()
        except ValueError:
            yield from range(0, COUNT, 2)


ASKING = [AsksTorch, AsksOurs, AsksAndCatches, AsksInALoop]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ASKING)
@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_n6_an_iterable_that_asks_for_its_share_above_a_filter_is_refused(kind, method):
    pipe = IterableWrapper(kind()).map(str).sharding_filter().batch(2)
    with pytest.raises(ValueError, match=HOW_OFTEN_DIVIDED):
        first_of(loader_of(pipe, multiprocessing_context=method))


def test_n6_it_is_refused_in_any_epoch_and_order():
    with loader_of(IterableWrapper(AsksTorch()).sharding_filter(), in_order=False) as loader:
        for _ in range(2):
            batches = iter(loader)
            with pytest.raises(ValueError, match=HOW_OFTEN_DIVIDED):
                next(batches)


def test_n6_one_that_asks_late_is_refused_where_it_asks():
    with loader_of(IterableWrapper(AsksLate()).sharding_filter()) as loader:
        items = iter(loader)
        assert list(itertools.islice(items, 10)) == list(range(10))
        with pytest.raises(ValueError, match=HOW_OFTEN_DIVIDED):
            next(items)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_n6_it_may_ask_where_nothing_is_divided(num_workers):
    with loader_of(IterableWrapper(AsksTorch()).sharding_filter(), num_workers) as loader:
        assert list(loader) == list(loader) == list(range(COUNT))


def says(number):
    return number, torch.utils.data.get_worker_info().id, get_worker_info().worker_id


def test_n6_functions_may_ask_wherever_they_are_and_what_is_below():
    graph = IterableWrapper(range(6)).map(says).sharding_filter()
    with loader_of(graph) as loader:
        assert list(loader) == [(number, number % 2, number % 2) for number in range(6)]


class Sharing(IterDataPipe):
    """A pipe that lets through its own worker's items, and says so."""

    shards_itself = True

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from self.source


def dealt(pipe):
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


BOTH = {
    "above": lambda source: IterableWrapper(source, shards_itself=True).map(str).sharding_filter(),
    "below": lambda source: Sharing(IterableWrapper(range(COUNT)).sharding_filter()),
    "dealt": lambda source: Sharing(dealt(IterableWrapper(range(COUNT)))),
}


@pytest.mark.parametrize("how", BOTH)
def test_n6_what_says_that_it_shards_itself_goes_with_no_sharding_pipe(how):
    with pytest.raises(ValueError, match=r"divided twice.*(sharding_filter|dispatch).*Keep one"):
        first_of(loader_of(BOTH[how](AsksTorch())))


ALONE = {
    "no filter": lambda source: IterableWrapper(source, shards_itself=True),
    "for ranks": lambda source: IterableWrapper(source, shards_itself=True).sharding_filter(
        SHARDING_PRIORITIES.DISTRIBUTED
    ),
    "dealt": lambda source: dealt(IterableWrapper(source)),
    "dealt, said": lambda source: dealt(IterableWrapper(source, shards_itself=True)),
    "hidden": lambda source: IterableWrapper(source, shards_itself=False).sharding_filter(),
}


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("how", ALONE)
@pytest.mark.parametrize("kind", [AsksTorch, AsksOurs, AsksInALoop])
def test_n6_with_one_of_the_two_every_item_comes_once(how, kind):
    with loader_of(ALONE[how](kind()).map(int)) as loader:
        assert list(loader) == list(loader) == list(range(COUNT))


def test_n6_a_hidden_worker_is_hidden_from_the_iterable_alone():
    graph = IterableWrapper(AsksTorch(), shards_itself=False).map(says).sharding_filter()
    with loader_of(graph) as loader:
        assert list(loader) == [(number, number % 2, number % 2) for number in range(COUNT)]


def test_n6_one_that_hides_the_worker_is_resumed_and_restarted_exactly(tmp_path):
    flag = tmp_path / "died"
    graph = (
        IterableWrapper(AsksTorch(), shards_itself=False)
        .sharding_filter()
        .map(functools.partial(dies_once, flag=flag, at=21))
    )
    with loader_of(graph, on_worker_death="restart") as loader:
        items = iter(loader)
        assert list(itertools.islice(items, 15)) == list(range(15))
        state = loader.state_dict()
        assert list(items) == list(range(15, COUNT))
    assert flag.exists()
    for num_workers in (0, 2, 3):
        with loader_of(graph, num_workers) as resumed:
            resumed.load_state_dict(state)
            assert list(resumed) == list(range(15, COUNT))


def dies_once(number, flag, at):
    if number == at and not flag.exists():
        flag.touch()
        os._exit(3)
    return number


# N6 with Hugging Face's own ----------------------------------------------------------------


def rows(shards):
    for shard in shards:
        for row in range(10):
            yield {"n": shard * 10 + row}


@pytest.fixture
def hugging_face():
    import datasets  # late, since it takes seconds

    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})


def test_n6_a_data_set_of_hugging_face_above_a_filter_is_refused(hugging_face):
    with pytest.raises(ValueError, match=HOW_OFTEN_DIVIDED):
        first_of(loader_of(IterableWrapper(hugging_face).sharding_filter()))


def test_n6_a_data_set_of_hugging_face_shards_itself_without_being_told(hugging_face):
    with loader_of(IterableWrapper(hugging_face)) as loader:  # and no warning of repeats
        for _ in range(2):
            assert sorted(row["n"] for row in loader) == list(range(COUNT))


@pytest.mark.soak
def test_n6_a_data_set_of_hugging_face_does_not_see_a_hidden_worker(hugging_face):
    pipe = IterableWrapper(hugging_face, shards_itself=False).sharding_filter()
    with loader_of(pipe) as loader:
        assert [row["n"] for row in loader] == list(range(COUNT))


# N15: what is its own iterator --------------------------------------------------------------


class Prefetcher:
    """Is its own iterator, and begins again in each ``iter``, as DALI's iterators do."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count
        self.next = 0
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        self.next = 0
        self.begun += 1
        return self

    def __next__(self) -> int:
        if self.next == self.count:
            raise StopIteration
        self.next += 1
        return self.next - 1

    def close(self) -> None:
        raise AssertionError("it belongs to whoever made it")


class BeginsAtItsEnd(Prefetcher):
    """Begins again by itself, when it has ended."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.next = 0
            raise


class AsyncPrefetcher:
    def __init__(self) -> None:
        self.items = Prefetcher()

    def __aiter__(self):
        iter(self.items)
        return self

    async def __anext__(self) -> int:
        await asyncio.sleep(0)
        try:
            return next(self.items)
        except StopIteration:
            raise StopAsyncIteration from None


BEGIN_AGAIN = [Prefetcher, BeginsAtItsEnd, AsyncPrefetcher]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", BEGIN_AGAIN)
def test_n15_what_begins_afresh_is_read_again_each_epoch(kind, num_workers):
    with loader_of(IterableWrapper(kind()).sharding_filter().map(int), num_workers) as loader:
        for _ in range(3):
            assert list(loader) == list(range(COUNT))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Prefetcher, AsyncPrefetcher])
def test_n15_an_epoch_that_was_left_is_read_from_its_beginning(kind, num_workers):
    with loader_of(IterableWrapper(kind()).sharding_filter(), num_workers) as loader:
        for _ in range(3):
            assert list(itertools.islice(iter(loader), 5)) == list(range(5))
        assert list(loader) == list(range(COUNT))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_n15_it_is_gone_on_with(num_workers):
    def new_loader():
        return loader_of(IterableWrapper(Prefetcher()).sharding_filter(), num_workers)

    with new_loader() as loader:
        items = iter(loader)
        assert list(itertools.islice(items, 15)) == list(range(15))
        state = loader.state_dict()
    with new_loader() as loader:
        loader.load_state_dict(state)
        assert list(loader) == list(range(15, COUNT))
        assert list(loader) == list(range(COUNT))


def test_n15_it_may_be_cycled():
    assert list(IterableWrapper(Prefetcher(3)).cycle(2)) == [0, 1, 2, 0, 1, 2]


class ReadOnce:
    """An iterator as most are written."""

    def __init__(self, count: int = COUNT) -> None:
        self.items = iter(range(count))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.items)


class Started(ReadOnce):
    """Does something when it is begun, but not again what it did before."""

    def __iter__(self) -> Iterator[int]:
        self.has_begun = True
        return self


READ_ONCE = {
    "a generator": lambda: (number for number in range(COUNT)),
    "a list's iterator": lambda: iter([*range(COUNT)]),
    "map": lambda: map(int, range(COUNT)),
    "islice": lambda: itertools.islice(itertools.count(), COUNT),
    "a file": lambda: io.StringIO("".join(f"{number}\n" for number in range(COUNT))),
    "a class": ReadOnce,
    "a class that does something": Started,
}


@pytest.mark.parametrize("name", READ_ONCE)
def test_n15_what_is_read_once_is_refused_a_second_time(name):
    with loader_of(IterableWrapper(READ_ONCE[name]()).map(int), 0) as loader:
        assert list(loader) == list(range(COUNT))
        for _ in range(2):
            with pytest.raises(TypeError, match="read only once"):
                list(loader)


@pytest.mark.parametrize("name", sorted(READ_ONCE.keys() - {"a class that does something"}))
def test_n15_what_is_read_once_is_not_gone_on_with_in_the_next_epoch(name):
    pipe = IterableWrapper(READ_ONCE[name]())
    assert [int(item) for item in itertools.islice(pipe, 5)] == list(range(5))
    with pytest.raises(TypeError, match="read only once"):
        list(pipe)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("kind", [Started, ReadOnce])
def test_n15_a_worker_refuses_it_too(kind, num_workers):
    with loader_of(IterableWrapper(kind()).sharding_filter(), num_workers) as loader:
        assert list(loader) == list(range(COUNT))
        with pytest.raises(TypeError, match="read only once"):
            list(loader)


class HandsOut:
    """Hands out the same iterator each time."""

    def __init__(self, make: Callable[[], Iterator[Any]], begin: str = "") -> None:
        self.make = make
        self.begin = begin
        self.items: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.items is None:
            self.items = self.make()
        elif self.begin:
            getattr(self.items, self.begin)(*[0] * (self.begin == "seek"))
        return self.items


class HandsOutAsync(HandsOut):
    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self):
        return HandsOut.__iter__(self)


async def async_numbers():
    for number in range(COUNT):
        yield number


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
# A file is closed by its first reader, and says so itself.
@pytest.mark.parametrize("name", sorted(READ_ONCE.keys() - {"a file"}))
def test_n15_an_iterator_that_is_handed_out_twice_is_refused(name, num_workers):
    pipe = IterableWrapper(HandsOut(READ_ONCE[name]), deepcopy=False).sharding_filter().map(int)
    with loader_of(pipe, num_workers) as loader:
        assert list(loader) == list(range(COUNT))
        with pytest.raises(TypeError, match="read only once"):
            list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_n15_an_async_iterator_that_is_handed_out_twice_is_refused(num_workers):
    pipe = IterableWrapper(HandsOutAsync(async_numbers)).sharding_filter()
    with loader_of(pipe, num_workers) as loader:
        assert list(loader) == list(range(COUNT))
        with pytest.raises(TypeError, match="read only once"):
            list(loader)


def no_numbers() -> Iterator[int]:
    return Prefetcher(0)


BEGUN_AGAIN = {
    "a file": (READ_ONCE["a file"], "seek", COUNT),
    "a prefetcher": (Prefetcher, "__iter__", COUNT),
    "one that begins at its end": (BeginsAtItsEnd, "", COUNT),
    "nothing": (no_numbers, "__iter__", 0),
}


@pytest.mark.parametrize("name", BEGUN_AGAIN)
def test_n15_an_iterator_that_is_handed_out_and_begins_again_is_read_each_epoch(name):
    make, begin, count = BEGUN_AGAIN[name]
    pipe = IterableWrapper(HandsOut(make, begin), deepcopy=False)
    with loader_of(pipe.map(int), 0) as loader:
        for _ in range(3):
            assert list(loader) == list(range(count))


def test_n15_a_pipe_that_was_read_goes_to_another_process():
    pipe = IterableWrapper(HandsOut(Prefetcher, "__iter__"), deepcopy=False)
    assert list(pipe) == list(range(COUNT))
    assert list(pickle.loads(pickle.dumps(pipe))) == list(range(COUNT))


def test_n15_two_readers_at_once_do_not_share_one_iterator():
    pipe = IterableWrapper(Prefetcher())
    with pytest.raises(RuntimeError, match="iterator has been invalidated"):
        list(pipe.zip(pipe))


# N6: samplers ---------------------------------------------------------------------------


SAMPLERS = {
    "RandomSampler": lambda: data.RandomSampler(range(20)),
    "SubsetRandomSampler": lambda: data.SubsetRandomSampler(range(20)),
    "WeightedRandomSampler": lambda: data.WeightedRandomSampler([1.0] * 20, 20),
    "a BatchSampler of one": lambda: data.BatchSampler(
        data.RandomSampler(range(20)), 5, drop_last=False
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_n6_a_sampler_that_draws_other_keys_in_each_worker_is_refused(name):
    graph = IterableWrapper(SAMPLERS[name]()).sharding_filter()
    with pytest.raises(ValueError, match="runs the sampler once, for all workers"):
        first_of(loader_of(graph))
    with loader_of(graph, 1) as loader:
        assert len(list(loader)) in (4, 20)


def test_n6_samplers_that_yield_the_same_keys_everywhere_are_divided():
    seeded = data.RandomSampler(range(20), generator=torch.Generator().manual_seed(3))
    for sampler in (seeded, data.SequentialSampler(range(20))):
        graph = IterableWrapper(sampler).sharding_filter()
        with loader_of(graph) as loader:
            for _ in range(2):
                assert sorted(loader) == [*range(20)]
