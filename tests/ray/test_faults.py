"""What happens when actors, nodes, the driver or the head are lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, RayReadingService
from asyncloader.errors import WorkerDied
from tests.leaks import descendants
from tests.ray.auto import Untuned, change
from tests.ray.cluster import CPUS, Nodes, no_actors
from tests.ray.kills import exact_rounds, kill, node_of, numbers, processes, undisturbed

#: How long the replacement of a worker may keep the consumer waiting on a busy machine.
LIMIT = 90.0
#: How long anything may take that has to be over at once, on such a machine.
SOON = 10.0


def test_a_killed_actor_is_replaced_and_every_item_comes_once_and_in_order(nodes: Nodes):
    with DataLoader2(numbers(1500), reading_service=RayReadingService(2)) as loader:
        loader.seed(3)
        items = iter(loader)
        taken = [next(items) for _ in range(100)]
        kill(processes(loader)[0])
        taken += items
        assert loader.stats().restarts == 1
    assert taken == undisturbed(1500)
    no_actors()


def test_a_killed_actor_is_told_at_once(nodes: Nodes):
    service = RayReadingService(1, on_worker_death="raise")
    with DataLoader2(numbers(5000), reading_service=service) as loader:
        items = iter(loader)
        next(items)
        begun = time.monotonic()
        kill(processes(loader)[0])
        with pytest.raises(WorkerDied, match=r"worker 0 \(pid \d+ on node "):
            list(items)
        assert time.monotonic() - begun < SOON  # with the items that had arrived


def test_the_workers_of_a_lost_node_are_replaced_on_others(nodes: Nodes):
    with DataLoader2(numbers(1500), reading_service=RayReadingService(3)) as loader:
        loader.seed(3)
        items = iter(loader)
        taken = [next(items) for _ in range(100)]
        lost = node_of(nodes, processes(loader)[0])
        nodes.lose(lost.node_id)
        taken += items
        assert all(lost.node_id[:8] not in process.node for process in processes(loader))
        assert loader.stats().restarts >= 1
    assert taken == undisturbed(1500)
    no_actors()


@contextlib.contextmanager
def crashed(nodes: Nodes, node: Any) -> Iterator[None]:
    """End what manages a node, which Ray notices some seconds later."""
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    try:
        yield
    finally:
        nodes.lose(node.node_id)


def on_half_a_node(**given: Any) -> RayReadingService:
    """Four of its actors have room on two of the three nodes, and are spread over all of them."""
    return RayReadingService(4, num_cpus=CPUS / 2, **given)


def test_actors_that_are_placed_on_a_node_that_was_just_lost_are_placed_again(nodes: Nodes, caplog):
    lost, service = nodes.nodes[0], on_half_a_node()
    with crashed(nodes, lost), DataLoader2(numbers(300), reading_service=service) as loader:
        loader.seed(3)
        assert list(loader) == undisturbed(300)
        assert all(lost.node_id[:8] not in process.node for process in processes(loader))
    assert "was placed on a node that is lost; it is placed again" in caplog.text
    no_actors()


def test_a_replacement_that_is_placed_on_a_node_that_was_just_lost_is_placed_again(nodes: Nodes):
    # Not even one loss in a row is allowed: what never ran is none.
    with DataLoader2(numbers(900), reading_service=on_half_a_node(max_restarts=4)) as loader:
        loader.seed(3)
        items = iter(loader)
        taken = [next(items) for _ in range(100)]
        lost = node_of(nodes, processes(loader)[0])
        with crashed(nodes, lost):
            for process in processes(loader):
                kill(process)
            taken += items
        assert all(lost.node_id[:8] not in process.node for process in processes(loader))
    assert taken == undisturbed(900)
    no_actors()


def test_another_number_of_actors_is_reached_though_a_node_was_just_lost(nodes: Nodes):
    service = Untuned("auto", num_cpus=CPUS / 2, max_workers=4)
    with DataLoader2(numbers(1500), reading_service=service) as loader:
        loader.seed(3)
        items = iter(loader)
        taken = [next(items) for _ in range(100)]
        change(loader, 1)
        taken += slowly(items, until=lambda: loader.num_workers == 1)
        (only,) = processes(loader)
        lost = next(node for node in nodes.nodes if node.node_id[:8] not in only.node)
        with crashed(nodes, lost):
            change(loader, 3)
            taken += slowly(items, until=lambda: loader.num_workers == 3)
        taken += items
    assert taken == undisturbed(1500)
    no_actors()


def slowly(items: Iterator[int], until: Callable[[], bool]) -> Iterator[int]:
    """Yield items, few of them a second, until something is so."""
    end = time.monotonic() + LIMIT
    while not until():
        assert time.monotonic() < end
        yield next(items)
        time.sleep(0.05)


def stop(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def resume(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


def frozen(nodes: Nodes, process: Any) -> list[int]:
    """Return the processes of a node: the one that manages it, and its actors'."""
    raylet = node_of(nodes, process).all_processes["raylet"][0].process.pid
    return [raylet, *descendants(raylet)]


