"""Several streams draw from the global generators without a trace in one another."""

from __future__ import annotations

import random
import sys
from functools import partial
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch

from asyncloader import DataLoader2, MultiProcessingReadingService, SnapshotError
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.generators import PROCESS
from asyncloader.places.checksums import checksum
from asyncloader.places.random_states import RandomStates, SharedGenerators
from asyncloader.places.snapshot import is_tensor, to_text


@pytest.fixture(autouse=True)
def _as_before():
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


def seeding(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def drawn() -> Any:
    return random.random(), random.gauss(), numpy.random.normal(), float(torch.randn(()))


def alone(seed: int, count: int) -> list[Any]:
    seeding(seed)
    return [drawn() for _ in range(count)]


def test_each_stream_draws_as_if_it_were_alone():
    expected = alone(1, 12), alone(2, 12)
    seeding(1)
    generators = SharedGenerators(PROCESS, [partial(seeding, 1), partial(seeding, 2)])
    found: tuple[list[Any], list[Any]] = ([], [])
    for stream in map(int, "001011100101101001101100"):
        generators.turn_to(stream)
        found[stream].append(drawn())
    assert found == expected


def test_a_stream_that_has_drawn_nothing_is_told_apart_from_one_that_has():
    seeding(1)
    generators = SharedGenerators(PROCESS, [partial(seeding, 1), partial(seeding, 2)])
    first = RandomStates(PROCESS)
    generators.turn_to(1)
    second = RandomStates(PROCESS)
    drawn()
    assert second.changed() is not None
    generators.turn_to(0)
    assert first.changed() is None


def test_a_state_with_generators_of_another_release_is_refused_by_name():
    graph = IterableWrapper(range(10))
    service = MultiProcessingReadingService(1)
    with DataLoader2(graph, reading_service=service) as loader:
        next(iter(loader))
        state = loader.state_dict()
    position = state["position"]
    worker = [[0, [], {"numpy": []}], 1]
    place = {
        "in_order": True,
        "runs": [],
        "told": [],
        "taken": 1,
        "turns": [0],
        "workers": [worker],
    }
    position["cursors"] = to_text({"0": place}, "cursors")
    state["checksums"]["position"] = checksum(position)
    with DataLoader2(graph, reading_service=service) as loader:
        with pytest.raises(SnapshotError, match=r"random states of numpy, but"):
            loader.load_state_dict(state)
        assert len(list(loader)) == 10


def test_modules_that_another_thread_is_importing_have_no_states_yet(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "numpy.random", ModuleType("numpy.random"))
    states = RandomStates(PROCESS)
    assert states.changed() is None
    random.random()
    assert list(states.changed() or ()) == ["random"]
    assert not is_tensor(1.0)
