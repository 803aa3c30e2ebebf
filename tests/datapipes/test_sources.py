"""Where items come from."""

import pickle
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.cursors import dropped
from tests.datapipes.resuming import placed


def test_an_iterator_is_read_once_and_then_refused():
    pipe = IterableWrapper(iter([1, 2]))
    assert list(pipe) == [1, 2]
    with pytest.raises(TypeError, match="read only once"):
        list(pipe)


def test_a_set_has_the_same_order_in_all_processes():
    # One that was larger has another order when it is made anew. One of texts has another
    # in every process, so that the workers' shares would not fit together.
    numbers = set(range(100))
    numbers.difference_update({*range(100)} - {1, 8})
    assert list(numbers) != list(set(numbers))
    twin = pickle.loads(pickle.dumps(IterableWrapper(numbers)))
    assert list(twin) == list(numbers)


@pytest.mark.parametrize("wrapper", [IterableWrapper, SequenceWrapper])
@pytest.mark.parametrize("pipe", [IterableWrapper([1]), SequenceWrapper([1])])
def test_a_pipe_needs_no_wrapper(wrapper, pipe):
    # A graph would end at the wrapper: no shard, no seed would reach the pipe.
    with pytest.raises(TypeError, match="is a pipe already"):
        wrapper(pipe)


def test_enums_among_the_settings_are_shown_by_name():
    from asyncloader.datapipes.iter import SHARDING_PRIORITIES

    pipe = IterableWrapper([1]).sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
    assert repr(pipe) == "sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)"


def test_an_error_that_a_function_raises_again_is_noted_once():
    error = LookupError("always this one")

    def fails(item):
        raise error

    pipe = IterableWrapper([1]).map(fails)
    for _ in range(3):
        with pytest.raises(LookupError):
            list(pipe)
    assert error.__notes__ == ["raised in map(fails)"]


@pytest.mark.parametrize("data", [[*range(9)], tuple(range(9)), range(9), range(2**70, 2**70 + 9)])
@pytest.mark.parametrize("position", [0, 1, 8, 9, 2**80])
def test_data_in_memory_goes_on_from_any_position_and_is_dropped_from_there(
    data: Any, position: int
) -> None:
    for dropping in range(3):
        run = placed(IterableWrapper(data))
        run.resume(position, {})
        assert [*dropped(run.begin(), dropping)] == [*data[position + dropping :]]
