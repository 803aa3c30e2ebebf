"""Data of other libraries: tars of webdataset, Parquet by row groups, batches that are mixed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

SHARDS, PER_SHARD = 3, 5


def assert_resumes(graph: Any, workers: int = 2) -> list[Any]:
    """Hold a graph to resuming after each item; return an epoch of it."""

    def new_loader() -> DataLoader2[Any]:
        loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(workers))
        loader.seed(1)
        return loader

    with new_loader() as loader:
        states, items = [], []
        for item in loader:
            items.append(item)
            states.append(loader.state_dict(include_datapipe=False))
    for taken in (1, len(items) // 2, len(items) - 1):
        with new_loader() as loader:
            loader.load_state_dict(states[taken - 1])
            assert list(loader) == items[taken:]
    return items


def write_shards(folder: Path) -> list[str]:
    import webdataset

    paths = []
    for shard in range(SHARDS):
        paths.append(str(folder / f"shard-{shard}.tar"))
        with webdataset.TarWriter(paths[-1]) as tar:
            for number in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                sample = {"__key__": f"{number:04d}", "txt": f"text {number}", "cls": number}
                tar.write({**sample, "seg.png": bytes([number])})
    return paths


def test_samples_of_webdatasets_tars_are_those_of_its_own_loader(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset")
    paths = write_shards(tmp_path)
    expected = {
        sample["__key__"]: {name: sample[name] for name in ("txt", "cls", "seg.png")}
        for sample in webdataset.WebDataset(paths, shardshuffle=False)
    }
    files = IterableWrapper(paths).shuffle().sharding_filter().open_files("b").load_from_tar()
    samples = assert_resumes(files.webdataset().map(read))

    assert {Path(key).name: files for key, files in samples} == expected
    assert len(samples) == SHARDS * PER_SHARD


def read(sample: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    files = {name[1:]: each.read() for name, each in sample.items() if name.startswith(".")}
    return sample["__key__"], files


def test_webdatasets_own_loader_is_a_source_that_takes_its_share(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset")
    data = webdataset.WebDataset(write_shards(tmp_path), shardshuffle=False).map(key_of)
    graph = IterableWrapper(data, deepcopy=False, shards_itself=True)
    assert sorted(assert_resumes(graph)) == [f"{n:04d}" for n in range(SHARDS * PER_SHARD)]


def key_of(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def test_row_groups_of_parquet_are_shuffled_and_then_their_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    import pyarrow

    numbers = list(range(40))
    path = str(tmp_path / "rows.parquet")
    parquet.write_table(pyarrow.table({"number": numbers}), path, row_group_size=5)
    groups = [(path, number) for number in range(parquet.ParquetFile(path).num_row_groups)]
    graph = SequenceWrapper(groups).shuffle().sharding_filter().flatmap(rows_of)
    in_groups = assert_resumes(graph, workers=0)
    firsts = in_groups[::5]
    assert in_groups == [row for first in firsts for row in range(first, first + 5)]
    assert sorted(firsts) == numbers[::5] != firsts
    rows = assert_resumes(graph.shuffle(buffer_size=10), workers=0)
    assert sorted(rows) == numbers
    # A row comes at most ten rows early, and has left its group.
    assert all(in_groups.index(row) < at + 10 for at, row in enumerate(rows))
    assert any(abs(rows.index(first) - rows.index(first + 1)) > 5 for first in firsts)
    assert sorted(assert_resumes(graph.shuffle(buffer_size=10))) == numbers


def rows_of(group: tuple[str, int]) -> list[int]:
    import pyarrow.parquet

    path, number = group
    table = pyarrow.parquet.ParquetFile(path).read_row_group(number)
    return table["number"].to_pylist()  # type: ignore[no-any-return]


class Prefetcher:
    """Its own iterator, which begins again at each ``iter``, as NVIDIA's DALI has it."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[int]:
        self.number = 0
        return self

    def __next__(self) -> int:
        if self.number == 6:
            raise StopIteration
        self.number += 1
        return self.number


def test_an_iterator_like_dalis_is_read_in_every_epoch() -> None:
    with DataLoader2(IterableWrapper(Prefetcher(), deepcopy=False).batch(2)) as loader:
        for _ in range(2):
            assert list(loader) == [[1, 2], [3, 4], [5, 6]]


def test_mixup_of_torchvision_is_a_collate_function() -> None:
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError) as error:
        # A wheel that was built for CUDA does not load beside the CPU build of torch.
        pytest.skip(f"torchvision does not load: {error}")
    mix = v2.MixUp(num_classes=4)

    def mixed(batch: list[Any]) -> Any:
        return mix(*torch.utils.data.default_collate(batch))

    data = [(torch.rand(3, 2, 2), number % 4) for number in range(8)]
    with DataLoader2.from_dataset(data, 4, collate_fn=mixed, num_workers=2) as loader:
        for images, labels in loader:
            assert images.shape == (4, 3, 2, 2)
            assert torch.allclose(labels.sum(1), torch.ones(4))


def test_a_streaming_dataset_of_mosaic_is_a_source(tmp_path: Path) -> None:
    try:
        import streaming
    except (ImportError, RuntimeError) as error:
        # It imports torchvision.
        pytest.skip(f"streaming does not load: {error}")
    with streaming.MDSWriter(out=str(tmp_path), columns={"number": "int"}) as out:
        for number in range(20):
            out.write({"number": number})
    data = streaming.StreamingDataset(local=str(tmp_path), batch_size=2)
    graph = IterableWrapper(data, deepcopy=False, shards_itself=True).map(number_of).batch(2)
    # It owns shared memory and locks, which have to outlive the first loader.
    for _ in range(2):
        with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
            for _ in range(2):
                assert sorted(number for batch in loader for number in batch) == list(range(20))


def number_of(row: dict[str, Any]) -> int:
    return int(row["number"])
