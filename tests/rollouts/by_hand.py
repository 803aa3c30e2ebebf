"""What people write by hand where there is no rollout, each in the shape of a known trainer.

This file is about ``SHAPES``: functions that ask for prompts and train the answers, to be held
against a rollout in the table of ``tests.rollouts.bias``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

#: A prompt's answer: its number, and the version that was there when the call began.
Answer = tuple[int, int]


class Played(Protocol):
    """The policy and the trainer of a program."""

    @property
    def prompts(self) -> range:
        """All prompts."""

    async def call(self, prompt: int) -> Answer:
        """Return the answer."""

    async def step(self, batch: list[Answer]) -> None:
        """Train a batch; the policy is newer then."""

    def lag(self, answer: Answer) -> int:
        """Return how many versions newer the policy is now."""


@dataclass(frozen=True)
class Sizes:
    """How much is in flight and trained at a time, and how old it may be."""

    concurrency: int
    per_step: int
    max_lag: int


Shape = Callable[[Played, Sizes], Awaitable[None]]


async def with_a_semaphore(played: Played, sizes: Sizes) -> None:
    """Ask for all prompts at once, behind a semaphore; train what is ready."""
    free = asyncio.Semaphore(sizes.concurrency)

    async def one(prompt: int) -> Answer:
        async with free:
            return await played.call(prompt)

    batch: list[Answer] = []
    for coming in asyncio.as_completed([one(prompt) for prompt in played.prompts]):
        batch.append(await coming)
        if len(batch) == sizes.per_step:
            await played.step(batch)
            batch = []
    if batch:
        await played.step(batch)


async def one_batch_ahead(played: Played, sizes: Sizes) -> None:
    """Ask for the next batch while one is trained, as slime's asynchronous loop does."""

    async def together(prompts: range) -> list[Answer]:
        return await asyncio.gather(*map(played.call, prompts))

    prompts = played.prompts
    batches = [prompts[at : at + sizes.per_step] for at in range(0, len(prompts), sizes.per_step)]
    coming = asyncio.ensure_future(together(batches[0]))
    for following in [*batches[1:], range(0)]:
        batch = await coming
        coming = asyncio.ensure_future(together(following))
        await played.step(batch)
    await coming


async def admitted_by_count(played: Played, sizes: Sizes) -> None:
    """Begin as many as may be trained in time if they come in order, as AReaL does."""
    waiting, ready = deque(played.prompts), list[Answer]()
    running: set[asyncio.Task[Answer]] = set()
    steps = trained = 0
    news = asyncio.Event()

    def ended(task: asyncio.Task[Answer]) -> None:
        running.discard(task)
        ready.append(task.result())
        begin()
        news.set()

    def begin() -> None:
        may_be = (steps + sizes.max_lag + 1) * sizes.per_step
        while waiting and len(running) < sizes.concurrency:
            if trained + len(ready) + len(running) >= may_be:
                return
            task = asyncio.ensure_future(played.call(waiting.popleft()))
            running.add(task)
            task.add_done_callback(ended)

    begin()
    while ready or running:
        if len(ready) < sizes.per_step and running:
            news.clear()
            await news.wait()
            continue
        # The oldest of what is ready comes first.
        ready.sort()
        batch, ready[:] = ready[: sizes.per_step], ready[sizes.per_step :]
        trained += len(batch)
        await played.step(batch)
        steps += 1
        begin()


async def workers_that_requeue(played: Played, sizes: Sizes) -> None:
    """Let a worker for each prompt of a batch ask, and ask anew for what is too old.

    So does tinker-cookbook.
    """
    waiting: asyncio.Queue[int] = asyncio.Queue()
    ready: asyncio.Queue[Answer] = asyncio.Queue()
    for prompt in played.prompts:
        waiting.put_nowait(prompt)

    async def work() -> None:
        while True:
            ready.put_nowait(await played.call(await waiting.get()))

    workers = [asyncio.ensure_future(work()) for _ in range(sizes.per_step)]
    batch: list[Answer] = []
    left = len(played.prompts)
    while left:
        answer = await ready.get()
        if played.lag(answer) > sizes.max_lag:
            waiting.put_nowait(answer[0])
            continue
        batch.append(answer)
        if len(batch) == min(sizes.per_step, left):
            await played.step(batch)
            left -= len(batch)
            batch = []
    for worker in workers:
        worker.cancel()


SHAPES: dict[str, Shape] = {
    "by hand: a semaphore": with_a_semaphore,
    "by hand: one batch ahead (slime)": one_batch_ahead,
    "by hand: admitted by count (AReaL)": admitted_by_count,
    "by hand: workers that requeue (tinker-cookbook)": workers_that_requeue,
}
