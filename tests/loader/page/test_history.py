"""The last minute of one loader."""

from __future__ import annotations

import pytest

from asyncloader.loader.page.history import History
from asyncloader.loader.stats import LoaderStats


def stats(epoch: int, items: int, seconds: float) -> LoaderStats:
    return LoaderStats(epoch, items, seconds=seconds, waited=seconds / 2)


@pytest.fixture
def history() -> History:
    """Half a minute of ten items a second, looked at every second."""
    found = History()
    for second in range(31):
        found.add(1000.0 + second, stats(1, 10 * second, float(second)))
    return found


def test_recent_are_the_last_ten_seconds(history):
    assert history.is_running()
    assert (history.recent().items, history.recent().seconds) == (100, 10.0)
    history.add(1031.0, stats(1, 400, 31.0))
    assert history.recent().items == 400 - 210


def test_an_epoch_that_is_over_is_shown_whole(history):
    for second in range(31, 43):
        history.add(1000.0 + second, stats(1, 300, 30.0))
    assert not history.is_running()
    assert history.recent().items == 300


def test_the_next_epoch_is_shown_from_its_first_second(history):
    history.add(1031.0, stats(2, 50, 0.5))
    assert history.is_running()
    assert history.recent().items == 50


def test_the_points_of_a_plot_are_of_the_last_minute(history):
    points = list(history.points(lambda each: each.rate))
    assert points[-1] == (0.0, 10.0)
    assert points[-2] == (1.0, 10.0)
    assert len(points) == 31
    history.add(1075.0, stats(1, 600, 75.0))
    assert next(ago for ago, _ in history.points(lambda each: each.rate)) == 60.0


def test_a_loader_that_nobody_iterates_has_a_history():
    history = History()
    history.add(0.0, LoaderStats(0, 0))
    assert not history.is_running()
    assert history.recent().epochs == 0
