"""A graph on a page or in a notebook."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import cut_graph, to_html
from asyncloader.graph.outline import Node
from asyncloader.graph.svg import picture

SVG = "{http://www.w3.org/2000/svg}"


def svg_of(html: str) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", html, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


def boxes(html: str) -> list[str]:
    """Return the titles of the boxes, in the order in which they are drawn."""
    titles = (group.find(f"{SVG}title") for group in svg_of(html).iter(f"{SVG}g"))
    return [title.text or "" for title in titles if title is not None]


def test_a_notebook_shows_a_graph_with_its_style():
    html = IterableWrapper(range(3)).map(str)._repr_html_()
    assert html is not None
    assert boxes(html) == ["IterableWrapper()", "map(str)"]
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
    assert "map(str) | workers" in boxes(html)
    assert html.count('class="legend"') == 2
    assert to_html(graph).count('class="legend"') == 0


def test_what_is_known_of_a_pipe_stands_in_its_box():
    nodes = [
        Node("map(str)", (1,), "loader", "81 %", 0.81, "39/s", "blames"),
        Node("IterableWrapper()", (), "loader"),
        Node("your loop", (0,), figures="waits 88 %", share=0.12),
    ]
    svg = picture(nodes, "why")
    assert boxes(svg) == [
        "loader",
        "IterableWrapper() | loader",
        "map(str) | loader | 81 % | 39/s | the bottleneck",
        "your loop | waits 88 %",
    ]
    assert 'aria-label="why"' in svg
    shares = zip(widths(svg, "share"), widths(svg, "track"), strict=True)
    assert [share / whole for share, whole in shares] == pytest.approx([0.81, 0.12], abs=0.01)
    assert svg.count('class="arrow"') == 2


def widths(svg: str, kind: str) -> list[float]:
    rectangles = (each.attrib for each in svg_of(svg).iter(f"{SVG}rect"))
    return [float(each["width"]) for each in rectangles if each["class"] == kind]


def test_names_of_users_are_escaped():
    hostile = "<script>alert(1)</script> & \"'"
    svg = picture([Node(hostile, figures=hostile)])
    assert "<script" not in svg
    assert hostile in boxes(svg)[0]
