"""Ways to run one graph, and what has to be the same in all of them.

This file is about ``Case``, one graph with the epochs that an undisturbed loader hands out, and
about ``WAYS``, each of which runs the graph somehow and holds what comes out against those:

    ledger    every id comes as often as the lines of the graph say
    workers   as many workers, twice the same; against none, as the order allows
    async     ``async for`` instead of ``for``
    limits    pauses and limits in the middle of epochs
    resume    states after some items, loaded by another loader with as many workers
    unseeded  the same with a loader that was given no seed
    elsewhere the same, with another number of workers, or none
    kill      workers are killed and replaced
    threads   as many workers that are threads, from the beginning and from a state of processes
    line      a line of states, each of a loader that was resumed itself
    changes   the number of workers changes while an epoch runs, as num_workers="auto" does
    recorded  from some pipe on it is recorded what becomes of each item, and a line of states
              gives each once
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    MultiThreadingReadingService,
    SequentialReadingService,
)
from asyncloader.datapipes import iter as it
from asyncloader.datapipes.running.cursor_history import noting_at_every_item
from asyncloader.errors import SnapshotError, WorkerStartupError
from asyncloader.graph.recorded import hard_to_record, section
from asyncloader.graph.refusals import branches_left_behind
from asyncloader.graph.walk import Graph
from tests.faults.deaths import signalled
from tests.random_graphs.pieces import HELPERS, sources
from tests.random_graphs.promise import NOTHING, SAME_ORDER, Promise, promise_of
from tests.random_graphs.recipe import Recipe
from tests.standing import Standing

SEED = 4
EPOCHS = 3
#: An epoch that goes on for longer never ends.
MOST_ITEMS = 20_000
AHEAD = (0, 1, 10)
#: What a graph is refused by: of these, before the first item, with the name of a pipe.
REFUSALS = (SnapshotError, ValueError)
_REFUSALS = tuple(error.__name__ for error in REFUSALS)


class Differs(Exception):
    """What came out is not what had to come out."""


class Refused(Exception):
    """The graph cannot be run this way, and the library says because of which pipe."""


@dataclass(frozen=True)
class Raised:
    """An error, in the place of the item at which an epoch ended with it."""

    kind: str
    message: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and other.kind == self.kind

    def __hash__(self) -> int:
        return hash(self.kind)


@dataclass(frozen=True)
class Way:
    """One way of running a graph; 0 workers are this process."""

    kind: str
    workers: int
    #: How much is prefetched: items here, frames in workers.
    ahead: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.workers} workers, prefetch {self.ahead}"


HERE = Way("", 0, 0)


class Case:
    """A graph to be run in many ways, each with luck of its own."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe = recipe
        self.seed = seed
        #: By the number of workers and what they prefetch.
        self._standing: dict[tuple[int, int], Standing] = {}

    def close(self) -> None:
        """End the workers that stand for several loaders."""
        while self._standing:
            _, service = self._standing.popitem()
            asyncio.run(service.dismiss())

    def check(self, way: Way) -> None:
        """Run the graph in a way; Differs or Refused if it is not as it has to be."""
        try:
            expected = self.expected(HERE)
            if any(map(_is_read_wrong, expected)):
                raise Refused("it reads a branch of a pass that is over, so that nobody can run it")
            if self.recipe.counts_epochs and any(map(_is_of_sampler, expected)):
                raise Refused("the order of its sampler depends on what that has counted")
            KINDS[way.kind](self, way, random.Random(f"{self.seed}{way}"))
        except Exception as error:
            # Its workers may stand in the middle of an epoch.
            self.close()
            # The workers that stand are those of a service of our own, so that a loader says whose
            # error kept them from starting.
            said = error.__cause__ if isinstance(error, WorkerStartupError) else error
            if isinstance(said, REFUSALS):
                raise self._refused(error) from error
            raise

    def loader(
        self, way: Way, state: Any = None, service: Any = None, *, seed: int | None = SEED
    ) -> DataLoader2[Any]:
        """Return a loader at the first of the seed's epochs, or at a state.

        Without a service of its own its workers are those of the loaders before it.
        """
        if service is None:
            service = (
                self._standing_service(way) if way.workers else InProcessReadingService(way.ahead)
            )
        graph, adapters, before = self.recipe.made()
        if before:
            service = SequentialReadingService(*before, service)
        loader = DataLoader2(graph, adapters, service)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        elif seed is not None:
            loader.seed(seed)
        return loader

    def _standing_service(self, way: Way) -> Standing:
        key = way.workers, way.ahead
        if key not in self._standing:
            self._standing[key] = self.standing_service(way)
        return self._standing[key]

    def standing_service(self, way: Way) -> Standing:
        """Return a service whose workers stay for the next loader."""
        return Standing(way.workers, worker_prefetch_cnt=way.ahead)

    def expected(self, way: Way) -> list[list[Any]]:
        """Return the epochs of an undisturbed loader with as many workers."""
        return self._undisturbed(way.workers, way.ahead)[0]

    def some_state(self, way: Way, luck: random.Random) -> tuple[int, int, Any]:
        """Return a state of that loader, with its epoch's number and how many items were taken.

        One step after an epoch's last item its end was seen.
        """
        return self.some_state_of(luck.randrange(EPOCHS - 1), way, luck)

    def some_state_of(self, number: int, way: Way, luck: random.Random) -> tuple[int, int, Any]:
        """Return a state of one of its epochs; of the first one where an error left none there."""
        _, states = self._undisturbed(way.workers, way.ahead)
        of_epoch = [each for each in states.items() if each[0][0] == number]
        (number, step), state = luck.choice(of_epoch or list(states.items()))
        if isinstance(state, Exception):
            raise state
        return number, step, state

    @functools.cache  # noqa: B019 - a case does not live for long
    def _undisturbed(self, workers: int, ahead: int) -> tuple[list[list[Any]], dict[Any, Any]]:
        states: dict[tuple[int, int], Any] = {}
        epochs: list[list[Any]] = []
        with self.loader(Way("", workers, ahead)) as loader:
            for number in range(EPOCHS):
                items: list[Any] = []
                epochs.append(items)
                if number == EPOCHS - 1:
                    items += _read(iter(loader))
                    break
                # After an error, a state is one of the epoch that ended with it.
                if number == 0 or not _has_failed(epochs[number - 1]):
                    states[number, 0] = _state_of(loader)
                iterator = iter(loader)
                while len(items) < MOST_ITEMS and (item := _read(iterator, 1)):
                    items += item
                    if _has_failed(items):
                        break
                    states[number, len(items)] = _state_of(loader)
                else:
                    states[number, len(items) + 1] = _state_of(loader)
        return epochs, states

    def promise(self, workers: int) -> Promise:
        return promise_of(self.recipe, workers)

    def epoch(self, loader: DataLoader2[Any], luck: random.Random | None = None) -> list[Any]:
        """Return an epoch's items by ``for``, or by either form."""
        return _read(iter(loader)) if luck is None or luck.random() < 0.5 else _async(loader)

    def _refused(self, error: Exception) -> Exception:
        names = set(re.findall(r"(\w+)\(", str(self.recipe))) | set(HELPERS)
        if any(name in str(error) for name in names):
            return Refused(f"{type(error).__name__}: {error}")
        return Differs(f"refused without the name of a pipe: {error!r}")

    def compare(self, what: str, found: list[Any], expected: list[Any], way: Way) -> None:
        """Hold items against those that had to come; Differs says where they part."""
        recipe = self.recipe
        is_of_others = not way.workers or recipe.stays_here or recipe.keeps_numbers
        if recipe.is_noisy and (is_of_others or recipe.draws_at_once):
            # Numbers of this process's global generators are not the loader's, and which of two
            # threads draws first is nobody's.
            found, expected = _without_noise(found), _without_noise(expected)
        if found != expected:
            if found and isinstance(found[0], Raised) and found[0].kind in _REFUSALS:
                raise ValueError(found[0].message)
            for one, other in ((found, expected), (expected, found)):
                if self.is_refused_late(one, other):
                    raise ValueError(one[-1].message)
            raise Differs(f"{what}: {_difference(found, expected)}")

    def is_refused_late(self, found: list[Any], expected: list[Any]) -> bool:
        """Whether a user's pipe is refused that reads once more what comes once, and no sooner.

        Or a branch, while its sisters are in the midst of their pass: how far those are depends
        on how far they are read ahead, so this may be refused at one time and not at another.
        """
        last = found[-1] if found else None
        if not isinstance(last, Raised) or found[:-1] != expected[: len(found) - 1]:
            return False
        is_of_user = self.recipe.reads_twice and ("twice" in last.message or _is_read_wrong(found))
        return is_of_user or (_is_read_wrong(found) and self._leaves_branches_behind)

    @functools.cached_property
    def _leaves_branches_behind(self) -> bool:
        return any(branches_left_behind(self.recipe.made()[0]))


