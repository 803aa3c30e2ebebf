from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter
import torch.utils.data.datapipes.map as torch_map
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from tests.datapipes.watched import Failing, Watched

sizes = st.integers(1, 7)


@given(st.lists(st.integers()), sizes, st.booleans())
def test_batches_are_those_of_torch(items: list[int], size: int, drop_last: bool) -> None:
    ours = IterableWrapper(items).batch(size, drop_last)
    theirs = torch_iter.IterableWrapper(items).batch(size, drop_last)

    assert list(ours) == [list(batch) for batch in theirs]
    assert len(ours) == len(theirs)


@given(st.lists(st.integers()), sizes, st.booleans())
def test_looked_up_batches_are_those_of_torch(items: list[int], size: int, drop_last: bool) -> None:
    ours = SequenceWrapper(items).batch(size, drop_last)
    theirs = torch_map.SequenceWrapper(items).batch(size, drop_last)

    assert list(ours) == [list(theirs[index]) for index in range(len(theirs))]
    assert len(ours) == len(theirs)


@given(st.lists(st.integers()), sizes)
def test_unbatch_undoes_batch(items: list[int], size: int) -> None:
    source = IterableWrapper(items)

    assert list(source.batch(size).unbatch()) == items
    assert list(source.batch(size).batch(2).unbatch(2)) == items


def test_a_batch_is_a_plain_list_or_what_the_wrapper_makes_of_it() -> None:
    source = IterableWrapper(range(4))

    assert [type(batch) for batch in source.batch(2)] == [list, list]
    assert list(source.batch(2, wrapper_class=tuple)) == [(0, 1), (2, 3)]
    assert SequenceWrapper(range(4)).batch(2, wrapper_class=tuple)[1] == (2, 3)


def test_a_failing_wrapper_names_its_pipe_in_a_note() -> None:
    def fail(batch: list[int]) -> None:
        raise KeyError(1)

    with pytest.raises(KeyError) as caught:
        list(IterableWrapper([1]).batch(1, wrapper_class=fail))
    assert caught.value.__notes__ == ["raised in batch(1, wrapper_class=fail)"]


def test_items_are_taken_only_as_they_are_needed() -> None:
    source = Watched(range(9))
    pipe = source.batch(2)
    iterator = iter(pipe)

    for expected in range(1, 4):
        next(iterator)
        assert source.taken == 2 * expected


def test_whole_batches_come_before_an_error_of_the_source() -> None:
    iterator = iter(Failing(range(3), KeyError("source")).batch(2))

    assert next(iterator) == [0, 1]
    with pytest.raises(KeyError, match="source"):
        next(iterator)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "batch_size must be at least 1, got 0"),
        (-3, ValueError, "got -3"),
        (2.0, TypeError, "must be an integer, got float"),
        (True, TypeError, "got True"),
    ],
)
def test_batch_sizes_are_counts(size: Any, error: type[Exception], message: str) -> None:
    for source in (IterableWrapper([1]), SequenceWrapper([1])):
        with pytest.raises(error, match=message):
            source.batch(size)


def test_looked_up_batches_end_where_the_items_do() -> None:
    pipe = SequenceWrapper(range(5)).batch(2)

    assert pipe[-1] == [4]
    for index in (3, -4):
        with pytest.raises(IndexError, match="3 items"):
            pipe[index]


def test_batches_across_workers_are_batches_that_stay_with_the_loader() -> None:
    pipe = IterableWrapper(range(5)).batch(2, across_workers=True)

    assert list(pipe) == list(IterableWrapper(range(5)).batch(2))
    assert not pipe.is_replicable()
    assert IterableWrapper(range(5)).batch(2).is_replicable()
    with pytest.raises(TypeError):
        IterableWrapper(range(5)).batch(2, False, list, True)  # type: ignore[call-overload]
