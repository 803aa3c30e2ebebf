"""States of ranks that are kept as files resume, on as many ranks, and on none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.before import side
from tests.before.ranks import GRAPHS, MODULE, ON_RANKS, KeptOfRanks, read
from tests.processes.ranks import Company

KEPT = list(read())
#: So many of each run's states are resumed.
EACH = 4
#: After these one-to-one pipes alone follow what divides the items.
ELASTIC = GRAPHS[:3]


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    with Company(MODULE, tmp_path_factory.mktemp("ranks")) as company:
        yield company


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("number", range(len(KEPT)))
def test_states_of_ranks_that_are_kept_resume(company: Company, number: int) -> None:
    kept = KEPT[number]
    for at in random.Random(number).sample(range(len(kept.states)), EACH):
        states = kept.states[at][2]
        form = "async for" if at % 2 else "for"
        found = company.play("resumed", kept.size, kept.graph, kept.service, states, form)
        for rest, expected in zip(found, kept.rests(at), strict=True):
            assert rest[: len(expected)] == expected[: len(rest)], f"{kept.graph}, {at}"


def _on_ranks(graph: str) -> KeptOfRanks:
    chosen = (each for each in KEPT if each.graph == graph and each.service.startswith(ON_RANKS))
    return next(chosen)


def test_a_list_of_kept_states_resumes_without_ranks() -> None:
    graphs = {each.graph for each in KEPT if each.service == ON_RANKS} & set(ELASTIC)
    assert graphs
    for graph in sorted(graphs):
        kept = _on_ranks(graph)
        for at in (0, 2, 5):
            task = {"graph": graph, "service": "InProcessReadingService()"}
            found = side.rest(side.Graphs(), {**task, "state": kept.states[at][2]})["epochs"]
            rests = kept.rests(at)
            for number, epoch in enumerate(found):
                together = Counter(item for rest in rests for item in rest[number])
                assert Counter(epoch) == together
