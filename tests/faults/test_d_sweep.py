"""Rows D3 and D4: a run is cancelled at each of its awaits, one after the other."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from asyncloader import DataLoader2
from tests.faults.child import CLOSE_SECONDS, loader_of, numbers, play, within
from tests.leaks import leaves_nothing

COUNT = 12


@types.coroutine
def stepped(
    work: Coroutine[Any, Any, Any], cancel_at: int, waits: list[int]
) -> Generator[Any, Any, Any]:
    """Do the work, noting its waits; the task is cancelled at one of them."""
    resume, value = work.send, None
    while True:
        try:
            awaited = resume(value)
        except StopIteration as end:
            return end.value
        if len(waits) == cancel_at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        waits.append(len(waits))
        try:
            value, resume = (yield awaited), work.send
        except BaseException as error:  # noqa: BLE001 - it is the work's
            value, resume = error, work.throw


async def run_whole(loader: DataLoader2[Any], taken: list[Any]) -> None:
    """Start, take some items, and close."""
    async with loader:
        items = aiter(loader)
        while len(taken) < COUNT:
            taken.append(await anext(items))


async def take(items: Any, taken: list[Any]) -> None:
    while len(taken) < COUNT:
        taken.append(await anext(items))


async def cancelled(work: Coroutine[Any, Any, Any], at: int) -> tuple[bool, int]:
    """Whether the work was cancelled, and how many waits there were."""
    waits: list[int] = []
    task = asyncio.ensure_future(stepped(work, at, waits))
    done, _ = await asyncio.wait([task], timeout=30)
    assert done, f"cancelled at its wait {at}, the run did not end"
    return task.cancelled(), len(waits)


async def whole_runs(workers: int) -> None:
    at, was_cancelled = 0, True
    while was_cancelled:
        loader, taken = loader_of(numbers(40), workers, worker_prefetch_cnt=1), []
        with leaves_nothing(), within(CLOSE_SECONDS):
            was_cancelled, _ = await cancelled(run_whole(loader, taken), at)
        assert taken == list(range(len(taken)))
        at += 1
    # The last run ended before it could be cancelled.
    assert taken == list(range(COUNT))
    assert at > 2


async def interrupted_taking(workers: int) -> None:
    at, was_cancelled = 0, True
    while was_cancelled:
        async with loader_of(numbers(40), workers, worker_prefetch_cnt=1) as loader:
            items, taken = aiter(loader), []
            was_cancelled, _ = await cancelled(take(items, taken), at)
            assert taken == list(range(len(taken)))
            await take(items, taken)
            assert taken == list(range(COUNT)), f"cancelled at wait {at}"
            taken += [item async for item in items]
            assert taken == list(range(40)), f"cancelled at wait {at}"
        at += 1
    assert at > 2


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_d4_a_run_that_is_cancelled_at_any_await_leaves_nothing(workers, tmp_path):
    play(tmp_path, whole_runs, workers)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_d3_taking_that_is_cancelled_at_any_await_loses_nothing(workers, tmp_path):
    play(tmp_path, interrupted_taking, workers)
