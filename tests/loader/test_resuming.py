"""A state taken at any step, loaded by a fresh loader, gives exactly what was left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
import torch

import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader import DataLoader2
from asyncloader.datapipes.base import IterDataPipe, is_map_pipe
from asyncloader.datapipes.running import cursor_history, exchange
from tests.places.kept_forms import as_of_6
from tests.samples import ITER_PIPES, LAST, MAP_PIPES, graph_with, is_odd, remainder, twice
from tests.steps import (
    check_rest,
    loader_from,
    some_steps,
    states_at_every_async_step,
    states_at_every_step,
)

T = TypeVar("T")

PIPES = ITER_PIPES | MAP_PIPES


class Calls:
    """A function that counts how often it is called; copies of it share the count."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, number: Any) -> Any:
        self.made.append(number)
        return number

    def __deepcopy__(self, memo: Any) -> Calls:
        return self


class Letters(IterDataPipe[str]):
    """A user's pipe, of which nothing is known."""

    edges = ()

    def __iter__(self) -> Iterator[str]:
        yield from "abcdefghijklmnop"


ZOO: dict[str, Any] = {
    "shuffled twice": lambda: numbers().shuffle(buffer_size=5).map(str).shuffle(buffer_size=3),
    "filter over shuffle": lambda: numbers().shuffle(buffer_size=6).filter(is_odd).batch(3),
    "shuffle over filter": lambda: numbers().filter(is_odd).shuffle(buffer_size=4).batch(2),
    "shuffle over flatmap": lambda: numbers().flatmap(twice).shuffle(buffer_size=9),
    "unbatch of shuffled batches": lambda: numbers().batch(4).shuffle(buffer_size=3).unbatch(),
    "map form": lambda: mp.SequenceWrapper(range(5000)).shuffle().header(20).batch(3),
    "cycle over shuffle": lambda: numbers().shuffle(buffer_size=5).cycle(3),
    "cycle over map shuffle": lambda: mp.SequenceWrapper(range(9)).shuffle().cycle(3),
    "concat of filters": lambda: numbers().filter(is_odd).concat(Letters().shuffle()),
    "mux of filters": lambda: numbers().filter(is_odd).mux(Letters().shuffle(buffer_size=4)),
    "mux longest": lambda: numbers().filter(is_odd).mux_longest(Letters(), numbers()).batch(2),
    "groups over filter": lambda: numbers().flatmap(twice).groupby(remainder, group_size=4),
    "groups that make room": lambda: numbers().groupby(
        remainder, buffer_size=5, group_size=4, guaranteed_group_size=1
    ),
    "repeat over filter": lambda: numbers().filter(is_odd).repeat(3).batch(4),
    "prefetch over filter": lambda: numbers().filter(is_odd).prefetch(3).flatmap(twice),
    "threads over shuffle": lambda: numbers().shuffle().thread_map(str).filter(str.isdigit),
    "fork": lambda: joined(numbers().shuffle(buffer_size=5).filter(is_odd).fork(2)),
    "fork read unevenly": lambda: uneven(numbers().fork(2)),
    "demux one after the other": lambda: chained(numbers().demux(2, is_odd)),
    "in batch shuffle": lambda: numbers().batch(5).in_batch_shuffle().in_batch_shuffle(),
    "user's pipe": lambda: Letters().enumerate().filter(lambda pair: pair[0] % 3 > 0),
    "torch's pipe": lambda: it.Batcher(torch_pipe(), 3),
}


def numbers() -> Any:
    return it.IterableWrapper(range(24))


def joined(branches: Any) -> Any:
    first, second = branches
    return first.zip(second.map(str))


def uneven(branches: Any) -> Any:
    first, second = branches
    return first.zip(second.batch(2))


def chained(branches: Any) -> Any:
    first, second = branches
    return first.concat(second)


def torch_pipe() -> Any:
    from torch.utils.data.datapipes.iter import IterableWrapper

    return IterableWrapper(range(20)).map(str)


def two_epochs(loader: DataLoader2[Any]) -> list[list[Any]]:
    with loader:
        return [list(loader), list(loader)]


def resumed(graph: Any, state: Any, count: int) -> list[list[Any]]:
    with loader_from(graph, state=state) as loader:
        return [list(loader) for _ in range(count)]


async def resumed_async(graph: Any, state: Any, count: int) -> list[list[Any]]:
    async with loader_from(graph, state=state) as loader:
        return [[item async for item in loader] for _ in range(count)]


def three_epochs(make: Any) -> list[list[Any]]:
    with loader_from(make()) as loader:
        return [list(loader) for _ in range(3)]


