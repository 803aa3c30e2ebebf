"""Actors and nodes that are lost at random.

This file is about ``exact_rounds``: epoch after epoch of one loader, in each of which an actor
is killed, or a node with all its actors is removed, and every item has to come once and in order.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, RayReadingService
from tests.ray.cluster import Nodes

ITEMS = 600


def slow(number: int) -> int:
    time.sleep(0.002)
    return number


def numbers(count: int) -> Any:
    return shuffled(count).map(slow)


def shuffled(count: int) -> Any:
    return it.IterableWrapper(range(count)).shuffle().sharding_filter()


def undisturbed(count: int) -> list[int]:
    """Return the numbers in the order of the seed that is used here."""
    with DataLoader2(shuffled(count)) as loader:
        loader.seed(3)
        return list(loader)


def processes(loader: Any) -> list[Any]:
    return [handle.process for handle in loader.reading_service._pool.all_handles]


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)


def node_of(nodes: Nodes, process: Any) -> Any:
    (node,) = (node for node in nodes.nodes if node.node_id[:8] in process.node)
    return node


def exact_rounds(nodes: Nodes, count: int, seed: int) -> Iterator[str]:
    """Lose an actor a round, and in each fourth round a node; say what was lost."""
    luck = random.Random(seed)
    expected = undisturbed(ITEMS)
    service = RayReadingService(2, max_restarts=20)
    with DataLoader2(numbers(ITEMS), reading_service=service) as loader:
        for round_ in range(count):
            loader.seed(3)
            items = iter(loader)
            taken = [next(items) for _ in range(luck.randrange(ITEMS - 100))]
            after = len(taken)
            victim = luck.choice(processes(loader))
            if round_ % 4 == 3:
                what = "node"
                nodes.lose(node_of(nodes, victim).node_id)
            else:
                what = "actor"
                kill(victim)
            begun = time.monotonic()
            taken.append(next(items))
            taken += items
            assert taken == expected, f"round {round_} of seed {seed}"
            took = time.monotonic() - begun
            nodes.fill_up()
            yield f"round {round_}: {what} lost after {after} items, the rest took {took:.1f} s"
