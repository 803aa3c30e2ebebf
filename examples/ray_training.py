"""Train a small model from actors of a Ray cluster, and lose a node in mid-epoch.

Start:  python examples/ray_training.py (needs `pip install 'asyncloader[ray]'`)
Expect: two runs, the second with a node lost, that end with the same loss, to the last bit.

The cluster is one on this machine: a head that runs no actors, and three nodes. The model is
trained twice from the same seed, the second time with a node removed in the middle of the epoch.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

from asyncloader import DataLoader2, RayReadingService
from asyncloader.datapipes.iter import IterableWrapper

SAMPLES = 2_000
BATCH = 20


def decode(number: int) -> torch.Tensor:
    """Make a sample, which takes a while."""
    time.sleep(0.003)
    return torch.rand(8, generator=torch.Generator().manual_seed(number))


def make_batch(numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of a batch, and what is to be learned of them."""
    inputs = torch.stack([decode(number) for number in numbers])
    return inputs, inputs.sum(1)


async def train(loader: DataLoader2[Any], lose_node: Callable[[], None] | None = None) -> float:
    """Train for an epoch, in which a node may be lost; return the last loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    loader.seed(42)
    step = 0
    async for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if lose_node is not None and step == 20:
            await asyncio.to_thread(lose_node)
    print(f"{step} batches, {loader.stats().restarts} restarts, loss {loss.item()!r}")
    return loss.item()


async def train_twice(cluster: Cluster) -> None:
    """Train without a loss of a node, and with one, by the same actors."""

    def lose_node() -> None:
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)

    numbers = IterableWrapper(range(SAMPLES)).shuffle().batch(BATCH)
    graph = numbers.sharding_filter().map(make_batch)
    async with DataLoader2(graph, reading_service=RayReadingService(3)) as loader:
        assert await train(loader) == await train(loader, lose_node)
    print("the same loss, to the last bit")


def main() -> None:
    head = {"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(3):
        cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        asyncio.run(train_twice(cluster))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
