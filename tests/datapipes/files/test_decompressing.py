"""Compressed files, each of its kind."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest

from asyncloader.datapipes.iter import (
    Bz2FileLoader,
    CompressionType,
    Decompressor,
    FileOpener,
    XzFileLoader,
)
from asyncloader.errors import ResourceExhausted
from tests.datapipes.files.test_archives import CONTENTS, OneWay, packed_tar, packed_zip, read
from tests.leaks import leaves_nothing

TEXT = b"one\ntwo\n" * 5000

PACKED = {".gz": gzip.compress(TEXT), ".xz": lzma.compress(TEXT), ".bz2": bz2.compress(TEXT)}
every_ending = pytest.mark.parametrize("ending", PACKED)


def alone(packed: bytes, path: str = "x", **arguments: Any) -> bytes:
    """Return the content of a compressed file, which keeps its path."""
    ((found, stream),) = Decompressor([(path, io.BytesIO(packed))], **arguments)
    assert found == path
    return stream.read()  # type: ignore[no-any-return]


@every_ending
def test_a_kind_is_told_by_the_name(ending: str) -> None:
    assert alone(PACKED[ending], f"x{ending}") == TEXT


@every_ending
def test_a_kind_is_told_by_the_beginning(ending: str) -> None:
    assert alone(PACKED[ending]) == TEXT


@pytest.mark.parametrize(
    ("file_type", "ending"),
    [
        ("gzip", ".gz"),
        ("GZIP", ".gz"),
        ("lzma", ".xz"),
        ("bz2", ".bz2"),
        (CompressionType.LZMA, ".xz"),
        (Decompressor.types.BZIP2, ".bz2"),
    ],
)
def test_a_kind_may_be_said(file_type: Any, ending: str) -> None:
    assert alone(PACKED[ending], "x.txt", file_type=file_type) == TEXT


def test_the_old_form_of_lzma_is_one_too() -> None:
    assert alone(lzma.compress(TEXT, format=lzma.FORMAT_ALONE)) == TEXT


@every_ending
def test_several_files_in_one_are_one(ending: str) -> None:
    assert alone(PACKED[ending] * 3) == TEXT * 3


@every_ending
def test_a_stream_that_cannot_seek_is_read_as_well(ending: str) -> None:
    ((_, stream),) = Decompressor([("x", OneWay(PACKED[ending]))])
    assert not stream.seekable()
    assert stream.read() == TEXT


@every_ending
def test_one_can_go_back_where_the_source_can(ending: str) -> None:
    ((_, stream),) = Decompressor([("x", io.BytesIO(PACKED[ending]))])
    assert stream.seekable()
    assert stream.read(10) == TEXT[:10]
    assert stream.seek(-9, io.SEEK_END) == len(TEXT) - 9
    assert stream.read() == TEXT[-9:]
    assert stream.seek(3) == stream.tell() == 3
    assert stream.seek(2, io.SEEK_CUR) == 5
    assert stream.read(5) == TEXT[5:10]


def test_a_tar_comes_out_of_its_compression_for_load_from_tar() -> None:
    for path, mode in (("x.tar", "w"), ("x.tar.gz", "w:gz"), ("x.tgz", "w:gz")):
        pipe = Decompressor([(path, io.BytesIO(packed_tar(CONTENTS, mode)))])
        assert [stream.read() for _, stream in pipe.load_from_tar()] == list(CONTENTS.values())


TARS = [("x.tar", "w"), ("x.tar.gz", "w:gz"), ("x.tgz", "w:gz"), ("d/x.TAR.xz", "w:xz")]


@pytest.mark.parametrize(("path", "mode"), TARS)
@pytest.mark.parametrize("file_type", [None, "tar", CompressionType.TAR])
def test_a_tar_has_its_members_as_in_torchdata(path: str, mode: str, file_type: Any) -> None:
    # The second is larger than what may be read of a header.
    contents = {"1": b"one", "d/2": bytes(17 * 2**20 if mode == "w" else 5000), "3": b""}
    pipe = Decompressor([(path, io.BytesIO(packed_tar(contents, mode)))], file_type)
    ((found, stream),) = pipe
    assert found == path
    for _ in range(2):
        members = {info.name: stream.extractfile(info) for info in stream if info.isfile()}
        assert {name: content.read() for name, content in members.items()} == contents
    assert stream.getnames() == list(contents) == [info.name for info in stream.getmembers()]
    assert stream.extractfile("1").read() == b"one"
    assert stream.getmember("d/2").size == len(contents["d/2"])
    with pytest.raises(KeyError, match=r"x.* has no member 'nothing'"):
        stream.extractfile("nothing")


def test_members_of_a_tar_that_cannot_seek_are_read_one_after_the_other() -> None:
    content = packed_tar(CONTENTS, "w:gz")
    ((_, stream),) = Decompressor([("x.tar.gz", OneWay(content))])
    assert [stream.extractfile(info).read() for info in stream] == list(CONTENTS.values())


def test_a_link_of_a_tar_is_a_member_without_content() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo("x")
            info.type, info.linkname = kind, "x"
            archive.addfile(info)
    ((_, stream),) = Decompressor([("x.tar", io.BytesIO(packed.getvalue()))])
    assert [stream.extractfile(info) for info in stream] == [None] * 3


def test_a_tar_that_is_damaged_or_hostile_is_an_error_that_names_it() -> None:
    for content, says in (
        (b"no tar at all" * 100, "no tar header"),
        (packed_tar({"..": b"1"}), "its member '..' has no path inside"),
        (packed_tar(CONTENTS)[:700], "unexpected end"),
    ):
        ((_, stream),) = Decompressor([("x.tar", io.BytesIO(content))])
        with pytest.raises(tarfile.ReadError, match=rf"^x.tar.*{says}"):
            [stream.extractfile(info).read() for info in stream if info.isfile()]
    ((_, stream),) = Decompressor([("x.tar", io.BytesIO(packed_tar({"1": bytes(9)})))], max_bytes=8)
    with pytest.raises(ResourceExhausted, match="max_bytes=8"):
        stream.extractfile("1").read()


def test_the_file_below_a_tar_is_closed_with_it_and_with_its_members(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(packed_tar(CONTENTS, "w:gz"))
    pipe = FileOpener([str(tmp_path / "x.tar.gz")] * 3, "b").decompress()
    with leaves_nothing():
        for _, stream in pipe:
            assert stream.getnames() == list(CONTENTS)
        members = [stream.extractfile(info) for info in stream]
        stream.close()
        stream.close()
        with pytest.raises(ValueError, match=r"x.tar.gz is closed"):
            list(stream)
        del stream
        assert [member.read() for member in members] == list(CONTENTS.values())
        del members
    with leaves_nothing():
        for _, stream in pipe:
            assert next(iter(stream)).name == next(iter(CONTENTS))
        del stream


def test_a_zip_stays_one() -> None:
    for arguments in ({}, {"file_type": "zip"}):
        pipe = Decompressor([("x.zip", io.BytesIO(packed_zip(CONTENTS)))], **arguments)
        assert len(list(pipe.load_from_zip())) == len(CONTENTS)


def test_what_is_not_compressed_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"know the compression of x.txt, .* file_type=…"):
        list(Decompressor([("x.txt", io.BytesIO(b"text"))]))
    with pytest.raises(gzip.BadGzipFile, match=r"^x.gz: Not a gzipped file"):
        alone(b"text", "x.gz")


@every_ending
def test_an_empty_file_is_not_compressed(ending: str) -> None:
    with pytest.raises(
        RuntimeError, match=rf"^x\{ending} is empty, and so it is no compressed file"
    ):
        alone(b"", f"x{ending}")
    ((_, stream),) = Decompressor([("x.tar", io.BytesIO())])
    assert stream.read() == b"", "what is no archive is for the pipe that reads archives"


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"file_type must be one of gzip, .*, got 'rar'"):
        Decompressor([], "rar")


def test_the_forms_for_one_kind_take_the_ending_off() -> None:
    xz = XzFileLoader([("max.xz", io.BytesIO(PACKED[".xz"]))])
    assert read(xz) == {"max": TEXT}
    bz = Bz2FileLoader([("2.b.bz2", OneWay(PACKED[".bz2"]))])
    assert read(bz) == {"2.b": TEXT}
    assert len(XzFileLoader([], 3)) == 3
    with pytest.raises(TypeError, match="Bz2FileLoader has no known length"):
        len(Bz2FileLoader([]))


@every_ending
def test_the_file_below_is_closed_with_its_content(tmp_path: Path, ending: str) -> None:
    (tmp_path / "x").write_bytes(PACKED[ending])
    with leaves_nothing():
        pipe = FileOpener([str(tmp_path / "x")] * 3, "b").decompress()
        assert len(list(pipe.readlines())) == 3 * 10_000
        for _ in pipe.readlines():
            break
        held = [stream for _, stream in pipe]
        assert [stream.read() for stream in held] == [TEXT] * 3
        del held


def test_an_error_closes_the_file_below(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"text")
    with leaves_nothing(), pytest.raises(RuntimeError):
        list(FileOpener([str(tmp_path / "x")], "b").decompress())
