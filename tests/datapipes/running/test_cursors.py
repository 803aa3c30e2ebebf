"""How often cursors are gathered."""

from __future__ import annotations

import itertools
import time
from typing import Any

from asyncloader.datapipes.running.cursor_history import CursorHistory


def test_collecting_cursors_takes_a_fiftieth_of_the_time_however_dear_they_are() -> None:
    costs: list[float] = []

    def put(into: Any) -> None:
        begun = time.thread_time()
        sum(range(10_000))
        costs.append(time.thread_time() - begun)

    history = CursorHistory(put, needed=lambda: 0)
    begun = time.perf_counter()
    for count in itertools.count(1):
        history.passed(count)
        if len(costs) == 10:
            break
    # The tenth made room for those that follow.
    assert time.perf_counter() - begun >= 50 * sum(costs[:-1])
