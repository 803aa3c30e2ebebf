"""Going on from every place of a graph, as a loader would."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.running.cursors import Cursors, close_items, set_numbers
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.graph import breadth_first


def placed(graph: Any) -> Edge[Any]:
    """Return the run of a graph whose pipes know their places, in an epoch of its own."""
    pipes = breadth_first(graph)
    set_numbers(pipes)
    return Edge(graph, RunTree(pipes))


def new_pass(pipe: Any) -> Any:
    """Return a pass over a pipe that begins at its first item."""
    return Edge(pipe, RunTree()).new_pass()


def place_of(pipe: Any, *names: str) -> list[Any]:
    """Return these fields of what is saved of a pipe's latest pass."""
    cursor = latest_pass(pipe).cursor()
    return [cursor[name] for name in names]


def cursors_along(graph: Any) -> tuple[list[Any], list[Cursors]]:
    """Return a graph's items, and its cursors before each of them and after the last."""
    items, along, run = [], [{}], placed(graph)
    for item in run.begin():
        items.append(item)
        cursors: Cursors = {}
        run.put_cursors(cursors)
        along.append(cursors)
    return items, along


def rest_of(graph: Any, position: int, cursors: Cursors) -> list[Any]:
    """Return what follows a position, in a graph that has never been iterated."""
    run = placed(graph)
    run.resume(position, cursors)
    items = run.begin()
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
    """Hold a graph that goes on to going on again, from what its cursors say then.

    It goes on from every place, then again 1, 4, 7, …, 2, 5, 8, … or 3, 6, 9, … items later, by
    turns: all pairs of places would take three times as long.
    """
    items, along = cursors_along(make())
    for first in range(1, len(items)):
        run = placed(make())
        run.resume(first, plain(along[first]))
        for position, item in enumerate(run.begin(), first + 1):
            assert item == items[position - 1]
            cursors: Cursors = {}
            run.put_cursors(cursors)
            if (position - first) % 3 != first % 3:
                continue
            assert rest_of(make(), position, plain(cursors)) == items[position:], (first, position)


def plain(cursors: Cursors) -> Cursors:
    """Return cursors as they come out of a snapshot, which holds plain data."""
    return {int(place): cursor for place, cursor in json.loads(json.dumps(cursors)).items()}
