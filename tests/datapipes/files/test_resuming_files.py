"""What is read out of files goes on where it was, and opens only what it still needs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.iter import FileLister, FileOpener
from asyncloader.datapipes.running.cursors import Cursors
from tests.datapipes.files.test_archives import packed_tar, packed_zip
from tests.datapipes.resuming import placed
from tests.loader.test_resuming import check_every_step

FILES = 4
MEMBERS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of tars of samples of two files, and of files of lines."""
    for number in range(FILES):
        contents = {
            f"{member // 2}.{'ab'[member % 2]}": f"{number} {member}\n".encode() * 2
            for member in range(MEMBERS)
        }
        (tmp_path / f"{number}.tar").write_bytes(packed_tar(contents, "w:gz"))
        (tmp_path / f"{number}.zip").write_bytes(packed_zip(contents))
        (tmp_path / f"{number}.txt").write_bytes(b"".join(contents.values()))
    return tmp_path


def content(pair: Any) -> tuple[str, bytes]:
    path, stream = pair
    return Path(path).name, stream.read()


def has_even_name(path: str) -> bool:
    return int(Path(path).stem) % 2 == 0


def is_odd_line(pair: Any) -> bool:
    return int(pair[1].split()[-1]) % 2 == 1


GRAPHS: dict[str, Any] = {
    "samples of tars": lambda folder: (
        FileLister(folder, "*.tar").open_files("b").load_from_tar().map(content).webdataset()
    ),
    "shuffled samples": lambda folder: (
        FileLister(folder, "*.tar")
        .shuffle()
        .open_files("b")
        .load_from_tar()
        .map(content)
        .webdataset()
        .shuffle(buffer_size=4)
        .batch(2)
    ),
    "lines of members": lambda folder: (
        FileLister(folder, "*.zip").open_files("b").load_from_zip().readlines(decode=True)
    ),
    "some lines of some files": lambda folder: (
        FileLister(folder, "*.txt")
        .filter(has_even_name)
        .open_files()
        .readlines()
        .filter(is_odd_line)
        .batch(3)
    ),
    "shuffled lines": lambda folder: (
        FileLister(folder, "*.txt").open_files().readlines().shuffle(buffer_size=5)
    ),
    "paragraphs": lambda folder: (
        FileLister(folder, "*.txt").open_files().readlines().lines_to_paragraphs(tuple)
    ),
    "streams of a shuffle": lambda folder: (
        FileLister(folder, "*.txt").open_files("b").shuffle(buffer_size=2).read_from_stream(5)
    ),
    "members of a shuffle": lambda folder: (
        FileLister(folder, "*.zip")
        .open_files("b")
        .load_from_zip()
        .shuffle(buffer_size=5)
        .map(content)
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", GRAPHS)
async def test_a_graph_over_files_resumes_at_every_step(name: str, folder: Path) -> None:
    await check_every_step(lambda: GRAPHS[name](folder))


class Reads:
    """The paths of the files that were read; copies of a pipe share it."""

    def __init__(self) -> None:
        self.paths: list[str] = []


class Opens(IterDataPipe[Any]):
    """Pairs of a path and a stream of it, with the paths of those that were read noted."""

    edges = ()

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.read = Reads()

    def __iter__(self) -> Iterator[Any]:
        for path in self.paths:
            yield path, Noted(path, self.read)


class Noted(io.BytesIO):
    """The bytes of a file, which notes that somebody read them."""

    def __init__(self, path: str, read: Reads) -> None:
        super().__init__(Path(path).read_bytes())
        self.path = path
        self.noted = read

    def readinto(self, buffer: Any) -> int:
        if self.path not in self.noted.paths:
            self.noted.paths.append(self.path)
        return super().readinto(buffer)


@pytest.mark.parametrize("step", [1, MEMBERS, MEMBERS + 1, 2 * MEMBERS - 1, 3 * MEMBERS + 2])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_that_are_done_are_not_read_again(folder: Path, kind: str, step: int) -> None:
    opens = Opens([str(folder / f"{number}.{kind}") for number in range(FILES)])
    pipe = getattr(opens, f"load_from_{kind}")()
    run = placed(pipe)
    items = run.begin()
    before = [next(items) for _ in range(step)]
    cursors: Cursors = {}
    run.put_cursors(cursors)
    after = [content(pair) for pair in items]
    assert len(before) + len(after) == FILES * MEMBERS

    opens.read.paths.clear()
    again = placed(pipe)
    again.resume(step, cursors)
    assert [content(pair) for pair in again.begin()] == after
    assert opens.read.paths == opens.paths[(step - 1) // MEMBERS :]


async def test_workers_read_the_archives_of_their_shards(folder: Path) -> None:
    lister = FileLister(folder, "*.tar").sharding_filter()
    graph = lister.open_files("b").load_from_tar().map(content)
    expected = sorted(map(content, FileOpener(FileLister(folder, "*.tar"), "b").load_from_tar()))
    service = MultiProcessingReadingService(2)
    async with DataLoader2(graph, reading_service=service) as loader:
        assert sorted([item async for item in loader]) == expected
