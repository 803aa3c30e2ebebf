from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from tests.datapipes.watched import Watched


def test_filter_keeps_order_and_counts_what_it_took_and_let_pass() -> None:
    pipe = IterableWrapper(range(10)).filter(lambda n: n % 3 == 0)
    RunTree([pipe])

    assert [(n, latest_pass(pipe).taken, latest_pass(pipe).yielded) for n in pipe] == [
        (0, 1, 1),
        (3, 4, 2),
        (6, 7, 3),
        (9, 10, 4),
    ]


def test_filter_reads_columns() -> None:
    rows = [(1, 2), (2, 1)]

    assert list(IterableWrapper(rows).filter(lambda n: n > 1, 0)) == [(2, 1)]
    assert list(IterableWrapper(rows).filter(lambda a, b: a < b, [0, 1])) == [(1, 2)]
    with pytest.raises(ValueError, match="2 positional"):
        IterableWrapper(rows).filter(lambda a: True, [0, 1])


@pytest.mark.parametrize("answer", [numpy.bool_, torch.tensor])
def test_scalars_of_numpy_and_torch_count_as_what_they_say(answer: Any) -> None:
    pipe = IterableWrapper(range(4)).filter(lambda n: answer(n % 2 == 0))

    assert list(pipe) == [0, 2]


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_an_answer_that_is_no_bool_is_an_error(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"True or False, got \w+ .*filter"):
        list(IterableWrapper([1]).filter(lambda n: answer))


async def test_filter_awaits_async_functions() -> None:
    async def is_even(number: int) -> bool:
        return number % 2 == 0

    pipe = IterableWrapper(range(5)).filter(is_even)

    assert [item async for item in pipe] == [0, 2, 4]
    rows = IterableWrapper([(0, 1), (0, 2)]).filter(is_even, 1)
    assert [item async for item in rows] == [(0, 2)]


def test_a_failing_filter_names_its_pipe_in_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(IterableWrapper([0]).filter(lambda n: 1 / n))
    assert caught.value.__notes__ == ["raised in filter(<lambda>)"]


def test_header_reads_no_further_than_its_limit() -> None:
    source = Watched(range(10))

    assert list(source.header(3)) == [0, 1, 2]
    assert (source.taken, source.open) == (3, 0)
    assert list(source.header(0)) == []
    assert source.taken == 3


def test_header_without_a_limit_lets_everything_pass() -> None:
    assert list(IterableWrapper(range(20)).header(None)) == list(range(20))


def test_the_length_of_header_is_at_most_that_of_its_source() -> None:
    assert len(IterableWrapper(range(5)).header(10)) == 5
    assert len(IterableWrapper(range(50)).header()) == 10
    unknown = IterableWrapper(range(5)).filter(lambda n: True)
    with pytest.warns(UserWarning, match="set_length"):
        assert len(unknown.header(3)) == 3
    with pytest.raises(TypeError):
        len(unknown.header(None))


def test_a_limit_is_a_count() -> None:
    with pytest.raises(ValueError, match="limit must be at least 0, got -1"):
        IterableWrapper([1]).header(-1)