async def on_a_thread(function: Callable[[], T]) -> T:
    """Call a function where no event loop runs, and wait for it."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            loop.call_soon_threadsafe(outcome.set_result, function())
        except BaseException as error:  # noqa: BLE001 - the awaiting test raises it
            loop.call_soon_threadsafe(outcome.set_exception, error)

    threading.Thread(target=run, name="a thread without a loop").start()
    return await outcome


async def check_every_step(make: Any) -> None:
    # A thread for each step would take longer than the step.
    epochs, twice = await on_a_thread(partial(check_every_sync_step, make))
    states = await states_at_every_async_step(loader_from(make()))
    for step, state in enumerate(states):
        check_rest(epochs, step, await resumed_async(make(), state, 1 + (step in twice)))


def check_every_sync_step(make: Any) -> tuple[list[list[Any]], set[int]]:
    """Return three epochs, and at which steps not only the rest of the first is looked at."""
    epochs = three_epochs(make)
    states = states_at_every_step(loader_from(make()))
    assert len(states) == len(epochs[0]) + 2
    # What follows the epoch that was gone on with, some steps will show.
    twice = some_steps(len(states))
    for step, state in enumerate(states):
        check_rest(epochs, step, resumed(make(), state, 1 + (step in twice)))
    return epochs, twice


@pytest.mark.sweep
@pytest.mark.parametrize("pipe_class", PIPES, ids=lambda cls: cls.__name__)
async def test_every_pipe_resumes_at_every_step(pipe_class):
    await check_every_step(lambda: graph_with(pipe_class))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ZOO)
async def test_every_graph_of_the_zoo_resumes_at_every_step(name):
    await check_every_step(ZOO[name])


#: Nothing may follow the others.
FOLLOWED = [pipe for pipe in PIPES if pipe not in LAST]


@pytest.mark.sweep
@pytest.mark.parametrize("pipe_class", FOLLOWED, ids=lambda cls: cls.__name__)
def test_every_pipe_that_went_on_and_was_asked_for_nothing_goes_on_again(pipe_class, monkeypatch):
    """From a state go a few steps on, in which it is another's turn, and take the next state."""
    # Places are noted as often as a small part of the time allows, and here at each item.
    monkeypatch.setattr(cursor_history, "_SHARE", 0)

    def make() -> Any:
        graph = graph_with(pipe_class)
        graph = graph.to_iter_datapipe() if is_map_pipe(graph) else graph
        return numbers().header(6).mux_longest(graph)

    states = states_at_every_step(loader_from(make()))
    (expected,) = resumed(make(), states[0], 1)
    # After an even number it is the other's turn.
    for step in (2, 8):
        with loader_from(make(), state=states[step]) as loader:
            items = iter(loader)
            again = [loader.state_dict(include_datapipe=False)]
            assert next(items) == expected[step]
            again.append(loader.state_dict(include_datapipe=False))
        for more, state in enumerate(again):
            assert resumed(make(), state, 1) == [expected[step + more :]], (step, more)


def read_late(numbers: Any) -> Any:
    """Return branches of branches, one of which is read after the pass of its sisters."""
    ahead, beside = numbers.fork(2)
    pairs = ahead.filter(is_no_third).async_map_batches(soon, 3).zip(beside)
    first, both = pairs.fork(2)
    one, other = both.fork(2)
    return first.mux_longest(one.concat(other))


def is_no_third(number: int) -> bool:
    return number % 3 > 0


async def soon(numbers: list[int]) -> list[int]:
    return numbers


def test_branches_of_branches_that_are_read_one_after_the_other_go_on(monkeypatch):
    # Places are noted as often as a small part of the time allows, and here at each item.
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    monkeypatch.setattr(exchange, "GROUP_SECONDS", 0.0)
    states = states_at_every_step(loader_from(read_late(numbers().header(8))))
    (expected,) = resumed(read_late(numbers().header(8)), states[0], 1)
    assert len(expected) == 15
    for step, state in enumerate(states[:-1]):
        (rest,) = resumed(read_late(numbers().header(8)), state, 1)
        assert rest == expected[step:], step


def of_a_later_pass_beside_what_lags(keys: Any) -> Any:
    even, odd = keys.shuffle().prefetch(2).demux(2, is_odd)
    return even.cycle(2).concat(odd.prefetch(2))


def of_a_later_pass_whose_first_item_is_held(keys: Any) -> Any:
    even, odd = keys.shuffle().demux(2, is_odd)
    return even.cycle(2).concat(odd.filter(bool).map_batches(list, 3))


def of_a_later_pass_in_rounds(keys: Any) -> Any:
    even, odd = keys.shuffle().prefetch(2).demux(2, is_odd)
    return even.cycle(2).concat(odd.shuffle()).cycle(3)


