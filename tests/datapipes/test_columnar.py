from __future__ import annotations

from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from tests.datapipes.resuming import assert_goes_on


@pytest.mark.parametrize(
    ("batch", "names", "expected"),
    [
        ([{"a": 1}, {"b": 2, "a": 3}], None, {"a": [1, 3], "b": [2]}),
        ([{"a": 1, "b": 2}, {"b": 3, "a": 4}], ["b"], {"b": [2, 3]}),
        ([[0, 1], [2, 3]], ["x", "y"], {"x": [0, 2], "y": [1, 3]}),
        ([(0,), (2, 3)], ["x", "y"], {"x": [0, 2], "y": [3]}),
        ([], ["x"], {}),
    ],
)
def test_rows_become_columns(batch: Any, names: Any, expected: Any) -> None:
    assert list(IterableWrapper([batch]).rows2columnar(names)) == [expected]


def test_a_row_without_a_column_that_was_asked_for_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="without the column 'b'"):
        list(IterableWrapper([[{"a": 1}]]).rows2columnar(["a", "b"]))


def test_a_row_longer_than_the_names_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="3 values for 2 column_names"):
        list(IterableWrapper([[[1, 2, 3]]]).rows2columnar(["a", "b"]))


def test_one_name_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="got the text 'ab'"):
        IterableWrapper([[[1, 2]]]).rows2columnar("ab")


def test_it_goes_on_from_any_place() -> None:
    assert_goes_on(
        lambda: IterableWrapper(range(9)).map(lambda n: {"n": n}).batch(2).rows2columnar()
    )
