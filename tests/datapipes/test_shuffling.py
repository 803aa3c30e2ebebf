from __future__ import annotations

import random
import sys
import time
from array import array
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper, SampleMultiplexer
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.cursor_history import noting_at_every_item
from asyncloader.datapipes.running.cursors import close_items
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.datapipes.shuffling import least
from tests.datapipes.resuming import new_pass, placed, plain, rest_of
from tests.datapipes.watched import Watched


@given(st.lists(st.integers()), st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_shuffle_loses_and_doubles_nothing(items: list[int], size: int, seed: int) -> None:
    shuffled = list(IterableWrapper(items).shuffle(buffer_size=size).set_seed(seed))

    assert Counter(shuffled) == Counter(items)


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 99))
def test_no_item_comes_more_than_a_buffer_too_early(count: int, size: int, seed: int) -> None:
    shuffled = list(IterableWrapper(range(count)).shuffle(buffer_size=size).set_seed(seed))

    assert all(item <= place + size for place, item in enumerate(shuffled))


def test_a_buffer_of_one_keeps_the_order_as_in_torch() -> None:
    assert list(IterableWrapper(range(9)).shuffle(buffer_size=1)) == list(range(9))


def test_all_orders_are_equally_likely_where_all_items_fit() -> None:
    pipe = IterableWrapper(range(3)).shuffle()
    orders = Counter(tuple(pipe.set_seed(seed)) for seed in range(3000))

    assert len(orders) == 6
    assert all(400 < count < 600 for count in orders.values())


SHUFFLERS: dict[str, Any] = {
    "shuffle": lambda: IterableWrapper(range(50)).shuffle(buffer_size=20),
    "map_shuffle": lambda: SequenceWrapper(range(50)).shuffle(),
    "in_batch": lambda: IterableWrapper(range(50)).batch(10).in_batch_shuffle().unbatch(),
}


def shuffler_of(pipe: Any) -> Any:
    return pipe if hasattr(pipe, "set_seed") else pipe.source


every_shuffler = pytest.mark.parametrize("name", SHUFFLERS)


@every_shuffler
def test_equal_seeds_give_equal_orders_and_others_differ(name: str) -> None:
    def order(seed: int) -> list[int]:
        pipe = SHUFFLERS[name]()
        shuffler_of(pipe).set_seed(seed)
        return list(pipe)

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == list(range(50))


@every_shuffler
def test_a_seed_counts_for_one_pass(name: str) -> None:
    pipe = SHUFFLERS[name]()
    shuffler_of(pipe).set_seed(1)
    first, second = list(pipe), list(pipe)
    shuffler_of(pipe).set_seed(1)

    assert first != second
    assert list(pipe) == first


@every_shuffler
def test_where_no_seed_is_set_torch_is_asked(name: str) -> None:
    def order() -> list[int]:
        torch.manual_seed(7)
        return list(SHUFFLERS[name]())

    assert order() == order()


def test_where_torch_is_not_imported_python_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch")
    random.seed(7)
    first = list(IterableWrapper(range(50)).shuffle())
    random.seed(7)

    assert list(IterableWrapper(range(50)).shuffle()) == first


@every_shuffler
def test_shuffling_can_be_turned_off_and_keeps_the_seed_for_later(name: str) -> None:
    pipe = SHUFFLERS[name]()
    shuffler = shuffler_of(pipe)
    shuffler.set_seed(1)
    shuffled = list(pipe)

    assert shuffler.set_seed(1).set_shuffle(False) is shuffler
    assert list(pipe) == list(range(50))
    shuffler.set_shuffle()
    assert list(pipe) == shuffled


@every_shuffler
@pytest.mark.parametrize("seed", [-1, 2**64, 1.5])
def test_seeds_have_64_bits(name: str, seed: Any) -> None:
    with pytest.raises(ValueError, match="seed must be"):
        shuffler_of(SHUFFLERS[name]()).set_seed(seed)


def test_a_pass_knows_its_seed_and_its_draws() -> None:
    pipe = IterableWrapper(range(9)).shuffle(buffer_size=4).set_seed(3)
    RunTree([pipe])
    iterator = iter(pipe)
    running = latest_pass(pipe)

    for drawn in range(1, 6):
        next(iterator)
        assert running.cursor() == {"seed": 3, "drawn": drawn, "taken": 4 + drawn}
        assert len(running.state._buffer) == 4


