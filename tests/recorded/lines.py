"""Random graphs with work that cannot be repeated, and lines of states over them.

A line is a run that is left and resumed, maybe many times, each time from the state before. Every
item is a number of its own, equal to its number in the stream that the section reads, so that what
was called, delivered and left out is known outside of the loader.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    get_worker_info,
)
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from asyncloader.graph import to_text

SIZES = (0, 1, 7, 40, 150)
IN_WORKERS = SHARDING_PRIORITIES.MULTIPROCESSING


class Unlucky(Exception):
    """Ends a run in the middle."""


class Chance:
    """Functions that answer differently each time.

    The numbers that they are called with are written to a file, from any process. Workers are
    killed with some probability at each call.
    """

    def __init__(self, seed: int, calls: str = os.devnull, kills: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._calls = calls
        self._kills = kills

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Each process has an order of its own, also that which takes the place of another.
        self.__dict__ = state | {"_random": random.Random(f"{state['_seed']} {os.getpid()}")}

    def called(self) -> set[int]:
        """Return the numbers that the functions were called with."""
        with open(self._calls, encoding="ascii") as file:
            return set(map(int, file.read().split()))

    def _note(self, item: Any) -> None:
        with open(self._calls, "a", encoding="ascii") as file:
            file.write("".join(f"{number} " for number in numbers_in(item)))
        if get_worker_info() is not None and self._random.random() < self._kills:
            os.kill(os.getpid(), signal.SIGKILL)

    def work(self, item: Any) -> Any:
        """Return the item, or fail."""
        self._note(item)
        if self._random.random() < 0.05:
            raise ValueError("not this time")
        return item

    def risk(self, item: Any) -> Any:
        """Return the item, or end the run."""
        self._note(item)
        if self._random.random() < 0.01:
            raise Unlucky
        return item

    async def ask(self, item: Any) -> Any:
        """Return the item after a while, or fail."""
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)
        return self.work(item)

    def likes(self, item: Any) -> bool:
        """Say yes, most of the time."""
        self._note(item)
        return self._random.random() < 0.8

    def several(self, item: int) -> Iterator[Part]:
        """Yield the parts of an item, which can be told from those of another call; or fail."""
        self._note(item)
        if self._random.random() < 0.05:
            raise ValueError("not this time")
        yield from self._pieces(item)

    async def several_soon(self, item: int) -> AsyncIterator[Part]:
        """Yield the same, after a while."""
        await slow(item)
        for each in self.several(item):
            yield each

    def several_at_once(self, item: int) -> list[Part]:
        """Return the parts of an item in a list."""
        self._note(item)
        return [*self._pieces(item)]

    def several_instead(self, error: Exception, item: int) -> Iterator[Part]:
        """Yield the parts of an item that failed."""
        return self._pieces(item)

    def _pieces(self, item: int) -> Iterator[Part]:
        answer = self._random.random()
        return ((each.number, each.at, answer) for each in pieces(item))

    def key(self, item: Any) -> int:
        """Return one of three."""
        return self._random.randrange(3)

    def length(self, item: Any) -> int:
        """Return a length, sometimes one that is too long."""
        return self._random.randint(1, 5)


def numbers_in(item: Any) -> list[int]:
    """Return the numbers in an item, which may be a batch, or a group with its key."""
    return [each.number if isinstance(each, Piece) else each for each in elements_in(item)]


def elements_in(item: Any) -> list[Any]:
    """Return the numbers and the parts in an item, which may be a batch, or a group."""
    if isinstance(item, Keyed):
        item = item.group
    if isinstance(item, list):
        return [element for each in item for element in elements_in(each)]
    return [item]


@dataclass
class Keyed:
    """A group of items, with its key."""

    group: list[Any]


def keyed(item: tuple[int, list[Any]]) -> Keyed:
    """Return a group without its key."""
    return Keyed(item[1])


def index_of(pair: tuple[int, Any]) -> int:
    """Return the number of an item."""
    return pair[0]


def first_of(batch: list[Any]) -> Any:
    """Return the first of a list."""
    return batch[0]


def same(item: Any) -> Any:
    """Return the item."""
    return item


#: A number, one of its parts, and what tells the answers of several calls apart.
Part = tuple[int, int, float]

Step = Callable[[Any, random.Random, Chance], Any]

BEFORE: list[Step] = [
    lambda pipe, draw, chance: pipe.shuffle(buffer_size=draw.choice((3, 100))),
    lambda pipe, draw, chance: pipe.map(same),
    lambda pipe, draw, chance: pipe.prefetch(3),
    lambda pipe, draw, chance: pipe.cycle(2),
    lambda pipe, draw, chance: pipe.async_map(slow, concurrency=3),
]

DIVIDED: list[Step] = [
    lambda pipe, draw, chance: pipe.sharding_filter(),
    lambda pipe, draw, chance: pipe.sharding_filter().map(same),
    lambda pipe, draw, chance: pipe.sharding_round_robin_dispatch(IN_WORKERS),
]

FIRST: list[Step] = [
    lambda pipe, draw, chance: pipe.async_map(
        chance.ask,
        concurrency=draw.choice((1, 4, 16)),
        ordered=draw.random() < 0.5,
        on_error="skip",
        repeatable=False,
    ),
    lambda pipe, draw, chance: pipe.thread_map(
        chance.work, concurrency=3, ordered=draw.random() < 0.5, on_error="skip", repeatable=False
    ),
    lambda pipe, draw, chance: pipe.async_map_batches(
        chance.ask, 4, flatten=draw.random() < 0.5, on_error="skip", repeatable=False
    ),
    lambda pipe, draw, chance: pipe.map(chance.work, on_error="skip", repeatable=False),
    lambda pipe, draw, chance: pipe.map(chance.work, on_error=instead, repeatable=False),
    lambda pipe, draw, chance: pipe.map(chance.risk, repeatable=False),
    lambda pipe, draw, chance: pipe.filter(chance.likes, repeatable=False),
]

# In a section, in front of what makes several items of one: they leave nothing out.
WHOLE: list[Step] = [
    lambda pipe, draw, chance: pipe.map(chance.risk, repeatable=False),
    lambda pipe, draw, chance: pipe.async_map(slow, ordered=False, repeatable=False),
    lambda pipe, draw, chance: pipe.thread_map(same, repeatable=False).shuffle(buffer_size=5),
    # The first runs in workers, the second with the loader.
    lambda pipe, draw, chance: (
        pipe.map(same, repeatable=False).map(same, repeatable=False, keep_results=True).prefetch(2)
    ),
]

SEVERAL: list[Step] = [
    lambda pipe, draw, chance: pipe.flatmap(
        chance.several, on_error=chance.several_instead, repeatable=False
    ),
    lambda pipe, draw, chance: pipe.flatmap(
        chance.several_soon, on_error=chance.several_instead, repeatable=False
    ),
    lambda pipe, draw, chance: pipe.map(chance.several_at_once, repeatable=False).unbatch(),
]

BEHIND: list[Step] = [
    lambda pipe, draw, chance: pipe.filter(chance.likes),
    lambda pipe, draw, chance: pipe.batch(draw.choice((1, 3, 5)), draw.random() < 0.3),
    lambda pipe, draw, chance: pipe.batch(3, max_wait=0.001),
    lambda pipe, draw, chance: pipe.shuffle(buffer_size=5),
    lambda pipe, draw, chance: pipe.prefetch(4),
    lambda pipe, draw, chance: pipe.map(same),
    lambda pipe, draw, chance: pipe.thread_map(chance.risk, concurrency=2),
    lambda pipe, draw, chance: pipe.collate(same),
    lambda pipe, draw, chance: pipe.set_length(7),
    lambda pipe, draw, chance: pipe.batch(2, across_workers=True),
    lambda pipe, draw, chance: pipe.groupby(
        chance.key, buffer_size=20, group_size=3, guaranteed_group_size=1
    ),
    lambda pipe, draw, chance: pipe.groupby(chance.key, keep_key=True, buffer_size=20).map(keyed),
    lambda pipe, draw, chance: pipe.max_token_bucketize(4, len_fn=chance.length, buffer_size=5),
    lambda pipe, draw, chance: pipe.pack_sequences(
        7, len_fn=chance.length, open_packs=3, drop_last=draw.random() < 0.3
    ),
    lambda pipe, draw, chance: pipe.async_map(chance.ask, ordered=False, on_error="skip"),
    lambda pipe, draw, chance: pipe.thread_map(chance.work, concurrency=2, on_error="skip"),
]


# Where only the order is lost, all functions repeat, and an item may become several.
READY: list[Step] = [
    lambda pipe, draw, chance: pipe.async_map(slow, concurrency=3, ordered=False),
    lambda pipe, draw, chance: pipe.thread_map(same, concurrency=3, ordered=False),
]

BEHIND_READY: list[Step] = [
    lambda pipe, draw, chance: pipe.filter(is_liked),
    lambda pipe, draw, chance: pipe.shuffle(buffer_size=5),
    lambda pipe, draw, chance: pipe.prefetch(4),
    lambda pipe, draw, chance: pipe.thread_map(same, concurrency=2),
    lambda pipe, draw, chance: pipe.async_map(slow, ordered=False),
]

LAST: list[Step] = [
    lambda pipe, draw, chance: pipe,
    lambda pipe, draw, chance: pipe.batch(draw.choice((1, 3, 5)), draw.random() < 0.3),
    lambda pipe, draw, chance: pipe.batch(2, across_workers=True).collate(same),
    lambda pipe, draw, chance: pipe.map(same),
]


@dataclass(frozen=True)
class Piece:
    """One of the parts of an item."""

    number: int
    at: int
    #: Tells the answers of several calls apart.
    answer: float = field(default=0.0, compare=False)


def piece_of(part: Part) -> Piece:
    """Return a part in another form."""
    return Piece(*part)


def pieces(item: int) -> Iterator[Piece]:
    """Yield none to three parts of an item."""
    return (Piece(item, at) for at in range(item * 7 % 4))


def is_liked(item: Any) -> bool:
    """Say yes, most of the time, and always the same."""
    return hash(item) % 5 > 0


async def slow(item: Any) -> Any:
    """Return the item, in another turn of the loop."""
    await asyncio.sleep(0)
    return item


def instead(error: Exception, item: Any) -> Any:
    """Return the item that failed."""
    return item


@dataclass
class Line:
    """The runs of one random graph, each resumed from the state of the one before."""

    seed: int
    #: What was delivered before the state that the next run resumes from, with its numbers.
    delivered: list[tuple[Any, tuple[int, ...]]] = field(default_factory=list)
    state: dict[str, Any] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    #: Numbers for which a function was called although they were settled.
    again: set[int] = field(default_factory=set)
    runs: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        #: Whether workers run what is before the section, or the section too.
        self._in_workers = self._draw.choices(("", "before", "section"), (8, 1, 3))[0]
        self._kills = self._in_workers == "section" and self._draw.random() < 0.3
        #: Whether functions answer by chance, or only the order is lost: by a pipe, or by workers.
        self._kind = self._draw.choices(("chance", "ready", "as ready"), (6, 3, 1))[0]
        if self._kind == "as ready":
            self._in_workers, self._kills = "section", False
        #: Whether a pipe makes several items of each, others each time.
        self._expands = self._kind == "chance" and self._draw.random() < 0.3
        self._acknowledges = self._draw.random() < 0.5
        #: What was delivered in this run and is not acknowledged, with its numbers.
        self._waiting: list[tuple[Any, tuple[int, ...]]] = []

    def graph(self, chance: Chance) -> Any:
        """Return the graph, the same each time."""
        draw = random.Random(f"graph {self.seed}")
        pipe: Any = IterableWrapper(range(draw.choice(SIZES)))
        for _ in range(draw.randint(0, 2)):
            pipe = draw.choice(BEFORE)(pipe, draw, chance)
        # The number of an item is its place in this stream.
        if self._in_workers == "section":
            pipe = pipe.enumerate().map(index_of)
            pipe = draw.choice(DIVIDED)(pipe, draw, chance)
        else:
            if self._in_workers:
                pipe = pipe.sharding_filter().prefetch(2)
            # This pipe is not in workers.
            pipe = pipe.batch(1, across_workers=True).enumerate().map(index_of)
        if self._kind == "chance":
            if self._expands:
                for _ in range(draw.randint(0, 1)):
                    pipe = draw.choice(WHOLE)(pipe, draw, chance)
                pipe = draw.choice(SEVERAL)(pipe, draw, chance).map(piece_of)
            else:
                pipe = draw.choice(FIRST)(pipe, draw, chance)
            for _ in range(draw.randint(0, 4)):
                pipe = draw.choice(BEHIND)(pipe, draw, chance)
            return pipe
        if self._kind == "ready":
            pipe = draw.choice(READY)(pipe, draw, chance)
        elif draw.random() < 0.3:
            return pipe
        else:
            # From here on in the loader's process.
            pipe = pipe.batch(1, across_workers=True).map(first_of)
        for _ in range(draw.randint(0, 2)):
            pipe = draw.choice(BEHIND_READY)(pipe, draw, chance)
        if self._kind == "ready" and draw.random() < 0.5:
            pipe = pipe.flatmap(pieces)
            for _ in range(draw.randint(0, 2)):
                pipe = draw.choice(BEHIND_READY)(pipe, draw, chance)
        return draw.choice(LAST)(pipe, draw, chance)

    def graph_in_words(self) -> str:
        """Return the graph, and how to play it again."""
        command = f"python -m tests.recorded --first {self.seed} --count 1"
        return f"{command}\n{to_text(self.graph(Chance(0)))}"

    def play(self) -> None:
        """Run, leave and resume until the end."""
        is_over = False
        while not is_over:
            is_over = self._run()
            self.runs += 1

    def _run(self) -> bool:
        """Run until some item, and maybe on without a later state; whether the end was seen."""
        with tempfile.TemporaryDirectory() as folder:
            calls = os.path.join(folder, "calls")
            open(calls, "w", encoding="ascii").close()
            kills = 0.01 if self._kills else 0.0
            return self._run_with(Chance(self._draw.randrange(2**32), calls, kills))

    def _run_with(self, chance: Chance) -> bool:
        self._waiting.clear()
        loader: DataLoader2[Any] = DataLoader2(
            self.graph(chance),
            None,
            self._service(),
            seed=self.seed,
            acknowledge=self._acknowledges,
        )
        settled: set[int] = set()
        if self.state is not None:
            loader.load_state_dict(self.state)
            settled = settled_in(self.state)
        steps = self._draw.choice((0, 1, 2, 5, 10, 1000)) if self.runs < 8 else 10**6
        more = self._draw.choice((0, 0, 3))
        if self._draw.random() < 0.5:
            is_over = asyncio.run(self._async_run(loader, steps, more))
        else:
            is_over = self._sync_run(loader, steps, more)
        self.again |= chance.called() & settled
        return is_over

    def _service(self) -> Any:
        if self._in_workers:
            least = 1 if self._in_workers == "before" or self._kind == "as ready" else 0
            return MultiProcessingReadingService(
                num_workers=self._draw.randint(least, 3),
                in_order=self._in_order(),
                on_worker_death="restart" if self._kills else None,
                max_restarts=1000,
            )
        return self._draw.choice((None, InProcessReadingService(prefetch_cnt=3)))

    def _in_order(self) -> bool:
        if self._kind == "as ready" or self._in_workers == "before":
            return self._kind != "as ready"
        return self._draw.random() < 0.8

    def _sync_run(self, loader: Any, steps: int, more: int) -> bool:
        with loader:
            items = iter(loader)
            taken = self._taken(loader)
            is_over, has_failed = False, False
            try:
                is_over = not all(taken(next(items, None)) for _ in range(steps))
            except Unlucky:
                has_failed = True
            is_over = self._save(loader, is_over)
            with contextlib.suppress(Unlucky):
                for _ in range(0 if is_over or has_failed else more):
                    next(items, None)
        return is_over

    async def _async_run(self, loader: Any, steps: int, more: int) -> bool:
        async with loader:
            items = aiter(loader)
            taken = self._taken(loader)
            is_over, has_failed = False, False
            try:
                for _ in range(steps):
                    if not taken(await self._patiently(items)):
                        is_over = True
                        break
            except Unlucky:
                has_failed = True
            is_over = self._save(loader, is_over)
            with contextlib.suppress(Unlucky):
                for _ in range(0 if is_over or has_failed else more):
                    await anext(items, None)
        return is_over

    async def _patiently(self, items: Any) -> Any:
        """Return the next item, or None; it may take several tries that are cancelled."""
        for turns in self._draw.choice(((), (), (0, 1), (3,))):
            asking = asyncio.ensure_future(anext(items, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                return asking.result()
        return await anext(items, None)

    def _taken(self, loader: Any) -> Callable[[Any], bool]:
        def taken(item: Any) -> bool:
            if item is not None:
                self._waiting.append((item, loader.numbers))
                if self._acknowledges and self._draw.random() < 0.3:
                    self._acknowledge(loader, 1)
            return item is not None

        return taken

    def _acknowledge(self, loader: Any, count: int) -> None:
        if count:
            loader.ack(count)
        self.delivered += self._waiting[:count]
        del self._waiting[:count]

    def _save(self, loader: Any, is_over: bool) -> bool:
        """Take a state; whether there is nothing to resume."""
        waiting = len(self._waiting)
        if self._acknowledges:
            # Some day all are.
            few = self._draw.randint(0, waiting) if self.runs < 8 else waiting
            self._acknowledge(loader, few)
            assert loader.unacknowledged == len(self._waiting)
        else:
            self.delivered += self._waiting
            self._waiting.clear()
        self.left_out = Counter(loader.stats().left_out)
        if is_over and not self._waiting:
            return True
        self.state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
        return False

    def wrong(self) -> Iterator[str]:
        """Say what is not as promised."""
        elements = [element for item, _ in self.delivered for element in elements_in(item)]
        own = [number for item, _ in self.delivered for number in numbers_in(item)]
        told = [number for _, numbers in self.delivered for number in numbers]
        if own != told:
            yield "loader.numbers are not those of the items"
        twice = [element for element, times in Counter(elements).items() if times > 1]
        if twice:
            yield f"delivered twice: {twice}"
        if self.again:
            yield f"settled, and worked on again: {sorted(self.again)}"
        count = self.numbers()
        if set(own) - set(range(count)):
            yield f"of {count} numbers there are {max(own)}"
        if self._kind == "ready":
            count = self.elements()
        if self._expands:
            # One without parts is left out itself.
            count = sum(max(1, len([*pieces(number)])) for number in range(count))
            answers: dict[int, set[float]] = {}
            for piece in elements:
                answers.setdefault(piece.number, set()).add(piece.answer)
            torn = [number for number, each in answers.items() if len(each) > 1]
            if torn:
                yield f"parts of several answers: {torn}"
        if len(own) + self.left_out.total() != count:
            yield f"{len(own)} delivered and {dict(self.left_out)} left out of {count}"

    def elements(self) -> int:
        """Return how many numbers, or parts, an undisturbed run delivers or leaves out."""
        loader: DataLoader2[Any] = DataLoader2(self.graph(Chance(0)), seed=self.seed)
        with loader:
            delivered = sum(len(elements_in(item)) for item in loader)
            return delivered + sum(loader.stats().left_out.values())

    def numbers(self) -> int:
        """Return how many items enter the section."""
        draw = random.Random(f"graph {self.seed}")
        size, rounds = draw.choice(SIZES), 1
        for _ in range(draw.randint(0, 2)):
            step = draw.choice(BEFORE)
            before = IterableWrapper([0])
            rounds *= len(list(step(before, draw, Chance(0))))
        return size * rounds


def settled_in(state: dict[str, Any]) -> set[int]:
    """Return the numbers that a state says are settled."""
    found: set[int] = set()
    for cursor in json.loads(state["position"]["cursors"]).values():
        if "frontier" in cursor:
            found.update(numbers_of(cursor["frontier"], cursor["settled"]))
        shares = cursor.get("shares", ())
        for at, share in enumerate(shares):
            found.update(index * len(shares) + at for index in numbers_of(*share[:2]))
    return found


def numbers_of(frontier: int, runs: list[list[int]]) -> Iterator[int]:
    """Yield all before a frontier, and those in runs after it."""
    yield from range(frontier)
    for first, length in runs:
        yield from range(first, first + length)
