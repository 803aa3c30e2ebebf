"""Data sets that answer many keys at once are asked once a batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from asyncloader import DataLoader2, MapDataPipe, MultiProcessingReadingService
from asyncloader.datapipes.iter import Filter
from asyncloader.datapipes.map import SequenceWrapper
from tests.datapipes.resuming import assert_goes_on, assert_goes_on_twice

COUNT, SIZE = 20, 4


class Single:
    """Answers one key at a time: the key, and that it was asked for alone."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: int) -> tuple[int, int]:
        return key, 1


class Many(Single):
    """Answers many keys at once: each key, and how many were asked for together."""

    def __getitems__(self, keys: list[int]) -> list[tuple[int, int]]:
        return [(key, len(keys)) for key in keys]


class ManyPipe(MapDataPipe[tuple[int, int]]):
    """A map pipe that says by itself that it answers many keys."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: int) -> tuple[int, int]:
        return key, 1

    def __getitems__(self, keys: list[int]) -> list[tuple[int, int]]:
        return [(key, len(keys)) for key in keys]


def same(item: Any) -> Any:
    return item


Make = Callable[[Any], Any]

#: Graphs in which only pipes that are one to one stand between the look-up and the batch.
ONCE_A_BATCH: dict[str, Make] = {
    "shuffle, batch": lambda data: data.shuffle().set_seed(1).batch(SIZE),
    "shuffle of some keys": lambda data: data.shuffle(indices=range(8)).set_seed(1).batch(SIZE),
    "to_iter_datapipe": lambda data: data.to_iter_datapipe().batch(SIZE),
    "map of keys": lambda data: data.map(same).shuffle().set_seed(1).batch(SIZE),
    "map of items": lambda data: data.shuffle().set_seed(1).map(same).batch(SIZE),
    "sharding_filter first": lambda data: (
        data.shuffle().set_seed(1).sharding_filter().map(same).batch(SIZE)
    ),
    "sharding_filter last": lambda data: data.shuffle().set_seed(1).batch(SIZE).sharding_filter(),
    "set_length": lambda data: data.shuffle().set_seed(1).set_length(COUNT).batch(SIZE),
    "batches looked up": lambda data: data.batch(SIZE).to_iter_datapipe(),
    "batches of a map looked up": lambda data: data.map(same).batch(SIZE).to_iter_datapipe(),
}


@pytest.fixture(params=ONCE_A_BATCH.values(), ids=ONCE_A_BATCH)
def make(request: pytest.FixtureRequest) -> Make:
    graph: Make = request.param
    return graph


@pytest.mark.parametrize("data", [SequenceWrapper(Many()), ManyPipe()], ids=["data set", "pipe"])
def test_a_data_set_is_asked_once_a_batch(make: Make, data: Any) -> None:
    batches = list(make(data))

    assert all(together == SIZE for batch in batches for _, together in batch)


def test_its_batches_are_those_of_a_data_set_that_answers_one_key(make: Make) -> None:
    many, single = make(SequenceWrapper(Many())), make(SequenceWrapper(Single()))

    assert [keys_of(batch) for batch in many] == [keys_of(batch) for batch in single]


def test_it_resumes_between_any_two_batches(make: Make) -> None:
    assert_goes_on(lambda: make(SequenceWrapper(Many())), least=2)
    assert_goes_on_twice(lambda: make(SequenceWrapper(Many())))


@pytest.mark.parametrize("name", ["sharding_filter first", "sharding_filter last"])
def test_workers_ask_once_a_batch(name: str) -> None:
    graph = ONCE_A_BATCH[name](SequenceWrapper(Many()))
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        batches = list(loader)

    assert sorted(key for batch in batches for key in keys_of(batch)) == list(range(COUNT))
    assert all(together == len(batch) for batch in batches for _, together in batch)


def keys_of(batch: list[tuple[int, int]]) -> list[int]:
    return [key for key, _ in batch]


def test_the_last_batch_is_asked_for_what_is_left() -> None:
    batches = list(SequenceWrapper(Many()).to_iter_datapipe().batch(8))

    assert [together for batch in batches for _, together in batch] == 2 * 8 * [8] + 4 * [4]


#: Graphs whose batches are not made of as many items as are looked up one after another.
ONE_BY_ONE: dict[str, Make] = {
    "no batch": lambda data: data.to_iter_datapipe(),
    "filter": lambda data: Filter(data.to_iter_datapipe(), is_even).batch(SIZE),
    "skip": lambda data: data.to_iter_datapipe().map(even, on_error="skip").batch(SIZE),
}


def is_even(item: tuple[int, int]) -> bool:
    return item[0] % 2 == 0


def even(item: tuple[int, int]) -> tuple[int, int]:
    if not is_even(item):
        raise ValueError(item)
    return item


@pytest.mark.parametrize("make", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_without_a_batch_of_just_its_items_it_is_asked_for_one(make: Make) -> None:
    items = list(make(SequenceWrapper(Many())))

    assert items == list(make(SequenceWrapper(Single())))
    assert_goes_on(lambda: make(SequenceWrapper(Many())), least=2)


def keys_without_five(batch: list[tuple[int, int]]) -> list[int]:
    if 5 in keys_of(batch):
        raise ValueError("five")
    return keys_of(batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_collate_leaves_out_are_those_of_a_data_set_that_answers_one_key(workers: int):
    found = []
    for data in (Many(), Single()):
        graph = SequenceWrapper(data).shuffle().batch(SIZE).sharding_filter()
        graph = graph.collate(keys_without_five, on_error="skip")
        service = MultiProcessingReadingService(workers)
        with DataLoader2(graph, reading_service=service) as loader:
            loader.seed(3)
            found.append([list(loader) for _ in range(2)])
            assert loader.stats().errors == 1
    many, single = found
    assert many == single
    for epoch in many:
        left = sorted(key for batch in epoch for key in batch)
        assert len(left) == COUNT - SIZE
        assert 5 not in left


def test_an_instance_that_sifts_items_looks_none_up_ahead() -> None:
    pipe = SequenceWrapper(Many()).shuffle().set_seed(1).map(same).sharding_filter()
    pipe.apply_sharding(2, 1)

    assert {together for batch in pipe.batch(SIZE) for _, together in batch} == {1}


class Changed(Many):
    """Overrides what its class has for one key."""

    def __getitem__(self, key: int) -> tuple[int, int]:
        return -key, 1


class Cannot(Many):
    """Says, as torch has it, that it cannot answer many keys."""

    __getitems__: Any = None


class Delegating:
    """Has every attribute of another data set, and items of its own."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: int) -> tuple[int, int]:
        return -key, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)


