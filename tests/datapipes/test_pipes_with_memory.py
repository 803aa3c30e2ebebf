"""Pipes as users write them: one class that remembers something, and resumes exactly."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

import numpy
import pytest
import torch

from asyncloader import DataLoader2, Edge, MultiProcessingReadingService, Pipe, State
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running import cursor_history
from asyncloader.errors import SnapshotError
from tests.datapipes.watched import Watched

WORDS = Random(3).choices(range(30), k=120)


class Held(State):
    held: list[int] = []  # noqa: RUF012 - as users write it

    def needs(self, taken: int) -> int:
        return self.held[0] if self.held else taken


class Dedupe(Pipe[int]):
    """Leave out what is among the last ``window`` different items."""

    State = Held

    def __init__(self, source: Any, window: int = 10) -> None:
        self.source = source
        self.window = window

    def run(self, source: Edge[int], state: Held) -> Iterator[int]:
        again, items = source.again(state.held)
        known = dict.fromkeys(again)
        for at, item in enumerate(items, state.taken):
            if item not in known:
                known[item] = None
                state.held.append(at)
                if len(state.held) > self.window:
                    del state.held[0], known[next(iter(known))]
                yield item


class DedupeSoon(Pipe[int]):
    """The same on an event loop."""

    State = Held

    def __init__(self, source: Any, window: int = 10) -> None:
        self.source = source
        self.window = window

    async def arun(self, source: Edge[int], state: Held) -> AsyncIterator[int]:
        again, items = await source.aagain(state.held)
        known = dict.fromkeys(again)
        at = state.taken
        async for item in items:
            await asyncio.sleep(0)
            if item not in known:
                known[item] = None
                state.held.append(at)
                if len(state.held) > self.window:
                    del state.held[0], known[next(iter(known))]
                yield item
            at += 1


class Totals(Pipe[int]):
    """Yield sums, and count remainders in a dict."""

    class State(State):
        total: int = 0
        remainders: dict[str, list[int]] = {}  # noqa: RUF012 - as users write it

    def __init__(self, source: Any) -> None:
        self.source = source

    def run(self, source: Edge[int], state: State) -> Iterator[int]:
        for item in source:
            state.total += item
            state.remainders.setdefault(str(item % 3), []).append(item)
            yield state.total + len(state.remainders[str(item % 3)])


class Heads(State):
    #: The position of the item of each source that waits, or -1.
    waits: list[int] = [-1, -1]  # noqa: RUF012 - as users write it

    def needs_each(self, taken: list[int]) -> list[int]:
        return [count if at < 0 else at for at, count in zip(self.waits, taken, strict=True)]


class Merged(Pipe[int]):
    """Yield the smaller of the next items of two streams."""

    State = Heads

    def __init__(self, *sources: Any) -> None:
        self.sources = sources

    def run(self, sources: tuple[Edge[int], ...], state: Heads) -> Iterator[int]:
        heads: list[list[int]] = []
        streams = []
        for source, at in zip(sources, state.waits, strict=True):
            again, items = source.again([] if at < 0 else [at])
            heads.append(again)
            streams.append(items)
        while True:
            for turn, items in enumerate(streams):
                if not heads[turn]:
                    heads[turn] = [*islice(items, 1)]
                state.waits[turn] = sources[turn].count() - 1 if heads[turn] else -1
            smallest = (
                min((head[0], turn) for turn, head in enumerate(heads) if head)
                if any(heads)
                else None
            )
            if smallest is None:
                return
            item, turn = smallest
            heads[turn], state.waits[turn] = [], -1
            yield item


class Countdown(Pipe[int]):
    """A source that knows where it is."""

    class State(State):
        left: int = 12

    def run(self, source: None, state: State) -> Iterator[int]:
        while state.left:
            state.left -= 1
            yield state.left


GRAPHS: dict[str, Callable[[], Any]] = {
    "in a for": lambda: Dedupe(IterableWrapper(WORDS)),
    "in an async for": lambda: DedupeSoon(IterableWrapper(WORDS)),
    "behind a shuffle": lambda: Dedupe(IterableWrapper(WORDS).shuffle(buffer_size=9)),
    "on a loop, behind a shuffle": lambda: DedupeSoon(
        IterableWrapper(WORDS).shuffle(buffer_size=9)
    ),
    "one behind the other": lambda: DedupeSoon(Dedupe(IterableWrapper(WORDS), 3).map(int)).prefetch(
        2
    ),
    "in batches": lambda: Dedupe(IterableWrapper(WORDS).flatmap(lambda n: [n] * (n % 3))).batch(3),
    "with a dict": lambda: Totals(IterableWrapper(WORDS)),
    "of two streams": lambda: Merged(
        IterableWrapper(range(0, 60, 2)).map(int), IterableWrapper(range(1, 40, 3)).filter(bool)
    ),
    "of two branches": lambda: Merged(*IterableWrapper(range(20)).fork(2)).batch(2),
    "a source": Countdown,
    "in a cycle": lambda: Dedupe(IterableWrapper(WORDS[:25])).cycle(3),
}


@pytest.mark.soak
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("form", ["for", "async for"])
async def test_it_goes_on_from_every_step(make, form, monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    items, states = [], []
    async with DataLoader2(make()) as loader:
        loader.seed(5)
        async for item in loader:
            items.append(item)
            states.append(loader.state_dict(include_datapipe=False))
    assert len(items) > 10
    for step, state in list(enumerate(states, 1))[:: 1 if form == "for" else 5]:
        if form == "for":
            rest = await asyncio.to_thread(rest_of, make, state)
        else:
            async with DataLoader2(make()) as loader:
                loader.load_state_dict(state)
                rest = [item async for item in loader]
        assert rest == items[step:], step


def rest_of(make: Callable[[], Any], state: Any) -> list[Any]:
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        return list(loader)


@pytest.mark.parametrize("pipe", [Dedupe, DedupeSoon])
def test_only_what_it_holds_is_made_again(pipe, monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    made: list[int] = []

    def graph() -> Any:
        return pipe(IterableWrapper(range(300)).map(lambda n: made.append(n) or n), 10)

    with DataLoader2(graph()) as loader:
        items = iter(loader)
        assert list(islice(items, 200)) == list(range(200))
        state = loader.state_dict(include_datapipe=False)
    made.clear()
    assert rest_of(graph, state) == list(range(200, 300))
    # The items that are held, and what was on its way.
    assert 190 - 70 <= made[0] <= 190


@pytest.mark.soak
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("pipe", [Dedupe, DedupeSoon, Totals])
def test_workers_resume_it(pipe, context):
    def loader() -> DataLoader2[int]:
        graph = pipe(IterableWrapper(WORDS).sharding_filter())
        service = MultiProcessingReadingService(2, multiprocessing_context=context)
        return DataLoader2(graph, reading_service=service)

    with loader() as first:
        items = iter(first)
        taken = list(islice(items, 25))
        state = first.state_dict(include_datapipe=False)
        rest = list(items)
    assert len(taken + rest) > 50
    with loader() as again:
        again.load_state_dict(state)
        assert list(again) == rest


def test_what_a_state_holds_is_not_changed_later():
    with DataLoader2(Totals(IterableWrapper(WORDS))) as loader:
        items = iter(loader)
        next(items)
        state = loader.state_dict(include_datapipe=False)
        before = repr(state)
        rest = list(items)
        assert repr(state) == before
    assert rest_of(lambda: Totals(IterableWrapper(WORDS)), state) == rest


class InPlace(Pipe[Any]):
    """Change what the state holds in place, and yield what it is now."""

    class State(State):
        tensor: torch.Tensor = torch.zeros(2)
        array: numpy.ndarray = numpy.zeros(2)
        by_remainder: tuple[list[int], ...] = ([], [])
        pairs: list[tuple[str, list[int]]] = [("even", []), ("odd", [])]  # noqa: RUF012 - as users write it

    def __init__(self, source: Any) -> None:
        self.source = source

    def run(self, source: Edge[int], state: Any) -> Iterator[Any]:
        for item in source:
            state.tensor += item
            state.array[item % 2] += item
            state.by_remainder[item % 2].append(item)
            state.pairs[item % 2][1].append(item)
            yield repr((state.tensor, state.array, state.by_remainder, state.pairs))


def test_what_is_changed_in_place_is_that_of_its_state_and_of_its_epoch():
    def loader() -> DataLoader2[Any]:
        return DataLoader2(InPlace(IterableWrapper(range(12))))

    with loader() as first:
        whole = list(first)
        states = [first.state_dict(include_datapipe=False) for _ in first]
        assert list(first) == whole
    # The first state twice: what resumed from it has not changed it.
    for count, state in [*enumerate(states, 1), (1, states[0])]:
        with loader() as again:
            again.load_state_dict(state)
            assert list(again) == whole[count:]


def test_a_state_that_was_saved_is_taken_whatever_its_annotations_say():
    class Averages(Dedupe):
        class State(State):
            total: int = 0
            last: str | None = "none yet"
            odd: Any = None

        def run(self, source: Edge[int], state: Any) -> Iterator[Any]:
            for item in source:
                state.total += item / 2
                if state.odd is None and item % 2:
                    state.odd = item
                yield state.total, state.odd, state.last
                state.last = None

    def graph() -> Any:
        return Averages(IterableWrapper([2, 4, 6, 7, 8, 9]))

    with DataLoader2(graph()) as loader:
        taken = [(item, loader.state_dict(include_datapipe=False)) for item in loader]
    items, states = zip(*taken, strict=True)
    # What is changed behind the yield belongs to the next item.
    for step, state in enumerate(states[1:], 2):
        assert rest_of(graph, state) == list(items[step:])


def test_an_early_end_closes_what_it_reads():
    source = Watched(range(9))
    with DataLoader2(Dedupe(source)) as loader:
        next(iter(loader))
    assert source.open == 0


def test_stats_count_what_it_takes_and_yields():
    with DataLoader2(Dedupe(IterableWrapper(WORDS))) as loader:
        count = len(list(loader))
        stage = next(each for each in loader.stats().stages if each.name == "Dedupe()")
    assert stage.items == count


# What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({1}, "holds a set, but .*; save a list of what is in it"),
        ([frozenset()], "holds a frozenset, but .*; save a list of what is in it"),
        (numpy.float64(1), r"holds a float64, but .*; save what its method item\(\) returns"),
        (1j, "holds a complex, but .* lists, tuples and dicts of those$"),
    ],
)
def test_what_a_state_cannot_hold_is_named_with_what_to_save_in_its_place(seen, words):
    class Sees(Dedupe):
        class State(State):
            seen: Any = None

        def run(self, source: Edge[int], state: Any) -> Iterator[int]:
            for item in source:
                state.seen = seen
                yield item

    with DataLoader2(Sees(IterableWrapper(WORDS))) as loader:
        next(iter(loader))
        with pytest.raises(SnapshotError, match=f"'seen', in the state of a pipe, {words}"):
            loader.state_dict()


def test_positions_that_do_not_ascend_are_named():
    class Wrong(Dedupe):
        def run(self, source: Edge[int], state: Held) -> Iterator[int]:
            _, items = source.again(state.held)
            for item in items:
                state.held = [1, 1]
                yield item

    with DataLoader2(Wrong(IterableWrapper(WORDS))) as loader:
        items = iter(loader)
        assert len(list(islice(items, 3))) == 3
        state = loader.state_dict(include_datapipe=False)
    with pytest.raises(
        SnapshotError, match=r"Wrong\(\) goes on at item [0-9]+ of its source, .* ascend"
    ):
        rest_of(lambda: Wrong(IterableWrapper(WORDS)), state)


def test_a_state_of_another_form_is_refused():
    with DataLoader2(Totals(IterableWrapper(WORDS))) as loader:
        next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    del state["fingerprint"]
    with pytest.raises(SnapshotError, match="fingerprint"):
        rest_of(lambda: Totals(IterableWrapper(WORDS)), state)


def _with(**members: Any) -> type:
    return type("Mine", (Pipe,), members)


async def _soon(self: Any, source: Any, state: Any) -> AsyncIterator[int]:
    yield 1


def _now(self: Any, source: Any, state: Any) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("default", [set(), deque(), Random(1), numpy.float64(1)])
def test_a_field_that_begins_with_what_cannot_be_saved_is_refused(default):
    words = rf"'seen' of Mine begins with a {type(default).__name__}, .* save numbers, texts"
    with pytest.raises(TypeError, match=words):
        type("Mine", (State,), {"__annotations__": {"seen": Any}, "seen": default})


def test_a_field_with_the_name_of_a_method_is_refused():
    with pytest.raises(TypeError, match="has a field 'first', which is the name of a method"):
        type("Mine", (State,), {"__annotations__": {"first": int}, "first": 0})


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"run": _soon}, "run is async; name it arun"),
        ({"arun": _now}, "arun is no async generator"),
        ({"run": _now, "arun": _soon}, "has run and arun; define one"),
        ({"__iter__": _now}, "rename __iter__ to run"),
        ({"State": dict}, "State must be a class that derives from asyncloader.State"),
        ({"State": Held()}, "State must be a class that derives from asyncloader.State"),
    ],
)
def test_a_class_that_cannot_be_run_is_refused_where_it_is_defined(members, words):
    with pytest.raises(TypeError, match=words):
        _with(**members)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: _with()(), NotImplementedError, "Mine must define run or arun"),
        (lambda: _with(run=lambda *args: [1])(), TypeError, "must be a generator.* list"),
        (lambda: Dedupe([1, 2]), TypeError, r"source of Dedupe\(\) must be a pipe, got list"),
    ],
)
def test_what_is_wrong_of_a_pipe_is_said_when_it_is_iterated(make, error, words):
    with DataLoader2(make()) as loader, pytest.raises(error, match=words):
        list(loader)


def test_it_cannot_follow_what_is_recorded():
    graph = Dedupe(IterableWrapper(WORDS).map(int, repeatable=False))
    with pytest.raises(ValueError, match="cannot be told of what"):
        DataLoader2(graph)


class Largest(State):
    total: int = 0


class Undeclared(Pipe[int]):
    """Writes to its state what that does not declare."""

    State = Largest

    def __init__(self, source: Any) -> None:
        self.source = source

    def run(self, source: Edge[int], state: Largest) -> Iterator[int]:
        for item in source:
            state.total += item
            state.largest = item  # type: ignore[attr-defined]  # what the test is about
            yield state.total


def test_what_a_state_does_not_declare_is_named_when_it_is_taken():
    said = "Largest has 'largest', which it does not declare"
    with DataLoader2(Undeclared(IterableWrapper(range(9)))) as loader:
        iterator = iter(loader)
        with pytest.raises(TypeError, match=said):
            next(iterator)


class Elsewhere(Pipe[int]):
    """Keeps what it reads in another attribute."""

    def __init__(self, source: Any) -> None:
        self.datapipe = source

    def start(self, position: int) -> tuple[int, int]:
        return position, 0

    def run(self, source: Edge[int], state: None) -> Iterator[int]:
        yield from source


def test_a_pipe_that_keeps_what_it_reads_elsewhere_is_told_where():
    with pytest.raises(TypeError, match=r"Elsewhere reads a pipe.* keep it in self\.source"):
        list(Elsewhere(IterableWrapper([1, 2])))
