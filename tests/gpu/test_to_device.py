"""to_device on a GPU."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from itertools import islice
from typing import Any

import pytest
import torch

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes import devices
from asyncloader.datapipes.devices import CudaDevice, PlainDevice, _copying_stream, open_device
from asyncloader.datapipes.iter import IterableWrapper
from tests.gpu.batches import (
    all_of,
    filled,
    full,
    has_no_cuda,
    is_right,
    loader_of,
    sharded,
    tensors_of,
)
from tests.gpu.needs import needs_gpu
from tests.gpu.stress import wrong_batches

pytestmark = needs_gpu

COUNT = 12

both = pytest.mark.parametrize("workers", [0, 2])


def check_moved(batches: list[Any], first: int = 0) -> None:
    assert [batch["number"] for batch in batches] == list(range(first, COUNT))
    for batch in batches:
        assert {tensor.device.type for tensor in tensors_of(batch)} == {"cuda"}
        assert batch["empty"].device.type == "cuda"
    assert torch.stack([is_right(batch, batch["number"]) for batch in batches]).all()


@both
@pytest.mark.parametrize("form", ["for", "async for"])
def test_every_kind_of_batch_is_moved(form, workers):
    check_moved(all_of(loader_of(sharded(COUNT).to_device(), workers), form))


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda", 0)], ids=repr)
def test_a_device_is_named_as_torch_names_it(device):
    check_moved(all_of(loader_of(sharded(COUNT).to_device(device), 0), "for"))


async def test_by_itself_it_moves_too():
    graph = sharded(COUNT).to_device()
    check_moved(list(graph))
    check_moved([batch async for batch in graph])


def test_what_has_no_tensors_passes():
    graph = IterableWrapper([1, "text", {"x": None}, torch.empty(0)]).to_device()
    assert list(graph)[:3] == [1, "text", {"x": None}]
    assert all_of(loader_of(graph, 0), "for")[:3] == [1, "text", {"x": None}]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_is_moved(layout):
    def sparse(number: int) -> torch.Tensor:
        return torch.eye(400).mul(number + 1).to_sparse(layout=layout)

    with loader_of(IterableWrapper(range(6)).map(sparse).to_device(), 0) as loader:
        for number, tensor in enumerate(loader):
            assert tensor.layout == layout
            assert (tensor.to_dense().diagonal() == number + 1).all()


@both
async def test_a_resumed_loader_moves_what_follows(workers):
    loader = loader_of(sharded(COUNT).to_device(ahead=4), workers)
    async with loader:
        items = aiter(loader)
        assert [(await anext(items))["number"] for _ in range(5)] == [0, 1, 2, 3, 4]
        state = loader.state_dict()
    resumed = loader_of(sharded(COUNT).to_device(ahead=4), workers)
    resumed.load_state_dict(state)
    async with resumed:
        check_moved([batch async for batch in resumed], first=5)


@both
def test_the_consumers_stream_waits_whichever_is_current(workers):
    streams = [torch.cuda.Stream() for _ in range(2)]
    right = []
    with loader_of(sharded(60).to_device(), workers) as loader:
        items = enumerate(loader)
        for stream in (*streams, *streams, torch.cuda.default_stream()):
            with torch.cuda.stream(stream):
                for number, batch in islice(items, 12):
                    torch.cuda._sleep(300_000)
                    right.append(is_right(batch, number))
                    del batch
        torch.cuda.synchronize()
    assert len(right) == 60
    assert torch.stack(right).all()


def test_the_copies_wait_for_nothing_that_the_consumer_computes():
    with loader_of(sharded(20).to_device(ahead=4), 0) as loader:
        items = iter(loader)
        next(items)
        torch.cuda._sleep(1_000_000_000)
        taken = [next(items) for _ in range(3)]
        _copying_stream(torch, torch.device("cuda", 0)).synchronize()
        # The batches are there while the GPU is still busy.
        assert not torch.cuda.current_stream().query()
        del taken
    torch.cuda.synchronize()


def test_data_are_right_under_stress():
    assert wrong_batches(3000) == 0


def test_data_are_right_with_one_batch_ahead_and_few_workers():
    assert wrong_batches(500, ahead=1, workers=1) == 0


# Memory ---------------------------------------------------------------------------------


class Counted:
    """torch's CUDA runtime, which counts what is page-locked."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.locked: dict[int, int] = {}
        self.most = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Any:
        code = self._runtime.cudaHostRegister(address, size, flags)
        assert code == self._runtime.cudaError.success
        self.locked[address] = size
        self.most += 1
        return code

    def cudaHostUnregister(self, address: int) -> Any:
        code = self._runtime.cudaHostUnregister(address)
        assert code == self._runtime.cudaError.success
        del self.locked[address]
        return code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


@pytest.fixture
def runtime(monkeypatch):
    counted = Counted(torch.cuda.cudart())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: counted)
    return counted


def test_batches_of_workers_are_copied_straight_from_their_memory(runtime, monkeypatch):
    pinned = []
    pin_memory = torch.Tensor.pin_memory
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: pinned.append(1) or pin_memory(tensor)
    )
    graph = IterableWrapper(range(200)).sharding_filter().map(filled).to_device()
    with loader_of(graph, 2) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(200))
        assert runtime.locked
        # Only where a consumer kept so much that a batch had to be copied out.
        assert len(pinned) < 20
    gc.collect()
    assert runtime.locked == {}
    assert runtime.most < 40


