"""What is asked of a GPU's driver for the memory that items are copied from, without a GPU."""

from __future__ import annotations

import gc
import logging
import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from asyncloader.datapipes import devices
from asyncloader.datapipes.devices import PlainDevice, is_page_locked, with_parts_changed
from asyncloader.memory import Segment, mapping_at


class Driver:
    """The two functions of the CUDA runtime, and what they were called with."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.registered: list[tuple[int, int]] = []
        self.unregistered: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.registered.append((address, size))
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        assert mapping_at(address, 1) is None, "nobody finds it any more"
        self.unregistered.append(address)
        return 0

    def cudaGetErrorString(self, code: int) -> str:
        return f"error {code}"


def torch_with(driver: Driver) -> Any:
    """Return what is asked of torch, with another driver."""
    cuda = SimpleNamespace(
        cudart=lambda: driver, current_device=lambda: 0, device=lambda index: nullcontext()
    )

    def zeros(*shape: int, device: str) -> None:
        raise RuntimeError("the error of the call before")

    return SimpleNamespace(cuda=cuda, zeros=zeros)


def attached(size: int = 1 << 20) -> Segment:
    segment = Segment.create(size)
    return Segment.attach(os.dup(segment.take_fd()))


def tensor_in(segment: Segment, offset: int = 0, count: int = 100) -> torch.Tensor:
    return torch.from_numpy(numpy.frombuffer(segment.buffer, numpy.uint8, count, offset))


@pytest.fixture(autouse=True)
def _no_refusal(monkeypatch):
    monkeypatch.setattr(devices, "_refusal", "")


def test_the_memory_of_a_worker_is_page_locked_once_and_as_a_whole():
    driver, segment = Driver(), attached()
    for offset in (0, 5000):
        assert is_page_locked(torch_with(driver), tensor_in(segment, offset))
    assert driver.registered == [(segment.address, 1 << 20)]
    segment.close()


def test_it_is_unlocked_before_it_is_unmapped_when_nothing_refers_to_it():
    driver, segment = Driver(), attached()
    tensor = tensor_in(segment)
    assert is_page_locked(torch_with(driver), tensor)
    address = segment.address
    segment.close()
    gc.collect()
    assert driver.unregistered == []
    del tensor
    gc.collect()
    assert driver.unregistered == [address]


def test_a_forked_child_leaves_it_locked():
    driver, segment = Driver(), attached()
    tensor = tensor_in(segment)
    assert is_page_locked(torch_with(driver), tensor)
    child = os.fork()
    if child == 0:
        segment.close()
        del tensor
        gc.collect()
        os._exit(len(driver.unregistered))
    assert os.waitpid(child, 0)[1] == 0
    segment.close()


def test_other_memory_is_left_as_it_is():
    driver, ours = Driver(), Segment.create(1 << 20)
    for tensor in (torch.ones(5), tensor_in(ours)):
        assert not is_page_locked(torch_with(driver), tensor)
    assert driver.registered == []
    ours.close()


def test_a_refusal_is_logged_once_and_nothing_more_is_tried(caplog):
    driver, segments = Driver(code=2), [attached(), attached()]
    with caplog.at_level(logging.WARNING, "asyncloader"):
        for segment in segments:
            for _ in range(2):
                assert not is_page_locked(torch_with(driver), tensor_in(segment))
    assert len(driver.registered) == 1
    (message,) = caplog.messages
    assert "cannot be page-locked: error 2" in message
    for segment in segments:
        segment.close()
    assert driver.unregistered == []


def test_a_plain_device_has_copied_when_it_says_so():
    item = {"x": torch.arange(3), "y": [torch.ones(2), "text"]}
    copy = PlainDevice(torch.device("cpu")).copy(item)
    assert copy.event.query()
    assert copy.sources == []
    assert copy.item["y"][1] == "text"
    assert torch.equal(copy.item["x"], item["x"])


def test_what_has_the_method_is_not_walked_into():
    class Walked(dict):
        def change(self) -> None: ...

    inner = Walked(a=[1])
    changed = with_parts_changed({"x": inner, "y": (1, [inner])}, "change", len)
    assert changed == {"x": 1, "y": (1, [1])}
