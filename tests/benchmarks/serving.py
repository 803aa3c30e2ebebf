"""Requests answered by a feed, against doing all the work per request in a thread pool.

This file is about a command: ``python -m tests.benchmarks.serving``. 64 clients ask 5,000
times in all; a request is a JPEG to be decoded and a small model's answer to it. Both ways
run in a process and on a loop of their own, taken in turn, and medians are printed with the
worst gap of the loop while it serves.
"""

from __future__ import annotations

import asyncio
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService

CLIENTS = 64
REQUESTS = 5_000
SIDE = 256
ROUNDS = 3
TICK = 0.001

Ask = Callable[[bytes], Awaitable[float]]


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


async def with_feed() -> dict[str, float]:
    feed = Feed(max_pending=CLIENTS)
    model = new_model()

    async def answer(loader: DataLoader2[Any]) -> None:
        async for batch in loader:
            batch.reply(await asyncio.to_thread(step, model, batch.data))

    graph = feed.map(decode).batch(32, max_wait=0.003)
    async with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        task = asyncio.create_task(answer(loader))
        measured = await measure(feed.ask, model)
        await feed.drain()
        await task
    return measured | {"fill": feed.stats().batch_fill}


async def with_threads() -> dict[str, float]:
    model, pool = new_model(), ThreadPoolExecutor(max_workers=32)
    loop = asyncio.get_running_loop()

    async def ask(jpeg: bytes) -> float:
        return await loop.run_in_executor(pool, lambda: step(model, [decode(jpeg)])[0])

    with pool:
        return await measure(ask, model)


async def measure(ask: Ask, model: torch.nn.Module) -> dict[str, float]:
    """Return requests per second, latencies and the loop's worst gap, in milliseconds."""
    bodies = jpegs()
    expected = [step(model, [decode(body)])[0] for body in bodies]
    await asyncio.gather(*map(ask, bodies))
    latencies: list[float] = []

    async def client(number: int) -> None:
        for turn in range(REQUESTS // CLIENTS):
            which = (number + turn) % len(bodies)
            began = time.perf_counter()
            answer = await ask(bodies[which])
            latencies.append(time.perf_counter() - began)
            assert abs(answer - expected[which]) < 1e-4, "an answer to another request"

    gaps: list[float] = []
    watching = asyncio.create_task(watch(gaps))
    began = time.perf_counter()
    await asyncio.gather(*map(client, range(CLIENTS)))
    seconds = time.perf_counter() - began
    watching.cancel()
    latencies.sort()
    return {
        "requests/s": len(latencies) / seconds,
        "p50 ms": 1000 * latencies[len(latencies) // 2],
        "p99 ms": 1000 * latencies[len(latencies) * 99 // 100],
        "worst gap ms": 1000 * max(gaps),
    }


async def watch(gaps: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK)
        gaps.append(time.perf_counter() - began - TICK)


WAYS = {"feed, 2 workers": with_feed, "thread pool": with_threads}


def main() -> None:
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        print(json.dumps(asyncio.run(WAYS[sys.argv[1]]())))
        return
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            command = [sys.executable, "-m", "tests.benchmarks.serving", way]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            measured[way].append(json.loads(done.stdout))
    for way, rounds in measured.items():
        medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        shown = "  ".join(f"{key} {value:,.2f}" for key, value in medians.items())
        print(f"{way:16} {shown}")


if __name__ == "__main__":
    main()
