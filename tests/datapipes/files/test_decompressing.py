"""Compressed files, each of its kind."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
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


def test_a_zip_stays_one() -> None:
    for arguments in ({}, {"file_type": "zip"}):
        pipe = Decompressor([("x.zip", io.BytesIO(packed_zip(CONTENTS)))], **arguments)
        assert len(list(pipe.load_from_zip())) == len(CONTENTS)


def test_what_is_not_compressed_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"x.txt is not compressed .* file_type=…"):
        list(Decompressor([("x.txt", io.BytesIO(b"text"))]))
    with pytest.raises(gzip.BadGzipFile, match=r"^x.gz: Not a gzipped file"):
        alone(b"text", "x.gz")


@every_ending
def test_an_empty_file_is_not_compressed(ending: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^x\{ending} is empty, which no compressed file is"):
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
    with pytest.raises(TypeError, match="Bz2FileLoader knows no length"):
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
