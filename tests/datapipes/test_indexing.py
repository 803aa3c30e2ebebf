from __future__ import annotations

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from tests.datapipes.resuming import assert_goes_on


def test_dicts_get_their_number_and_are_copied() -> None:
    items = [{"a": 1}, {"a": 2}]

    assert list(IterableWrapper(items, deepcopy=False).add_index("at")) == [
        {"a": 1, "at": 0},
        {"a": 2, "at": 1},
    ]
    assert items == [{"a": 1}, {"a": 2}]


def test_other_items_have_no_room_for_an_index() -> None:
    with pytest.raises(NotImplementedError, match="got int; use enumerate"):
        list(IterableWrapper([1]).add_index())


def test_it_goes_on_from_any_place() -> None:
    assert_goes_on(
        lambda: (
            IterableWrapper([{"n": n} for n in range(8)]).filter(lambda d: d["n"] != 3).add_index()
        )
    )
