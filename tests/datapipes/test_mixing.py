from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper, SampleMultiplexer
from asyncloader.graph import list_dps, replace_dp, traverse_dps
from tests.datapipes.resuming import assert_goes_on, cursors_along, rest_of
from tests.datapipes.watched import Watched, WatchedAsync

lengths_and_weights = st.lists(
    st.tuples(st.integers(0, 12), st.floats(0.01, 100)), min_size=1, max_size=4
)


def mixed(settings: list[tuple[int, float]], seed: int | None = None) -> SampleMultiplexer[Any]:
    """Mix sources of items that say where they are from and which they are."""
    return SampleMultiplexer(
        {
            IterableWrapper([(place, n) for n in range(length)]): weight
            for place, (length, weight) in enumerate(settings)
        },
        seed,
    )


@given(lengths_and_weights, st.integers(0, 2**64 - 1))
def test_no_item_is_lost_or_doubled_and_sources_keep_their_order(
    settings: list[tuple[int, float]], seed: int
) -> None:
    pipe = mixed(settings)
    items = list(pipe.set_seed(seed))

    for place, (length, _) in enumerate(settings):
        assert [n for source, n in items if source == place] == list(range(length))
    assert len(pipe) == len(items)
    assert list(pipe.set_seed(seed)) == items


@pytest.mark.soak
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.integers(0, 2**64 - 1))
def test_sources_come_as_often_as_their_weights_say(one: float, other: float, seed: int) -> None:
    drawn = 1000
    pipe = SampleMultiplexer(
        {IterableWrapper(["one"]).cycle(): one, IterableWrapper(["other"]).cycle(): other}
    )
    counts = Counter(pipe.set_seed(seed).header(drawn))

    share = one / (one + other)
    # Six standard deviations: not once in all the years that these tests will run.
    allowed = 6 * (drawn * share * (1 - share)) ** 0.5
    assert abs(counts["one"] - drawn * share) <= allowed


def test_a_seed_of_its_own_makes_every_pass_alike() -> None:
    settings = [(20, 1.0), (20, 2.0)]
    pipe = mixed(settings, seed=5)

    assert list(pipe) == list(pipe) == list(pipe.set_seed(7))
    assert list(pipe) != list(mixed(settings, seed=6))


def test_passes_without_a_seed_differ() -> None:
    pipe = mixed([(50, 1.0), (50, 1.0)])

    assert list(pipe) != list(pipe)


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        ({}, ValueError, "at least one source"),
        ({range(3): 0}, ValueError, "finite and above 0, got 0"),
        ({range(3): -1}, ValueError, "finite and above 0, got -1"),
        ({range(3): float("nan")}, ValueError, "finite and above 0, got nan"),
        ({range(3): "3"}, TypeError, "must be a number, got str"),
        ({range(3): True}, TypeError, "must be a number, got bool"),
        ({range(3): 10**400}, ValueError, "is too large"),
        ({3: 1}, TypeError, "got int"),
    ],
)
def test_what_cannot_be_mixed(sources: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SampleMultiplexer(sources)


def test_a_length_needs_the_lengths_of_all() -> None:
    with pytest.raises(TypeError):
        len(SampleMultiplexer({IterableWrapper(n for n in range(3)): 1, IterableWrapper([1]): 1}))


def test_sources_are_closed_on_an_early_break() -> None:
    one, other = Watched(range(9)), Watched(range(9))

    for _ in SampleMultiplexer({one: 1, other: 1}):
        break

    assert (one.open, other.open) == (0, 0)


def test_its_sources_are_found_and_replaced_in_a_graph() -> None:
    one, other, third = (IterableWrapper([n]) for n in range(3))
    pipe = SampleMultiplexer({one: 1, other: 3}, seed=1)

    graph = replace_dp(traverse_dps(pipe), other, third)

    assert set(list_dps(graph)) == {pipe, one, third}
    assert sorted(pipe) == [0, 2]


def test_it_goes_on_from_any_place() -> None:
    def filtered(count: int) -> Any:
        return IterableWrapper(range(count)).filter(lambda n: n % 3 > 0)

    def mix() -> Any:
        sources = {filtered(12): 1, filtered(30): 3, IterableWrapper([]): 2, WatchedAsync("abc"): 1}
        return SampleMultiplexer(sources).set_seed(4)

    assert_goes_on(mix)


def test_a_seed_travels_with_the_place() -> None:
    def mix() -> Any:
        return mixed([(9, 1.0), (9, 2.0)])

    items, along = cursors_along(mix())
    assert rest_of(mix(), 7, along[7]) == items[7:]
