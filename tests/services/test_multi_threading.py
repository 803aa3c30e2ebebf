"""MultiThreadingReadingService: what threads as workers share, and what of them is their own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import ChainDataset, ConcatDataset, IterableDataset, Subset

from asyncloader import (
    DataLoader2,
    Feed,
    MultiProcessingReadingService,
    MultiThreadingReadingService,
    SequentialReadingService,
    get_worker_info,
)
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.errors import WorkerDied, WorkerTimeout
from asyncloader.workers.threads import worker_thread
from tests.collecting import drain
from tests.leaks import leaves_nothing
from tests.processes.scripts import run_script

SOON = 20.0
OF_WORKERS = ("asyncloader worker", "asyncloader dispatcher")

ENGINES = [MultiThreadingReadingService, MultiProcessingReadingService]


def numbers(count: int = 40) -> Any:
    return IterableWrapper(range(count)).sharding_filter()


def loader_of(graph: Any, *args: Any, **kwargs: Any) -> DataLoader2[Any]:
    return DataLoader2(graph, reading_service=MultiThreadingReadingService(*args, **kwargs))


def workers_left() -> list[threading.Thread]:
    """Return the workers that do not end, of those that were told to."""
    threads = [each for each in threading.enumerate() if each.name.startswith(OF_WORKERS)]
    for thread in threads:
        thread.join(SOON)
    return [thread for thread in threads if thread.is_alive()]


# What they share ------------------------------------------------------------------------


class Heavy:
    """Cannot be pickled, and would not come out as the same object if it could."""

    def __reduce__(self) -> Any:
        raise TypeError("this is not to be pickled")


def test_data_functions_and_items_are_those_of_the_program():
    data = [Heavy() for _ in range(10)]
    lock = threading.Lock()
    seen = []

    def note(item: Heavy) -> Heavy:
        with lock:
            seen.append(threading.current_thread().name)
        return item

    graph = IterableWrapper(data, deepcopy=False).sharding_filter().map(note)
    items = drain(loader_of(graph, 2))
    assert list(map(id, items)) == list(map(id, data))
    assert set(seen) == {"asyncloader worker 0", "asyncloader worker 1"}
    assert not workers_left()


def test_a_graph_that_ran_in_threads_runs_in_processes_too():
    graph = numbers(8).batch(2).collate()
    for kind in ENGINES:
        with DataLoader2(graph, reading_service=kind(2)) as loader:
            assert [batch.tolist() for batch in loader] == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_large_items_are_not_copied():
    made = []

    def large(number: int) -> Any:
        made.append(numpy.full(1 << 20, number, numpy.uint8))
        return made[-1]

    items = drain(loader_of(numbers(8).map(large), 2))
    assert {id(item) for item in items} == {id(item) for item in made}


class Counting(IterDataPipe[int]):
    """Counts in an attribute of its own."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.count = 0
        self.seen: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.count += 1
            self.seen.append(item)
            yield self.count, len(self.seen)


def test_each_worker_has_pipes_of_its_own():
    counting = Counting(numbers(10))
    found = [(number, number) for number in range(1, 6) for _ in range(2)]
    assert drain(loader_of(counting, 2)) == found
    assert (counting.count, counting.seen) == (0, [])


@pytest.mark.parametrize(
    "yielded",
    [
        lambda: numpy.zeros(1000),
        lambda: torch.zeros(1000),
        lambda: [0] * 3,
        lambda: {"number": 0},
        lambda: [object()],
    ],
)
def test_who_yields_the_same_object_again_is_warned_of(yielded):
    class Same(IterDataPipe[Any]):
        def __iter__(self) -> Iterator[Any]:
            # Of a list it is seen where two are sent together.
            yield from [self.item] * 1000

        item = yielded()

    with pytest.warns(RuntimeWarning, match=r"Same\(\) has yielded the same \w+ twice in a row"):
        drain(loader_of(Same(), 1))


@pytest.mark.parametrize(
    ("memory", "named"), [(numpy.zeros(1000), "ndarray"), (torch.zeros(1000), "Tensor")]
)
def test_who_yields_the_same_memory_again_is_warned_of(memory, named):
    def look_up(number: int) -> Any:
        memory[:] = number
        return memory[:]

    graph = IterableWrapper(range(100)).map(look_up)
    said = rf"map\(look_up\) has yielded a {named} of the same memory twice in a row"
    with pytest.warns(RuntimeWarning, match=said):
        drain(loader_of(graph, 1))


