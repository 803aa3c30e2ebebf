from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from asyncloader.datapipes.iter import IterableWrapper
from tests.datapipes.resuming import assert_goes_on

ROWS = [(0, 10, 100), (1, 11, 111)]
DICTS = [{"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}]


def rows(items: list[Any] | None = None) -> IterableWrapper[Any]:
    return IterableWrapper(ROWS if items is None else items)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 2), [(0, 10), (1, 11)]),
        ((1,), [(10, 100), (11, 111)]),
        ((None, None, 2), [(0, 100), (1, 111)]),
        (([2, 0],), [(0, 100), (1, 111)]),
        (([-1],), [(100,), (111,)]),
    ],
)
def test_slice_takes_parts_of_tuples_and_of_lists(arguments: Any, expected: Any) -> None:
    assert list(rows().slice(*arguments)) == expected
    as_lists = rows([list(row) for row in ROWS])
    assert list(as_lists.slice(*arguments)) == [list(row) for row in expected]


def test_slice_takes_keys_of_dicts() -> None:
    assert list(rows(DICTS).slice("b")) == [{"b": 2}, {"b": 5}]
    assert list(rows(DICTS).slice(["c", "a"])) == [{"a": 1, "c": 3}, {"a": 4, "c": 6}]


def test_drop_leaves_out_places_and_keys() -> None:
    assert list(rows().drop(1)) == [(0, 100), (1, 111)]
    assert list(rows().drop([0, -1])) == [(10,), (11,)]
    assert list(rows(DICTS).drop(["a", "c"])) == [{"b": 2}, {"b": 5}]
    assert list(rows(DICTS).drop("a")) == [{"b": 2, "c": 3}, {"b": 5, "c": 6}]


@pytest.mark.parametrize(
    ("item", "indices", "expected"),
    [
        ((0, (1, 2), [3]), None, (0, 1, 2, 3)),
        ((0, (1, (2,)), [3]), 1, (0, 1, (2,), [3])),
        (((0, 1), (2,)), 0, (0, 1, (2,))),
        ([[0], 1, [2]], [0, -1], [0, 1, 2]),
        ({"a": {"b": 1}, "c": {"d": 2}}, None, {"b": 1, "d": 2}),
        ({"a": {"b": 1}, "c": {"d": 2}}, "c", {"a": {"b": 1}, "d": 2}),
    ],
)
def test_flatten_opens_what_is_nested_by_one_level(item: Any, indices: Any, expected: Any) -> None:
    assert list(rows([item]).flatten(indices)) == [expected]


def test_flatten_keeps_a_dicts_own_value_of_a_key_that_comes_twice() -> None:
    with pytest.warns(UserWarning, match="more than once"):
        items = list(rows([{"a": {"c": 1, "d": 2}, "b": {"d": 3}, "c": 4}]).flatten())
    assert items == [{"c": 4, "d": 2}]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"a": {"a": 1, "b": 2}}, {"a": 1, "b": 2}),
        ({"a": {"b": 1}, "b": {"a": 2}}, {"b": 1, "a": 2}),
    ],
)
def test_flatten_keeps_a_value_whose_key_is_that_of_a_dict_that_is_opened(
    item: Any, expected: Any
) -> None:
    assert list(rows([item]).flatten()) == [expected]


def test_flatten_opens_nothing_at_no_indices() -> None:
    items = [((1,), 2), {"a": {"b": 1}}]
    assert list(rows(items).flatten([])) == items


@pytest.mark.parametrize(
    "change",
    [
        lambda source: source.slice([0, 9]),
        lambda source: source.drop(9),
        lambda source: source.flatten([9]),
    ],
)
def test_an_index_with_nothing_there_is_warned_about_once_a_pass(
    change: Callable[[Any], Any],
) -> None:
    pipe = change(rows())

    for _ in range(2):
        with pytest.warns(UserWarning, match="got items that lack some of its indices") as caught:
            list(pipe)
        assert len(caught) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda source: source.slice(1),
        lambda source: source.drop(0),
        lambda source: source.flatten(),
    ],
)
def test_what_has_no_columns_is_yielded_with_a_warning(change: Callable[[Any], Any]) -> None:
    with pytest.warns(UserWarning, match="yields a int as it is"):
        assert list(change(rows([5, 6]))) == [5, 6]


def test_a_key_is_no_place_of_a_tuple() -> None:
    with pytest.raises(TypeError, match="places of a tuple are integers, got str"):
        list(rows().drop("a"))


def test_a_fraction_is_no_place_though_an_integer_is_equal_to_it() -> None:
    assert list(rows().drop(1)) == [(0, 100), (1, 111)]
    with pytest.raises(TypeError, match="places of a tuple are integers, got float"):
        list(rows().drop(1.0))


def test_integers_of_numpy_are_places_and_keys() -> None:
    one = numpy.int64(1)
    assert list(rows([(1, 2), {1: 3, 2: 4}]).drop(one)) == [(1,), {2: 4}]


def test_items_stay_as_they_are() -> None:
    item = {"a": {"b": 1}, "c": 2}
    list(rows([item]).flatten())
    list(rows([item]).drop("a"))

    assert item == {"a": {"b": 1}, "c": 2}


def test_arguments_that_contradict_one_another() -> None:
    with pytest.raises(ValueError, match="step must not be 0"):
        rows().slice(0, 2, 0)
    with pytest.warns(UserWarning, match="leave out stop and step"):
        rows().slice([0], 2)


def test_all_go_on_from_any_place() -> None:
    many = [(n, (n, n)) for n in range(6)]
    assert_goes_on(lambda: rows(many).filter(lambda row: row[0] != 2).slice(0, 1).drop(0).flatten())
