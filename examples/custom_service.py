"""Write a reading service of your own: a curriculum that grows with each epoch.

Start:  python examples/custom_service.py
Expect: three epochs of words; each epoch has longer words as well.

A reading service says how a graph is run. This one ends the graph with a filter, once, and at
the beginning of each epoch returns a reset function that sets the filter.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    IterDataPipe,
    IterResetFn,
    ReadingServiceInterface,
    SeedGenerator,
    SequentialReadingService,
    unchanged,
)
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.graph import list_dps, traverse_dps

WORDS = ["a", "to", "sea", "wave", "ocean", "harbor", "lantern", "mountain", "direction"]


class AtMost(IterDataPipe[str]):
    """Yield the words of at most ``length`` letters."""

    def __init__(self, source: Iterable[str], length: int) -> None:
        self.source = source
        self.length = length

    def __iter__(self) -> Iterator[str]:
        return (word for word in self.source if len(word) <= self.length)


class Curriculum(ReadingServiceInterface):
    """Begin with short words and let longer ones in, ``step`` letters with each epoch."""

    def __init__(self, start: int, step: int) -> None:
        self.letters = start
        self.step = step

    async def initialize(self, datapipe: Any) -> Any:
        return AtMost(datapipe, self.letters)

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        # The reset may run in another process, so it takes along a number, not the service.
        letters = self.letters

        async def reset(datapipe: Any) -> Any:
            datapipe = await iter_reset_fn(datapipe)
            for pipe in list_dps(traverse_dps(datapipe)):
                if isinstance(pipe, AtMost):
                    pipe.length = letters
            return datapipe

        return reset

    async def finalize_iteration(self) -> None:
        self.letters += self.step


def main() -> None:
    graph = IterableWrapper(WORDS).batch(4).unbatch()
    service = SequentialReadingService(Curriculum(start=3, step=2), InProcessReadingService())
    with DataLoader2(graph, reading_service=service) as loader:
        print("each epoch lets in words that are two letters longer:")
        for epoch in range(1, 4):
            print(f"epoch {epoch}:", *loader)


if __name__ == "__main__":
    main()
