"""Adapters that end a graph with a pipe."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.adapters import FullSync, PinMemory, PrefetchPolicy
from asyncloader.adapters.base import appended
from asyncloader.datapipes import full_sync, prefetching
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import edges_of, to_text
from asyncloader.graph.walk import breadth_first

wrappers = pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])


@wrappers
def test_the_graph_ends_in_pinned_memory_once(wrap: Any) -> None:
    source = wrap([1])
    end = PinMemory(torch.device("cpu"))(source)
    assert isinstance(end, prefetching.PinMemory)
    assert end.device == torch.device("cpu")
    assert edges_of(end) == [source]
    assert PinMemory()(end) is end


@wrappers
def test_the_graph_ends_in_a_full_sync_once(wrap: Any) -> None:
    source = wrap([1])
    end = FullSync(30)(source)
    assert isinstance(end, full_sync.FullSync)
    assert end.timeout == 30
    assert edges_of(end) == [source]
    assert FullSync()(end) is end
    with pytest.raises(ValueError, match="more than 0 seconds"):
        FullSync(0)
    with pytest.raises(TypeError, match="timeout must be a number of seconds, got NoneType"):
        FullSync(None)  # type: ignore[arg-type]


def test_a_pipe_that_nobody_registered_is_named() -> None:
    with pytest.raises(LookupError, match="no pipe is registered as 'no_such_pipe'"):
        appended(IterableWrapper([1]), "no_such_pipe")


def test_what_is_looked_up_by_key_is_no_stream() -> None:
    with pytest.raises(TypeError, match="to_iter_datapipe"):
        PinMemory()(SequenceWrapper([1]))


# Prefetching ----------------------------------------------------------------------------


@wrappers
def test_a_prefetch_is_added_or_every_one_is_set(wrap: Any) -> None:
    end = PrefetchPolicy(7)(wrap([1]))
    assert to_text(end).splitlines()[-1] == "prefetch(7)"
    end = PrefetchPolicy(3)(end.map(str).prefetch())
    assert [line for line in to_text(end).splitlines() if "prefetch" in line] == [
        "prefetch(3)",
        "prefetch(3)",
    ]


def test_places_have_counts_of_their_own() -> None:
    end = IterableWrapper([1]).map(str).prefetch(4).batch(1).map(len).prefetch()
    policy = PrefetchPolicy(2, after={"map": 9, "batch": 5})
    assert to_text(policy(end)).splitlines()[1:] == [
        "map(str)",
        "prefetch(9)",
        "batch(1)",
        "prefetch(5)",
        "map(len)",
        "prefetch(9)",
    ]


def test_bytes_count_for_every_prefetch() -> None:
    end = IterableWrapper([1]).map(str).prefetch(4).batch(1)
    end = PrefetchPolicy(buffer_bytes=1 << 20, after={"batch": 5})(end)
    prefetches = [pipe for pipe in breadth_first(end) if isinstance(pipe, prefetching.Prefetcher)]
    assert [(pipe.buffer_size, pipe.buffer_bytes) for pipe in prefetches] == [
        (5, 1 << 20),
        (4, 1 << 20),
    ]
    end = PrefetchPolicy(buffer_bytes=100)(IterableWrapper([1]))
    assert (end.buffer_size, end.buffer_bytes) == (10, 100)
    assert list(end) == [1]


def test_a_prefetch_follows_the_last_pipe() -> None:
    end = PrefetchPolicy(after={"map": 9})(IterableWrapper([1]).map(str))
    assert to_text(end).splitlines()[1:] == ["map(str)", "prefetch(9)"]
    assert list(end) == ["1"]


def test_a_prefetch_follows_streams_and_not_what_is_looked_up_by_key() -> None:
    keyed = SequenceWrapper([1]).map(str)
    with pytest.raises(TypeError, match=r"after names 'map', .* map\(str\) is a MapDataPipe"):
        PrefetchPolicy(after={"map": 4})(keyed.to_iter_datapipe().batch(1))
    both = PrefetchPolicy(after={"map": 4})(keyed.to_iter_datapipe().map(int))
    assert to_text(both).splitlines()[-2:] == ["map(int)", "prefetch(4)"]
    end = PrefetchPolicy(after={"to_iter_datapipe": 4})(keyed.to_iter_datapipe())
    assert to_text(end).splitlines()[-1] == "prefetch(4)"
    assert list(end) == ["1"]


def test_policies_that_make_no_sense_say_so() -> None:
    left, right = IterableWrapper([1]).fork(2)
    with pytest.raises(ValueError, match="give a buffer_size"):
        PrefetchPolicy()
    with pytest.raises(ValueError, match="buffer_size must be at least 1, got 0"):
        PrefetchPolicy(0)
    with pytest.raises(ValueError, match="buffer_bytes must be at least 1, got 0"):
        PrefetchPolicy(buffer_bytes=0)
    with pytest.raises(TypeError, match="after must be a dict, got str"):
        PrefetchPolicy(after="map")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"after\['map'\] must be an integer, got float"):
        PrefetchPolicy(after={"map": 1.5})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="no pipe of the graph has that fluent name"):
        PrefetchPolicy(after={"mpa": 1})(left)
    with pytest.raises(ValueError, match="only its branches"):
        PrefetchPolicy(after={"fork": 1})(left.zip(right))


def test_numbers_of_numpy_are_sizes_and_seconds() -> None:
    policy = PrefetchPolicy(numpy.int64(3), after={"map": numpy.int32(2)})
    assert repr(policy) == "PrefetchPolicy(buffer_size=3, buffer_bytes=None, after={'map': 2})"
    assert repr(FullSync(numpy.float32(1.5))) == "FullSync(timeout=1.5)"
