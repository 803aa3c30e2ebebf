"""A random program that uses ``rollout``: its graph, its trainer, and what the policy is like.

This file is about ``Plan``, which is drawn from a seed and is the same in all runs of a line.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from asyncloader import Version
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.rollout_calls import InFlight
from tests.recorded.lines import BEFORE, Chance, index_of, same

#: The least and the most that a result is long, and how much goes into a batch of such.
SHORTEST, LONGEST, BUDGET = 4, 6, 24


class Played(Protocol):
    """What a graph calls: the policy, and those who judge and see its answers."""

    @property
    def generate(self) -> Callable[..., Any]:
        """The function of the rollout."""

    def hand_on(self, item: Any) -> Any: ...

    def likes(self, item: Any) -> bool: ...

    def length(self, item: Any) -> int: ...

    async def reward(self, item: Any) -> Any: ...


@dataclass(frozen=True)
class Weather:
    """What may happen to a call, with which probability."""

    #: Delays are e to the power of a normal distribution of this width.
    width: float = 0.0
    fails: float = 0.0
    is_put_back: float = 0.0
    stalls: float = 0.0
    #: What a call does that is cancelled, besides ending.
    is_put_back_if_cancelled: float = 0.0
    ends_late_if_cancelled: float = 0.0
    #: How often a minute the server goes away, for how many seconds.
    goes_away: float = 0.0
    is_away_for: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What a program is made of."""

    size: int
    group: int | None
    concurrency: int
    max_lag: int | None
    order: str | int | None
    #: ``batch(size)`` for a number, ``batch_tokens`` for "tokens", and items one by one for 0.
    batches: int | Literal["tokens"]
    #: Each version is trained with so many batches.
    batches_per_step: int
    filters: bool
    rewards: bool
    drops_last: bool
    #: Pipes behind the batches.
    prefetches: int
    #: The room of a shuffle in front of the batches.
    shuffles: int
    acknowledges: bool
    #: How many batches wait between the loader and the trainer; None is for no queue.
    queue: int | None
    in_flight: tuple[InFlight, ...]
    #: Whether a batch may need more prompts than may be begun: an error has to say so.
    starves: bool
    training: float
    weather: Weather
    more: dict[str, Any] = field(default_factory=dict)
    #: On how many ranks a run is, one of these; none is for a program that is not divided.
    ranks: tuple[int, ...] = ()

    @property
    def per_step(self) -> int:
        """How many prompts one version trains at least."""
        if self.starves:
            return 1
        least = BUDGET // LONGEST if self.batches == "tokens" else self.batches or 1
        return least * self.batches_per_step

    @property
    def capacity(self) -> int | None:
        """How many prompts may be begun and not settled, or None for any number."""
        if self.max_lag is None or self.order == "ready":
            return None
        return (self.max_lag + 1) * self.per_step - (self.window - 1)

    @property
    def window(self) -> int:
        """At most so many out of order."""
        return self.order if isinstance(self.order, int) else 1

    @property
    def attempts(self) -> int | None:
        """How many calls for a prompt may fail."""
        attempts: int | None = self.more["attempts"]
        return attempts

    def prompts(self, seed: int) -> Any:
        """Return the prompts, each equal to its number."""
        draw, pipe = random.Random(f"prompts {seed}"), IterableWrapper(range(self.size))
        for _ in range(draw.randint(0, 2)):
            pipe = draw.choice(BEFORE)(pipe, draw, Chance(0))
        pipe = pipe.enumerate().map(index_of)
        return pipe.sharding_filter() if self.ranks else pipe

    def settings(self, version: Version) -> dict[str, Any]:
        """Return those of the rollout."""
        settings: dict[str, Any] = {"concurrency": self.concurrency, **self.more}
        if self.group is not None:
            settings["group"] = self.group
        if self.order is not None:
            settings["order"] = self.order
        if self.max_lag is not None:
            settings |= {"max_lag": self.max_lag, "per_step": self.per_step}
        return settings | {"version": version}

    def graph(self, seed: int, played: Played, version: Version) -> Any:
        """Return the graph."""
        pipe = self.prompts(seed).rollout(played.generate, **self.settings(version))
        pipe = pipe.map(played.hand_on)
        if self.rewards:
            pipe = pipe.async_map(played.reward, concurrency=3)
        if self.filters:
            pipe = pipe.filter(played.likes)
        if self.shuffles:
            pipe = pipe.shuffle(buffer_size=self.shuffles)
        if self.batches == "tokens":
            pipe = pipe.batch_tokens(BUDGET, length=played.length)
        elif self.batches:
            pipe = pipe.batch(self.batches, self.drops_last)
        if self.prefetches:
            pipe = pipe.map(same).prefetch(self.prefetches)
        return pipe

    def __str__(self) -> str:
        usual = {"weather": Weather(), "more": {}}
        told = {name: value for name, value in asdict(self).items() if value not in (None, 0, {})}
        return ", ".join(f"{name}={value}" for name, value in (usual | told).items())


