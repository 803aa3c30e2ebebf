"""What is asked of ``RayReadingService`` by its parameters, and what it says of its actors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, RayReadingService
from asyncloader.errors import WorkerTimeout
from tests.ray.called import is_stuck_here, late, texts
from tests.ray.cluster import NODES, Nodes, no_actors

MIB = 1 << 20
LIMIT_SECONDS = 120


def numbers(count: int) -> Any:
    return it.IterableWrapper(range(count)).sharding_filter()


def where(number: int) -> tuple[str, str, dict[str, float]]:
    context = ray.get_runtime_context()
    return os.environ["A_SETTING"], context.get_node_id(), context.get_assigned_resources()


def test_what_is_for_ray_is_given_to_each_actor(nodes: Nodes):
    node_id = nodes.nodes[1].node_id
    service = RayReadingService(
        2,
        num_cpus=1.5,
        memory=64 * MIB,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        runtime_env={"env_vars": {"A_SETTING": "as it was given"}},
    )
    with DataLoader2(numbers(4).map(where), reading_service=service) as loader:
        for setting, node, resources in loader:
            assert setting == "as it was given"
            assert node == node_id
            assert resources["CPU"] == 1.5
            assert resources["memory"] == 64 * MIB
    no_actors()


def test_by_default_actors_take_a_cpu_each_and_are_spread_and_told_by_their_nodes(nodes: Nodes):
    with DataLoader2(numbers(6), reading_service=RayReadingService(NODES)) as loader:
        assert list(loader) == list(range(6))
        told = loader.stats()
        assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"] - NODES
        names = {worker.node for worker in told.workers}
        assert {name[-9:-1] for name in names} == {node.node_id[:8] for node in nodes.nodes}
        assert all(name in str(told) for name in names)
    no_actors()


@pytest.mark.usefixtures("nodes")
def test_functions_and_the_order_that_is_asked_for_are_those_of_processes():
    service = RayReadingService(2, worker_init_fn=texts, in_order=False)
    with DataLoader2(numbers(10).map(late), reading_service=service) as loader:
        items = list(loader)
    assert sorted(items) == [str(number) for number in range(10)]
    assert items[:3] == ["1", "3", "5"]
    no_actors()


@pytest.mark.usefixtures("nodes")
def test_an_actor_that_is_stuck_still_says_where():
    service = RayReadingService(1, timeout=2.0, on_worker_death="raise")
    loader: DataLoader2[int] = DataLoader2(numbers(2).map(is_stuck_here), reading_service=service)
    with loader, pytest.raises(WorkerTimeout) as caught:
        list(loader)
    assert "is_stuck_here" in "".join(caught.value.__notes__)
    no_actors()


def test_a_program_that_has_not_initialized_ray_is_told_how_to():
    script = (
        "from asyncloader import DataLoader2, RayReadingService, WorkerStartupError\n"
        "from asyncloader.datapipes.iter import IterableWrapper\n"
        "graph = IterableWrapper(range(4)).sharding_filter()\n"
        "try:\n"
        "    list(DataLoader2(graph, reading_service=RayReadingService(1)))\n"
        "except WorkerStartupError as error:\n"
        "    print(error)\n"
        "import ray\n"
        "print(ray.is_initialized())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    error, is_initialized = done.stdout.splitlines()
    assert "none is initialized: call ray.init(), or ray.init(address=...)" in error
    assert is_initialized == "False"
