"""MultiProcessingReadingService: what comes out, in which order, and what is called where."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import IterableDataset

from asyncloader import (
    DataLoader2,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
    get_worker_info,
)
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.errors import IteratorInvalidated, WorkerStartupError
from asyncloader.transport.arena import ArenaView
from asyncloader.worker_info import WorkerInfo
from tests.collecting import drain, drain_async
from tests.cpu_time import share_of_a_core
from tests.leaks import leaves_nothing
from tests.samples import double  # from where a fresh interpreter need not import torch

METHODS = [None, "fork", "spawn", "forkserver"]
WORKERS = [0, 1, 2, 3]

every_number = pytest.mark.parametrize(
    "num_workers",
    [n if n in (0, 2) else pytest.param(n, marks=pytest.mark.sweep) for n in WORKERS],
)


def numbers(count: int = 100):
    return IterableWrapper(range(count)).sharding_filter()


def loader_of(graph, *args, adapter=None, **kwargs) -> DataLoader2:
    return DataLoader2(graph, adapter, MultiProcessingReadingService(*args, **kwargs))


# Order ----------------------------------------------------------------------------------


def shuffled(count: int = 300):
    return IterableWrapper(range(count)).shuffle().sharding_filter().map(double).map(str)


def in_process_epochs(count: int, seed: int) -> list[list[str]]:
    loader = DataLoader2(shuffled())
    loader.seed(seed)
    with loader:
        return [list(loader) for _ in range(count)]


@every_number
def test_any_number_of_workers_gives_the_order_of_none(num_workers):
    with loader_of(shuffled(), num_workers) as loader:
        loader.seed(7)
        first = [list(loader) for _ in range(3)]
        loader.seed(7)
        again = [list(loader) for _ in range(3)]
    assert first == again == in_process_epochs(3, 7)
    assert first[0] != first[1]


@every_number
async def test_the_order_is_the_same_in_async_for(num_workers):
    async with loader_of(shuffled(), num_workers) as loader:
        loader.seed(7)
        epochs = [[item async for item in loader] for _ in range(3)]
    assert epochs == await asyncio.to_thread(in_process_epochs, 3, 7)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 65, 129])
async def test_workers_may_have_nothing_to_do(count):
    items = await drain_async(loader_of(numbers(count), 3))
    assert items == list(range(count))


def keep_all_but_one_in_seven(number: int) -> bool:
    return number % 7 != 3


async def test_a_filter_behind_the_shards_keeps_every_item_once():
    graph = numbers(1000).filter(keep_all_but_one_in_seven)
    items = await drain_async(loader_of(graph, 3))
    assert sorted(items) == list(filter(keep_all_but_one_in_seven, range(1000)))


def is_mine_to_keep(number: int) -> bool:
    return number % 2 == 1 or number < 10


async def test_workers_with_very_different_numbers_of_items_end_together():
    graph = numbers(2000).filter(is_mine_to_keep)
    items = await drain_async(loader_of(graph, 2))
    assert sorted(items) == list(filter(is_mine_to_keep, range(2000)))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
async def test_without_order_the_set_is_the_same(num_workers):
    items = await drain_async(loader_of(shuffled(), num_workers, in_order=False))
    assert sorted(items) == sorted(map(str, range(0, 600, 2)))


def first_when_told(fifo: str, number: int) -> int:
    if number == 0:
        Path(fifo).read_bytes()
    return number


async def test_without_order_nobody_waits_for_the_slow(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    function = partial(first_when_told, str(tmp_path / "fifo"))
    graph = IterableWrapper(range(22)).sharding_filter().map(function)
    async with loader_of(graph, 2, in_order=False) as loader:
        items = aiter(loader)
        assert [await anext(items) for _ in range(11)] == list(range(1, 22, 2))
        (tmp_path / "fifo").write_bytes(b"")
        assert [item async for item in items] == list(range(0, 22, 2))


@pytest.mark.sweep
@pytest.mark.parametrize("worker_prefetch_cnt", [0, 1, 2, 10])
async def test_any_prefetch_gives_the_same(worker_prefetch_cnt):
    loader = loader_of(numbers(500), 2, worker_prefetch_cnt=worker_prefetch_cnt)
    assert await drain_async(loader) == list(range(500))


class CountsUp(IterDataPipe[int]):
    """Yields numbers, and says in a file how many it made."""

    edges = ()

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self):
        for number in range(1000):
            with open(self.path, "a") as file:
                file.write(".")
            yield number


async def test_no_prefetch_means_one_item_at_a_time_on_demand(tmp_path):
    made = tmp_path / "made"
    loader = loader_of(CountsUp(str(made)), 1, worker_prefetch_cnt=0)
    async with loader:
        items = aiter(loader)
        for number in range(5):
            assert await anext(items) == number
            # One may be asked for while the one before is looked at.
            assert len(made.read_text()) <= number + 2


def a_kilobyte(number):
    return number.to_bytes(2, "big") * 500


def a_megabyte(number):
    return bytearray(1 << 20)


@pytest.mark.parametrize(
    ("weight", "settings", "most"),
    [
        # So many portions of one item, as many that were taken together, as many behind those, and
        # one that waits.
        (a_megabyte, {"worker_prefetch_cnt": 3}, 10),
        # So many bytes, and the same.
        (a_kilobyte, {"prefetch_bytes": 100_000}, 320),
    ],
    ids=["large items", "many bytes"],
)
async def test_a_worker_runs_so_far_ahead_of_who_takes_nothing(tmp_path, weight, settings, most):
    made = tmp_path / "made"
    graph = CountsUp(str(made)).map(weight)
    async with loader_of(graph, 1, **settings) as loader:
        items = aiter(loader)
        assert await anext(items) == weight(0)
        before, count = 0, 1
        while count > before:
            await asyncio.sleep(0.1)
            before, count = count, len(made.read_text())
        assert count <= most
        assert await anext(items) == weight(1)


# Functions ------------------------------------------------------------------------------


def describe(pipe, info: WorkerInfo):
    return pipe.map(lambda item: (item, info.worker_id, info.num_workers))


async def describe_soon(pipe, info: WorkerInfo):
    await asyncio.sleep(0)
    return describe(pipe, info)


@pytest.mark.parametrize("init_fn", [describe, describe_soon])
@every_number
async def test_the_init_function_is_given_the_pipe_and_who_it_is_for(init_fn, num_workers):
    loader = loader_of(numbers(12), num_workers, worker_init_fn=init_fn)
    items = await drain_async(loader)
    count = max(num_workers, 1)
    assert items == [(number, number % count, count) for number in range(12)]


def note_seed(pipe, info: WorkerInfo, generator):
    seed = generator.generate_shared_seed()
    return pipe.map(lambda item: (item, info.worker_id, info.num_workers, seed))


async def note_seed_soon(pipe, info: WorkerInfo, generator):
    await asyncio.sleep(0)
    return note_seed(pipe, info, generator)


@pytest.mark.parametrize("reset_fn", [note_seed, note_seed_soon])
@every_number
async def test_the_reset_function_is_called_for_every_epoch(reset_fn, num_workers):
    async with loader_of(numbers(6), num_workers, worker_reset_fn=reset_fn) as loader:
        epochs = [[item async for item in loader] for _ in range(2)]
    count = max(num_workers, 1)
    for epoch in epochs:
        assert [item[:3] for item in epoch] == [(n, n % count, count) for n in range(6)]
        assert len({seed for *_, seed in epoch}) == 1, "the shared stream is shared"
    assert epochs[0][0][3] != epochs[1][0][3]


def shuffles_above(pipe, *args):
    pipe.source = pipe.source.shuffle()
    return pipe


def test_workers_agree_on_the_seed_of_what_a_reset_puts_above_their_division():
    with loader_of(numbers(60), 2, worker_reset_fn=shuffles_above) as loader:
        for _ in range(2):
            items = list(loader)
            assert sorted(items) == list(range(60)) != items


def forgets(pipe, *args):
    pass


@pytest.mark.parametrize("moment", ["worker_init_fn", "worker_reset_fn"])
@pytest.mark.parametrize("num_workers", [0, 1])
async def test_a_function_that_returns_no_pipe_is_named(moment, num_workers):
    loader = loader_of(numbers(6), num_workers, **{moment: forgets})
    with pytest.raises((TypeError, WorkerStartupError)) as caught:
        await drain_async(loader)
    await loader.aclose()
    error = caught.value.__cause__ if num_workers else caught.value
    assert type(error) is TypeError
    assert str(error) == f"{moment} must return the pipe to use, but forgets returned NoneType"


class Marks(ReadingServiceInterface):
    """Its reset marks each pipe it finds with the number of the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    async def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        self.epoch += 1
        epoch = self.epoch

        async def reset(datapipe):
            datapipe = await iter_reset_fn(datapipe)
            return datapipe.map(lambda item: (*item, epoch, os.getpid()))

        return reset