def test_parts_of_one_array_may_come_one_after_the_other(recwarn):
    rows = list(numpy.zeros((20, 1000)))
    assert len(drain(loader_of(IterableWrapper(rows).sharding_filter(), 2))) == 20
    assert not recwarn


@pytest.mark.parametrize("item", [1, "text", b"x" * 100_000, (1, [2]), None, "x" * 100_000])
def test_what_nobody_can_change_may_come_again(item, recwarn):
    assert drain(loader_of(IterableWrapper([item] * 20).sharding_filter(), 2)) == [item] * 20
    assert not recwarn


def test_an_iterator_that_several_threads_would_read_is_refused():
    def lines() -> Iterator[str]:
        yield from "abc"

    graph = IterableWrapper(lines()).sharding_filter()
    with pytest.raises(ValueError, match=r"of IterableWrapper\(.* is an iterator \(generator"):
        drain(loader_of(graph, 2))
    assert drain(loader_of(IterableWrapper(lines()).sharding_filter(), 1)) == ["a", "b", "c"]
    assert drain(loader_of(IterableWrapper(lines()).sharding_filter(), 0)) == ["a", "b", "c"]


class WithFile:
    """A data set that keeps its file open."""

    def __init__(self, path: Any) -> None:
        self.file = open(path)  # noqa: SIM115 - that is what is wrong with it

    def __getitem__(self, key: int) -> str:
        return self.file.readline()

    def __len__(self) -> int:
        return 3


def test_an_open_file_that_several_threads_would_read_is_refused(tmp_path):
    (tmp_path / "lines").write_text("a\nb\nc\n")
    data = WithFile(tmp_path / "lines")
    within = ConcatDataset([Subset(data, range(3))])  # type: ignore[arg-type]  # as torch takes it
    for each in (data, within):
        with pytest.raises(ValueError, match=r"WithFile\.file of .* is an open file"):
            drain(DataLoader2.from_dataset(each, num_workers=2, workers="threads"))
    data.file.close()
    settings: dict[str, Any] = {"num_workers": 2, "workers": "threads", "collate_fn": len}
    with pytest.raises(ValueError, match="closed file"):
        drain(DataLoader2.from_dataset(data, **settings))


class OpenedLate:
    """A data set that opens its file when it is first asked, as torch's users do in a worker."""

    def __init__(self, new_file: Any, holder: Any = None, lock: Any = None) -> None:
        self.new_file = new_file
        self.holder = self if holder is None else holder
        self.lock = lock

    def __getitem__(self, key: int) -> int:
        with self.lock or contextlib.nullcontext():
            if not hasattr(self.holder, "file"):
                self.holder.file = self.new_file()
            self.holder.file.seek(key)
            return int(self.holder.file.read(1)[0])

    def __len__(self) -> int:
        return 40


@pytest.fixture
def new_file(tmp_path):
    """Return what opens a file of forty bytes, and close what was opened."""
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(40)))
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(open(path, "rb", buffering=0))


def test_an_open_file_that_was_opened_by_a_thread_is_refused_too(new_file):
    data = OpenedLate(new_file)
    loader = DataLoader2.from_dataset(data, 4, num_workers=2, workers="threads")
    with pytest.raises(ValueError, match=r"OpenedLate\.file of .* is an open file"):
        drain(loader)
    one = DataLoader2.from_dataset(data, 40, num_workers=1, workers="threads")
    assert [batch.tolist() for batch in drain(one)] == [list(range(40))]


@pytest.mark.parametrize("ways", ["holder", "lock"])
def test_who_reads_a_file_in_a_way_that_is_right_for_threads_may_do_so(new_file, ways):
    data = OpenedLate(
        new_file, **{ways: {"holder": threading.local, "lock": threading.Lock}[ways]()}
    )
    with DataLoader2.from_dataset(data, 4, num_workers=3, workers="threads") as loader:
        for _ in range(2):
            assert torch.cat(list(loader)).tolist() == list(range(40))


# Random numbers -------------------------------------------------------------------------


