"""W5: waits of 20 ms, and GETs of 64 KiB over HTTP on this machine; 64 and 1024 at a time.

    python -m tests.benchmarks.w5 [--rounds 5]

The limit is raw asyncio tasks in one process, each begun when another ends. The server of
the GETs is a process of its own, and takes its part of the cores from all alike.
"""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tests.benchmarks.harness import Case, compare
from tests.benchmarks.measuring import async_rate, loop_factory, ours, shard, sync_rate
from tests.benchmarks.measuring import torch_loader as new_torch_loader

SECONDS = 0.02
BODY = 1 << 16
EPOCHS = 2
WAITS = {64: 6_400, 1024: 40_960}
GETS = {64: 4_000, 1024: 4_000}
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BODY + bytes(BODY)


async def wait(number: int) -> int:
    await asyncio.sleep(SECONDS)
    return number


async def get(url: str, session: Any) -> int:
    async with session.get(url) as response:
        return len(await response.read())


# The limit ------------------------------------------------------------------------------


async def all_at_once(items: list[Any], call: Callable[[Any], Any], at_once: int) -> float:
    """Return how many calls end per second, with so many under way."""
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

    began = time.perf_counter()
    for _ in range(at_once):
        begin()
    await ended
    return len(items) / (time.perf_counter() - began)


def raw_waits(at_once: int, mode: str) -> float:
    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(all_at_once(list(range(WAITS[at_once])), wait, at_once))


def raw_gets(at_once: int, mode: str) -> float:
    async def measured(url: str) -> float:
        import aiohttp

        connector = aiohttp.TCPConnector(limit=at_once)
        async with aiohttp.ClientSession(connector=connector) as session:
            call = functools.partial(get, session=session)
            await all_at_once([url] * at_once, call, at_once)
            return await all_at_once([url] * GETS[at_once], call, at_once)

    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return with_server(lambda url: runner.run(measured(url)))


# asyncloader ----------------------------------------------------------------------------


def waits(items: int, at_once: int) -> Any:
    from asyncloader.datapipes.iter import IterableWrapper

    numbers = IterableWrapper(range(items)).sharding_filter()
    return numbers.async_map(wait, concurrency=at_once)


def gets(items: int, at_once: int, url: str) -> Any:
    from asyncloader.datapipes.iter import IterableWrapper

    urls = IterableWrapper([url] * items).sharding_filter()
    return urls.read_from_http(concurrency=at_once, as_bytes=True)


def in_process(graph: Any, mode: str) -> float:
    from asyncloader import DataLoader2

    async def measured() -> float:
        async with DataLoader2(graph) as loader:
            return await async_rate(loader, epochs=EPOCHS)

    with asyncio.Runner(loop_factory=loop_factory(mode)) as runner:
        return runner.run(measured())


def our_waits(at_once: int, mode: str) -> float:
    return in_process(waits(WAITS[at_once], at_once), mode)


def our_waits_in_workers(at_once: int) -> float:
    return ours(waits(WAITS[at_once], at_once // 2), epochs=EPOCHS)


def our_gets(at_once: int, mode: str) -> float:
    return with_server(lambda url: in_process(gets(GETS[at_once], at_once, url), mode))


def our_gets_in_workers(at_once: int) -> float:
    items, each = GETS[at_once], at_once // 2
    return with_server(lambda url: ours(gets(items, each, url), epochs=EPOCHS))


# torch ----------------------------------------------------------------------------------


def torch_waits(at_once: int) -> float:
    count = WAITS[at_once] // 32

    def mine(worker: int, workers: int) -> Iterator[int]:
        for number in range(worker, count, workers):
            time.sleep(SECONDS)
            yield number

    return sync_rate(new_torch_loader(shard(mine)), epochs=1)


def torch_gets(at_once: int) -> float:
    import urllib.request

    def measured(url: str) -> float:
        def mine(worker: int, workers: int) -> Iterator[bytes]:
            for _ in range(worker, GETS[at_once], workers):
                with urllib.request.urlopen(url) as response:
                    yield response.read()

        return sync_rate(new_torch_loader(shard(mine)), epochs=EPOCHS)

    return with_server(measured)


# The server -----------------------------------------------------------------------------


def with_server(measure: Callable[[str], float]) -> float:
    """Return what is measured with the URL of a server in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.w5", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            return measure(server.stdout.readline().strip())
        finally:
            server.kill()


class Answer(asyncio.Protocol):
    """Answers every request that arrives whole with the same body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self.transport.write(ANSWER)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answer, "127.0.0.1", 0, backlog=2048)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}/body", flush=True)
    forever: Awaitable[None] = server.serve_forever()
    await forever


def cases() -> Iterator[Case]:
    http = ("aiohttp",)
    for count in (64, 1024):
        yield Case(f"raw tasks, waits, {count}", raw_waits, args=(count, "asyncio"))
        yield Case(f"asyncloader, waits, {count}", our_waits, args=(count, "asyncio"))
        yield Case(f"asyncloader, uvloop, waits, {count}", our_waits, args=(count, "uvloop"))
        yield Case(f"asyncloader, 2 workers, waits, {count}", our_waits_in_workers, args=(count,))
        yield Case(f"torch DataLoader, waits, {count}", torch_waits, args=(count,))
        yield Case(f"raw tasks, GETs, {count}", raw_gets, http, (count, "asyncio"))
        yield Case(f"asyncloader, GETs, {count}", our_gets, http, (count, "asyncio"))
        yield Case(f"asyncloader, uvloop, GETs, {count}", our_gets, http, (count, "uvloop"))
        yield Case(f"asyncloader, 2 workers, GETs, {count}", our_gets_in_workers, http, (count,))
        yield Case(f"torch DataLoader, GETs, {count}", torch_gets, args=(count,))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        with asyncio.Runner(loop_factory=loop_factory("uvloop")) as runner:
            runner.run(serve())
    else:
        limits = [
            f"raw tasks, {what}, {count}" for count in (64, 1024) for what in ("waits", "GETs")
        ]
        compare(list(cases()), unit="items/s", against=limits)
