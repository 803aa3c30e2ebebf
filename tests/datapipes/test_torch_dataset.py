from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter
from torch.utils.data import DataLoader

from asyncloader.adapters import CacheTimeout
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, Mapper
from asyncloader.datapipes.torch_dataset import as_torch_dataset, share_of


def loaded(pipe: Any, **settings: Any) -> DataLoader[Any]:
    return DataLoader(as_torch_dataset(pipe), batch_size=None, **settings)


def test_a_data_loader_without_workers_reads_the_whole_graph() -> None:
    loader = loaded(IterableWrapper(range(6)).map(str))

    assert list(loader) == list("012345")
    assert len(loader) == 6


@pytest.mark.parametrize("shards", [True, False])
def test_workers_divide_the_items_of_a_shuffled_graph(shards: bool) -> None:
    pipe: Any = IterableWrapper(list(range(40))).shuffle()
    loader = loaded(
        pipe.sharding_filter().map(str) if shards else pipe.map(str),
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=True,
    )
    first, second = list(loader), list(loader)

    for epoch in (first, second):
        assert sorted(map(int, epoch)) == list(range(40))
    assert first != second


def share(pipe: Any, worker: int) -> list[Any]:
    return list(share_of(pipe, 5, 3, worker))


def all_shares(pipe: Any) -> list[Any]:
    return sorted(item for worker in range(3) for item in share(pipe, worker))


def test_every_worker_gets_its_share() -> None:
    pipe = IterableWrapper(range(10)).shuffle().sharding_filter()

    assert all_shares(pipe) == list(range(10))


def test_a_path_without_sharding_is_divided_at_its_end() -> None:
    left, right = IterableWrapper(range(10)).shuffle().fork(2)

    assert all_shares(left.zip(right)) == [(number, number) for number in range(10)]


def test_pipes_of_torch_are_divided_too() -> None:
    pipe = torch_iter.IterableWrapper(range(10)).shuffle().sharding_filter()

    assert all_shares(Mapper(pipe, str)) == list("0123456789")


def test_a_dispatcher_is_no_division_by_itself() -> None:
    pipe = IterableWrapper(range(9)).sharding_round_robin_dispatch(
        SHARDING_PRIORITIES.MULTIPROCESSING
    )

    assert [share(pipe, worker) for worker in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


# Caches ---------------------------------------------------------------------------------


class SlowDownload:
    """Makes an entry of a cache when all workers want it, and takes some seconds for that."""

    def __init__(self, folder: Path, *, workers: int, seconds: float) -> None:
        self.cache, self.notes = folder / "cache", folder / "notes"
        self.workers, self.seconds = workers, seconds
        self.cache.mkdir()
        self.notes.mkdir()

    def path(self, name: str) -> str:
        (self.notes / f"wanted by {os.getpid()}").touch()
        return str(self.cache / name)

    def pair(self, name: str) -> tuple[str, str]:
        (self.notes / f"made by {os.getpid()}").touch()
        end = time.monotonic() + 200
        while len(self.noted("wanted")) < self.workers and time.monotonic() < end:
            time.sleep(0.01)  # other processes can only be asked
        time.sleep(self.seconds)
        return name, "content"

    def noted(self, what: str) -> list[str]:
        return [path.name for path in self.notes.iterdir() if path.name.startswith(what)]

    def loaded(self, *, timeout: float) -> list[Any]:
        names = IterableWrapper(["test.bin"]).on_disk_cache(self.path)
        cached = CacheTimeout(timeout)(names.map(self.pair).end_caching("t", same_filepath_fn=True))
        files = cached.open_files().read_from_stream()
        settings = {"num_workers": self.workers, "multiprocessing_context": "fork"}
        return list(loaded(files, **settings))


# The DataLoader says that there are more workers than cores.
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_of_ten_workers_one_makes_an_entry_of_a_cache_and_leaves_nothing_else(tmp_path):
    download = SlowDownload(tmp_path, workers=10, seconds=0)
    assert download.loaded(timeout=200) == [[str(tmp_path / "cache" / "test.bin"), "content"]]
    assert len(download.noted("wanted")) == 10
    assert len(download.noted("made")) == 1
    assert [path.name for path in download.cache.iterdir()] == ["test.bin"]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_worker_that_waits_for_too_long_says_that_it_is_the_cache(tmp_path):
    download = SlowDownload(tmp_path, workers=2, seconds=6)
    with pytest.raises(TimeoutError, match=r"OnDiskCache Exception: .*test.bin was not made with"):
        download.loaded(timeout=2)
