"""A user's own pipes are run as they are: nothing of an iteration is kept in them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from asyncloader import DataLoader2, IterDataPipe, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.errors import SnapshotError
from asyncloader.graph import breadth_first
from tests.datapipes.resuming import assert_goes_on


class Plain(IterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        for number in self.source:
            yield number + 1


class Waiting(IterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    async def __aiter__(self) -> AsyncIterator[int]:
        async for number in self.source:
            yield number + 1


class Numbers(IterDataPipe[int]):
    """A source that says itself where it stands."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 12:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Windows(IterDataPipe[Any]):
    """Has a memory, which it saves, and reads another pipe, whose place it cannot save."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.last: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for number in self.source:
            self.last = [*self.last, number][-3:]
            yield list(self.last)

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = state["last"]


class OwnWindows(Windows):
    """Saves the place of what it reads, too."""

    edges = ()

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "source": self.source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = state["last"]
        self.source.load_state_dict(state["source"])


class LookedUp(IterDataPipe[int]):
    """Looks its items up, so that what it reads has no place."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < len(self.source):
            self.at += 1
            yield self.source[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Backwards(IterableWrapper[Any]):
    """A source that reads what it wraps in its own way, and says nothing of where it stands."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.iterable)[::-1])


class Guarded(Plain):
    """Refuses to be given an attribute that its class does not have."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "source":
            raise AttributeError(f"{name} is set on a user's pipe")
        super().__setattr__(name, value)


GRAPHS = {
    "plain": lambda: Plain(IterableWrapper(range(12)).shuffle(buffer_size=4).set_seed(1)).batch(2),
    "waiting": lambda: Waiting(IterableWrapper(range(12)).filter(bool)).prefetch(3),
    "a source": lambda: Numbers().map(str).shuffle(buffer_size=4).set_seed(1),
    "backwards": lambda: Backwards([[number] * 2 for number in range(12)]).flatmap(),
    "guarded": lambda: Guarded(IterableWrapper(range(12)).cycle(2)).enumerate(),
}

every_graph = pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)


def contents(graph: Any) -> list[dict[str, Any]]:
    return [{**vars(pipe)} for pipe in breadth_first(graph)]


@every_graph
def test_a_loader_leaves_a_users_pipes_as_they_are(make: Any) -> None:
    graph = make()
    before = contents(graph)
    with DataLoader2(graph) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.state_dict()
        assert contents(graph) == before
        list(iterator)
    assert contents(graph) == before


@every_graph
def test_an_iteration_leaves_nothing_in_a_users_pipes(make: Any) -> None:
    graph = make()
    own = [pipe for pipe in breadth_first(graph) if type(pipe).__module__ == __name__]
    before = [set(vars(pipe)) for pipe in own]
    items = iter(graph)
    next(items)
    assert [set(vars(pipe)) for pipe in own] == before


@pytest.mark.parametrize("make", [make for name, make in GRAPHS.items() if name != "a source"])
def test_a_copy_that_is_made_in_the_midst_of_an_iteration_begins_afresh(make: Any) -> None:
    graph = make()
    with DataLoader2(graph) as loader:
        iterator = iter(loader)
        next(iterator)
        running = loader._engine.lifecycle.adapted
        for twin in (copy.deepcopy(running), pickle.loads(pickle.dumps(running))):
            assert len(list(twin)) == len(list(make()))


@every_graph
def test_a_graph_with_users_pipes_goes_on_from_everywhere(make: Any) -> None:
    assert_goes_on(make)


def test_a_state_of_a_pipe_that_leaves_out_what_it_reads_is_refused() -> None:
    with DataLoader2(Windows(IterableWrapper(range(9)).map(str))) as loader:
        next(iter(loader))
        with pytest.raises(SnapshotError, match=r"Windows\(\) has load_state_dict and reads map"):
            loader.state_dict()


def test_workers_that_would_begin_again_above_such_a_pipe_are_refused() -> None:
    graph = Windows(IterableWrapper(range(9)).sharding_filter())
    service = MultiProcessingReadingService(1, on_worker_death="restart")
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
    with pytest.raises(ValueError, match=r"restart.* is not possible: Windows\(\) has"), loader:
        list(loader)


@pytest.mark.parametrize(
    "make", [lambda: OwnWindows(Numbers()), lambda: LookedUp(SequenceWrapper(range(12)).map(str))]
)
def test_a_pipe_whose_state_is_whole_resumes(make: Any) -> None:
    with DataLoader2(make()) as loader:
        items = iter(loader)
        for _ in range(5):
            next(items)
        state = loader.state_dict()
        rest = list(items)
    assert len(rest) == 7
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest
