"""Rows N2 and N14: items on their way between processes."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import PipelineError, TransportError
from tests.faults.child import collected, loader_of, numbers, play, play_each
from tests.processes.scripts import run_script


def dealt(source: IterDataPipe[Any]) -> IterDataPipe[Any]:
    return source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


class DoesNotUnpickle:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def unreadable_at_15(number: int) -> Any:
    return DoesNotUnpickle() if number == 15 else number


def kind_of(item: Any) -> Any:
    return item if isinstance(item, int) else type(item)


async def an_item_does_not_unpickle_in_a_worker(death: str) -> None:
    graph = dealt(IterableWrapper(range(40)).map(unreadable_at_15)).map(kind_of)
    async with loader_of(graph, 2, on_worker_death=death) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert taken == list(range(15)), "no pipe may be handed an error as an item"
            assert isinstance(error, TransportError), error
            assert isinstance(error.__cause__, ValueError)
            assert error.worker == 1
            assert "no number" in str(error)
            notes = "\n".join(error.__notes__)
            assert "from the dispatching process to a worker" in notes
            assert "in worker 1 of 2" in notes


def test_n2_what_does_not_unpickle_in_a_worker_is_an_error_in_its_place(tmp_path):
    play_each(tmp_path, an_item_does_not_unpickle_in_a_worker, [("raise",), ("restart",)])


def lock_at_15(number: int) -> Any:
    return threading.Lock() if number == 15 else number


async def an_item_does_not_pickle_where_it_is_dealt() -> None:
    graph = dealt(IterableWrapper(range(40)).map(lock_at_15)).map(kind_of)
    async with loader_of(graph, 2) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert taken == list(range(15))
            assert isinstance(error, PipelineError), error
            assert "item 15 of map(lock_at_15)" in str(error)
            assert "in the dispatching process" in "\n".join(error.__notes__)


def test_n14_an_error_in_a_dispatching_process_names_the_pipe(tmp_path):
    play(tmp_path, an_item_does_not_pickle_where_it_is_dealt)


def _text_file(number: int) -> Any:
    return _opened("r") if number == 3 else number


def _in_a_dict(number: int) -> Any:
    return {"file": _opened("r+")} if number == 3 else number


def _bytes_file(number: int) -> Any:
    return _opened("rb") if number == 3 else number


@functools.cache
def _opened(mode: str) -> Any:
    """Open a file that nobody closes; it is kept, or Python would warn of it at some moment."""
    return open(__file__, mode)


FILES = {function.__name__: function for function in (_text_file, _in_a_dict, _bytes_file)}


async def an_open_file_is_refused(name: str, is_dealt: bool) -> None:
    source = IterableWrapper(range(8)) if is_dealt else numbers(8)
    graph = source.map(FILES[name])
    async with loader_of(dealt(graph).map(kind_of) if is_dealt else graph, 2) as loader:
        taken, error = await collected(loader)
        assert taken == [0, 1, 2]
        assert isinstance(error, PipelineError), error
        assert f"map({name})" in str(error)
        assert repr(__file__) in str(error), "the file is named"
        assert "send its path" in str(error)


def test_n14_an_open_file_is_refused_by_name(tmp_path):
    cases = [(name, is_dealt) for name in FILES for is_dealt in (False, True)]
    play_each(tmp_path, an_open_file_is_refused, cases)


#: Makes items of classes that only the script has, in three ways to send them.
SCRIPT = """
import abc, collections, dataclasses, typing
import torch
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.iter import IterableWrapper


class Slots:
    __slots__ = ("number", "__private")

    def __init__(self, number):
        self.number, self.__private = number, number

    def __eq__(self, other):
        return (self.number, self.__private) == (other.number, other.__private)


class OneSlot(Slots):
    __slots__ = "text"

    def __init__(self, number):
        super().__init__(number)
        self.text = str(number)


class NoMore(OneSlot):
    __slots__ = ()


class WithDict(Slots):
    __slots__ = ("more", "__dict__", "__weakref__")


class Abstract(abc.ABC):
    __slots__ = ("x",)

    @abc.abstractmethod
    def anything(self): ...


class Concrete(Abstract):
    __slots__ = {"y": "with a docstring"}

    def __init__(self, number):
        self.x = self.y = number

    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)

    def anything(self):
        return super().anything()


class Like(typing.Protocol):
    __slots__ = ("z",)


class Alike(Like):
    __slots__ = ("number",)

    def __init__(self, number):
        self.z = self.number = number

    def __eq__(self, other):
        return (self.z, self.number) == (other.z, other.number)


