"""The files that a cache on disk keeps for itself: locks, lists, and files that are being written.

This file is about what they are called, and about ``FileLock``, by which one of all the processes
and threads that want the same entry makes it, and the others wait. They are in the folder of the
files that they are about::

    folder/photo.jpg                                          an entry
    folder/.asyncloader-<hash of "photo.jpg">.lock            while it is made
    folder/.asyncloader-<hash of its path>-<random>.partial   while a file of it is written
    folder/.asyncloader-<hash of "photo.jpg">.list            if that is not its only file

No file of an entry may be called so: then no name in data is one of the cache's own.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
from time import monotonic

from asyncloader.datapipes.running.run_place import present_waiter
from asyncloader.runtime import start_thread
from asyncloader.system import in_forked_child, lock_file, open_file, unlock_file, user_number
from asyncloader.waiting import AwaitsOthers, ThreadWaiter

_OWN = ".asyncloader-"


def check_name(path: str) -> None:
    """Raise ValueError unless a file of an entry may have this path."""
    name = os.path.basename(path)
    if name in ("", ".", ".."):
        raise ValueError(f"a file of a cache must have a name, got {path!r}")
    # Some file systems do not tell capitals from other letters.
    if name.casefold().startswith(_OWN):
        raise ValueError(f"{path}: names with {_OWN} are the cache's own; choose another")


def own_path(path: str, ending: str) -> str:
    """Return the path of the lock or the list of the entry at ``path``."""
    name = os.path.basename(path)
    return f"{path.removesuffix(name)}{_OWN}{_hash_of(name)}.{ending}"


def partial_prefix(entry: str) -> str:
    """Return how the names of files begin while they are written for an entry."""
    return f"{_OWN}{_hash_of(os.path.abspath(entry))}-"


def _hash_of(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def open_own(path: str, flags: int) -> int:
    """Open one of the cache's own files.

    Who may write to a folder may write there what he likes. But where users keep their files from
    one another, as in /tmp, which has the sticky bit, it must be this user's.
    """
    fd = open_file(path, flags)
    if os.fstat(fd).st_uid != user_number() and _is_sticky(os.path.dirname(path)):
        os.close(fd)
        raise PermissionError(
            errno.EPERM, "another user's cache has this file; use a folder of your own", path
        )
    return fd


def _is_sticky(folder: str) -> bool:
    return bool(os.stat(folder or ".").st_mode & stat.S_ISVTX)


class FileLock:
    """The right to make a file, held from ``acquire`` to ``close``.

    It is a lock on one of the cache's own files. The kernel drops the lock with the process that
    holds it, so that a waiting process takes over at once. That there is such a file only says that
    one may have died with it, and what it says, which one.
    """

    def __init__(self, path: str, fd: int, *, after_death: bool) -> None:
        self._path = path
        self._fd = fd
        #: Whether the last one who held it died.
        self.after_death = after_death

    @classmethod
    def acquire(cls, target: str, timeout: float) -> FileLock:
        """Wait until no other process makes the file, and lock it.

        TimeoutError after ``timeout`` seconds. The caller then checks first whether the
        file was made meanwhile.
        """
        path = own_path(target, "lock")
        end = monotonic() + timeout
        while True:
            fd, is_new = _open_lock(path)
            _OPEN.add(fd)
            if not _lock_now(fd) and not _lock_later(path, fd, end - monotonic()):
                raise TimeoutError(
                    # Programs for torchdata look for the first two words.
                    f"OnDiskCache Exception: {target} was not made within {timeout:g} s by"
                    f" {_maker(path)}; give it longer with end_caching(timeout=...) or"
                    " CacheTimeout(seconds)"
                )
            if _is_at(path, fd):
                # Another may have had it between the making of the file and this.
                after_death = not is_new or _is_signed(fd)
                _sign(fd)
                return cls(path, fd, after_death=after_death)
            # Its holder is done with it and has taken it away.
            _give_up(path, fd)

    def close(self) -> None:
        """Let others make the file, unless it is there now."""
        _give_up(self._path, self._fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None and self.after_death:
            # What the one who died has left may be there still, as whoever is next has to see.
            _leave(self._fd)
        else:
            self.close()


def _open_lock(path: str) -> tuple[int, bool]:
    """Open the file of a lock; return its descriptor, and whether it is new."""
    while True:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with contextlib.suppress(FileExistsError):
            return open_own(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), True
        # It may be gone by now.
        with contextlib.suppress(FileNotFoundError):
            return _open_others_lock(path), False


def _open_others_lock(path: str) -> int:
    try:
        return open_own(path, os.O_RDWR)
    except PermissionError:
        # What can be read can be locked, on most file systems.
        return open_own(path, os.O_RDONLY)


class _LockWait(AwaitsOthers):
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
                _leave(self._fd)
        self._waiter.wake()

    def awaited(self) -> str:
        return f"the lock {self._path}, which {_maker(self._path)} holds"

    def until_over(self, seconds: float) -> bool:
        """Let the caller wait; False if it is not over within so many seconds."""
        return self._waiter.until(lambda: self.is_over, seconds)

    def give_up(self) -> None:
        with self._deciding:
            self._is_given_up = True
            if self.is_over:
                _leave(self._fd)


def _lock_now(fd: int) -> bool:
    try:
        lock_file(fd, wait=False)
    except BlockingIOError:
        return False
    except BaseException:
        _close(fd)
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
        _close(fd)
        raise
    is_locked = False
    try:
        is_locked = wait.until_over(seconds) and wait.error is None
    finally:
        if not is_locked:
            wait.give_up()
    if wait.error is not None:
        raise wait.error
    return is_locked


def _is_at(path: str, fd: int) -> bool:
    """Whether a locked file is the one that others find."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    return False


def _give_up(path: str, fd: int) -> None:
    """Unlock a file, and take it away if others would find it."""
    if fd not in _OPEN:
        # This is a fork of the process that has the lock.
        return
    if _is_at(path, fd):
        with contextlib.suppress(OSError):
            os.unlink(path)
    _leave(fd)


def _leave(fd: int) -> None:
    """Unlock a file, and let others find it: its last holder may have died, as they will see."""
    if fd not in _OPEN:
        return
    # Closing would not do where a program that was started has the file open, too.
    unlock_file(fd)
    _close(fd)


def _close(fd: int) -> None:
    _OPEN.discard(fd)
    os.close(fd)


def _sign(fd: int) -> None:
    """Write down which process holds the lock, for the error of those that wait too long."""
    with contextlib.suppress(OSError):
        # A file that has another name as well may be anybody's.
        if os.fstat(fd).st_nlink == 1:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, str(os.getpid()).encode())


def _is_signed(fd: int) -> bool:
    return os.fstat(fd).st_size > 0


def _maker(path: str) -> str:
    with contextlib.suppress(OSError, ValueError), open(open_own(path, os.O_RDONLY), "rb") as file:
        return f"process {int(file.read(20))}"
    return "another process"


#: The files of locks that are held or waited for here.
_OPEN: set[int] = set()


@in_forked_child
def _leave_locks_to_the_parent() -> None:
    # The kernel drops a lock with the last process that has the file open.
    for fd in _OPEN:
        os.close(fd)
    _OPEN.clear()