def rolled(number: int) -> tuple[Any, ...]:
    info = get_worker_info()
    assert info is not None
    return (
        number,
        info.random.random(),
        float(torch.rand((), generator=info.torch_generator)),
        float(info.numpy_generator.random()),
    )


def dice(count: int = 40) -> Any:
    return IterableWrapper(range(count)).shuffle().sharding_filter().map(rolled)


def test_a_workers_own_generators_give_the_same_in_threads_and_processes():
    epochs = []
    for engine in ENGINES:
        with DataLoader2(dice(), reading_service=engine(2)) as loader:
            loader.seed(3)
            epochs.append([list(loader) for _ in range(2)])
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1]


@pytest.mark.sweep
@pytest.mark.parametrize("first", ENGINES)
@pytest.mark.parametrize("second", ENGINES)
def test_states_hold_the_generators_and_either_resumes_the_other(first, second):
    with DataLoader2(dice(), reading_service=first(3, worker_prefetch_cnt=1)) as loader:
        loader.seed(3)
        iterator = iter(loader)
        head = [next(iterator) for _ in range(17)]
        state = loader.state_dict()
        tail = list(iterator)
        following = list(loader)
    with DataLoader2(dice(), reading_service=second(3, worker_prefetch_cnt=1)) as loader:
        loader.load_state_dict(state)
        assert list(loader) == tail
        assert list(loader) == following
    assert len({each[0] for each in [*head, *tail]}) == 40


class Here(IterDataPipe[Any]):
    """Stays with the loader, so that what it reads is a stream of its own."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source

    def is_replicable(self) -> bool:
        return False


def test_two_streams_of_a_worker_draw_apart():
    def made() -> Any:
        one, other = dice(20), IterableWrapper(range(20)).sharding_filter().map(rolled)
        return Here(one).zip(Here(other))

    found = []
    for engine in ENGINES:
        with DataLoader2(made(), reading_service=engine(2)) as loader:
            loader.seed(3)
            found.append(list(loader))
    assert found[0] == found[1]


def test_the_programs_generators_are_left_alone():
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    loader = loader_of(dice(), 2)
    loader.seed(1)
    drain(loader)
    after = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after


# Which worker ---------------------------------------------------------------------------


class Shared(IterableDataset):
    """Takes a worker's share as torch's tutorial has it."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(20) if info is None else range(info.id, 20, info.num_workers))


def test_torchs_data_sets_take_their_shares():
    loader = DataLoader2.from_dataset(Shared(), batch_size=None, num_workers=3, workers="threads")
    assert sorted(drain(loader)) == list(range(20))
    assert torch.utils.data.get_worker_info() is None
    assert list(Shared()) == list(range(20))


class Between(IterableDataset):
    """Has no share of its own; ``take_share`` says what a worker's copy reads."""

    def __init__(self) -> None:
        self.numbers = range(20)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def take_share(number: int) -> None:
    """Change a worker's copy of the data set as torch's second tutorial has it."""
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert info.id == number
    info.dataset.numbers = info.dataset.numbers[info.id :: info.num_workers]


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_torch_shows_an_init_function_the_workers_own_copy_of_an_iterable_data_set(workers):
    data = Between()
    settings = {"num_workers": 3, "worker_init_fn": take_share, "workers": workers}
    with DataLoader2.from_dataset(data, batch_size=None, **settings) as loader:
        for _ in range(2):
            assert list(loader) == list(range(20))
    assert data.numbers == range(20)


@pytest.mark.parametrize(("workers", "shown"), [("threads", "NoneType"), ("processes", "Squares")])
def test_torch_shows_a_data_set_that_is_looked_up_where_it_is_the_workers_own(workers, shown):
    def data_sets_kind(batch: Any) -> str:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return type(info.dataset).__name__

    settings = {"num_workers": 2, "collate_fn": data_sets_kind, "workers": workers}
    assert set(drain(DataLoader2.from_dataset(Squares(), **settings))) == {shown}


def told(number: int) -> Any:
    ours, torchs = get_worker_info(), torch.utils.data.get_worker_info()
    assert ours is not None
    assert torchs is not None
    assert torchs.seed == ours.torch_generator.initial_seed()
    assert (ours.worker_id, ours.num_workers) == (torchs.id, torchs.num_workers)
    return ours.worker_id


async def told_soon(number: int) -> Any:
    await asyncio.sleep(0)
    return told(number)