@pytest.mark.parametrize("first", [True, False])
async def test_composed_resets_reach_the_workers_and_the_rest_of_the_graph(first):
    graph = numbers(4).map(lambda number: (number,)).pin_memory(pin_memory_fn=as_it_is)
    services = [Marks(), MultiProcessingReadingService(2)]
    service = SequentialReadingService(*(services if first else reversed(services)))
    async with DataLoader2(graph, None, service) as loader:
        for epoch in (1, 2):
            items = [item async for item in loader]
            if first:
                # What a service behind the workers resets never gets to them.
                assert [item[:2] for item in items] == [(n, epoch) for n in range(4)]
                assert {item[2] for item in items}.isdisjoint({os.getpid()})
            assert {item[-2:] for item in items} == {(epoch, os.getpid())}


# Where pipes run ------------------------------------------------------------------------


def as_it_is(item, device):
    return item


def with_pid(item):
    return (item, os.getpid())


class StaysHere(IterDataPipe):
    """A user's pipe that cannot be copied: it holds something of the loader's process."""

    def __init__(self, source) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return False

    def __iter__(self):
        for item in self.source:
            yield (item, os.getpid())


def test_what_draws_above_a_shard_in_the_loaders_process_draws_the_shared_seed():
    def items(num_workers):
        first, second = IterableWrapper(range(24)).round_robin_demux(2)
        here = StaysHere(second.batch(6).in_batch_shuffle()).sharding_filter()
        with loader_of(first.sharding_filter().concat(here), num_workers) as loader:
            loader.seed(3)
            return [list(loader) for _ in range(2)]

    assert items(1) == items(0)


