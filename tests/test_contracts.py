"""What every public pipe, service and adapter promises, each held to by its sample."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.base import is_map_pipe
from asyncloader.datapipes.running.cursor_forms import form_of_pipe, no_cursor
from asyncloader.datapipes.running.cursor_history import noting_at_every_item
from asyncloader.datapipes.running.traits import is_random, is_sharding
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import SnapshotError
from asyncloader.graph import breadth_first
from asyncloader.testing import (
    ADAPTER_CHECKS,
    PIPE_CHECKS,
    SERVICE_CHECKS,
    AdapterCase,
    PipeCase,
    ServiceCase,
    a_loader_that_is_left_leaves_nothing,
    a_service_leaves_nothing,
    it_hands_out_what_the_graph_yields,
)
from tests import sample_files as files
from tests.datapipes.resuming import cursors_along
from tests.leaks import leaves_nothing
from tests.samples import (
    ADAPTERS,
    COUNT,
    ITER_PIPES,
    LAST,
    MAP_PIPES,
    SERVICES,
    graph_with,
    public_adapters,
    public_pipes,
    public_services,
)

PIPES = ITER_PIPES | MAP_PIPES

#: What takes long of a pipe's promises: a loader for each of its states, or worker processes.
_SLOW_WORDS = {"resumes", "workers", "threads"}
SLOW = [check for check in PIPE_CHECKS if _SLOW_WORDS & {*check.__name__.split("_")}]
QUICK = [check for check in PIPE_CHECKS if check not in SLOW]

#: A shuffle in front of these is refused.
BEFORE_SHUFFLES = {it.InMemoryCacheHolder, it.RandomSplitter}

#: What reads them asks for the keys of all items, not of a worker's share.
WITH_ALL_KEYS = {it.IterToMapConverter}

#: What others may read beside further sources: results of a rollout go to the loader.
BESIDE_OTHERS = [cls for cls in ITER_PIPES if cls not in LAST | {it.Rollout}]

every_pipe = pytest.mark.parametrize("pipe_class", PIPES, ids=lambda cls: cls.__name__)
every_service = pytest.mark.parametrize("service_class", SERVICES, ids=lambda cls: cls.__name__)
every_adapter = pytest.mark.parametrize("adapter_class", ADAPTERS, ids=lambda cls: cls.__name__)


def each_of(checks: Any) -> Any:
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)


@pytest.fixture(scope="module", autouse=True)
def _in_a_run_of_one_rank() -> Iterator[None]:
    """Be the only rank of a distributed run, which a DistributedReadingService asks for."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@functools.cache
def case_of(pipe_class: type) -> PipeCase:
    """Return the case of a pipe's sample; it keeps what two workers gave."""
    if pipe_class in MAP_PIPES:
        return PipeCase(partial(graph_with, pipe_class))
    # A pipe of files is given the numbers of those that there are.
    is_of_files = ".files." in pipe_class.__module__
    case = PipeCase(
        ITER_PIPES[pipe_class],
        range(files.COUNT if is_of_files else COUNT),
        in_any_order=pipe_class not in BEFORE_SHUFFLES,
        in_workers=pipe_class not in WITH_ALL_KEYS,
    )
    # The sample of a source makes nothing of the pipe that it is given.
    return case if case.reads() else replace(case, make=partial(case.make, None))


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
    # A splitter's function gives branches; its class stands in the graph.
    names = [type(pipe).functional_name for pipe in pipes]
    is_there = any(type(pipe) is pipe_class for pipe in pipes)
    assert is_there or pipe_class.functional_name in names


@every_pipe
def test_a_sample_has_items_to_tell_apart(pipe_class):
    with DataLoader2(graph_with(pipe_class)) as loader:
        first, second = list(loader), list(loader)
    assert len(first) >= 4
    assert len(first) == len(second)


# Pipes ----------------------------------------------------------------------------------