@pytest.mark.parametrize(
    "pipe",
    [
        lambda numbers: numbers.map(told),
        lambda numbers: numbers.map(told_soon),
        lambda numbers: numbers.async_map(told_soon, concurrency=2),
        lambda numbers: numbers.thread_map(told, concurrency=2),
        lambda numbers: numbers.map(told).prefetch(3),
    ],
)
def test_every_function_knows_in_which_worker_it_is(pipe):
    assert drain(loader_of(pipe(numbers(12)), 3)) == [0, 1, 2] * 4
    assert get_worker_info() is None


def test_init_and_reset_functions_know_too():
    called = []
    lock = threading.Lock()  # nothing of it is pickled

    def init(pipe: Any, info: Any) -> Any:
        called.append(("init", info, get_worker_info() == info))
        return pipe

    def reset(pipe: Any, info: Any, seeds: Any) -> Any:
        with lock:
            called.append(("reset", info, get_worker_info() == info))
        return pipe

    service = MultiThreadingReadingService(2, worker_init_fn=init, worker_reset_fn=reset)
    with DataLoader2(numbers(6), reading_service=service) as loader:
        for _ in range(2):
            assert list(loader) == list(range(6))
    assert sorted((name, info.worker_id, is_same) for name, info, is_same in called) == [
        ("init", 0, True),
        ("init", 1, True),
        ("reset", 0, True),
        ("reset", 0, True),
        ("reset", 1, True),
        ("reset", 1, True),
    ]


def test_torch_has_one_thread_in_each_worker_and_all_in_the_program():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        graph = numbers(8).map(lambda number: torch.get_num_threads())
        assert set(drain(loader_of(graph, 2))) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Rows:
    """A map-style data set of tensors."""

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.full((100,), key)

    def __len__(self) -> int:
        return 20


def test_batches_are_made_in_ordinary_memory():
    # torch makes a file of shared memory for each where it knows that it is in a worker.
    loader = DataLoader2.from_dataset(Rows(), 5, num_workers=2, workers="threads")
    batches = drain(loader)
    assert [batch[:, 0].tolist() for batch in batches] == [
        list(range(first, first + 5)) for first in range(0, 20, 5)
    ]
    assert not any(batch.is_shared() for batch in batches)


# Together with the rest -----------------------------------------------------------------


def test_a_dispatching_thread_deals():
    source = IterableWrapper(range(50)).map(lambda number: (number, threading.get_ident()))
    graph = source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    graph = graph.map(lambda pair: (*pair, threading.get_ident()))
    items = drain(loader_of(graph, 3))
    assert [number for number, _, _ in items] == list(range(50))
    assert len({dealer for _, dealer, _ in items}) == 1
    assert len({worker for _, _, worker in items}) == 3
    assert not workers_left()


async def test_a_feed_is_answered_by_threads():
    feed: Feed[int, int] = Feed()
    loader = DataLoader2(
        feed.map(lambda number: number * 2), reading_service=MultiThreadingReadingService(2)
    )
    async with feed.serve(loader):
        answers = await asyncio.gather(*(feed.ask(number) for number in range(50)))
    assert answers == [number * 2 for number in range(50)]
    assert not workers_left()


async def test_an_error_says_in_which_worker_it_was():
    def fail(number: int) -> int:
        if number == 7:
            raise ValueError("seven")
        return number

    async with loader_of(numbers(20).map(fail), 2) as loader:
        with pytest.raises(ValueError, match="seven") as caught:
            [item async for item in loader]
        assert "in worker 1 of 2" in "".join(caught.value.__notes__)
        # The next epoch begins anew.
        with pytest.raises(ValueError, match="seven"):
            [item async for item in loader]


def test_stats_name_the_threads():
    with loader_of(numbers(10), 2) as loader:
        list(loader)
        workers = loader.stats().workers
    assert [(worker.name, worker.items, worker.pid) for worker in workers] == [
        ("worker 0", 5, os.getpid()),
        ("worker 1", 5, os.getpid()),
    ]


def test_the_number_of_threads_may_be_found_out():
    with loader_of(numbers(3000).map(hash), "auto", max_workers=3) as loader:
        assert list(loader) == list(range(3000))
        assert 0 <= loader.num_workers <= 3


