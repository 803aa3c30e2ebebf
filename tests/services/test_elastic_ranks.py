"""States that are taken on some number of ranks and loaded on another.

The ranks are loaders of this process, one after the other, which get the shares that ranks
get; ``test_distributed`` has real ones.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import asyncloader.datapipes.iter as it
from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterDataPipe
from asyncloader.errors import SnapshotError
from asyncloader.graph.settings import apply_sharding
from asyncloader.places.elastic import items_before, whole_position
from asyncloader.services.hooks import ServiceHooks
from tests.samples import double, double_soon, is_odd, twice

SEED = 4
SIZE = 15
COUNTS = (1, 2, 3)
RUNS = [(ranks, workers) for ranks in COUNTS for workers in (0, 1, 2)]

Make = Callable[[], Any]
State = dict[str, Any]


# The arithmetic -------------------------------------------------------------------------


def handed_out(size: int, rank: int, ranks: int, workers: int) -> list[int]:
    """Return the numbers of a rank's items in the order in which its workers take turns."""
    block = max(workers, 1)
    shares = [range(size)[rank * block + worker :: ranks * block] for worker in range(block)]
    turns = itertools.zip_longest(*shares)
    return [number for turn in turns for number in turn if number is not None]


@pytest.mark.parametrize(("ranks", "workers"), RUNS)
def test_what_all_ranks_handed_out_is_known_wherever_it_has_no_gaps(ranks, workers):
    orders = [handed_out(40, rank, ranks, workers) for rank in range(ranks)]
    for counts in itertools.product(range(9), repeat=ranks):
        done = {
            number for order, count in zip(orders, counts, strict=True) for number in order[:count]
        }
        if done == set(range(len(done))):
            assert whole_position(counts, max(workers, 1)) == len(done)
        else:
            with pytest.raises(SnapshotError, match="leave gaps"):
                whole_position(counts, max(workers, 1))


@pytest.mark.parametrize(("ranks", "workers"), RUNS)
def test_what_each_rank_handed_out_of_it_comes_first_in_its_own_order(ranks, workers):
    for rank, position in itertools.product(range(ranks), range(40)):
        order = handed_out(40, rank, ranks, workers)
        count = items_before(position, rank, ranks, max(workers, 1))
        assert {number for number in order if number < position} == set(order[:count])


def test_ranks_go_on_together_from_uneven_places():
    """A run that goes on unevenly, as after other ranks, may be regrouped again."""
    for ranks, workers, position in itertools.product(COUNTS, COUNTS, range(20)):
        begun = [items_before(position, rank, ranks, workers) for rank in range(ranks)]
        orders = [handed_out(60, rank, ranks, workers) for rank in range(ranks)]
        for more in range(4):
            counts = [count + more for count in begun]
            done = {n for order, count in zip(orders, counts, strict=True) for n in order[:count]}
            if done == set(range(len(done))):
                assert whole_position(counts, workers) == len(done)


# Loaders --------------------------------------------------------------------------------


