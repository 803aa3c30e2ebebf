"""Cases that take turns.

This file is about ``measure``. Rounds go over all cases of a comparison, so that a machine
that is slow for a while is slow for all of them; every second round goes backwards, so
that nobody always follows the same neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.benchmarks.cases import LIMIT, QUICK_LIMIT, Case, CaseFailed
from tests.benchmarks.comparison import Comparison, Outcome, Results
from tests.benchmarks.sizes import sized

Show = Callable[[str], None]


def measure(comparison: Comparison, rounds: int, only: str, show: Show) -> Outcome:
    """Measure the cases with ``only`` in their names; one that fails is left out, with why."""
    chosen = [case for case in comparison.cases if only in case.name]
    without = {case.name: _needs(case) for case in chosen if not case.is_possible()}
    limit = sized(LIMIT, QUICK_LIMIT)
    results: Results = {case.name: [] for case in chosen if case.is_possible()}
    for number, case in turns([case for case in chosen if case.is_possible()], rounds):
        if case.name in without:
            continue
        show(f"{comparison.title}, round {number + 1} of {rounds}: {case.name}")
        try:
            results[case.name].append(case.measure(limit))
        except CaseFailed as error:
            without[case.name] = f"failed with {error}"
    measured = {name: numbers for name, numbers in results.items() if name not in without}
    return Outcome(comparison, measured, without)


def turns(cases: Sequence[Case], rounds: int) -> Iterator[tuple[int, Case]]:
    """Yield each case once in every round, forwards and backwards in turn."""
    for number in range(rounds):
        for case in reversed(cases) if number % 2 else cases:
            yield number, case


def _needs(case: Case) -> str:
    return f"left out, needs {', '.join(case.missing())}"
