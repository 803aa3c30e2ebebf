"""What a function may make of a graph whose items are divided anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader.errors import SnapshotError
from asyncloader.graph.edit import copy_graph
from asyncloader.graph.walk import breadth_first
from asyncloader.workers.graph_part import check_alike, is_as_long
from tests.samples import double, double_soon, is_odd, twice


def pairs_below(pipe: Any) -> Any:
    """Put a pipe between two that were there already."""
    pipe.source = pipe.source.batch(2)
    return pipe


CLASHING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch": (lambda pipe: pipe.batch(2), r"puts batch\(2\) into it"),
    "filter": (lambda pipe: pipe.filter(is_odd), r"puts filter\(is_odd\) into it"),
    "flatmap": (lambda pipe: pipe.flatmap(twice), r"puts flatmap\(twice\) into it"),
    "shuffle": (lambda pipe: pipe.shuffle(), r"puts shuffle\(.*\) into it"),
    "samples left out": (
        lambda pipe: pipe.map(double, on_error="skip"),
        r"puts map\(double.* into",
    ),
    "a map behind a batch": (lambda pipe: pipe.batch(2).map(len), r"puts batch\(2\) into it"),
    "in place": (pairs_below, r"puts batch\(2\) into it"),
    "taken out": (lambda pipe: pipe.source, r"takes map\(double\) out of it"),
    "a copy, of other seeds": (copy_graph, r"takes map\(double\) out of it"),
    "no pipe": (lambda pipe: [1, 2], r"takes map\(double\) out of it"),
}
FITTING: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda pipe: pipe,
    "map": lambda pipe: pipe.map(double),
    "async map": lambda pipe: pipe.async_map(double_soon).prefetch(2),
    "thread map": lambda pipe: pipe.thread_map(double),
}


def graph() -> Any:
    return it.IterableWrapper(range(9)).shuffle().sharding_filter().map(double)


@pytest.mark.parametrize("name", CLASHING)
def test_what_is_not_one_to_one_is_named_with_who_put_it_there(name):
    change, expected = CLASHING[name]
    pipe = graph()
    given = breadth_first(pipe)
    with pytest.raises(SnapshotError, match=f"worker_init_fn=change changes .* {expected}"):
        check_alike(given, change(pipe), "worker_init_fn=change")


@pytest.mark.parametrize("name", FITTING)
def test_what_is_one_to_one_may_be_added(name):
    pipe = graph()
    given = breadth_first(pipe)
    check_alike(given, FITTING[name](pipe), "worker_init_fn=change")
    assert breadth_first(pipe) == given


def test_a_graph_is_as_long_as_its_pipes_with_maps_behind_them():
    end = it.IterableWrapper(range(9)).map(str)
    pipes = breadth_first(end)
    assert is_as_long(end, pipes)
    assert is_as_long(end.map(int).map(str), pipes)
    assert not is_as_long(end.batch(2), pipes)
    assert not is_as_long(end.batch(2).map(len), pipes)
    assert not is_as_long(end.map(int, on_error="skip"), pipes)
    assert not is_as_long(end.source, pipes)
    assert not is_as_long([1, 2], pipes)
    end.source = end.source.header(3)
    assert not is_as_long(end, pipes)
