"""Programs whose consumer waits long, each in a process of its own; the log is printed.

    python -m tests.loader.wait_scenes SCENE [ARGUMENT ...]

A scene in which somebody holds things up ends with the first report, those in which everybody
waits rightly after a while.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    Feed,
    MultiProcessingReadingService,
    Version,
)
from asyncloader.datapipes.caching.own_files import own_path
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.loader import long_waits
from asyncloader.system import lock_file

#: Who waits for so long is named here.
LONG_SECONDS = 0.4
#: Somebody who waits rightly does so for several times as long.
QUIET_SECONDS = 1.6

#: Items before this one are made at once.
STUCK = 5

#: So long a busy machine does not let a scene wait that has begun.
SLOW_SECONDS = 4.0

_scenes: dict[str, Callable[..., object]] = {}
_quiet: set[str] = set()


def scene(function: Callable[..., object]) -> Callable[..., object]:
    _scenes[function.__name__] = function
    return function


def quiet_scene(function: Callable[..., object]) -> Callable[..., object]:
    _quiet.add(function.__name__)
    return scene(function)


class Told(logging.Handler):
    """Prints each report of a wait."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("the consumer has waited"):
            say(text)


def say(text: str) -> None:
    sys.stdout.write(f"{json.dumps(text)}\n")
    sys.stdout.flush()


def numbers(count: int = 20) -> IterDataPipe[int]:
    return IterableWrapper(range(count))


def iterate(pipe: Any, service: Any = None) -> None:
    with DataLoader2(pipe, reading_service=service) as loader:
        for _ in loader:
            pass


async def aiterate(pipe: Any) -> None:
    async with DataLoader2(pipe) as loader:
        async for _ in loader:
            pass


def in_workers(pipe: Any, **settings: Any) -> None:
    iterate(pipe, MultiProcessingReadingService(2, **settings))


def never(number: int) -> int:
    """Wait in a thread for a lock that nobody releases."""
    if number == STUCK:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    return number


async def ask_forever(number: int) -> int:
    """Await an answer that does not come."""
    if number == STUCK:
        await asyncio.Event().wait()
    return number


# Who holds things up --------------------------------------------------------------------


@scene
def a_call_that_never_ends() -> None:
    iterate(numbers().async_map(ask_forever))


@scene
def a_call_on_the_consumers_loop() -> None:
    asyncio.run(aiterate(numbers().async_map(ask_forever, ordered=False)))


@scene
def a_call_that_is_tried_again() -> None:
    tries = []

    async def ask_again(number: int) -> int:
        if number == STUCK:
            tries.append(number)
            if len(tries) < 3:
                raise OSError("not now")
        return await ask_forever(number)

    iterate(numbers().async_map(ask_again, retries=5, backoff=0.001))


@scene
def a_lock() -> None:
    iterate(numbers().map(never))


@scene
def a_lock_on_the_way_to_a_loop() -> None:
    asyncio.run(aiterate(numbers().map(never)))


@scene
def a_lock_in_a_thread() -> None:
    iterate(numbers().thread_map(never, concurrency=2))


@scene
def a_dead_server_behind_a_pool() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    pool = asyncio.Semaphore(1)

    async def fetch(number: int) -> bytes:
        async with pool:
            reader, _ = await asyncio.open_connection(*server.getsockname())
            return await reader.readexactly(1)

    iterate(numbers().async_map(fetch))


def in_c(number: int) -> int:
    """Keep the GIL in C code."""
    if number == STUCK:
        any(itertools.repeat(False))
    return number


@scene
def a_worker_in_c() -> None:
    in_workers(numbers().sharding_filter().map(in_c))


def stop_itself(number: int) -> int:
    if number == STUCK:
        os.kill(os.getpid(), signal.SIGSTOP)
    return number


@scene
def a_stopped_worker() -> None:
    in_workers(numbers().sharding_filter().map(stop_itself))


@scene
def a_call_in_a_worker() -> None:
    in_workers(numbers().sharding_filter().async_map(ask_forever))


@scene
def a_thread_in_a_worker() -> None:
    in_workers(numbers().sharding_filter().thread_map(never, concurrency=2))


@scene
def a_dispatching_process() -> None:
    in_workers(
        numbers()
        .map(never)
        .sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        .map(str)
    )


def get_ready_never(pipe: Any, info: Any) -> Any:
    threading.Event().wait()
    return pipe


@scene
def a_worker_that_never_gets_ready() -> None:
    # The processes have to be there by then.
    long_waits.LONG_SECONDS = 6.0
    in_workers(numbers().sharding_filter(), worker_init_fn=get_ready_never)