def drawn(seed: int) -> Plan:
    """Return the plan of a seed."""
    draw = random.Random(f"plan {seed}")
    max_lag = draw.choice((None, None, 0, 1, 1, 1, 2, 3))
    order = _order(draw, max_lag)
    batches: Any = draw.choice((1, 2, 3, 4, 6, "tokens", 0))
    if order == "ready" and max_lag is not None:
        # A batch judges what is stale.
        batches = batches or 3
    if batches == "tokens" and max_lag == 0:
        batches = 4
    # Only so many batches are made and not acknowledged, if they come as they are ready.
    steps = 1 if order == "ready" and max_lag is not None else draw.choice((1, 1, 2, 3))
    per_step = (BUDGET // LONGEST if batches == "tokens" else batches or 1) * steps
    if order == "window":
        # A batch of tokens needs so many prompts that few may be out of order.
        most = 2 if batches == "tokens" else (max_lag or 0) * per_step + 1
        if max_lag is None:
            most = 12
        order = draw.randint(2, min(most, 12)) if most > 1 else "source"
    starves = max_lag == 1 and order in (None, "source") and draw.random() < 0.1
    if starves:
        batches, steps = "tokens", 1
    group = draw.choice((None, None, 1, 2, 4))
    # States of ranks are of the same number of items, of which a queue may have taken some.
    ranks = random.Random(f"ranks {seed}").choice(((), (), (), (2,), (2, 3), (1, 2, 3)))
    weather = _weather(draw)
    return Plan(
        size=draw.choice((0, 1, 7, 25, 60, 120)),
        group=group,
        concurrency=draw.choice((1, 2, 4, 16, 64)),
        max_lag=max_lag,
        order=order,
        batches=batches,
        batches_per_step=steps,
        filters=draw.random() < 0.5,
        rewards=draw.random() < 0.2,
        drops_last=draw.random() < 0.3,
        prefetches=draw.choice((0, 0, 1, 3)),
        shuffles=draw.choice((0, 0, 2, 5)) if max_lag is None else 0,
        acknowledges=max_lag is not None or draw.random() < 0.6 or bool(ranks),
        queue=draw.choice((None, 1, 2, 5)),
        in_flight=draw.choice((("wait",), ("keep",), ("abort",), ("wait", "keep", "abort"), ())),
        starves=starves,
        training=draw.choice((0.0, 0.3, 3.0)),
        weather=weather,
        more=_more(draw, group, weather),
        ranks=ranks,
    )


def _order(draw: random.Random, max_lag: int | None) -> Any:
    if max_lag is None:
        return draw.choice((None, "ready", "source", "window"))
    return draw.choice((None, "source", "window", "ready", "ready", "ready"))


def _weather(draw: random.Random) -> Weather:
    def maybe(probability: float) -> float:
        return probability if draw.random() < 0.4 else 0.0

    return Weather(
        width=draw.choice((0.0, 0.5, 1.5)),
        fails=maybe(0.15),
        is_put_back=maybe(0.2),
        stalls=maybe(0.03),
        is_put_back_if_cancelled=maybe(0.5),
        ends_late_if_cancelled=maybe(0.2),
        goes_away=maybe(1.0),
        is_away_for=draw.choice((1.0, 10.0, 60.0)),
    )


def _more(draw: random.Random, group: int | None, weather: Weather) -> dict[str, Any]:
    """Return the settings of which a program has some."""
    more: dict[str, Any] = {
        "on_stale": draw.choice(("again", "again", "drop")),
        "max_stale": draw.choice((None, None, 0, 2)),
        "on_error": "raise" if draw.random() < 0.15 else "again",
        "attempts": draw.choice((3, 1, 5, None)),
        "backoff": draw.choice((0.1, 1.0)),
        "max_failures": draw.choice((100_000, 100_000, 30)),
        "most_ahead": draw.choice((100_000, 100_000, 10)),
        "keep_results": draw.random() < 0.4,
    }
    if weather.stalls or draw.random() < 0.2:
        more["timeout"] = draw.choice((5.0, 30.0))
    if group is not None and draw.random() < 0.3:
        more |= {"min_group": draw.randint(1, group), "group_timeout": draw.choice((1.0, 5.0))}
    return more
