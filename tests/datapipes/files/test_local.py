"""Finding, opening and reading files, and who closes them."""

from __future__ import annotations

import gc
import os
import random
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.files.local import PIECE, in_order, sorted_pieces
from asyncloader.datapipes.iter import FileLister, FileOpener, IterableWrapper, StreamReader
from tests.leaks import leaves_nothing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, and one more in a folder in it."""
    (tmp_path / "b.txt").write_text("bbb")
    (tmp_path / "a.txt").write_text("aaa")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.csv").write_text("c")
    return tmp_path


def names(pipe: Any, folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in pipe]


# Listing --------------------------------------------------------------------------------


def test_a_folder_is_listed_in_order(folder: Path) -> None:
    assert list(FileLister(str(folder))) == [f"{folder}/a.txt", f"{folder}/b.txt"]


def test_folders_below_come_after_the_files_of_a_folder(folder: Path) -> None:
    assert names(FileLister(folder, recursive=True), folder) == ["a.txt", "b.txt", "deep/c.csv"]


def test_masks_choose_names(folder: Path) -> None:
    assert names(FileLister(folder, "a*", recursive=True), folder) == ["a.txt"]
    assert names(FileLister(folder, ["b*", "*.csv"], recursive=True), folder) == [
        "b.txt",
        "deep/c.csv",
    ]


def test_paths_begin_like_the_root_or_are_absolute(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert list(FileLister()) == ["./a.txt", "./b.txt"]
    assert list(FileLister(abspath=True)) == [f"{folder}/a.txt", f"{folder}/b.txt"]


def test_roots_may_be_several_or_come_from_a_pipe_or_be_files(folder: Path) -> None:
    roots = [str(folder / "deep"), str(folder / "a.txt")]
    expected = ["deep/c.csv", "a.txt"]
    assert names(FileLister(roots), folder) == expected
    assert names(IterableWrapper(roots).list_files(), folder) == expected


def test_a_root_that_is_not_there_is_an_error(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(FileLister(folder / "nowhere"))


def test_masks_that_are_no_patterns_are_refused() -> None:
    with pytest.raises(TypeError, match=r"masks must be a pattern .*, got 3"):
        FileLister(".", 3)  # type: ignore[arg-type]


def test_a_length_is_what_was_said() -> None:
    assert len(FileLister(length=3)) == 3
    assert len(FileOpener([], length=3)) == 3
    with pytest.raises(TypeError, match="FileLister has no known length"):
        len(FileLister())
    with pytest.raises(ValueError, match="length must be at least -1, got -2"):
        FileOpener([], length=-2)


# Opening --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "content"), [("r", "aaa"), ("t", "aaa"), ("b", b"aaa"), ("rb", b"aaa")]
)
def test_files_are_opened_as_text_or_bytes(folder: Path, mode: str, content: Any) -> None:
    ((path, file),) = FileOpener([str(folder / "a.txt")], mode)
    assert path == str(folder / "a.txt")
    assert file.read() == content


def test_text_has_an_encoding(folder: Path) -> None:
    (folder / "a.txt").write_bytes("né".encode("latin-1"))
    ((_, file),) = FileOpener([folder / "a.txt"], encoding="latin-1")
    assert file.read() == "né"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "w"}, r"mode must be one of 'b', 't', .*, got 'w'"),
        ({"mode": "b", "encoding": "utf-8"}, "reads bytes; leave encoding='utf-8'"),
    ],
)
def test_modes_that_do_not_read_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FileOpener([], **arguments)


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(TypeError, match=r"reads paths, got int"):
        list(FileOpener([3]))  # type: ignore[list-item]


@pytest.mark.parametrize("mode", ["r", "b"])
def test_a_file_is_closed_when_it_is_dropped(folder: Path, mode: str) -> None:
    with leaves_nothing():
        for _, file in FileOpener(FileLister(folder), mode):
            file.read(1)
            break
        del file


@pytest.mark.parametrize("mode", ["r", "b"])
def test_files_may_be_held_for_longer_than_the_pass(folder: Path, mode: str) -> None:
    with leaves_nothing():
        files = [file for _, file in FileOpener(FileLister(folder), mode)]
        gc.collect()
        assert [len(file.read()) for file in files] == [3, 3]
        del files


async def test_a_loader_that_is_left_closes_the_files(folder: Path) -> None:
    graph = FileLister(folder).open_files("b").read_from_stream(1)
    with leaves_nothing():
        async with DataLoader2(graph) as loader:
            items = aiter(loader)
            assert await anext(items) == (f"{folder}/a.txt", b"a")
        del items, loader


# Reading --------------------------------------------------------------------------------


def test_streams_are_read_whole_or_in_chunks_and_closed() -> None:
    streams = [StringIO("abcde"), StringIO(""), StringIO("f")]
    pairs = list(zip("xyz", streams, strict=True))
    assert list(StreamReader(pairs, 2)) == [("x", "ab"), ("x", "cd"), ("x", "e"), ("z", "f")]
    assert all(stream.closed for stream in streams)
    assert list(StreamReader([("x", BytesIO(b"abc"))])) == [("x", b"abc")]


def test_a_break_closes_the_stream() -> None:
    stream = BytesIO(b"abc")
    for _ in StreamReader([("x", stream)], 1):
        break
    assert stream.closed


@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 9, None])
@pytest.mark.parametrize("stream_class", [BytesIO, StringIO])
def test_chunks_that_were_read_are_passed_over(stream_class: Any, chunk: int | None) -> None:
    def stream() -> Any:
        return stream_class(b"abcdefghi" if stream_class is BytesIO else "abcdefghi")

    reader = StreamReader([], chunk)
    chunks = list(reader.parts(("x", stream())))
    for skip in range(len(chunks) + 1):
        assert list(reader.parts(("x", stream()), skip)) == chunks[skip:]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, r"reads pairs \(path, stream\), got int"),
        (("a", "b", "c"), r"got tuple of 3"),
        ((1, BytesIO()), "reads paths, got int"),
        (("a", b"content"), r"reads streams, got bytes for a; open files with open_files"),
    ],
)
def test_what_is_no_stream_is_refused(item: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        list(StreamReader([item]))


def test_a_chunk_has_a_size() -> None:
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        StreamReader([], 0)


# Many names in order, a few at a time ---------------------------------------------------


def names_of(count: int) -> list[str]:
    return [f"{number:07d}" for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7])
def test_names_come_in_order_in_pieces(count: int) -> None:
    expected = names_of(count)
    shuffled = random.Random(7).sample(expected, count)
    assert list(in_order(list(shuffled))) == expected
    for names in (shuffled, expected[::-1], expected):
        pieces = list(sorted_pieces(list(names)))
        assert [name for piece in pieces for name in piece] == expected
        assert max(map(len, pieces), default=0) <= 2 * PIECE


def test_a_name_may_come_many_times() -> None:
    names = ["b"] * 3 * PIECE + ["a"] * 2
    assert list(in_order(list(names))) == sorted(names)
