"""A graph as a picture on a page, with what is known of each pipe in its box.

This file is about ``drawn``, which makes one SVG of a graph's outline and its notes. Unlike the
SVG files of ``to_svg`` it has no colours of its own: ``figure.css`` gives it those of a light or
a dark page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate

from asyncloader.graph.svg import (
    Box,
    PictureLayout,
    Point,
    Reads,
    cells,
    escaped,
    shortened,
    title,
    way_along,
)


@dataclass(frozen=True)
class PipeNote:
    """What a picture says of one pipe."""

    #: The second line in its box.
    text: str = ""
    #: How long the bar below that is, from 0 to 1; None for no bar.
    share: float | None = None
    #: What stands at the arrow that leaves the box.
    rate: str = ""
    #: Whether the picture is to show at a glance that this pipe holds up the rest.
    is_bottleneck: bool = False


#: What the legend says of the places that have a colour.
_PLACES = {
    "loader": "this process",
    "workers": "worker processes",
    "dispatcher": "dispatching process",
}
#: Stands for what is no pipe, but reads the last one.
CONSUMER = -1

_NO_NOTE = PipeNote()

#: How wide a character is on most machines, in a name and elsewhere, and how many of a name are
#: shown.
_NAME_CELL, _CELL, _MOST_CELLS = 8.3, 7.3, 34
_PADDING, _MARGIN = 12.0, 8.0
_HEIGHT, _PLAIN_HEIGHT = 48.0, 32.0
_GAP, _PLAIN_GAP = 40.0, 28.0
_LEGEND_HEIGHT = 30.0


def drawn(
    names: Sequence[str],
    reads: Sequence[Sequence[int]],
    places: Sequence[str],
    notes: Mapping[int, PipeNote],
    about: str = "",
) -> str:
    """Return the SVG of a graph: the names of its pipes, who reads whom, what runs where.

    ``about`` is what a screen reader says of it. A note of CONSUMER adds a box for what reads the
    last pipe.
    """
    wired: Reads = dict(enumerate(reads))
    named, placed = dict(enumerate(names)), dict(enumerate(places))
    if CONSUMER in notes:
        wired = {CONSUMER: (0,), **wired}
        named[CONSUMER], placed[CONSUMER] = "your loop", "consumer"
    return "\n".join(_Drawing(named, wired, placed, notes).lines(about))


def styled(html: str) -> str:
    """Return a part of a page with the style that it needs."""
    return f'<div class="asyncloader"><style>{style()}</style>{html}</div>'


@cache
def style() -> str:
    """Return the style of all that is drawn."""
    return (files("asyncloader.graph") / "figure.css").read_text(encoding="utf-8")


class _Drawing:
    def __init__(
        self,
        names: Mapping[int, str],
        reads: Reads,
        places: Mapping[int, str],
        notes: Mapping[int, PipeNote],
    ) -> None:
        self._names, self._places, self._notes = names, places, notes
        #: How many read each pipe.
        self._readers = Counter(source for sources in reads.values() for source in sources)
        widths = {number: self._width_of(number) for number in reads}
        height, gap = (_HEIGHT, _GAP) if notes else (_PLAIN_HEIGHT, _PLAIN_GAP)
        self._layout = PictureLayout(reads, widths, height, gap)
        # As they are read, sources first.
        seen = dict.fromkeys(list(places.values())[::-1])
        self._labels = [place for place in seen if place in _PLACES]

    def lines(self, about: str) -> Iterator[str]:
        layout = self._layout
        legend = _LEGEND_HEIGHT if self._labels else 0.0
        # What stands beside an arrow may be wider than the box above it.
        right = max((box.x + box.width / 2 + self._beside(box) for box in layout.boxes), default=0)
        width = max(layout.width, right, self._legend_width() if legend else 0.0) + 2 * _MARGIN
        height = layout.height + legend + 2 * _MARGIN
        label = about or f"A graph of {len(self._names)} pipes"
        yield (
            f'<svg class="graph" role="img" aria-label="{escaped(label)}" width="{width:.0f}"'
            f' height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        )
        if legend:
            yield from self._legend()
        yield f'<g transform="translate({_MARGIN:.1f} {_MARGIN + legend:.1f})">'
        for points in layout.arrows:
            yield from _arrow(points)
        for box in layout.boxes:
            yield from self._box(box)
        yield "</g></svg>"

    def _note(self, number: int) -> PipeNote:
        return self._notes.get(number, _NO_NOTE)

    def _width_of(self, number: int) -> float:
        name = _NAME_CELL * cells(shortened(self._names[number], _MOST_CELLS))
        return max(name, _CELL * cells(self._note(number).text)) + 2 * _PADDING

    def _beside(self, box: Box) -> float:
        """Return how far what stands beside a box's arrows reaches from its middle."""
        rate = self._note(box.pipe).rate
        return _CELL * cells(rate) + 9.0 * self._readers[box.pipe] if rate else 0.0

    def _box(self, box: Box) -> Iterator[str]:
        number = box.pipe
        note, name, place = self._note(number), self._names[number], self._places[number]
        kind = place if place in (*_PLACES, "consumer") else "plain"
        kind += " bottleneck" if note.is_bottleneck else ""
        middle = box.x + box.width / 2
        yield f'<g class="box {kind}">'
        said = [name, _PLACES.get(place, place), note.text, note.rate]
        said += ["the bottleneck"] if note.is_bottleneck else []
        yield title(" | ".join(filter(None, said)))
        yield _rectangle(box.x, box.y, box.width, box.height)
        baseline = box.y + (18 if note.text else box.height / 2 + 5)
        yield _text(middle, baseline, shortened(name, _MOST_CELLS), "name")
        if note.text:
            yield _text(middle, box.y + 35, note.text, "figures")
        if note.share is not None:
            full = box.width - 2 * _PADDING
            x, y = box.x + _PADDING, box.y + box.height - 7
            yield _rectangle(x, y, full, 4, "track")
            yield _rectangle(x, y, full * min(1.0, max(0.0, note.share)), 4, "share")
        if note.rate:
            aside = 9.0 * self._readers[number]
            yield _text(middle + aside, box.y + box.height + 15, note.rate, "rate")
        yield "</g>"

    def _legend(self) -> Iterator[str]:
        for place, x in zip(self._labels, self._legend_places(), strict=False):
            yield f'<g class="box {place}">'
            yield _rectangle(_MARGIN + x, _MARGIN, 12, 12)
            yield _text(_MARGIN + x + 18, _MARGIN + 11, _PLACES[place], "legend")
            yield "</g>"

    def _legend_places(self) -> list[float]:
        widths = (_CELL * cells(_PLACES[place]) + 36 for place in self._labels)
        return list(accumulate(widths, initial=0.0))

    def _legend_width(self) -> float:
        return self._legend_places()[-1]


def _arrow(points: Sequence[Point]) -> Iterator[str]:
    (x, y) = points[-1]
    yield f'<path class="arrow" d="{way_along(points)}"/>'
    yield f'<path class="head" d="M{x:.1f} {y:.1f} l-4 -7 h8 z"/>'


def _rectangle(x: float, y: float, width: float, height: float, kind: str = "area") -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        ' rx="4"/>'
    )


def _text(x: float, baseline: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{baseline:.1f}">{escaped(text)}</text>'
