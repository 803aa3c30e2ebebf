"""One picture of all comparisons, as SVG, drawn without a library.

A panel is a comparison, a line in it a case: a dot at the median, a bar from the least to
the most of its rounds, on a logarithmic scale of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from statistics import median

from tests.benchmarks.comparison import Outcome, is_limit, is_ours
from tests.benchmarks.report import short

WIDTH, NAMES, NUMBERS = 960, 330, 90
LINE, HEAD, FOOT, GAP = 20, 34, 26, 18
LEFT, RIGHT = NAMES + 10, WIDTH - NUMBERS - 10
OURS, OTHERS, LIMITS = "#c2410c", "#475569", "#94a3b8"


def svg(outcomes: Sequence[Outcome]) -> str:
    """Return the picture; comparisons without numbers are not in it."""
    shown = [outcome for outcome in outcomes if outcome.results]
    tops, bottom = _tops(shown)
    panels = [_panel(outcome, top) for outcome, top in zip(shown, tops, strict=True)]
    inside = "\n".join(line for panel in panels for line in panel)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom}" '
        f'viewBox="0 0 {WIDTH} {bottom}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{bottom}" fill="white"/>\n{inside}\n</svg>\n'
    )


def _tops(outcomes: Iterable[Outcome]) -> tuple[list[int], int]:
    tops, top = [], GAP
    for outcome in outcomes:
        tops.append(top)
        top += HEAD + LINE * len(outcome.results) + FOOT + GAP
    return tops, top


def _panel(outcome: Outcome, top: int) -> Iterator[str]:
    comparison = outcome.comparison
    title = f"{comparison.title} ({comparison.unit}, {comparison.better})"
    yield _text(10, top + 14, title, "font-weight='bold'")
    scale = Scale([number for numbers in outcome.results.values() for number in numbers])
    bottom = top + HEAD + LINE * len(outcome.results)
    for power in scale.powers():
        x = scale.place(10.0**power)
        yield _bar(x, top + HEAD - 8, x, bottom, "stroke='#e2e8f0'")
        yield _text(x, bottom + 14, short(10.0**power), "text-anchor='middle' fill='#64748b'")
    for index, (name, numbers) in enumerate(outcome.results.items()):
        yield from _line(name, numbers, scale, top + HEAD + LINE * index + LINE // 2)


def _line(name: str, numbers: Sequence[float], scale: Scale, y: int) -> Iterator[str]:
    color = _color(name)
    low, middle, high = map(scale.place, (min(numbers), median(numbers), max(numbers)))
    yield _text(NAMES, y + 4, name, f"text-anchor='end' fill='{color}'")
    yield _bar(low, y, high, y, f"stroke='{color}' stroke-width='3'")
    yield f"<circle cx='{middle:.1f}' cy='{y}' r='5' fill='{color}'/>"
    yield _text(WIDTH - NUMBERS + 4, y + 4, short(median(numbers)), f"fill='{color}'")


def _bar(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' {more}/>"


def _color(name: str) -> str:
    if is_ours(name):
        return OURS
    return LIMITS if is_limit(name) else OTHERS


def _text(x: float, y: float, words: str, more: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(words)}</text>"


class Scale:
    """Numbers above zero placed from left to right by their logarithm, with whole powers."""

    def __init__(self, numbers: Iterable[float]) -> None:
        # What is zero or less (memory that shrank) is placed at the very left.
        logs = [log10(number) for number in numbers if number > 0] or [0.0]
        self.low = floor(min(logs))
        self.high = max(ceil(max(logs)), self.low + 1)

    def powers(self) -> range:
        return range(self.low, self.high + 1)

    def place(self, number: float) -> float:
        share = (log10(number) - self.low) / (self.high - self.low) if number > 0 else 0.0
        return LEFT + share * (RIGHT - LEFT)
