from __future__ import annotations

import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.iter import Collator, IterableWrapper, Mapper
from asyncloader.datapipes.map import SequenceWrapper


def add(a: int, b: int) -> int:
    return a + b


async def doubled(number: int) -> int:
    return number * 2


ROWS: list[Any] = [(1, 2, 3), (4, 5, 6)]
COLUMNS = [
    (0, None),
    (1, None),
    (0, 2),
    (0, -1),
    ([0, 1], None),
    ([0, 2], None),
    ([0, 2], 1),
    ([0, 2], -1),
    ([0, 1], [2]),
]


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize(("input_col", "output_col"), COLUMNS)
def test_columns_are_read_and_written_as_by_torch(
    kind: type, input_col: Any, output_col: Any
) -> None:
    rows = [kind(row) for row in ROWS]
    function = add if isinstance(input_col, list) else str

    ours = IterableWrapper(rows).map(function, input_col, output_col)
    theirs = torch_iter.IterableWrapper(rows).map(function, input_col, output_col)

    assert list(ours) == list(theirs)


def total(*numbers: int) -> int:
    return sum(numbers)


@pytest.mark.parametrize(
    ("item", "input_col", "expected"),
    [
        ((1, 2, 3), [0, -2, -1], (6,)),
        ((1, 2, 3, 4), [0, 2, -3], (6, 4)),
        ((1, 2, 3, 4), [-1, 0, -4], (2, 3, 6)),
        ((1, 2), [0, 0], (2, 2)),
        ([1, 2], [0, -2], [2, 2]),
        ({"a": 1}, ["a", "a"], {"a": 2}),
        ({"a": 1, 0: 2, (1,): 3}, ["a", 0, (1,)], {"a": 6}),
    ],
)
def test_the_result_stands_in_the_first_column_and_the_other_inputs_are_gone(
    item: Any, input_col: Any, expected: Any
) -> None:
    assert list(IterableWrapper([item]).map(total, input_col)) == [expected]


def test_a_result_goes_into_a_copy_of_the_item() -> None:
    row = {"a": 1}

    assert list(IterableWrapper([row], deepcopy=False).map(str, "a", "b")) == [{"a": 1, "b": "1"}]
    assert row == {"a": 1}


def test_columns_that_do_not_go_together_are_refused() -> None:
    source = IterableWrapper(ROWS)

    with pytest.raises(ValueError, match="needs an input_col"):
        source.map(str, None, 1)
    with pytest.raises(ValueError, match="single column"):
        source.map(str, 0, [1, 2])
    with pytest.raises(ValueError, match="3 positional"):
        source.map(add, [0, 1, 2])


def test_a_result_of_no_columns_needs_a_place() -> None:
    with pytest.raises(ValueError, match="names no column"):
        IterableWrapper([{"a": 1}]).map(total, [])
    assert list(IterableWrapper([{"a": 1}]).map(total, [], "a")) == [{"a": 0}]


def test_a_failing_function_names_its_pipe_in_a_note() -> None:
    pipe = IterableWrapper([1, 0]).map(lambda n: 1 / n)

    with pytest.raises(ZeroDivisionError) as caught:
        list(pipe)
    assert caught.value.__notes__ == ["raised in map(<lambda>)"]


def test_stop_iteration_from_a_function_is_no_end_of_data() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(IterableWrapper([1]).map(lambda n: next(iter(()))))


async def test_async_functions_are_awaited_in_sync_and_async_iteration() -> None:
    pipe = IterableWrapper([1, 2]).map(doubled)

    assert [item async for item in pipe] == [2, 4]


def test_async_functions_are_awaited_in_a_thread_without_a_loop() -> None:
    assert list(IterableWrapper([1, 2]).map(doubled)) == [2, 4]
    assert list(IterableWrapper([(1, 2)]).map(doubled, 1)) == [(1, 4)]


def test_a_plain_function_that_returns_a_coroutine_is_an_error() -> None:
    made = []

    def later(number: int) -> Any:
        made.append(doubled(number))
        return made[0]

    with pytest.raises(TypeError, match="async def"):
        list(IterableWrapper([1]).map(later))
    made[0].close()


@pytest.mark.parametrize("function", [str, doubled])
def test_map_pipes_apply_functions_at_lookup(function: Any) -> None:
    pipe = SequenceWrapper([1, 2, 3]).map(function)

    assert len(pipe) == 3
    assert list(pipe) == list(IterableWrapper([1, 2, 3]).map(function))
    with pytest.raises(IndexError):
        pipe[3]


def test_a_failing_lookup_names_its_pipe_in_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        SequenceWrapper([0]).map(lambda n: 1 / n)[0]
    assert caught.value.__notes__ == ["raised in map(<lambda>)"]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_was_handed_on_is_let_go_before_the_next_is_made(on_error: Any) -> None:
    made: list[weakref.ref[Any]] = []
    left: list[bool] = []

    def make(number: int) -> Any:
        left.extend(each() is not None for each in made[-1:])
        thing = {number}
        made.append(weakref.ref(thing))
        return thing

    for item in IterableWrapper(range(3)).map(make, on_error=on_error):
        del item
    assert left == [False, False]


def test_collate_makes_tensors() -> None:
    rows = [{"x": 1, "y": (1.0, "a")}, {"x": 2, "y": (2.0, "b")}]
    (batch,) = IterableWrapper(rows).batch(2).collate()

    assert torch.equal(batch["x"], torch.tensor([1, 2]))
    assert torch.equal(batch["y"][0], torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert list(batch["y"][1]) == ["a", "b"]


def test_collate_takes_a_function_by_either_name() -> None:
    source = IterableWrapper([[1, 2]])

    assert list(source.collate(sum)) == list(source.collate(collate_fn=sum)) == [3]
    assert list(source.collate(len, collate_fn=sum)) == [3]
    with pytest.raises(TypeError, match="conversion must be callable, got dict"):
        Collator(source, {"a": sum})  # type: ignore[arg-type]


def test_pipes_need_no_torch_until_a_batch_is_collated() -> None:
    script = (
        "import sys\n"
        "from asyncloader.datapipes.iter import IterableWrapper\n"
        "import asyncloader.datapipes.map\n"
        "pipe = IterableWrapper(range(4)).shuffle().batch(2)\n"
        "assert sorted(sum(pipe, [])) == [0, 1, 2, 3]\n"
        "iter(pipe.collate())\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_enumerate_counts_from_where_it_is_told() -> None:
    assert list(IterableWrapper("ab").enumerate(5)) == [(5, "a"), (6, "b")]


@pytest.mark.parametrize(("length", "error"), [(-1, ValueError), (1.5, TypeError)])
def test_set_length_takes_counts_only(length: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="length must be"):
        IterableWrapper([1]).set_length(length)


def test_map_takes_functions_only() -> None:
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        Mapper([1], 5)  # type: ignore[arg-type]
