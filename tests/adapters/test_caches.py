"""Adapters of pipes that cache."""

from __future__ import annotations

from typing import Any

import pytest

from asyncloader.adapters import CacheTimeout, InvalidateCache
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe


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
