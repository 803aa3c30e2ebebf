"""Rows N18, N19 and N25: what archives and texts from elsewhere may do to those who read them."""

from __future__ import annotations

import codecs
import inspect
import io
import math
import random
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper, TarArchiveLoader, ZipArchiveLoader
from asyncloader.errors import ResourceExhausted
from tests.datapipes.files.test_archives import OneWay, packed_tar, read
from tests.datapipes.files.test_hostile_archives import Endless, no_more_than

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
    with pytest.raises(tarfile.ReadError, match=r"^d/x.tar: its member '.*' has no path inside"):
        list(tars)


@pytest.mark.parametrize("name", [name for name in NAMELESS if not name.endswith("/")])
def test_n18_a_member_of_a_zip_that_names_no_file_is_refused(name: str) -> None:
    zips = ZipArchiveLoader([("d/x.zip", io.BytesIO(zip_with(name)))])
    with pytest.raises(zipfile.BadZipFile, match=r"^d/x.zip: its member '.*' has no path inside"):
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
        with pytest.raises(
            tarfile.ReadError, match=r"^d/x.tar: the member at byte .* has more than 32 headers"
        ):
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
    with pytest.raises(
        tarfile.ReadError, match=r"^x.tar: the member at byte .* has more than 32 headers"
    ):
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
    with pytest.raises(tarfile.ReadError, match=r"^x.tar: the tar header at byte 0"):
        list(TarArchiveLoader([("x.tar", io.BytesIO(sparse_header()))]))


# N25 ------------------------------------------------------------------------------------

#: What reads lines, and a line that it takes.
READERS: dict[str, bytes] = {
    "readlines": b"a,b",
    "parse_csv": b"a,b",
    "parse_csv_as_dict": b"a,b",
    "parse_json_lines": b"[1, 2]",
}
every_reader = pytest.mark.parametrize("reader", READERS)


def lines_by(reader: str, stream: Any, **settings: Any) -> Iterator[Any]:
    """Yield what a reader makes of a stream of that name."""
    source = IterableWrapper([("some.txt", stream)], deepcopy=False)
    return iter(getattr(source, reader)(**settings))


def too_long(line: int, bound: float) -> Any:
    return pytest.raises(
        ResourceExhausted,
        match=rf"some\.txt, line {line}: .* max_line_bytes={bound} .* larger max_line_bytes, or",
    )


@every_reader
def test_n25_a_line_without_an_end_is_an_error(reader: str) -> None:
    endless = Endless(b"x" * 4096)
    with no_more_than(20), too_long(1, 2**20):
        list(lines_by(reader, endless, max_line_bytes=2**20))
    assert endless.given < 2**22


def test_n25_a_file_of_8_gib_without_a_line_is_read_no_further_than_the_bound(
    tmp_path: Path,
) -> None:
    path = tmp_path / "zeros"
    with path.open("wb") as file:
        file.truncate(8 * 2**30)
    for mode in ("b", "r"):
        lines = IterableWrapper([str(path)]).open_files(mode).readlines(max_line_bytes=2**20)
        with no_more_than(20), pytest.raises(ResourceExhausted, match="max_line_bytes=1048576"):
            list(lines)


@every_reader
def test_n25_the_line_and_the_file_are_named_and_what_was_before_counts(reader: str) -> None:
    line = READERS[reader]
    stream = io.BytesIO((line + b"\n") * 3 + b"x" * 100)
    items = lines_by(reader, stream, max_line_bytes=len(line) + 1)
    with too_long(4, len(line) + 1):
        found = [next(items) for _ in range(2)]
        found += [next(items) for _ in range(2)]
    assert len(found) == 2
    assert stream.closed


@every_reader
def test_n25_a_line_as_long_as_the_bound_is_read(reader: str) -> None:
    line = READERS[reader]
    for end in (b"\n", b""):
        content = line + b"\n" + line + end
        assert list(lines_by(reader, io.BytesIO(content), max_line_bytes=len(line) + 1))


def streams_of(content: bytes, folder: Path) -> Iterator[Any]:
    """Yield streams of many kinds of the same text."""
    path = folder / "text"
    path.write_bytes(content)
    yield io.BytesIO(content)
    yield io.StringIO(content.decode())
    yield io.BufferedReader(OneWay(content))  # type: ignore[type-var]
    yield OneWay(content)
    yield path.open("rb")
    yield path.open()
    yield path.open("rb", buffering=0)
    for mode in ("w+b", "w+"):
        spooled: Any = tempfile.SpooledTemporaryFile(mode=mode)  # noqa: SIM115 - the reader closes
        spooled.write(content if "b" in mode else content.decode())
        spooled.seek(0)
        yield spooled
        named: Any = tempfile.NamedTemporaryFile(mode=mode)  # noqa: SIM115
        named.write(content if "b" in mode else content.decode())
        named.seek(0)
        yield named
    yield codecs.getreader("utf-8")(io.BytesIO(content))


