"""A graph as a picture."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given

from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from asyncloader.graph import breadth_first, cut_graph, edges_of, to_svg
from asyncloader.graph.outline import shown_name
from asyncloader.graph.svg import cells, shortened
from tests.graph.pictures import Picture, Rectangle
from tests.graph.test_random_graphs import every_time, graphs


class Named(IterDataPipe[Any]):
    """A pipe that is called something, and reads some others."""

    def __init__(self, name: str, *sources: Any) -> None:
        self.name = name
        self.sources = sources

    def __repr__(self) -> str:
        return self.name


def test_a_chain_stands_in_a_column() -> None:
    picture = Picture(to_svg(IterableWrapper([1]).map(str).batch(2)))
    first, second, third = sorted(picture.pipes, key=lambda box: box.y)
    assert [first.text, second.text, third.text] == ["IterableWrapper()", "map(str)", "batch(2)"]
    assert {round(box.x + box.right) for box in picture.pipes} == {round(first.x + first.right)}
    assert picture.edges() == [("IterableWrapper()", "map(str)"), ("map(str)", "batch(2)")]


def test_one_pipe_is_a_picture_too() -> None:
    (box,) = Picture(to_svg(IterableWrapper([1]))).pipes
    assert (box.text, box.title) == ("IterableWrapper()", "IterableWrapper()")


def test_what_joins_and_divides_has_an_arrow_for_each() -> None:
    low, middle, high = IterableWrapper(range(9)).demux(3, lambda number: number % 3)
    left, right = low.map(str).fork(2)
    picture = Picture(to_svg(left.map(len).zip(right, middle, high.map(abs)).batch(2)))
    demux = "demux(3, classifier_fn=<lambda>)"
    assert picture.edges() == sorted(
        [
            ("IterableWrapper()", demux),
            *((demux, f"{demux}[{branch}]") for branch in range(3)),
            (f"{demux}[0]", "map(str)"),
            ("map(str)", "fork(2)"),
            ("fork(2)", "fork(2)[0]"),
            ("fork(2)", "fork(2)[1]"),
            ("fork(2)[0]", "map(len)"),
            (f"{demux}[2]", "map(abs)"),
            *((name, "zip()") for name in ("map(len)", "fork(2)[1]", f"{demux}[1]", "map(abs)")),
            ("zip()", "batch(2)"),
        ]
    )


def test_sources_stand_from_left_to_right_as_they_are_read() -> None:
    sources = [Named(name) for name in ("first", "second", "third")]
    boxes = {box.text: box.x for box in Picture(to_svg(Named("end", *sources))).pipes}
    assert boxes["first"] < boxes["second"] < boxes["third"]


def test_what_runs_elsewhere_has_another_colour_and_the_legend_says_so() -> None:
    dealt = IterableWrapper(range(9)).sharding_round_robin_dispatch(
        SHARDING_PRIORITIES.MULTIPROCESSING
    )
    end = dealt.map(str).pin_memory(pin_memory_fn=lambda item, device: item)
    picture = Picture(to_svg(end, cut_graph(end).places))
    colour = {label.text: label.fill for label in picture.legend}
    assert list(colour) == ["dispatcher", "workers", "loader"]
    assert len(set(colour.values())) == 3
    for box in picture.pipes:
        assert box.fill == colour[box.title.partition(" | ")[2]]
    assert {box.title for box in picture.pipes} >= {
        "IterableWrapper() | dispatcher",
        "map(str) | workers",
        "pin_memory(pin_memory_fn=<lambda>) | loader",
    }


def test_many_labels_and_none_are_drawn_as_well() -> None:
    pipes = [Named(f"pipe {number}") for number in range(12)]
    picture = Picture(to_svg(Named("end", *pipes), {pipe: pipe.name for pipe in pipes}))
    assert [label.text for label in picture.legend] == [pipe.name for pipe in pipes]
    assert not any(one.overlaps(other) for one, other in combinations(picture.legend, 2))
    assert max(label.right for label in picture.legend) < picture.width


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a < b & c > d", "a < b & c > d"),
        ("\"double\" and 'single'", "\"double\" and 'single'"),
        ("]]></title><script>alert(1)</script>", "]]></title><script>alert(1)</script>"),
        ("&amp; &#10; <!-- -->", "&amp; &#10; <!-- -->"),
        ("one\n  two\tthree", "one two three"),
        ("a\0b\x1bc\ud800d\uffffe", "a\ufffdb\ufffdc\ufffdd\ufffde"),
        ("Übergröße 写真 🎉 e\u0301", "Übergröße 写真 🎉 e\u0301"),
    ],
)
def test_hostile_names_are_shown_as_they_are(name: str, shown: str) -> None:
    end = Named(name, Named("source"))
    picture = Picture(to_svg(end, {end: shown}))
    box = max(picture.pipes, key=lambda each: each.y)
    assert (box.text, box.title) == (shown, f"{shown} | {shown}")
    assert [label.text for label in picture.legend] == [shown]


def test_a_long_name_is_cut_in_its_middle_and_told_in_full() -> None:
    name = f"open_files('/{'very/' * 100}deep.tar')"
    (box,) = Picture(to_svg(Named(name))).pipes
    assert box.title == name
    beginning, _, end = box.text.partition("…")
    assert name.startswith(beginning)
    assert name.endswith(end)
    assert len(box.text) == 45
    assert 45 * 7 < box.right - box.x < 45 * 9


def test_a_text_is_cut_to_what_it_takes_on_the_screen() -> None:
    assert shortened("写真" * 9, 9) == "写真…写真"
    assert cells(shortened("e\u0301" * 40, 21)) == 21
    assert shortened("short", 5) == "short"


def test_pipes_in_a_circle_are_named() -> None:
    end = IterableWrapper([1]).map(str).map(len)
    end.source.source = end
    with pytest.raises(ValueError, match=r"in a circle: map\(len\), map\(str\)"):
        to_svg(end)


def test_a_graph_may_be_deep_and_wide() -> None:
    deep = IterableWrapper([1])
    for _ in range(1100):
        deep = deep.map(str)
    picture = Picture(to_svg(deep.zip(*(IterableWrapper([1]) for _ in range(100)))))
    assert len(picture.pipes) == 1202
    assert len(picture.arrows) == 1201
    assert_is_readable(picture)


@every_time
@given(graphs())
def test_every_graph_is_readable(end: Any) -> None:
    picture = Picture(to_svg(end, cut_graph(end).places if is_cuttable(end) else ()))
    pipes = breadth_first(end)
    names = sorted(shown_name(pipe) for pipe in pipes)
    assert sorted(box.name for box in picture.pipes) == names
    edges = [(shown_name(source), shown_name(pipe)) for pipe in pipes for source in edges_of(pipe)]
    assert picture.edges() == sorted(edges)
    assert_is_readable(picture)


def is_cuttable(end: Any) -> bool:
    try:
        cut_graph(end)
    except ValueError:
        return False
    return True


def assert_is_readable(picture: Picture) -> None:
    """No two boxes touch, nothing is off the sheet, and no arrow crosses a box."""
    rows: dict[float, list[Rectangle]] = {}
    for box in sorted(picture.pipes, key=lambda box: (box.y, box.x)):
        rows.setdefault(box.y, []).append(box)
    for row in rows.values():
        assert all(left.right + 20 < right.x for left, right in pairwise(row))
    for upper, lower in pairwise(rows.values()):
        assert upper[0].bottom + 20 < lower[0].y
    assert min(box.x for box in picture.pipes) > -1
    assert max(box.right for box in picture.pipes) + 20 < picture.width
    assert max(box.bottom for box in picture.pipes) + 20 < picture.height
    for top, row in rows.items():
        inside = [x for x, y in points_of(picture) if top < y < row[0].bottom]
        assert not any(box.x < x < box.right for x in inside for box in row)


def points_of(picture: Picture) -> list[tuple[float, float]]:
    return [point for line in picture.arrows for point in line.points]
