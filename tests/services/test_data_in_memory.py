"""What a data set holds in memory, in the workers that look things up in it."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler

from asyncloader import DataLoader2, MultiProcessingReadingService, system
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper, SharedSequence
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import WorkerStartupError
from asyncloader.services import heavy
from asyncloader.worker_info import get_worker_info
from tests.leaks import leaves_nothing
from tests.needs import needs_sealed_memory
from tests.processes.forks import nothing_forked

METHODS = [None, "fork", "spawn", "forkserver"]
every_method = pytest.mark.parametrize("method", METHODS)
N = 400


class InMemory(Dataset[Any]):
    """Changes its own data at each look-up, as an augmentation in place does."""

    def __init__(self) -> None:
        self.array = np.zeros((N, 1000))
        self.tensors = [torch.arange(N * 1000).view(N, 1000)]
        self.lookups = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> tuple[int, float, int]:
        self.array += 1
        self.lookups += 1
        info = get_worker_info()
        assert info is not None
        first = int(self.tensors[0][number, 0])
        return first // 1000, float(self.array[number, 5]) - self.lookups, info.worker_id


@pytest.mark.sweep
@pytest.mark.soak
@every_method
def test_each_worker_changes_its_own_copy_of_the_data(method: str | None) -> None:
    data = InMemory()
    settings: dict[str, Any] = {"batch_size": None, "multiprocessing_context": method}
    with DataLoader2.from_dataset(range(2), num_workers=1, **settings) as first:
        assert len(list(first)) == 2  # what is started for the first loader stays
    with leaves_nothing(), DataLoader2.from_dataset(data, num_workers=2, **settings) as loader:
        for _ in range(2):
            numbers, differences, _ = zip(*loader, strict=True)
            assert list(numbers) == list(range(N))
            assert set(differences) == {0}
    assert not data.array.any()


def inode_of_memory(data: InMemory, number: int) -> tuple[int, str]:
    """Return the file in which a worker finds the array."""
    address = data.array.ctypes.data
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, _, _, _, *file = line.split(maxsplit=5)
            begin, end = (int(each, 16) for each in span.split("-"))
            if begin <= address < end:
                return os.getpid(), " ".join(file)
    return os.getpid(), ""


@needs_sealed_memory
def test_all_workers_have_the_data_in_the_same_memory_also_one_that_is_replaced() -> None:
    data = InMemory()
    pipe = IterableWrapper(range(60)).sharding_filter().map(Locating(data))
    service = MultiProcessingReadingService(2, None, 0, on_worker_death="restart")
    with nothing_forked(), DataLoader2(pipe, reading_service=service) as loader:
        items = iter(loader)
        found = list(islice(items, 10))
        os.kill(found[0][0], signal.SIGKILL)
        found += items
    processes, files = zip(*found, strict=True)
    assert len(set(processes)) == 3
    assert len(set(files)) == 1
    assert "memfd:asyncloader" in files[0]


class Locating:
    def __init__(self, data: InMemory) -> None:
        self.data = data

    def __call__(self, number: int) -> tuple[int, str]:
        return inode_of_memory(self.data, number)


# Fork inherits --------------------------------------------------------------------------


class Half(Dataset[int]):
    """Leaves its rows out of a pickle, and holds what cannot be pickled."""

    def __init__(self, path: Any) -> None:
        self.rows = list(range(N))
        self.lock = threading.Lock()
        self.file = open(path, "rb")  # noqa: SIM115
        self.added = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> int:
        with self.lock:
            (byte,) = os.pread(self.file.fileno(), 1, number % 256)
            assert byte == number % 256
            return self.rows[number] + self.added

    def __getstate__(self) -> dict[str, Any]:
        return {"added": self.added}


@pytest.fixture
def half(tmp_path: Any) -> Any:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)))
    data = Half(path)
    yield data
    data.file.close()


def forked(data: Any, **settings: Any) -> DataLoader2[Any]:
    given: dict[str, Any] = {"batch_size": None, "num_workers": 2, "seed": 3, **settings}
    return DataLoader2.from_dataset(data, multiprocessing_context="fork", **given)


def test_workers_that_are_forked_have_the_data_set_as_it_is(half: Half) -> None:
    with leaves_nothing(), forked(half, shuffle=True) as loader:
        first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second) == list(range(N))
    assert first != second


async def test_async_for_has_them_too(half: Half) -> None:
    async with forked(half) as loader:
        assert [item async for item in loader] == list(range(N))


def test_a_worker_that_is_replaced_has_what_the_others_inherited(half: Half) -> None:
    graph = SequenceWrapper(half, deepcopy=False).sharding_filter()
    service = MultiProcessingReadingService(2, "fork", 0, on_worker_death="restart")
    with DataLoader2(graph, reading_service=service) as loader:
        items = iter(loader)
        numbers = list(islice(items, 10))
        # Neither of these is of the workers that run.
        half.added = 1_000_000
        foreign = threading.Event()
        thread = threading.Thread(target=foreign.wait, name="somebody's thread")
        thread.start()
        for worker in loader.stats().workers:
            os.kill(worker.pid, signal.SIGKILL)
        numbers += items
        foreign.set()
        thread.join()
        assert loader.stats().restarts == 2
        assert numbers == list(range(N))
        assert list(loader) == list(range(N))


def test_a_state_is_resumed_by_forked_workers(half: Half) -> None:
    with forked(half, shuffle=True) as loader:
        items = iter(loader)
        list(islice(items, 100))
        state = pickle.loads(pickle.dumps(loader.state_dict(include_datapipe=False)))
        rest = list(items)
    with forked(half, shuffle=True, num_workers=3) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_the_dispatching_process_inherits_as_well(half: Half) -> None:
    ordered = SequenceWrapper(half, deepcopy=False).to_iter_datapipe()
    dealt = ordered.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    service = MultiProcessingReadingService(2, "fork")
    with leaves_nothing(), DataLoader2(dealt.map(str), reading_service=service) as loader:
        assert list(map(int, loader)) == list(range(N))


def test_functions_and_init_functions_are_inherited_too() -> None:
    lock = threading.Lock()

    def locked(number: int) -> int:
        with lock:
            return number

    def init(pipe: Any, info: Any) -> Any:
        assert not lock.locked()
        return pipe

    pipe = IterableWrapper(range(20)).sharding_filter().map(locked)
    service = MultiProcessingReadingService(2, "fork", worker_init_fn=init)
    with DataLoader2(pipe, reading_service=service) as loader:
        assert list(loader) == list(range(20))


def test_a_start_that_fails_leaves_no_process_that_would_fork_more() -> None:
    def fail(pipe: Any, info: Any) -> Any:
        raise ValueError("the program's own")

    pipe = IterableWrapper(range(20)).sharding_filter()
    service = MultiProcessingReadingService(1, "fork", worker_init_fn=fail)
    # The error is kept, and with it the frames of the start.
    with (
        pytest.raises(WorkerStartupError) as caught,
        DataLoader2(pipe, reading_service=service) as loader,
    ):
        list(loader)
    assert multiprocessing.active_children() == []
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_a_pickle_left_out_is_named_with_what_to_do(half: Half) -> None:
    with (
        nothing_forked(),
        DataLoader2.from_dataset(half, num_workers=1) as loader,
        pytest.raises(AttributeError, match="no attribute 'lock'") as caught,
    ):
        list(loader)
    notes = "\n".join(caught.value.__notes__)
    assert "Half.__getstate__ decides what of it is sent to workers" in notes
    assert "'lock'" in notes
    assert 'multiprocessing_context="fork"' in notes


def test_what_cannot_be_pickled_is_named_with_what_to_do() -> None:
    class Locked(Dataset[int]):
        def __init__(self) -> None:
            self.guard = threading.Lock()

        def __getitem__(self, number: int) -> int:
            return number

        def __len__(self) -> int:
            return 3

    expected = "the attribute 'guard' of .*Locked.*multiprocessing_context=\"fork\""
    sent = DataLoader2.from_dataset(Locked(), num_workers=1)
    with nothing_forked(), pytest.raises(WorkerStartupError, match=expected):
        sent.__enter__()
    # A worker that is forked has it as it is.
    if system.MAY_FORK_AFTER_IMPORTS:
        forked = DataLoader2.from_dataset(Locked(), num_workers=1, multiprocessing_context="fork")
        with forked:
            assert list(chain(*forked)) == [0, 1, 2]


# What is heavy, and the remedy -----------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"sampler": RandomSampler(range(N))}])
@pytest.mark.parametrize("workers", [0, 2])
def test_from_dataset_looks_things_up_in_a_shared_sequence(
    workers: int, settings: dict[str, Any]
) -> None:
    rows = SharedSequence({"number": number} for number in range(N))
    with DataLoader2.from_dataset(
        rows, batch_size=8, num_workers=workers, seed=1, **settings
    ) as loader:
        assert len(loader) == N / 8
        assert loader.dataset[5] == {"number": 5}
        numbers = torch.cat([batch["number"] for batch in loader]).tolist()
        state = loader.state_dict(include_datapipe=False)
    assert sorted(numbers) == list(range(N))
    assert (numbers == sorted(numbers)) == (not settings)
    assert state


class Rows(Dataset[Any]):
    def __init__(self, rows: Any, **others: Any) -> None:
        self.rows = rows
        self.others = others

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> int:
        return number


def warnings_of(data: Any, method: str | None = None) -> list[str]:
    graph = SequenceWrapper(data, deepcopy=False).sharding_filter()
    service = MultiProcessingReadingService(1, method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forked = contextlib.nullcontext() if method == "fork" else nothing_forked()
        with forked, DataLoader2(graph, reading_service=service) as loader:
            assert list(loader) == list(range(4))
    return [str(each.message) for each in caught]


def test_a_warning_names_the_objects_that_each_worker_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heavy, "HEAVY_PICKLE", 1 << 20)
    data = Rows([{"path": f"{number:0100}.jpg"} for number in range(20_000)], small=[1, 2])
    (warning,) = warnings_of(data)
    assert "the attribute 'rows' of Rows in SequenceWrapper" in warning
    assert "SharedSequence" in warning
    assert 'multiprocessing_context="fork"' in warning
    assert "; by default they do not here, because " in warning or (
        not system.MAY_FORK_AFTER_IMPORTS
    )
    assert warnings_of(data, "fork") == []


def test_a_warning_names_the_arrays_that_are_in_memory_a_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heavy, "HEAVY_MEMORY", 4 << 20)
    data = Rows(np.zeros(4 << 20, dtype=np.uint8), small=np.zeros(1 << 17))
    (warning,) = warnings_of(data)
    assert "one copy of 5 MiB of arrays and tensors" in warning
    assert "the attribute 'rows' of Rows" in warning
    assert warnings_of(data, "fork") == []


def test_loaders_may_run_side_by_side_over_the_same_data() -> None:
    data = InMemory()

    async def items_of(loader: DataLoader2[Any]) -> list[Any]:
        async with loader:
            return [item[0] async for item in loader]

    async def both() -> list[list[Any]]:
        made = [DataLoader2.from_dataset(data, batch_size=None, num_workers=1) for _ in range(2)]
        return await asyncio.gather(*map(items_of, made))

    with leaves_nothing():
        assert asyncio.run(both()) == [list(range(N))] * 2
