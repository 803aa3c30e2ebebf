"""Mix two corpora by weight, pack them into full blocks, and train a small language model.

Start:  python examples/language_model_mixing.py
Expect: about 75 % of the documents are prose, as the weights say, and the loss falls below 1.

Two worker processes draw documents, three of prose for one of code, turn them into tokens and
fill blocks of exactly as many tokens as the model takes: nothing is padding, and a segment
number keeps the model from looking across the border between two documents.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterator

import torch
from torch import nn

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper, SampleMultiplexer

BLOCK_TOKENS = 128
BATCH_SIZE = 16
STEPS = 150
LETTERS = 256


class Prose:
    """Sentences without end; which ones, a number says."""

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count():
            chance = random.Random(number)
            words = chance.choices(["the", "loader", "waits", "for", "no", "one"], k=12)
            yield f"{' '.join(words)}."


class Code:
    """Definitions without end."""

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count():
            yield f"def f{number % 10}(x):\n    return x + {number % 7}\n"


def tokens_of(text: str) -> list[int]:
    """Return a document's tokens: its bytes, and a zero at the end."""
    return [*text.encode(), 0]


def block_of(documents: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of a pack in a row, and for each the number of its document."""
    tokens = torch.tensor(list(itertools.chain(*documents)))
    lengths = torch.tensor([len(document) for document in documents])
    return tokens, torch.arange(len(documents)).repeat_interleave(lengths)


class Bigrams(nn.Module):
    """Guess each token from the two before it."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.before = nn.Embedding(LETTERS, 32), nn.Embedding(LETTERS, 32)
        self.guess = nn.Sequential(nn.ReLU(), nn.Linear(32, LETTERS))

    def loss(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        guesses = self.guess(self.last(tokens[:, 1:-1]) + self.before(tokens[:, :-2]))
        losses = nn.functional.cross_entropy(
            guesses.transpose(1, 2), tokens[:, 2:], reduction="none"
        )
        return losses[segments[:, :-2] == segments[:, 2:]].mean()


async def train() -> None:
    # The model is so small that several threads would only wait for one another.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Bigrams()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    mixed = SampleMultiplexer({IterableWrapper(Prose()): 3, IterableWrapper(Code()): 1})
    documents = mixed.shuffle(buffer_size=1000).sharding_filter().map(tokens_of)
    blocks = documents.pack_sequences(BLOCK_TOKENS, split="always").map(block_of)
    graph = blocks.batch(BATCH_SIZE).collate()
    service = MultiProcessingReadingService(num_workers=2)

    kinds: Counter[str] = Counter()
    async with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(0)
        # The corpora have no end: an epoch is as long as one says.
        batches = aiter(loader)
        batches.limit(STEPS)
        async for tokens, segments in batches:
            assert tokens.shape == segments.shape == (BATCH_SIZE, BLOCK_TOKENS)
            loss = model.loss(tokens, segments)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kinds["prose"] += (tokens == ord(".")).sum().item()
            kinds["code"] += (tokens == ord("(")).sum().item()

    share = kinds["prose"] / kinds.total()
    print(f"of {kinds.total():,} documents {share:.0%} were prose")
    print(f"loss {loss.item():.2f} after {STEPS} steps of {BATCH_SIZE * BLOCK_TOKENS} tokens")


if __name__ == "__main__":
    asyncio.run(train())
