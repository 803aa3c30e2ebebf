"""Archives and compressed files that are made to do harm, or are damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import random
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asyncloader.datapipes.iter import (
    Bz2FileLoader,
    Decompressor,
    TarArchiveLoader,
    XzFileLoader,
    ZipArchiveLoader,
)
from asyncloader.errors import ResourceExhausted
from tests.datapipes.files.test_archives import OneWay, packed_tar, packed_zip, read

MIB = 2**20


@contextmanager
def no_more_than(mebibytes: int) -> Iterator[None]:
    """Fail if Python holds more memory at any moment of the block."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < mebibytes * MIB


def tar_of(content: bytes, **limits: Any) -> TarArchiveLoader:
    return TarArchiveLoader([("x.tar", io.BytesIO(content))], **limits)


def zip_of(content: bytes, **limits: Any) -> ZipArchiveLoader:
    return ZipArchiveLoader([("x.zip", io.BytesIO(content))], **limits)


def exceeds(keyword: str) -> Any:
    return pytest.raises(ResourceExhausted, match=rf"x\.\w+.* {keyword}=.*pass a larger {keyword}")


class Endless(io.RawIOBase):
    """A stream that repeats something for ever."""

    def __init__(self, repeated: bytes) -> None:
        self._repeated = repeated
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        place = self.given % len(self._repeated)
        piece = self._repeated[place : place + len(buffer)]
        buffer[: len(piece)] = piece
        self.given += len(piece)
        return len(piece)


# Bombs ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gigabyte_of_zeros() -> bytes:
    """A gigabyte, packed by gzip into a megabyte."""
    packer, zeros, check = zlib.compressobj(9, zlib.DEFLATED, -15), bytes(16 * MIB), 0
    # After a full flush the same comes out for the same again.
    piece = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(64):
        check = zlib.crc32(zeros, check)
    header = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return header + 64 * piece + packer.flush() + struct.pack("<LL", check, 2**30)


def test_a_gzip_bomb_ends_at_the_ratio(gigabyte_of_zeros: bytes) -> None:
    pipe = Decompressor([("x.gz", io.BytesIO(gigabyte_of_zeros))])
    with no_more_than(500), exceeds("max_ratio"):
        read(pipe)


def test_a_bomb_is_found_while_lines_are_looked_for(gigabyte_of_zeros: bytes) -> None:
    pipe = Decompressor([("x.gz", OneWay(gigabyte_of_zeros))], max_ratio=80)
    with no_more_than(300), exceeds("max_ratio"):
        list(pipe.readlines())


def test_a_bomb_is_found_by_seeking_over_it(gigabyte_of_zeros: bytes) -> None:
    ((_, stream),) = Decompressor([("x.gz", io.BytesIO(gigabyte_of_zeros))])
    with no_more_than(50), exceeds("max_ratio"):
        stream.seek(0, io.SEEK_END)
    with no_more_than(50), exceeds("max_ratio"):
        stream.seek(900 * MIB)


@pytest.mark.soak
def test_what_is_trusted_may_be_larger(gigabyte_of_zeros: bytes) -> None:
    ((_, stream),) = Decompressor([("x.gz", io.BytesIO(gigabyte_of_zeros))], max_ratio=math.inf)
    assert stream.seek(0, io.SEEK_END) == 2**30
    assert stream.seek(5) == 5
    assert stream.read(3) == bytes(3)


@pytest.mark.parametrize(
    ("loader", "pack"), [(XzFileLoader, lzma.compress), (Bz2FileLoader, bz2.compress)]
)
def test_other_bombs_end_at_the_ratio(loader: Any, pack: Any) -> None:
    packed = pack(bytes(MIB)) * 100
    with no_more_than(300), exceeds("max_ratio"):
        read(loader([("x.bomb", io.BytesIO(packed))]))


def test_small_files_may_grow_as_they_like() -> None:
    packed = gzip.compress(bytes(20 * MIB))
    ((_, stream),) = Decompressor([("x.gz", io.BytesIO(packed))])
    assert len(stream.read()) == 20 * MIB > 200 * len(packed)


