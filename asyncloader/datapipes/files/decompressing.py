"""Compressed files.

This file is about decompress and its forms for one compression, load_from_xz and
load_from_bz2: streams that unpack as they are read.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from asyncloader.arguments import checked_length
from asyncloader.datapipes.base import functional_datapipe
from asyncloader.datapipes.files.archives import TarStream
from asyncloader.datapipes.files.local import said_length
from asyncloader.datapipes.files.streams import PathAndStream, close_stream, path_and_stream
from asyncloader.datapipes.files.unpacking import (
    MAX_BYTES,
    MAX_RATIO,
    Limits,
    compression_of,
    packed_stream,
    unpacked_stream,
)
from asyncloader.datapipes.patterns import Applier
from asyncloader.datapipes.tolerance import OnError


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


#: How each is unpacked. Only what is around an archive comes off here.
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
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class Unpacker(Applier[PathAndStream]):
    """A pipe whose streams unpack those that it reads, within limits."""

    def __init__(
        self,
        datapipe: Iterable[PathAndStream],
        limits: Limits,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.limits = limits
        # A pipe keeps its settings under the names of its keywords: a fingerprint looks there.
        vars(self).update(vars(limits))

    def function(self) -> Callable[[Any], PathAndStream]:
        return self._unpacked

    def _unpacked(self, item: Any) -> PathAndStream:
        path, stream = path_and_stream(item, self)
        with contextlib.ExitStack() as failing:
            failing.callback(close_stream, stream)
            source, meter = packed_stream(path, stream, self.limits)
            kind = self.kind_of(path, source)
            if kind and not source.peek(1):
                raise RuntimeError(
                    f"{path} is empty, and so it is no compressed file; was it cut off?"
                )
            unpacked = unpacked_stream(source, kind, meter) if kind else source
            if self.is_tar(path):
                unpacked = TarStream(path, unpacked, self.limits)
            failing.pop_all()
        return self.path_of(path), unpacked

    def kind_of(self, path: str, source: io.BufferedReader) -> str:
        """Return the compression of a stream, or "" if it is not compressed."""
        raise NotImplementedError

    def is_tar(self, path: str) -> bool:
        """Whether what is unpacked is taken for a tar."""
        return False

    def path_of(self, path: str) -> str:
        """Return the path of what is unpacked."""
        return path


@functional_datapipe("decompress")
class Decompressor(Unpacker):
    """Yield ``(path, stream)`` with the stream of the decompressed bytes.

    The compression is found by the ending of the file's name, or else by its first bytes,
    unless ``file_type`` says it (``"gzip"``, ``"lzma"``, ``"bz2"``, ``"tar"``, ``"zip"``).
    Tars come out without a compression around them and zips as they are, for
    load_from_tar and load_from_zip. The stream of a tar, by its name or ``file_type``, has
    besides its bytes what torchdata's has: its members when it is iterated, ``getmembers``,
    ``getmember``, ``getnames`` and ``extractfile``. A file that is no such thing is a RuntimeError;
    ``on_error`` and ``max_errors`` are those of ``map``, for such files. One that is damaged
    further on fails where its stream is read.

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
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(
            source_datapipe,
            Limits(max_bytes=max_bytes, max_ratio=max_ratio),
            on_error=on_error,
            max_errors=max_errors,
        )
        self.file_type = _checked_type(file_type)

    def kind_of(self, path: str, source: io.BufferedReader) -> str:
        ending = os.path.splitext(path)[1].lower()
        if self.file_type in _KINDS:
            return _KINDS[self.file_type]
        if self.file_type is None and _ENDINGS.get(ending):
            return _ENDINGS[ending]
        found = compression_of(source)
        if not found and self.file_type is None and ending not in _ENDINGS:
            raise RuntimeError(
                f"decompress does not know the compression of {path}, by its name or by its first"
                " bytes; pass it as file_type=…"
            )
        return found

    def is_tar(self, path: str) -> bool:
        is_named_so = self.file_type is None and path.lower().endswith(_TARS)
        return is_named_so or self.file_type is CompressionType.TAR


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


class OneCompression(Unpacker):
    """What load_from_xz and load_from_bz2 share: what is damaged fails where it is read."""

    kind: str

    def __init__(
        self,
        datapipe: Iterable[PathAndStream],
        length: int = -1,
        *,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
    ) -> None:
        super().__init__(datapipe, Limits(max_bytes=max_bytes, max_ratio=max_ratio))
        self.length = checked_length(length)

    def __len__(self) -> int:
        return said_length(self, self.length)

    def kind_of(self, path: str, source: io.BufferedReader) -> str:
        return self.kind

    def path_of(self, path: str) -> str:
        return path.removesuffix(f".{self.kind}")


@functional_datapipe("load_from_xz")
class XzFileLoader(OneCompression):
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
class Bz2FileLoader(OneCompression):
    """Yield ``(path, stream)`` with what each bz2 stream unpacks to, and ``.bz2`` off its path.

    >>> import bz2, io
    >>> packed = io.BytesIO(bz2.compress(b"hello"))
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> files = IterableWrapper([("a.txt.bz2", packed)])
    >>> [(path, stream.read()) for path, stream in files.load_from_bz2()]
    [('a.txt', b'hello')]
    """

    kind = "bz2"