def fresh_workers(way: Way, **settings: Any) -> MultiProcessingReadingService | None:
    """Return a service that starts its workers; None where the way is in this process."""
    if not way.workers:
        return None
    return MultiProcessingReadingService(way.workers, worker_prefetch_cnt=way.ahead, **settings)


class Program:
    """What is around a loader: it draws numbers of its own from the process's generators."""

    def __init__(self) -> None:
        self._luck, self._of_numpy = random.Random(SEED), numpy.random.RandomState(SEED)
        random.setstate(self._luck.getstate())
        numpy.random.set_state(self._of_numpy.get_state())

    @staticmethod
    def draw() -> None:
        """Draw, as a training step does."""
        random.random()
        numpy.random.random()

    def check(self, times: int) -> None:
        """Differs, unless nobody else drew, or seeded the generators, while it drew so often."""
        for _ in range(times):
            self._luck.random()
            self._of_numpy.random()
        drawn, expected = random.random(), self._luck.random()
        of_numpy = numpy.random.random(), self._of_numpy.random()
        if drawn != expected or of_numpy[0] != of_numpy[1]:
            raise Differs("the program draws other random numbers than without a loader")


def _read(iterator: Iterator[Any], most: int | None = None) -> list[Any]:
    items: list[Any] = []
    try:
        for item in itertools.islice(iterator, MOST_ITEMS if most is None else most):
            items.append(item)
            Program.draw()
    except Exception as error:  # noqa: BLE001 - it is compared
        items.append(_raised(error))
    if len(items) == MOST_ITEMS:
        items.append(Raised("an epoch without an end", ""))
    return items


