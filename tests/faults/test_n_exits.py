"""Row N13: SystemExit from a function in-process comes to the consumer, and harms nothing else."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from tests.faults.child import play_each
from tests.processes.scripts import run_script

COUNT = 30
ROUNDS = 5


class Exits:
    """A function of a graph that exits at one item, as long as it is armed."""

    def __init__(self) -> None:
        self.is_armed = True

    def __call__(self, number: int) -> int:
        if number == 5 and self.is_armed:
            sys.exit(3)
        return number

    async def later(self, number: int) -> int:
        await asyncio.sleep(0)
        return self(number)


GRAPHS: dict[str, Callable[[Any, Exits], Any]] = {
    "map": lambda pipe, exits: pipe.map(exits),
    "prefetch": lambda pipe, exits: pipe.map(exits).prefetch(3),
    "prefetch of prefetch": lambda pipe, exits: pipe.map(exits).prefetch(3).prefetch(2),
    "thread_map": lambda pipe, exits: pipe.thread_map(exits, concurrency=3),
    "async map": lambda pipe, exits: pipe.map(exits.later),
    "async_map": lambda pipe, exits: pipe.async_map(exits.later, concurrency=3),
    "async_map, ahead": lambda pipe, exits: pipe.async_map(exits.later).prefetch(2),
    "batch": lambda pipe, exits: pipe.prefetch(2).map(exits.later).batch(1, max_wait=60).unbatch(),
}


def loader_of(graph: str, exits: Exits) -> DataLoader2[int]:
    # The loader copies the graph, but not the data in it nor what its functions belong to.
    return DataLoader2(GRAPHS[graph](IterableWrapper(range(COUNT)), exits))


def for_by(graph: str) -> None:
    exits = Exits()
    with loader_of(graph, exits) as loader:
        for _ in range(ROUNDS):
            exits.is_armed = True
            items = iter(loader)
            assert [next(items) for _ in range(5)] == list(range(5))
            for _ in range(2):
                with pytest.raises(SystemExit) as left:
                    next(items)
                assert left.value.code == 3
            exits.is_armed = False
            assert list(loader) == list(range(COUNT))


async def async_for_by(graph: str) -> None:
    exits = Exits()
    async with loader_of(graph, exits) as loader:
        for _ in range(ROUNDS):
            exits.is_armed = True
            items = aiter(loader)
            assert [await anext(items) for _ in range(5)] == list(range(5))
            for _ in range(2):
                with pytest.raises(SystemExit) as left:
                    await anext(items)
                assert left.value.code == 3
            exits.is_armed = False
            assert [item async for item in loader] == list(range(COUNT))


@pytest.mark.parametrize("scene", [for_by, pytest.param(async_for_by, marks=pytest.mark.soak)])
def test_n13_system_exit_comes_and_the_next_epoch_works(scene, tmp_path):
    play_each(tmp_path, scene, [(graph,) for graph in GRAPHS])


def alarms(graph: str, seed: int) -> None:
    """Interrupt the program by alarms, which it survives, on its way to the exit."""
    luck = random.Random(seed)
    exits = Exits()
    met: Counter[str] = Counter()

    def ring(number: int, frame: Any) -> None:
        raise TimeoutError("an alarm")

    signal.signal(signal.SIGALRM, ring)
    with loader_of(graph, exits) as loader:
        for _ in range(20):
            exits.is_armed, has_left = True, False
            while not has_left:
                try:
                    signal.setitimer(signal.ITIMER_REAL, luck.uniform(0.0005, 0.005))
                    try:
                        for _ in loader:
                            pass
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except SystemExit:
                    has_left = True
                    met["exit"] += 1
                except Exception as error:  # noqa: BLE001 - as programs do
                    met[f"{type(error).__name__}: {error}"] += 1
            exits.is_armed = False
            assert list(loader) == list(range(COUNT))
    assert set(met) <= {"exit", "TimeoutError: an alarm"}, met


ALARMS = """
from tests.faults.test_n_exits import alarms

for graph in ("map", "prefetch", "async_map"):
    alarms(graph, {seed})
"""


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
def test_n13_alarms_and_a_broad_except_change_nothing_about_it(seed, tmp_path):
    # What an alarm cuts in two may warn of it, so what is printed is not looked at.
    done = run_script(tmp_path, "import sys; sys.warnoptions.clear()\n" + ALARMS.format(seed=seed))
    assert done.returncode == 0, done.stderr
