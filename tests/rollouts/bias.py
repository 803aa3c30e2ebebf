"""Whom a rollout leaves out: ``python -m tests.rollouts.bias``.

This file is about a table. Prompts take log-normal times, each the same time again; for every
``order`` and ``on_stale``, and for loops as people write them by hand, it says how many of the
slowest tenth were left out, how many calls were made, how many versions newer the policy was at
most, and how many prompts were trained in a second of the scripted clock.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from dataclasses import dataclass, field
from typing import Any

from asyncloader import DataLoader2, Version
from asyncloader.datapipes.iter import IterableWrapper
from tests.rollouts.by_hand import SHAPES, Answer, Sizes
from tests.rollouts.clock import ScriptedLoop

#: How the calls and the trainer are: seconds, prompts in a step, and how many may be in flight.
WIDTH, STEP_SECONDS, PER_STEP, MAX_LAG, CONCURRENCY = 1.5, 4.0, 16, 2, 64

WAYS: dict[str, dict[str, Any]] = {
    "source": {"order": "source"},
    "window of 8": {"order": 8},
    f"window of {MAX_LAG * PER_STEP + 1}": {"order": MAX_LAG * PER_STEP + 1},
    "ready, again": {"order": "ready"},
    "ready, again 3 times": {"order": "ready", "max_stale": 3},
    "ready, drop": {"order": "ready", "on_stale": "drop"},
}


@dataclass
class Measured:
    """What a program did with its prompts."""

    times: list[float]
    trained: set[int] = field(default_factory=set)
    calls: int = 0
    seconds: float = 0.0
    #: How many versions newer the policy was that trained an answer, at most.
    most_lag: int = 0
    version: Version = field(default_factory=Version)

    def left_out(self, slowest: int) -> int:
        """Return how many of the slowest were not trained."""
        by_time = sorted(range(len(self.times)), key=self.times.__getitem__, reverse=True)
        return len(set(by_time[:slowest]) - self.trained)

    @property
    def prompts(self) -> range:
        """All prompts."""
        return range(len(self.times))

    async def call(self, prompt: int) -> Answer:
        """Answer a prompt after its time."""
        self.calls += 1
        version = self.version.number
        await asyncio.sleep(self.times[prompt])
        return prompt, version

    async def step(self, batch: list[Answer]) -> None:
        """Train a batch, and send the new weights."""
        self.most_lag = max(self.most_lag, *map(self.lag, batch))
        await asyncio.sleep(STEP_SECONDS)
        self.version.advance()
        self.trained.update(prompt for prompt, _ in batch)

    def lag(self, answer: Answer) -> int:
        """Return how many versions newer the policy is now."""
        return self.version.number - answer[1]

    async def train(self, settings: dict[str, Any]) -> None:
        """Train all prompts, but those that are left out."""
        answers = IterableWrapper(self.prompts).rollout(
            self.call,
            concurrency=CONCURRENCY,
            version=self.version,
            max_lag=MAX_LAG,
            per_step=PER_STEP,
            **settings,
        )
        async with DataLoader2(answers.batch(PER_STEP), acknowledge=True) as loader:
            async for batch in loader:
                await self.step(batch)
                loader.ack()

    async def train_by_hand(self, name: str) -> None:
        """Train them by one of the loops that people write."""
        await SHAPES[name](self, Sizes(CONCURRENCY, PER_STEP, MAX_LAG))


def measured(name: str, prompts: int, seed: int) -> Measured:
    """Return what a program does that goes one of the ways."""
    draw = random.Random(seed)
    found = Measured([math.exp(draw.gauss(0.0, WIDTH)) for _ in range(prompts)])
    with ScriptedLoop() as loop:
        way = found.train(WAYS[name]) if name in WAYS else found.train_by_hand(name)
        loop.run_until_complete(way)
        found.seconds = loop.time()
    return found


def table(prompts: int, seed: int) -> list[str]:
    """Return the table's lines."""
    slowest = prompts // 10
    lines = [
        f"| order, on_stale | left out | of the slowest {slowest} | calls | versions later, at most"
        " | prompts a second |",
        "|---|---|---|---|---|---|",
    ]
    for name in (*WAYS, *SHAPES):
        found = measured(name, prompts, seed)
        speed = len(found.trained) / found.seconds
        lines.append(
            f"| {name} | {found.left_out(prompts)} | {found.left_out(slowest)} | {found.calls}"
            f" | {found.most_lag} | {speed:.2f} |"
        )
    return lines


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.rollouts.bias", description=__doc__)
    parser.add_argument("--prompts", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for line in table(given.prompts, given.seed):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
