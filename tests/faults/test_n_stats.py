"""Row N23: what is known of a loader after its close."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService, SequentialReadingService
from tests.faults.child import numbers, play_each
from tests.faults.test_n_silence import told


def slow(number: int) -> int:
    time.sleep(0.001)
    return number


async def a_worker_was_replaced(is_sequential: bool) -> None:
    service: Any = MultiProcessingReadingService(
        2, on_worker_death="restart", worker_prefetch_cnt=1
    )
    if is_sequential:
        service = SequentialReadingService(service)
    loader = DataLoader2(numbers(200).map(slow), reading_service=service)
    with told():
        async with loader:
            items = aiter(loader)
            taken = [await anext(items)]
            os.kill(loader.stats().workers[0].pid, signal.SIGKILL)
            taken += [item async for item in items]
            assert taken == list(range(200))
            assert loader.stats().restarts == 1
    assert loader.stats().restarts == 1
    metrics = {metric.name: metric.value for metric in loader.stats().as_metrics()}
    assert metrics["asyncloader_restarts_total"] == 1


def test_n23_the_restarts_are_known_after_the_close(tmp_path):
    play_each(tmp_path, a_worker_was_replaced, [(False,), (True,)])
