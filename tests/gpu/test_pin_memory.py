"""pin_memory on a machine with a GPU: the pipe and the adapter, in every way a loader runs."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from typing import Any

import pytest
import torch

from asyncloader.adapters import PinMemory
from asyncloader.datapipes.iter import IterableWrapper
from tests.gpu.batches import all_of, full, is_right, loader_of, sharded, tensors_of
from tests.gpu.needs import needs_gpu

pytestmark = needs_gpu

COUNT = 12

GRAPHS = {
    "pipe": lambda: (sharded(COUNT).pin_memory(), None),
    "pipe for a device": lambda: (sharded(COUNT).pin_memory("cuda"), None),
    "adapter": lambda: (sharded(COUNT), PinMemory()),
    "adapter for a device": lambda: (sharded(COUNT), PinMemory(torch.device("cuda", 0))),
}


def check_pinned(batches: list[Any], first: int = 0) -> None:
    assert [batch["number"] for batch in batches] == list(range(first, COUNT))
    for batch in batches:
        assert all(tensor.is_pinned() for tensor in tensors_of(batch))
        assert batch["own"].was_pinned
        assert is_right(batch, batch["number"])


@pytest.mark.parametrize("form", ["for", "async for"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_kind_of_batch_is_pinned(name, workers, form):
    graph, adapter = GRAPHS[name]()
    check_pinned(all_of(loader_of(graph, workers, adapter), form))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_loader_pins(workers):
    loader = loader_of(sharded(COUNT).pin_memory(), workers)
    with loader:
        items = iter(loader)
        assert [batch["number"] for batch in islice(items, 4)] == [0, 1, 2, 3]
        state = loader.state_dict()
    resumed = loader_of(sharded(COUNT).pin_memory(), workers)
    resumed.load_state_dict(state)
    check_pinned(all_of(resumed, "for"), first=4)


def test_copies_run_beside_a_stream_of_the_consumers():
    right = []
    stream = torch.cuda.Stream()
    with (
        loader_of(sharded(COUNT).pin_memory("cuda"), 2) as loader,
        torch.cuda.stream(stream),
    ):
        for number, batch in enumerate(loader):
            torch.cuda._sleep(1_000_000)
            moved = batch["tensor"].to("cuda", non_blocking=True)
            right.append((moved == number).all())
            del batch, moved
    assert torch.stack(right).all()


@pytest.mark.parametrize("workers", [0, 2])
async def test_a_loader_is_left_and_cancelled_while_copies_run(workers):
    graph = sharded(200).pin_memory()
    for _ in range(3):
        async with loader_of(graph, workers) as loader:
            items = aiter(loader)
            moved = (await anext(items))["tensor"].to("cuda", non_blocking=True)
            task = asyncio.ensure_future(_all_of(items))
            await asyncio.sleep(0.02)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert (moved == 0).all()


async def _all_of(items: Any) -> None:
    async for batch in items:
        batch["tensor"].to("cuda", non_blocking=True)


def test_memory_stays_steady():
    with loader_of(sharded(20).pin_memory(), 2) as loader:
        sizes = []
        for epoch in range(30):
            for batch in loader:
                batch["tensor"].to("cuda", non_blocking=True)
            if epoch in (9, 29):
                torch.cuda.synchronize()
                sizes.append((torch.cuda.memory_reserved(), resident()))
    (reserved, host), (reserved_later, host_later) = sizes
    assert reserved_later <= reserved
    assert host_later - host < 64 << 20


def resident() -> int:
    """Return how many bytes of this process are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_tensor_that_is_pinned_is_not_copied_again():
    tensor = full(3).pin_memory()
    (found,) = IterableWrapper([tensor], deepcopy=False).pin_memory()
    assert found.data_ptr() == tensor.data_ptr()
