"""Files on disk.

This file is about finding files, opening them, reading them whole or in chunks, checking their
hashes, and saving files. A file appears at once and whole: no reader finds half of one, and two
writers of the same file do not mix.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import os
import secrets
import shutil
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from asyncloader.arguments import (
    checked_count,
    checked_encoding,
    checked_function,
    checked_length,
    checked_mapping,
)
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe, is_pipe
from asyncloader.datapipes.call import answer_of, calling, is_async, itself
from asyncloader.datapipes.files.streams import (
    PIECE_BYTES,
    OpenedBytes,
    OpenedText,
    PathName,
    close_stream,
    is_seekable,
    opened,
    pair_in,
    path_and_stream,
    path_in,
)
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns import Applier, Expander
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.sources import IterableWrapper, iterable_source
from asyncloader.datapipes.tolerance import OnError


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
        super().__init__(as_roots(root))
        self.masks = checked_masks(masks)
        self.recursive = recursive
        self.abspath = abspath
        self.non_deterministic = non_deterministic
        self.length = checked_length(length)

    def __len__(self) -> int:
        return said_length(self, self.length)

    def parts(self, item: Any, skip: int = 0) -> Iterator[str]:
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
                # os.walk continues in the order of this list.
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
    """Return the length that the user gave a pipe; TypeError if there is none."""
    if length < 0:
        raise TypeError(f"{type(pipe).__name__} has no known length; pass it as length=…")
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


#: About so many are sorted at once.
PIECE = 1 << 13
#: Of every run of names so many are looked at to part them all.
_SAMPLES = 64


def in_order(names: list[str]) -> Iterator[str]:
    """Yield names in sorted order. The list is emptied.

    Sorting 300,000 names at once would keep every other thread waiting for half a second, and
    with it the event loop that runs in one.
    """
    for piece in sorted_pieces(names):
        yield from piece


def sorted_pieces(names: list[str]) -> Iterator[list[str]]:
    """Yield names in sorted order, in pieces that take a moment each. The list is emptied."""
    runs = [sorted(names[start : start + PIECE]) for start in range(0, len(names), PIECE)]
    # What is freed with the pieces is not freed at once.
    names.clear()
    for end in _ends(runs):
        yield sorted([name for run in runs for name in _taken(run, bisect_left(run, end))])
    if runs:
        yield sorted([name for run in runs for name in _taken(run, len(run))])


def _ends(runs: list[list[str]]) -> list[str]:
    """Return names that part all of them into as many pieces as there are runs."""
    sample = sorted([name for run in runs for name in run[:: max(1, len(run) // _SAMPLES)]])
    step = max(1, len(sample) // len(runs)) if runs else 1
    return sample[step::step]


def _taken(run: list[str], count: int) -> list[str]:
    """Take so many names off the beginning of a run."""
    taken = run[:count]
    del run[:count]
    return taken


MODES = ("b", "t", "rb", "rt", "r")


@functional_datapipe("open_files")
class FileOpener(OneToOne, IterDataPipe[tuple[str, OpenedBytes | OpenedText]]):
    """Yield ``(path, file)`` for each path, with the file opened to read.

    ``mode`` is ``"r"`` for text or ``"b"`` for bytes. A file is closed by the pipe that
    reads it, or when it is dropped; you may keep it.

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
            raise ValueError(
                f"mode={mode!r} reads bytes; leave encoding={encoding!r} out, or open as text"
            )
        self.source = iterable_source([datapipe] if isinstance(datapipe, str) else datapipe)
        self.mode = mode
        self.encoding = None if encoding is None else checked_encoding(encoding)
        self.length = checked_length(length)

    def __len__(self) -> int:
        return said_length(self, self.length)

    def run(self, source: Edge[Any], state: None) -> Iterator[tuple[str, OpenedBytes | OpenedText]]:
        for path in source:
            name = path_in(path, self)
            # In no variable here, so that the file closes when its reader drops it.
            yield name, opened(name, self.mode, self.encoding)


