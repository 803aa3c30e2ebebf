"""Rows N18 and N19: what archives from elsewhere may do to those who read them."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncloader.datapipes.iter import IterableWrapper, TarArchiveLoader, ZipArchiveLoader
from tests.datapipes.files.test_archives import OneWay, packed_tar, read

# N18 ------------------------------------------------------------------------------------

#: Names that lead to the archive itself, or that no file can have.
NAMELESS = [
    ".",
    "..",
    "a/..",
    "/",
    "//",
    "",
    "./.",
    "./a/../",
    "../..",
    "\\",
    "..\\",
    "a\\..",
    "\0",
]

TAR_FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def tar_with(name: str, form: int = tarfile.GNU_FORMAT) -> bytes:
    """Return a tar with a file of that name, and one that is called last."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        for info in (tarfile.TarInfo(name), tarfile.TarInfo("last")):
            info.size = 3
            if form == tarfile.PAX_FORMAT:
                info.pax_headers = {"path": info.name}
            archive.addfile(info, io.BytesIO(b"abc"))
    return packed.getvalue()


def zip_with(name: str) -> bytes:
    """Return a zip with a file of that name, and one that is called last."""
    info = zipfile.ZipInfo("N" * max(len(name), 1))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(info, b"abc")
        archive.writestr("last", b"abc")
    # An empty name cannot be written: a NUL ends what is read of one.
    return packed.getvalue().replace(info.filename.encode(), name.encode() or b"\0")


@pytest.mark.parametrize("form", TAR_FORMATS)
@pytest.mark.parametrize("name", NAMELESS)
def test_n18_a_member_of_a_tar_that_names_no_file_is_refused(name: str, form: int) -> None:
    tars = TarArchiveLoader([("d/x.tar", io.BytesIO(tar_with(name, form)))])
    with pytest.raises(tarfile.ReadError, match=r"^d/x.tar: its member '.*' is not named below"):
        list(tars)


@pytest.mark.parametrize("name", [name for name in NAMELESS if not name.endswith("/")])
def test_n18_a_member_of_a_zip_that_names_no_file_is_refused(name: str) -> None:
    zips = ZipArchiveLoader([("d/x.zip", io.BytesIO(zip_with(name)))])
    with pytest.raises(zipfile.BadZipFile, match=r"^d/x.zip: its member '.*' is not named below"):
        list(zips)


@pytest.mark.parametrize("name", ["/", "//", "./a/../"])
def test_n18_what_ends_as_a_folder_does_is_no_file_of_a_zip(name: str) -> None:
    zips = ZipArchiveLoader([("x.zip", io.BytesIO(zip_with(name)))])
    assert read(zips) == {"x.zip/last": b"abc"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, b"?"])
@pytest.mark.parametrize("name", NAMELESS)
def test_n18_links_and_folders_are_left_out_whatever_they_are_called(
    name: str, kind: bytes
) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = kind, "../x.tar"
    archive = link.tobuf(tarfile.USTAR_FORMAT) + packed_tar({"last": b"abc"})
    assert read(TarArchiveLoader([("x.tar", io.BytesIO(archive))])) == {"x.tar/last": b"abc"}


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", [".", "..", "a/..", "../x.tar", "../x.zip", "..\\x.tar"])
def test_n18_no_member_is_saved_over_its_archive(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{kind}"
    path.write_bytes(content := tar_with(name) if kind == "tar" else zip_with(name))
    files = getattr(IterableWrapper([str(path)]).open_files("b"), f"load_from_{kind}")()
    with pytest.raises((tarfile.ReadError, zipfile.BadZipFile, OSError)):
        list(files.save_to_disk("wb"))
    assert path.read_bytes() == content


def test_n18_the_archive_is_left_out_by_on_error() -> None:
    archives = [("x.tar", tar_with("..")), ("y.tar", tar_with("first"))]
    tars = IterableWrapper(archives).map(io.BytesIO, 1).load_from_tar(on_error="skip")
    assert read(tars) == {"y.tar/first": b"abc", "y.tar/last": b"abc"}


# N19 ------------------------------------------------------------------------------------


def header(kind: bytes, content: bytes) -> bytes:
    """Return a header of a tar that says something of the member after it."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content.ljust(512, b"\0")


#: A pax header for one member, one for all that follow, Solaris's, a long name and a long link.
HEADERS = {
    kind: header(kind, b"13 path=name\n" if kind in b"xgX" else b"name\0")
    for kind in (b"x", b"g", b"X", b"L", b"K")
}
every_header = pytest.mark.parametrize("kind", HEADERS)


def seeking_or_not(content: bytes) -> Iterator[io.IOBase]:
    yield io.BytesIO(content)
    yield OneWay(content)


@every_header
@pytest.mark.parametrize("count", [32, 250, 5000])
def test_n19_many_headers_for_one_member_are_an_error(kind: bytes, count: int) -> None:
    content = HEADERS[kind] * count + packed_tar({"1": b"abc"})
    for stream in seeking_or_not(content):
        with pytest.raises(tarfile.ReadError, match=r"^d/x.tar: more than 32 headers"):
            list(TarArchiveLoader([("d/x.tar", stream)]))


@every_header
def test_n19_some_headers_for_each_of_many_members_are_read(kind: bytes) -> None:
    one = HEADERS[kind] * 8 + packed_tar({"1": b"abc"})[:1024]
    for stream in seeking_or_not(one * 100 + bytes(1024)):
        members = [content.read() for _, content in TarArchiveLoader([("x.tar", stream)])]
        assert members == [b"abc"] * 100


def test_n19_headers_of_all_kinds_in_turn_are_an_error() -> None:
    kinds = [random.Random(1).choice(list(HEADERS.values())) for _ in range(3000)]
    content = b"".join(kinds) + packed_tar({"1": b"abc"})
    with pytest.raises(tarfile.ReadError, match=r"^x.tar: more than 32 headers"):
        list(TarArchiveLoader([("x.tar", io.BytesIO(content))]))


def test_n19_headers_that_are_long_together_are_an_error() -> None:
    comment = b"4000000 comment=".ljust(4_000_000 - 1, b"c") + b"\n"
    info = tarfile.TarInfo("x")
    info.type, info.size = b"x", len(comment)
    one = info.tobuf() + comment + bytes(-len(comment) % 512)
    content = one * 8 + packed_tar({"1": b"abc"})
    with pytest.raises(tarfile.ReadError, match=r"^x.tar: a member's headers have more than 16777"):
        list(TarArchiveLoader([("x.tar", io.BytesIO(content))]))


def sparse_header() -> bytes:
    """Return the header of a file with holes, of which more is said in what follows."""
    info = tarfile.TarInfo("hole")
    info.type = tarfile.GNUTYPE_SPARSE
    made = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    made[482], made[483:495] = 1, b"00000000001\0"
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def test_n19_many_holes_are_an_error() -> None:
    more = (b"00000000001\0" * 42).ljust(504, b"\0") + b"\1" + bytes(7)
    whole = io.BytesIO(sparse_header() + more * 40_000)
    with pytest.raises(tarfile.ReadError, match=r"^x.tar: a member's headers"):
        list(TarArchiveLoader([("x.tar", whole)]))


def test_n19_holes_that_are_cut_off_are_an_error() -> None:
    with pytest.raises(tarfile.ReadError, match=r"^x.tar: no whole tar header at byte 0"):
        list(TarArchiveLoader([("x.tar", io.BytesIO(sparse_header()))]))
