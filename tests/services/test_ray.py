"""The service for a cluster of Ray, where there is no Ray."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed, RayReadingService, WorkerStartupError
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.services import ray


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


def test_several_ranks_must_say_the_number_of_actors(monkeypatch):
    monkeypatch.setattr(ray, "world_size", lambda: 2)
    graph = IterableWrapper(range(4)).sharding_filter()
    with pytest.raises(ValueError, match=r"several ranks: .* give num_workers a number"):
        start(graph, RayReadingService("auto"))


def test_what_goes_with_auto_only_is_refused_with_a_number():
    with pytest.raises(ValueError, match='max_workers goes with num_workers="auto"'):
        RayReadingService(2, max_workers=4)
    assert repr(RayReadingService("auto", max_workers=4)) == "RayReadingService(num_workers='auto')"