def test_an_abandoned_pass_drops_its_buffer() -> None:
    pipe = Watched(range(9)).shuffle(buffer_size=4)
    RunTree([pipe])
    iterator = iter(pipe)
    next(iterator)
    del iterator

    assert latest_pass(pipe).state._buffer == []


def test_batches_are_taken_apart_before_they_are_shuffled() -> None:
    pipe = IterableWrapper([[1, 2], [3]]).shuffle(unbatch_level=1)

    assert sorted(pipe) == [1, 2, 3]
    with pytest.raises(TypeError):
        len(pipe)


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (1.0, TypeError)])
def test_buffer_sizes_are_counts(size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="buffer_size must be"):
        IterableWrapper([1]).shuffle(buffer_size=size)


@pytest.mark.parametrize("count", [0, 1, 5, 4096, 4097, 10_000])
def test_map_shuffle_yields_every_item_once(count: int) -> None:
    pipe = SequenceWrapper(range(count)).shuffle()

    assert len(pipe) == count
    assert sorted(pipe) == list(range(count))


def test_map_shuffle_looks_up_the_keys_it_is_given() -> None:
    pipe = SequenceWrapper({"a": 1, "b": 2, "c": 3}).shuffle(indices=["a", "c"])

    assert (len(pipe), sorted(pipe)) == (2, [1, 3])
    with pytest.raises(TypeError, match="indices must be a sequence"):
        SequenceWrapper([1]).shuffle(indices=iter([0]))


def test_map_shuffle_looks_items_up_when_their_turn_comes() -> None:
    looked_up: list[int] = []
    pipe = SequenceWrapper(range(9)).map(lambda n: looked_up.append(n) or n).shuffle()

    item = next(iter(pipe))
    assert looked_up == [item]


def test_map_shuffle_can_go_on_from_any_position() -> None:
    pipe = SequenceWrapper(range(10_000)).shuffle().set_seed(5)
    order = list(pipe)
    state = new_pass(pipe.set_seed(5))
    state.resume_at(9_990, None, {})

    assert list(state) == order[9_990:]


def cursors_at(graph: Any, position: int) -> dict[int, Any]:
    """Return the cursors of a graph after so many items."""
    run = placed(graph)
    items = run.begin()
    assert len(list(islice(items, position))) == position
    cursors: dict[int, Any] = {}
    run.put_cursors(cursors)
    close_items(items)
    return plain(cursors)


@pytest.mark.sweep
@pytest.mark.parametrize("size", [1, 7, 5000])
@pytest.mark.parametrize("position", [1, 4095, 4096, 4097, 8200, 9990, 9999, 10_000])
@pytest.mark.parametrize("source", [IterableWrapper, Watched])
def test_a_shuffle_goes_on_behind_many_draws(source: Any, size: int, position: int) -> None:
    def graph() -> Any:
        return source(range(10_000)).shuffle(buffer_size=size).set_seed(size)

    assert rest_of(graph(), position, cursors_at(graph(), position)) == list(graph())[position:]


# A generous bound: it is a fiftieth of a second. Made again one by one, the draws take minutes.
@pytest.mark.timeout(20)
def test_how_long_a_shuffle_takes_to_go_on_does_not_depend_on_the_position() -> None:
    graph = IterableWrapper(range(10**12)).shuffle().set_seed(3)
    cursor = {"seed": 3, "drawn": 10**12 - 50_000, "taken": 10**12 - 40_000}
    rest = rest_of(graph, cursor["drawn"], {0: cursor})
    assert len(set(rest)) == 50_000
    assert set(rest) > set(range(cursor["taken"], 10**12))


@pytest.mark.soak
def test_a_large_buffer_is_found_again_in_a_few_times_what_it_took_to_get_there() -> None:
    size, position = 1_000_000, 1_000_000

    def graph() -> Any:
        return IterableWrapper(range(3 * size)).shuffle(buffer_size=size).set_seed(3)

    begun = time.process_time()
    cursors = cursors_at(graph(), position)
    there = time.process_time() - begun
    run = placed(graph())
    run.resume(position, cursors)
    begun = time.process_time()
    item = next(run.begin())
    again = time.process_time() - begun
    assert item == next(islice(graph(), position, None))
    # Twice as long on a quiet machine; work that grows with the square is twenty times as long.
    assert again < 6 * there