@pytest.mark.parametrize(
    "data", [Changed(), Delegating(Many()), Cannot()], ids=lambda d: type(d).__name__
)
def test_what_a_class_says_of_one_key_is_not_passed_over(data: Any) -> None:
    (batch,) = SequenceWrapper(data, deepcopy=False).shuffle(indices=[1]).batch(2)

    assert batch == [data[1]]


class Short(Many):
    def __getitems__(self, keys: list[int]) -> list[tuple[int, int]]:
        return super().__getitems__(keys)[1:]


def test_an_answer_of_another_length_is_an_error_that_names_the_data_set() -> None:
    pipe = SequenceWrapper(Short()).shuffle().batch(SIZE)

    with pytest.raises(ValueError, match=r"Short\.__getitems__ .* 3 items for 4 keys"):
        list(pipe)


class Failing(Many):
    def __getitems__(self, keys: list[int]) -> list[tuple[int, int]]:
        if 9 in keys:
            raise KeyError(9)
        return super().__getitems__(keys)


@pytest.mark.parametrize("workers", [0, 1])
def test_its_error_comes_in_the_place_of_its_batch(workers: int) -> None:
    graph = SequenceWrapper(Failing()).to_iter_datapipe().sharding_filter().batch(SIZE)
    service = MultiProcessingReadingService(num_workers=workers)
    with DataLoader2(graph, reading_service=service) as loader:
        batches = iter(loader)
        assert [keys_of(next(batches)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(KeyError):
            next(batches)


class Drawing(Many):
    """Draws a random number for every item."""

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [(key, random.random()) for key in keys]


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_data_set_that_draws_random_numbers_in_a_worker_resumes_exactly(taken: int) -> None:
    def new_loader() -> DataLoader2[Any]:
        graph = SequenceWrapper(Drawing()).shuffle().sharding_filter().batch(SIZE)
        loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(1))
        loader.seed(3)
        return loader

    with new_loader() as loader:
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with new_loader() as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_rows_of_hugging_face_are_those_of_its_own_look_up() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(
        {"text": [f"text {n}" for n in range(COUNT)], "label": list(range(COUNT))}
    )
    pipe = SequenceWrapper(rows, deepcopy=False).shuffle().set_seed(1).batch(SIZE)

    batches = list(pipe)

    assert [len(batch) for batch in batches] == [SIZE] * (COUNT // SIZE)
    for batch in batches:
        assert batch == [rows[row["label"]] for row in batch]


class Noting(Single):
    """Notes the keys that it is asked for, one at a time."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __getitem__(self, key: int) -> tuple[int, int]:
        self.asked.append(key)
        return key, 1


def test_a_batch_is_looked_up_when_it_is_wanted_and_no_item_after_it():
    data = Noting()
    batches = iter(SequenceWrapper(data, deepcopy=False).to_iter_datapipe().batch(SIZE))
    for number in range(1, 4):
        next(batches)
        assert data.asked == [*range(number * SIZE)]


def test_what_is_made_of_each_item_before_the_batch_needs_one_item_at_a_time():
    data = Noting()

    def made_of(item: tuple[int, int]) -> int:
        return len(data.asked)

    batches = SequenceWrapper(data, deepcopy=False).to_iter_datapipe().map(made_of).batch(SIZE)
    assert next(iter(batches)) == [1, 2, 3, 4]


class Broken(Single):
    """Fails on one of its keys."""

    def __getitem__(self, key: int) -> tuple[int, int]:
        if key == 6:
            raise OSError("cannot read this one")
        return key, 1


class BrokenMany(Broken):
    def __getitems__(self, keys: list[int]) -> list[tuple[int, int]]:
        return [self[key] for key in keys]


def notes_of_the_error(loader: DataLoader2[Any]) -> list[str]:
    with loader, pytest.raises(OSError, match="cannot read") as caught:
        list(loader)
    return caught.value.__notes__


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 1, SIZE])
def test_an_error_names_the_key_whose_item_was_looked_up(
    batch_size: int | None, workers: int
) -> None:
    loader = DataLoader2.from_dataset(Broken(), batch_size=batch_size, num_workers=workers)
    assert "raised for the item with key 6" in notes_of_the_error(loader)


def test_an_error_in_a_function_over_a_data_set_names_the_key_once() -> None:
    mapped = SequenceWrapper(Broken(), deepcopy=False).map(same)
    for graph in (mapped.to_iter_datapipe().batch(SIZE), mapped.batch(SIZE).to_iter_datapipe()):
        notes = notes_of_the_error(DataLoader2(graph))
        assert [text for text in notes if "key" in text] == ["raised for the item with key 6"]


def test_an_error_of_many_items_names_their_keys() -> None:
    loader = DataLoader2.from_dataset(BrokenMany(), batch_size=SIZE)
    (found,) = [text for text in notes_of_the_error(loader) if "key" in text]
    assert found == "raised for the items with keys [4, 5, 6, 7], which were asked for together"
    alone = DataLoader2.from_dataset(BrokenMany(), batch_size=1)
    assert "raised for the item with key 6" in notes_of_the_error(alone)
