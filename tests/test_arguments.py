"""What is wrong with a pipe's arguments is said where the pipe is made, by name and value."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from asyncloader.datapipes.iter import (
    Concater,
    FileLister,
    IterableWrapper,
    IterDataPipe,
    RandomSplitter,
    SampleMultiplexer,
)
from asyncloader.datapipes.map import SequenceWrapper


def nothing() -> int:
    """Take no arguments, where pipes hand over some."""
    return 0


def numbers() -> Any:
    return IterableWrapper(range(3))


#: Pipes that are given ``nothing`` by the name of a parameter.
OF_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "on_error": lambda **how: numbers().map(str, **how),
    "collate_fn": lambda **how: numbers().collate(**how),
    "conversion": lambda **how: numbers().collate(**how),
    "wrapper_class": lambda **how: numbers().batch(2, **how),
    "group_key_fn": lambda **how: numbers().groupby(**how),
    "classifier_fn": lambda **how: numbers().demux(2, **how),
    "sort_key": lambda **how: numbers().bucketbatch(2, **how),
    "len_fn": lambda **how: numbers().max_token_bucketize(5, **how),
    "cut_fn": lambda **how: numbers().pack_sequences(5, **how),
    "key_fn": lambda **how: numbers().zip_with_iter(numbers(), **how),
    "ref_key_fn": lambda **how: numbers().zip_with_iter(numbers(), str, **how),
    "merge_fn": lambda **how: numbers().zip_with_map(SequenceWrapper([1]), str, **how),
    "key_value_fn": lambda **how: numbers().to_map_datapipe(**how),
    "filepath_fn": lambda **how: numbers().save_to_disk(**how),
    "extra_check_fn": lambda **how: numbers().on_disk_cache(**how),
    "joiner": lambda **how: numbers().lines_to_paragraphs(**how),
    "pin_memory_fn": lambda **how: numbers().pin_memory(**how),
    "fn": lambda **how: numbers().map_batches(batch_size=2, input_col=0, **how),
}


@pytest.mark.parametrize("name", OF_FUNCTIONS)
def test_a_function_that_cannot_take_what_it_will_be_given_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must take .*nothing cannot be called with"):
        OF_FUNCTIONS[name](**{name: nothing})


@pytest.mark.parametrize("name", sorted({*OF_FUNCTIONS} - {"on_error"}))
def test_what_is_no_function_is_refused_also_where_it_is_empty(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be callable, got list"):
        OF_FUNCTIONS[name](**{name: []})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: numbers().fork(2, copy=[]), ValueError, r"copy must be .*got \[\]"),
        (
            lambda: numbers().unzip(2, columns_to_skip=1),
            TypeError,
            "columns_to_skip must be a list",
        ),
        (lambda: numbers().threadpool_map(str, cores=3), TypeError, "initargs of .* got cores"),
        (lambda: FileLister(3), TypeError, "root must be a path or a list of paths, got int"),  # type: ignore[arg-type]
        (lambda: FileLister([3]), TypeError, "root must be a path .*, got one of int"),  # type: ignore[list-item]
        (lambda: numbers().zip(numbers().fork(2)), TypeError, r"got a list of pipes; .* \*pipes"),
        (lambda: Concater((numbers(), numbers())), TypeError, "got a tuple of pipes"),
        (lambda: SequenceWrapper("a").zip([SequenceWrapper("b")]), TypeError, "a list of pipes"),  # type: ignore[list-item]
        (lambda: numbers().enumerate("1"), TypeError, "starting_index must be an integer"),
        (lambda: numbers().slice(0, 1.5), TypeError, "stop must be an integer, got float"),
        (lambda: numbers().slice(0, 2, "1"), TypeError, "step must be an integer, got str"),
        (lambda: numbers().slice([{}]), TypeError, "index must be hashable, got dict"),
        (lambda: numbers().drop({}), TypeError, "indices must be hashable, got dict"),
        (lambda: numbers().flatten([[]]), TypeError, "indices must be hashable, got list"),
        (lambda: numbers().add_index([]), TypeError, "index_name must be hashable, got list"),
        (lambda: numbers().sharding_filter(True), ValueError, "SHARDING_PRIORITIES.*got True"),
        (lambda: numbers().open_files("r", 3), TypeError, "encoding must be text, got int"),
        (lambda: numbers().open_files("r", "x"), LookupError, "encoding must be .*: x"),
        (lambda: numbers().readlines(errors="x"), LookupError, "errors must be .*'x'"),
        (lambda: numbers().open_files_by_fsspec("wb"), ValueError, "mode must be .* got 'wb'"),
        (lambda: numbers().save_by_fsspec(kwargs_for_open=[]), TypeError, "kwargs_for_open must"),
        (lambda: numbers().save_to_disk(3), ValueError, "mode must be .* got 3"),
        (lambda: numbers().load_from_tar(None), ValueError, "mode must be .* got None"),
        (lambda: numbers().decompress(3), TypeError, "file_type must be .* got int"),
        (lambda: numbers().check_hash("x"), TypeError, "hash_dict must be a dict, got str"),
        (lambda: numbers().on_disk_cache(hash_dict=[]), TypeError, "hash_dict must be a dict"),
        (lambda: numbers().on_disk_cache().end_caching(3), ValueError, "mode must .* got 3"),
        (
            lambda: numbers().on_disk_cache().end_caching(timeout="1"),
            TypeError,
            "timeout must be a number of seconds, got str",
        ),
        (lambda: numbers().read_from_object_store(3), TypeError, "store must be .* got int"),
        (lambda: SequenceWrapper(3), TypeError, "sequence must support .*got int"),  # type: ignore[arg-type]
        (lambda: SampleMultiplexer([numbers()]), TypeError, "pipes_to_weights_dict must be a dict"),  # type: ignore[arg-type]
        (lambda: RandomSplitter([1], [1, 1], 0), TypeError, "weights must be a dict, got list"),  # type: ignore[arg-type]
        (
            lambda: RandomSplitter([1], {"a": "1"}, 0),  # type: ignore[dict-item]
            TypeError,
            "the weight of 'a' must be a number, got str",
        ),
        (lambda: numbers().rows2columnar(3), TypeError, "column_names must be a list .* got int"),  # type: ignore[arg-type]
        (lambda: numbers().load_parquet(3), TypeError, "columns must be a list .* got int"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda items: items.save_to_disk(), r"save_to_disk\(\) reads pairs \(path, data\)"),
        (lambda items: items.save_by_fsspec(), r"save_by_fsspec\(\) reads pairs \(path, data\)"),
        (lambda items: items.check_hash({}), r"check_hash\(\) reads pairs \(path, data\)"),
        (lambda items: items.webdataset(), r"webdataset\(\) reads pairs \(path, data\)"),
        (lambda items: items.lines_to_paragraphs(), r"reads pairs \(path, line\)"),
        (lambda items: items.open_files(), r"open_files\(\) reads paths"),
        (lambda items: items.open_files_by_fsspec(), r"open_files_by_fsspec\(\) reads paths"),
        (lambda items: items.list_files(), r"list_files\(\) reads paths"),
        (lambda items: items.list_files_by_fsspec(), r"list_files_by_fsspec\(\) reads paths"),
    ],
)
def test_items_of_another_kind_are_an_error_that_names_the_pipe(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"{message}, got int"):
        list(make(numbers()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda items: items.groupby(as_list),
            r"groupby\(as_list\) got an unhashable key of type list",
        ),
        (
            lambda items: items.zip_with_iter([1], as_list),
            r"zip_with_iter\(.* got an unhashable key of type list",
        ),
        (
            lambda items: items.map(as_pair).to_map_datapipe().to_iter_datapipe(),
            r"to_map_datapipe\(\) got an unhashable key of type list",
        ),
        (
            lambda items: items.max_token_bucketize(5, str),
            "len_fn of max_token.* a number, got str",
        ),
        (lambda items: items.bucketbatch(2, sort_key=no_list), r"NoneType from .* bucketbatch\("),
        (
            lambda items: items.batch(2).rows2columnar(["a"]),
            "rows that are dicts or sequences, got int",
        ),
        (lambda items: items.rows2columnar(["a"]), "reads batches of rows, got int"),
        (lambda items: items.in_batch_shuffle(), r"in_batch_shuffle\(\) reads batches, got int"),
    ],
)
def test_what_a_pipe_cannot_work_with_is_an_error_that_names_it(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        list(make(numbers()))


def as_list(item: Any) -> list[Any]:
    return [item]


def as_pair(item: Any) -> tuple[list[Any], Any]:
    return [item], item


def uncopied(item: Any) -> Any:
    return (number for number in [item])


class Undecided(numpy.ndarray):
    """Is neither true nor false."""

    def __bool__(self) -> bool:
        raise TypeError("neither")


undecided = numpy.zeros(2).view(Undecided)


def no_list(items: list[Any]) -> None:
    """Return nothing, as one does who forgets it."""


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda items: items.map(as_pair).drop("a"), "drop('a')"),
        (lambda items: items.map(as_pair).slice(["a"]), "slice()"),
        (lambda items: items.zip_with_map(SequenceWrapper([1]), str), "zip_with_map(key_fn=str)"),
        (lambda items: items.bucketbatch(2, sort_key="".join), "bucketbatch(str.join)"),
        (lambda items: items.map(uncopied).fork(1, copy="deep")[0], "fork(1, copy='deep')"),
        (lambda items: items.filter(lambda item: undecided), "filter(<lambda>)"),
    ],
)
def test_an_error_over_an_item_is_noted_to_come_from_the_pipe(make: Any, name: str) -> None:
    with pytest.raises(TypeError) as caught:
        list(make(numbers()))
    assert caught.value.__notes__ == [f"raised in {name}"]


#: Pipes that hold, let pass or go over as much as there is, by whatever large number.
WITHOUT_BOUND: dict[str, Callable[[int], Any]] = {
    "batch": lambda most: numbers().batch(most).unbatch(),
    "header": lambda most: numbers().header(most),
    "max_token_bucketize": lambda most: (
        numbers().max_token_bucketize(9, int, buffer_size=most).unbatch()
    ),
    "bucketbatch": lambda most: numbers().bucketbatch(1, batch_num=most, sort_key=list).unbatch(),
    "map_batches": lambda most: numbers().map_batches(list, most),
    "cycle": lambda most: numbers().cycle(most).header(3),
    "repeat": lambda most: numbers().repeat(most).header(3).enumerate().map(max),
}


@pytest.mark.parametrize("most", [sys.maxsize, 10**30])
@pytest.mark.parametrize("name", WITHOUT_BOUND)
@pytest.mark.filterwarnings("ignore:the length of header")
def test_a_count_may_be_larger_than_anybody_counts(name: str, most: int) -> None:
    assert sorted(WITHOUT_BOUND[name](most)) == [0, 1, 2]


def test_a_property_that_fails_does_not_keep_a_pipe_from_its_name() -> None:
    class Table(IterDataPipe[int]):
        def __init__(self, path: str, count: int = 0) -> None:
            self.path = path
            self.rows = None

        @property
        def count(self) -> int:
            return len(self.rows)  # type: ignore[arg-type]  # it was not opened yet

    assert repr(Table("a.txt")) == "Table('a.txt')"


def test_a_setting_with_the_name_of_a_fluent_method_is_not_taken_for_one() -> None:
    async def same(number: int) -> int:
        return number

    assert repr(numbers().async_map_batches(same, 2)) == "async_map_batches(same, batch_size=2)"


def test_numbers_of_numpy_are_seconds() -> None:
    assert repr(numbers().batch(2, max_wait=numpy.float32(0.5))) == "batch(2, max_wait=0.5)"
    assert repr(numbers().fullsync(numpy.int64(60))) == "fullsync(60.0)"
