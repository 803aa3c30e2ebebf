"""How often a source's cursors are collected."""

import pytest

from asyncloader.datapipes.running import cursor_history
from asyncloader.datapipes.running.cursor_history import Pace


@pytest.mark.parametrize(
    ("milliseconds", "pause"),
    [(0.01, 0.01), (0.04, 0.04), (0.2, 0.1), (0.4, 0.1), (1.0, 0.25), (10.0, 2.5)],
)
def test_cheap_cursors_are_collected_ten_times_a_second_or_take_a_thousandth(
    milliseconds, pause, monkeypatch
):
    monkeypatch.setattr(cursor_history, "perf_counter", lambda: 100.0)
    monkeypatch.setattr(cursor_history, "thread_time", lambda: 7.0 + milliseconds / 1000)
    pace = Pace()
    assert pace.is_due()
    pace.made(7.0)
    assert pace.not_before == pytest.approx(100.0 + pause)
    assert not pace.is_due()
