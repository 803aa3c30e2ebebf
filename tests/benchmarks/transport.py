"""How fast the transport is, beside memcpy and torch's DataLoader, in one run.

``python -m tests.benchmarks.transport``: two worker processes send float32 tensors
or small integers to an asyncio loop, with a few frames of credit. Rounds of all
contestants are interleaved; medians, ranges and ratios are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

from asyncloader.memory import Segment
from asyncloader.transport.arena import Arena, ArenaView
from asyncloader.transport.channel import Channel
from asyncloader.transport.codec import Decoder, Encoder
from asyncloader.transport.frame import Frame
from tests.transport.channels import channel_pair

ITEMS, RELEASE, GRANT, STOP = range(4)
WORKERS, CREDITS, GROUP = 2, 4, 64
SLOT_BYTES = 1 << 20


def worker(channel: Channel, make: Callable[[], Iterator[object]], group: int) -> None:
    """Send groups of items for as long as there are credits, until told to stop."""
    torch.set_num_threads(1)
    arena = Arena(1 << 30)
    encoder = Encoder(arena)
    items = make()
    credits = CREDITS
    while True:
        frames = channel.receive_ready() if credits else [channel.receive()]
        for frame in frames:
            if frame.kind == STOP:
                return
            if frame.kind == RELEASE:
                arena.release(struct.unpack(f"<{len(frame.payload) // 4}I", frame.payload))
            else:
                credits += frame.payload[0]
        if credits:
            batch = [next(items) for _ in range(group)]
            encoded = encoder.encode(batch)
            del batch
            channel.send(ITEMS, encoded.parts, encoded.fds)
            credits -= 1


class Source:
    """One worker as the loop sees it."""

    def __init__(self, make: Callable[[], Iterator[object]], group: int) -> None:
        self.ours, theirs = channel_pair()
        self.pid = os.fork()
        if not self.pid:
            self.ours.close()
            with contextlib.suppress(EOFError):
                worker(theirs, make, group)
            os._exit(0)
        theirs.close()
        self.view = ArenaView()
        self.decoder = Decoder(self.view)
        self.frames: list[Frame] = []
        self.arrived = asyncio.Event()
        self.ours.attach(asyncio.get_running_loop(), self.on_frames, self.on_closed)

    def on_frames(self, frames: list[Frame]) -> None:
        self.frames += frames
        self.arrived.set()

    def on_closed(self, error: Exception) -> None:
        self.arrived.set()

    async def next_frame(self) -> list[object]:
        while not self.frames:
            self.arrived.clear()
            await self.arrived.wait()
        frame = self.frames.pop(0)
        items = self.decoder.decode(frame.payload, frame.fds)
        self.ours.send(GRANT, b"\x01")
        return items

    def send_releases(self) -> None:
        released = self.view.take_released()
        if released:
            self.ours.send(RELEASE, struct.pack(f"<{len(released)}I", *released))

    def stop(self) -> None:
        self.ours.send(STOP)
        self.ours.close()
        os.waitpid(self.pid, 0)


async def ours(make: Callable[[], Iterator[object]], group: int, count: int) -> float:
    """Items per second that a consumer gets from two workers, in strict turns."""
    sources = [Source(make, group) for _ in range(WORKERS)]
    for source in sources * 8:
        await source.next_frame()
        source.send_releases()
    seen, start = 0, time.perf_counter()
    while seen < count:
        for source in sources:
            for _item in await source.next_frame():
                seen += 1
            del _item
            source.send_releases()
    spent = time.perf_counter() - start
    for source in sources:
        source.stop()
    return seen / spent


class Endless(IterableDataset[object]):
    def __init__(self, make: Callable[[], Iterator[object]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[object]:
        return self.make()


def dataloader(make: Callable[[], Iterator[object]], count: int) -> float:
    """Items per second of torch's DataLoader with two forked workers."""
    items = iter(DataLoader(Endless(make), num_workers=WORKERS, batch_size=None))
    for _ in range(8):
        next(items)
    start = time.perf_counter()
    for _ in range(count):
        next(items)
    spent = time.perf_counter() - start
    del items
    return count / spent


def memcpy(nbytes: int, count: int) -> float:
    """Copies per second into recycled shared memory."""
    source, segment = torch.ones(nbytes // 4), Segment.create(nbytes)
    start = time.perf_counter()
    for _ in range(count):
        ctypes.memmove(segment.address, source.data_ptr(), nbytes)
    return count / (time.perf_counter() - start)


def tensors(nbytes: int) -> Callable[[], Iterator[object]]:
    def make() -> Iterator[object]:
        while True:
            yield torch.ones(nbytes // 4)

    return make


def integers() -> Iterator[object]:
    number = 0
    while True:
        yield number
        number += 1


def compare(name: str, contestants: dict[str, Callable[[], float]], scale: float, rounds: int):
    """Run everyone ``rounds`` times in turn, and print medians, ranges and ratios."""
    rates: dict[str, list[float]] = {who: [] for who in contestants}
    for _ in range(rounds):
        for who, run in contestants.items():
            rates[who].append(run() * scale)
    peer = statistics.median(rates["DataLoader"])
    for who, found in rates.items():
        middle = statistics.median(found)
        span = f"{min(found):.3g}-{max(found):.3g}"
        print(f"{name:>12} {who:>12} {middle:10.3g}  ({span})  {middle / peer:8.1f} x DataLoader")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, nbytes, count in (
        ("64 KiB GB/s", 64 << 10, 40_000),
        ("4 MiB GB/s", 4 << 20, 3_000),
        ("32 MiB GB/s", 32 << 20, 200),
    ):
        if options.only not in name:
            continue
        make, group = tensors(nbytes), max(1, min(GROUP, SLOT_BYTES // nbytes))
        compare(
            name,
            {
                "asyncloader": lambda m=make, g=group, c=count: asyncio.run(ours(m, g, c)),
                "DataLoader": lambda m=make, c=count: dataloader(m, max(c // 20, 50)),
                "memcpy": lambda n=nbytes, c=count: memcpy(n, c),
            },
            nbytes / 1e9,
            options.rounds,
        )
    if options.only in "ints":
        compare(
            "ints k/s",
            {
                "asyncloader": lambda: asyncio.run(ours(integers, GROUP, 1_000_000)),
                "DataLoader": lambda: dataloader(integers, 20_000),
            },
            1e-3,
            options.rounds,
        )


if __name__ == "__main__":
    main()
