"""What the loaders of archives share.

This file is about ``ArchiveLoader``: it opens each archive of its source within limits, and
yields the files in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Protocol

from asyncloader.datapipes.files.limits import Limits
from asyncloader.datapipes.files.local import said_length
from asyncloader.datapipes.files.streams import PathAndStream, path_and_stream
from asyncloader.datapipes.patterns.expanding import TolerantExpander
from asyncloader.datapipes.pipe.arguments import checked_length
from asyncloader.datapipes.pipe.tolerance import OnError


class OpenArchive(Protocol):
    """An archive that is open."""

    def files(self) -> Iterator[Any]:
        """Yield what is known of each file, in the archive's order."""

    def opened(self, info: Any) -> PathAndStream:
        """Return a file's path and the stream of its bytes."""

    def close(self) -> None:
        """Let go of the stream; files that are still open keep it open."""


class ArchiveLoader(TolerantExpander[PathAndStream]):
    """A pipe whose items are the files in archives."""

    def __init__(
        self,
        datapipe: Iterable[PathAndStream],
        length: int,
        limits: Limits,
        *,
        on_error: OnError,
        max_errors: int | None,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.length = checked_length(length)
        self.max_members = limits.max_members
        self.max_member_bytes = limits.max_member_bytes
        self.max_bytes = limits.max_bytes
        self.max_ratio = limits.max_ratio
        self.limits = limits

    def __len__(self) -> int:
        return said_length(self, self.length)

    def archive(self, path: str, stream: Any) -> OpenArchive:
        """Open an archive."""
        raise NotImplementedError

    def parts(self, item: Any, skip: int = 0) -> Generator[PathAndStream, None, None]:
        with contextlib.closing(self.archive(*path_and_stream(item, self))) as archive:
            for info in archive.files():
                if skip:
                    skip -= 1
                else:
                    yield archive.opened(info)
