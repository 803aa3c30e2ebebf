"""Rows N1, N3, N4, N5: what a pass has to know of its place, so that nothing is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import LoaderError
from tests.steps import loader_from

DEALT = SHARDING_PRIORITIES.MULTIPROCESSING
COUNT = 60


def slow(item: Any) -> Any:
    """Take so long that places are noted at nearly every item."""
    time.sleep(0.002)
    return item


def first_of(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def forked(graph: Any) -> Any:
    left, right = graph.fork(2)
    return left.zip(right).map(first_of)


def divided(graph: Any, total: int) -> Any:
    left, right = graph.random_split({"left": 1, "right": 2}, seed=0, total_length=total)
    return left.concat(right)


class AsItComes(IterDataPipe[Any]):
    """A pipe of a user's, which knows no place."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


class TwoPasses(AsItComes):
    """Reads its source twice."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.source
        yield from self.source


class Counter(IterDataPipe[int]):
    """A source that knows its place, and after its end says the end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.at = self.begins_at = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.begins_at = self.begins_at, 0
        while self.at < self.count:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begins_at = state["at"]


# N1 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kept", ["in_memory_cache", "random_split"])
def test_n1_what_reads_its_source_again_or_keeps_it_is_refused_behind_a_shuffle(
    kept: str, workers: int
) -> None:
    shuffled = IterableWrapper(range(COUNT)).map(str).shuffle()
    graph = shuffled.in_memory_cache() if kept == "in_memory_cache" else divided(shuffled, COUNT)
    service = MultiProcessingReadingService(workers, on_worker_death="restart")
    loader = DataLoader2(graph.sharding_filter(), reading_service=service)
    with pytest.raises(ValueError, match=rf"^{kept}.*shuffle\(\) before it.* another\s+order"):
        next(iter(loader))
    loader.shutdown()


def test_n1_a_share_read_without_a_loader_is_refused_behind_a_shuffle() -> None:
    left, _ = IterableWrapper(range(9)).shuffle().random_split({"left": 1, "right": 1}, seed=0)
    with pytest.raises(ValueError, match="shuffle the shares"):
        list(left)
    left, right = (
        IterableWrapper(range(9)).shuffle().set_shuffle(False).random_split({"l": 1, "r": 1}, 0)
    )
    assert sorted([*left, *right]) == list(range(9))


@pytest.mark.parametrize("is_killed", [True, False])
def test_n1_every_item_comes_once_in_every_epoch_where_the_cache_stands_before_the_shuffle(
    is_killed: bool,
) -> None:
    def graph() -> Any:
        kept = IterableWrapper(range(COUNT)).in_memory_cache()
        return kept.shuffle().sharding_filter().map(slow)

    with loader_from(graph(), MultiProcessingReadingService(2)) as loader:
        epochs = [list(loader) for _ in range(3)]
    service = MultiProcessingReadingService(2, on_worker_death="restart")
    with loader_from(graph(), service) as loader:
        first = []
        for item in loader:
            first.append(item)
            state = loader.state_dict(include_datapipe=False)
            if len(first) == COUNT // 2 and is_killed:
                os.kill(loader.stats().workers[0].pid, signal.SIGKILL)
            if len(first) == COUNT // 2 and not is_killed:
                break
        else:
            assert [first, list(loader), list(loader)] == epochs
            return
    with loader_from(graph(), service, state) as resumed:
        assert [first + list(resumed), list(resumed), list(resumed)] == epochs


# N3 -------------------------------------------------------------------------------------

