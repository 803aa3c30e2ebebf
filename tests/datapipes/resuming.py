"""Going on from every place of a graph, as a loader would."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursors, put_cursors, resume, set_numbers
from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.patterns.reading import begin
from asyncloader.graph import breadth_first


def placed(graph: Any) -> Any:
    """Return a graph whose pipes know their places."""
    set_numbers(breadth_first(graph))
    return graph


def cursors_along(graph: Any) -> tuple[list[Any], list[Cursors]]:
    """Return a graph's items, and its cursors before each of them and after the last."""
    items, along = [], [{}]
    for item in begin(placed(graph)):
        items.append(item)
        cursors: Cursors = {}
        put_cursors(graph, cursors)
        along.append(cursors)
    return items, along


def rest_of(graph: Any, position: int, cursors: Cursors) -> list[Any]:
    """Return what follows a position, in a graph that has never been iterated."""
    resume(placed(graph), position, cursors)
    items = begin(graph)
    try:
        return list(items)
    finally:
        close_items(items)


def assert_goes_on(make: Callable[[], Any], least: int = 4) -> None:
    """Hold a graph to going on, in a new one, from all that its cursors say."""
    items, along = cursors_along(make())
    assert len(items) >= least
    for position in range(len(items) + 1):
        for taken_at in {position, max(0, position - 1), position // 2}:
            cursors = plain(along[taken_at])
            assert rest_of(make(), position, cursors) == items[position:], (position, taken_at)


def assert_goes_on_twice(make: Callable[[], Any]) -> None:
    """Hold a graph that goes on to going on again, from what its cursors say then."""
    items, along = cursors_along(make())
    for first in range(1, len(items)):
        graph = placed(make())
        resume(graph, first, plain(along[first]))
        for position, item in enumerate(begin(graph), first + 1):
            assert item == items[position - 1]
            cursors: Cursors = {}
            put_cursors(graph, cursors)
            assert rest_of(make(), position, plain(cursors)) == items[position:], (first, position)


def plain(cursors: Cursors) -> Cursors:
    """Return cursors as they come out of a snapshot, which holds plain data."""
    return {int(place): cursor for place, cursor in json.loads(json.dumps(cursors)).items()}
