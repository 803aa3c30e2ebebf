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

from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    RankError,
    SequentialReadingService,
    SnapshotError,
)
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
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


class ShareOfBatches:
    """Yields every second batch of six keys: the share of one of two data-parallel ranks."""

    def __init__(self, dp_rank: int) -> None:
        self.dp_rank = dp_rank

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]][self.dp_rank :: 2])


@scene
def epochs_of_a_sampler_that_divides(workers: int) -> Any:
    sampler = ShareOfBatches(dist.get_rank() // 2)
    found: list[Any] = []
    for distributed in (mesh()["dp"], False):
        try:
            with DataLoader2.from_dataset(
                range(COUNT), batch_sampler=sampler, num_workers=workers, distributed=distributed
            ) as loader:
                found.append([batch.tolist() for batch in loader])
        except RankError as error:
            found.append(str(error))
    return found


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


def padded_loader(workers: int = 0, **settings: Any) -> DataLoader2[Any]:
    """Return a loader of the 2 x 2 mesh: 23 batches of one, so that one share has one more.

    With two workers, ranks have two in a row: 12 and 11 items too.
    """
    given = {"batch_size": 1, "uneven": "pad", "seed": 3, **settings}
    return loader_in(group_of("mesh"), workers, **given)


@scene
def padded_epochs(workers: int) -> Any:
    with padded_loader(workers) as loader:
        assert len(loader) == COUNT // 2 + 1
        return [[[batch.item(), loader.is_padding] for batch in loader] for _ in range(2)]


@scene
async def padded_epochs_by_async_for(workers: int) -> Any:
    async with padded_loader(workers) as loader:
        return [[[batch.item(), loader.is_padding] async for batch in loader] for _ in range(2)]


def unequal(workers: int, most: int = 7, **settings: Any) -> DataLoader2[Any]:
    """Return a loader of two items on two ranks of the mesh, and of more on the others."""
    count = (2, most)[dist.get_rank() // 2]
    graph = IterableWrapper(range(count)).shuffle().map(wrapped)
    graph = graph.sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
    among_ranks = DistributedReadingService(group=group_of("mesh"), uneven="pad")
    service = SequentialReadingService(among_ranks, MultiProcessingReadingService(workers))
    return DataLoader2(graph, reading_service=service, seed=3, **settings)


def wrapped(number: int) -> dict[str, int]:
    return {"number": number}


@scene
def padded_resumed_at_every_step(workers: int) -> Any:
    """Resume at each step of two epochs, most of the first on two ranks is padding.

    With workers, which take their time to start, at every third.
    """

    def taken(loader: Any, batches: Any) -> list[Any]:
        return [[batch.pop("number"), loader.is_padding] for batch in batches]

    states = []
    with unequal(workers) as loader:
        whole = []
        for _ in range(2):
            for batch in loader:
                whole.append([batch.pop("number"), loader.is_padding])
                states.append(loader.state_dict(include_datapipe=False))
    for step, state in list(enumerate(states, 1))[:: 3 if workers else 1]:
        with unequal(workers) as loader:
            loader.load_state_dict(state)
            again = taken(loader, loader)
            # At its end, an epoch has no more items.
            again += taken(loader, loader) if step <= len(whole) // 2 else []
            at_next = loader.state_dict(include_datapipe=False)["position"]["items"]
        if again != whole[step:] or at_next:
            return step, again, whole[step:]
    return whole


@scene
def padded_and_acknowledged() -> Any:
    """Resume after each number of acknowledged items, where all of an epoch were delivered."""
    states = []
    with unequal(0, acknowledge=True) as loader:
        whole = [[batch.pop("number"), loader.is_padding] for batch in loader]
        for _ in whole:
            states.append(loader.state_dict(include_datapipe=False))
            loader.ack()
    rests = []
    for state in states:
        with unequal(0) as loader:
            loader.load_state_dict(state)
            rests.append([[batch.pop("number"), loader.is_padding] for batch in loader])
    return whole, rests


@scene
def padded_and_empty() -> Any:
    service = DistributedReadingService(group=group_of("mesh"), uneven="pad")
    errors = []
    for count in (1, 0):
        graph = IterableWrapper(range(count)).sharding_filter()
        with DataLoader2(graph, reading_service=service) as loader:
            try:
                errors.append(str(list(loader)))
            except Exception as error:  # noqa: BLE001 - the test looks at it
                errors.append(f"{type(error).__name__}: {error}")
    return errors


@scene
async def padded_before_the_end() -> Any:
    graph = IterableWrapper(range(4)).sharding_filter().fullsync().map(str)
    loader = DataLoader2(graph, reading_service=DistributedReadingService(uneven="pad"))
    try:
        await loader.start()
    except ValueError as error:
        return str(error)
    finally:
        await loader.aclose()


@scene
def padded_states_elsewhere() -> Any:
    """Load a state from within the padding where its rest would not be the same."""
    with padded_loader() as loader:
        for _ in loader:
            if loader.is_padding or dist.get_rank() < 2:
                state = loader.state_dict(include_datapipe=False)
        told: list[Any] = [None] * 4
        dist.all_gather_object(told, state)
        between = loader.state_dict(include_datapipe=False)
    refusals = []
    for group, uneven in (((dist.get_rank(), 4), "pad"), (group_of("mesh"), "drop")):
        loader = loader_in(group, batch_size=1, uneven=uneven)
        for state in ([told[0], told[2]], told[dist.get_rank()]):
            try:
                loader.load_state_dict(state)
            except SnapshotError as error:
                refusals.append(str(error))
    with loader_in((dist.get_rank(), 4), batch_size=1, uneven="pad") as loader:
        loader.load_state_dict(between)
        return refusals, sum(not loader.is_padding for _ in loader)


@scene
def padded_while_one_dies(dies: int) -> Any:
    # More than ranks agree on before the first of them is taken.
    with unequal(0, 5000) as loader:
        try:
            for step, _ in enumerate(loader):
                if step == 3 and dist.get_rank() == dies:
                    os.kill(os.getpid(), signal.SIGKILL)
        except RankError as error:
            return str(error)


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
