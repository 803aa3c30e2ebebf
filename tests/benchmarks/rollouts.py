"""What a rollout costs beside its calls: ``python -m tests.benchmarks.rollouts``.

This file is about a command. It compares a rollout with what people write by hand, a semaphore
around each call, in turns, by CPU time; and it looks for how long a loop is held up that has
thousands of calls in flight.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine

from asyncloader import DataLoader2, Version
from asyncloader.datapipes.iter import IterableWrapper
from tests.benchmarks.sizes import sized

CALLS = sized(40_000, 400)
ROUNDS = sized(5, 1)
BATCH = 32
IN_FLIGHT = sized(4096, 64)
SECONDS = sized(15.0, 0.2)


async def answer(prompt: int) -> int:
    """Return the prompt, as a server would."""
    await asyncio.sleep(0)
    return prompt


async def answer_later(prompt: int) -> int:
    """Return the prompt after half a second or so."""
    await asyncio.sleep(0.5 * random.lognormvariate(0, 0.5))
    return prompt


async def by_hand(prompts: int, group: int, concurrency: int) -> int:
    """Ask for groups with a semaphore around each call; return how many there were."""
    free = asyncio.Semaphore(concurrency)

    async def one(prompt: int) -> int:
        async with free:
            return await answer(prompt)

    async def together(prompt: int) -> list[int]:
        return await asyncio.gather(*(one(prompt) for _ in range(group)))

    running: set[asyncio.Task[list[int]]] = set()
    count = 0
    for prompt in range(prompts):
        running.add(asyncio.ensure_future(together(prompt)))
        if len(running) >= concurrency:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            count += len(done)
    return count + len(await asyncio.gather(*running))


async def rolled_out(prompts: int, group: int, concurrency: int) -> int:
    """Ask for groups by a rollout whose trainer needs no time; return how many there were."""
    policy, count = Version(), 0
    graph = IterableWrapper(range(prompts)).rollout(
        answer,
        group=group,
        concurrency=concurrency,
        version=policy,
        max_lag=2,
        per_step=max(BATCH, concurrency),
    )
    async with DataLoader2(graph.batch(BATCH), acknowledge=True) as loader:
        async for batch in loader:
            count += len(batch)
            policy.advance()
            loader.ack()
    return count


def cpu_of(
    work: Callable[[int, int, int], Coroutine[None, None, int]], group: int, concurrency: int
) -> float:
    """Return how many microseconds of CPU time a group takes."""
    prompts = CALLS // group
    begun = time.process_time()
    count = asyncio.run(work(prompts, group, concurrency))
    assert count == prompts
    return (time.process_time() - begun) / prompts * 1e6


async def gaps() -> list[float]:
    """Return for how long each turn of a busy loop took, in milliseconds, ascending."""
    found: list[float] = []

    async def beat() -> None:
        latest = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            found.append((now - latest) * 1e3)
            latest = now

    policy = Version()
    graph = IterableWrapper(range(10**9)).rollout(
        answer_later,
        group=8,
        concurrency=IN_FLIGHT,
        version=policy,
        max_lag=4,
        per_step=max(IN_FLIGHT // 8, BATCH),
    )
    begun = time.perf_counter()
    async with DataLoader2(graph.batch(BATCH), acknowledge=True) as loader:
        beating = asyncio.ensure_future(beat())
        async for _ in loader:
            policy.advance()
            loader.ack()
            if time.perf_counter() - begun > SECONDS:
                break
        beating.cancel()
    return sorted(found)


def main() -> None:
    """Print both as tables."""
    print("CPU of a group, in microseconds: by hand, by rollout, beside its calls")
    for group in (1, 8):
        for concurrency in (64, 512):
            pairs = [
                (cpu_of(by_hand, group, concurrency), cpu_of(rolled_out, group, concurrency))
                for _ in range(ROUNDS)
            ]
            hand, rollout = (min(figures) for figures in zip(*pairs, strict=True))
            print(
                f"group={group} concurrency={concurrency}: {hand:.1f} {rollout:.1f}"
                f" {rollout - hand:+.1f}"
            )
    found = asyncio.run(gaps())
    shares = {"half": 0.5, "99 %": 0.99, "99.9 %": 0.999, "all": 1.0}
    told = (f"{name} {found[int((len(found) - 1) * at)]:.1f}" for name, at in shares.items())
    print(f"turns of a loop with {IN_FLIGHT} calls in flight, at most (ms): {', '.join(told)}")


if __name__ == "__main__":
    main()
