"""The files of a cache on disk.

This file is about ``CacheEntry``: the files that an entry consists of, whether they are there, and
how they are made so that no reader ever finds half of them.

An entry is named by a path. Mostly that is its only file. An entry of other files, or of none, has
a list of them, which is one of the cache's own files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.caching.own_files import (
    check_name,
    open_own,
    own_path,
    partial_prefix,
)

_PIECE = 1 << 20

_READ_WHOLE = (str, bytes, bytearray, memoryview)


@dataclass(frozen=True)
class CacheRules:
    """What makes a file a valid part of an entry, and how files are written."""

    hash_dict: Mapping[str, str] | None
    hash_type: str
    extra_check_fn: Callable[[str], bool] | None
    mode: str
    skip_read: bool
    #: Files from before this time, in nanoseconds, are made again.
    made_after: int

    def are_met_by(self, path: str) -> bool:
        """Whether a file is there, new enough and what it should be."""
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (
            # A folder of that name is there as soon as the first of the files in it is begun.
            stat.S_ISREG(found.st_mode)
            and found.st_mtime_ns >= self.made_after
            and (self.hash_dict is None or self._hash_of(path) == self.hash_dict.get(path))
            and (self.extra_check_fn is None or bool(self.extra_check_fn(path)))
        )

    def check_made(self, file: str, path: str) -> None:
        """Raise ValueError unless a file may stand at ``path``."""
        if self.hash_dict is None:
            return
        if path not in self.hash_dict:
            raise ValueError(f"hash_dict has no hash of {path}; add it, or leave hash_dict out")
        found, wanted = self._hash_of(file), self.hash_dict[path]
        if found != wanted:
            raise ValueError(f"the {self.hash_type} hash of {path} must be {wanted}, got {found}")

    def _hash_of(self, path: str) -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, self.hash_type).hexdigest()


class CacheEntry:
    """The files that are cached under one path."""

    def __init__(self, path: str, rules: CacheRules) -> None:
        check_name(path)
        self.path = path
        self._rules = rules
        self._list = own_path(path, "list")

    def files(self) -> list[str] | None:
        """Return the entry's files, or None if it has to be made."""
        files = self._listed()
        return None if files is None or not all(map(self._rules.are_met_by, files)) else files

    def make(
        self, pairs: Iterable[Any], omission: threading.Event, *, after_death: bool
    ) -> list[str]:
        """Write the data of (path, data) pairs to their paths; return those, in order.

        All files appear together, when the last is complete. After an error there are
        the files that were there before. The caller holds the entry's lock. ``after_death``
        says that its last holder died, whose half-written files are removed.

        Where something was left out, which sets ``omission``, the files appear as well, but are
        not the whole entry.
        """
        partials: dict[str, str] = {}
        try:
            for path, data in pairs:
                self._check_place(path)
                if path in partials:
                    raise ValueError(f"the cache entry {self.path} has {path} twice")
                partials[path], fd = self._new_partial(os.path.dirname(path))
                self._write(fd, data)
                self._rules.check_made(partials[path], path)
            # Where nothing is left, what was there before is all there is.
            is_whole = not omission.is_set()
            if partials or is_whole:
                self._publish(partials, is_whole=is_whole)
        finally:
            for partial in partials.values():
                _remove(partial)
            if after_death:
                self.remove_half_written(partials)
        return list(partials)

    def remove_half_written(self, files: Iterable[str]) -> None:
        """Remove what a maker that died has left beside the entry, whose files these are.

        The caller holds the entry's lock.
        """
        prefix = partial_prefix(self.path)
        for folder in {os.path.dirname(path) for path in (self.path, *files)}:
            for name in os.listdir(folder or "."):
                if name.startswith(prefix):
                    _remove(os.path.join(folder, name))

    def _check_place(self, path: str) -> None:
        check_name(path)
        if not self._may_have(path):
            raise ValueError(
                f"the cache entry {self.path} has {path}, which is outside the folder of"
                " the entry; let the filepath_fn of on_disk_cache() return a path in a folder that"
                " holds all files of the entry, at any depth"
            )

    def _may_have(self, path: str) -> bool:
        place = os.path.join(os.path.dirname(os.path.abspath(self.path)), "")
        return path == self.path or os.path.abspath(path).startswith(place)

    def _listed(self) -> list[str] | None:
        """Return the files that belong to the entry, or None if it has to be made."""
        if not _is_there(self._list):
            # One of several files that 0.1.0 listed must not be taken for all of them.
            return None if self._has_old_list() else [self.path]
        files = self._read_list(self._list)
        return files if files is not None and all(map(self._may_have, files)) else None

    def _read_list(self, path: str) -> list[str] | None:
        """Return the paths in a list, or None for what is no list of paths, or is too old."""
        try:
            with open(open_own(path, os.O_RDONLY), encoding="utf-8") as file:
                is_new = os.fstat(file.fileno()).st_mtime_ns >= self._rules.made_after
                return _paths_in(json.load(file)) if is_new else None
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def _has_old_list(self) -> bool:
        """Whether there is what 0.1.0 wrote as a list, by a name that other entries may have."""
        old = self.path + ".files"
        return _is_there(old) and os.path.isfile(old) and self._read_list(old) is not None

    def _new_partial(self, folder: str) -> tuple[str, int]:
        # Another name each time, so that two processes, one of which lost its lock since somebody
        # deleted the file, never write to the same file.
        name = f"{partial_prefix(self.path)}{os.urandom(8).hex()}.partial"
        path = os.path.join(folder, name)
        os.makedirs(folder or ".", exist_ok=True)
        return path, open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def _write(self, fd: int, data: Any) -> None:
        encoding = None if "b" in self._rules.mode else "utf-8"
        with open(fd, self._rules.mode, encoding=encoding) as file:
            for piece in _pieces(data, self._rules.skip_read):
                file.write(piece)

    def _publish(self, partials: Mapping[str, str], *, is_whole: bool) -> None:
        # A list is there before its files, and gone before a file that needs none: a reader that
        # looks in between finds no entry.
        files = list(partials)
        if not is_whole and self.path in partials:
            # Its own file would be taken for the whole entry.
            self._publish_list(None)
        elif is_whole and (files != [self.path] or self._has_old_list()):
            self._publish_list(files)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._list)
        for path, partial in partials.items():
            self._appear(partial, path)

    def _publish_list(self, files: list[str] | None) -> None:
        partial, fd = self._new_partial(os.path.dirname(self.path))
        try:
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(files, file)
            self._appear(partial, self._list)
        finally:
            _remove(partial)

    def _appear(self, partial: str, path: str) -> None:
        # The clock that stamps files is behind, by up to a tick, or is another machine's.
        now = max(time.time_ns(), self._rules.made_after)
        os.utime(partial, ns=(now, now))
        os.replace(partial, path)


def _is_there(path: str) -> bool:
    # As os.path.exists, without the exception that takes it most of its time.
    return os.access(path, os.F_OK)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _paths_in(listed: Any) -> list[str] | None:
    """Return what a list holds, or None for what is no list of paths."""
    is_list = isinstance(listed, list) and all(isinstance(path, str) for path in listed)
    return listed if is_list else None


def _pieces(data: Any, skip_read: bool) -> Iterator[Any]:
    """Yield what is to be written: the data itself, or what is read from it."""
    if skip_read or isinstance(data, _READ_WHOLE):
        yield data
        return
    try:
        if hasattr(data, "read"):
            while piece := data.read(_PIECE):
                yield piece
        else:
            yield from data
    finally:
        close = getattr(data, "close", None)
        if close is not None:
            close()
