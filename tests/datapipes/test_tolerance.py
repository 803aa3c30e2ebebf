"""Bad samples: raised, left out, or answered for, and counted."""

from __future__ import annotations

from functools import partial

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.errors import TooManyErrors
from tests.datapipes.resuming import assert_goes_on, cursors_along, plain, rest_of


def numbers(count=20):
    return IterableWrapper(range(count))


def half(number):
    if number % 5 == 0:
        raise LookupError(number)
    return number / 2


async def half_soon(number):
    return half(number)


def is_small(number):
    return half(number) < 5


def halves(number):
    yield number
    yield half(number)


async def halves_soon(number):
    yield number
    yield half(number)


class Halves:
    """Fails where it is to be iterated, as what opens a file then."""

    def __init__(self, number):
        self.number = number

    def __iter__(self):
        return iter([half(self.number)])


def half_of_all(batch):
    return [half(number) for number in batch]


GOOD = [number / 2 for number in range(20) if number % 5]

PIPES = {
    "map": lambda **how: numbers().map(half, **how),
    "map, async": lambda **how: numbers().map(half_soon, **how),
    "async_map": lambda **how: numbers().async_map(half_soon, **how),
    "thread_map": lambda **how: numbers().thread_map(half, concurrency=3, **how),
    "threadpool_map": lambda **how: numbers().threadpool_map(half, max_workers=3, **how),
    "async_map_batches": lambda **how: numbers().async_map_batches(half_soon, 3, **how),
    "flatmap": lambda **how: numbers().flatmap(lambda number: [half(number)], **how),
    "shuffled_flatmap": lambda **how: numbers().shuffled_flatmap(
        lambda number: [half(number)], buffer_size=1, **how
    ),
    "collate": lambda **how: numbers().batch(1).collate(lambda one: half(one[0]), **how),
}
every_pipe = pytest.mark.parametrize("name", PIPES)


@every_pipe
def test_a_failed_item_is_left_out_and_counted(name):
    pipe = PIPES[name](on_error="skip")
    RunTree([pipe])
    assert list(pipe) == GOOD
    assert latest_pass(pipe).errors == 4


@every_pipe
def test_without_on_error_it_is_raised(name):
    with pytest.raises(LookupError) as caught:
        list(PIPES[name]())
    assert "raised in" in caught.value.__notes__[0]


@every_pipe
def test_a_function_answers_for_it(name):
    def answer(error, item):
        assert isinstance(error, LookupError)
        return [-1] if name.endswith("flatmap") else -1

    pipe = PIPES[name](on_error=answer)
    RunTree([pipe])
    assert list(pipe) == [-1 if number % 5 == 0 else number / 2 for number in range(20)]
    assert latest_pass(pipe).errors == 4


@every_pipe
def test_the_function_that_answers_may_raise(name):
    def refuse(error, item):
        raise KeyError(item) from error

    with pytest.raises(KeyError) as caught:
        list(PIPES[name](on_error=refuse))
    assert isinstance(caught.value.__cause__, LookupError)


@every_pipe
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.sweep)])
async def test_one_error_too_many_names_the_pipe_and_the_last_error(name, workers):
    graph = PIPES[name](on_error="skip", max_errors=3).sharding_filter()
    loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(workers))
    items = []
    async with loader:
        with pytest.raises(TooManyErrors, match="failed on 4 items, which is more than") as caught:
            await read_into(items, loader)
    assert items == [number / 2 for number in range(15) if number % 5]
    assert name.partition(",")[0] in str(caught.value)
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.__cause__.args[0] == 15
    assert caught.value.errors == 4


async def read_into(items, loader):
    async for item in loader:
        items.append(item)


@every_pipe
def test_as_many_errors_as_allowed_are_allowed(name):
    assert list(PIPES[name](on_error="skip", max_errors=4)) == GOOD


@every_pipe
def test_each_pass_counts_for_itself(name):
    pipe = PIPES[name](on_error="skip", max_errors=4)
    RunTree([pipe])
    assert list(pipe) == list(pipe) == GOOD
    assert latest_pass(pipe).errors == 4


@every_pipe
async def test_it_goes_on_exactly(name):
    expected = [item async for item in DataLoader2(PIPES[name](on_error="skip"))]
    for count in range(1, len(expected)):
        loader = DataLoader2(PIPES[name](on_error="skip", max_errors=4))
        async with loader:
            stream = aiter(loader)
            items = [await anext(stream) for _ in range(count)]
            state = loader.state_dict(include_datapipe=False)
        later = DataLoader2(PIPES[name](on_error="skip", max_errors=4))
        later.load_state_dict(state)
        async with later:
            assert items + [item async for item in later] == expected


def test_a_filter_that_fails_leaves_the_item_out_or_asks():
    pipe = numbers().filter(is_small, on_error="skip")
    RunTree([pipe])
    assert list(pipe) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert latest_pass(pipe).errors == 4
    asked = numbers().filter(is_small, on_error=lambda error, number: number > 10)
    assert list(asked) == [1, 2, 3, 4, 6, 7, 8, 9, 15]


