"""Actors that load for ranks: each rank holds a placement group, as a worker of Ray Train does."""

from __future__ import annotations

import socket
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

import ray

import asyncloader.datapipes.iter as it
from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    RayReadingService,
    SequentialReadingService,
)
from tests.ray.cluster import Nodes

LIMIT = 120.0


def rank_epochs(rank: int, port: int, count: int) -> list[list[Any]]:
    """Load two epochs as one of two ranks."""
    import torch.distributed

    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", address, rank=rank, world_size=2)
    try:
        service = SequentialReadingService(DistributedReadingService(), RayReadingService(2))
        graph: Any = it.IterableWrapper(range(count)).shuffle().sharding_filter().map(str)
        with DataLoader2(graph, reading_service=service) as loader:
            loader.seed(3)
            return [list(loader) for _ in range(2)]
    finally:
        torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_two_ranks_in_placement_groups_that_they_fill_load_with_two_actors_each(nodes: Nodes):
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # The ranks' own CPUs are all of the group: actors that inherit it would wait for ever.
    group = placement_group([{"CPU": 1}] * 2)
    ray.get(group.ready(), timeout=LIMIT)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    run = ray.remote(num_cpus=1, scheduling_strategy=strategy)(rank_epochs)
    port = free_port()
    try:
        # An odd number, so that the shares are uneven.
        ranks = ray.get([run.remote(rank, port, 41) for rank in range(2)], timeout=LIMIT)
    finally:
        remove_placement_group(group)
    for ones, others in zip(*ranks, strict=True):
        assert len(ones) == len(others), "uneven shares are made even"
        items = sorted(map(int, [*ones, *others]))
        assert set(items) <= set(range(41))
        assert len(set(items)) == len(items) >= 40
