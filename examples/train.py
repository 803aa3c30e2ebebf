"""Train a small model with `async for`, while a second task of the same event loop measures it.

Start:  python examples/train.py
Expect: a progress bar, then one line for each of four epochs: the loss falls below 0.01.

Two spirals, one inside the other: which of them does a point lie on? Two worker processes make
the points, and the model learns from batches of them. The second task stands for what else a
program has to do meanwhile: answer requests, or bring new weights somewhere.
"""

import asyncio
import math
import random
import time

import torch
from torch import nn
from tqdm.asyncio import tqdm

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe

SAMPLES = 16_000
BATCH_SIZE = 64
EPOCHS = 4


def spiral_point(number: int) -> tuple[torch.Tensor, int]:
    """Return the point with this number, and the spiral it lies on."""
    chance = random.Random(number)
    spiral, turn = number % 2, chance.random()
    angle = 2.5 * math.pi * turn + math.pi * spiral
    radius = 0.1 + turn + chance.gauss(0, 0.02)
    return torch.tensor([radius * math.cos(angle), radius * math.sin(angle)]), spiral


def new_graph() -> IterDataPipe[list[torch.Tensor]]:
    numbers = IterableWrapper(range(SAMPLES)).shuffle().sharding_filter()
    return numbers.map(spiral_point).batch(BATCH_SIZE).collate()


def new_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def accuracy(model: nn.Module, points: torch.Tensor, spirals: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(points).argmax(dim=1) == spirals).float().mean().item()


async def watch(model: nn.Module, report: list[float]) -> None:
    """Measure the model on points it never learns from, four times a second."""
    unseen = [spiral_point(number) for number in range(SAMPLES, SAMPLES + 500)]
    points = torch.stack([point for point, _ in unseen])
    spirals = torch.tensor([spiral for _, spiral in unseen])
    while True:
        report.append(accuracy(model, points, spirals))
        await asyncio.sleep(0.25)


async def train() -> None:
    # The model is so small that several threads would only wait for one another.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    measured: list[float] = []

    service = MultiProcessingReadingService(num_workers=2)

    async with DataLoader2(new_graph(), reading_service=service) as loader:
        loader.seed(0)
        watcher = asyncio.create_task(watch(model, measured))
        began = time.perf_counter()
        for epoch in range(1, EPOCHS + 1):
            total = 0.0
            # The bar gives way to the line below; where nobody looks, there is none.
            bar = tqdm(loader, desc=f"epoch {epoch}", unit="batch", leave=False, disable=None)
            async for points, spirals in bar:
                loss = nn.functional.cross_entropy(model(points), spirals)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            mean = total / len(loader)
            print(f"epoch {epoch}: mean loss {mean:.4f}, accuracy {measured[-1]:.0%}", flush=True)
        seconds = time.perf_counter() - began
        watcher.cancel()
        await asyncio.wait([watcher])

    rate = EPOCHS * SAMPLES / seconds
    print(f"final loss {mean:.4f} after {EPOCHS} epochs at {rate:,.0f} items/s")


if __name__ == "__main__":
    asyncio.run(train())