READ_TWICE: dict[str, Callable[[Any], Any]] = {
    "cycle": lambda dealt: dealt.map(str).cycle(2),
    "random_split": lambda dealt: divided(dealt, COUNT),
    "map": lambda dealt: (lambda made: made.concat(made))(dealt.map(str)),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("reader", READ_TWICE)
def test_n3_what_reads_twice_what_is_dealt_once_is_refused_by_name(
    reader: str, workers: int
) -> None:
    dealt = IterableWrapper(range(COUNT)).sharding_round_robin_dispatch(DEALT)
    loader = loader_from(READ_TWICE[reader](dealt), MultiProcessingReadingService(workers))
    with pytest.raises(ValueError, match=rf"^{reader}\(.*once in an epoch.*Put .* before"):
        next(iter(loader))
    loader.shutdown()


@pytest.mark.parametrize("workers", [1, 2])
def test_n3_a_users_pipe_that_reads_twice_what_is_dealt_once_is_told_so(workers: int) -> None:
    dealt = IterableWrapper(range(COUNT)).sharding_round_robin_dispatch(DEALT)
    service = MultiProcessingReadingService(workers)
    with (
        loader_from(TwoPasses(dealt.map(str)), service) as loader,
        pytest.raises(LoaderError, match=r"^TwoPasses\(\) reads twice in one epoch"),
    ):
        list(loader)


def test_n3_a_cycle_that_stays_with_the_loader_is_refused_by_name() -> None:
    graph = IterableWrapper(range(COUNT)).sharding_filter().pin_memory().cycle(2)
    loader = loader_from(graph, MultiProcessingReadingService(2))
    with pytest.raises(ValueError, match=r"^cycle\(2\) runs in the loader's process"):
        next(iter(loader))
    loader.shutdown()


def test_n3_a_users_pipe_in_the_loaders_process_that_reads_twice_is_told_so() -> None:
    made = IterableWrapper(range(COUNT)).sharding_filter().batch(2, across_workers=True)
    graph = TwoPasses(made)
    with (
        loader_from(graph, MultiProcessingReadingService(2)) as loader,
        pytest.raises(LoaderError, match=r"^TwoPasses\(\) reads the workers' items twice"),
    ):
        list(loader)


#: What comes once: items that are dealt, and those of workers where the loader's process reads
#: them; also read ahead.
COMES_ONCE: dict[str, Callable[[Any], Any]] = {
    "dealt": lambda source: source.sharding_round_robin_dispatch(DEALT),
    "dealt, ahead": lambda source: source.sharding_round_robin_dispatch(DEALT).thread_map(int),
    "from workers": lambda source: source.sharding_filter().pin_memory(pin_memory_fn=as_it_is),
    "from workers, ahead": lambda source: (
        source.sharding_filter().pin_memory(pin_memory_fn=as_it_is).thread_map(int)
    ),
}


def as_it_is(item: Any, device: Any) -> Any:
    return item


@pytest.mark.parametrize("name", COMES_ONCE)
def test_n3_who_goes_on_with_what_another_left_of_what_comes_once_takes_the_next_item(
    name: str,
) -> None:
    left, right = COMES_ONCE[name](IterableWrapper(range(COUNT))).fork(2, buffer_size=COUNT)
    graph = left.header(5).concat(right)
    with loader_from(graph, MultiProcessingReadingService(1)) as loader:
        for _ in range(2):
            assert list(loader) == [*range(5), *range(COUNT)]


# N4 -------------------------------------------------------------------------------------

COMPOSED: dict[str, Callable[[Any, int], Any]] = {
    "fork, zip, random_split, concat": lambda graph, count: divided(forked(graph), count),
    "fork, zip, a user's, random_split, concat": lambda graph, count: divided(
        AsItComes(forked(graph)), count
    ),
    "random_split, concat, fork, zip": lambda graph, count: forked(divided(graph, count)),
    "fork, zip, concat with itself": lambda graph, _: (lambda one: one.concat(one))(forked(graph)),
}


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("composed", COMPOSED)
@pytest.mark.parametrize("workers", [0, 3])
def test_n4_a_state_of_what_is_read_again_behind_a_shard_goes_on_exactly(
    workers: int, composed: str
) -> None:
    def graph() -> Any:
        source = IterableWrapper(range(COUNT)).map(slow).sharding_filter()
        return COMPOSED[composed](source, COUNT // max(1, workers))

    service = MultiProcessingReadingService(workers)
    states, items = [], []
    with loader_from(graph(), service) as loader:
        for item in loader:
            items.append(item)
            states.append(loader.state_dict(include_datapipe=False))
        following = list(loader)
    for step in random.Random(4).sample(range(len(items)), 6):
        with loader_from(graph(), service, states[step]) as resumed:
            assert [list(resumed), list(resumed)] == [items[step + 1 :], following], step


def one_branch_again() -> Any:
    left, right = SequenceWrapper(range(7)).shuffle().fork(2)
    return left.zip_longest(right.cycle(2))


@pytest.mark.parametrize(
    "graph",
    [
        lambda: (lambda one: one.concat(one))(SequenceWrapper(range(12)).shuffle()).groupby(int),
        lambda: (lambda one: one.concat(one))(forked(IterableWrapper(range(12)).shuffle())),
        one_branch_again,
        lambda: Counter(12).shuffle().cycle(2).shuffle(buffer_size=3),
        lambda: Counter(12).concat(Counter(7)).map(str).cycle(2),
    ],
    ids=["by index", "behind a fork", "one branch", "a source at its end", "sources at their ends"],
)
def test_n4_what_is_read_again_goes_on_with_the_order_of_that_time(
    graph: Callable[[], Any],
) -> None:
    states, items = [], []
    with loader_from(graph()) as loader:
        for item in loader:
            items.append(item)
            states.append(loader.state_dict(include_datapipe=False))
            slow(item)
        following = list(loader)
    for step, state in enumerate(states, 1):
        with loader_from(graph(), None, state) as resumed:
            assert [list(resumed), list(resumed)] == [items[step:], following], step


def test_n4_a_branch_that_begins_after_another_has_left_gets_every_item() -> None:
    batches = IterableWrapper(range(40)).batch(4)
    left, right = batches.shuffle(buffer_size=3, unbatch_level=1).fork(2, buffer_size=COUNT)
    with loader_from(IterableWrapper("xyz").mux(left).concat(right)) as loader:
        items = list(loader)
    assert sorted(items[6:]) == list(range(40))
    assert items[1:6:2] == items[6:9]


# N5 -------------------------------------------------------------------------------------

BEHIND_A_DISPATCHER: dict[str, Callable[[Any], Any]] = {
    "fork, zip": forked,
    "flatmap, filter, fork, zip, batch": lambda dealt: forked(
        dealt.flatmap(lambda number: [number] * (number % 3)).filter(lambda number: number % 5 != 0)
    ).batch(2),
    "a user's between branches": lambda dealt: (
        lambda left, right: left.zip(AsItComes(right)).map(first_of)
    )(*dealt.fork(2)),
}


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("behind", BEHIND_A_DISPATCHER)
@pytest.mark.parametrize("workers", [2, 3])
def test_n5_kills_change_nothing_behind_a_dispatching_process(workers: int, behind: str) -> None:
    def graph() -> Any:
        dealt = IterableWrapper(range(COUNT)).map(slow).sharding_round_robin_dispatch(DEALT)
        return BEHIND_A_DISPATCHER[behind](dealt).map(slow)

    with loader_from(graph(), MultiProcessingReadingService(workers)) as loader:
        expected = [list(loader), list(loader)]
    for seed in range(3):
        luck = random.Random(seed)
        service = MultiProcessingReadingService(workers, on_worker_death="restart")
        with loader_from(graph(), service) as loader:
            kill_at = luck.sample(range(2, len(expected[0]) // 2), 2)
            items = []
            for item in loader:
                items.append(item)
                if len(items) in kill_at:
                    # One of the workers, or the process that deals.
                    os.kill(luck.choice(loader.stats().workers).pid, signal.SIGKILL)
            assert [items, list(loader)] == expected, seed


@pytest.mark.sweep
@pytest.mark.parametrize("behind", BEHIND_A_DISPATCHER)
def test_n5_states_go_on_exactly_behind_a_dispatching_process(behind: str) -> None:
    def graph() -> Any:
        dealt = IterableWrapper(range(COUNT)).map(slow).sharding_round_robin_dispatch(DEALT)
        return BEHIND_A_DISPATCHER[behind](dealt).map(slow)

    states, items = [], []
    with loader_from(graph(), MultiProcessingReadingService(2)) as loader:
        for item in loader:
            items.append(item)
            states.append(loader.state_dict(include_datapipe=False))
    for step in random.Random(5).sample(range(len(items)), 4):
        with loader_from(graph(), MultiProcessingReadingService(2), states[step]) as resumed:
            assert list(resumed) == items[step + 1 :], step


def test_n5_one_pipe_read_twice_at_once_is_refused_where_workers_are_to_be_replaced() -> None:
    made = IterableWrapper(range(COUNT)).sharding_filter().map(str)
    service = MultiProcessingReadingService(2, on_worker_death="restart")
    loader = loader_from(made.zip(made), service)
    with pytest.raises(ValueError, match=r"map\(str\) is read several times.*fork\(\)"):
        next(iter(loader))
    loader.shutdown()


def test_a_branch_that_is_read_again_while_another_is_read_ahead_is_refused():
    one, other = IterableWrapper(range(9)).fork(2)
    why = r"cycle\(2\) reads fork\(2\)\[0\] in several passes.*prefetch\(2\) reads ahead"
    with pytest.raises(ValueError, match=why):
        list(DataLoader2(one.cycle(2).mux_longest(other.prefetch(2))))
    many, few = IterableWrapper(range(9)).random_split({"a": 2, "b": 1}, seed=1, total_length=9)
    with DataLoader2(many.prefetch(2).concat(few.cycle(2))) as loader:
        assert len(list(loader)) == 12
    # These read one after the other, or both again.
    one, other = IterableWrapper(range(9)).fork(2)
    with DataLoader2(one.prefetch(2).concat(other.cycle(2))) as loader:
        assert list(loader) == [*range(9)] * 3
    one, other = IterableWrapper(range(9)).fork(2)
    with DataLoader2(one.prefetch(2).zip(other).cycle(2)) as loader:
        assert list(loader) == [(number, number) for number in range(9)] * 2


def test_a_shuffle_that_two_readers_read_ahead_in_several_passes_is_refused():
    def shuffled() -> Any:
        return IterableWrapper(range(9)).shuffle()

    why = r"shuffle\(\) draws an order for each pass, cycle\(2\) makes several.*prefetch\(1\)"
    ahead = shuffled().cycle(2).prefetch(1)
    several = shuffled()
    for end in (ahead.zip(ahead), several.cycle(2).prefetch(1).mux_longest(several.map(str))):
        with pytest.raises(ValueError, match=why):
            list(DataLoader2(end))
    # One pass each, nothing that reads ahead, one reader after the other, or an order that is set.
    once, behind, one = shuffled().prefetch(1), shuffled().cycle(2), shuffled().cycle(2).prefetch(1)
    unshuffled = shuffled().set_shuffle(False).cycle(2).prefetch(1)
    for end in (once.zip(once), behind.zip(behind), one.concat(one), unshuffled.zip(unshuffled)):
        with DataLoader2(end) as loader:
            loader.seed(3)
            epochs = list(loader), list(loader)
        with DataLoader2(end) as loader:
            loader.seed(3)
            assert (list(loader), list(loader)) == epochs


async def soon(item: Any) -> Any:
    return item


@pytest.mark.parametrize("form", ["zip", "zip_longest", "mux", "mux_longest"])
def test_a_branch_that_two_sources_race_for_is_refused(form):
    def joined(left: Any, right: Any) -> Any:
        return getattr(left, form)(right)

    branch, _ = IterableWrapper(range(9)).fork(2)
    for ahead in (branch.async_map(soon), branch.thread_map(str), branch.map(str).prefetch(2)):
        for left, right in [(ahead, ahead), (ahead, branch), (branch, ahead.map(str))]:
            with pytest.raises(ValueError, match=r"reads fork\(2\)\[0\] by two of its sources"):
                list(DataLoader2(joined(left, right)))
    one, other, _ = IterableWrapper(range(9)).fork(3)
    with DataLoader2(joined(one.async_map(soon), other)) as loader:
        assert len(list(loader)) in (9, 18)
