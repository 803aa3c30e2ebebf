"""The whole transport between two real processes."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys

import pytest

from asyncloader.errors import TransportError
from asyncloader.transport.arena import ArenaView
from asyncloader.transport.channel import LoopChannel
from asyncloader.transport.codec import Decoder

pytestmark = pytest.mark.usefixtures("leaves_nothing")

ITEMS, RELEASE = 1, 2

WORKER = """
import socket, struct, sys
import numpy
from asyncloader.transport.arena import Arena
from asyncloader.transport.channel import Channel
from asyncloader.transport.codec import Encoder

channel = Channel(socket.socket(fileno=int(sys.argv[1])))
arena = Arena(8 << 20)

def release(frame):
    arena.release(struct.unpack(f"<{len(frame.payload) // 8}Q", frame.payload))

def wait(nbytes):
    release(channel.receive())
    return True

encoder = Encoder(arena, on_full=wait)
for number in range(int(sys.argv[2])):
    for frame in channel.receive_ready():
        release(frame)
    array = numpy.full(50_000 + number % 7 * 10_000, number)
    encoded = encoder.encode([number, {"array": array, "small": array[:3]}])
    channel.send(1, encoded.parts, encoded.fds)
if len(sys.argv) > 3:
    channel.send(1, bytes(1 << 26))
"""


class Loader:
    """The loader's side of one worker process."""

    def __init__(self, inbox, *arguments):
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", WORKER, str(theirs.fileno()), *map(str, arguments)]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self.channel = LoopChannel(ours)
        self.view = ArenaView()
        self.decoder = Decoder(self.view)
        self.inbox = inbox(self.channel)

    async def next_items(self):
        (frame,) = await self.inbox.take(1)
        return self.decoder.decode(frame.payload, frame.fds)

    def send_releases(self):
        released = self.view.take_released()
        if released:
            self.channel.send(RELEASE, struct.pack(f"<{len(released)}Q", *released))

    def close(self):
        self.channel.close()
        self.view.close()
        self.process.wait()


def test_a_thousand_arrays_arrive_in_recycled_memory(run, inbox):
    async def main():
        loader = Loader(inbox, 1000)
        for number in range(1000):
            got, item = await loader.next_items()
            assert got == item["small"][2] == number
            assert item["array"].shape == (50_000 + number % 7 * 10_000,)
            assert item["array"][0] == item["array"][-1] == number
            del item
            loader.send_releases()
        assert isinstance(await loader.inbox.ended, EOFError)
        loader.close()
        assert loader.process.returncode == 0

    run(main())


def test_a_slow_consumer_holds_the_worker_within_its_budget(run, inbox):
    async def main():
        loader = Loader(inbox, 100)
        kept = [await loader.next_items() for _ in range(5)]
        mapped = sum(s.size for s in loader.view._segments.values())
        assert mapped <= 8 << 20
        for number, (got, item) in enumerate(kept):
            assert got == number == item["array"][-1]
        del kept, item
        loader.send_releases()
        for number in range(5, 100):
            got, item = await loader.next_items()
            assert got == number == item["array"][-1]
            del item
            loader.send_releases()
        loader.close()

    run(main())


def test_a_worker_killed_within_a_frame_is_an_end_that_says_so(run, inbox):
    async def main():
        loader = Loader(inbox, 1, "and a large frame")
        # Nothing is read beyond the first frame until the worker is stuck in the second.
        await loader.next_items()
        loader.channel.detach()
        os.kill(loader.process.pid, signal.SIGKILL)
        await asyncio.to_thread(loader.process.wait)
        said = loader.inbox
        loader.channel.attach(asyncio.get_running_loop(), said.on_frames, said.on_closed)
        assert isinstance(await said.ended, (TransportError, EOFError))
        loader.close()

    run(main())
