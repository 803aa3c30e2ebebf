import asyncio
import gc
import os
from collections.abc import Callable

import pytest
import torch

from asyncloader.runtime import new_event_loop
from tests.eyes import PROC
from tests.needs import LOOPS
from tests.transport.channels import channel_pair

torch.set_num_threads(1)  # its own threads spin, and are in the way of everything here


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request):
    """Run a coroutine in a new loop of either kind, which is closed afterwards."""
    factory: Callable = request.param

    def run(coroutine):
        async def bounded():
            async with asyncio.timeout(120):
                return await coroutine

        with asyncio.Runner(loop_factory=factory, debug=True) as runner:
            return runner.run(bounded())

    return run


@pytest.fixture
def pair():
    """Both ends of a channel."""
    ours, theirs = channel_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture(scope="session")
def warm():
    """The first uvloop of a process opens descriptors that stay open."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.to_thread(int))


@pytest.fixture
def leaves_nothing(warm):
    """There are no more descriptors and shared mappings after the test than before."""
    gc.collect()
    descriptors, mappings = kernel_resources()
    yield
    # What a test before this one left to the garbage may go meanwhile.
    left = kernel_resources()
    assert left[0] <= descriptors
    assert left[1] <= mappings


def kernel_resources() -> tuple[int, int]:
    with open(f"{PROC}/self/maps") as maps:
        shared = sum("(deleted)" in line for line in maps)
    return len(os.listdir(f"{PROC}/self/fd")), shared


class Inbox:
    """What a LoopChannel was told, to be awaited."""

    def __init__(self, channel):
        self.channel = channel
        self.frames = []
        self.batches = []
        self.ended = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        channel.attach(asyncio.get_running_loop(), self.on_frames, self.on_closed)

    def on_frames(self, frames):
        self.frames += frames
        self.batches.append(len(frames))
        self._changed.set()

    def on_closed(self, error):
        self.ended.set_result(error)

    async def take(self, count):
        while len(self.frames) < count:
            self._changed.clear()
            await self._changed.wait()
        taken, self.frames = self.frames[:count], self.frames[count:]
        return taken


@pytest.fixture
def inbox():
    return Inbox