def test_where_nothing_can_be_locked_a_copy_is_pinned(monkeypatch):
    class Refusing(Counted):
        def cudaHostRegister(self, address: int, size: int, flags: int) -> Any:
            # Nothing is mapped there. The error stays with the thread.
            return self._runtime.cudaHostRegister(4096, 4096, flags)

    monkeypatch.setattr(devices, "_refusal", "")
    refusing = Refusing(torch.cuda.cudart())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refusing)
    graph = IterableWrapper(range(50)).sharding_filter().map(filled).to_device()
    with loader_of(graph, 2) as loader:
        found = [batch.float().mean() for batch in loader]
    assert torch.stack(found).tolist() == list(range(50))
    assert devices._refusal


@both
def test_memory_stays_steady(workers):
    graph = IterableWrapper(range(20)).sharding_filter().map(filled).to_device(ahead=2)
    sizes = []
    with loader_of(graph, workers) as loader:
        for epoch in range(50):
            for batch in loader:
                torch.cuda._sleep(20_000)
                batch.sum()
                del batch
            if epoch in (9, 49):
                torch.cuda.synchronize()
                gc.collect()
                sizes.append((torch.cuda.memory_reserved(), torch.cuda.memory_allocated()))
    assert sizes[1][0] <= sizes[0][0]
    assert sizes[1][1] <= sizes[0][1]


def test_the_gpu_holds_few_batches_however_far_the_program_is_ahead_of_it():
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    with loader_of(IterableWrapper(range(40)).map(filled).to_device(ahead=2), 0) as loader:
        for batch in loader:
            # Nobody waits for the GPU, which takes 5 ms or so for each.
            torch.cuda._sleep(10_000_000)
            batch.sum()
            del batch
    torch.cuda.synchronize()
    # What was given back and is still read counts too, and the sums take a few bytes.
    held = (torch.cuda.memory_stats()["active_bytes.all.peak"] - before) / (4 << 20)
    assert held < 2 + 3 + 0.1


def test_out_of_memory_is_torchs_own_error_and_the_loader_works_afterwards():
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")
    graph = IterableWrapper([1]).map(lambda _: torch.empty(256 << 20, dtype=torch.uint8))
    with loader_of(graph.to_device(), 0) as loader, pytest.raises(torch.OutOfMemoryError):
        next(iter(loader))
    del taken
    torch.cuda.empty_cache()
    check_moved(all_of(loader_of(sharded(COUNT).to_device(), 0), "for"))


# Ends -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("way", ["closed", "left", "cancelled"])
async def test_ending_early_leaves_no_thread_and_the_next_loader_works(way, workers):
    await asyncio.to_thread(torch.cuda.synchronize)
    before = set(threading.enumerate())
    async with loader_of(sharded(400).to_device(), workers) as loader:
        items = aiter(loader)
        first = await anext(items)
        torch.cuda._sleep(20_000_000)
        if way == "closed":
            await items.aclose()
        elif way == "left":
            del items
        else:
            task = asyncio.ensure_future(_all_of(items))
            await asyncio.sleep(0.05)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert is_right(first, 0)
    await asyncio.to_thread(torch.cuda.synchronize)
    for thread in set(threading.enumerate()) - before:
        if "to_device" in thread.name:
            await asyncio.to_thread(thread.join, 5)
            assert not thread.is_alive(), thread.name


async def _all_of(items: Any) -> None:
    async for batch in items:
        batch["tensor"].sum()


@both
def test_a_for_that_breaks_begins_again_at_the_first(workers):
    with loader_of(sharded(50).to_device(), workers) as loader:
        for _ in range(5):
            for number, batch in enumerate(loader):
                assert is_right(batch, number)
                if number == 2:
                    break


# Processes ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_workers_have_no_cuda_though_their_parent_has(method):
    torch.ones(1, device="cuda")
    graph = IterableWrapper(range(8)).sharding_filter().map(has_no_cuda)
    service = MultiProcessingReadingService(2, multiprocessing_context=method)
    with DataLoader2(graph.to_device(), reading_service=service) as loader:
        for _ in range(2):
            batches = list(loader)
            assert len({pid for pid, _, _ in batches}) == 2
            assert not any(is_initialized for _, is_initialized, _ in batches)
            assert [int(tensor[0]) for _, _, tensor in batches] == list(range(8))
            assert all(tensor.is_cuda for _, _, tensor in batches)


def test_a_killed_worker_is_replaced_while_copies_run():
    graph = IterableWrapper(range(60)).sharding_filter().map(has_no_cuda).to_device()
    service = MultiProcessingReadingService(2, on_worker_death="restart")
    with DataLoader2(graph, reading_service=service) as loader:
        found = []
        for at, (pid, is_initialized, tensor) in enumerate(loader):
            if at == 5:
                os.kill(pid, signal.SIGKILL)
            assert not is_initialized
            found.append(tensor.mean())
    assert torch.stack(found).tolist() == list(range(60))


# Devices --------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_an_error_before_the_first_item():
    with pytest.raises(RuntimeError, match="found no such device here"):
        next(iter(IterableWrapper([1]).to_device("cuda:99")))
    # It leaves no error behind for the next kernel.
    assert torch.ones(1, device="cuda").sum() == 1


def test_without_a_number_it_is_the_gpu_of_the_consumer():
    assert isinstance(open_device("cuda", 0), CudaDevice)
    assert isinstance(open_device("cpu", 0), PlainDevice)
    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        (tensor,) = all_of(loader_of(IterableWrapper([1]).map(full).to_device(), 0), "for")
        assert tensor.device.index == last
