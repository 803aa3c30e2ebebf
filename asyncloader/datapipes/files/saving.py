"""Files that are written.

This file is about save_to_disk. A file appears at once and whole, so that nobody reads
half of one, and two who write the same file do not mix.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from asyncloader.datapipes.files.streams import pair_in
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.pipe.answers import answer_of
from asyncloader.datapipes.pipe.arguments import checked_function, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import calling, is_async, itself
from asyncloader.datapipes.pipe.run import Run

_KINDS = {"": "", "t": "", "b": "b"}


@functional_datapipe("save_to_disk")
class Saver(OneToOne, IterDataPipe[str]):
    """Save the data of pairs ``(path, data)``, and yield the path of each file once it is there.

    ``filepath_fn`` makes the path out of what stands for it in the pair. Folders are made.
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
        self.mode = checked_write_mode(mode)
        self.filepath_fn = filepath_fn
        self._path_of = checked_filepath(filepath_fn)

    def waits(self) -> bool:
        return is_async(self._path_of)

    def __len__(self) -> int:
        return len(self.source)

    def results(self, source: Run[Any]) -> Iterator[str]:
        with calling(self._path_of) as path_of:
            for item in source.begin():
                name, data = pair_in(item, "(path, data)", self)
                del item
                path = path_for(name, path_of, self)
                save(path, data, self.mode)
                del data
                yield path


def checked_filepath(filepath_fn: Any) -> Callable[[Any], Any]:
    """Return the function that makes paths: the user's, or without one that which changes none."""
    return itself if filepath_fn is None else checked_function("filepath_fn", filepath_fn, takes=1)


def checked_write_mode(mode: str) -> str:
    """Return ``w``, ``wb``, ``a`` or ``ab``; ValueError for what says none of them."""
    way = "a" if isinstance(mode, str) and "a" in mode else "w"
    kind = mode.replace(way, "", 1) if isinstance(mode, str) else None
    if kind not in _KINDS:
        raise ValueError(f'mode must be "w", "wb", "a" or "ab", got {mode!r}')
    return way + _KINDS[kind]


def path_for(name: Any, path_of: Callable[[Any], Any], pipe: object) -> str:
    """Return where to save what has a name, as a user's function says."""
    path = answer_of(pipe, path_of, name)
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{pipe!r} saves under paths, got {type(path).__name__}")
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
        # In one piece, so that two who append do not mix.
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
    """Return a new path in the same folder, which nobody else will come upon."""
    folder, _, _ = path.rpartition("/")
    name = f".asyncloader-{secrets.token_hex(8)}.tmp"
    return f"{folder}/{name}" if "/" in path else name
