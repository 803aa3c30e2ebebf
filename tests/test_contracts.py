"""What every public pipe, service and adapter promises, each held to by its sample."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import cloudpickle
import pytest
import torch.distributed as dist

import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.base import is_map_pipe
from asyncloader.datapipes.running.cursor_forms import form_of_pipe, no_cursor
from asyncloader.datapipes.running.traits import is_sharding
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import SnapshotError
from asyncloader.graph import breadth_first, copy_graph
from tests.datapipes.resuming import cursors_along
from tests.leaks import leaves_nothing
from tests.samples import (
    ADAPTERS,
    ITER_PIPES,
    MAP_PIPES,
    SERVICES,
    Numbers,
    graph_with,
    public_adapters,
    public_pipes,
    public_services,
)

PIPES = ITER_PIPES | MAP_PIPES
SEED = 11

every_pipe = pytest.mark.parametrize("pipe_class", PIPES, ids=lambda cls: cls.__name__)
every_service = pytest.mark.parametrize("service_class", SERVICES, ids=lambda cls: cls.__name__)
every_adapter = pytest.mark.parametrize("adapter_class", ADAPTERS, ids=lambda cls: cls.__name__)
either_form = pytest.mark.parametrize("form", ["sync", "async"])


@pytest.fixture(scope="module", autouse=True)
def _in_a_run_of_one_rank() -> Iterator[None]:
    """Be the only rank of a distributed run, which a DistributedReadingService asks for."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


async def epochs_of(loader: DataLoader2[Any], form: str, count: int = 2) -> list[list[Any]]:
    """Return the items of a seeded loader's first epochs, and shut it down."""
    loader.seed(SEED)
    if form == "sync":
        return await on_a_thread(lambda: _epochs(loader, count))
    async with loader:
        return [[item async for item in loader] for _ in range(count)]


def _epochs(loader: DataLoader2[Any], count: int) -> list[list[Any]]:
    with loader:
        return [list(loader) for _ in range(count)]


async def on_a_thread(function: Any) -> Any:
    """Call a function where no event loop runs, and wait for it."""
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            loop.call_soon_threadsafe(outcome.set_result, function())
        except BaseException as error:  # noqa: BLE001 - the awaiting test raises it
            loop.call_soon_threadsafe(outcome.set_exception, error)

    threading.Thread(target=run, name="a thread without a loop").start()
    return await outcome


async def expected_of(graph: Any, count: int = 2) -> list[list[Any]]:
    return await epochs_of(DataLoader2(graph), "async", count)


@contextlib.contextmanager
def leaves_nothing_behind() -> Iterator[None]:
    """``leaves_nothing``, for threads that were told to end and may need a moment for it."""
    before = set(threading.enumerate())
    with leaves_nothing():
        yield
        for thread in set(threading.enumerate()) - before:
            thread.join(2)


# Samples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("public", "samples", "table", "line"),
    [
        (public_pipes(it), ITER_PIPES, "ITER_PIPES", "it.{}: lambda numbers: numbers. …,"),
        (public_pipes(mp), PIPES, "MAP_PIPES", "mp.{}: lambda numbers: numbers. …,"),
        (public_services(), SERVICES, "SERVICES", "asyncloader.{0}: lambda: asyncloader.{0}(…),"),
        (public_adapters(), ADAPTERS, "ADAPTERS", "ad.{0}: lambda: ad.{0}(…),"),
    ],
    ids=["iter pipes", "map pipes", "services", "adapters"],
)
def test_every_public_class_has_a_sample(public, samples, table, line):
    names = {cls: name_of(cls) for cls in public if cls not in samples}
    lines = "\n".join(f"    {line.format(name)}" for name in names.values())
    assert not lines, f"add to {table} in tests/samples.py:\n{lines}"


def name_of(cls: type) -> str:
    """Return the name a class is exported under, which a map pipe's own may differ from."""
    exported = (name for name in mp.__all__ if getattr(mp, name) is cls)
    return next(exported, cls.__name__)


@every_pipe
def test_a_sample_has_its_pipe_in_it(pipe_class):
    pipes = breadth_first(graph_with(pipe_class))
    # A splitter's class gives branches, and another class stands in the graph.
    names = [type(pipe).functional_name for pipe in pipes]
    is_there = any(isinstance(pipe, pipe_class) for pipe in pipes)
    assert is_there or pipe_class.functional_name in names


@every_pipe
async def test_a_sample_has_items_to_tell_apart(pipe_class):
    first, second = await expected_of(graph_with(pipe_class))
    assert len(first) >= 4
    assert len(first) == len(second)


# Pipes ----------------------------------------------------------------------------------


