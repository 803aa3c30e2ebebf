"""Compressed files.

This file is about decompress and its forms for one compression, load_from_xz and
load_from_bz2: streams that unpack as they are read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from asyncloader.datapipes.arguments import checked_length, iterable_source
from asyncloader.datapipes.base import IterDataPipe, OneToOne, functional_datapipe
from asyncloader.datapipes.files import said_length
from asyncloader.datapipes.limits import MAX_BYTES, MAX_RATIO, Limits
from asyncloader.datapipes.reading import begin
from asyncloader.datapipes.streams import PathAndStream, path_and_stream
from asyncloader.datapipes.unpacking import compression_of, packed_stream, unpacked_stream


class CompressionType(Enum):
    """What ``decompress`` can be told that a file is.

    >>> import bz2, io
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> packed = IterableWrapper([("data", io.BytesIO(bz2.compress(b"text")))], deepcopy=False)
    >>> [stream.read() for _, stream in packed.decompress(CompressionType.BZIP2)]
    [b'text']
    """

    GZIP = "gzip"
    LZMA = "lzma"
    TAR = "tar"
    ZIP = "zip"
    BZIP2 = "bz2"


#: How each is unpacked. An archive's members are for load_from_tar and load_from_zip: here
#: only what is around the archive comes off.
_KINDS: dict[CompressionType | None, str] = {
    CompressionType.GZIP: "gz",
    CompressionType.LZMA: "xz",
    CompressionType.BZIP2: "bz2",
}
_ENDINGS = {
    ".gz": "gz",
    ".tgz": "gz",
    ".xz": "xz",
    ".lzma": "xz",
    ".bz2": "bz2",
    ".tar": "",
    ".zip": "",
}


@functional_datapipe("decompress")
class Decompressor(OneToOne, IterDataPipe[PathAndStream]):
    """Yield ``(path, stream)`` with the stream of the decompressed bytes.

    What a file is packed with is told by its name's ending, or else by how it begins,
    unless ``file_type`` says it (``"gzip"``, ``"lzma"``, ``"bz2"``, ``"tar"``, ``"zip"``).
    Tars come out without a compression around them and zips as they are, for
    load_from_tar and load_from_zip. A file that is no such thing is a RuntimeError.

    >>> import gzip, io
    >>> packed = io.BytesIO(gzip.compress(b"hello"))
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> files = IterableWrapper([("a.txt.gz", packed)])
    >>> [(path, stream.read()) for path, stream in files.decompress()]
    [('a.txt.gz', b'hello')]
    """

    types = CompressionType

    def __init__(
        self,
        source_datapipe: Iterable[PathAndStream],
        file_type: str | CompressionType | None = None,
        *,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.file_type = _checked_type(file_type)
        self.max_bytes = max_bytes
        self.max_ratio = max_ratio
        self._limits = Limits(max_bytes=max_bytes, max_ratio=max_ratio)

    def __iter__(self) -> Iterator[PathAndStream]:
        for item in begin(self.source):
            yield self._decompressed(item)

    def _decompressed(self, item: Any) -> PathAndStream:
        path, stream = path_and_stream(item, self)
        source, meter = packed_stream(path, stream, self._limits)
        kind = self._kind(path, source)
        return path, unpacked_stream(source, kind, meter) if kind else source

    def _kind(self, path: str, source: io.BufferedReader) -> str:
        ending = os.path.splitext(path)[1].lower()
        if self.file_type in _KINDS:
            return _KINDS[self.file_type]
        if self.file_type is None and _ENDINGS.get(ending):
            return _ENDINGS[ending]
        found = compression_of(source)
        if not found and self.file_type is None and ending not in _ENDINGS:
            raise RuntimeError(
                f"{path} is not compressed in a way that decompress knows, by its name or by"
                " how it begins; say what it is with file_type=…"
            )
        return found


def _checked_type(file_type: Any) -> CompressionType | None:
    if file_type is None or isinstance(file_type, CompressionType):
        return file_type
    names = ", ".join(kind.value for kind in CompressionType)
    if not isinstance(file_type, str):
        raise TypeError(f"file_type must be one of {names}, got {type(file_type).__name__}")
    try:
        return CompressionType(file_type.lower())
    except ValueError:
        raise ValueError(f"file_type must be one of {names}, got {file_type!r}") from None


class _OneCompression(OneToOne, IterDataPipe[PathAndStream]):
    """What load_from_xz and load_from_bz2 share."""

    kind: str

    def __init__(
        self,
        datapipe: Iterable[PathAndStream],
        length: int = -1,
        *,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.length = checked_length(length)
        self.max_bytes = max_bytes
        self.max_ratio = max_ratio
        self._limits = Limits(max_bytes=max_bytes, max_ratio=max_ratio)

    def __len__(self) -> int:
        return said_length(self, self.length)

    def __iter__(self) -> Iterator[PathAndStream]:
        for item in begin(self.source):
            yield self._decompressed(item)

    def _decompressed(self, item: Any) -> PathAndStream:
        path, stream = path_and_stream(item, self)
        source, meter = packed_stream(path, stream, self._limits)
        return path.removesuffix(f".{self.kind}"), unpacked_stream(source, self.kind, meter)


@functional_datapipe("load_from_xz")
class XzFileLoader(_OneCompression):
    """Yield ``(path, stream)`` with what each xz stream unpacks to, and ``.xz`` off its path.

    >>> import io, lzma
    >>> packed = io.BytesIO(lzma.compress(b"hello"))
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> files = IterableWrapper([("a.txt.xz", packed)])
    >>> [(path, stream.read()) for path, stream in files.load_from_xz()]
    [('a.txt', b'hello')]
    """

    kind = "xz"


@functional_datapipe("load_from_bz2")
class Bz2FileLoader(_OneCompression):
    """Yield ``(path, stream)`` with what each bz2 stream unpacks to, and ``.bz2`` off its path.

    >>> import bz2, io
    >>> packed = io.BytesIO(bz2.compress(b"hello"))
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> files = IterableWrapper([("a.txt.bz2", packed)])
    >>> [(path, stream.read()) for path, stream in files.load_from_bz2()]
    [('a.txt', b'hello')]
    """

    kind = "bz2"
