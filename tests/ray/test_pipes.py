"""Every public pipe, and random graphs, yield in actors what they yield in processes and here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, InProcessReadingService, RayReadingService
from asyncloader.datapipes.base import is_map_pipe
from asyncloader.datapipes.running.traits import is_sharding
from asyncloader.graph import breadth_first
from tests.ray.actor_case import reports
from tests.ray.called import with_name
from tests.samples import ITER_PIPES, LAST, MAP_PIPES, graph_with

pytestmark = pytest.mark.usefixtures("nodes")
#: All but those that nothing may follow, or not every pipe.
PIPES = [each for each in (*ITER_PIPES, *MAP_PIPES) if each not in {*LAST, it.Rollout}]


@pytest.fixture(scope="module", autouse=True)
def _in_a_run_of_one_rank() -> Iterator[None]:
    """Be the only rank of a distributed run, which a pipe asks for."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sample(pipe_class: type) -> Any:
    """Return a stream of a pipe's items, each with its name, that every worker has a share of."""
    graph = graph_with(pipe_class)
    graph = graph.to_iter_datapipe() if is_map_pipe(graph) else graph
    if not any(is_sharding(pipe) for pipe in breadth_first(graph)):
        graph = graph.sharding_filter()
    return graph.map(partial(with_name, pipe_class.__name__))


@functools.cache
def epochs_here() -> list[list[Any]]:
    return epochs(InProcessReadingService())


def epochs(service: Any) -> list[list[Any]]:
    graph = it.Concater(*(sample(each) for each in PIPES))
    with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(11)
        return [list(loader) for _ in range(2)]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_pipe_yields_in_actors_what_it_yields_here(workers):
    expected = epochs_here()
    assert {name for name, _ in expected[0]} == {each.__name__ for each in PIPES}
    assert epochs(RayReadingService(workers)) == expected


def test_random_graphs_yield_in_actors_what_they_yield_in_processes_and_here():
    for report in reports(range(3), [2]):
        assert not report.failures, report
