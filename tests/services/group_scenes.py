"""What is played on the ranks of a 2 x 2 mesh for ``tests/services/test_groups.py``."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DistributedSampler

from asyncloader import DataLoader2, DistributedReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.processes.ranks import scene

#: Two to a batch, so that one share has six batches, the other five and a half.
COUNT = 23
SETTINGS: dict[str, Any] = {"batch_size": 2, "shuffle": True}


def mesh() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def group_of(kind: str) -> Any:
    if kind == "mesh":
        return mesh()["dp"]
    if kind == "pair":
        return dist.get_rank() // 2, 2
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return groups[dist.get_rank() % 2]


def loader_in(group: Any, workers: int = 0, **settings: Any) -> DataLoader2[Any]:
    return DataLoader2.from_dataset(
        range(COUNT), distributed=group, num_workers=workers, **{**SETTINGS, **settings}
    )


@scene
def epochs_in_group(kind: str, workers: int) -> Any:
    with loader_in(group_of(kind), workers) as loader:
        return [[batch.tolist() for batch in loader] for _ in range(2)]


@scene
async def epochs_by_async_for(workers: int) -> Any:
    async with loader_in(group_of("mesh"), workers) as loader:
        return [[batch.tolist() async for batch in loader] for _ in range(2)]


@scene
def epochs_of_a_sampler() -> Any:
    data = range(COUNT)
    sampler: Any = DistributedSampler(data, num_replicas=2, rank=dist.get_rank() // 2)  # type: ignore[arg-type, var-annotated]
    epochs = []
    with DataLoader2.from_dataset(data, batch_size=2, sampler=sampler) as loader:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append([batch.tolist() for batch in loader])
    return epochs


@scene
def with_a_killed_worker() -> Any:
    with loader_in(group_of("mesh"), 2, on_worker_death="restart") as loader:
        batches = iter(loader)
        begun = [next(batches).tolist()]
        if dist.get_rank() == 1:
            os.kill(loader.stats().workers[0].pid, signal.SIGKILL)
        first = begun + [batch.tolist() for batch in batches]
        return [first, [batch.tolist() for batch in loader]]


@scene
def resumed_in_group(workers: int) -> Any:
    group = group_of("mesh")
    with loader_in(group, workers, seed=5) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        state = loader.state_dict(include_datapipe=False)
        rest = [batch.tolist() for batch in batches]
        following = [batch.tolist() for batch in loader]
    with loader_in(group, workers) as loader:
        loader.load_state_dict(state)
        again = [[batch.tolist() for batch in loader] for _ in range(2)]
    position = state["position"]
    return [rest, following] == again, [position["rank"], position["ranks"]]


@scene
def resumed_in_others() -> Any:
    """Two shares, resumed as four and as one."""
    with loader_in(group_of("mesh")) as loader:
        begun = [batch.tolist() for batch in itertools.islice(loader, 2)]
        state = loader.state_dict(include_datapipe=False)
    told: list[Any] = [None] * 4
    dist.all_gather_object(told, state)
    rests = []
    for group in ((dist.get_rank(), 4), (0, 1)):
        with loader_in(group) as loader:
            loader.load_state_dict([told[0], told[2]])
            rests.append([batch.tolist() for batch in loader])
    return begun, rests


@scene
def empty_shares() -> Any:
    service = DistributedReadingService(group=group_of("mesh"))
    with DataLoader2(IterableWrapper([7]).sharding_filter(), reading_service=service) as loader:
        return [list(loader) for _ in range(2)]


@scene
async def uneven_is_an_error(counts: list[int]) -> Any:
    service = DistributedReadingService(group=group_of("mesh"), uneven="error")
    graph = IterableWrapper(range(counts[dist.get_rank() // 2])).sharding_filter(3)
    taken = []
    async with DataLoader2(graph, reading_service=service) as loader:
        try:
            async for item in loader:
                taken.append(item)  # noqa: PERF401 - those before an error count
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return taken, f"{type(error).__name__}: {error}"
    return taken, ""


@scene
def uneven_data_is_an_error() -> Any:
    with loader_in(group_of("mesh"), batch_size=1, uneven="error") as loader:
        count = 0
        try:
            for _ in loader:
                count += 1
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return count, f"{type(error).__name__}: {error}"


@scene
async def wrong_groups() -> Any:
    """A group without this rank, a mesh of two dimensions, and places that are no division."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    errors = []
    for group in (groups[1 - dist.get_rank() % 2], mesh(), "dp", (2, 2)):
        try:
            DistributedReadingService(group=group)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(f"{type(error).__name__}: {error}")
    for group in ((0, 2), (min(dist.get_rank(), 2), 3), (0, 1 + dist.get_rank() % 2)):
        loader = loader_in(group)
        try:
            await loader.start()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(f"{type(error).__name__}: {error}")
        await loader.aclose()
    return errors


@scene
async def without_an_order() -> Any:
    service = DistributedReadingService(group=group_of("pair"))
    graph = IterableWrapper(range(4)).sharding_filter()
    loader = DataLoader2(graph.thread_map(str, ordered=False), reading_service=service)
    try:
        await loader.start()
    except ValueError as error:
        return str(error)
    finally:
        await loader.aclose()


@scene
async def workers_without_an_order() -> Any:
    errors = []
    for group in (group_of("pair"), True):
        loader = loader_in(group, 2, in_order=False)
        try:
            await loader.start()
            errors.append("")
        except ValueError as error:
            errors.append(str(error))
        finally:
            await loader.aclose()
    return errors


@scene
def seeds_that_differ_in_a_pair() -> Any:
    with loader_in(group_of("mesh"), seed=dist.get_rank()) as loader:
        try:
            asyncio.run(loader.start())
            next(iter(loader))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return f"{type(error).__name__}: {error}"
