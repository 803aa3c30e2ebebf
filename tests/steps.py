"""Going on from a state at every step.

This file is about loaders that are fresh or begin at a state, the states of one at each of its
steps, and what has to follow them.
"""

from __future__ import annotations

import json
import random
from typing import Any

from asyncloader import DataLoader2

SEED = 4


def loader_from(
    graph: Any, service: Any = None, state: Any = None, **settings: Any
) -> DataLoader2[Any]:
    """Return a loader that begins with the first of a seed's epochs, or with a state as JSON."""
    loader = DataLoader2(graph, reading_service=service, **settings)
    if state is None:
        loader.seed(SEED)
    else:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def states_at_every_step(loader: DataLoader2[Any]) -> list[Any]:
    """Return a state after 0, 1, 2 … items, and one after the end was seen."""
    with loader:
        states = [loader.state_dict(include_datapipe=False)]
        for _ in loader:
            states.append(loader.state_dict(include_datapipe=False))  # noqa: PERF401
        states.append(loader.state_dict(include_datapipe=False))
    return states


async def states_at_every_async_step(loader: DataLoader2[Any]) -> list[Any]:
    """Return what ``states_at_every_step`` does, of an ``async for``."""
    async with loader:
        states = [loader.state_dict(include_datapipe=False)]
        async for _ in loader:
            states.append(loader.state_dict(include_datapipe=False))  # noqa: PERF401
        states.append(loader.state_dict(include_datapipe=False))
    return states


def some_steps(count: int) -> set[int]:
    """Return the first and the last steps, and two between them, the same each time."""
    return {0, 1, count - 2, count - 1, *random.Random(count).sample(range(count), 2)}


def check_rest(epochs: list[list[Any]], step: int, rest: list[list[Any]]) -> None:
    """Hold what followed the state at a step, in one epoch or two, against three whole epochs."""
    first, second, third = epochs
    expected = [first[step:], second] if step <= len(first) else [second, third]
    assert rest == expected[: len(rest)], f"at step {step}"
