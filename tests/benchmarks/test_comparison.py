"""Numbers are related within a round, and what cannot be told apart is called so."""

import pytest

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Outcome, Target, ratio


def outcome_of(results, less_is_better=False):
    return Outcome(Comparison("title", "s", [], less_is_better=less_is_better), results)


def test_a_ratio_is_that_of_the_same_round():
    # The machine was ten times slower in the second round; the ratio stays.
    found = ratio([300.0, 30.0], [100.0, 10.0])
    assert (found.middle, found.low, found.high) == (3.0, 3.0, 3.0)
    assert found.resolved


def test_overlapping_ranges_that_are_close_are_not_resolved():
    assert not ratio([110.0, 95.0], [100.0, 90.0]).resolved
    assert str(ratio([110.0, 95.0], [100.0, 90.0])).endswith("not resolved")


def test_overlapping_ranges_that_are_far_apart_are_resolved():
    # A machine that slows down makes ranges overlap; twice as fast in every round is clear.
    assert ratio([200.0, 20.0], [100.0, 10.0]).resolved


def test_close_numbers_whose_ranges_do_not_overlap_are_resolved():
    assert ratio([110.0, 111.0], [100.0, 101.0]).resolved


def test_less_than_two_thirds_is_as_clear_as_more_than_one_and_a_half():
    assert ratio([10.0, 100.0], [20.0, 200.0]).resolved
    assert not ratio([7.0, 70.0], [10.0, 100.0]).resolved


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target("one", 2, "two"), "reached: 3"),
        (Target("one", 4, "two"), "missed: 3"),
        (Target("one", 4, "two", at_most=True), "reached: 3"),
        (Target("one", 20), "reached: 30"),
        (Target("one", 29, at_most=True), "missed: 30"),
        (Target("one", 2, "nobody"), "not measured"),
        (Target("nobody", 2, "one"), "not measured"),
    ],
)
def test_targets_are_of_a_case_or_of_a_ratio(target, verdict):
    assert target.verdict({"one": [30.0, 30.0], "two": [10.0, 10.0]}) == verdict


def test_a_target_that_not_every_round_reaches_says_so():
    verdict = Target("one", 10).verdict({"one": [8.0, 11.0, 12.0]})
    assert verdict == "reached, but not in every round: 11"


def test_the_best_of_ours_stands_beside_the_best_peer():
    results = {
        "limit: memcpy": [100.0, 100.0],
        "asyncloader, for": [20.0, 20.0],
        "asyncloader, async for": [30.0, 30.0],
        "slow peer": [5.0, 5.0],
        "quick peer": [10.0, 10.0],
    }
    assert outcome_of(results).standing() == (
        "ahead of the best peer: asyncloader, async for is 3.00 (3.00 - 3.00) x quick peer"
    )


def test_standing_turns_round_where_less_is_better():
    results = {"asyncloader": [30.0], "slow peer": [20.0], "quick peer": [10.0]}
    assert outcome_of(results, less_is_better=True).standing() == (
        "behind the best peer: asyncloader is 3.00 (3.00 - 3.00) x quick peer"
    )


def test_standing_is_not_resolved_where_the_ratio_is_not():
    results = {"asyncloader": [10.0, 12.0], "peer": [11.0, 11.5]}
    assert outcome_of(results).standing().startswith("not resolved against the best peer")


def test_there_is_no_standing_without_peers():
    results = {"asyncloader": [10.0], "limit: memcpy": [11.0]}
    assert outcome_of(results).standing() == "nobody to stand beside"


def test_two_cases_of_a_comparison_have_two_names():
    with pytest.raises(AssertionError, match="two cases of one name"):
        Comparison("title", "s", [Case("x", ratio), Case("x", ratio)])
