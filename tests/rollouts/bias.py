"""Whom a rollout leaves out: ``python -m tests.rollouts.bias``.

This file is about a table. Prompts take log-normal times, each the same time again; for every
``order`` and ``on_stale`` it says how many of the slowest tenth were left out, how many calls were
made, and how many prompts were trained in a second of the scripted clock.
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

    def left_out(self, slowest: int) -> int:
        """Return how many of the slowest were not trained."""
        by_time = sorted(range(len(self.times)), key=self.times.__getitem__, reverse=True)
        return len(set(by_time[:slowest]) - self.trained)

    async def train(self, settings: dict[str, Any]) -> None:
        """Train all prompts, but those that are left out."""
        version = Version()

        async def generate(prompt: int) -> int:
            self.calls += 1
            await asyncio.sleep(self.times[prompt])
            return prompt

        answers = IterableWrapper(range(len(self.times))).rollout(
            generate,
            concurrency=CONCURRENCY,
            version=version,
            max_lag=MAX_LAG,
            per_step=PER_STEP,
            **settings,
        )
        async with DataLoader2(answers.batch(PER_STEP), acknowledge=True) as loader:
            async for batch in loader:
                await asyncio.sleep(STEP_SECONDS)
                version.advance()
                loader.ack()
                self.trained.update(batch)
        self.seconds = asyncio.get_running_loop().time()


def measured(settings: dict[str, Any], prompts: int, seed: int) -> Measured:
    """Return what a program with these settings does."""
    draw = random.Random(seed)
    found = Measured([math.exp(draw.gauss(0.0, WIDTH)) for _ in range(prompts)])
    with ScriptedLoop() as loop:
        loop.run_until_complete(found.train(settings))
    return found


def table(prompts: int, seed: int) -> list[str]:
    """Return the table's lines."""
    slowest = prompts // 10
    lines = [
        f"| order, on_stale | left out | of the slowest {slowest} | calls | prompts a second |",
        "|---|---|---|---|---|",
    ]
    for name, settings in WAYS.items():
        found = measured(settings, prompts, seed)
        speed = len(found.trained) / found.seconds
        lines.append(
            f"| {name} | {found.left_out(prompts)} | {found.left_out(slowest)} | {found.calls}"
            f" | {speed:.2f} |"
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
