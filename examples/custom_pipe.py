"""Write two pipes of your own: one that waits for a service, and one that computes.

Start:  python examples/custom_pipe.py
Expect: three blocks of eight numbers, which `async for` and `for` make alike.

A pipe that computes is a generator, and a pipe that waits is an async generator. Either may
stand before or after any other pipe, in `for` and in `async for`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

from asyncloader import DataLoader2, IterDataPipe, functional_datapipe


class Pages(IterDataPipe[list[int]]):
    """Yield sentences, as lists of token numbers, page by page from a slow service."""

    def __init__(self, count: int) -> None:
        self.count = count

    async def __aiter__(self) -> AsyncIterator[list[int]]:
        for page in range(self.count):
            for sentence in await self.fetch(page):
                yield sentence

    async def fetch(self, page: int) -> list[list[int]]:
        # Stands for a request over the network.
        await asyncio.sleep(0.01)
        return [[page] * (1 + (page + line) % 4) for line in range(3)]


@functional_datapipe("pack")
class Packer(IterDataPipe[list[int]]):
    """Yield blocks of exactly ``size`` tokens, filled with one sentence after the other.

    What does not fill a block at the end is dropped.
    """

    def __init__(self, source: Iterable[list[int]], size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.source = source
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        tokens: list[int] = []
        for sentence in self.source:
            tokens += sentence
            while len(tokens) >= self.size:
                yield tokens[: self.size]
                del tokens[: self.size]


async def blocks_by_async_for() -> list[list[int]]:
    async with DataLoader2(Pages(4).pack(8)) as loader:
        return [block async for block in loader]


def blocks_by_for() -> list[list[int]]:
    with DataLoader2(Pages(4).pack(8)) as loader:
        return list(loader)


if __name__ == "__main__":
    blocks = asyncio.run(blocks_by_async_for())
    print("sentences from a slow service, packed into blocks of 8 tokens:")
    for block in blocks:
        print(block)
    print("the same by `for`:", blocks == blocks_by_for())