@pytest.mark.parametrize("function", [halves, halves_soon])
def test_what_an_expansion_made_before_it_failed_is_kept(function):
    source = IterableWrapper([4, 5, 6])
    assert list(source.flatmap(function, on_error="skip")) == [4, 2, 5, 6, 3]
    answered = source.flatmap(function, on_error=lambda error, n: "ab")
    assert list(answered) == [4, 2, 5, "a", "b", 6, 3]
    strict = iter(source.flatmap(function))
    assert [next(strict) for _ in range(3)] == [4, 2, 5]
    with pytest.raises(LookupError) as caught:
        next(strict)
    assert caught.value.__notes__ == [f"raised in flatmap({function.__name__})"]


def test_an_expansion_may_fail_where_it_is_begun_to_be_read():
    source = IterableWrapper([4, 5, 6])
    assert list(source.flatmap(Halves, on_error="skip")) == [2, 3]
    assert list(source.flatmap(Halves, on_error=lambda error, n: "ab")) == [2, "a", "b", 3]
    assert sorted(source.shuffled_flatmap(Halves, on_error="skip")) == [2, 3]
    with pytest.raises(LookupError) as caught:
        list(source.flatmap(Halves))
    assert caught.value.__notes__ == ["raised in flatmap(Halves)"]


async def test_an_expansion_goes_on_inside_an_answer_and_counts_it_once():
    def graph():
        return numbers(11).flatmap(halves, on_error=lambda error, n: "abc", max_errors=3)

    expected = list(graph())
    await goes_on_exactly(graph, expected, range(1, len(expected)))


def test_mixed_expansions_fail_once_each_wherever_a_pass_goes_on():
    def graph():
        answered = numbers(12).shuffled_flatmap(
            halves, buffer_size=4, on_error=lambda error, n: [-n, -n - 1], max_errors=3
        )
        return answered.set_seed(7)

    assert sorted(graph()) == sorted(
        [*range(12), *(n / 2 for n in range(12) if n % 5), 0, -1, -5, -6, -10, -11]
    )
    assert_goes_on(graph)
    assert_counts_alike(graph, errors=3)
    skipping = partial(numbers(12).shuffled_flatmap, halves, buffer_size=4, on_error="skip")
    assert_goes_on(lambda: skipping().set_seed(7))
    assert_counts_alike(lambda: skipping().set_seed(7), errors=3)


def assert_counts_alike(graph, errors):
    """Check that a pass has counted so many errors in the end, wherever it goes on."""
    items, along = cursors_along(graph())
    for position, cursors in enumerate(along):
        later = graph()
        RunTree([later])
        assert rest_of(later, position, plain(cursors)) == items[position:]
        assert latest_pass(later).errors == errors


async def goes_on_exactly(graph, expected, counts):
    """Check that a state after so many items leads to the rest of those expected."""
    for count in counts:
        async with DataLoader2(graph()) as loader:
            stream = aiter(loader)
            items = [await anext(stream) for _ in range(count)]
            state = loader.state_dict(include_datapipe=False)
        later = DataLoader2(graph())
        later.load_state_dict(state)
        async with later:
            assert items + [item async for item in later] == expected


async def test_lists_of_results_are_full_whatever_is_left_out_and_go_on_exactly():
    def graph():
        return numbers().async_map_batches(half_soon, 3, flatten=False, on_error="skip")

    expected = [GOOD[start : start + 3] for start in range(0, len(GOOD), 3)]
    assert [batch async for batch in graph()] == expected
    await goes_on_exactly(graph, expected, range(len(expected)))


def test_map_batches_leaves_whole_lists_out():
    pipe = numbers(12).map_batches(half_of_all, 4, on_error="skip")
    RunTree([pipe])
    assert list(pipe) == []
    assert latest_pass(pipe).errors == 3
    rows = IterableWrapper([(n, n + 1) for n in range(4)])
    assert list(rows.map_batches(lambda column: [sum(column)], 3, input_col=1)) == [6, 4]
    pairs = rows.map_batches(lambda pairs: pairs, 3, input_col=[1, 0])
    assert list(pairs) == [[1, 0], [2, 1], [3, 2], [4, 3]]


def test_leaving_items_out_takes_the_length_away():
    with pytest.raises(TypeError, match=r"map\(half.* leaves out what fails"):
        len(numbers().map(half, on_error="skip"))
    assert len(numbers().map(half, on_error=lambda error, item: 0)) == 20


def test_a_function_that_ends_the_data_has_failed():
    def ends(number):
        raise StopIteration

    pipe = numbers(3).map(ends, on_error="skip")
    RunTree([pipe])
    assert list(pipe) == []
    assert latest_pass(pipe).errors == 3


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"on_error": "ignore"}, ValueError, "on_error must be .* got 'ignore'"),
        ({"on_error": half_soon}, TypeError, "must be a plain function"),
        ({"max_errors": 3}, ValueError, "max_errors goes with"),
        ({"on_error": "skip", "max_errors": -1}, ValueError, "max_errors must be at least 0"),
    ],
)
@every_pipe
def test_what_is_wrong_is_said_when_the_pipe_is_made(name, how, error, text):
    with pytest.raises(error, match=text):
        PIPES[name](**how)
