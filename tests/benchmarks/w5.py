"""W5: waits of 20 ms, and GETs of 64 KiB over HTTP on this machine; 64 and 1024 at a time.

The limit is raw asyncio tasks in one process, each begun when another ends. Every epoch has
connections of its own, the limit's too. The server of the GETs is a process of its own, and
takes its part of the cores from all alike. The ``for`` of asyncloader runs on a loop of its
own, which is uvloop's where that is installed: its limit is the one on uvloop.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.http_server import with_server
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS, loop_factory, one, ours, peer_rate, sync_rate
from tests.benchmarks.peers import grain, nodes, spdl
from tests.benchmarks.peers.catalogue import GRAIN_NEEDS, NODES_NEEDS, SPDL_NEEDS, TORCH
from tests.benchmarks.sizes import sized
from tests.benchmarks.waiting import (
    GetAll,
    GetInThread,
    Together,
    get,
    new_session,
    wait,
    wait_for_all,
    wait_in_thread,
)

EPOCHS = 2
WAITS = {64: sized(6_400, 256), 1024: sized(40_960, 2_048)}
GETS = {64: sized(4_096, 256), 1024: sized(4_096, 1_024)}


# The limit ------------------------------------------------------------------------------


async def all_at_once(items: list[Any], call: Callable[[Any], Any], at_once: int) -> None:
    """Make a call for each item, with so many under way."""
    loop = asyncio.get_running_loop()
    ended, left, waiting = loop.create_future(), len(items), iter(items)

    def begin() -> None:
        for item in waiting:
            loop.create_task(call(item)).add_done_callback(finish)
            return

    def finish(task: asyncio.Task[Any]) -> None:
        nonlocal left
        task.result()
        left -= 1
        if not left:
            ended.set_result(None)
        begin()

    for _ in range(at_once):
        begin()
    await ended


async def rate_of(epoch: Callable[[list[Any]], Awaitable[None]], items: list[Any]) -> float:
    """Return how many items per second a middling epoch calls for, after one to warm up."""
    rates = []
    for _ in range(EPOCHS + 1):
        began = time.perf_counter()
        await epoch(items)
        rates.append(len(items) / (time.perf_counter() - began))
    return median(rates[1:])


def raw_waits(at_once: int, mode: str) -> float:
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        epoch = functools.partial(all_at_once, call=wait, at_once=at_once)
        return runner.run(rate_of(epoch, list(range(WAITS[at_once]))))


def raw_gets(at_once: int, mode: str) -> float:
    async def epoch(urls: list[str]) -> None:
        async with new_session(at_once) as session:
            await all_at_once(urls, functools.partial(get, session=session), at_once)

    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return with_server(lambda url: runner.run(rate_of(epoch, [url] * GETS[at_once])))


# asyncloader ----------------------------------------------------------------------------


def waits(items: int, at_once: int) -> Any:
    from asyncloader.datapipes.iter import IterableWrapper

    numbers = IterableWrapper(range(items)).sharding_filter()
    return numbers.async_map(wait, concurrency=at_once)


def gets(items: int, at_once: int, url: str) -> Any:
    from asyncloader.datapipes.iter import IterableWrapper

    urls = IterableWrapper([url] * items).sharding_filter()
    return urls.read_from_http(concurrency=at_once, as_bytes=True)


def our_waits(at_once: int, mode: str, workers: int) -> float:
    graph = waits(WAITS[at_once], at_once // max(1, workers))
    return ours(graph, one, mode, EPOCHS, workers)


def our_gets(at_once: int, mode: str, workers: int) -> float:
    def measured(url: str) -> float:
        graph = gets(GETS[at_once], at_once // max(1, workers), url)
        return ours(graph, one, mode, EPOCHS, workers)

    return with_server(measured)


# Peers: a thread for each wait, or a batch of waits in a worker ----------------------------


def peer_waits(open_: Callable[..., Any], at_once: int, *, is_async: bool = False) -> float:
    job = Job(WAITS[at_once], wait if is_async else wait_in_thread)  # type: ignore[arg-type]
    return peer_rate(functools.partial(open_, count=at_once), job, one, EPOCHS)


def peer_gets(open_: Callable[..., Any], at_once: int) -> float:
    def measured(url: str) -> float:
        job = Job(GETS[at_once], GetInThread(url))
        return peer_rate(functools.partial(open_, count=at_once), job, one, EPOCHS)

    return with_server(measured)


def spdl_waits(at_once: int) -> float:
    """Wait in SPDL's own loop, which takes coroutine functions."""
    return peer_waits(spdl.threads, at_once, is_async=True)