def test_what_is_read_twice_counts_once() -> None:
    packed = gzip.compress(random.Random(1).randbytes(1000))
    ((_, stream),) = Decompressor([("x.gz", io.BytesIO(packed))], max_bytes=1000)
    for _ in range(5):
        assert len(stream.read()) == 1000
        stream.seek(0)


def test_an_endless_gzip_ends_at_the_bytes() -> None:
    endless = Endless(gzip.compress(random.Random(1).randbytes(100_000)))
    pipe = Decompressor([("x.gz", endless)], max_bytes=5 * MIB)
    with no_more_than(60), exceeds("max_bytes"):
        read(pipe)
    assert endless.given < 20 * MIB


def test_a_zip_bomb_ends_at_the_ratio() -> None:
    packed = packed_zip({f"{number}": bytes(10 * MIB) for number in range(20)})
    with no_more_than(50), exceeds("max_ratio"):
        for _, stream in zip_of(packed):
            assert len(stream.read()) == 10 * MIB


def test_a_zip_bomb_of_another_kind_is_not_unpacked_at_once() -> None:
    packed = packed_zip({"1": bytes(120 * MIB)}, zipfile.ZIP_LZMA)
    ((_, stream),) = zip_of(packed)
    with no_more_than(100):
        assert stream.read(10 * MIB) == bytes(10 * MIB)
    with exceeds("max_ratio"):
        stream.read()


def test_a_member_that_is_too_large_is_not_opened() -> None:
    contents = {"1": b"", "2": bytes(1001)}
    for pipe in (
        tar_of(packed_tar(contents), max_member_bytes=1000),
        tar_of(packed_tar(contents, "w:gz"), max_member_bytes=1000),
        zip_of(packed_zip(contents), max_member_bytes=1000),
    ):
        members = iter(pipe)
        next(members)
        with exceeds("max_member_bytes"):
            next(members)


def test_a_member_with_more_than_it_said_ends_there() -> None:
    packed = packed_zip({"1": bytes(1000)})
    lying = packed.replace(struct.pack("<L", 1000), struct.pack("<L", 10))
    with pytest.raises(zipfile.BadZipFile, match=r"x.zip/1: .*CRC"):
        read(zip_of(lying))


def test_too_many_members_are_refused() -> None:
    contents = {f"{number}": b"" for number in range(11)}
    for pipe in (
        tar_of(packed_tar(contents), max_members=10),
        zip_of(packed_zip(contents), max_members=10),
    ):
        with exceeds("max_members"):
            list(pipe)


def test_a_directory_that_is_too_long_is_not_read_to_its_end() -> None:
    packed = packed_zip({f"{number}": b"" for number in range(20_000)})
    with no_more_than(8), exceeds("max_members"):
        list(zip_of(packed, max_members=10))


def test_the_bytes_of_all_members_are_limited() -> None:
    contents = {f"{number}": bytes(1000) for number in range(5)}
    for pipe in (
        tar_of(packed_tar(contents), max_bytes=4500),
        zip_of(packed_zip(contents), max_bytes=4500),
    ):
        with exceeds("max_bytes"):
            read(pipe)


def test_a_sparse_file_ends_at_the_ratio() -> None:
    with exceeds("max_ratio"):
        read(tar_of(sparse_tar(10**9)))


def sparse_tar(size: int) -> bytes:
    """Return a tar with a file of so many bytes, all of which are a hole."""
    info = tarfile.TarInfo("hole")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "hole",
        "GNU.sparse.realsize": str(size),
    }
    content = b"1\n0\n0\n".ljust(512, b"\0")
    info.size = len(content)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def test_a_header_as_long_as_a_bomb_is_refused() -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    header.size = 2**30
    packed = gzip.compress(header.tobuf() + bytes(100 * MIB))
    with (
        no_more_than(50),
        # Newer versions of tarfile ask for it in pieces.
        pytest.raises(
            tarfile.ReadError,
            match=r"x.tar: a (header has 1073741824|member's headers have more than 16777216)",
        ),
    ):
        list(tar_of(packed))


def test_an_endless_tar_ends_at_the_members() -> None:
    header = tarfile.TarInfo("again").tobuf()
    pipe = TarArchiveLoader([("x.tar", Endless(header))], max_members=1000)
    with exceeds("max_members"):
        list(pipe)