@pytest.mark.timeout(20)
def test_how_long_other_draws_take_to_go_on_does_not_depend_on_the_position() -> None:
    numbers, taken = range(10**9), [10**9 - 5, 3 * 10**6]
    mixed = SampleMultiplexer({IterableWrapper(numbers): 1, IterableWrapper(numbers): 3}, seed=1)
    cursor = {"seed": 1, "drawn": sum(taken), "yielded": sum(taken), "taken": taken, "ended": []}
    run = placed(mixed)
    run.resume(sum(taken), {0: cursor})
    assert set(islice(run.begin(), 4)) <= {*numbers[-5:], *numbers[taken[1] : taken[1] + 4]}

    batches = IterableWrapper(numbers).batch(5).in_batch_shuffle().set_seed(2)
    cursor = {"seed": 2, "drawn": 10**9 - 10, "yielded": 2 * 10**8 - 2}
    (batch, last) = rest_of(batches, cursor["yielded"], {0: cursor})
    assert (sorted(batch), sorted(last)) == ([*numbers[-10:-5]], [*numbers[-5:]])


def test_in_batch_shuffle_keeps_the_batches_and_counts_its_draws() -> None:
    pipe = IterableWrapper(range(9)).batch(3).in_batch_shuffle()
    RunTree([pipe])

    for number, batch in enumerate(pipe):
        assert sorted(batch) == [3 * number, 3 * number + 1, 3 * number + 2]
        cursor = latest_pass(pipe).cursor()
        assert (cursor["yielded"], cursor["drawn"]) == (number + 1, 3 * (number + 1))


@pytest.mark.parametrize("buffer_size", [8, 100, 3000])
def test_what_a_large_buffer_needs_is_never_less_than_it_holds(buffer_size: int) -> None:
    pipe = IterableWrapper(range(10 * buffer_size)).filter(is_number)
    pipe = pipe.shuffle(buffer_size=buffer_size).set_seed(3)
    RunTree([pipe])
    iterator = iter(pipe)
    running = latest_pass(pipe)

    late = 0
    for drawn in range(1, 10 * buffer_size):
        next(iterator)
        if drawn % 7 and buffer_size > 100:
            continue
        taken = min(drawn + buffer_size, 10 * buffer_size)
        needed, oldest = running.state.needs(taken), min(running.state._buffer)
        assert needed <= oldest
        late = max(late, oldest - needed)
    # The oldest item is looked for again when an eighth of the buffer is new.
    assert late < 10 * buffer_size


@pytest.mark.parametrize("size", [20, 3000])
def test_a_shuffle_resumes_from_any_state_of_a_large_buffer(size: int) -> None:
    def loader() -> DataLoader2[int]:
        numbers = IterableWrapper(range(4 * size)).filter(is_number)
        return DataLoader2(numbers.shuffle(buffer_size=size))

    states = {}
    with noting_at_every_item() if size < 100 else nullcontext(), loader() as whole:
        whole.seed(1)
        expected = []
        for position, item in enumerate(whole):
            expected.append(item)
            if position % (size // 4) == 3:
                states[position] = whole.state_dict()
    for position, state in states.items():
        with loader() as resumed:
            resumed.load_state_dict(state)
            assert list(resumed) == expected[position + 1 :]


@pytest.mark.parametrize("count", [0, 1, 5000])
@pytest.mark.parametrize("is_loaded", [True, False])
def test_the_least_of_many_numbers(monkeypatch, count: int, is_loaded: bool) -> None:
    pytest.importorskip("numpy")
    if not is_loaded:
        monkeypatch.delitem(sys.modules, "numpy")
    numbers = array("q", range(count + 2**40, 2**40, -1))
    assert least(numbers, otherwise=7) == (2**40 + 1 if count else 7)
    # Nothing keeps it from growing.
    numbers.append(1)


def is_number(item: Any) -> bool:
    return isinstance(item, int)
