"""What is held while a graph runs in actors: no more than was asked for."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

import ray

import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader import DataLoader2, RayReadingService
from tests.ray.called import distinct
from tests.ray.cluster import NODES, no_actors
from tests.ray.tensors import MIB, large

#: How long Ray may take to use memory, or to free what nobody refers to, and to tell it.
SOME_SECONDS = 30.0
#: After what time each node has told what it uses.
REPORTED_SECONDS = 3.0


def used_mib() -> int:
    """Return how much memory the object stores of all nodes use, as the nodes told last."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return int(total["object_store_memory"] - free["object_store_memory"]) // MIB


def used_at_last() -> int:
    """Return what is used once Ray has freed everything, or has had the time to."""
    end = time.monotonic() + SOME_SECONDS
    while (used := used_mib()) and time.monotonic() < end:
        time.sleep(0.1)
    return used


def most_for(seconds: float) -> int:
    """Return the most that is used within some seconds."""
    most = used_mib()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        most = max(most, used_mib())
    return most


def own_mib() -> int:
    """Return how much memory this process has that it did not map from a file."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) // 1024


def spilled() -> list[str]:
    """Return the names of the files to which objects were moved for lack of memory."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    folders = session.glob("ray_spilled_objects*")
    return [str(file) for folder in folders for file in folder.iterdir()]


@pytest.mark.usefixtures("nodes")
def test_shared_data_is_put_once_for_all_actors_and_gone_when_the_loader_is_closed():
    assert used_at_last() == 0
    graph: Any = mp.SharedSequence(map(distinct, range(32))).to_iter_datapipe().sharding_filter()
    with DataLoader2(graph.map(len), reading_service=RayReadingService(NODES)) as loader:
        assert list(loader) == [MIB] * 32
        end = time.monotonic() + SOME_SECONDS
        while used_mib() < 32 and time.monotonic() < end:
            time.sleep(0.1)
        assert 32 <= most_for(REPORTED_SECONDS) <= 48
    assert used_at_last() == 0


@pytest.mark.usefixtures("nodes")
def test_items_of_32_mib_and_a_slow_consumer_stay_within_the_budget_and_nothing_is_spilled():
    # What other tests have left is being freed.
    assert used_at_last() == 0
    own_before = own_mib()
    graph: Any = it.IterableWrapper(range(16)).sharding_filter().map(large)
    service = RayReadingService(2, prefetch_bytes=64 * MIB)
    most = most_own = most_sent = 0
    with DataLoader2(graph, reading_service=service) as loader:
        for number, item in enumerate(loader):
            assert item.nbytes == 32 * MIB
            assert float(item[-1]) == number
            time.sleep(0.2)
            most = max(most, used_mib())
            most_own = max(most_own, own_mib() - own_before)
            sent = sum(worker.shared_used for worker in loader.stats().workers)
            most_sent = max(most_sent, sent // MIB)
            del item
    gc.collect()
    # What is free again stays in the store until Ray has freed it: one item more for each actor.
    assert most <= 64 + 2 * 32
    assert 32 <= most_sent <= 64
    # Besides what was sent: what is opened, what the consumer waits for and copies on their way.
    # All items would be 512, and those of one actor more than the store of its node.
    assert 32 <= most_own <= 384
    assert spilled() == []
    assert used_at_last() == 0
    no_actors()