def test_n25_streams_of_every_kind_have_the_same_lines_and_the_same_bound(tmp_path: Path) -> None:
    lines = ["one", "two", "", "three" * 1000, "four"]
    content = "\n".join(lines).encode()
    for stream in streams_of(content, tmp_path):
        found = lines_by("readlines", stream, decode=True, return_path=False)
        assert list(found) == lines, stream
    for stream in streams_of(content, tmp_path):
        found = lines_by("readlines", stream, decode=True, max_line_bytes=4999)
        assert [next(found) for _ in range(3)] == [("some.txt", line) for line in lines[:3]]
        with too_long(4, 4999):
            next(found)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "cp037"])
def test_n25_lines_of_encodings_with_other_line_breaks_are_bounded(encoding: str) -> None:
    # In UTF-16 the first has the byte of a line break in each character, the second in none.
    for character in "\u0a0a", "x":
        if encoding == "cp037" and character != "x":
            continue
        short, long = character * 50, character * 5000
        content = "\n".join([short, short, long]).encode(encoding)
        lines = lines_by(
            "readlines", io.BytesIO(content), decode=True, encoding=encoding, max_line_bytes=100
        )
        assert [next(lines) for _ in range(2)] == [("some.txt", short)] * 2
        with too_long(3, 100):
            next(lines)
    endless = Endless("\u0a0a".encode("utf-16-le") * 1000)
    with no_more_than(60), too_long(1, 2**20):
        settings = {"decode": True, "encoding": "utf-16-le", "max_line_bytes": 2**20}
        list(lines_by("readlines", endless, **settings))


@pytest.mark.soak
@pytest.mark.parametrize("reader", ["parse_csv", "parse_csv_as_dict"])
def test_n25_a_row_without_an_end_is_an_error(reader: str) -> None:
    # A line break within quotes ends no row, and here each line ends within some.
    endless = Endless(b'x","x\n' * 1000)
    stream = io.BufferedReader(Chained(b'"', endless))
    with no_more_than(60), pytest.raises(ResourceExhausted, match=r"some.txt, line \d+: the row"):
        list(lines_by(reader, stream, max_line_bytes=2**20))


class Chained(io.RawIOBase):
    """Some bytes, and then those of a stream."""

    def __init__(self, first: bytes, rest: io.RawIOBase) -> None:
        self._first = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        first, self._first = self._first, b""
        buffer[: len(first)] = first
        return len(first) or self._rest.readinto(buffer) or 0


def test_n25_many_rows_are_more_than_the_bound_together() -> None:
    content = b"a,b\n" * 10_000
    assert len(list(lines_by("parse_csv", io.BytesIO(content), max_line_bytes=4))) == 10_000


@every_reader
def test_n25_the_bound_is_generous_unless_it_is_given_and_may_be_none(reader: str) -> None:
    method: Callable[..., Any] = getattr(IterableWrapper([]), reader)
    made = method()
    bound = inspect.signature(type(made)).parameters["max_line_bytes"]
    assert bound.kind is bound.KEYWORD_ONLY
    assert bound.default == made.max_line_bytes == 256 * 2**20
    assert method(max_line_bytes=None).max_line_bytes == math.inf
    line = READERS[reader]
    assert list(lines_by(reader, io.BytesIO((line + b"\n") * 2), max_line_bytes=None))
    with pytest.raises(ValueError, match="max_line_bytes must be at least 1, got 0"):
        method(max_line_bytes=0)
    with pytest.raises(TypeError, match="max_line_bytes must be a number, got str"):
        method(max_line_bytes="many")


def test_n25_a_file_with_too_long_a_line_is_left_out_by_on_error() -> None:
    files = [("a", b"1\n2\n"), ("b", b"3\n" + b"4" * 100 + b"\n5\n"), ("c", b"6\n")]
    texts = IterableWrapper(files).map(io.BytesIO, 1)
    lines = texts.readlines(max_line_bytes=10, on_error="skip", return_path=False)
    assert list(lines) == [b"1", b"2", b"3", b"6"]
