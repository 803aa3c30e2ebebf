"""The files of a cache on disk.

This file is about ``CacheEntry``: the files that an entry consists of, whether they are there, and
how they are made so that no reader ever finds half of them; and about ``FileLock``, by which one of
all the processes and threads that want the same entry makes it, and the others wait.

An entry is named by a path. Mostly that is its only file. An entry of other files, or of none, has
a list of them at that path with ``.files`` after it.
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
from time import monotonic
from typing import Any

from asyncloader.datapipes.run_place import present_waiter
from asyncloader.runtime import start_thread
from asyncloader.system import lock_file, unlock_file
from asyncloader.waiting import ThreadWaiter

LIST_SUFFIX = ".files"
PARTIAL_SUFFIX = ".partial"
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
        self.path = path
        self._rules = rules
        self._list = path + LIST_SUFFIX

    def files(self) -> list[str] | None:
        """Return the entry's files, or None if it has to be made."""
        listed = self._listed()
        files = [self.path] if listed is None else listed
        return files if all(map(self._rules.are_met_by, files)) else None

    def make(self, pairs: Iterable[Any], omission: threading.Event) -> list[str]:
        """Write the data of (path, data) pairs to their paths; return those, in order.

        All files appear together, when the last is complete. After an error there are
        the files that were there before. The caller holds the entry's lock.

        Where something was left out, which sets ``omission``, the files appear as well, but are
        not the whole entry.
        """
        partials: dict[str, str] = {}
        try:
            for path, data in pairs:
                if path in partials:
                    raise ValueError(f"the cache entry {self.path} has {path} twice")
                partials[path] = self._partial(path)
                self._write(partials[path], data)
                self._rules.check_made(partials[path], path)
            # Where nothing is left, what was there before is all there is.
            is_whole = not omission.is_set()
            if partials or is_whole:
                self._publish(partials, is_whole=is_whole)
        finally:
            for partial in (*partials.values(), self._partial(self._list)):
                with contextlib.suppress(OSError):
                    os.unlink(partial)
        return list(partials)

    def _listed(self) -> list[str] | None:
        try:
            if os.stat(self._list).st_mtime_ns < self._rules.made_after:
                return None
            with open(self._list, encoding="utf-8") as file:
                return _paths_in(json.load(file))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def _write(self, partial: str, data: Any) -> None:
        os.makedirs(os.path.dirname(partial) or ".", exist_ok=True)
        encoding = None if "b" in self._rules.mode else "utf-8"
        with open(partial, self._rules.mode, encoding=encoding) as file:
            for piece in _pieces(data, self._rules.skip_read):
                file.write(piece)

    def _publish(self, partials: Mapping[str, str], *, is_whole: bool) -> None:
        # A list is there before its files, and gone before a file that needs none: a reader that
        # looks in between finds no entry.
        if list(partials) == [self.path] or not is_whole:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._list)
        else:
            self._publish_list(list(partials))
        for path, partial in partials.items():
            self._appear(partial, path)

    def _publish_list(self, files: list[str]) -> None:
        partial = self._partial(self._list)
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(files, file)
        self._appear(partial, self._list)

    def _appear(self, partial: str, path: str) -> None:
        # The clock that stamps files is behind, by up to a tick, or is another machine's.
        now = max(time.time_ns(), self._rules.made_after)
        os.utime(partial, ns=(now, now))
        os.replace(partial, path)

    def _partial(self, path: str) -> str:
        # Always the same, so that the next process writes over what a crash has left;
        # and another for every entry, as only the entry's lock keeps others away.
        entry = hashlib.sha256(os.fsencode(os.path.abspath(self.path))).hexdigest()[:8]
        return f"{path}.{entry}{PARTIAL_SUFFIX}"


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


#: After the path of what is made; torchdata's caches have the same.
LOCK_SUFFIX = ".promise"


class FileLock:
    """The right to make a file, held from ``acquire`` to ``close``.

    It is a lock on a file beside the one that is to be made. The kernel drops the lock with the
    process that holds it, so that a waiting process takes over at once. What such a file says,
    and that there is one, means nothing.
    """

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def acquire(cls, target: str, timeout: float) -> FileLock:
        """Wait until no other process makes the file, and lock it.

        TimeoutError after ``timeout`` seconds. The caller then checks first whether the
        file was made meanwhile.
        """
        path = target + LOCK_SUFFIX
        end = monotonic() + timeout
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if not _lock_now(fd) and not _lock_later(path, fd, end - monotonic()):
                raise TimeoutError(
                    # Programs for torchdata look for the first two words.
                    f"OnDiskCache Exception: {target} was not made within {timeout:g} s by"
                    f" {_maker(path)}; give it longer with end_caching(timeout=...) or"
                    " CacheTimeout(seconds)"
                )
            if _is_at(path, fd):
                _sign(fd)
                return cls(path, fd)
            # Its holder is done with it and has taken it away.
            _give_up(path, fd)

    def close(self) -> None:
        """Let others make the file, unless it is there now."""
        _give_up(self._path, self._fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LockWait:
    """A thread's wait for a lock, which its caller may give up before it is over."""

    def __init__(self, path: str, fd: int, waiter: ThreadWaiter) -> None:
        self._path = path
        self._fd = fd
        self._waiter = waiter
        self._deciding = threading.Lock()
        self._is_given_up = False
        self.is_over = False
        self.error: OSError | None = None

    def run(self) -> None:
        try:
            lock_file(self._fd, wait=True)
        except OSError as error:
            self.error = error
        with self._deciding:
            self.is_over = True
            if self._is_given_up:
                _give_up(self._path, self._fd)
        self._waiter.wake()

    def give_up(self) -> None:
        with self._deciding:
            self._is_given_up = True
            if self.is_over:
                _give_up(self._path, self._fd)


def _lock_now(fd: int) -> bool:
    try:
        lock_file(fd, wait=False)
    except BlockingIOError:
        return False
    except BaseException:
        os.close(fd)
        raise
    return True


def _lock_later(path: str, fd: int, seconds: float) -> bool:
    """Wait for the lock; if it does not come in time, or the wait is ended, give it up."""
    # Nothing ends a wait for a lock before its time. So a thread waits, which may stay
    # behind until the holder is done, and this one can be stopped.
    waiter = present_waiter()
    wait = _LockWait(path, fd, waiter)
    thread = threading.Thread(target=wait.run, name=f"asyncloader waits for {path}", daemon=True)
    try:
        start_thread(thread)
    except BaseException:
        os.close(fd)
        raise
    is_locked = False
    try:
        is_locked = waiter.until(lambda: wait.is_over, seconds) and wait.error is None
    finally:
        if not is_locked:
            wait.give_up()
    if wait.error is not None:
        raise wait.error
    return is_locked


def _is_at(path: str, fd: int) -> bool:
    """Whether a locked file is the one that others find."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False


def _give_up(path: str, fd: int) -> None:
    """Unlock a file, and take it away if others would find it."""
    if _is_at(path, fd):
        with contextlib.suppress(OSError):
            os.unlink(path)
    # Closing would not do where a forked child has the file open, too.
    unlock_file(fd)
    os.close(fd)


def _sign(fd: int) -> None:
    """Write down which process holds the lock, for the error of those that wait too long."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, str(os.getpid()).encode())


def _maker(path: str) -> str:
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        return f"process {int(file.read(20))}"
    return "another process"
