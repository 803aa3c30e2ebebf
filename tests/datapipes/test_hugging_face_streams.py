"""Hugging Face's ``IterableDataset`` as a source: its shards, and its own state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.datapipes.resuming import (
    assert_goes_on,
    assert_goes_on_twice,
    cursors_along,
    rest_of,
)
from tests.preloading import preloading

COUNT, SHARDS = 16, 4


@pytest.fixture(scope="module", autouse=True)
def _workers_that_have_it() -> Iterator[None]:
    """To import the library takes longer than the workers work, and than all of this folder."""
    pytest.importorskip("datasets", reason="datasets of Hugging Face is not installed")
    with preloading("datasets"):
        yield


def numbers(shards: list[int], folder: str) -> Any:
    """Yield the rows of some shards, and note each in a file of the folder."""
    for shard in shards:
        for number in range(shard, COUNT, SHARDS):
            with Path(folder, "made").open("a") as made:
                made.write(f"{number}\n")
            yield {"number": number}


def new_stream(folder: Path) -> Any:
    from datasets import IterableDataset

    kwargs = {"shards": list(range(SHARDS)), "folder": str(folder)}
    return IterableDataset.from_generator(numbers, gen_kwargs=kwargs)


def rows() -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"number": list(range(COUNT))})


def two_streams(folder: Path) -> Any:
    from datasets import interleave_datasets

    return interleave_datasets([new_stream(folder).take(5), new_stream(folder).take(5)])


def same(row: dict[str, int]) -> dict[str, int]:
    return {"number": row["number"]}


def is_small(row: dict[str, int]) -> bool:
    return row["number"] < COUNT - 2


Streams = dict[str, Callable[[Path], Any]]

#: Streams whose own state is exact.
EXACT: Streams = {
    "generator": new_stream,
    "rows": lambda _: rows().to_iterable_dataset(num_shards=SHARDS),
    "map, filter": lambda folder: new_stream(folder).map(same).filter(is_small),
    "rows, map": lambda _: rows().to_iterable_dataset(num_shards=SHARDS).map(same),
    "columns": lambda _: rows().to_iterable_dataset().select_columns("number"),
    "torch": lambda _: rows().to_iterable_dataset(num_shards=SHARDS).with_format("torch"),
    "numpy, map": lambda _: rows().to_iterable_dataset().map(same).with_format("numpy"),
}
#: Streams that hold rows, or make several at once.
OTHERS: Streams = {
    "shuffle": lambda folder: new_stream(folder).shuffle(seed=1, buffer_size=6),
    "map of batches": lambda folder: new_stream(folder).map(
        lambda batch: {"number": batch["number"]}, batched=True, batch_size=5
    ),
    "skip, take": lambda folder: new_stream(folder).skip(3).take(9),
    "two": two_streams,
}


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("make", [*EXACT.values(), *OTHERS.values()], ids=[*EXACT, *OTHERS])
def test_a_stream_resumes_at_any_row(make: Callable[[Path], Any], tmp_path: Path) -> None:
    def graph() -> Any:
        return IterableWrapper(make(tmp_path)).map(number_of)

    assert_goes_on(graph)
    assert_goes_on_twice(graph)


def number_of(row: dict[str, Any]) -> int:
    return int(row["number"])


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
def test_workers_take_its_shards_and_resume_them(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    def new_loader() -> DataLoader2[Any]:
        graph = IterableWrapper(make(tmp_path)).map(number_of).batch(2)
        return DataLoader2(graph, reading_service=MultiProcessingReadingService(2))

    with new_loader() as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(5)]
        state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
        rest, following = list(batches), list(loader)
    assert first + rest == following
    assert len({number for batch in following for number in batch}) >= COUNT - 2
    with new_loader() as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest
        assert list(loader) == following


def test_it_resumes_without_the_rows_before(tmp_path: Path) -> None:
    items, along = cursors_along(IterableWrapper(new_stream(tmp_path)))
    made = tmp_path / "made"
    made.unlink()

    position = COUNT - 3
    rest = rest_of(IterableWrapper(new_stream(tmp_path)), position, along[position])
    assert rest == items[position:]
    # The shard that it was in, whose rows before have to be generated.
    assert len(made.read_text().split()) <= COUNT // SHARDS


def test_a_pass_that_begins_at_the_first_row_follows_one_that_was_resumed(tmp_path: Path) -> None:
    graph = IterableWrapper(new_stream(tmp_path))
    whole = list(graph)
    state: Any = None
    with DataLoader2(graph) as loader:
        rows = iter(loader)
        for _ in range(7):
            next(rows)
        state = loader.state_dict(include_datapipe=False)
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        assert list(loader) == whole[7:]
        assert list(loader) == whole
    assert list(graph) == whole


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_stream_that_takes_its_share_is_refused_beside_a_filter(
    where: str, tmp_path: Path
) -> None:
    graph: Any = IterableWrapper(new_stream(tmp_path))
    graph = (
        graph.sharding_filter().batch(2) if where == "before" else graph.batch(2).sharding_filter()
    )
    with (
        pytest.raises(ValueError, match="divided twice"),
        DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader,
    ):
        list(loader)
