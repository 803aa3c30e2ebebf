"""Files that are what they are said to be.

This file is about check_hash.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from asyncloader.datapipes.files.streams import (
    PIECE_BYTES,
    is_seekable,
    pair_in,
    path_and_stream,
    path_in,
)
from asyncloader.datapipes.patterns.applying import Applier
from asyncloader.datapipes.pipe.arguments import checked_mapping
from asyncloader.datapipes.pipe.base import functional_datapipe
from asyncloader.datapipes.pipe.tolerance import OnError

#: Those without a length of their own cannot be told by their text.
HASH_TYPES = sorted(name for name in hashlib.algorithms_guaranteed if "shake" not in name)


@functional_datapipe("check_hash")
class HashChecker(Applier[tuple[str, Any]]):
    """Yield the pairs ``(path, data)`` of a source, once the data has the hash it should have.

    ``hash_dict`` says which, by path and in hexadecimal. Data is bytes, text or a stream,
    which is read through and then sought back to where it was, unless ``rewind=False``.
    Another hash, or none in ``hash_dict``, is a RuntimeError; ``on_error`` and ``max_errors``
    are those of ``map``, for such files.

    >>> import hashlib
    >>> known = {"a": hashlib.sha256(b"hello").hexdigest()}
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("a", b"hello")]).check_hash(known))
    [('a', b'hello')]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        hash_dict: dict[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(source_datapipe, on_error=on_error, max_errors=max_errors)
        if hash_type not in HASH_TYPES:
            raise ValueError(f"hash_type must be one of {', '.join(HASH_TYPES)}, got {hash_type!r}")
        self.hash_dict = checked_hashes(hash_dict)
        self.hash_type = hash_type
        self.rewind = rewind

    def __len__(self) -> int:
        return self.tolerance.length(self, self.source)

    def function(self) -> Callable[[Any], tuple[str, Any]]:
        return self._checked

    def _checked(self, item: Any) -> Any:
        name, data = pair_in(item, "(path, data)", self)
        path = path_in(name, self)
        if path not in self.hash_dict:
            raise RuntimeError(f"Unspecified hash for file {path}: hash_dict does not have it")
        known, found = self.hash_dict[path], self._hash(item, data)
        if found != known:
            raise RuntimeError(
                f"the {self.hash_type} hash of {path} is {found} and does not match the expected"
                f" {known}; remove the file and get it again"
            )
        return item

    def _hash(self, item: Any, data: Any) -> str:
        digest = hashlib.new(self.hash_type, usedforsecurity=False)
        if isinstance(data, str | bytes | bytearray | memoryview):
            digest.update(data.encode() if isinstance(data, str) else data)
            return digest.hexdigest()
        path, stream = path_and_stream(item, self)
        if self.rewind and not is_seekable(stream):
            raise TypeError(f"the stream of {path} cannot seek back; pass rewind=False")
        start = stream.tell() if self.rewind else 0
        while piece := stream.read(PIECE_BYTES):
            if isinstance(piece, str):
                raise TypeError(f'{path} was opened as text; open it with mode="b"')
            digest.update(piece)
        if self.rewind:
            stream.seek(start)
        return digest.hexdigest()


def checked_hashes(hash_dict: Any) -> dict[str, str]:
    """Return hashes in small letters, by paths as text; raise TypeError for other things."""
    known = checked_mapping("hash_dict", hash_dict)
    return {_checked_path(path): _checked_digest(path, digest) for path, digest in known.items()}


def _checked_path(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"the keys of hash_dict must be paths, got {type(path).__name__}")
    return os.fspath(path)


def _checked_digest(path: Any, digest: Any) -> str:
    if not isinstance(digest, str):
        raise TypeError(f"the hash of {path} must be hexadecimal, got {type(digest).__name__}")
    return digest.lower()