@every_pipe
@each_of(QUICK)
def test_a_pipe_keeps_a_promise(pipe_class, check):
    is_leaving = check is a_loader_that_is_left_leaves_nothing
    with leaves_nothing_behind() if is_leaving else contextlib.nullcontext():
        check(case_of(pipe_class))


@pytest.mark.sweep
@every_pipe
@each_of(SLOW)
def test_a_pipe_resumes_and_runs_in_workers(pipe_class, check):
    check(case_of(pipe_class))


@pytest.mark.sweep
@pytest.mark.parametrize("pipe_class", BESIDE_OTHERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_pipe_resumes_where_its_reader_ended_before_it(pipe_class, place):
    def graph() -> Any:
        few, pipe = it.IterableWrapper(range(3)), graph_with(pipe_class)
        ends = pipe.zip(few) if place == "before" else few.zip(pipe)
        return ends.mux_longest(it.IterableWrapper(range(6)))

    with noting_at_every_item(), DataLoader2(graph(), seed=1) as loader:
        along = [(repr(item), loader.state_dict()) for item in loader]
    items = [item for item, _ in along]
    assert len(items) == 9
    for step, (_, state) in enumerate(along, 1):
        with DataLoader2(graph()) as loader:
            loader.load_state_dict(state)
            assert list(map(repr, loader)) == items[step:]


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
def test_a_pipe_says_what_it_does(pipe_class):
    text = inspect.getdoc(pipe_class)
    assert text is not None
    assert ">>>" in text, f"{pipe_class.__name__}'s docstring shows no example"


# Services -------------------------------------------------------------------------------


@pytest.mark.soak
@every_service
@each_of(SERVICE_CHECKS)
def test_a_service_keeps_a_promise(service_class, check):
    check(ServiceCase(SERVICES[service_class]))


@pytest.mark.sweep
@every_service
@every_pipe
def test_a_service_hands_out_what_the_graph_yields(service_class, pipe_class):
    graph = partial(sharded_sample, pipe_class)
    it_hands_out_what_the_graph_yields(ServiceCase(SERVICES[service_class], graph))


def sharded_sample(pipe_class: type) -> Any:
    """Return a graph whose seeds are shared, so that they are the same in a worker."""
    graph = graph_with(pipe_class)
    if is_sharded(graph):
        return graph
    return iterable_source(graph).sharding_filter()


@pytest.mark.soak
@every_service
def test_a_service_leaves_nothing_of_the_system(service_class):
    case = ServiceCase(SERVICES[service_class])
    # What one loader starts for all that follow stays: the template of the workers.
    a_service_leaves_nothing(case)
    with leaves_nothing_behind():
        a_service_leaves_nothing(case)


def is_sharded(graph: Any) -> bool:
    return any(is_sharding(pipe) for pipe in breadth_first(graph))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:nothing shards the graph")
def test_every_worker_yields_all_of_a_pipe_that_nothing_shards():
    graphs = [named(cls) for cls in PIPES if not is_sharded(graph_with(cls))]
    expected = list(it.Concater(*graphs))
    service = MultiProcessingReadingService(2)
    with DataLoader2(it.Concater(*graphs), reading_service=service) as loader:
        items = list(loader)
    for worker in range(2):
        assert items[worker::2] == expected


def named(pipe_class: type) -> Any:
    """Return a pipe's sample, whose items come with its name; None for what is drawn anew."""
    graph = graph_with(pipe_class)
    graph = graph.to_iter_datapipe() if is_map_pipe(graph) else graph
    is_drawn = any(map(is_random, breadth_first(graph)))
    return graph.map(partial(_with_name, pipe_class.__name__, is_drawn))


def _with_name(name: str, is_drawn: bool, item: Any) -> tuple[str, Any]:
    return name, None if is_drawn else item


# Adapters -------------------------------------------------------------------------------


@every_adapter
@each_of(ADAPTER_CHECKS)
@pytest.mark.filterwarnings("ignore:pin_memory. no accelerator")
def test_an_adapter_keeps_a_promise(adapter_class, check):
    check(AdapterCase(ADAPTERS[adapter_class]))