def of_a_later_pass_of_a_users_pipe(keys: Any) -> Any:
    even, odd = keys.shuffle().prefetch(1).demux(2, is_odd)
    return TwoPasses(even).concat(odd)


def of_a_later_pass_behind_another_splitter(keys: Any) -> Any:
    left, right = keys.shuffle().round_robin_demux(2)
    first, second, third = left.fork(3)
    return third.concat(TwoPasses(second).concat(first), right)


class TwoPasses(IterDataPipe[Any]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        yield from self.source
        yield from self.source


@pytest.mark.parametrize(
    "make",
    [
        of_a_later_pass_beside_what_lags,
        of_a_later_pass_whose_first_item_is_held,
        of_a_later_pass_in_rounds,
        of_a_later_pass_of_a_users_pipe,
        of_a_later_pass_behind_another_splitter,
    ],
)
def test_a_branch_of_a_later_pass_goes_on_in_the_order_of_that_pass(make, monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    monkeypatch.setattr(exchange, "GROUP_SECONDS", 0.0)

    def graph() -> Any:
        return make(mp.SequenceWrapper(range(8)))

    states = states_at_every_step(loader_from(graph()))
    (expected,) = resumed(graph(), states[0], 1)
    for step, state in enumerate(states[:-1]):
        assert resumed(graph(), state, 1) == [expected[step:]], step


@pytest.mark.parametrize("behind", ["shuffle", "prefetch", "batch"])
def test_a_zip_whose_last_source_ended_first_goes_on_at_its_end(behind, monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    monkeypatch.setattr(exchange, "GROUP_SECONDS", 0.0)

    def make() -> Any:
        pairs = numbers().shuffle().zip(numbers().header(3))
        return {"shuffle": pairs.shuffle, "prefetch": pairs.prefetch}.get(
            behind, lambda: pairs.batch(2)
        )()

    states = states_at_every_step(loader_from(make()))
    (expected,) = resumed(make(), states[0], 1)
    for step in range(len(expected) + 1):
        assert resumed(make(), states[step], 1) == [expected[step:]], step


def three_unseeded_epochs() -> tuple[list[list[Any]], list[tuple[int, int, Any]]]:
    """Return the epochs of a loader without a seed, and its states, each with where it was."""
    epochs: list[list[Any]] = [[], [], []]
    states = []
    with DataLoader2(shuffled()) as loader:
        for number, epoch in enumerate(epochs):
            for item in loader:
                epoch.append(item)
                states.append((number, len(epoch), loader.state_dict(include_datapipe=False)))
            states.append((number + 1, 0, loader.state_dict(include_datapipe=False)))
    return epochs, states


def shuffled() -> Any:
    return it.IterableWrapper(range(9)).shuffle().sharding_filter()


def test_without_a_seed_the_later_epochs_are_those_that_would_have_followed_too():
    torch.manual_seed(1)
    epochs, states = three_unseeded_epochs()
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    for number, step, state in states:
        # The program that resumes draws numbers of its own.
        torch.manual_seed(step)
        with DataLoader2(shuffled()) as loader:
            loader.load_state_dict(state)
            rest = [list(loader) for _ in epochs[number:]]
        following = [list(epoch) for epoch in epochs[number:]]
        following[:1] = [epoch[step:] for epoch in following[:1]]
        assert rest == following, (number, step)


def test_without_a_seed_both_forms_have_the_same_later_epochs():
    async def by_async_for() -> list[list[Any]]:
        async with DataLoader2(shuffled()) as loader:
            loader.load_state_dict(state)
            return [[item async for item in loader] for _ in range(3)]

    _, states = three_unseeded_epochs()
    for _, _, state in states[::4]:
        with DataLoader2(shuffled()) as loader:
            loader.load_state_dict(state)
            assert [list(loader) for _ in range(3)] == asyncio.run(by_async_for())


def test_only_the_first_epoch_without_a_seed_draws_from_torch():
    with DataLoader2(shuffled()) as loader:
        list(loader)
        before = torch.get_rng_state()
        list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_that_does_not_say_the_first_seed_resumes_its_epoch():
    """As the first states of number 6 do."""
    epochs, states = three_unseeded_epochs()
    number, step, state = states[13]
    del state["randomness_state"]["drawn"]
    state = as_of_6(state)
    with DataLoader2(shuffled()) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
        later = [list(loader) for _ in range(2)]
    assert rest == epochs[number][step:]
    assert sorted(later[0]) == sorted(later[1]) == list(range(9))
    assert later[0] != later[1]