@functional_datapipe("read_from_stream")
class StreamReader(Expander[tuple[str, Any]]):
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

    def parts(self, item: Any, skip: int = 0) -> Iterator[tuple[str, Any]]:
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


@functional_datapipe("save_to_disk")
class Saver(OneToOne, IterDataPipe[str]):
    """Save the data of pairs ``(path, data)``, and yield the path of each file once it is there.

    ``filepath_fn`` makes the path out of the first value of the pair. Folders are made.
    ``mode`` is ``"w"`` for text, ``"wb"`` for bytes or a stream of them, and ``"a"`` or
    ``"ab"`` to append. A file that is written anew appears whole, in place of what was
    there.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     texts = IterableWrapper([(f"{folder}/a.txt", "hello")])
    ...     [Path(path).read_text() for path in texts.save_to_disk()]
    ['hello']
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.mode = _checked_write_mode(mode)
        self.filepath_fn = filepath_fn
        self._path_of = (
            itself if filepath_fn is None else checked_function("filepath_fn", filepath_fn, takes=1)
        )

    def waits(self) -> bool:
        return is_async(self._path_of)

    def __len__(self) -> int:
        return len(self.source)

    def run(self, source: Edge[Any], state: None) -> Iterator[str]:
        with self.saving() as save_at, calling(self._path_of) as path_of:
            for item in source:
                name, data = pair_in(item, "(path, data)", self)
                del item
                path = _path_for(name, path_of, self)
                save_at(path, data)
                del data
                yield path

    @contextlib.contextmanager
    def saving(self) -> Iterator[Callable[[str, Any], None]]:
        """Return what saves data at a path, for one pass."""
        yield partial(save, mode=self.mode)


_KINDS = {"": "", "t": "", "b": "b"}


def _checked_write_mode(mode: str) -> str:
    """Return ``w``, ``wb``, ``a`` or ``ab``; ValueError for what says none of them."""
    way = "a" if isinstance(mode, str) and "a" in mode else "w"
    kind = mode.replace(way, "", 1) if isinstance(mode, str) else None
    if kind not in _KINDS:
        raise ValueError(f'mode must be "w", "wb", "a" or "ab", got {mode!r}')
    return way + _KINDS[kind]


def _path_for(name: Any, path_of: Callable[[Any], Any], pipe: object) -> str:
    """Return where to save what has a name, as a user's function says."""
    path = answer_of(pipe, path_of, name)
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{pipe!r} needs a path to save to, got {type(path).__name__}")
    return os.fspath(path)


def as_bytes(data: Any, mode: str, path: str) -> Any:
    """Return the bytes to write, text encoded; TypeError for what the mode does not say."""
    if "b" in mode and isinstance(data, bytes | bytearray | memoryview):
        return data
    if "b" not in mode and isinstance(data, str):
        return data.encode()
    wanted = "bytes" if "b" in mode else 'text; pass mode="wb" to save bytes'
    raise TypeError(f"{path}: mode={mode!r} saves {wanted}, got {type(data).__name__}")


def save(path: str, data: Any, mode: str) -> None:
    """Write a file as a mode says; one that is not appended to appears whole."""
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    if "a" in mode:
        with open(path, "ab") as file:
            write(file, data, mode, path)
        return
    with appearing(path) as file:
        write(file, data, mode, path)


def write(file: Any, data: Any, mode: str, path: str) -> None:
    """Write data, or what a stream of bytes has, into an open file."""
    if "b" in mode and hasattr(data, "read"):
        shutil.copyfileobj(data, file)
    else:
        # In one piece, so that two writers that append do not mix.
        file.write(as_bytes(data, mode, path))


@contextlib.contextmanager
def appearing(path: str) -> Iterator[Any]:
    """Give a file to write that takes its path when the block ends, and is gone if it fails."""
    temporary = temporary_beside(path)
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def temporary_beside(path: str) -> str:
    """Return a new path in the same folder, which no other process uses."""
    folder, _, _ = path.rpartition("/")
    name = f".asyncloader-{secrets.token_hex(8)}.tmp"
    return f"{folder}/{name}" if "/" in path else name