def test_one_service_with_workers_is_enough():
    service = SequentialReadingService(
        MultiThreadingReadingService(1), MultiThreadingReadingService(1)
    )
    with pytest.raises(ValueError, match="only one service with workers"):
        drain(DataLoader2(numbers(), reading_service=service))


# How they end ---------------------------------------------------------------------------


class Held:
    """A function that does not return at one number until it is let go."""

    def __init__(self, at: int, times: int = 1) -> None:
        self.at = at
        self.left = times
        self.is_inside = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, number: int) -> int:
        if number == self.at and self.left:
            self.left -= 1
            self.is_inside.set()
            self.let_go.wait(SOON)
        return number


@pytest.fixture
def held() -> Iterator[Held]:
    function = Held(5)
    yield function
    function.let_go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("asyncloader worker"):
            thread.join(SOON)


def test_closing_gives_up_a_thread_that_hangs_and_names_where(held):
    loader = loader_of(numbers(20).map(held), 2)
    iterator = iter(loader)
    assert [next(iterator) for _ in range(5)] == list(range(5))
    assert held.is_inside.wait(SOON)
    begun = time.monotonic()
    with pytest.warns(ResourceWarning, match=r"'asyncloader worker 1' is still inside .*wait\(\)"):
        loader.shutdown()
    assert time.monotonic() - begun < SOON / 2
    held.let_go.set()


given_up = pytest.mark.filterwarnings("ignore:thread 'asyncloader worker 1' is still inside")


@given_up
def test_a_thread_that_is_silent_for_too_long_is_an_error_that_says_where(held):
    loader = loader_of(numbers(20).map(held), 2, timeout=0.2)
    with loader, pytest.raises(WorkerTimeout) as caught:
        list(loader)
    assert caught.value.worker == 1
    assert str(caught.value).endswith("(timeout=0.2); it was given up")
    assert "in __call__" in (caught.value.stack or "")


@given_up
def test_a_thread_that_is_silent_for_too_long_is_replaced(held):
    settings: dict[str, Any] = {"timeout": 0.2, "on_worker_death": "restart"}
    with loader_of(numbers(20).map(held), 2, **settings) as loader:
        assert list(loader) == list(range(20))
        assert loader.stats().restarts == 1


def test_leaving_the_program_in_a_function_is_the_death_of_a_worker():
    def leave(number: int) -> int:
        if number == 5:
            sys.exit(3)
        return number

    with loader_of(numbers(20).map(leave), 2) as loader:
        with pytest.raises(WorkerDied, match=r"worker 1 \(thread \d+\) exited with code 3"):
            list(loader)
        with pytest.raises(WorkerDied, match="exited with code 3"):
            list(loader)


def test_a_loader_that_is_dropped_ends_its_threads():
    threads = []

    async def an_epoch() -> None:
        loader = loader_of(numbers(), 2)
        assert [number async for number in loader] == list(range(40))
        threads.extend(threading.enumerate())

    def drop() -> None:
        asyncio.run(an_epoch())
        gc.collect()

    with pytest.warns(ResourceWarning, match="2 workers were still running when their loader was"):
        drop()
    of_workers = [each for each in threads if each.name.startswith("asyncloader worker")]
    assert len(of_workers) == 2
    for thread in of_workers:
        thread.join(SOON)
        assert not thread.is_alive()


def test_nothing_is_left_behind():
    drain(loader_of(numbers(), 2))
    with leaves_nothing():
        for _ in range(5):
            drain(loader_of(dice(), 3))
    assert not worker_thread._plans
    assert not worker_thread._running


def test_memory_is_free_as_soon_as_an_item_is_dropped():
    def large(number: int) -> Any:
        return bytearray(1 << 20)

    tracemalloc.start()
    try:
        with loader_of(numbers(200).map(large), 2, prefetch_bytes=8 << 20) as loader:
            for _ in loader:
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20


