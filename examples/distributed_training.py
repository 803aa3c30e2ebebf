"""Train one model on two ranks that do not have the same number of batches.

Start:  torchrun --nproc-per-node=2 examples/distributed_training.py
Expect: 20 steps on each rank in each epoch, and the line that was learnt.

A line is to be learnt from measurements of which some were lost, so that the shares of the
ranks are uneven. DistributedDataParallel waits for every rank in every step and would hang
where one rank has a batch and another has none; the loader ends the epoch on all ranks
after as many batches as the rank with the fewest has.
"""

import asyncio
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from asyncloader.datapipes.iter import IterableWrapper

MEASUREMENTS = 4_000
BATCH_SIZE = 50
EPOCHS = 3


def was_kept(number: int) -> bool:
    """Every fourth measurement was lost, which are all in the share of one rank."""
    return number % 4 != 1


def measure(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a place on the line y = 2x - 1, and how high it was measured to be."""
    chance = random.Random(number)
    place = chance.uniform(-1, 1)
    return torch.tensor([place]), torch.tensor([2 * place - 1 + chance.gauss(0, 0.01)])


async def train() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    # Each rank has every second number, and of those what was kept.
    graph = IterableWrapper(range(MEASUREMENTS)).sharding_filter().filter(was_kept).shuffle()
    service = SequentialReadingService(
        DistributedReadingService(timeout=60), MultiProcessingReadingService(num_workers=1)
    )
    batches = graph.map(measure).batch(BATCH_SIZE).collate()

    async with DataLoader2(batches, reading_service=service) as loader:
        loader.seed(0)
        for _ in range(EPOCHS):
            steps = 0
            async for places, heights in loader:
                loss = nn.functional.mse_loss(model(places), heights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
            all_steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
            dist.all_gather(all_steps, torch.tensor([steps]))
            if dist.get_rank() == 0:
                print(f"steps on each rank: {[int(each) for each in all_steps]}", flush=True)

    slope, height = (parameter.item() for parameter in model.parameters())
    if dist.get_rank() == 0:
        print(f"learnt y = {slope:.1f}x {height:+.1f}", flush=True)


if __name__ == "__main__":
    if not dist.is_torchelastic_launched():
        sys.exit("torchrun starts this on several ranks: see the command at the top of this file")
    dist.init_process_group("gloo")
    try:
        asyncio.run(train())
    finally:
        dist.destroy_process_group()
