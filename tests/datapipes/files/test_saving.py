"""Files that are checked, and files that are written."""

from __future__ import annotations

import hashlib
import os
import stat
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import FileOpener, HashChecker, IterableWrapper, Saver
from tests.datapipes.files.test_archives import OneWay, packed_tar
from tests.leaks import leaves_nothing

# Hashes ---------------------------------------------------------------------------------

CONTENT = b"content"
KNOWN = {"x": hashlib.sha256(CONTENT).hexdigest()}


@pytest.mark.parametrize("data", [CONTENT, bytearray(CONTENT), "content"])
def test_data_with_the_right_hash_passes(data: Any) -> None:
    assert list(HashChecker([("x", data)], KNOWN)) == [("x", data)]


def test_a_stream_is_where_it_was_or_at_its_end() -> None:
    stream = BytesIO(b"before" + CONTENT)
    stream.seek(6)
    ((_, same),) = HashChecker([("x", stream)], KNOWN)
    assert same is stream
    assert stream.read() == CONTENT
    ((_, same),) = HashChecker([("x", OneWay(CONTENT))], KNOWN, rewind=False)
    assert same.read() == b""


def test_other_kinds_of_hashes_are_known() -> None:
    known = {"x": hashlib.md5(CONTENT).hexdigest().upper()}
    assert len(list(HashChecker([("x", CONTENT)], known, "md5"))) == 1
    assert len(HashChecker([("x", CONTENT)], known, "sha1")) == 1
    with pytest.raises(ValueError, match=r"hash_type must be one of .*sha256.*, got 'crc'"):
        HashChecker([], {}, "crc")


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (("x", b"secret"), RuntimeError, "the sha256 hash of x is .* does not match .* remove"),
        (("y", CONTENT), RuntimeError, "Unspecified hash for file y"),
        (("x", StringIO("content")), TypeError, 'x was opened as text; open it with mode="b"'),
        (("x", OneWay(CONTENT)), TypeError, "the stream of x cannot seek back; pass rewind=False"),
        (("x", 3), TypeError, "reads streams, got int"),
    ],
)
def test_what_cannot_be_vouched_for_is_an_error(
    item: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        list(HashChecker([item], KNOWN))
    assert "secret" not in str(caught.value)


# Saving ---------------------------------------------------------------------------------


def test_files_are_written_and_their_paths_yielded(tmp_path: Path) -> None:
    pairs = [(str(tmp_path / "deep" / name), f"text of {name}") for name in "ab"]
    assert list(Saver(pairs)) == [path for path, _ in pairs]
    assert {path: Path(path).read_text() for path, _ in pairs} == dict(pairs)
    assert sorted(os.listdir(tmp_path / "deep")) == ["a", "b"]
    assert len(Saver(pairs)) == 2


@pytest.mark.parametrize("mode", ["wb", "b", "bw"])
def test_bytes_and_streams_of_them_are_written(tmp_path: Path, mode: str) -> None:
    pairs = [("a", b"bytes"), ("b", BytesIO(b"stream")), ("c", memoryview(b"view"))]
    list(Saver(pairs, mode, filepath_fn=tmp_path.joinpath))
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [b"bytes", b"stream", b"view"]


def test_the_members_of_a_tar_can_be_saved(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(packed_tar({"../../a": b"1"}))
    tar = FileOpener([str(tmp_path / "x.tar")], "b").load_from_tar()
    with leaves_nothing():
        (path,) = tar.save_to_disk("wb", lambda name: name.replace("x.tar", "out"))
    assert path == f"{tmp_path}/out/a"
    assert Path(path).read_bytes() == b"1"


def test_a_file_of_this_folder_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(Saver([("a", "1")])) == ["a"]
    assert os.listdir() == ["a"]


@pytest.mark.parametrize(("mode", "data"), [("a", "1"), ("ab", b"1"), ("at", "1")])
def test_what_is_appended_comes_after_what_was_there(tmp_path: Path, mode: str, data: Any) -> None:
    list(Saver([("a", data), ("a", data)], mode, tmp_path.joinpath))
    assert (tmp_path / "a").read_text() == "11"


def test_what_was_there_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the old content")
    with open(tmp_path / "a") as reader:
        list(Saver([("a", "new")], "w", tmp_path.joinpath))
        assert reader.read() == "the old content"
    assert (tmp_path / "a").read_text() == "new"


def test_a_file_has_the_rights_of_any_other(tmp_path: Path) -> None:
    list(Saver([("a", "1")], "w", tmp_path.joinpath))
    (tmp_path / "b").touch()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"]
    assert modes[0] == modes[1]


class Fails:
    """A stream that fails when half of it was read."""

    def __init__(self) -> None:
        self.pieces = [b"half"]

    def read(self, size: int) -> bytes:
        if not self.pieces:
            raise ConnectionError("on purpose")
        return self.pieces.pop()


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ConnectionError):
        list(Saver([("a", Fails())], "wb", tmp_path.joinpath))
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(
    ("mode", "data", "message"),
    [
        ("w", b"secret", r"a: mode='w' saves text; pass mode=\"wb\" to save bytes, got bytes"),
        ("wb", "secret", r"a: mode='wb' saves bytes, got str"),
    ],
)
def test_data_of_the_wrong_kind_is_refused(
    tmp_path: Path, mode: str, data: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        list(Saver([("a", data)], mode, tmp_path.joinpath))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", ["r", "x", "wbt", "w+"])
def test_modes_that_do_not_write_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match=r'mode must be "w", "wb", "a" or "ab", got'):
        Saver([], mode)


def test_the_function_is_called_as_elsewhere(tmp_path: Path) -> None:
    async def soon(name: str) -> Path:
        return tmp_path / name

    assert list(Saver([("a", "1")], "w", soon)) == [str(tmp_path / "a")]
    with pytest.raises(TypeError, match="needs a path to save to, got int"):
        list(Saver([("a", "1")], "w", len))
    with pytest.raises(KeyError) as caught:
        list(Saver([("a", "1")], "w", {}.__getitem__))
    assert caught.value.__notes__ == ["raised in save_to_disk(filepath_fn=dict.__getitem__)"]


SIZE = 3_000_000


def assert_is_one_whole(path: Path) -> None:
    content = path.read_bytes()
    assert len(content) == SIZE
    assert len(set(content)) == 1


async def test_workers_that_save_one_file_do_not_mix(tmp_path: Path) -> None:
    def same(number: int) -> tuple[str, bytes]:
        return str(tmp_path / "same"), bytes([number]) * SIZE

    graph = IterableWrapper(range(12)).sharding_filter().map(same).save_to_disk("wb")
    service = MultiProcessingReadingService(2)
    async with DataLoader2(graph, reading_service=service) as loader:
        async for path in loader:
            assert_is_one_whole(Path(path))
    assert os.listdir(tmp_path) == ["same"]
