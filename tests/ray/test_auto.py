"""Actors whose number is chosen by measuring: with room in the cluster, and without."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, MultiProcessingReadingService, RayReadingService
from asyncloader.workers.actors.cluster import Room, room_for
from tests.ray.auto import Untuned, change
from tests.ray.called import asleep
from tests.ray.cluster import CPUS, NODES, Nodes, no_actors

pytestmark = pytest.mark.usefixtures("nodes")

SECONDS = 180


def graph(count: int) -> Any:
    return it.IterableWrapper(range(count)).shuffle().sharding_filter().map(asleep)


def loader_of(count: int, service: Any) -> DataLoader2[int]:
    loader: DataLoader2[int] = DataLoader2(graph(count), reading_service=service)
    loader.seed(5)
    return loader


def test_more_actors_are_tried_where_the_consumer_waits_and_the_items_stay_the_same():
    count = 12_000
    with loader_of(count, MultiProcessingReadingService(1)) as loader:
        iterator = iter(loader)
        first = [next(iterator) for _ in range(100)]
    service = RayReadingService("auto", max_workers=6)
    with loader_of(count, service) as loader:
        seen, numbers, begun = [], set(), time.monotonic()
        for item in loader:
            seen.append(item)
            numbers.add(loader.num_workers)
            if len(numbers) > 1 or time.monotonic() - begun > SECONDS:
                break
        assert seen[:100] == first
        assert len(set(seen)) == len(seen)
        assert len(numbers) > 1, loader.stats().choices
        assert min(numbers) >= 1
        assert max(numbers) <= 6
        assert "num_workers=" in loader.stats().choices[0]
    no_actors()


def test_a_number_that_changes_in_an_epoch_changes_no_item_though_there_is_no_room_beside():
    with loader_of(120, MultiProcessingReadingService(0)) as loader:
        first, second = list(loader), list(loader)
    states = {}
    with loader_of(120, Untuned("auto", num_cpus=CPUS, max_workers=NODES)) as loader:
        seen, numbers, wanted = [], [], [1, 2]
        for item in loader:
            seen.append(item)
            if len(seen) % 25 == 0:
                if wanted:
                    change(loader, wanted.pop(0))
                states[len(seen)] = json.dumps(loader.state_dict(include_datapipe=False))
            if not numbers or numbers[-1] != loader.num_workers:
                numbers.append(loader.num_workers)
        assert seen == first
        assert numbers == [3, 1, 2]
        assert list(loader) == second
    no_actors()
    for count, service in ((50, RayReadingService(2)), (75, MultiProcessingReadingService(0))):
        with DataLoader2(graph(120), reading_service=service) as loader:
            loader.load_state_dict(json.loads(states[count]))
            assert list(loader) == first[count:]


class NoRoom(Untuned):
    """Believes that nothing can be started beside what runs, and asks for what cannot be had."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workplace.change_seconds = 3.0

    async def _has_room_beside(self, workers: int) -> bool:
        return False


def test_actors_that_cannot_be_started_leave_as_many_as_before():
    with loader_of(120, MultiProcessingReadingService(0)) as loader:
        items = list(loader)
    with loader_of(120, NoRoom("auto", num_cpus=CPUS, max_workers=2 * NODES)) as loader:
        seen = []
        for item in loader:
            seen.append(item)
            if len(seen) == 25:
                # There are three nodes, and each has room for one.
                change(loader, NODES + 2)
        assert seen == items
        assert loader.num_workers == NODES
    no_actors()


def options(**given: Any) -> dict[str, Any]:
    return {
        "num_cpus": 1,
        "memory": None,
        "resources": None,
        "scheduling_strategy": "SPREAD",
        "runtime_env": None,
        **given,
    }


def room_is(expected: Room, **given: Any) -> None:
    """Fail unless this is the room; the head learns a little later of what is free."""
    end = time.monotonic() + 30
    while (found := room_for(options(**given))) != expected and time.monotonic() < end:
        time.sleep(0.05)
    assert found == expected


def test_the_room_of_a_cluster_is_counted_for_what_an_actor_needs(nodes: Nodes):
    room_is(Room(NODES * CPUS, NODES * CPUS))
    # No actor is on two nodes.
    room_is(Room(NODES, NODES), num_cpus=CPUS - 1)
    room_is(Room(NODES * CPUS, NODES * CPUS), num_cpus=0)
    room_is(Room(0, 0), resources={"ssd": 1})
    there = NodeAffinitySchedulingStrategy(nodes.nodes[0].node_id, soft=False)
    room_is(Room(CPUS, CPUS), scheduling_strategy=there)


def test_the_room_of_a_placement_group_is_its_own():
    group = placement_group([{"CPU": 2}, {"CPU": 1}])
    ray.get(group.ready())
    try:
        within = PlacementGroupSchedulingStrategy(group)
        room_is(Room(3, 3), scheduling_strategy=within)
        one = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
        room_is(Room(1, 1), scheduling_strategy=one)
    finally:
        remove_placement_group(group)
    # What the head knows is what the next test asks it for.
    room_is(Room(NODES * CPUS, NODES * CPUS))
