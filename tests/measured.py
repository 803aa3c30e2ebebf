"""Draw README's plot: ``python -m tests.measured``.

This file is about ``docs/measured.svg``, which shows the first table of docs/benchmarks.md:
every row that has a number for torch's ``DataLoader``, and how many times as good as it
asyncloader and the best other loader are. Of several numbers in a cell the best counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import log2
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "benchmarks.md"
PLOT = ROOT / "docs" / "measured.svg"

WIDTH, NAMES, LINE, HEAD, FOOT = 900, 510, 26, 64, 20
LEFT, RIGHT = NAMES + 20, WIDTH - 30
#: The least and the most that is shown, as powers of two.
LOW, HIGH = -2, 8
OURS, OTHERS, INK, GRID = "#c2410c", "#64748b", "#1a1a1a", "#cbd5e1"


@dataclass(frozen=True)
class Row:
    """A workload, and how many times as good as torch's loader the others are."""

    name: str
    ours: float
    best_other: float


def main() -> None:
    """Draw the plot anew."""
    PLOT.write_text(svg())


def rows() -> list[Row]:
    """Return the rows of the table that have three numbers to compare."""
    found = []
    lines = (
        TABLE.read_text(encoding="utf-8")
        .partition("\n|---")[2]
        .partition("\n\n")[0]
        .splitlines()[1:]
    )
    for line in lines:
        name, ours, torch, other = (cell.strip() for cell in line.split("|")[1:5])
        if numbers_in(torch) and numbers_in(other):
            name, _, is_less_better = name.partition(" (less is better")
            best = min if is_less_better else max
            ratios = [best(numbers_in(cell)) / best(numbers_in(torch)) for cell in (ours, other)]
            found.append(Row(name, *(1 / each if is_less_better else each for each in ratios)))
    return found


def numbers_in(cell: str) -> list[float]:
    """Return the numbers of a cell that were measured.

    >>> numbers_in("36 / 40; 2 workers **45** (undecided)")
    [36.0, 40.0, 45.0]
    """
    measured = re.sub(r"\d+ workers?|`[^`]*`", "", cell)
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", measured)]


def svg() -> str:
    """Return the plot."""
    return "\n".join([*_lines(rows())]) + "\n"


def _lines(shown: list[Row]) -> Iterator[str]:
    height = HEAD + LINE * len(shown) + FOOT
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="13"'
        ' aria-label="How many times as good as torch\'s DataLoader">'
    )
    yield f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>'
    yield _dot(24, 20, OURS) + _text(36, 24, "asyncloader")
    yield _dot(144, 20, OTHERS) + _text(156, 24, "best other loader")
    yield _text(RIGHT, 24, "times as good as torch's DataLoader (1)", "end")
    for power in range(LOW, HIGH + 1):
        x = _place(2.0**power)
        wide = 2 if power == 0 else 1
        yield (
            f'<line x1="{x:.1f}" y1="{HEAD - 10}" x2="{x:.1f}" y2="{height - FOOT}"'
            f' stroke="{INK if power == 0 else GRID}" stroke-width="{wide}"/>'
        )
        yield _text(x, HEAD - 16, f"{2.0**power:g}", "middle")
    for place, row in enumerate(shown):
        y = HEAD + LINE * place + LINE / 2
        # A ratio has no unit.
        name = re.sub(r", (?:[a-z]+ )?(?:images/s|[a-zµ]*s|[a-zA-Z]+/s)$|`", "", row.name)
        yield _text(NAMES, y + 4, name, "end")
        yield _dot(_place(row.best_other), y, OTHERS) + _dot(_place(row.ours), y, OURS)
    yield "</svg>"


def _place(ratio: float) -> float:
    return LEFT + (log2(ratio) - LOW) / (HIGH - LOW) * (RIGHT - LEFT)


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}" fill-opacity="0.85"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(words)}</text>'
    )


if __name__ == "__main__":
    main()
