"""Write two pipes of your own: one that waits for a service, and one that remembers something.

Start:  python examples/custom_pipe.py
Expect: three blocks of eight numbers, which `async for` and `for` make alike; and the last two
        again, by a loader that resumed behind the first.

A pipe that waits is an async generator. A pipe that remembers something has a state, so that it
resumes with what it had left over, and no sentence of before is packed again. Either may stand
before or after any other pipe, in `for` and in `async for`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import field

from asyncloader import DataLoader2, Edge, IterDataPipe, Pipe, State, functional_datapipe


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


class LeftOver(State):
    """The tokens that are in no block yet."""

    tokens: list[int] = field(default_factory=list)


@functional_datapipe("pack")
class Packer(Pipe[list[int]]):
    """Yield blocks of exactly ``size`` tokens, filled with one sentence after the other.

    What does not fill a block at the end is dropped.
    """

    State = LeftOver

    def __init__(self, source: Iterable[list[int]], size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.source = source
        self.size = size

    def run(self, source: Edge[list[int]], state: LeftOver) -> Iterator[list[int]]:
        # A resumed run may have several blocks left of the last sentence.
        yield from self.blocks(state)
        for sentence in source:
            state.tokens += sentence
            yield from self.blocks(state)

    def blocks(self, state: LeftOver) -> Iterator[list[int]]:
        while len(state.tokens) >= self.size:
            block, state.tokens = state.tokens[: self.size], state.tokens[self.size :]
            yield block


async def blocks_by_async_for() -> list[list[int]]:
    # Pages(4).pack(8) is the same; type checkers cannot know the name that a program registers.
    async with DataLoader2(Packer(Pages(4), 8)) as loader:
        return [block async for block in loader]


def blocks_by_for() -> list[list[int]]:
    with DataLoader2(Packer(Pages(4), 8)) as loader:
        return list(loader)


def blocks_behind_the_first() -> list[list[int]]:
    with DataLoader2(Packer(Pages(4), 8)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with DataLoader2(Packer(Pages(4), 8)) as loader:
        loader.load_state_dict(state)
        return list(loader)


if __name__ == "__main__":
    blocks = asyncio.run(blocks_by_async_for())
    print("sentences from a slow service, packed into blocks of 8 tokens:")
    for block in blocks:
        print(block)
    print("the same by `for`:", blocks == blocks_by_for())
    print("what follows the first, after a resume:", blocks_behind_the_first() == blocks[1:])
