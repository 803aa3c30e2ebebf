"""What is to be seen on an SVG picture of a graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

_SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Rectangle:
    """An area, and the words that are shown for it."""

    x: float
    y: float
    right: float
    bottom: float
    fill: str
    text: str
    title: str

    @property
    def name(self) -> str:
        return self.title.partition(" | ")[0]

    def overlaps(self, other: Rectangle) -> bool:
        aside = self.right < other.x or other.right < self.x
        return not aside and self.y <= other.bottom and other.y <= self.bottom


@dataclass(frozen=True)
class Line:
    """An arrow: a few points along it, from its beginning to its head."""

    points: list[tuple[float, float]]


class Picture:
    """The areas and arrows of a picture, which has to be well-formed."""

    def __init__(self, text: str) -> None:
        root = ElementTree.fromstring(text.encode())
        self.width, self.height = float(root.attrib["width"]), float(root.attrib["height"])
        groups = [group for group in root.iter(f"{_SVG}g") if "class" in group.attrib]
        self.pipes, self.legend = (
            [_rectangle(group) for group in groups if group.attrib["class"].split()[0] == kind]
            for kind in ("box", "label")
        )
        self.arrows = [Line(_along(way)) for way in _ways(root, "arrow")]
        heads = [_along(way.partition(" l")[0])[0] for way in _ways(root, "head")]
        assert heads == [line.points[-1] for line in self.arrows]

    def edges(self) -> list[tuple[str, str]]:
        """Return the names of the boxes at which each arrow begins and ends, in order."""
        return sorted(
            (self._at(line.points[0], "bottom"), self._at(line.points[-1], "y"))
            for line in self.arrows
        )

    def _at(self, point: tuple[float, float], edge: str) -> str:
        x, y = point
        (box,) = (
            each for each in self.pipes if each.x < x < each.right and getattr(each, edge) == y
        )
        return box.name


def _ways(root: ElementTree.Element, kind: str) -> list[str]:
    return [path.attrib["d"] for path in root.iter(f"{_SVG}path") if path.get("class") == kind]


def _rectangle(group: ElementTree.Element) -> Rectangle:
    shape, text = group.find(f"{_SVG}rect"), group.find(f"{_SVG}text")
    assert shape is not None
    assert text is not None
    x, y = float(shape.attrib["x"]), float(shape.attrib["y"])
    right, bottom = x + float(shape.attrib["width"]), y + float(shape.attrib["height"])
    title = group.findtext(f"{_SVG}title") or ""
    return Rectangle(
        x, round(y, 1), right, round(bottom, 1), shape.attrib["fill"], text.text or "", title
    )


def _along(way: str) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for kind, numbers in re.findall(r"([MLC])([^MLC]*)", way):
        values = [float(number) for number in numbers.split()]
        corners = list(zip(values[::2], values[1::2], strict=True))
        if kind == "M":
            points = corners
        else:
            # A straight stretch is a curve whose corners are its ends.
            bends = [points[-1], *(corners if kind == "C" else [points[-1], *corners * 2])]
            points += [_point(bends, step / 8) for step in range(1, 9)]
    return points


def _point(corners: list[tuple[float, float]], part: float) -> tuple[float, float]:
    weights = ((1 - part) ** 3, 3 * part * (1 - part) ** 2, 3 * part**2 * (1 - part), part**3)
    x, y = (sum(w * c[axis] for w, c in zip(weights, corners, strict=True)) for axis in (0, 1))
    return x, y
