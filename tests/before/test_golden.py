"""States of earlier asyncloaders resume.

All of them: ``python -m tests.before.golden``.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.before import side
from tests.before.golden import FOLDER, Kept, check, read

FILES = sorted(FOLDER.glob("*.xz"))
#: So many of each graph's states are resumed here.
EACH = 3
#: So many graphs are one test.
TOGETHER = 20


@pytest.fixture(autouse=True)
def _quiet(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    """Let graphs warn, as random ones do."""
    yield
    recwarn.clear()


@pytest.fixture(scope="module")
def kept() -> dict[str, list[Kept]]:
    return {file.name: list(read(file)) for file in FILES}


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(40))
@pytest.mark.parametrize("file", [file.name for file in FILES])
def test_states_that_are_kept_resume(file, part, kept):
    for each in kept[file][part * TOGETHER : (part + 1) * TOGETHER]:
        places = range(len(each.states))
        chosen = random.Random(each.graph).sample(places, min(EACH, len(places)))
        with contextlib.closing(side.Graphs()) as graphs:
            assert check(graphs, each, chosen) == len(chosen)


def test_every_kept_graph_is_in_a_test(kept):
    assert all(len(graphs) <= 40 * TOGETHER for graphs in kept.values())
    assert sum(len(each.states) for graphs in kept.values() for each in graphs) > 10_000


def test_a_state_with_another_rest_is_seen(kept):
    each = next(each for each in kept[FILES[0].name] if len(each.epochs[0]) > 5)
    number, step, own = each.states[3]
    shifted = replace(each, states=[(number, step - 1, own)])
    with contextlib.closing(side.Graphs()) as graphs, pytest.raises(AssertionError):
        check(graphs, shifted, [0])