@every_pipe
@either_form
async def test_equal_seeds_give_equal_epochs_in_either_form(pipe_class, form):
    expected = await expected_of(graph_with(pipe_class))
    assert await epochs_of(DataLoader2(graph_with(pipe_class)), form) == expected


@every_pipe
async def test_a_length_is_the_number_of_items(pipe_class):
    graph = graph_with(pipe_class)
    ((items, *_)) = await expected_of(graph)
    try:
        length = len(graph)
    except TypeError:
        return  # a pipe that cannot know says so
    assert length == len(items)


@every_pipe
async def test_a_pipe_gives_the_same_by_itself(pipe_class):
    graph = graph_with(pipe_class)
    if any(hasattr(pipe, "set_seed") for pipe in breadth_first(graph)):
        pytest.skip("its order is drawn anew")
    expected, _ = await expected_of(graph)
    assert await on_a_thread(lambda: list(graph)) == expected
    if not is_map_pipe(graph):
        assert [item async for item in graph] == expected


@every_pipe
async def test_a_copy_begins_afresh_and_is_equal(pipe_class):
    graph = graph_with(pipe_class)
    expected = await expected_of(graph)
    begun = await on_a_thread(lambda: _begun(graph))
    for twin in (copy_graph(graph), pickle.loads(cloudpickle.dumps(graph))):
        assert twin is not graph
        assert repr(twin) == repr(graph)
        assert await epochs_of(DataLoader2(twin), "async") == expected
    begun.close()


def _begun(graph: Any) -> Iterator[Any]:
    """Return a generator that has read two items and is still open."""
    items = (item for item in graph)
    next(items)
    next(items)
    return items


@every_pipe
def test_a_cursor_has_a_form(pipe_class):
    # A state is held to the forms when it is loaded: nobody goes on from a cursor without one.
    graph = graph_with(pipe_class)
    pipes = breadth_first(iterable_source(graph))
    for cursors in cursors_along(pipes[0])[1]:
        for number, cursor in cursors.items():
            pipe, where = pipes[number], f"{inspect.getsourcefile(type(pipes[number]))}"
            form = form_of_pipe(pipe)
            assert form is not no_cursor, (
                f"say what is saved, by a class State with the fields {', '.join(cursor)}, and"
                f" name it in {where}, class {type(pipe).__name__}"
            )
            try:
                form(cursor, type(pipe).__name__, lambda number: form_of_pipe(pipes[number]))
            except SnapshotError as error:
                pytest.fail(f"{error}\nmend the annotations of its State, in {where}")


@every_pipe
@either_form
async def test_a_break_closes_the_source(pipe_class, form):
    graph = graph_with(pipe_class)
    sources = [pipe for pipe in breadth_first(graph) if isinstance(pipe, Numbers)]
    if form == "sync":
        await on_a_thread(lambda: _begun(graph).close())
    elif not is_map_pipe(graph):
        async with contextlib.aclosing(aiter(graph)) as items:
            await anext(items)
    gc.collect()
    assert [source.opens.now for source in sources] == [0] * len(sources)


@every_pipe
@either_form
async def test_leaving_a_loader_closes_the_source_and_leaves_nothing(pipe_class, form):
    graph = graph_with(pipe_class)
    sources = [pipe for pipe in breadth_first(graph) if isinstance(pipe, Numbers)]
    with leaves_nothing_behind():
        if form == "sync":
            await on_a_thread(lambda: _two_items(graph))
        else:
            async with DataLoader2(graph) as loader:
                items = aiter(loader)
                await anext(items)
                await anext(items)
            del items, loader
    assert [source.opens.now for source in sources] == [0] * len(sources)


def _two_items(graph: Any) -> None:
    with DataLoader2(graph) as loader:
        list(islice(loader, 2))


@every_pipe
def test_a_name_is_short_and_tells_the_pipe(pipe_class):
    for pipe in breadth_first(graph_with(pipe_class)):
        name = repr(pipe)
        assert (type(pipe).functional_name or type(pipe).__name__) in name or "[" in name
        assert len(name) <= 80
        assert "\n" not in name
        assert " at 0x" not in name


@every_pipe
def test_a_pipe_says_what_it_does(pipe_class):
    text = inspect.getdoc(pipe_class)
    assert text is not None
    assert ">>>" in text, f"{pipe_class.__name__}'s docstring shows no example"


# Services -------------------------------------------------------------------------------


@pytest.mark.sweep
@every_service
@every_pipe
async def test_a_service_hands_out_what_the_graph_yields(service_class, pipe_class):
    first, *expected = await expected_of(sharded(graph_with(pipe_class)), 3)
    service = SERVICES[service_class]()
    loader = DataLoader2(sharded(graph_with(pipe_class)), reading_service=service)
    loader.seed(SEED)
    # One loader for both forms, and for an epoch that is left: a service starts once.
    async with loader:
        assert await anext(aiter(loader)) == first[0]
        in_for = await on_a_thread(lambda: list(loader))
        in_async_for = [item async for item in loader]
    assert [in_for, in_async_for] == expected


