from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass

NAMES = ["a.png", "b.png", "a.json", "b.json", "a.jpg", "c.json"]


def stem(name: str) -> str:
    return name.split(".")[0]


def third(number: int) -> int:
    return number % 3


@st.composite
def settings(draw: Any) -> dict[str, Any]:
    buffer_size = draw(st.integers(1, 8))
    group_size = draw(st.none() | st.integers(1, buffer_size))
    guaranteed = draw(st.none() | st.integers(1, group_size)) if group_size else None
    return {
        "buffer_size": buffer_size,
        "group_size": group_size,
        "guaranteed_group_size": guaranteed,
        "drop_remaining": draw(st.booleans()),
    }


def outcome(pipe: Any) -> list[Any]:
    groups: list[Any] = []
    try:
        groups.extend(list(group) for group in pipe)
    except RuntimeError:
        groups.append("full")
    return groups


@given(st.lists(st.integers(0, 9), max_size=30), settings())
def test_groups_are_those_of_torch(items: list[int], settings: dict[str, Any]) -> None:
    ours = IterableWrapper(items).groupby(third, **settings)
    theirs = torch_iter.IterableWrapper(items).groupby(third, **settings)

    assert outcome(ours) == outcome(theirs)


def test_keys_come_with_their_own_groups() -> None:
    pipe = IterableWrapper(NAMES).groupby(stem, keep_key=True, buffer_size=3)

    assert all({stem(name) for name in group} == {key} for key, group in pipe)


def test_a_pass_shows_what_it_holds() -> None:
    pipe = IterableWrapper(NAMES).groupby(stem, group_size=2)
    RunTree([pipe])
    iterator = iter(pipe)
    running = latest_pass(pipe)

    assert next(iterator) == ["a.png", "a.json"]
    assert running.cursor() == {"taken": 3, "yielded": 1, "held": [1]}


def test_a_full_buffer_of_small_groups_is_an_error_that_shows_no_items() -> None:
    pipe = IterableWrapper(NAMES).groupby(stem, buffer_size=2, group_size=2)

    with pytest.raises(RuntimeError, match="drop_remaining=True") as caught:
        list(pipe)
    assert "png" not in str(caught.value)


class Counted:
    """A key that counts how often it was looked for."""

    looks = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        Counted.looks += 1
        return self.number


def test_a_full_buffer_is_not_searched_for_each_item() -> None:
    pipe = IterableWrapper(range(2000)).groupby(Counted, buffer_size=1000)

    assert len(list(pipe)) == 2000
    assert Counted.looks < 2000 * 20


async def test_groupby_awaits_async_functions() -> None:
    async def key(name: str) -> str:
        return stem(name)

    pipe = IterableWrapper(NAMES).groupby(key)

    assert [group async for group in pipe] == list(IterableWrapper(NAMES).groupby(stem))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer_size": 0}, "buffer_size must be at least 1"),
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"group_size": 3, "buffer_size": 2}, r"at most buffer_size \(2\), got 3"),
        ({"group_size": 2, "guaranteed_group_size": 3}, r"at most group_size \(2\), got 3"),
        ({"guaranteed_group_size": 3}, "guaranteed_group_size=3 needs a group_size of at least 3"),
    ],
)
def test_sizes_must_fit_into_one_another(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IterableWrapper(NAMES).groupby(stem, **settings)


def test_a_failing_key_function_names_its_pipe_in_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(IterableWrapper([0]).groupby(lambda n: 1 / n))
    assert caught.value.__notes__ == ["raised in groupby(<lambda>)"]
