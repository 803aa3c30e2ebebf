"""Files on disk.

This file is about finding files, opening them and reading them whole or in chunks.
"""

from __future__ import annotations

import fnmatch
import io
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from asyncloader.datapipes.files.sorting import in_order
from asyncloader.datapipes.files.streams import (
    PIECE_BYTES,
    OpenedBytes,
    OpenedText,
    PathName,
    close_stream,
    is_seekable,
    opened,
    path_and_stream,
    path_in,
)
from asyncloader.datapipes.items.sources import IterableWrapper
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns.expanding import Expander, TolerantExpander
from asyncloader.datapipes.pipe.arguments import (
    checked_count,
    checked_encoding,
    checked_length,
    iterable_source,
)
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe, is_pipe
from asyncloader.datapipes.pipe.run import Run
from asyncloader.datapipes.pipe.tolerance import OnError

MODES = ("b", "t", "rb", "rt", "r")


@functional_datapipe("list_files")
class FileLister(Expander[str]):
    """Yield the paths of the files in a folder, or in each of several.

    ``masks`` is a pattern of names such as ``"*.txt"``, or a list of them. Paths are in
    sorted order, unless ``non_deterministic`` leaves it to the file system. Links to folders
    are not followed. A root that is a file is yielded itself, and one that is not there is
    an OSError.

    >>> from asyncloader.datapipes.iter import FileLister
    >>> list(FileLister(".", "no such name*"))
    []
    """

    def __init__(
        self,
        root: PathName | Sequence[PathName] | IterDataPipe[PathName] = ".",
        masks: str | list[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> None:
        self.source = as_roots(root)
        self.masks = checked_masks(masks)
        self.recursive = recursive
        self.abspath = abspath
        self.non_deterministic = non_deterministic
        self.length = checked_length(length)

    def __len__(self) -> int:
        return said_length(self, self.length)

    def parts(self, item: Any, skip: int = 0) -> Generator[str, None, None]:
        for path in self._paths(item):
            if not any_match(self.masks, os.path.basename(path)):
                continue
            if skip:
                skip -= 1
            else:
                yield path

    def _paths(self, root: Any) -> Iterator[str]:
        root = path_in(root, self)
        if self.abspath:
            root = _absolute(root)
        if os.path.isfile(root):
            yield root
            return
        for folder, folders, names in os.walk(root, onerror=_fail):
            if not self.non_deterministic:
                # os.walk goes on in the order that it finds here.
                folders[:] = in_order(folders)
            ordered = names if self.non_deterministic else in_order(names)
            yield from (os.path.join(folder, name) for name in ordered)
            if not self.recursive:
                return


def as_roots(root: Any) -> Any:
    """Return a pipe of the places to look for files in."""
    if is_pipe(root):
        return root
    roots = [root] if isinstance(root, str | os.PathLike) else root
    if not isinstance(roots, Iterable):
        raise TypeError(f"root must be a path or a list of paths, got {type(root).__name__}")
    return IterableWrapper([_checked_root(each) for each in roots], deepcopy=False)


def _checked_root(root: Any) -> str:
    if not isinstance(root, str | os.PathLike):
        raise TypeError(f"root must be a path or a list of paths, got one of {type(root).__name__}")
    return os.fspath(root)


def checked_masks(masks: Any) -> str | list[str]:
    """Return a pattern or a list of them; raise TypeError otherwise."""
    if isinstance(masks, str):
        return masks
    if not isinstance(masks, list | tuple) or not all(isinstance(mask, str) for mask in masks):
        raise TypeError(f"masks must be a pattern or a list of patterns, got {masks!r}")
    return list(masks)


def any_match(masks: str | list[str], *names: str) -> bool:
    """Whether one of the names fits one of the patterns; without a pattern all do."""
    patterns = [masks] if isinstance(masks, str) else masks
    if not any(patterns):
        return True
    return any(fnmatch.fnmatch(name, mask) for mask in patterns for name in names)


def said_length(pipe: object, length: int) -> int:
    """Return the length a pipe was said to have; TypeError where none was said."""
    if length < 0:
        raise TypeError(f"{type(pipe).__name__} knows no length; say it with length=…")
    return length


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError as error:
        # The working directory was removed, and the system does not say of whose path it speaks.
        error.filename = path
        raise


def _fail(error: OSError) -> NoReturn:
    raise error


@functional_datapipe("open_files")
class FileOpener(OneToOne, IterDataPipe[tuple[str, OpenedBytes | OpenedText]]):
    """Yield ``(path, file)`` for each path, with the file opened to read.

    ``mode`` is ``"r"`` for text or ``"b"`` for bytes. A file is closed by the pipe that
    reads it, or when it is dropped; who wants to may hold it.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["no such file"]).open_files())
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'no such file'
    """

    def __init__(
        self,
        datapipe: Iterable[PathName],
        mode: str = "r",
        encoding: str | None = None,
        length: int = -1,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
        if "b" in mode and encoding is not None:
            raise ValueError(f"mode={mode!r} reads bytes, which have no encoding={encoding!r}")
        self.source = iterable_source([datapipe] if isinstance(datapipe, str) else datapipe)
        self.mode = mode
        self.encoding = None if encoding is None else checked_encoding(encoding)
        self.length = checked_length(length)

    def __len__(self) -> int:
        return said_length(self, self.length)

    def results(self, source: Run[Any]) -> Iterator[tuple[str, OpenedBytes | OpenedText]]:
        for path in source.begin():
            name = path_in(path, self)
            # In no variable here: whoever is given the file is the only one to hold it.
            yield name, opened(name, self.mode, self.encoding)


@functional_datapipe("read_from_stream")
class StreamReader(TolerantExpander[tuple[str, Any]]):
    """Yield ``(path, content)`` for each pair of a path and a stream, and close the stream.

    With ``chunk`` the content comes in pieces of so many bytes, or characters of text.
    An empty stream yields nothing. ``on_error`` and ``max_errors`` are those of ``flatmap``,
    for whole streams.

    >>> from io import StringIO
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("alphabet", StringIO("abcde"))]).read_from_stream(chunk=2))
    [('alphabet', 'ab'), ('alphabet', 'cd'), ('alphabet', 'e')]
    """

    def __init__(
        self,
        datapipe: Iterable[tuple[str, Any]],
        chunk: int | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.chunk = None if chunk is None else checked_count("chunk", chunk, at_least=1)

    def parts(self, item: Any, skip: int = 0) -> Generator[tuple[str, Any], None, None]:
        path, stream = path_and_stream(item, self)
        try:
            _pass_over(stream, skip, self.chunk)
            while content := stream.read(-1 if self.chunk is None else self.chunk):
                yield path, content
                del content
        finally:
            close_stream(stream)


def _pass_over(stream: Any, chunks: int, size: int | None) -> None:
    """Leave out what was read before: all of the stream, or so many chunks of it."""
    if chunks and size is None:
        size = PIECE_BYTES
        chunks = sys.maxsize
    elif isinstance(stream, io.BufferedIOBase) and is_seekable(stream):
        # These give as much as they are asked for, so that every chunk was full.
        stream.seek(chunks * (size or 0), io.SEEK_CUR)
        return
    for _ in range(chunks):
        if not stream.read(size):
            return
