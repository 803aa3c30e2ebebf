from __future__ import annotations

from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from tests.datapipes.resuming import assert_goes_on

ROWS = [(n, n + 10, n + 20) for n in range(5)]

#: The source of each form.
FORMS: dict[str, Any] = {"iter": IterableWrapper, "map": SequenceWrapper}
either_form = pytest.mark.parametrize("form", FORMS)


@either_form
def test_every_place_gets_a_pipe(form: str) -> None:
    columns = FORMS[form](ROWS).unzip(3)

    assert [list(column) for column in columns] == [list(c) for c in zip(*ROWS, strict=True)]
    assert [len(column) for column in columns] == [5, 5, 5]


@either_form
def test_columns_to_skip_get_none(form: str) -> None:
    columns = FORMS[form](ROWS).unzip(3, columns_to_skip=[1])

    assert [next(iter(column)) for column in columns] == [0, 20]


@either_form
@pytest.mark.parametrize(
    ("length", "skipped", "message"),
    [
        (0, None, "sequence_length must be at least 1"),
        (2, [2], "columns_to_skip must be from 0 to 1"),
        (2, [0, 1], "must leave a column, got all 2"),
    ],
)
def test_what_cannot_be_unzipped(form: str, length: int, skipped: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FORMS[form](ROWS).unzip(length, columns_to_skip=skipped)


@either_form
def test_a_sequence_that_is_too_short_is_an_index_error(form: str) -> None:
    _, second = FORMS[form]([(1,)]).unzip(2)

    with pytest.raises(IndexError):
        list(second)


@either_form
def test_a_sequence_that_is_too_long_loses_nothing_unseen(form: str) -> None:
    first, _ = FORMS[form](ROWS).unzip(2)

    with pytest.raises(ValueError, match=r"unzip\(.*got a sequence of 3 places"):
        list(first)


@either_form
def test_what_is_no_sequence_is_named(form: str) -> None:
    first, _ = FORMS[form]([5]).unzip(2)

    with pytest.raises(TypeError, match=r"unzip\(.*reads sequences, got int"):
        list(first)


def test_a_branch_ahead_of_another_is_bounded() -> None:
    first, _ = IterableWrapper(ROWS).unzip(3, buffer_size=2)[:2]

    with pytest.raises(BufferError, match="more than 2 items"):
        list(first)


def test_it_goes_on_from_any_place() -> None:
    def joined() -> Any:
        first, second = IterableWrapper(ROWS).unzip(3, columns_to_skip=[1])
        return first.zip(second)

    assert_goes_on(joined)


def test_the_others_overflow_where_those_of_torchdata_do() -> None:
    first, second = IterableWrapper([(n, n + 10) for n in range(10)]).unzip(2, buffer_size=4)
    leading, other = iter(first), iter(second)
    assert [next(leading) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(BufferError):
        next(leading)
    # The other is as far ahead after nine, and is not read to its end as if nothing had been.
    assert [next(other) for _ in range(9)] == list(range(10, 19))
    with pytest.raises(BufferError):
        next(other)