@pytest.mark.parametrize("main_prefetch_cnt", [0, 1, 10])
@pytest.mark.parametrize("num_workers", [1, 2])
async def test_what_cannot_be_copied_stays_with_the_loader(num_workers, main_prefetch_cnt):
    graph = StaysHere(numbers(50).map(with_pid)).map(with_pid)
    loader = loader_of(graph, num_workers, main_prefetch_cnt=main_prefetch_cnt)
    items = await drain_async(loader)
    assert [item for (((item, _), _), _) in items] == list(range(50))
    assert {pid for _, pid in items} == {pid for ((_, pid), _) in items} == {os.getpid()}
    workers = {pid for (((_, pid), _), _) in items}
    assert len(workers) == num_workers
    assert os.getpid() not in workers


def pinned_here(item, device):
    return (item, device, os.getpid())


async def test_memory_is_pinned_in_the_loader():
    graph = numbers(5).pin_memory("cpu", pinned_here)
    assert await drain_async(loader_of(graph, 2)) == [(n, "cpu", os.getpid()) for n in range(5)]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("main_prefetch_cnt", [0, 10])
async def test_several_branches_run_in_the_workers(num_workers, main_prefetch_cnt):
    left = numbers(300).map(double).pin_memory(pin_memory_fn=as_it_is)
    right = numbers(200).map(str).pin_memory(pin_memory_fn=as_it_is)
    loader = loader_of(left.zip(right), num_workers, main_prefetch_cnt=main_prefetch_cnt)
    async with loader:
        for _ in range(2):
            items = [item async for item in loader]
            assert items == [(2 * n, str(n)) for n in range(200)]


