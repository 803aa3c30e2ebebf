"""A graph without the graph, and its drawing on a page or in a notebook."""

from __future__ import annotations

import pickle
import re
from typing import Any
from xml.etree import ElementTree

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import cut_graph, to_html
from asyncloader.graph.figure import CONSUMER, PipeNote, drawn
from asyncloader.graph.outline import outline_of, placed_outline_of

SVG = "{http://www.w3.org/2000/svg}"


def forked() -> Any:
    left, right = IterableWrapper(range(4)).fork(2)
    return left.map(str).zip(right)


def svg_of(html: str) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", html, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0].replace("<svg ", f'<svg xmlns="{SVG[1:-1]}" ', 1))


def boxes(html: str) -> list[str]:
    """Return the titles of the boxes, in the order in which they are drawn."""
    titles = (group.find(f"{SVG}title") for group in svg_of(html).iter(f"{SVG}g"))
    return [title.text or "" for title in titles if title is not None]


def test_an_outline_is_plain_data_that_says_who_reads_whom():
    outline = pickle.loads(pickle.dumps(outline_of(forked())))
    names = outline.names
    assert names[0] == "zip()"
    for name, sources in zip(names, outline.reads, strict=True):
        if name == "IterableWrapper()":
            assert sources == ()
    assert next(names[source] for source in outline.reads[0]) == "map(str)"
    assert set(outline.places) == {""}


def test_an_outline_says_what_runs_where():
    graph = IterableWrapper(range(4)).sharding_filter().map(str).pin_memory()
    assert placed_outline_of(graph, 2).places == ("loader", "workers", "workers", "workers")
    assert set(placed_outline_of(graph, 0).places) == {"loader"}


class Unnamed(IterDataPipe[int]):
    """Fails when it is to say what it is."""

    def __iter__(self) -> Any:
        yield from range(3)

    def __repr__(self) -> str:
        raise RuntimeError("no name")


def test_a_pipe_that_cannot_say_its_name_has_one_in_an_outline():
    assert outline_of(Unnamed().map(str)).names == ("map(str)", "Unnamed()")


def test_a_notebook_shows_a_graph_with_its_style():
    html = IterableWrapper(range(3)).map(str)._repr_html_()
    assert html is not None
    assert boxes(html) == ["map(str)", "IterableWrapper()"]
    assert "prefers-color-scheme: dark" in html
    assert 'style="' not in html
    assert SequenceWrapper([1]).map(str)._repr_html_() is not None


def test_a_notebook_shows_the_name_of_what_is_no_graph():
    pipe: Any = IterableWrapper(range(3)).map(str)
    pipe.source = pipe.batch(2)
    assert pipe._repr_html_() is None


def test_labels_are_drawn_with_a_legend():
    graph = IterableWrapper(range(3)).sharding_filter().map(str).pin_memory()
    html = to_html(graph, cut_graph(graph).places)
    assert "map(str) | worker processes" in boxes(html)
    assert html.count('class="legend"') == 2
    assert to_html(graph).count('class="legend"') == 0


def test_what_is_known_of_a_pipe_stands_in_its_box():
    notes = {
        0: PipeNote("81 %", 0.81, "39/s", is_bottleneck=True),
        CONSUMER: PipeNote("waits 88 %", 0.12),
    }
    svg = drawn(["map(str)", "IterableWrapper()"], [(1,), ()], ["loader", "loader"], notes, "why")
    assert "your loop | consumer | waits 88 %" in boxes(svg)
    assert "map(str) | this process | 81 % | 39/s | the bottleneck" in boxes(svg)
    assert 'aria-label="why"' in svg
    widths = {rect.get("class"): rect.get("width") for rect in svg_of(svg).iter(f"{SVG}rect")}
    assert float(widths["share"] or 0) > 0
    assert svg.count('class="arrow"') == 2


def test_names_of_users_are_escaped():
    hostile = "<script>alert(1)</script> & \"'"
    svg = drawn([hostile], [()], [""], {0: PipeNote(hostile)})
    assert "<script" not in svg
    assert hostile in boxes(svg)[0]
