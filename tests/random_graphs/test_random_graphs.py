"""A hundred random graphs, each run in some of the ways; and what draws, runs and shrinks them.

More of them, in every way: ``python -m tests.random_graphs --count 2000``.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from asyncloader import DataLoader2
from tests.random_graphs.pieces import sources
from tests.random_graphs.promise import NOTHING, SAME_ORDER, promise_of
from tests.random_graphs.recipe import (
    ADAPTERS,
    DATA,
    DIVISIONS,
    JOINS,
    OVER_ONE,
    SAMPLERS,
    SERVICES,
    SHARES,
    SOURCES,
    SPLITS,
    STREAMS,
    Effect,
    Recipe,
    Step,
    drawn,
    smaller,
)
from tests.random_graphs.running import Child, Report, run, shrunk
from tests.random_graphs.ways import AHEAD, KINDS, Way, some_ways

SEEDS = range(100)
LEDGER = Way("ledger", 0, 0)

NUMBERS = Step("IterableWrapper(ids({source}, {count}))", Effect.SOURCE, (), (0,), count=20)
HANGS = Step("{0}.map(lambda _: __import__('threading').Event().wait())", Effect.ONE, (0,), (1,))
LOSES = Step("{0}.filter(lambda number: number != 3)", Effect.ONE, (0,), (1,))
KEEPS = Step("{0}.shuffle()", Effect.MIXED, (1,), (2,))


@pytest.fixture(scope="module")
def report_of(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Report]]:
    """What became of a graph. Those that are asked for run two at a time, while tests wait."""
    asked = [
        item for item in request.session.items if "report_of" in getattr(item, "fixturenames", ())
    ]
    seeds = (item.callspec.params["seed"] for item in asked)
    reports: dict[int, Report] = {}

    def report_of(seed: int) -> Report:
        while seed not in reports:
            report = next(coming)
            reports[report.seed] = report
        return reports[seed]

    with contextlib.closing(run(seeds, some_ways)) as coming:
        yield report_of


@pytest.mark.sweep
@pytest.mark.parametrize("seed", SEEDS)
def test_a_graph_gives_the_same_in_every_way(seed, report_of):
    report = report_of(seed)
    if report.failures:
        pytest.fail(f"{report}\n\nshrunk: {shrunk(report)}", pytrace=False)


def test_a_hundred_graphs_are_run_in_every_way():
    ways = [way for seed in SEEDS for way in some_ways(seed)]
    only_in_workers = ("kill", "threads", "elsewhere", "changes")
    here = {(kind, 0) for kind in KINDS if kind not in only_in_workers}
    assert {(way.kind, way.workers) for way in ways} == here | {
        (kind, workers) for kind in KINDS for workers in (1, 2, 3)
    }
    assert {(way.workers, way.ahead) for way in ways} == {
        (workers, ahead) for workers in range(4) for ahead in AHEAD
    }


def test_every_line_is_drawn():
    def undrawn(text: str) -> str:
        return re.sub(r"\{(n|m|source|count|branches)\}|\b\d+\b", "#", text)

    def is_found(line: str) -> bool:
        drawn_inside = re.split(r"\{(?:data|stream|sampler|name|place)\}", undrawn(line))
        return re.search(".*".join(map(re.escape, drawn_inside)), found) is not None

    recipes = list(map(drawn, range(2000)))
    steps = {step for each in recipes for step in (*each.steps, *each.adapters)}
    found = "\n".join(undrawn(step.text) for step in steps)
    lines = [*OVER_ONE, *SPLITS, *DIVISIONS, *SOURCES, *SHARES, *ADAPTERS]
    parts = [*DATA, *STREAMS, *SAMPLERS]
    assert [line for line in [*(text for text, *_ in lines), *parts] if not is_found(line)] == []
    names = {text.split("(")[0].split(".")[-1] for text, *_ in JOINS}
    assert all(name in found for name in names)
    assert {service for each in recipes for service in each.services} == set(SERVICES)


def test_a_seed_draws_the_same_graph_each_time():
    assert [str(drawn(seed)) for seed in SEEDS] == [str(drawn(seed)) for seed in SEEDS]
    assert len({str(drawn(seed)) for seed in SEEDS}) == len(SEEDS)


def test_of_most_graphs_it_is_known_which_ids_come():
    promises = [promise_of(drawn(seed), 2) for seed in range(500)]
    assert sum(promise.ids is not None for promise in promises) > 300
    assert sum(promise.is_exact for promise in promises) > 100


def test_a_promise_counts_ids_through_branches():
    steps = (
        NUMBERS,
        Step("{0}.fork(2)", Effect.COPIES, (0,), (1, 2)),
        Step("{0}.demux(2, kind)", Effect.KINDS, (1,), (3, 4)),
        Step("{0}.concat({1}, {2})", Effect.CHAINED, (3, 2, 4), (5,)),
    )
    recipe = Recipe(steps)
    with DataLoader2(recipe.made()[0]) as loader:
        assert promise_of(recipe, 0).ids == Counter(sources(list(loader)))
    assert promise_of(recipe, 0).is_exact
    assert not promise_of(Recipe(steps[:3]), 0).is_exact


@pytest.mark.parametrize(
    ("division", "effect", "likeness"),
    [
        # The dealing process runs all up to where the two meet, and the workers what follows.
        (".sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)", "DEAL", NOTHING),
        # Where one of them has to be in the loader's process, so is what follows.
        (".sharding_filter()", "SHARD", SAME_ORDER),
    ],
)
def test_a_promise_knows_where_two_divided_sources_meet(division, effect, likeness):
    source, divide = "IterableWrapper(ids({source}, {count}))", Effect[effect]
    steps = (
        Step(source, Effect.SOURCE, (), (0,), count=20),
        Step("{0}" + division, divide, (0,), (1,)),
        Step("Alone({0})", Effect.LOADER, (1,), (2,)),
        Step(source, Effect.SOURCE, (), (3,), source=1, count=20),
        Step("{0}" + division, divide, (3,), (4,)),
        Step("{0}.concat({1})", Effect.CHAINED, (2, 4), (5,)),
        Step("EveryOther({0})", Effect.PLACED, (5,), (6,), -1),
    )
    assert promise_of(Recipe(steps), 3).likeness == likeness


def test_a_hang_is_a_failure_and_the_next_graph_is_run():
    with Child(limit=2) as child:
        report = child.run(0, Recipe((NUMBERS, HANGS)), [LEDGER, Way("resume", 0, 0)])
        assert [(way, why.split()[0]) for way, why in report.failures] == [(LEDGER, "hangs")]
        assert child.run(1, Recipe((NUMBERS,)), [LEDGER]).equal == 1


def test_a_failure_is_shrunk_to_what_it_takes():
    recipe = Recipe((NUMBERS, LOSES, KEEPS))
    with Child() as child:
        report = child.run(0, recipe, [LEDGER])
    assert "lost [3]" in report.failures[0][1]
    assert str(shrunk(report).recipe).splitlines() == [
        "p0 = IterableWrapper(ids(0, 4))",
        "p1 = p0.filter(lambda number: number != 3)",
    ]


def test_smaller_recipes_are_smaller():
    def size(recipe: Recipe) -> tuple[int, int]:
        lines = (*recipe.steps, *recipe.adapters, *recipe.services)
        return len(lines), sum(step.count for step in recipe.steps)

    for seed in SEEDS:
        assert all(size(less) < size(drawn(seed)) for less in smaller(drawn(seed)))