@pytest.mark.soak
async def test_a_branch_that_is_read_late_does_not_starve_another():
    """All memory may be held by items of one branch while the loader waits for the other."""
    large = IterableWrapper(range(40)).sharding_filter().map(lambda n: torch.full((1 << 18,), n))
    few = IterableWrapper(range(200)).sharding_filter().map(after_a_moment)
    graph = StaysHere(large).zip(StaysHere(few).batch(5))
    async with loader_of(graph, 1, prefetch_bytes=4 << 20) as loader:
        read = [(int(tensor[0]), batch[0][0]) async for (tensor, _), batch in loader]
    assert read == [(number, 5 * number) for number in range(40)]


def mebibyte(number):
    return torch.full((1 << 18,), number, dtype=torch.int32)


def slowly(item, device):
    time.sleep(0.002)
    return item


def firsts_of(loader):
    with loader:
        return [int(batch[0]) for batch in loader]


@pytest.mark.parametrize("ways", ["for", "async for"])
async def test_batches_stay_in_shared_memory_while_a_slow_pipe_reads_them(ways, monkeypatch):
    """Workers are ahead then. What a loader takes too early it would have to copy."""
    copied, copy = [], ArenaView._copy
    monkeypatch.setattr(ArenaView, "_copy", lambda *args: copied.append(1) or copy(*args))
    graph = IterableWrapper(range(200)).sharding_filter().map(mebibyte)
    graph = graph.pin_memory(pin_memory_fn=slowly)
    loader = loader_of(graph, 2, prefetch_bytes=24 << 20, main_prefetch_cnt=0)
    if ways == "for":
        firsts = await asyncio.to_thread(firsts_of, loader)
    else:
        async with loader:
            firsts = [int(batch[0]) async for batch in loader]
    assert firsts == list(range(200))
    assert len(copied) < 10


def eight_mebibytes(number):
    return torch.full((1 << 21,), number, dtype=torch.int32)


@pytest.mark.parametrize("in_order", [True, False])
async def test_what_a_consumer_keeps_is_copied_beside_the_event_loop(in_order, monkeypatch):
    threads, copy = set(), ArenaView._copy

    def noted(*args):
        threads.add(threading.get_ident())
        return copy(*args)

    monkeypatch.setattr(ArenaView, "_copy", noted)
    graph = IterableWrapper(range(16)).sharding_filter().map(eight_mebibytes)
    loader = loader_of(graph, 2, prefetch_bytes=48 << 20, in_order=in_order)
    async with loader:
        kept = [batch async for batch in loader]
    assert sorted(int(batch[-1]) for batch in kept) == list(range(16))
    assert threads
    assert threading.get_ident() not in threads


def who(item):
    ours, torchs = get_worker_info(), torch.utils.data.get_worker_info()
    return (ours.worker_id, ours.num_workers, torchs.id, torchs.num_workers)


async def test_pipes_know_their_worker_and_so_do_torchs():
    items = await drain_async(loader_of(numbers(6).map(who), 3))
    assert items == [(n % 3, 3, n % 3, 3) for n in range(6)]
    assert get_worker_info() is None


def threads_of_torch(item):
    return torch.get_num_threads()


async def test_torch_has_one_thread_in_each_worker():
    assert await drain_async(loader_of(numbers(2).map(threads_of_torch), 2)) == [1, 1]


async def test_a_graph_that_nothing_shards_is_warned_of():
    graph = IterableWrapper(range(3)).map(double)
    loader = loader_of(graph, 2)
    with pytest.warns(UserWarning, match="every item will come once from each worker"):
        assert await drain_async(loader) == [0, 0, 2, 2, 4, 4]


async def test_one_worker_needs_no_sharding():
    assert await drain_async(loader_of(IterableWrapper(range(3)), 1)) == [0, 1, 2]