def test_members_that_lead_back_are_an_error() -> None:
    header = bytearray(tarfile.TarInfo("again").tobuf())
    # A size of -512 in the base-256 form leads from the end of the header to its beginning.
    header[124:136] = (-512).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(tarfile.ReadError, match=r"x.tar"):
        list(tar_of(bytes(header) + bytes(1024)))


def test_limits_are_numbers_of_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_ratio must be at least 1, got 0"):
        TarArchiveLoader([], max_ratio=0)
    with pytest.raises(ValueError, match="max_bytes must be at least 1, got nan"):
        Decompressor([], max_bytes=math.nan)
    with pytest.raises(TypeError, match="max_members must be a number, got str"):
        ZipArchiveLoader([], max_members="many")  # type: ignore[arg-type]


# Damage ---------------------------------------------------------------------------------

SECRET = b"the secret content of a sample"


def test_a_file_cut_off_is_an_error_that_names_it() -> None:
    content = random.Random(1).randbytes(5000)
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        stream = io.BytesIO(pack(content)[:-600])
        with pytest.raises(EOFError, match=r"^x\.packed: "):
            read(Decompressor([("x.packed", stream)]))


def test_a_tar_cut_off_is_an_error_at_every_byte_of_it() -> None:
    whole = packed_tar({"1": b"a" * 700, "2": b"b" * 10})
    # After its last member there is nothing to miss.
    for end in range(1, 512 + 1024 + 512 + 10):
        if end == 512 + 1024:
            continue  # between two members: as good a tar as any other
        with pytest.raises(tarfile.ReadError, match=r"x.tar"):
            read(tar_of(whole[:end]))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_compressed_tar_cut_off_is_an_error(mode: str) -> None:
    whole = packed_tar({"1": random.Random(1).randbytes(100_000)}, mode)
    for end in (10, 1000, len(whole) // 2, len(whole) - 200):
        with pytest.raises((tarfile.ReadError, EOFError), match=r"x.tar"):
            read(tar_of(whole[:end]))


def test_a_damaged_header_is_not_the_end_of_a_tar() -> None:
    whole = bytearray(packed_tar({"1": b"", "2": b"", "3": b""}))
    whole[512 + 10] ^= 0xFF
    with pytest.raises(tarfile.ReadError, match=r"x.tar: no tar header at byte 512: bad checksum"):
        read(tar_of(bytes(whole)))


def test_a_zip_cut_off_is_an_error() -> None:
    whole = packed_zip({"1": b"content" * 100})
    for end in range(1, len(whole), 7):
        with pytest.raises(zipfile.BadZipFile, match=r"x.zip"):
            read(zip_of(whole[:end]))


def test_a_zip_with_a_password_says_so() -> None:
    whole = bytearray(packed_zip({"1": b"content"}))
    whole[whole.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(RuntimeError, match=r"x.zip/1 is encrypted"):
        read(zip_of(bytes(whole)))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(300))
def test_flipped_bits_are_errors_that_show_nothing(seed: int) -> None:
    draw = random.Random(seed)
    contents = {"1": SECRET, "2": SECRET * 10}
    pack, make = draw.choice(
        [
            (lambda: packed_tar(contents), tar_of),
            (lambda: packed_tar(contents, "w:gz"), tar_of),
            (lambda: packed_tar(contents, "w:xz"), tar_of),
            (lambda: packed_zip(contents), zip_of),
            (lambda: packed_zip(contents, zipfile.ZIP_STORED), zip_of),
        ]
    )
    damaged = bytearray(pack())
    for _ in range(draw.choice([1, 5, 50])):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    try:
        read(make(bytes(damaged)))
    except Exception as error:  # noqa: BLE001 - whichever it is, what it says is looked at
        text = str(error) + "".join(getattr(error, "__notes__", []))
        assert "x." in text
        assert "secret" not in text


def test_what_is_no_archive_is_an_error_that_names_it() -> None:
    for content in (b"", b"x", b"\x1f\x8b", b"PK\x05\x06", b"BZh", b"\xfd7zXZ\x00"):
        for make in (tar_of, zip_of):
            with pytest.raises(
                (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError), match=r"^x\."
            ):
                read(make(content))