def torch_waits(at_once: int) -> float:
    return _torch_rate(Together(WAITS[at_once], wait_for_all), at_once)


def torch_gets(at_once: int) -> float:
    return with_server(lambda url: _torch_rate(Together(GETS[at_once], GetAll(url)), at_once))


def _torch_rate(dataset: Any, at_once: int) -> float:
    from torch.utils.data import DataLoader

    each = at_once // WORKERS
    settings: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
    loader = DataLoader(dataset, batch_size=each, collate_fn=list, **settings)
    return sync_rate(loader, len, EPOCHS)


THREADS = [
    ("torchdata nodes, threads", nodes.threads, NODES_NEEDS),
    ("SPDL, threads", spdl.threads, SPDL_NEEDS),
    ("grain, threads", grain.threads, GRAIN_NEEDS),
]
LIMIT, OURS, TORCH_BATCH = "limit: raw tasks", "asyncloader, async for", f"{TORCH}, __getitems__"


def waiting(at_once: int, target: Target) -> Comparison:
    return Comparison(
        f"W5: waits of 20 ms, {at_once} at a time",
        "items/s",
        [
            Case(LIMIT, raw_waits, args=(at_once, "async")),
            Case(f"{LIMIT}, uvloop", raw_waits, ("uvloop",), (at_once, "uvloop")),
            Case(OURS, our_waits, args=(at_once, "async", 0)),
            Case("asyncloader, uvloop", our_waits, ("uvloop",), (at_once, "uvloop", 0)),
            Case("asyncloader, for", our_waits, args=(at_once, "sync", 0)),
            Case("asyncloader, 2 workers", our_waits, args=(at_once, "async", WORKERS)),
            Case(TORCH_BATCH, torch_waits, ("torch",), (at_once,)),
            Case("SPDL, tasks", spdl_waits, SPDL_NEEDS, (at_once,)),
            *[Case(name, peer_waits, needs, (open_, at_once)) for name, open_, needs in THREADS],
        ],
        against=[LIMIT, TORCH_BATCH],
        targets=[target],
    )


def getting(at_once: int) -> Comparison:
    http = ("aiohttp",)
    return Comparison(
        f"W5: GETs of 64 KiB, {at_once} at a time",
        "items/s",
        [
            Case(LIMIT, raw_gets, http, (at_once, "async")),
            Case(f"{LIMIT}, uvloop", raw_gets, (*http, "uvloop"), (at_once, "uvloop")),
            Case(OURS, our_gets, http, (at_once, "async", 0)),
            Case("asyncloader, uvloop", our_gets, (*http, "uvloop"), (at_once, "uvloop", 0)),
            Case("asyncloader, for", our_gets, http, (at_once, "sync", 0)),
            Case("asyncloader, 2 workers", our_gets, http, (at_once, "async", WORKERS)),
            Case(TORCH_BATCH, torch_gets, ("torch", *http), (at_once,)),
            *[Case(name, peer_gets, needs, (open_, at_once)) for name, open_, needs in THREADS],
        ],
        against=[LIMIT, TORCH_BATCH],
        targets=[Target(OURS, 0.97, LIMIT)] if at_once == 64 else [],
    )


COMPARISONS = [
    waiting(64, Target(OURS, 0.97, LIMIT)),
    waiting(1024, Target(OURS, 25_000)),
    getting(64),
    getting(1024),
]
