"""Numbers of the same rounds, put in relation.

This file is about ``Comparison``, ``Target`` and ``Outcome``: the cases that compete, what
was hoped for, and what came out. What counts is the ratio of two cases in the same round;
an absolute number says as much about the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.cases import Case

#: Below this ratio two cases whose ranges overlap are told apart by nothing.
RESOLVED = 1.5

#: The numbers of each case, one for each round.
Results = dict[str, list[float]]


def is_ours(name: str) -> bool:
    return name.startswith("asyncloader")


def is_limit(name: str) -> bool:
    """Whether a case is what no loader could exceed, and so nobody's competitor."""
    return name.startswith("limit")


def is_earlier(name: str) -> bool:
    """Whether a case is an earlier version of ours, measured to see what became of it."""
    return name.startswith("earlier")


def is_peer(name: str) -> bool:
    return not is_ours(name) and not is_limit(name) and not is_earlier(name)


@dataclass(frozen=True)
class Ratio:
    """How two cases relate: the median over the rounds, the range, and whether it is clear."""

    middle: float
    low: float
    high: float
    resolved: bool

    def __str__(self) -> str:
        unclear = "" if self.resolved else " not resolved"
        return f"{self.middle:#.3g} ({self.low:#.3g} - {self.high:#.3g}){unclear}"


def ratio(numbers: Sequence[float], others: Sequence[float]) -> Ratio:
    """Return how ``numbers`` relate to ``others``, round by round."""
    ratios = [one / other for one, other in zip(numbers, others, strict=True)]
    middle = median(ratios)
    overlap = min(numbers) <= max(others) and min(others) <= max(numbers)
    close = 1 / RESOLVED < middle < RESOLVED
    return Ratio(middle, min(ratios), max(ratios), not (overlap and close))


@dataclass(frozen=True)
class Target:
    """What a case should reach: so many times another case, or so much by itself."""

    case: str
    bound: float
    times: str = ""
    at_most: bool = False

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        other = f" x {self.times}" if self.times else ""
        return f"{self.case} {sign} {self.bound:g}{other}"

    def verdict(self, results: Results) -> str:
        """Return "reached" or "missed", or that not all rounds say so."""
        if self.case not in results or (self.times and self.times not in results):
            return "not measured"
        found = results[self.case]
        if self.times:
            others = results[self.times]
            found = [one / other for one, other in zip(found, others, strict=True)]
        good = set(map(self._is_good, found))
        word = "reached" if self._is_good(median(found)) else "missed"
        doubt = "" if len(good) == 1 else ", but not in every round"
        return f"{word}{doubt}: {median(found):.3g}"

    def _is_good(self, number: float) -> bool:
        return number <= self.bound if self.at_most else number >= self.bound


@dataclass(frozen=True)
class Comparison:
    """Cases that do the same work, and whom the others are put in relation to."""

    title: str
    unit: str
    cases: Sequence[Case]
    against: Sequence[str] = ()
    targets: Sequence[Target] = ()
    less_is_better: bool = False

    @property
    def better(self) -> str:
        return "less is better" if self.less_is_better else "more is better"

    def __post_init__(self) -> None:
        names = [case.name for case in self.cases]
        assert len(names) == len(set(names)), f"{self.title}: two cases of one name in {names}"


@dataclass
class Outcome:
    """What a comparison came to: the numbers, and who has none, and why."""

    comparison: Comparison
    results: Results
    without: dict[str, str] = field(default_factory=dict)

    def standing(self) -> str:
        """Return how the best of ours stands to the best of the peers, if there are both."""
        one, other = self.best(is_ours), self.best(is_peer)
        if not one or not other:
            return "nobody to stand beside"
        found = ratio(self.results[one], self.results[other])
        return f"{self._word(found)} the best peer: {one} is {found} x {other}"

    def best(self, is_one: Callable[[str], bool]) -> str:
        """Return the best of some cases, or "" where none of them was measured."""
        choose = min if self.comparison.less_is_better else max
        names = filter(is_one, self.results)
        return choose(names, key=lambda name: median(self.results[name]), default="")

    def _word(self, found: Ratio) -> str:
        if not found.resolved:
            return "not resolved against"
        is_ahead = (found.middle < 1) == self.comparison.less_is_better
        return "ahead of" if is_ahead else "behind"