def test_the_workers_of_a_frozen_node_are_replaced_after_the_timeout(nodes: Nodes):
    service = RayReadingService(3, timeout=2.0)
    with DataLoader2(numbers(1500), reading_service=service) as loader:
        loader.seed(3)
        items = iter(loader)
        taken = [next(items) for _ in range(100)]
        victim = processes(loader)[0]
        pids = frozen(nodes, victim)
        stop(pids)
        try:
            taken += items
        finally:
            resume(pids)
        assert loader.stats().restarts >= 1
    assert taken == undisturbed(1500)
    nodes.retire(node_of(nodes, victim).node_id)


def test_random_kills_of_actors_and_nodes_lose_and_double_nothing(nodes: Nodes):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    assert len(list(exact_rounds(nodes, 4, seed))) == 4


DRIVER = """
import logging, sys, time
import ray
from asyncloader import DataLoader2, RayReadingService
import asyncloader.datapipes.iter as it
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
def sleeps(number):
    time.sleep(60)
loader = DataLoader2(
    it.IterableWrapper(range(9)).sharding_filter().map(sleeps),
    reading_service=RayReadingService(2),
)
loader.__enter__()
iter(loader)
pool = loader.reading_service._pool
print(*(handle.process.pid for handle in pool.handles), flush=True)
time.sleep(600)
"""


def test_the_actors_of_a_killed_driver_are_gone_at_once(nodes: Nodes):
    command = [sys.executable, "-c", DRIVER, nodes.cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        driver.kill()
        end = time.monotonic() + SOON
        while any(map(lives, pids)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not any(map(lives, pids))


#: Its own cluster loses its head while an epoch runs, and then an actor.
HEADLESS = """
import json, os, sys, time
from asyncloader import DataLoader2, RayReadingService
from asyncloader.workers.actors import engine
from tests.ray.cluster import Nodes
from tests.ray.kills import kill, numbers, processes
engine._HEAD_SECONDS = 2.0
nodes = Nodes(1)
all_nodes = [*nodes.nodes, nodes.cluster.head_node]
loader = DataLoader2(numbers(5000), reading_service=RayReadingService(2, timeout=5.0))
try:
    loader.__enter__()
    loader.seed(3)
    items = iter(loader)
    taken = [next(items) for _ in range(100)]
    all_nodes.pop().kill_all_processes(check_alive=False, allow_graceful=False)
    taken += [next(items) for _ in range(1000)]
    kill(processes(loader)[0])
    begun = time.monotonic()
    try:
        taken += items
    except Exception as error:
        told, took = f"{type(error).__name__}: {error}", time.monotonic() - begun
    begun = time.monotonic()
    loader.__exit__(None, None, None)
    closing = time.monotonic() - begun
    print(json.dumps([taken, told, took, closing]), flush=True)
finally:
    for node in all_nodes:
        node.kill_all_processes(check_alive=False, allow_graceful=False)
    # Ray would look for its head for a minute.
    os._exit(0)
"""


def test_an_epoch_survives_the_head_and_an_actor_that_is_lost_after_it_is_a_named_error():
    # The items that the other actor sends meanwhile are a part of the time.
    command = [sys.executable, "-c", HEADLESS]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert done.stdout, done.stderr.decode()[-2000:]
    taken, told, took, closing = json.loads(done.stdout.splitlines()[-1])
    assert len(taken) >= 1100
    assert taken == undisturbed(5000)[: len(taken)]
    assert told.startswith("WorkerStartupError: asyncloader worker 0 cannot be started: the head")
    assert took < LIMIT
    assert closing < SOON


class FillsMemory:
    """Doubles; takes memory until it is killed at one item, in the process that is there first."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __call__(self, number: int) -> int:
        if number == 50 and not self._marker.exists():
            self._marker.touch()
            held = []
            for _ in range(3 * SPARE // CHUNK):
                held.append(bytearray(b"x") * CHUNK)
                time.sleep(0.05)
            time.sleep(LIMIT)
            raise AssertionError("Ray's memory monitor did not kill this actor")
        return 2 * number


#: How much of the memory of a node is free, for its monitor. Who else is on this machine takes
#: and frees less in the meantime.
SPARE, CHUNK = 1536 << 20, 64 << 20


def test_an_actor_that_the_memory_monitor_kills_is_replaced_and_every_item_comes_once(
    nodes: Nodes, tmp_path: Path
):
    from ray._private.utils import get_system_memory, get_used_memory

    used, whole = get_used_memory(), get_system_memory()
    if whole - used < 4 * SPARE:
        pytest.skip("needs 6 GiB that are free")
    allowed = (used + SPARE) / whole
    watched = {"RAY_memory_usage_threshold": f"{allowed:.4f}"}
    graph: Any = it.IterableWrapper(range(100)).sharding_filter().map(FillsMemory(tmp_path / "it"))
    service = RayReadingService(1, resources={"roomy": 1})
    added = [nodes.cluster.add_node(num_cpus=1, resources={"roomy": 1}, env_vars=watched)]
    try:
        with DataLoader2(graph, reading_service=service) as loader:
            items = iter(loader)
            taken = [next(items)]
            added.append(nodes.cluster.add_node(num_cpus=1, resources={"roomy": 1}))
            taken += items
            assert loader.stats().restarts >= 1
            assert added[1].node_id[:8] in processes(loader)[0].node
        assert taken == [2 * number for number in range(100)]
        assert (tmp_path / "it").exists()
    finally:
        for node in added:
            nodes.cluster.remove_node(node)
    no_actors()


def lives(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