@scene
def a_rank_that_left(rank: str, store: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    loader = DataLoader2(
        numbers(100_000).sharding_filter().fullsync(), reading_service=DistributedReadingService()
    )
    with loader:
        items = iter(loader)
        next(items)
        if rank == "1":
            # Until the other one has told of it.
            sys.stdin.read()
            os._exit(0)
        list(items)


@scene
def a_lock_of_a_cache_on_disk(folder: str) -> None:
    path = Path(own_path(f"{folder}/0", "lock"))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another description of the file is another holder, as another process would be.
    holder = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(holder, b"4242")
    lock_file(holder, wait=True)
    cache = numbers().on_disk_cache(lambda number: f"{folder}/{number}")
    iterate(cache.map(str).end_caching("wt", filepath_fn=lambda number: f"{folder}/{number}"))


@scene
def an_exhausted_semaphore() -> None:
    tokens = asyncio.Semaphore(STUCK)

    async def take_a_token(number: int) -> int:
        await tokens.acquire()
        return number

    iterate(numbers().async_map(take_a_token))


@scene
def a_cycle_of_two_pipes() -> None:
    to_first: queue.Queue[int] = queue.Queue()
    to_second: queue.Queue[int] = queue.Queue()

    def first(number: int) -> int:
        return number if number < STUCK else to_first.get()

    def second(number: int) -> int:
        return number if number < STUCK else to_second.get()

    one, other = numbers().map(first).prefetch(2), numbers().map(second).prefetch(2)
    iterate(one.zip(other))


@scene
def a_loop_that_stands_still() -> None:
    async def block(number: int) -> int:
        return never(number)

    iterate(numbers().async_map(block))


class Silent(IterDataPipe[int]):
    """A source of the user's that yields nothing more."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(STUCK):
            yield number
        await asyncio.Event().wait()


@scene
def a_source_that_is_silent() -> None:
    iterate(Silent().prefetch(2))


@scene
def a_request_without_an_answer() -> None:
    async def main() -> None:
        feed = Feed()
        async with feed.serve(DataLoader2(feed.async_map(ask_forever))):
            await asyncio.sleep(LONG_SECONDS)
            await feed.ask(STUCK)

    asyncio.run(main())


@scene
def a_call_of_a_rollout() -> None:
    tries = []

    async def generate(prompt: int) -> int:
        if prompt == STUCK and not tries:
            tries.append(prompt)
            raise OSError("not now")
        return await ask_forever(prompt)

    iterate(numbers().rollout(generate, backoff=0.001))


@scene
def a_trainer_that_does_not_advance() -> None:
    async def generate(prompt: int) -> int:
        return prompt

    graph = numbers().rollout(generate, version=Version(), max_lag=0, per_step=2)
    with DataLoader2(graph, acknowledge=True) as loader:
        list(loader)


# Who waits rightly ----------------------------------------------------------------------


def look_soon() -> None:
    """Name who waits from now on: before, a busy machine may let anybody wait."""
    long_waits.LONG_SECONDS = LONG_SECONDS


def be_quiet() -> None:
    look_soon()
    threading.Event().wait(QUIET_SECONDS)


@quiet_scene
def a_feed_without_requests() -> None:
    async def main() -> None:
        feed = Feed()
        async with feed.serve(DataLoader2(feed.async_map(ask_forever))):
            assert await feed.ask(1) == 1
            look_soon()
            await asyncio.sleep(QUIET_SECONDS)

    asyncio.run(main())


@quiet_scene
def a_feed_of_workers_without_requests() -> None:
    async def main() -> None:
        feed = Feed()
        service = MultiProcessingReadingService(1)
        async with feed.serve(DataLoader2(feed.map(abs), reading_service=service)):
            assert await feed.ask(-1) == 1
            look_soon()
            await asyncio.sleep(QUIET_SECONDS)

    asyncio.run(main())


@quiet_scene
def a_paused_loader() -> None:
    with DataLoader2(numbers().async_map(ask_forever)) as loader:
        items = iter(loader)
        assert [next(items) for _ in range(STUCK)] == list(range(STUCK))

        def pause() -> None:
            loader.pause()
            be_quiet()
            _end()

        threading.Timer(LONG_SECONDS / 4, pause).start()
        next(items)


@quiet_scene
def a_paused_rollout() -> None:
    async def generate(prompt: int) -> int:
        return prompt

    with DataLoader2(numbers().rollout(generate, concurrency=1)) as loader, loader.paused():
        look_soon()
        threading.Timer(QUIET_SECONDS, _end).start()
        next(iter(loader))


def _end() -> None:
    os._exit(0)


@quiet_scene
def a_consumer_that_is_away() -> None:
    with (
        DataLoader2(numbers().map(str)) as direct,
        DataLoader2(numbers().async_map(ask_forever)) as other,
    ):
        for loader in (direct, other):
            items = iter(loader)
            next(items)
            be_quiet()


@quiet_scene
def a_consumer_of_workers_that_is_away() -> None:
    service = MultiProcessingReadingService(2)
    with DataLoader2(numbers().sharding_filter().map(never), reading_service=service) as loader:
        items = iter(loader)
        next(items)
        be_quiet()


@quiet_scene
def items_that_wait_for_an_acknowledgement() -> None:
    with DataLoader2(numbers(), acknowledge=True) as loader:
        assert len(list(loader)) == 20
        be_quiet()
        loader.ack(20)


if __name__ == "__main__":
    # Who waits rightly is looked at once it does.
    long_waits.LONG_SECONDS = SLOW_SECONDS if sys.argv[1] in _quiet else LONG_SECONDS
    logging.getLogger("asyncloader").addHandler(Told())
    _scenes[sys.argv[1]](*sys.argv[2:])
    _end()