class OnRank(ReadingServiceInterface, ServiceHooks):
    """Give a loader the share of one of several ranks."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.of = rank, ranks

    async def initialize(self, datapipe: Any) -> Any:
        rank, ranks = self.of
        return apply_sharding(datapipe, ranks, rank, SHARDING_PRIORITIES.DISTRIBUTED)

    def rank(self) -> tuple[int, int]:
        return self.of


def loader_of(
    make: Make, rank: int, ranks: int, workers: int = 0, in_order: bool = True
) -> DataLoader2[Any]:
    service: ReadingServiceInterface = OnRank(rank, ranks)
    if workers:
        in_workers = MultiProcessingReadingService(workers, in_order=in_order)
        service = SequentialReadingService(service, in_workers)
    loader = DataLoader2(make(), reading_service=service)
    loader.seed(SEED)
    return loader


def states_after(make: Make, ranks: int, step: int, workers: int = 0) -> list[State]:
    """Return the states of all ranks after so many items on each."""
    states = []
    for rank in range(ranks):
        with loader_of(make, rank, ranks, workers) as loader:
            iterator = iter(loader)
            for _ in range(step):
                next(iterator)
            states.append(loader.state_dict(include_datapipe=False))
    return states


def states_of_epoch(make: Make, ranks: int) -> list[list[State]]:
    """Return the states of all ranks after each step in which all have an item."""
    states: list[list[State]] = []
    for rank in range(ranks):
        with loader_of(make, rank, ranks) as loader:
            states.append([loader.state_dict(include_datapipe=False) for _ in loader])
    return [list(moment) for moment in zip(*states, strict=False)]


def rests_of(
    make: Make, states: list[State], ranks: int, workers: int = 0, epochs: int = 1
) -> list[list[Any]]:
    """Return what each of other ranks goes on with, for so many epochs."""
    rests = []
    for rank in range(ranks):
        with loader_of(make, rank, ranks, workers) as loader:
            loader.load_state_dict(json.loads(json.dumps(states)))
            rests.append([item for _ in range(epochs) for item in loader])
    return rests


def shares_of(items: Sequence[Any], position: int, ranks: int, workers: int = 0) -> list[list[Any]]:
    """Return what ranks have left of one order after its first items."""
    orders = (handed_out(len(items), rank, ranks, workers) for rank in range(ranks))
    return [[items[number] for number in order if number >= position] for order in orders]


def in_process(make: Make) -> list[Any]:
    with DataLoader2(make()) as loader:
        loader.seed(SEED)
        return list(loader)


def numbers() -> Any:
    return it.IterableWrapper(range(SIZE)).shuffle(buffer_size=5)


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def of_ranks(pipe: Any) -> Any:
    return pipe.sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)


def of_workers(pipe: Any) -> Any:
    return pipe.sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)


def as_it_is(item: Any, device: Any) -> Any:
    return item


FITTING: dict[str, Make] = {
    "maps": lambda: numbers().sharding_filter().map(double).map(double_soon),
    "behind a filter": lambda: numbers().filter(is_odd).sharding_filter().map(double),
    "behind a flatmap": lambda: numbers().flatmap(twice).sharding_filter().map(double),
    "batches divided": lambda: numbers().batch(2).sharding_filter().map(sum).fullsync(),
    "prefetched": lambda: numbers().prefetch(3).sharding_filter().map(double).prefetch(2),
    "the loader's own": lambda: (
        numbers().map(double).sharding_filter().pin_memory(pin_memory_fn=as_it_is)
    ),
    "two divisions": lambda: of_workers(of_ranks(numbers()).map(double)).map(double),
    "two divisions, the workers' first": lambda: of_ranks(of_workers(numbers()).map(double)),
    "dealt": lambda: dispatched(numbers().filter(is_odd).sharding_filter()).map(double),
}
#: Where ranks divide among them what all their workers have, and not what each worker has.
APART = {"two divisions", "dealt"}


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("name", FITTING)
def test_other_ranks_go_on_with_what_is_left_at_every_step(name):
    make = FITTING[name]
    whole = in_process(make)
    for taken in COUNTS:
        for step, states in enumerate(states_of_epoch(make, taken), start=1):
            for run in COUNTS:
                assert rests_of(make, states, run) == shares_of(whole, step * taken, run)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "taken", "run", "step"),
    [
        ("maps", (2, 2), (3, 1), 2),
        ("maps", (3, 0), (2, 2), 1),
        ("two divisions", (1, 2), (2, 2), 3),
        ("dealt", (2, 1), (1, 2), 3),
    ],
)
def test_other_ranks_with_other_workers_go_on_with_what_is_left(name, taken, run, step):
    make = FITTING[name]
    whole = in_process(make)
    states = states_after(make, taken[0], step, taken[1])
    rests = rests_of(make, states, run[0], run[1])
    workers = 0 if name in APART else run[1]
    assert rests == shares_of(whole, step * taken[0], run[0], workers)


def test_the_epochs_after_that_are_those_of_the_seed():
    make = FITTING["maps"]
    with DataLoader2(make()) as loader:
        loader.seed(SEED)
        first, second = list(loader), list(loader)
    rests = rests_of(make, states_after(make, 2, 3), 3, epochs=2)
    for rank, rest in enumerate(rests):
        assert rest == shares_of(first, 6, 3)[rank] + second[rank::3]


def test_ranks_may_change_again_and_again():
    make = FITTING["maps"]
    whole, chance = in_process(make), random.Random(7)
    for _ in range(10):
        states, position = states_after(make, 3, 1), 3
        while position < len(whole):
            ranks = chance.choice(COUNTS)
            left = shares_of(whole, position, ranks)
            more = min(chance.randrange(1, 4), min(map(len, left))) or 1
            found = []
            for rank in range(ranks):
                with loader_of(make, rank, ranks) as loader:
                    loader.load_state_dict(states)
                    items = list(itertools.islice(loader, more))
                    assert items == left[rank][:more]
                    found.append(loader.state_dict(include_datapipe=False))
            if any(state["randomness_state"]["epoch_seed"] is None for state in found):
                break
            states, position = found, position + more * ranks


def test_a_state_made_of_others_is_this_ranks_own():
    make = FITTING["maps"]
    states = states_after(make, 2, 3)
    again = []
    for rank in range(3):
        with loader_of(make, rank, 3, workers=2) as loader:
            loader.load_state_dict(states)
            state = loader.state_dict(include_datapipe=False)
            assert (state["position"]["rank"], state["position"]["ranks"]) == (rank, 3)
            assert state == loader.state_dict(include_datapipe=False)
            again.append(state)
    whole = in_process(make)
    assert rests_of(make, again, 3, workers=2) == shares_of(whole, 6, 3, workers=2)
    assert rests_of(make, again, 2) == shares_of(whole, 6, 2)


def test_one_rank_may_go_on_on_several_from_its_state_alone():
    make = FITTING["maps"]
    (state,) = states_after(make, 1, 5)
    whole = in_process(make)
    for rank in range(2):
        with loader_of(make, rank, 2) as loader:
            loader.load_state_dict(state)
            assert list(loader) == shares_of(whole, 5, 2)[rank]


@pytest.mark.parametrize("name", ["two divisions", "dealt"])
def test_a_rank_whose_items_do_not_depend_on_its_workers_needs_no_other_state(name):
    make = FITTING[name]
    own = states_after(make, 2, 3, workers=1)[1]
    with loader_of(make, 1, 2, workers=2) as loader:
        loader.load_state_dict(own)
        assert list(loader) == shares_of(in_process(make), 6, 2)[1]


def test_between_epochs_any_ranks_go_on_from_any_state():
    def make() -> Any:
        return numbers().sharding_filter().batch(2)

    with loader_of(make, 1, 2) as loader:
        list(loader)
        state = loader.state_dict(include_datapipe=False)
    rests = []
    for rank in range(3):
        with loader_of(make, rank, 3) as loader:
            loader.load_state_dict(state)
            rests += [number for batch in loader for number in batch]
    assert sorted(rests) == list(range(SIZE))


# What is refused ------------------------------------------------------------------------


class Blocks(IterDataPipe[int]):
    """Yield numbers of which each instance has so many in a row."""

    edges = ()
    instance = 0

    def apply_sharding(self, count: int, instance: int, sharding_group: int = 1) -> None:
        self.instance = instance

    def __iter__(self) -> Any:
        return iter(range(10 * self.instance, 10 * self.instance + 10))


CLASHING: dict[str, tuple[Make, str]] = {
    "batch": (
        lambda: numbers().sharding_filter().batch(3).fullsync(),
        r"batch\(3\) yields other items",
    ),
    "filter": (
        lambda: numbers().sharding_filter().filter(is_odd),
        r"filter\(is_odd\) yields other",
    ),
    "shuffle": (lambda: numbers().sharding_filter().shuffle(), "shuffle.* yields other items"),
    "numbered": (lambda: numbers().sharding_filter().enumerate(), "enumerate.* yields other items"),
    "zip": (
        lambda: numbers().sharding_filter().zip(numbers().sharding_filter()),
        "zip.* yields other items",
    ),
    "a division of the user's": (lambda: Blocks().map(double), "Blocks.* yields other items"),
    "no division among ranks": (
        lambda: of_workers(numbers()).map(double),
        "nothing divides the items among the ranks",
    ),
}


@pytest.mark.parametrize("name", CLASHING)
def test_where_the_order_depends_on_the_ranks_the_pipe_in_the_way_is_named(name):
    make, message = CLASHING[name]
    states = states_after(make, 2, 2)
    with loader_of(make, 0, 3) as loader, pytest.raises(SnapshotError, match=message):
        loader.load_state_dict(states)
        # With as many ranks as before each goes on from its own.
    assert rests_of(make, states, 2) == [
        rests_of_own(make, states[rank], rank) for rank in range(2)
    ]


def rests_of_own(make: Make, state: State, rank: int) -> list[Any]:
    with loader_of(make, rank, 2) as loader:
        loader.load_state_dict(state)
        return list(loader)


def in_pairs(pipe: Any) -> Any:
    return pipe.batch(2)


def doubled(pipe: Any) -> Any:
    return pipe.map(double)


ADDING: dict[str, Callable[[Any], ReadingServiceInterface]] = {
    "init": lambda add: InProcessReadingService(init_fn=add),
    "reset": lambda add: InProcessReadingService(reset_fn=add),
}


@pytest.mark.parametrize("name", ADDING)
def test_what_a_service_adds_in_the_loader_is_named_where_the_ranks_are_others(name):
    def loader_adding(add: Any, rank: int, ranks: int, workers: int = 0) -> DataLoader2[Any]:
        in_workers = MultiProcessingReadingService(workers)
        service = SequentialReadingService(OnRank(rank, ranks), in_workers, ADDING[name](add))
        loader = DataLoader2(FITTING["maps"](), reading_service=service)
        loader.seed(SEED)
        return loader

    def begun(add: Any, rank: int) -> State:
        with loader_adding(add, rank, 2) as loader:
            next(iter(loader))
            return loader.state_dict(include_datapipe=False)

    pairs = [begun(in_pairs, rank) for rank in range(2)]
    # Other workers of as many ranks have shares of other items, too.
    for loader in (loader_adding(in_pairs, 0, 3), loader_adding(in_pairs, 1, 2, workers=2)):
        loader.load_state_dict(pairs)
        refused = pytest.raises(SnapshotError, match=r"a reading service .*puts batch\(2\) into it")
        with loader, refused:
            next(iter(loader))
    with loader_adding(in_pairs, 1, 2) as loader:
        loader.load_state_dict(pairs)
        assert sum(map(len, loader)) == SIZE // 2 - 2
    with loader_adding(doubled, 1, 3) as loader:
        loader.load_state_dict([begun(doubled, rank) for rank in range(2)])
        whole = [2 * item for item in in_process(FITTING["maps"])]
        assert list(loader) == shares_of(whole, 2, 3)[1]


def test_places_between_which_items_are_missing_are_refused_with_what_to_do():
    make = FITTING["maps"]
    states = states_after(make, 2, 3, workers=2)
    with (
        loader_of(make, 0, 3) as loader,
        pytest.raises(
            SnapshotError, match=r"\(3, 3 items, by rank\).*multiple of .* workers \(2\)"
        ),
    ):
        loader.load_state_dict(states)
    # They are no hindrance to as many ranks and workers as before.
    assert rests_of(make, states, 2, workers=2) == [
        [2 * 2 * in_order for in_order in share[3:]]
        for share in shares_of(in_process(numbers), 0, 2, workers=2)
    ]


def test_other_workers_on_as_many_ranks_need_the_states_of_all():
    make = FITTING["maps"]
    states = states_after(make, 2, 1)
    with (
        loader_of(make, 0, 2, workers=2) as loader,
        pytest.raises(SnapshotError, match="list of the states of all 2 ranks"),
    ):
        loader.load_state_dict(states[0])
    rests = rests_of(make, states, 2, workers=2)
    assert rests == shares_of(in_process(make), 2, 2, workers=2)


def test_items_that_came_without_order_have_no_place_for_other_ranks():
    make = FITTING["maps"]
    states = []
    for rank in range(2):
        with loader_of(make, rank, 2, workers=1, in_order=False) as loader:
            next(iter(loader))
            states.append(loader.state_dict(include_datapipe=False))
    with (
        loader_of(make, 0, 3, workers=1) as loader,
        pytest.raises(SnapshotError, match="in_order=False"),
    ):
        loader.load_state_dict(states)


def test_states_that_do_not_go_together_are_refused_by_name():
    make = FITTING["maps"]
    states, later = states_after(make, 3, 2), states_after(make, 3, 4)
    between = json.loads(json.dumps(states))
    with loader_of(make, 1, 3) as loader:
        list(loader)
        between[1] = loader.state_dict(include_datapipe=False)
    other = states_after(FITTING["behind a filter"], 3, 2)
    for given, message in [
        ([], "one for each rank"),
        (states[:2], "no state of rank 2 of 3"),
        (states[2:], "no state of ranks 0 and 1 of 3"),
        ([*states, states[0]], "4 states of a run with 3 ranks"),
        ([*states, *states_after(make, 2, 2)], "different numbers of ranks: 3, 2, 3, 2, 3"),
        ([states[0], later[1], states[2]], "rank 1 is of another moment .* after 4 .* after 2"),
        (between, "rank 1 is of another moment .* between epochs"),
        ([states[0], other[1], other[2]], "another graph"),
        ([states[0], states[1], 7], "a state is a dict"),
    ]:
        with (
            loader_of(make, 0, 2) as loader,
            pytest.raises(SnapshotError, match=message),
        ):
            loader.load_state_dict(given)


@pytest.mark.sweep
@pytest.mark.parametrize("now", [14, 16])
@pytest.mark.parametrize("ranks", [1, 3])
def test_other_ranks_refuse_data_that_have_grown_or_shrunk_within_an_epoch(ranks, now):
    def make(count: int) -> Make:
        return lambda: it.IterableWrapper(range(count)).shuffle().sharding_filter()

    states = states_of_epoch(make(15), 2)[3]
    assert sum(map(len, rests_of(make(15), states, ranks))) == 15 - 8
    with pytest.raises(SnapshotError, match=f"had 15 items and has {now}, so"):
        rests_of(make(now), states, ranks)
