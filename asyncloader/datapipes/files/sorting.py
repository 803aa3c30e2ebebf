"""Many names in order.

This file is about ``in_order``. A sort of a million names keeps every other thread waiting
until it is done, and with it whoever's event loop runs in one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

#: About so many are sorted at once.
PIECE = 1 << 13
#: Of every run of names so many are looked at to part them all.
_SAMPLES = 64


def in_order(names: list[str]) -> Iterator[str]:
    """Yield names in sorted order. The list is emptied."""
    for piece in sorted_pieces(names):
        yield from piece


def sorted_pieces(names: list[str]) -> Iterator[list[str]]:
    """Yield names in sorted order, in pieces that take a moment each. The list is emptied."""
    runs = [sorted(names[start : start + PIECE]) for start in range(0, len(names), PIECE)]
    # What is freed with the pieces is not freed at once.
    names.clear()
    for end in _ends(runs):
        yield sorted([name for run in runs for name in _taken(run, bisect_left(run, end))])
    if runs:
        yield sorted([name for run in runs for name in _taken(run, len(run))])


def _ends(runs: list[list[str]]) -> list[str]:
    """Return names that part all of them into as many pieces as there are runs."""
    sample = sorted([name for run in runs for name in run[:: max(1, len(run) // _SAMPLES)]])
    step = max(1, len(sample) // len(runs)) if runs else 1
    return sample[step::step]


def _taken(run: list[str], count: int) -> list[str]:
    """Take so many names off the beginning of a run."""
    taken = run[:count]
    del run[:count]
    return taken
