"""What a pipe knows of what is above it."""

from __future__ import annotations

from typing import Any

from asyncloader.datapipes.edges import pipes_from
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.graph import breadth_first


class Holder(IterDataPipe[Any]):
    def __init__(self, held: Any) -> None:
        self.held = held


class Row:
    """Must not be looked at."""

    @property
    def __class__(self) -> Any:
        raise AssertionError("a row of many was looked at")


def test_the_pipes_above_are_those_of_the_graph():
    source = IterableWrapper(range(3))
    end = Holder({"near": [source], "far": ({"b": Holder(source)},)})
    assert list(pipes_from(end)) == breadth_first(end)
    assert len(breadth_first(end)) == 3


def test_the_data_of_a_pipe_is_not_searched_for_pipes():
    rows = [Row()] * 2_000
    rows[0] = 0
    end = Holder(rows).map(str)
    assert list(pipes_from(end)) == [end, end.source]
