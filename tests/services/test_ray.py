"""The service for a cluster of Ray, where there is no Ray."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed, RayReadingService, WorkerStartupError
from asyncloader.datapipes.iter import IterableWrapper


def start(graph: Any, service: RayReadingService) -> None:
    with DataLoader2(graph, reading_service=service):
        pass


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    graph = IterableWrapper(range(4)).sharding_filter()
    with pytest.raises(WorkerStartupError, match=r"pip install 'asyncloader\[ray\]'"):
        start(graph, RayReadingService(2))


def test_a_feed_is_refused_by_name():
    with pytest.raises(ValueError, match=r"cannot run Feed\(.*use MultiProcessingReadingService"):
        start(Feed().map(str), RayReadingService(2))


def test_without_workers_it_is_refused():
    with pytest.raises(ValueError, match="num_workers must be at least 1, got 0"):
        RayReadingService(0)
