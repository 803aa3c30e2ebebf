"""Adapters that change a setting of every pipe that has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.adapters import CacheTimeout, InvalidateCache, Shuffle
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe, Shuffler


class Cache(IterDataPipe[Any]):
    def __init__(self, source: Any) -> None:
        self.source = source
        self.timeout = 300.0
        self.entries = {"a": 1}

    def set_timeout(self, timeout: float) -> None:
        self.timeout = timeout

    def invalidate(self) -> None:
        self.entries.clear()


def test_every_cache_waits_as_long() -> None:
    inner = Cache(IterableWrapper([1]))
    end = Cache(inner.map(str))
    assert CacheTimeout(2.5)(end) is end
    assert (inner.timeout, end.timeout) == (2.5, 2.5)


@pytest.mark.parametrize("timeout", [None, "1", -1, float("nan"), True, [1]])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        CacheTimeout(timeout)


def test_every_cache_drops_its_entries() -> None:
    inner = Cache(IterableWrapper([1]))
    end = Cache(inner.map(str))
    assert InvalidateCache()(end) is end
    assert (inner.entries, end.entries) == ({}, {})


wrappers = pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])


@wrappers
def test_shuffling_is_switched_off_and_on_again(wrap: Any) -> None:
    end = wrap(range(50)).shuffle().map(int)
    assert list(Shuffle(False)(end)) == list(range(50))
    assert list(Shuffle(None)(end)) == list(range(50))
    shuffled = list(Shuffle()(end))
    assert shuffled != list(range(50))
    assert sorted(shuffled) == list(range(50))


def test_a_shuffle_is_added_where_there_is_none() -> None:
    source = IterableWrapper(range(50))
    with pytest.warns(UserWarning, match="no shuffle in the graph"):
        end = Shuffle(True)(source)
    assert isinstance(end, Shuffler)
    assert list(end.set_seed(1)) != list(range(50))


def test_what_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(ValueError, match="enable must be True, False or None, got 'no'"):
        Shuffle("no")  # type: ignore[arg-type]