@pytest.mark.soak
@pytest.mark.parametrize("is_dealt", [False, True], ids=["own shares", "dealt"])
async def test_workers_run_no_more_bytes_ahead_than_they_may(is_dealt):
    made = []

    def large(number: int) -> Any:
        made.append(number)
        return bytearray(1 << 20)

    graph: Any = numbers(400).map(large)
    if is_dealt:
        graph = IterableWrapper(range(400)).map(large)
        graph = graph.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    loader = loader_of(graph, 2, 100, main_prefetch_cnt=0, prefetch_bytes=8 << 20)
    async with loader:
        items = aiter(loader)
        await anext(items)
        before = 0
        while len(made) > before:
            before = len(made)
            await asyncio.sleep(0.1)
        # Twice where they are dealt, as what a worker has got counts too.
        assert len(made) < 40
        assert len([item async for item in items]) == 399


def test_a_program_that_forgets_its_loader_ends_in_order(tmp_path):
    script = """
from asyncloader import DataLoader2, MultiThreadingReadingService
from asyncloader.datapipes.iter import IterableWrapper
loader = DataLoader2(
    IterableWrapper(range(10**6)).sharding_filter(),
    reading_service=MultiThreadingReadingService(2),
)
iterator = iter(loader)
print(next(iterator))
"""
    done = run_script(tmp_path, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


# from_dataset ---------------------------------------------------------------------------


class Squares:
    """A map-style data set."""

    def __getitem__(self, key: int) -> int:
        return key * key

    def __len__(self) -> int:
        return 20


def test_from_dataset_runs_in_threads_if_it_is_asked_to():
    make = partial(DataLoader2.from_dataset, Squares(), 4, shuffle=True, seed=2, num_workers=2)
    with make(workers="threads") as loader:
        assert len(loader) == 5
        in_threads = [batch.tolist() for batch in loader]
        assert all(worker.pid == os.getpid() for worker in loader.stats().workers)
    assert [batch.tolist() for batch in drain(make(workers="processes"))] == in_threads
    assert [batch.tolist() for batch in drain(make())] == in_threads


def test_data_may_grow_between_epochs():
    data = list(range(10))
    with DataLoader2.from_dataset(data, 4, num_workers=2, workers="threads") as loader:
        for _ in range(2):
            assert len(list(loader)) == len(loader) == -(-len(data) // 4)
            data.extend(range(10, 20))


class Noted(IterableDataset):
    """Notes on itself how far it is, and how often it was begun."""

    def __init__(self, begun: Any) -> None:
        self.begun = begun
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = get_worker_info()
        assert info is not None
        self.epoch += 1
        self.next, step = info.worker_id, info.num_workers
        self.begun.wait(SOON)
        while self.next < 40:
            yield self.epoch, self.next
            self.next += step


def test_what_an_iterable_data_set_notes_on_itself_is_its_workers_own():
    # Both workers have begun before either of them goes on.
    data = Noted(threading.Barrier(2))
    with DataLoader2.from_dataset(data, None, num_workers=2, workers="threads") as loader:
        for epoch in (1, 2):
            assert [tuple(item) for item in loader] == [(epoch, number) for number in range(40)]
    assert data.epoch == 0


class Named(IterableDataset):
    """Reads the data sets that it has by name, and itself knows nothing of workers."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = dict(enumerate(parts))

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.parts.values())


@pytest.mark.parametrize("kind", [ChainDataset, Named])
def test_so_is_what_the_data_sets_in_it_note(kind):
    barrier = threading.Barrier(2)
    noted = Noted(barrier)
    data = kind([noted, Noted(barrier), noted])
    with DataLoader2.from_dataset(data, None, num_workers=2, workers="threads") as loader:
        items = [tuple(item) for item in loader]
    assert items == [(epoch, number) for epoch in (1, 1, 2) for number in range(40)]
    assert noted.epoch == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"workers": "thread"}, 'workers must be "processes", "threads" or None'),
        (
            {"workers": "threads", "num_workers": 1, "multiprocessing_context": "fork"},
            "multiprocessing_context goes with",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        DataLoader2.from_dataset(Squares(), **settings)


def test_where_there_are_no_worker_processes_there_are_threads(monkeypatch, caplog):
    monkeypatch.setattr("asyncloader.loader.from_dataset.HAS_WORKERS", False)
    with caplog.at_level(logging.INFO, "asyncloader"):
        loader = DataLoader2.from_dataset(Squares(), num_workers=2)
    assert isinstance(loader.reading_service, MultiThreadingReadingService)
    assert [record.message for record in caplog.records if "are threads" in record.message]
    assert [int(item) for item in drain(loader)] == [key * key for key in range(20)]
