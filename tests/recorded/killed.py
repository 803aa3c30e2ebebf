"""A program that works on what cannot be repeated, and is killed at any moment.

It saves what it has trained on together with the loader's state, as a trainer does. Run by hand, it
is started and killed again and again: ``python -m tests.recorded.killed --lines 100``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

COUNT = 300


async def ask(prompt: int) -> int:
    """Answer after a while, or fail."""
    await asyncio.sleep(random.random() / 1000)
    if random.random() < 0.05:
        raise OSError("the server is away")
    return prompt


async def widened(prompt: int) -> list[list[int]]:
    """Answer with another number of parts each time."""
    return split(prompt)


def split(prompt: int) -> list[list[int]]:
    """Return some parts of a prompt, each with the number of all."""
    count = random.randrange(1, 4)
    return [[prompt, at, count] for at in range(count)]


def is_good(_: Any) -> bool:
    """Say yes, most of the time."""
    return random.random() < 0.7


def same(item: Any) -> Any:
    """Return the item."""
    return item


def both(prompt: int) -> list[list[int]]:
    """Return two parts, always the same."""
    return [[prompt, 0, 2], [prompt, 1, 2]]


def prompts() -> Any:
    """Return the prompts, in an order that repeats."""
    return IterableWrapper(range(COUNT)).shuffle().sharding_filter()


GRAPHS: list[Callable[[], Any]] = [
    lambda: (
        prompts()
        .async_map(ask, concurrency=8, ordered=False, on_error="skip", repeatable=False)
        .filter(is_good)
        .batch(3)
    ),
    lambda: prompts().filter(is_good, repeatable=False).shuffle(buffer_size=10).batch(2),
    lambda: prompts().thread_map(same, concurrency=3, ordered=False).flatmap(both).batch(4),
    lambda: (
        prompts()
        .async_map(widened, concurrency=8, repeatable=False, keep_results=True)
        .flatmap(same)
        .shuffle(buffer_size=9)
        .batch(4)
    ),
    lambda: prompts().flatmap(split, repeatable=False).shuffle(buffer_size=9).batch(4),
]


def elements_of(batch: list[Any]) -> list[str]:
    """Return the names of the numbers, or parts, in a batch."""
    return [json.dumps(each) for each in batch]


def program(path: Path, seed: int) -> None:
    """Train from where the file says, and save after each step."""
    draw = random.Random(seed)
    graph, workers = draw.choice(GRAPHS)(), draw.choice((0, 0, 2))
    acknowledges = draw.random() < 0.5
    trained, state = json.loads(path.read_text("ascii")) if path.exists() else ([], None)
    service = None
    if workers:
        # Another number each time.
        count = 1 + len(trained) % 3
        service = MultiProcessingReadingService(count, on_worker_death="restart")
    loader = DataLoader2(graph, None, service, seed=seed, acknowledge=acknowledges)
    with loader:
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            trained += elements_of(batch)
            if acknowledges:
                loader.ack()
            saved = [trained, loader.state_dict(include_datapipe=False)]
            path.with_suffix(".new").write_text(json.dumps(saved), "ascii")
            path.with_suffix(".new").replace(path)
            print("saved", flush=True)
        left_out = loader.stats().left_out
    print(json.dumps([trained, left_out]), flush=True)


def wrong(trained: list[str], left_out: dict[str, int]) -> Iterator[str]:
    """Say what is not as promised of all that was trained on, and left out."""
    twice = [each for each, times in Counter(trained).items() if times > 1]
    if twice:
        yield f"trained on twice: {twice}"
    found = [json.loads(each) for each in trained]
    numbers = {each[0] if isinstance(each, list) else each for each in found}
    if len(numbers) + sum(left_out.values()) != COUNT:
        yield f"{len(numbers)} trained on and {left_out} left out of {COUNT}"
    parts: dict[int, set[tuple[int, int]]] = {}
    for each in found:
        if isinstance(each, list):
            parts.setdefault(each[0], set()).add((each[1], each[2]))
    # Those of one answer, and all of them.
    torn = [
        number for number, own in parts.items() if own != {(at, len(own)) for at in range(len(own))}
    ]
    if torn:
        yield f"parts of several answers: {torn}"


def killed_line(seed: int) -> tuple[int, list[str]]:
    """Start the program until it ends, killing it meanwhile; how often, and what was wrong."""
    draw, kills = random.Random(f"kills {seed}"), 0
    command = [sys.executable, "-m", "tests.recorded.killed", "--seed", str(seed), "--path"]
    with tempfile.TemporaryDirectory() as folder:
        while True:
            child = subprocess.Popen(
                [*command, os.path.join(folder, "model")], stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            steps = draw.randrange(40) if kills < 4 else COUNT * 4
            lines = list(zip(range(steps), child.stdout, strict=False))
            if len(lines) == steps:
                # At any moment of a step.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(draw.random() / 100)
                child.send_signal(signal.SIGKILL)
            rest = child.communicate()[0].splitlines()
            last = [line for _, line in lines] + rest
            if child.returncode == 0:
                return kills, list(wrong(*json.loads(last[-1])))
            if child.returncode != -signal.SIGKILL:
                return kills, [f"it ended with {child.returncode}"]
            kills += 1


def main() -> int:
    """Be the program, or kill it."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded.killed", description=__doc__)
    parser.add_argument("--lines", type=int, default=100, help="how many programs are killed")
    parser.add_argument("--first", type=int, help="the first one's seed; drawn, if not given")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.path is not None:
        program(given.path, given.seed)
        return 0
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    print(f"lines {first} to {first + given.lines - 1}", flush=True)
    seeds = range(first, first + given.lines)
    kills = failed = 0
    with ThreadPoolExecutor(2) as pool:
        for seed, (count, said) in zip(seeds, pool.map(killed_line, seeds), strict=True):
            kills, failed = kills + count, failed + bool(said)
            for each in said:
                print(f"line {seed}: {each}", flush=True)
    print(f"{given.lines} programs, killed {kills} times, {failed} wrong")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
