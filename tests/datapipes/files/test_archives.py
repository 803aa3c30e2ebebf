"""Tars and zips: what is in them, who closes them, and how they are held."""

from __future__ import annotations

import io
import stat
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.iter import (
    FileOpener,
    IterableWrapper,
    TarArchiveLoader,
    ZipArchiveLoader,
)
from tests.leaks import leaves_nothing

CONTENTS = {"a.txt": b"aaaa", "folder/b.bin": b"b" * 3000, "empty": b"", "c": b"c" * 512}


class OneWay(io.RawIOBase):
    """A stream of bytes that cannot seek, as those from a network."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._content.readinto(buffer)


def packed_tar(contents: dict[str, bytes], mode: str = "w") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def packed_zip(contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return packed.getvalue()


def loaded(loader: type, content: bytes, stream: Callable[[bytes], Any] = io.BytesIO) -> Any:
    return loader([("x", stream(content))])


def read(pipe: Any) -> dict[str, bytes]:
    return {path: stream.read() for path, stream in pipe}


EXPECTED = {f"x/{name}": content for name, content in CONTENTS.items()}

PACKED = {
    "tar": (TarArchiveLoader, packed_tar(CONTENTS)),
    "tar.gz": (TarArchiveLoader, packed_tar(CONTENTS, "w:gz")),
    "tar.bz2": (TarArchiveLoader, packed_tar(CONTENTS, "w:bz2")),
    "tar.xz": (TarArchiveLoader, packed_tar(CONTENTS, "w:xz")),
    "stored zip": (ZipArchiveLoader, packed_zip(CONTENTS, zipfile.ZIP_STORED)),
    "zip": (ZipArchiveLoader, packed_zip(CONTENTS)),
    "lzma zip": (ZipArchiveLoader, packed_zip(CONTENTS, zipfile.ZIP_LZMA)),
}
every_kind = pytest.mark.parametrize(("loader", "content"), PACKED.values(), ids=PACKED)
tars = pytest.mark.parametrize("kind", [kind for kind in PACKED if "tar" in kind])


# What comes out -------------------------------------------------------------------------


@every_kind
def test_the_files_come_with_their_paths(loader: type, content: bytes) -> None:
    assert read(loaded(loader, content)) == EXPECTED


@tars
def test_a_tar_is_read_from_a_stream_that_cannot_seek(kind: str) -> None:
    loader, content = PACKED[kind]
    assert read(loaded(loader, content, OneWay)) == EXPECTED


@tars
def test_files_that_are_not_read_are_passed_over(kind: str) -> None:
    loader, content = PACKED[kind]
    for stream in (io.BytesIO, OneWay):
        assert [path for path, _ in loaded(loader, content, stream)] == list(EXPECTED)


def test_a_zip_has_to_be_sought_in() -> None:
    with pytest.raises(io.UnsupportedOperation, match=r"a zip keeps its directory at its end"):
        list(loaded(ZipArchiveLoader, packed_zip(CONTENTS), OneWay))


@every_kind
def test_files_may_be_read_after_the_pass_in_any_order_and_twice(
    loader: type, content: bytes
) -> None:
    files = dict(loaded(loader, content))
    for path in reversed(EXPECTED):
        assert files[path].read() == EXPECTED[path]
        assert files[path].seek(0) == 0
        assert files[path].read() == EXPECTED[path]


@tars
def test_files_of_what_cannot_seek_may_be_held_and_read_later(kind: str) -> None:
    loader, content = PACKED[kind]
    files = dict(loaded(loader, content, OneWay))
    for path in reversed(EXPECTED):
        assert files[path].read() == EXPECTED[path]
        assert files[path].seek(0) == 0
        assert files[path].read() == EXPECTED[path]


def test_a_file_that_was_begun_is_held_from_there_on() -> None:
    files = []
    for path, file in loaded(TarArchiveLoader, packed_tar(CONTENTS), OneWay):
        assert file.raw.read(2) == EXPECTED[path][:2]
        files.append((path, file))
    for path, file in files:
        assert file.tell() == min(2, len(EXPECTED[path]))
        assert file.read() == EXPECTED[path][2:]
        assert file.tell() == len(EXPECTED[path])


def test_a_file_that_nobody_holds_is_not_kept_in_memory() -> None:
    content = packed_tar({"large": bytes(1 << 24), "small": b"x"})
    tracemalloc.start()
    try:
        for _, file in TarArchiveLoader([("x", OneWay(content))]):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            del file
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 1 << 22


def test_a_tar_does_not_have_to_begin_where_the_stream_does() -> None:
    stream = io.BytesIO(b"before" + packed_tar(CONTENTS))
    stream.seek(6)
    assert read(TarArchiveLoader([("x", stream)])) == EXPECTED


@every_kind
def test_what_was_yielded_before_is_passed_over(loader: type, content: bytes) -> None:
    pipe = loader([])
    for skip in range(len(CONTENTS) + 1):
        rest = [(path, f.read()) for path, f in pipe.parts(("x", io.BytesIO(content)), skip)]
        assert rest == list(EXPECTED.items())[skip:]


def test_a_compression_may_be_insisted_on() -> None:
    assert read(TarArchiveLoader([("x", io.BytesIO(PACKED["tar.gz"][1]))], "r:gz")) == EXPECTED
    assert read(TarArchiveLoader([("x", io.BytesIO(PACKED["tar.gz"][1]))], "r|*")) == EXPECTED
    with pytest.raises(tarfile.ReadError, match="x: "):
        list(TarArchiveLoader([("x", io.BytesIO(PACKED["tar.gz"][1]))], "r:"))
    with pytest.raises(ValueError, match=r'mode must be "r:\*", .*got \'w\''):
        TarArchiveLoader([], "w")


def test_a_url_stays_a_url() -> None:
    content = packed_tar({"b": b""})
    ((path, _),) = TarArchiveLoader([("s3://bucket//a.tar", io.BytesIO(content))])
    assert path == "s3://bucket//a.tar/b"


def test_an_archive_opened_as_text_says_how_to_open_it(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(packed_tar({"a": b""}))
    with pytest.raises(TypeError, match=r'a.tar was opened as text .* mode="b"'):
        list(FileOpener([str(tmp_path / "a.tar")]).load_from_tar())


def test_parameters_are_torchdatas() -> None:
    assert len(TarArchiveLoader([], "r:*", 3)) == 3
    assert len(ZipArchiveLoader([], 3)) == 3
    with pytest.raises(TypeError, match="has no known length"):
        len(ZipArchiveLoader([]))


# Who closes -----------------------------------------------------------------------------


@pytest.fixture
def two_archives(tmp_path: Path) -> Callable[[str], IterDataPipe[Any]]:
    """A function from a kind to a pipe over two such archives on disk."""

    def make(kind: str) -> IterDataPipe[Any]:
        loader, content = PACKED[kind]
        for name in "ab":
            (tmp_path / name).write_bytes(content)
        opener = FileOpener([str(tmp_path / name) for name in "ab"], "b")
        return loader(opener)  # type: ignore[no-any-return]

    return make


every_file = pytest.mark.parametrize("kind", PACKED)


@every_file
def test_an_archive_is_closed_when_the_next_is_opened(two_archives: Any, kind: str) -> None:
    with leaves_nothing():
        assert len(read(two_archives(kind))) == 2 * len(CONTENTS)


@every_file
def test_a_break_closes_the_archive(two_archives: Any, kind: str) -> None:
    with leaves_nothing():
        for _, file in two_archives(kind):
            file.read(1)
            break
        del file


@every_file
def test_a_file_that_is_held_keeps_its_archive_open(two_archives: Any, kind: str) -> None:
    with leaves_nothing():
        files = [file for _, file in two_archives(kind)]
        assert [len(file.read()) for file in files] == [4, 3000, 0, 512] * 2
        for file in files:
            file.close()
        del files, file


@every_file
def test_an_error_closes_the_archive(two_archives: Any, kind: str) -> None:
    def fail(item: Any) -> None:
        raise KeyError("on purpose")

    with leaves_nothing(), pytest.raises(KeyError):
        list(two_archives(kind).map(fail))


@every_file
async def test_leaving_a_loader_closes_the_archive(two_archives: Any, kind: str) -> None:
    with leaves_nothing():
        async with DataLoader2(two_archives(kind).read_from_stream()) as loader:
            items = aiter(loader)
            await anext(items)
        del items, loader


@every_file
def test_what_is_no_archive_is_closed_too(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(b"no archive at all, but long enough to be one" * 100)
    loader, _ = PACKED[kind]
    damaged = pytest.raises((tarfile.ReadError, zipfile.BadZipFile), match=str(tmp_path / "a"))
    with leaves_nothing(), damaged:
        list(loader(FileOpener([str(tmp_path / "a")], "b")))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_threads_read_the_files_of_one_archive(kind: str) -> None:
    contents = {f"{number}": bytes([number]) * 20_000 for number in range(100)}
    pack = {"tar": packed_tar, "zip": packed_zip}[kind]
    loader, _ = PACKED[kind]

    def content(item: Any) -> tuple[str, bytes]:
        path, stream = item
        return path, b"".join(iter(lambda: stream.read(1000), b""))

    before = threading.active_count()
    found = loaded(loader, pack(contents)).thread_map(content, concurrency=8)
    assert dict(found) == {f"x/{name}": content for name, content in contents.items()}
    assert threading.active_count() < before + 8


# Names ----------------------------------------------------------------------------------

NAMES = {
    "../../etc/passwd": "x/etc/passwd",
    "/etc/passwd": "x/etc/passwd",
    "a/../../../b": "x/b",
    "a/./b//c": "x/a/b/c",
    "..\\..\\b": "x/b",
    "a/..b/c..": "x/a/..b/c..",
}


@pytest.mark.parametrize(("name", "path"), NAMES.items())
def test_a_name_does_not_lead_out_of_the_archive(name: str, path: str) -> None:
    for loader, pack in ((TarArchiveLoader, packed_tar), (ZipArchiveLoader, packed_zip)):
        assert read(loaded(loader, pack({name: b"1"}))) == {path: b"1"}


def test_links_folders_and_devices_of_a_tar_are_left_out() -> None:
    packed = io.BytesIO()
    kinds = [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
    ]
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number, kind in enumerate(kinds):
            info = tarfile.TarInfo(f"member {number}")
            info.type = kind
            info.linkname = "/etc/passwd"
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("file"))
    assert read(loaded(TarArchiveLoader, packed.getvalue())) == {"x/file": b""}


def test_links_and_folders_of_a_zip_are_left_out() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("folder/", "")
        archive.writestr("file", "1")
    assert read(loaded(ZipArchiveLoader, packed.getvalue())) == {"x/file": b"1"}


def test_several_archives_follow_one_another() -> None:
    archives = [(name, io.BytesIO(packed_tar({"1": b"", "2": b""}))) for name in "ab"]
    pipe = IterableWrapper(archives, deepcopy=False).load_from_tar()
    assert [path for path, _ in pipe] == ["a/1", "a/2", "b/1", "b/2"]
