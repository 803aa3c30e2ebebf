"""What a graph yields in actors of a cluster: what it yields here."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    RayReadingService,
    SequentialReadingService,
)
from asyncloader.datapipes.iter import SHARDING_PRIORITIES
from asyncloader.errors import PipelineError, WorkerDied, WorkerStartupError
from tests.ray.called import (
    LONG_CALL,
    as_it_is,
    exits,
    fails_at_seven,
    fails_strangely,
    sleeps,
    unpicklable,
)
from tests.ray.cluster import no_actors
from tests.ray.standing_actors import standing_actors
from tests.ray.tensors import tensor
from tests.samples import is_odd, remainder, twice
from tests.standing import standing

pytestmark = pytest.mark.usefixtures("nodes")


def numbers(count: int = 60) -> Any:
    return it.IterableWrapper(range(count))


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


GRAPHS: dict[str, Callable[[], Any]] = {
    "batches": lambda: numbers().shuffle(buffer_size=30).sharding_filter().map(str).batch(3),
    "filtered": lambda: numbers().filter(is_odd).sharding_filter().flatmap(twice),
    "dispatched": lambda: dispatched(numbers().shuffle()).map(remainder),
    "a map": lambda: mp.SequenceWrapper(range(40)).shuffle().sharding_filter().map(str),
    "in the loader": lambda: (
        numbers().sharding_filter().map(str).pin_memory(pin_memory_fn=as_it_is)
    ),
}


def epochs(graph: Any, service: Any, count: int = 2) -> list[list[Any]]:
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
    with loader:
        loader.seed(5)
        return [list(loader) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 2) for name in GRAPHS), ("batches", 1), ("dispatched", 3)]
)
def test_actors_yield_what_as_many_processes_yield(name, workers):
    graph = GRAPHS[name]
    expected = epochs(graph(), MultiProcessingReadingService(workers))
    assert epochs(graph(), RayReadingService(workers)) == expected
    no_actors()


def test_tensors_come_whole_and_may_be_written():
    graph = numbers(12).sharding_filter().map(tensor)
    with DataLoader2(graph, reading_service=RayReadingService(2)) as loader:
        for number, item in enumerate(loader):
            assert torch.equal(item, tensor(number))
            item += 1
            assert float(item[-1]) == number + 1


def test_a_users_error_comes_in_its_place_and_names_the_node():
    graph = numbers(20).sharding_filter().map(fails_at_seven)
    with DataLoader2(graph, reading_service=RayReadingService(2)) as loader:
        taken = []
        with pytest.raises(ValueError, match="seven") as caught:
            taken.extend(loader)
        assert caught.value.args == ("seven", 7)
        (note,) = (note for note in caught.value.__notes__ if "in worker 1 of 2" in note)
        assert "in worker 1 of 2 on node " in note
        # The error has ended the epoch only.
        with pytest.raises(ValueError, match="seven"):
            list(loader)


def test_an_item_that_cannot_be_sent_is_an_error_that_names_its_pipe():
    graph = numbers(8).sharding_filter().map(unpicklable)
    with DataLoader2(graph, reading_service=RayReadingService(2)) as loader:
        taken = []
        with pytest.raises(PipelineError, match="could not be pickled") as caught:
            taken.extend(loader)
        assert "in worker 1 of 2 on node " in "".join(caught.value.__notes__)
        assert taken == [0, 1, 2] or taken == [0, 1]


def test_an_error_that_cannot_travel_is_told():
    graph = numbers(8).sharding_filter().map(fails_strangely)
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=RayReadingService(1))
    with loader, pytest.raises(PipelineError, match="Strange") as caught:
        list(loader)
    assert "in worker 0 of 1 on node " in "".join(caught.value.__notes__)


def test_a_worker_that_exits_is_dead_and_is_told():
    graph = numbers(8).sharding_filter().map(exits)
    service = RayReadingService(1, on_worker_death="raise")
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
    with loader, pytest.raises(WorkerDied, match=r"worker 0 \(pid \d+ on node .*was lost"):
        list(loader)


async def test_async_iteration_yields_the_same_items():
    graph = numbers().sharding_filter().map(str)
    async with DataLoader2(graph, reading_service=RayReadingService(2)) as loader:
        assert [item async for item in loader] == list(map(str, range(60)))


def test_closing_does_not_wait_for_actors_that_are_in_a_long_call():
    graph = numbers(100).sharding_filter().map(sleeps)
    threads = threading.active_count()
    loader: Any = DataLoader2(graph, reading_service=RayReadingService(2))

    async def close_while_they_sleep() -> float:
        async with loader:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await anext(aiter(loader))
            begun = time.monotonic()
        return time.monotonic() - begun

    assert asyncio.run(close_while_they_sleep()) < LONG_CALL / 4
    no_actors()
    assert threading.active_count() <= threads


def test_actors_of_a_loader_that_is_dropped_are_ended_with_a_warning():
    async def begin_and_drop() -> None:
        service = RayReadingService(1)
        loader: Any = DataLoader2(numbers().sharding_filter(), reading_service=service)
        assert await anext(aiter(loader)) == 0

    asyncio.run(begin_and_drop())
    with pytest.warns(ResourceWarning, match="still running"):
        gc.collect()
    no_actors()


def test_there_is_no_room():
    service = RayReadingService(2, resources={"unheard": 1}, start_timeout=2.0)
    with pytest.raises(WorkerStartupError, match=r"did not start in 2 s.*unheard.*CPU"):
        DataLoader2(numbers().sharding_filter(), reading_service=service).__enter__()
    no_actors()


def test_other_versions_are_named(monkeypatch):
    from asyncloader.workers.actors import engine

    here = engine.versions()
    monkeypatch.setattr(engine, "versions", lambda: {**here, "torch": "1.0"})
    with pytest.raises(WorkerStartupError, match=r"has torch .*loader has 1\.0"):
        list(DataLoader2(numbers().sharding_filter(), reading_service=RayReadingService(1)))
    no_actors()


def test_states_move_between_actors_processes_and_here():
    graph = numbers(230).shuffle().sharding_filter().map(str)
    with (
        standing_actors(1) as one,
        standing_actors(2) as two,
        standing_actors(3) as three,
        standing(2) as processes,
    ):
        others = [one, three, processes, InProcessReadingService()]
        pairs = [
            (two, two),
            *((two, other) for other in others),
            *((other, two) for other in others),
        ]
        for (first, second), after in itertools.product(pairs, [0, 1, 110, 229]):
            with DataLoader2(graph, reading_service=first) as loader:
                loader.seed(5)
                items = iter(loader)
                taken = list(itertools.islice(items, after))
                state = loader.state_dict()
                rest = list(items)
            assert len(taken) + len(rest) == 230
            with DataLoader2(graph, reading_service=second) as loader:
                loader.load_state_dict(state)
                assert list(loader) == rest, (first, second, after)


def test_two_services_of_workers_are_refused():
    service = SequentialReadingService(RayReadingService(1), MultiProcessingReadingService(1))
    with pytest.raises(ValueError, match="runs in workers already"):
        list(DataLoader2(numbers().sharding_filter(), reading_service=service))
    no_actors()