async def aplus(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


class Waits(IterDataPipe):
    """A user's async pipe."""

    def __init__(self, source) -> None:
        self.source = source

    async def __aiter__(self):
        async for item in self.source:
            await asyncio.sleep(0)
            yield item


@pytest.mark.parametrize("num_workers", [0, 2])
async def test_async_pipes_run_in_workers_beside_sync_ones(num_workers):
    graph = Waits(numbers(100).map(aplus).async_map(aplus, concurrency=8).map(double)).map(with_pid)
    async with loader_of(graph, num_workers) as loader:
        for _ in range(2):
            items = [item async for item in loader]
            assert [item for item, _ in items] == [2 * (n + 2) for n in range(100)]
    assert len({pid for _, pid in items}) == max(num_workers, 1)


# Lengths --------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("graph", "length"),
    [
        (lambda: numbers(10), {0: 10, 1: 10, 2: 10, 3: 10}),
        (lambda: numbers(10).batch(4), {0: 3, 1: 3, 2: 4, 3: 3}),
        (lambda: numbers(10).batch(4, drop_last=True), {0: 2, 1: 2, 2: 2, 3: 1}),
        (lambda: numbers(10).batch(2).pin_memory(pin_memory_fn=as_it_is), {0: 5, 1: 5, 2: 6, 3: 6}),
    ],
)
def test_the_length_counts_shards_and_batches(graph, length, num_workers):
    loader = loader_of(graph(), num_workers)
    alone = SequentialReadingService(MultiProcessingReadingService(num_workers))
    assert len(loader) == len(DataLoader2(graph(), None, alone)) == length[num_workers]
    with loader:
        assert len(loader) == len(list(loader)) == length[num_workers]


def in_pairs(pipe, info):
    return pipe.batch(2)


def as_given(pipe, info):
    return pipe


def in_text(pipe, info):
    return pipe.map(str)


@pytest.mark.parametrize(
    ("init_fn", "num_workers", "length"),
    [(in_pairs, 0, 5), (as_given, 0, 10), (as_given, 2, 10), (in_text, 2, 10)],
)
def test_with_an_init_function_the_length_is_known_after_the_start(init_fn, num_workers, length):
    loader = loader_of(numbers(10), num_workers, worker_init_fn=init_fn)
    with pytest.raises(TypeError, match=f"worker_init_fn={init_fn.__name__} may change how many"):
        len(loader)
    with loader:
        assert len(loader) == len(list(loader)) == length


def test_what_an_init_function_adds_in_workers_is_not_counted():
    with loader_of(numbers(10), 2, worker_init_fn=in_pairs) as loader:
        with pytest.raises(TypeError, match="worker_init_fn returned pipes that may yield"):
            len(loader)
        assert len(list(loader)) == 6


class Pairs(ReadingServiceInterface):
    async def initialize(self, datapipe):
        return datapipe.batch(2)


def test_pipes_that_a_service_adds_before_or_behind_workers_are_counted():
    for services, length in (
        ((Pairs(), MultiProcessingReadingService(2)), 6),
        ((MultiProcessingReadingService(2), Pairs()), 5),
    ):
        loader = DataLoader2(numbers(10), None, SequentialReadingService(*services))
        with pytest.raises(TypeError, match=r"Pairs\.initialize may change"):
            len(loader)
        with loader:
            assert len(loader) == len(list(loader)) == length


def test_asking_for_the_length_warns_of_nothing_and_changes_nothing():
    loader = loader_of(IterableWrapper(range(3)), 2)
    assert len(loader) == 6
    with pytest.warns(UserWarning, match="nothing shards"):
        assert drain(loader) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("moment", ["worker_init_fn", "worker_reset_fn"])
def test_a_function_in_a_worker_may_call_methods_that_the_graph_does_not_use(moment):
    def in_pairs(pipe, *_):
        return pipe.enumerate().map(str)

    loader = loader_of(numbers(2), 1, **{moment: in_pairs})
    assert drain(loader) == ["(0, 0)", "(1, 1)"]


