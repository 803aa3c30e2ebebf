"""Requests answered by a feed, against doing all the work per request in a thread pool.

This file is about a command: ``python -m tests.benchmarks.serving``. 64 clients ask 5,000
times in all; a request is a JPEG to be decoded and a small model's answer to it. Each way
runs in a process and on a loop of its own, taken in turn, and medians are printed with the
worst gap of the loop while it serves. Beside them stands what two processes reach that do
the same work with nobody asking, which is all that two cores can do.

Then more clients ask than the feed accepts, and 64 clients ask 5,000 times each for
something small, to see whose answers they get.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService, Overloaded

CLIENTS = 64
REQUESTS = 5_000
SIDE = 256
ROUNDS = 3
TICK = 0.001
RETRY_SECONDS = 0.05
CORE_SECONDS = 3.0

Ask = Callable[[bytes], Awaitable[float]]
Measured = dict[str, float]


def jpegs() -> list[bytes]:
    made = []
    for number in range(32):
        pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        made.append(file.getvalue())
    return made


def decode(jpeg: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(jpeg)) as image:
        pixels = np.array(image.resize((64, 64)))
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)
    conv, relu = torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU()
    pool = torch.nn.AdaptiveAvgPool2d(1)
    return torch.nn.Sequential(conv, relu, pool, torch.nn.Flatten(), torch.nn.Linear(16, 1))


def step(model: torch.nn.Module, images: list[torch.Tensor]) -> list[float]:
    with torch.inference_mode():
        found: list[float] = model(torch.stack(images)).flatten().tolist()
        return found


async def with_feed() -> Measured:
    feed = Feed(max_pending=CLIENTS)
    model = new_model()
    async with answering(feed, model):
        return await measure(feed.ask, model) | {"fill": feed.stats().batch_fill}


@contextlib.asynccontextmanager
async def answering(feed: Feed, model: torch.nn.Module) -> AsyncIterator[None]:
    """Decode in two workers, and let the model step in a thread."""

    async def answer(loader: DataLoader2[Any]) -> None:
        async for batch in loader:
            batch.reply(await asyncio.to_thread(step, model, batch.data))

    graph = feed.map(decode).batch(32, max_wait=0.003)
    async with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        task = asyncio.create_task(answer(loader))
        yield
        await feed.drain()
        await task


async def with_threads() -> Measured:
    model, pool = new_model(), ThreadPoolExecutor(max_workers=32)
    loop = asyncio.get_running_loop()

    async def ask(jpeg: bytes) -> float:
        return await loop.run_in_executor(pool, lambda: step(model, [decode(jpeg)])[0])

    with pool:
        return await measure(ask, model)


async def two_cores() -> Measured:
    """Decode and step in two processes, as fast as they go."""
    command = [sys.executable, "-m", "tests.benchmarks.serving", "one core"]
    pipe = asyncio.subprocess.PIPE
    running = [await asyncio.create_subprocess_exec(*command, stdout=pipe) for _ in range(2)]
    found = [json.loads((await process.communicate())[0]) for process in running]
    return {"requests/s": sum(each["requests/s"] for each in found)}


async def one_core() -> Measured:
    model, bodies = new_model(), jpegs()
    step(model, [decode(body) for body in bodies])
    began, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < CORE_SECONDS:
        step(model, [decode(body) for body in bodies])
        count += len(bodies)
    return {"requests/s": count / seconds}


async def overloaded() -> Measured:
    """Have four times as many clients ask as the feed accepts; each asks again when refused."""
    feed = Feed(max_pending=CLIENTS)
    model = new_model()
    async with answering(feed, model):
        return await measure(feed.ask, model, clients=4 * CLIENTS)


async def whose_answers() -> Measured:
    """Ask 5,000 times from each client, in two workers; every answer names its request."""
    feed = Feed()
    graph = feed.map(str).batch(32, max_wait=0.001)
    service = MultiProcessingReadingService(2)

    async def client(number: int) -> int:
        right = 0
        for turn in range(REQUESTS):
            right += await feed.ask((number, turn)) == str((number, turn))
        return right

    async with feed.serve(DataLoader2(graph, reading_service=service)):
        began = time.perf_counter()
        right = await asyncio.gather(*map(client, range(CLIENTS)))
        seconds = time.perf_counter() - began
    asked = CLIENTS * REQUESTS
    return {"asked": asked, "right": sum(right), "requests/s": asked / seconds}


async def measure(ask: Ask, model: torch.nn.Module, clients: int = CLIENTS) -> Measured:
    """Return requests per second, latencies and the loop's worst gap, in milliseconds."""
    bodies = jpegs()
    expected = [step(model, [decode(body)])[0] for body in bodies]
    await asyncio.gather(*map(ask, bodies))
    latencies: list[float] = []
    refused = 0

    async def client(number: int) -> None:
        nonlocal refused
        for turn in range(REQUESTS // clients):
            which = (number + turn) % len(bodies)
            while True:
                began = time.perf_counter()
                try:
                    answer = await ask(bodies[which])
                    break
                except Overloaded:
                    refused += 1
                    await asyncio.sleep(RETRY_SECONDS)
            latencies.append(time.perf_counter() - began)
            assert abs(answer - expected[which]) < 1e-4, "an answer to another request"

    gaps: list[float] = []
    watching = asyncio.create_task(watch(gaps))
    began = time.perf_counter()
    await asyncio.gather(*map(client, range(clients)))
    seconds = time.perf_counter() - began
    watching.cancel()
    latencies.sort()
    return {
        "requests/s": len(latencies) / seconds,
        "p50 ms": 1000 * latencies[len(latencies) // 2],
        "p99 ms": 1000 * latencies[len(latencies) * 99 // 100],
        "worst gap ms": 1000 * max(gaps),
        "refused": refused,
    }


async def watch(gaps: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK)
        gaps.append(time.perf_counter() - began - TICK)


COMPARED = {"feed, 2 workers": with_feed, "thread pool": with_threads, "two cores": two_cores}
ONCE = {"feed, overloaded": overloaded, "64 x 5,000": whose_answers}
WAYS = {**COMPARED, **ONCE, "one core": one_core}


def main() -> None:
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        print(json.dumps(asyncio.run(WAYS[sys.argv[1]]())))
        return
    measured: dict[str, list[Measured]] = {way: [] for way in COMPARED}
    for _ in range(ROUNDS):
        for way in COMPARED:
            measured[way].append(run(way))
    for way, rounds in measured.items():
        show(way, {key: statistics.median(each[key] for each in rounds) for key in rounds[0]})
    for way in ONCE:
        show(way, run(way))


def run(way: str) -> Measured:
    command = [sys.executable, "-m", "tests.benchmarks.serving", way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Measured = json.loads(done.stdout)
    return found


def show(way: str, measured: Measured) -> None:
    print(f"{way:17}", "  ".join(f"{key} {value:,.2f}" for key, value in measured.items()))


if __name__ == "__main__":
    main()
