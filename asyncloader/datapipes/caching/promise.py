"""Who makes what all wait for.

This file is about ``Promise``: of all the processes and threads that want the same
file made, one holds the promise to make it, and the others wait.

A promise is a lock on a file beside the one that is to be made. The kernel drops the
lock with the process that holds it, so that whoever waits takes over at once. Nobody
trusts what a promise file says, or that there is one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from time import monotonic

from asyncloader.datapipes.running.home import present_waiter
from asyncloader.runtime import start_thread
from asyncloader.waiting import ThreadWaiter

SUFFIX = ".promise"


class Promise:
    """The right to make a file, held from ``claim`` to ``close``."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def claim(cls, target: str, timeout: float) -> Promise:
        """Wait until nobody else holds the promise of a file, and hold it.

        TimeoutError after ``timeout`` seconds. Whoever gets it looks first whether the
        file was made meanwhile.
        """
        path = target + SUFFIX
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

    def __enter__(self) -> Promise:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Wait:
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
            _flock(self._fd, wait=True)
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
        _flock(fd, wait=False)
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
    wait = _Wait(path, fd, waiter)
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


def _flock(fd: int, *, wait: bool) -> None:
    # Windows has no such module, and can use all but caches on disk.
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _is_at(path: str, fd: int) -> bool:
    """Whether a locked file is the one that others find."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False


def _give_up(path: str, fd: int) -> None:
    """Unlock a file, and take it away if others would find it."""
    import fcntl

    if _is_at(path, fd):
        with contextlib.suppress(OSError):
            os.unlink(path)
    # Closing would not do where a forked child has the file open, too.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _sign(fd: int) -> None:
    """Note who holds the lock, for the message to those who wait in vain."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)


def _maker(path: str) -> str:
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        return f"process {int(file.read(20))}"
    return "another process"