class SharesItself(IterableDataset):
    """Numbers of which each worker takes its own, as torch's documentation has it."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(range(10) if info is None else range(info.id, 10, info.num_workers))

    def __len__(self):
        return 10


def test_an_iterable_that_shards_itself_says_so_and_draws_no_warning():
    pipe = IterableWrapper(SharesItself(), shards_itself=True)
    assert drain(loader_of(pipe, 0)) == drain(loader_of(pipe, 2)) == list(range(10))
    with pytest.raises(TypeError, match="has no length"):
        len(loader_of(pipe, 2))
    with pytest.warns(UserWarning, match=r"say so: IterableWrapper\(\.\.\., shards_itself=True\)"):
        assert len(drain(loader_of(IterableWrapper(SharesItself()), 2))) == 10


def test_a_length_that_nobody_knows_is_a_type_error():
    with pytest.raises(TypeError):
        len(loader_of(numbers(10).filter(bool), 2))


# Limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("worker_prefetch_cnt", [0, 1, 10])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_limits_are_exact(num_workers, worker_prefetch_cnt):
    with loader_of(numbers(20), num_workers, worker_prefetch_cnt=worker_prefetch_cnt) as loader:
        for _ in range(2):
            items = iter(loader)
            loader.limit(6)
            parts = [list(items)]
            for _ in range(4):
                loader.resume()
                parts.append(list(items))
            loader.limit(None)
            ranges = [range(0, 6), range(6, 12), range(12, 18), range(18, 20), range(0)]
            assert parts == [list(part) for part in ranges]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
async def test_pausing_holds_everything_until_resumed(num_workers):
    async with loader_of(numbers(1000), num_workers) as loader:
        items = aiter(loader)
        seen = [await anext(items) for _ in range(5)]
        loader.pause()
        assert [item async for item in items] == []
        assert loader.stats().items == 5
        loader.resume()
        seen += [item async for item in items]
    assert seen == list(range(1000))


async def test_a_paused_worker_makes_nothing(tmp_path):
    made = tmp_path / "made"
    # Credits for all of them, which it makes in ten seconds unless it is paused.
    graph = CountsUp(str(made)).map(after_a_moment)
    async with loader_of(graph, 1, worker_prefetch_cnt=1000) as loader:
        items = aiter(loader)
        await anext(items)
        loader.pause()
        # An answer to something else would be as good; a worker that is paused only listens.
        before, count = 0, 1
        while count > before:
            await asyncio.sleep(0.1)
            before, count = count, len(made.read_text())
        assert count < 1000
        loader.resume()
        await anext(items)


def after_a_moment(item):
    time.sleep(0.01)
    return item


async def test_stats_count_what_was_handed_out():
    async with loader_of(numbers(10), 2) as loader:
        assert (loader.stats().epochs, loader.stats().items) == (0, 0)
        items = aiter(loader)
        for _ in range(3):
            await anext(items)
        assert (loader.stats().epochs, loader.stats().items) == (1, 3)


# Iterating again ------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("method", METHODS)
async def test_iterating_again_at_any_moment_never_hangs(method):
    chance = random.Random(11)
    graph = IterableWrapper(range(60)).shuffle().sharding_filter().map(double)
    async with loader_of(graph, 2, method) as loader:
        for _ in range(100):
            items = aiter(loader)
            taken = [await anext(items) for _ in range(chance.randrange(60))]
            assert len(set(taken)) == len(taken)
        assert sorted([item async for item in loader]) == list(range(0, 120, 2))
        with pytest.raises(IteratorInvalidated):
            await anext(items)


def test_iterating_again_at_any_moment_by_for():
    chance = random.Random(12)
    with loader_of(shuffled(), 2) as loader:
        for _ in range(100):
            items = iter(loader)
            for _ in range(chance.randrange(60)):
                next(items)
        assert len(list(loader)) == 300


def test_for_and_async_for_and_loops_may_alternate():
    async def by_async_for():
        return [item async for item in loader]

    async def a_few():
        items = aiter(loader)
        taken = [await anext(items) for _ in range(10)]
        await items.aclose()
        return taken

    with leaves_nothing_but_the_template(), loader_of(numbers(100), 2) as loader:
        for _ in range(3):
            assert asyncio.run(by_async_for()) == list(range(100))
            assert list(loader) == list(range(100))
            assert asyncio.run(a_few()) == list(range(10))
            assert next(iter(loader)) == 0


def leaves_nothing_but_the_template():
    drain(loader_of(numbers(1), 1))
    return leaves_nothing()


def test_workers_persist_from_epoch_to_epoch():
    with loader_of(numbers(10).map(with_pid), 2) as loader:
        pids = [{pid for _, pid in loader} for _ in range(3)]
    assert pids[0] == pids[1] == pids[2]
    assert len(pids[0]) == 2


# Random numbers -------------------------------------------------------------------------


def roll(item):
    return (random.random(), torch.rand(()).item(), numpy.random.rand())


async def test_workers_roll_dice_of_their_own_and_the_same_for_the_same_seed():
    async def epochs(seed):
        loader = loader_of(numbers(8).map(roll), 2)
        loader.seed(seed)
        async with loader:
            return [[item async for item in loader] for _ in range(2)]

    first = await epochs(1)
    assert first == await epochs(1)
    rolls = [roll for epoch in (*first, *await epochs(2)) for roll in epoch]
    assert len({number for roll in rolls for number in roll}) == 3 * len(rolls)


async def test_the_loaders_own_generators_are_left_alone():
    random.seed(1), torch.manual_seed(1), numpy.random.seed(1)
    expected = roll(None)
    random.seed(1), torch.manual_seed(1), numpy.random.seed(1)
    loader = loader_of(numbers(8).map(roll), 2)
    loader.seed(3)
    await drain_async(loader)
    assert roll(None) == expected


# What items may be ----------------------------------------------------------------------


def dressed(number):
    return {
        "tensor": torch.full((3, 5), number),
        "large": torch.full((64, 1024), float(number)),
        "array": numpy.full((100, 100), number),
        "bytes": bytes([number]) * 10_000,
        "nested": [(number, {"text": str(number)}), None],
    }


@every_number
async def test_items_come_out_as_they_were_made(num_workers):
    items = await drain_async(loader_of(numbers(20).map(dressed), num_workers))
    for number, item in enumerate(items):
        expected = dressed(number)
        assert item.keys() == expected.keys()
        assert torch.equal(item["tensor"], expected["tensor"])
        assert torch.equal(item["large"], expected["large"])
        assert (item["array"] == expected["array"]).all()
        assert item["bytes"] == expected["bytes"]
        assert item["nested"] == expected["nested"]


class SameList(IterDataPipe):
    """Yields one list over and over, changed in between."""

    edges = ()

    def __init__(self, make) -> None:
        self.make = make

    def __iter__(self):
        item = self.make()
        for number in range(200):
            item[0] = number
            yield item


@pytest.mark.parametrize(
    "make", [lambda: [0], lambda: numpy.zeros(1000), lambda: torch.zeros(9999)]
)
async def test_an_item_is_as_it_was_when_it_was_yielded(make):
    items = await drain_async(loader_of(SameList(make), 1))
    assert [int(item[0]) for item in items] == list(range(200))


def after_ten_seconds(number):
    if number % 2:
        time.sleep(10)
    return number


async def test_an_item_does_not_wait_for_the_next():
    async with loader_of(IterableWrapper([0, 1]).map(after_ten_seconds), 1) as loader:
        # Start-up and the first epoch's preparations are over when this one is there.
        items = aiter(loader)
        begun = time.monotonic()
        assert await anext(items) == 0
        assert time.monotonic() - begun < 8.0


async def test_an_item_held_back_for_a_credit_does_not_wait_for_the_next():
    graph = IterableWrapper([0, 2, 4, 6, 1]).map(after_ten_seconds)
    async with loader_of(graph, 1, worker_prefetch_cnt=1) as loader:
        items = aiter(loader)
        begun = time.monotonic()
        assert [await anext(items) for _ in range(4)] == [0, 2, 4, 6]
        assert time.monotonic() - begun < 8.0


def when_told(folder: Path, number: int) -> int:
    (folder / "begun").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return number


@pytest.mark.soak
@pytest.mark.parametrize("moment", [0.0, 0.2])
async def test_a_program_that_was_stopped_gives_up_no_worker_that_was_stopped_too(tmp_path, moment):
    graph = IterableWrapper([7]).map(partial(when_told, tmp_path))
    async with loader_of(graph, 1, timeout=1.0) as loader:
        item = asyncio.ensure_future(anext(aiter(loader)))
        while not (tmp_path / "begun").exists():  # noqa: ASYNC110 - it is another process's
            await asyncio.sleep(0)
        await asyncio.sleep(moment)
        # As Ctrl-Z does it, and then `fg`.
        time.sleep(1.3)  # noqa: ASYNC251
        # What comes first is what was due meanwhile.
        for _ in range(5):
            await asyncio.sleep(0)
        (tmp_path / "go").touch()
        assert await item == 7


# The service itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "error", "says"),
    [
        ({"num_workers": -1}, ValueError, "num_workers must be at least 0, got -1"),
        ({"num_workers": 1.5}, TypeError, "num_workers must be an integer, got float"),
        ({"worker_init_fn": 3}, TypeError, "worker_init_fn must be callable, got int"),
        ({"worker_reset_fn": "no"}, TypeError, "worker_reset_fn must be callable, got str"),
        ({"worker_prefetch_cnt": -1}, ValueError, "worker_prefetch_cnt"),
        ({"main_prefetch_cnt": True}, TypeError, "main_prefetch_cnt"),
        ({"prefetch_bytes": -1}, ValueError, "prefetch_bytes"),
        ({"in_order": None}, ValueError, "in_order must be True or False, got None"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0 seconds, and finite, got 0"),
        ({"timeout": math.nan}, ValueError, "timeout must be more than 0 seconds, .* got nan"),
        ({"timeout": "5"}, TypeError, "timeout must be a number of seconds, got str"),
        ({"multiprocessing_context": "thread"}, ValueError, "'thread'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, error, says):
    with pytest.raises(error, match=says):
        MultiProcessingReadingService(**kwargs)


def test_a_graph_that_is_in_workers_already_is_refused():
    service = SequentialReadingService(
        MultiProcessingReadingService(1), MultiProcessingReadingService(numpy.int64(1))
    )
    with (
        pytest.raises(ValueError, match="in workers already"),
        DataLoader2(numbers(3), None, service),
    ):
        pass


def test_arguments_can_be_read_again():
    service = MultiProcessingReadingService(3, "spawn", 4, 5, describe, note_seed, timeout=6)
    assert service.num_workers == 3
    assert service.multiprocessing_context == "spawn"
    assert (service.worker_prefetch_cnt, service.main_prefetch_cnt) == (4, 5)
    assert (service.worker_init_fn, service.worker_reset_fn) == (describe, note_seed)
    assert (service.in_order, service.timeout, service.prefetch_bytes) == (True, 6, 256 << 20)


def test_one_service_may_be_given_to_several_loaders():
    service = MultiProcessingReadingService(1)
    loaders = [DataLoader2(numbers(5), None, service) for _ in range(2)]
    assert [drain(loader) for loader in loaders] == [[0, 1, 2, 3, 4]] * 2


async def test_warnings_of_a_pipe_in_a_worker_follow_the_loaders_filters():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = loader_of(numbers(2).map(warns), 1)
        assert await drain_async(loader) == [0, 1]
    with pytest.raises(UserWarning, match="in vain"):
        await drain_async(loader_of(numbers(2).map(warns), 1))


def warns(item):
    warnings.warn("in vain", stacklevel=1)
    return item


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_an_idle_loader_uses_no_cpu():
    async with loader_of(numbers(100_000).map(double), 2) as loader:
        items = aiter(loader)
        await anext(items)
        assert await asyncio.to_thread(share_of_a_core, enough=0.01) < 0.01, "idle"
        loader.pause()
        assert await asyncio.to_thread(share_of_a_core, enough=0.01) < 0.01, "paused"
        loader.resume()
        assert await anext(items) is not None


def test_functions_in_other_processes_find_the_methods_of_pipes():
    # These functions travel themselves, so that no module of theirs is imported there.
    dealt = IterableWrapper(range(2)).map(lambda number: list(IterableWrapper([number]).cycle(2)))
    graph = dealt.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    graph = graph.flatmap(lambda numbers: IterableWrapper(numbers).groupby(str))
    with DataLoader2(graph, None, MultiProcessingReadingService(1)) as loader:
        assert list(loader) == [[0, 0], [1, 1]]


def test_a_graph_that_cannot_be_sent_names_the_pipe_and_what_it_is():
    lock = threading.Lock()

    def guarded(item):
        with lock:
            return item

    graph = numbers(3).map(double).map(guarded)
    words = r"because of the variable 'lock' of .*guarded in map\(.*guarded\): TypeError.*lock"
    with pytest.raises(WorkerStartupError, match=words):
        list(loader_of(graph, 2))
    with pytest.raises(WorkerStartupError, match=r"the variable 'lock' of .* in worker_init_fn"):
        list(loader_of(numbers(3), 2, worker_init_fn=lambda pipe, info: (lock, pipe)[1]))
