"""The benchmarks of many commits, in one file and one picture.

This file is about ``record``: it appends what a run found to ``series.jsonl``, a line for each
commit, says what has become worse than before, and draws ``docs/over-time.svg``. What is kept are
ratios to limits and to torch in the same rounds, since a number stands for the machine that day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import log2
from pathlib import Path
from statistics import median

from tests.benchmarks.comparison import Outcome, is_earlier, is_ours, ratio
from tests.benchmarks.environments import ROOT
from tests.benchmarks.plot import LIMITS, OTHERS, OURS
from tests.benchmarks.report import short

FILE = Path(__file__).parent / "series.jsonl"
PICTURE = ROOT / "docs" / "over-time.svg"

#: Whom ours are put in relation to; only these are measured for the series.
REFERENCE = "torch DataLoader"
#: So many of the last lines of the same machine are what a new one is held to.
BEFORE = 5
#: What is worse by less than this says nothing.
NOTICED = 1.1

#: The least, the median and the most of the ratios of the rounds.
Range = tuple[float, float, float]


@dataclass(frozen=True)
class Ratios:
    """How a case of ours related to another one in a comparison."""

    title: str
    case: str
    to: str
    less_is_better: bool
    range: Range

    @property
    def key(self) -> tuple[str, str, str]:
        return self.title, self.case, self.to

    def times_worse(self, others: Sequence[Ratios]) -> float:
        """Return how many times as bad this is as others; 1.0 where their ranges touch."""
        low, middle, high = self.range
        usual = median(other.range[1] for other in others)
        if self.less_is_better:
            is_apart = low > max(other.range[2] for other in others)
            return middle / usual if is_apart else 1.0
        is_apart = high < min(other.range[0] for other in others)
        return usual / middle if is_apart else 1.0


@dataclass(frozen=True)
class Line:
    """What one commit came to on one machine."""

    when: str
    commit: str
    machine: str
    ratios: list[Ratios]

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Line:
        fields = json.loads(text)
        ratios = [Ratios(**{**each, "range": tuple(each["range"])}) for each in fields["ratios"]]
        return cls(**{**fields, "ratios": ratios})


def read(file: Path = FILE) -> list[Line]:
    """Return the series, the first line first."""
    return [Line.of_text(text) for text in file.read_text().splitlines()] if file.exists() else []


def record(
    facts: Mapping[str, str],
    outcomes: Sequence[Outcome],
    earlier: str = "",
    *,
    file: Path = FILE,
    picture: Path = PICTURE,
) -> Iterator[str]:
    """Append a run to the series; yield in words what is worse than before.

    If the run had the cases of an earlier commit as well, that has a line of its own.
    """
    series = read(file)
    for commit in filter(None, (earlier, facts["commit"])):
        line = _line(facts, commit, outcomes, is_of_earlier=commit == earlier)
        if line.ratios:
            yield from worse(line, series)
            series.append(line)
    file.write_text("".join(f"{line.as_text()}\n" for line in series))
    picture.write_text(svg(series))


def _line(
    facts: Mapping[str, str], commit: str, outcomes: Sequence[Outcome], *, is_of_earlier: bool
) -> Line:
    machine = f"{facts['cores']}, Python {facts['Python']}, torch {facts['torch']}"
    ratios = (each for outcome in outcomes for each in _ratios(outcome, is_of_earlier))
    return Line(facts["when"], commit, machine, list(ratios))


def _ratios(outcome: Outcome, is_of_earlier: bool) -> Iterator[Ratios]:
    comparison, results = outcome.comparison, outcome.results
    for name in filter(is_earlier if is_of_earlier else is_ours, results):
        for other in comparison.against:
            if other not in results:
                continue
            found = ratio(results[name], results[other])
            case = name.removeprefix("earlier ")
            # A rate has what it cost beside it.
            span = float(found.low), float(found.middle), float(found.high)
            yield Ratios(comparison.title, case, other, comparison.less_is_better, span)


def worse(line: Line, series: Iterable[Line]) -> Iterator[str]:
    """Say what is worse in a line than in the last ones of the same machine, beyond noise."""
    before: dict[tuple[str, str, str], list[Ratios]] = {}
    for earlier in series:
        if earlier.machine == line.machine:
            for each in earlier.ratios:
                before.setdefault(each.key, []).append(each)
    for each in line.ratios:
        others = before.get(each.key, [])[-BEFORE:]
        times = each.times_worse(others) if others else 1.0
        if times > NOTICED:
            yield (
                f"{times:.2f} times as bad as before: {each.title}: {each.case}:"
                f" {_words(each)} x {each.to}, before {', '.join(map(_words, others))}"
            )


def _words(ratios: Ratios) -> str:
    low, middle, high = map(short, ratios.range)
    return f"{middle} ({low} - {high})"


# The picture --------------------------------------------------------------------------------------

WIDTH, PANEL, TITLE = 1000, 120, 24
LEFT, RIGHT = 60, 700
COLORS = (OURS, OTHERS, LIMITS, "#0f766e", "#7c3aed", "#be185d")


def svg(series: Sequence[Line]) -> str:
    """Return a panel for each comparison: ours to each reference, commit by commit."""
    titles = list(dict.fromkeys(each.title for line in series for each in line.ratios))
    height = (PANEL + TITLE + 20) * len(titles) + 60
    inside = [
        text
        for number, title in enumerate(titles)
        for text in _panel(series, title, 20 + number * (PANEL + TITLE + 20))
    ]
    inside += _commits(series, height - 50)
    body = "\n".join(inside)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def _panel(series: Sequence[Line], title: str, top: int) -> Iterator[str]:
    best = _best(series, title)
    is_less = any(each.less_is_better for column in best for each in column.values())
    words = f"{title}, {'less' if is_less else 'more'} is better"
    yield _text(10, top + 12, words, "font-weight='bold'")
    ends = [end for column in best for each in column.values() for end in each.range if end > 0]
    low, high = log2(min(ends)) - 0.2, log2(max(ends)) + 0.2

    def height(number: float) -> float:
        return top + TITLE + PANEL * (high - log2(number)) / (high - low)

    for number in (1.0, min(ends), max(ends)):
        # What is hardly another number than 1 would be written over it.
        is_apart = number == 1.0 or abs(log2(number)) > 0.2
        if low <= log2(number) <= high and is_apart:
            y = height(number)
            yield f"<line x1='{LEFT}' y1='{y:.1f}' x2='{RIGHT}' y2='{y:.1f}' stroke='#e2e8f0'/>"
            yield _text(LEFT - 6, y + 4, short(number), "text-anchor='end' fill='#64748b'")
    references = list(dict.fromkeys(name for column in best for name in column))
    for name, color in zip(references, COLORS, strict=False):
        points = [
            (_place(at, len(best)), column[name].range)
            for at, column in enumerate(best)
            if name in column
        ]
        line = " ".join(f"{x:.1f},{height(span[1]):.1f}" for x, span in points)
        yield f"<polyline points='{line}' fill='none' stroke='{color}'/>"
        for x, (least, middle, most) in points:
            yield (
                f"<line x1='{x:.1f}' y1='{height(least):.1f}' x2='{x:.1f}'"
                f" y2='{height(most):.1f}' stroke='{color}' stroke-width='3'/>"
            )
            yield f"<circle cx='{x:.1f}' cy='{height(middle):.1f}' r='4' fill='{color}'/>"
        at = top + TITLE + 10 + 16 * references.index(name)
        said = f"{short(points[-1][1][1])} x {name}"
        yield _text(RIGHT + 14, at, said, f"fill='{color}'")


def _best(series: Sequence[Line], title: str) -> list[dict[str, Ratios]]:
    """Return for each line the best of ours to each reference."""
    columns = []
    for line in series:
        column: dict[str, Ratios] = {}
        for each in line.ratios:
            if each.title != title:
                continue
            known = column.get(each.to)
            sign = -1 if each.less_is_better else 1
            if known is None or sign * each.range[1] > sign * known.range[1]:
                column[each.to] = each
        columns.append(column)
    return columns


def _place(at: int, count: int) -> float:
    return LEFT + (RIGHT - LEFT) * (at + 0.5) / count


def _commits(series: Sequence[Line], top: int) -> Iterator[str]:
    for at, line in enumerate(series):
        x = _place(at, len(series))
        yield _text(x, top, line.commit[:9], "text-anchor='middle' fill='#64748b'")
        yield _text(x, top + 16, line.when[:10], "text-anchor='middle' fill='#64748b'")


def _text(x: float, y: float, words: str, more: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(words)}</text>"
