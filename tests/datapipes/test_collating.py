"""What ``collate`` makes by default: torch's result, in memory that was given for it."""

from __future__ import annotations

import copy
import pickle
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import Collator, IterableWrapper
from asyncloader.datapipes.mapping import collate_in_own_memory, own_memory

BATCHES: dict[str, list[Any]] = {
    "tensors": [torch.arange(6.0).view(2, 3) + n for n in range(4)],
    "one tensor": [torch.ones(3, dtype=torch.bfloat16)],
    "truths": [torch.tensor([True, False]), torch.tensor([False, False])],
    "without a dimension": [torch.tensor(1), torch.tensor(2)],
    "not contiguous": [torch.arange(12.0).view(3, 4).t(), torch.arange(12.0).view(4, 3)],
    "channels last": [torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)] * 2,
    "conjugated": [torch.tensor([1 + 2j]).conj(), torch.tensor([3 - 1j])],
    "of several kinds": [torch.ones(2), torch.ones(2, dtype=torch.int64)],
    "with gradients": [torch.ones(2, requires_grad=True), torch.ones(2)],
    "without elements": [torch.ones(0, 3), torch.ones(0, 3)],
    "arrays": [np.arange(4, dtype=np.int16), np.arange(4, dtype=np.int16) * 2],
    "numbers": [1, 2, 3],
    "texts": ["a", "b"],
    "nested": [{"x": torch.ones(2) * n, "y": (n, [torch.zeros(1)]), "z": "t"} for n in range(3)],
}


class Memory:
    """Gives memory, and remembers how much."""

    def __init__(self) -> None:
        self.given: list[bytearray] = []

    def __call__(self, nbytes: int) -> memoryview:
        self.given.append(bytearray(nbytes))
        return memoryview(self.given[-1])

    def holds(self, tensor: torch.Tensor) -> bool:
        return any(bytes(tensor.flatten().view(torch.uint8)) == bytes(m) for m in self.given)


def collated(batch: list[Any], memory: Any = own_memory) -> Any:
    pipe: Collator[Any] = Collator(IterableWrapper([batch], deepcopy=False))
    pipe.make_in(memory)
    (made,) = pipe
    return made


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype is other.dtype
        assert one.requires_grad == other.requires_grad
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("memory", [own_memory, Memory()], ids=["own", "given"])
def test_what_is_made_is_what_torch_makes(batch, memory):
    assert_same(collated(batch, memory), default_collate(batch))


def test_tensors_are_stacked_in_memory_that_is_given():
    memory = Memory()
    made = collated(BATCHES["nested"], memory)
    assert [len(given) for given in memory.given] == [24, 12]
    assert memory.holds(made["x"])
    memory.given[0][:4] = bytes(4)
    memory.given[0][8:12] = b"\x00\x00\x80\x40"
    assert made["x"][1].tolist() == [4.0, 1.0]


@pytest.mark.parametrize(
    "name", ["of several kinds", "with gradients", "without elements", "numbers"]
)
def test_what_is_not_plain_memory_is_made_elsewhere(name):
    memory = Memory()
    collated(BATCHES[name], memory)
    assert memory.given == []


def test_a_batch_that_cannot_be_stacked_fails_as_torch_fails():
    with pytest.raises(RuntimeError, match="equal size"):
        collated([torch.ones(2), torch.ones(3)], Memory())


def test_torchs_own_function_is_the_default_and_a_users_is_not():
    memory = Memory()
    for function in (default_collate, lambda batch: default_collate(batch)):
        pipe = IterableWrapper([BATCHES["tensors"]]).collate(function)
        pipe.make_in(memory)
        (made,) = pipe
        assert torch.equal(made, default_collate(BATCHES["tensors"]))
    assert len(memory.given) == 1


def test_only_the_last_pipe_makes_what_is_sent():
    memory = Memory()
    pipe = IterableWrapper([BATCHES["tensors"]]).collate().map(torch.sum)
    pipe.make_in(memory)
    assert list(pipe) == [default_collate(BATCHES["tensors"]).sum()]
    assert memory.given == []


def test_a_users_way_to_collate_tensors_stays(monkeypatch):
    kinds = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(kinds, torch.Tensor, lambda batch, *, collate_fn_map: len(batch))
    assert collated(BATCHES["tensors"], Memory()) == 4


def shared_or_sum(batch: list[Any]) -> tuple[bool, float]:
    made = default_collate(batch)
    return made.is_shared(), float(made.sum())


def test_a_function_that_ends_in_default_collate_makes_no_file_for_each_batch():
    batches = [[torch.ones(2) * n, torch.ones(2)] for n in range(4)]
    graph = IterableWrapper(batches).sharding_filter().collate(shared_or_sum)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert list(loader) == [(False, 2.0 * n + 2) for n in range(4)]


def with_way_of_its_own(batch: list[Any]) -> Any:
    kinds = torch.utils.data._utils.collate.default_collate_fn_map
    kinds[torch.Tensor] = lambda batch, *, collate_fn_map: len(batch)
    return default_collate(batch)


def test_a_users_way_to_collate_tensors_stays_in_a_worker():
    graph = IterableWrapper([BATCHES["tensors"]]).sharding_filter().collate(with_way_of_its_own)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        assert list(loader) == [4]


@pytest.fixture
def own_memory_everywhere(monkeypatch):
    kinds = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(kinds, torch.Tensor, kinds[torch.Tensor])
    collate_in_own_memory()
    assert kinds[torch.Tensor] is not torch.utils.data._utils.collate.collate_tensor_fn


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_default_collate_makes_the_same_in_own_memory(batch, own_memory_everywhere):
    made = default_collate(batch)
    kinds = torch.utils.data._utils.collate.default_collate_fn_map
    kinds[torch.Tensor] = torch.utils.data._utils.collate.collate_tensor_fn
    assert_same(made, default_collate(batch))


def test_what_default_collate_refuses_is_refused_in_own_memory(own_memory_everywhere):
    with pytest.raises(RuntimeError, match="sparse"):
        default_collate([torch.eye(2).to_sparse()] * 2)


def test_own_memory_is_no_users_way_to_collate(own_memory_everywhere):
    memory = Memory()
    assert memory.holds(collated(BATCHES["tensors"], memory))


def test_copies_make_what_they_make_by_themselves():
    pipe = IterableWrapper([BATCHES["tensors"]]).collate()
    for copied in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        memory = Memory()
        copied.make_in(memory)
        list(copied)
        list(pipe)
        assert len(memory.given) == 1


@pytest.mark.parametrize("item", [7, {"x": 1}, None, {3, 4}])
@pytest.mark.parametrize("is_async", [False, True])
async def test_collate_of_single_items_says_to_batch_them(item: Any, is_async: bool) -> None:
    pipe = IterableWrapper([item]).collate()
    says = rf"got a single item of type {type(item).__name__}; put \.batch\(batch_size\) before it"
    with pytest.raises(TypeError, match=says):
        _ = [each async for each in pipe] if is_async else list(pipe)
    with pytest.raises(TypeError, match=says):
        list(IterableWrapper([item]).collate(default_collate))


def test_collate_takes_whatever_torch_takes_as_a_batch() -> None:
    for batch in ([1, 2], (1, 2), np.array([1, 2]), deque([1, 2])):
        (ours,) = IterableWrapper([batch]).collate()
        assert torch.equal(ours, default_collate(batch))
