"""What is said of a name that a pipe does not have."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from asyncloader.datapipes.base import expect_methods
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import MapDataPipe, SequenceWrapper, functional_datapipe


@functional_datapipe("looked_up_backwards")
class Backwards(MapDataPipe[int]):
    def __init__(self, source: MapDataPipe[int]) -> None:
        self.source = source


@pytest.mark.parametrize(
    ("pipe", "name", "says"),
    [
        (
            SequenceWrapper(range(8)).batch(4),
            "collate",
            "MapBatcher has no attribute 'collate'; pipes that are iterated have it: call"
            " .to_iter_datapipe() first",
        ),
        (
            IterableWrapper([1]),
            "looked_up_backwards",
            "IterableWrapper has no attribute 'looked_up_backwards'; pipes that are looked up by"
            " key have it: call .to_map_datapipe() first",
        ),
        (IterableWrapper([1]), "shufle", "IterableWrapper has no attribute 'shufle'; did you mean"),
        (IterableWrapper([1]), "zzzzz", "IterableWrapper has no attribute 'zzzzz'"),
    ],
)
def test_a_name_that_is_not_there_says_what_may_be_meant(pipe, name, says):
    assert not hasattr(pipe, name)
    with pytest.raises(AttributeError) as raised:
        getattr(pipe, name)
    assert str(raised.value).startswith(says)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_others_may_add_to_the_message():
    # As torch, and libraries for tests, do it.
    with pytest.raises(AttributeError) as raised:
        IterableWrapper([1]).read_from_remote()
    error = raised.value
    assert repr(error.args[0]).startswith('"IterableWrapper has no attribute ')
    error.args = (f"{error.args[0]} [in case 3]", *error.args[1:])
    assert str(error).startswith("IterableWrapper has no attribute 'read_from_remote'; use ")
    assert str(error).endswith("[in case 3]")


def test_an_error_within_a_property_is_its_own():
    class Failing(IterDataPipe[int]):
        @property
        def share(self) -> int:
            return self.missing  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(AttributeError, match="'missing'"):
        _ = Failing().share


def test_a_pipe_that_is_being_made_can_be_asked():
    assert not hasattr(IterDataPipe.__new__(IterableWrapper), "iterable")
    assert list(copy.deepcopy(IterableWrapper([1]))) == [1]


def test_a_method_that_only_the_main_script_of_another_process_has():
    expect_methods({"pairwise_of_a_script": {"__main__"}})
    with pytest.raises(AttributeError, match="the main script registers it"):
        IterableWrapper("ab").pairwise_of_a_script()


@pytest.mark.parametrize("name", ["two words", None, IterDataPipe])
def test_a_functional_name_is_an_identifier(name: Any) -> None:
    with pytest.raises(ValueError, match="a functional name must be an identifier, got"):
        functional_datapipe(name)


def test_a_source_without_parameters_may_have_a_functional_name() -> None:
    @functional_datapipe("nothing_to_read")
    class Answer(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield 42

    assert list(Answer()) == [42]


def test_a_function_that_returns_several_pipes_may_have_a_functional_name() -> None:
    @functional_datapipe("halves", on=IterDataPipe)
    def halves(source: IterDataPipe[int], middle: int) -> list[IterDataPipe[int]]:
        return [source.header(middle), source.filter(lambda number: number >= middle)]

    first, second = IterableWrapper(range(5)).halves(2)
    assert (list(first), list(second)) == ([0, 1], [2, 3, 4])

    with pytest.raises(TypeError, match="halves is no class, so pass on=IterDataPipe or on=Map"):
        functional_datapipe("other_halves")(halves)


def test_a_functional_name_that_is_taken_says_by_whom() -> None:
    with pytest.raises(ValueError, match=r"'map' is already taken by .*mapping\.Mapper; choose"):
        functional_datapipe("map")(type("Other", (IterDataPipe,), {}))