def sharded(graph: Any) -> Any:
    """Return a graph whose seeds are shared, so that they are the same in a worker."""
    if is_sharded(graph):
        return graph
    return (graph.to_iter_datapipe() if is_map_pipe(graph) else graph).sharding_filter()


def is_sharded(graph: Any) -> bool:
    return any(is_sharding(pipe) for pipe in breadth_first(graph))


@either_form
@pytest.mark.filterwarnings("ignore:nothing shards the graph")
async def test_every_worker_yields_all_of_a_pipe_that_nothing_shards(form):
    graphs = [named(cls) for cls in PIPES if not is_sharded(graph_with(cls))]
    expected = [item async for item in it.Concater(*graphs)]
    service = MultiProcessingReadingService(2)
    loader = DataLoader2(it.Concater(*graphs), reading_service=service)
    (items,) = await epochs_of(loader, form, 1)
    for worker in range(2):
        assert items[worker::2] == expected


def named(pipe_class: type) -> Any:
    """Return a pipe's sample, whose items come with its name; None for what is drawn anew."""
    graph = graph_with(pipe_class)
    graph = graph.to_iter_datapipe() if is_map_pipe(graph) else graph
    is_drawn = any(hasattr(pipe, "set_seed") for pipe in breadth_first(graph))
    return graph.map(partial(_with_name, pipe_class.__name__, is_drawn))


def _with_name(name: str, is_drawn: bool, item: Any) -> tuple[str, Any]:
    return name, None if is_drawn else item


@every_service
@either_form
async def test_a_service_leaves_nothing(service_class, form):
    async def run() -> None:
        graph = Numbers().shuffle().sharding_filter()
        loader = DataLoader2(graph, reading_service=SERVICES[service_class]())
        assert len(await epochs_of(loader, form)) == 2

    # What one loader starts for all that follow stays: the template of the workers.
    await run()
    with leaves_nothing_behind():
        await run()


@every_service
async def test_a_service_copies_and_pickles(service_class):
    service = SERVICES[service_class]()
    expected = await expected_of(Numbers().shuffle().sharding_filter())
    for twin in (copy.deepcopy(service), pickle.loads(cloudpickle.dumps(service))):
        assert repr(twin) == repr(service)
        loader = DataLoader2(Numbers().shuffle().sharding_filter(), reading_service=twin)
        assert await epochs_of(loader, "async") == expected


@every_service
def test_a_services_arguments_are_its_attributes(service_class):
    service = SERVICES[service_class]()
    for name in inspect.signature(service_class).parameters:
        assert hasattr(service, name)


@every_service
def test_a_services_name_is_short(service_class):
    name = repr(SERVICES[service_class]())
    assert name.startswith(service_class.__name__)
    assert len(name) <= 200
    assert " at 0x" not in name


# Adapters -------------------------------------------------------------------------------


@every_adapter
@either_form
@pytest.mark.filterwarnings("ignore:pin_memory. no accelerator")
async def test_an_adapter_keeps_the_items(adapter_class, form):
    adapter = ADAPTERS[adapter_class]()
    loader = DataLoader2(Numbers().shuffle().map(str), adapter)
    expected = sorted(map(str, Numbers()))
    assert [sorted(items) for items in await epochs_of(loader, form)] == [expected] * 2


@every_adapter
def test_an_adapter_leaves_the_loaders_argument_as_it_was(adapter_class):
    adapter = ADAPTERS[adapter_class]()
    graph = Numbers().shuffle().map(str)
    before = [repr(pipe) for pipe in breadth_first(graph)]
    DataLoader2(graph, adapter)
    assert [repr(pipe) for pipe in breadth_first(graph)] == before


@every_adapter
def test_an_adapter_applied_twice_is_applied_once(adapter_class):
    adapter = ADAPTERS[adapter_class]()
    once = DataLoader2(Numbers().shuffle().map(str), adapter).datapipe
    twice = DataLoader2(Numbers().shuffle().map(str), [adapter, adapter]).datapipe
    assert [repr(pipe) for pipe in breadth_first(twice)] == [
        repr(pipe) for pipe in breadth_first(once)
    ]


@every_adapter
def test_an_adapter_copies_pickles_and_has_a_name(adapter_class):
    adapter = ADAPTERS[adapter_class]()
    for twin in (copy.deepcopy(adapter), pickle.loads(cloudpickle.dumps(adapter))):
        assert repr(twin) == repr(adapter)
    assert repr(adapter).startswith(adapter_class.__name__)
    assert " at 0x" not in repr(adapter)