def _state_of(loader: DataLoader2[Any]) -> Any:
    """Return the state, or why there is none."""
    try:
        return loader.state_dict(include_datapipe=False)
    except SnapshotError as error:
        return error


def _async(loader: DataLoader2[Any]) -> list[Any]:
    async def epoch() -> list[Any]:
        items: list[Any] = []
        try:
            async for item in loader:
                items.append(item)
                Program.draw()
        except Exception as error:  # noqa: BLE001 - it is compared
            items.append(_raised(error))
        return items

    return asyncio.run(epoch())


def _has_failed(items: list[Any]) -> bool:
    return bool(items) and isinstance(items[-1], Raised)


def _is_read_wrong(items: list[Any]) -> bool:
    """Whether a branch was read again while its sisters went on."""
    return _has_failed(items) and items[-1].kind == "IteratorInvalidated"


def _is_of_sampler(items: list[Any]) -> bool:
    """Whether a sampler was refused that has other keys each time."""
    return _has_failed(items) and "Counting" in items[-1].message


def _raised(error: Exception) -> Raised:
    return Raised(type(error).__name__, str(error))


def _without_noise(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(map(_without_noise, item))
    return 0.0 if isinstance(item, float) else item


def _difference(found: list[Any], expected: list[Any]) -> str:
    pairs = enumerate(itertools.zip_longest(found, expected, fillvalue="nothing"))
    at, (one, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    lost = Counter(sources(expected))
    lost.subtract(Counter(sources(found)))
    ledger = "".join(
        f"; {word} {sorted(each for each in lost if sign * lost[each] > 0)}"
        for word, sign in (("lost", 1), ("too many", -1))
        if any(sign * count > 0 for count in lost.values())
    )
    return (
        f"item {at} is {one!r} instead of {other!r}"
        f" ({len(found)} items, {len(expected)} expected{ledger})"
    )


# The ways -----------------------------------------------------------------------------------------


def _ledger(case: Case, way: Way, luck: random.Random) -> None:
    promise = case.promise(way.workers)
    promised = promise.ids
    for number, epoch in enumerate(case.expected(way)):
        if case.is_refused_late(epoch, epoch):
            raise ValueError(epoch[-1].message)
        if promised is not None:
            found = Counter(sources(epoch))
            lost = promised - found if promise.is_exact else Counter()
            if lost or found - promised:
                raise Differs(
                    f"epoch {number}: lost {_listed(lost)}, too many"
                    f" {_listed(found - promised)}; it ends with {epoch[-1:]}"
                )


def _listed(counts: Counter[int]) -> list[int]:
    return sorted(counts.elements())


def _workers(case: Case, way: Way, luck: random.Random) -> None:
    """Another loader hands out the same, by either form, and what one process does."""
    program = Program()
    with case.loader(way) as loader:
        found = [case.epoch(loader, luck) for _ in range(EPOCHS)]
    if not case.recipe.is_noisy:
        program.check(sum(len(epoch) - _has_failed(epoch) for epoch in found))
    for number, (epoch, expected) in enumerate(zip(found, case.expected(way), strict=True)):
        case.compare(f"epoch {number}, once more", epoch, expected, way)
    likeness = case.promise(way.workers).likeness
    if likeness == NOTHING or case.recipe.is_noisy:
        return
    for number, (epoch, expected) in enumerate(zip(found, case.expected(HERE), strict=True)):
        if likeness == SAME_ORDER:
            case.compare(f"epoch {number}, against no workers", epoch, expected, way)
        else:
            if case.is_refused_late(epoch, epoch):
                raise ValueError(epoch[-1].message)
            one, other = (sorted(items, key=repr) for items in (epoch, expected))
            case.compare(f"epoch {number} in any order, against no workers", one, other, way)


def _limits(case: Case, way: Way, luck: random.Random) -> None:
    with case.loader(way) as loader:
        for number in range(2):
            items, iterator = [], iter(loader)
            expected = case.expected(way)[number]
            for _ in range(3):
                most = luck.randint(0, len(expected))
                if luck.random() < 0.5:
                    iterator.limit(most)
                    items += _read(iterator)
                    iterator.limit(None)
                else:
                    items += _read(iterator, most)
                    iterator.pause()
                    items += _read(iterator)
                if _has_failed(items):
                    break
                iterator.resume()
            else:
                items += _read(iterator)
            case.compare(f"epoch {number} with pauses and limits", items, expected, way)


def _resume(case: Case, way: Way, luck: random.Random) -> None:
    # Once by workers that know nothing of what came before.
    for number, service in enumerate((None, fresh_workers(way))):
        state = case.some_state_of(number, way, luck)
        _resume_at(case, way, luck, state, case.expected(way), service)


def _line(case: Case, way: Way, luck: random.Random) -> None:
    """Each state is of a loader that resumed itself, with places noted by time or at every item."""
    with noting_at_every_item() if luck.random() < 0.5 else contextlib.nullcontext():
        state: Any = None
        for number, expected in enumerate(case.expected(way)):
            items: list[Any] = []
            is_over = False
            while not is_over:
                most = luck.randint(1, 1 + len(expected) // 3)
                with case.loader(way, state) as loader:
                    fresh = _read(iter(loader), most)
                    state = _state_of(loader)
                items += fresh
                if isinstance(state, Exception) and not _has_failed(items):
                    raise state
                is_over = len(fresh) < most or _has_failed(items)
                whole = expected if is_over else expected[: len(items)]
                case.compare(f"epoch {number} in a line of states", items, whole, way)
            if _has_failed(items):
                return


def _threads(case: Case, way: Way, luck: random.Random) -> None:
    settings = {"worker_prefetch_cnt": way.ahead}
    service = MultiThreadingReadingService(way.workers, **settings)
    expected = case.expected(way)
    with case.loader(way, service=service) as loader:
        for number, epoch in enumerate(expected):
            found = case.epoch(loader, luck)
            case.compare(f"epoch {number} of threads", *_alike(case, found, epoch), way)
    number, step, state = case.some_state(way, luck)
    service = MultiThreadingReadingService(way.workers, **settings)
    where = f"processes after {step} items of epoch {number}, resumed in threads"
    with case.loader(way, state, service) as loader:
        if step <= len(expected[number]):
            found = case.epoch(loader, luck)
            case.compare(where, *_alike(case, found, expected[number][step:]), way)


def _alike(case: Case, found: list[Any], expected: list[Any]) -> tuple[list[Any], list[Any]]:
    """Leave out what threads draw from the generators of the process."""
    if case.recipe.is_noisy:
        return _without_noise(found), _without_noise(expected)
    return found, expected


def _unseeded(case: Case, way: Way, luck: random.Random) -> None:
    """States of a loader that nobody gave a seed resume in its own epochs."""
    states: list[tuple[int, int, Any]] = []
    epochs: list[list[Any]] = []
    with case.loader(way, seed=None) as loader:
        for number, expected in enumerate(case.expected(way)):
            # Before its first item, the seed of the first epoch is not drawn.
            most = luck.randint(0 if number else 1, max(1, len(expected)))
            items: list[Any] = []
            if not most:
                states.append((number, 0, _state_of(loader)))
            iterator = iter(loader)
            items += _read(iterator, most)
            if most and not _has_failed(items):
                # One step after the last item the end was seen.
                step = min(most, len(items) + 1)
                states.append((number, step, _state_of(loader)))
            if not _has_failed(items):
                items += _read(iterator)
            epochs.append(items)
    for state in states:
        if isinstance(state[-1], Exception):
            raise state[-1]
        _resume_at(case, way, luck, state, epochs)


def _resume_at(
    case: Case,
    way: Way,
    luck: random.Random,
    place: tuple[int, int, Any],
    epochs: list[list[Any]],
    service: Any = None,
) -> None:
    """Hold what a loader at a state hands out against these epochs, to the last of them."""
    number, step, state = place
    where = f"resumed after {step} items of epoch {number}"
    with case.loader(way, state, service) as loader:
        if step <= len(epochs[number]):
            case.compare(where, case.epoch(loader, luck), epochs[number][step:], way)
        for later in range(number + 1, EPOCHS):
            following = case.epoch(loader, luck)
            case.compare(f"{where}, then epoch {later}", following, epochs[later], way)


def _elsewhere(case: Case, way: Way, luck: random.Random) -> None:
    number, step, state = case.some_state(way, luck)
    others = luck.choice([each for each in range(4) if each != way.workers])
    other = Way(way.kind, others, way.ahead)
    where = f"after {step} items of epoch {number}, resumed with {others} workers"
    before, after = case.expected(way), case.expected(other)
    with case.loader(other, state) as loader:
        if step <= len(before[number]):
            rest = case.epoch(loader, luck)
            # Between two epochs any number goes on with what it would have made itself.
            expected = before[number][step:] if step else after[number]
            if case.recipe.is_noisy:
                rest, expected = _without_noise(rest), _without_noise(expected)
            case.compare(where, rest, expected, other)
        if number + 1 < EPOCHS:
            following = case.epoch(loader, luck)
            case.compare(f"{where}, the next epoch", following, after[number + 1], other)


def _kill(case: Case, way: Way, luck: random.Random) -> None:
    # A worker that dies at the beginning has delivered nothing.
    service = fresh_workers(way, on_worker_death="restart", max_restarts=20)
    with case.loader(way, service=service) as loader:
        kills = 0
        for number, expected in enumerate(case.expected(way)):
            items: list[Any] = []
            # Two in the first epoch, one in the second, none in the last.
            steps = range(len(expected) + 1 - _has_failed(expected))
            deaths = sorted(luck.sample(steps, min(len(steps), EPOCHS - 1 - number)))
            iterator = iter(loader)
            for step in deaths:
                items += _read(iterator, step - len(items))
                kills += _kill_one(loader, luck)
            if not _has_failed(items):
                items += _read(iterator)
            case.compare(f"epoch {number}, {kills} kills before", items, expected, way)


def _kill_one(loader: DataLoader2[Any], luck: random.Random) -> int:
    service = loader.reading_service
    *_, last = getattr(service, "reading_services", [service])
    pool = getattr(last, "_pool", None)
    links = [] if pool is None else pool.all_handles
    return signalled(luck.choice(links).process, signal.SIGKILL) if links else 0


class Restless(MultiProcessingReadingService):
    """Changes its number of workers when it is told to, whatever is measured."""

    def note(self, window: Any) -> None:
        """Ignore what was measured."""


def _changes(case: Case, way: Way, luck: random.Random) -> None:
    if case.recipe.services:
        raise Refused("the number of workers does not change where a service is a user's own")
    service = Restless("auto", worker_prefetch_cnt=way.ahead, max_workers=3)
    service.resume_with(way.workers)
    with case.loader(way, service=service) as loader:
        for number in range(2):
            most = len(case.expected(way)[number])
            numbers = [luck.randrange(4) for _ in range(3)]
            steps = sorted(luck.randint(0, most) for _ in numbers)
            read = _read_with_changes if luck.random() < 0.5 else _read_async_with_changes
            items = read(loader, dict(zip(steps, numbers, strict=True)))
            # Where the order depends on the number, that changes only between epochs.
            running = Way(way.kind, loader.num_workers, way.ahead)
            told = f"epoch {number}, {numbers} workers after {steps} items"
            expected = case.expected(running)[number]
            if case.recipe.is_noisy:
                # Other workers draw other numbers.
                items, expected = _without_noise(items), _without_noise(expected)
            case.compare(told, items, expected, running)


def _change(loader: DataLoader2[Any], number: int) -> None:
    service: Any = loader.reading_service
    service.resume_with(number)
    if service.is_elastic:
        loader._engine.change_settings()


def _read_with_changes(loader: DataLoader2[Any], changes: dict[int, int]) -> list[Any]:
    items, iterator = [], iter(loader)
    for step, number in changes.items():
        items += _read(iterator, step - len(items))
        if _has_failed(items):
            return items
        _change(loader, number)
    return items + _read(iterator)


def _read_async_with_changes(loader: DataLoader2[Any], changes: dict[int, int]) -> list[Any]:
    async def epoch() -> list[Any]:
        items: list[Any] = []
        try:
            async for item in loader:
                items.append(item)
                if len(items) in changes:
                    _change(loader, changes[len(items)])
        except Exception as error:  # noqa: BLE001 - it is compared
            items.append(_raised(error))
        return items

    return asyncio.run(epoch())


def _recorded(case: Case, way: Way, luck: random.Random) -> None:
    expected = case.expected(way)[0]
    if _has_failed(expected):
        raise Refused("its first epoch ends with an error")
    place = luck.random()
    items: list[Any] = []
    state: Any = None
    # Not to the end: a state from there is one of the next epoch.
    for step in [*(luck.randint(0, len(expected) // 4) for _ in range(3)), MOST_ITEMS]:
        graph, adapters, before = case.recipe.made()
        graph = _let_record(graph, place)
        service: Any = fresh_workers(way) or InProcessReadingService(way.ahead)
        loader: DataLoader2[Any] = DataLoader2(
            graph, adapters, SequentialReadingService(*before, service) if before else service
        )
        with loader:
            if state is None:
                loader.seed(SEED)
            else:
                loader.load_state_dict(json.loads(json.dumps(state)))
            items += _read(iter(loader), step)
            if _has_failed(items):
                break
            state = _state_of(loader)
            if isinstance(state, Exception):
                raise state
            left_out = loader.stats().left_out.keys()
    # What was left out for want of others depends on which those are.
    is_whole = not left_out & {"drop_last", "length"} and not case.recipe.is_noisy
    found, whole = Counter(sources(items)), Counter(sources(expected))
    if _has_failed(items) or found - whole or (is_whole and found != whole):
        raise Differs(
            f"recorded: lost {_listed(whole - found)}, too many {_listed(found - whole)};"
            f" it ends with {items[-1:]}"
        )


def _let_record(end: Any, place: float) -> Any:
    """Say of some pipe of a graph that its function does not repeat, or of one behind it."""
    graph = Graph(end)
    able = [pipe for pipe in graph.pipes if type(pipe) in _ABLE]
    able = [pipe for pipe in able if not hard_to_record(graph, section(graph, pipe))]
    if not able:
        return end.map(_as_it_is, repeatable=False)
    able[int(place * len(able))].repeatable = False
    return end


def _as_it_is(item: Any) -> Any:
    return item


_ABLE = {it.Mapper, it.Filter, it.FlatMapper, it.AsyncMapper, it.ThreadMapper}


KINDS: dict[str, Callable[[Case, Way, random.Random], None]] = {
    "ledger": _ledger,
    "workers": _workers,
    "limits": _limits,
    "resume": _resume,
    "unseeded": _unseeded,
    "elsewhere": _elsewhere,
    "kill": _kill,
    "line": _line,
    "threads": _threads,
    "changes": _changes,
    "recorded": _recorded,
}


def all_ways(seed: int) -> list[Way]:
    """Every kind of way with 0 to 3 workers, each number with one of the prefetches, by turns."""
    kinds = itertools.product(range(4), KINDS)
    return [
        Way(kind, workers, AHEAD[(seed + workers) % 3])
        for workers, kind in kinds
        if workers or kind not in ("kill", "threads")
    ]


def some_ways(seed: int) -> list[Way]:
    """A few of all ways; a hundred seeds in a row have all of them."""
    kinds = (
        "ledger",
        "workers",
        "resume",
        ("limits", "unseeded", "recorded", "line")[seed // 3 % 4],
    )
    here = [Way(kind, 0, AHEAD[seed % 3]) for kind in kinds]
    workers, ahead = 1 + seed % 3, AHEAD[seed // 3 % 3]
    others = ("limits", "kill", "elsewhere", "threads", "changes", "unseeded", "recorded", "line")
    kinds = ("ledger", "workers", "resume", others[seed % 8])
    return [*here, *(Way(kind, workers, ahead) for kind in kinds)]