@dataclasses.dataclass(slots=True)
class Data:
    number: int


@dataclasses.dataclass(slots=True)
class MoreData(Data):
    more: int = 7


class Named(typing.NamedTuple):
    number: int


class MoreNamed(Named):
    __slots__ = ()


Older = collections.namedtuple("Older", ["number"])
KINDS = (
    Slots, OneSlot, NoMore, WithDict, Concrete, Alike, Data, MoreData, Named, MoreNamed, Older
)


def nested(number, depth):
    item = torch.arange(3) + number
    for _ in range(depth):
        item = [item]
    return item


class Node:
    def __init__(self, number, rest):
        self.number, self.rest = number, rest


def chained(number, depth):
    item = None
    for _ in range(depth):
        item = Node(number, item)
    return item


def make(number):
    items = [kind(number) for kind in KINDS]
    storage = torch.arange(9000 * (number % 2) + 3).untyped_storage()
    return items, storage, nested(number, 500), chained(number, 400), torch.UntypedStorage(0)


def check(made, number):
    items, storage, deep, chain, nothing = made
    assert items == [kind(number) for kind in KINDS]
    assert [type(item) for item in items] == list(KINDS)
    assert not hasattr(items[0], "__dict__")
    assert hasattr(items[3], "__dict__")
    assert type(storage) is torch.UntypedStorage
    numbers = torch.empty(0, dtype=torch.int64).set_(storage)
    assert torch.equal(numbers, torch.arange(9000 * (number % 2) + 3))
    assert type(nothing) is torch.UntypedStorage
    assert len(nothing) == 0
    for _ in range(500):
        (deep,) = deep
    for _ in range(400):
        assert chain.number == number
        chain = chain.rest
    assert deep.tolist() == [number, number + 1, number + 2]
    assert chain is None


def checked(made):
    # In a worker its classes have slots as well.
    check(made, made[0][0].number)
    return made


if __name__ == "__main__":
    sources = {
        "made in a worker": IterableWrapper(range(6)).sharding_filter().map(make),
        "dealt": IterableWrapper(range(6))
        .map(make)
        .sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        .map(checked),
        "sent with the graph": IterableWrapper(list(map(make, range(6))), deepcopy=False)
        .sharding_filter()
        .map(checked),
    }
    for name, graph in sources.items():
        with DataLoader2(graph, None, MultiProcessingReadingService(2)) as loader:
            loader.seed(1)
            number = -1
            for number, made in enumerate(loader):
                check(made, number)
            assert number == 5, name
            print(name)
"""


@pytest.mark.soak
def test_n14_slots_storages_and_what_is_deeply_nested_travel(tmp_path: Path):
    done = run_script(tmp_path, SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines() == ["made in a worker", "dealt", "sent with the graph"]


ASK_SCRIPT = """
import asyncio
from asyncloader import DataLoader2, Feed, MultiProcessingReadingService


class Request:
    __slots__ = ("number",)

    def __init__(self, number):
        self.number = number


def nested(number):
    item = Request(number)
    for _ in range(500):
        item = [item]
    return item


def answer(item):
    depth = 0
    while type(item) is list:
        (item,), depth = item, depth + 1
    return item, depth


async def main():
    feed = Feed(max_pending=10)
    async with feed.serve(DataLoader2(feed.map(answer), None, MultiProcessingReadingService(1))):
        for number in range(3):
            request, depth = await feed.ask(nested(number), timeout=60)
            assert (type(request), request.number, depth) == (Request, number, 500)
        try:
            await feed.ask(open(__file__), timeout=60)
        except Exception as error:
            print(type(error).__name__, repr(__file__) in str(error))


if __name__ == "__main__":
    asyncio.run(main())
"""


def test_n14_requests_of_the_scripts_own_classes_travel(tmp_path: Path):
    done = run_script(tmp_path, ASK_SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "PipelineError True\n"


def bottomless_at_3(number: int) -> Any:
    item: Any = number
    for _ in range(100_000 if number == 3 else 1):
        item = [item]
    return item


async def an_item_is_nested_without_bounds() -> None:
    graph = numbers(8).map(bottomless_at_3)
    async with loader_of(graph, 2) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert taken == [[0], [1], [2]]
            assert isinstance(error, PipelineError), error
            assert "RecursionError" in str(error)


def test_n14_what_is_nested_beyond_all_bounds_is_an_error_in_its_place(tmp_path):
    play(tmp_path, an_item_is_nested_without_bounds)
