"""What this system can do.

This file is about the calls that not every system has, and it alone asks which system this is. A
function is a promise that the rest of the package relies on. Where Linux has calls of its own for
it, they stand here beside the way of all POSIX systems, or beside nothing where others have
nothing.

``ASYNCLOADER_PORTABLE=1`` in the environment makes Linux go the way of the others, so that what
happens on a Mac can be looked at, tested and reported from Linux.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import faulthandler
import functools
import importlib
import operator
import os
import platform
import secrets
import select
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from asyncloader.errors import WorkerStartupError

T = TypeVar("T")

#: Whether the way of all POSIX systems is gone.
PORTABLE: Final = sys.platform != "linux" or os.environ.get("ASYNCLOADER_PORTABLE", "0") != "0"

#: Whether there are worker processes, and shared memory for them.
HAS_WORKERS: Final = sys.platform != "win32"

#: What the system is called, for reports.
NAME: Final = platform.system() + (
    ", the portable way" if sys.platform == "linux" and PORTABLE else ""
)

#: Where Linux says what it and each of its processes has.
PROC: Final = Path("/proc")

#: Where POSIX shared memory is, if it is in a folder.
SHARED_MEMORY: Final = "/dev/shm"

#: Whether a process that has imported libraries may be forked. On macOS many of them use
#: frameworks whose threads and state do not survive that.
MAY_FORK_AFTER_IMPORTS: Final = not PORTABLE

#: How to open what only occupies a number. On Linux it cannot be read or written; elsewhere it is
#: at its end, and takes what is written to it.
ONLY_OCCUPIED: Final = os.O_RDWR if PORTABLE else getattr(os, "O_PATH", os.O_RDWR)

#: Whether the system itself says when a process is dead. Otherwise whoever reaps it has to.
TELLS_DEATHS: Final = not PORTABLE


def require_workers() -> None:
    """Raise WorkerStartupError where there are no worker processes."""
    if not HAS_WORKERS:
        raise WorkerStartupError(
            f"worker processes need Linux, macOS or another POSIX system, and this is {NAME}: use"
            ' MultiThreadingReadingService, or workers="threads" in from_dataset, whose workers are'
            " threads, or run the program in WSL"
        )


# Memory ---------------------------------------------------------------------------------


def unnamed_memory() -> int:
    """Return an empty file for memory that processes share; it is gone with its last user.

    It cannot be written like a file everywhere.
    """
    return _made_by(_memory_file, _unlinked_shm, _unlinked_file)


def unnamed_file() -> int:
    """Return an empty file that is gone with its last user; in memory where that is possible."""
    return _made_by(_memory_file, _unlinked_file)


def _made_by(make: Callable[[], int], *others: Callable[[], int]) -> int:
    """Make a file in the first way that the system has."""
    try:
        return make()
    except (OSError, AttributeError, ImportError) as error:
        # If no descriptor was left, the other ways need one too.
        if not others or getattr(error, "errno", None) in _NO_DESCRIPTOR:
            raise
    return _made_by(*others)


_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def _memory_file(label: str = "asyncloader") -> int:
    """Return a file in memory, or raise OSError: there is none, or a sandbox refuses it."""
    if sys.platform == "linux" and not PORTABLE:
        return os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _unlinked_shm() -> int:
    # The module that multiprocessing uses; not every platform has it.
    posixshmem = importlib.import_module("_posixshmem")
    name = f"/al-{secrets.token_hex(8)}"
    fd = posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    posixshmem.shm_unlink(name)
    return int(fd)


def _unlinked_file() -> int:
    with tempfile.TemporaryFile(prefix="asyncloader-") as file:
        return os.dup(file.fileno())


def reserve(fd: int, size: int) -> None:
    """Have the memory of a new file set aside, or raise OSError.

    Without that a later write to a mapping of a full file system would be a SIGBUS.
    """
    if sys.platform == "linux" and not PORTABLE:
        os.posix_fallocate(fd, 0, size)
    elif sys.platform != "win32" and stat.S_ISREG(os.fstat(fd).st_mode):
        # Where POSIX shared memory is no file it cannot be written, and there is swap for it.
        zeros, begin = memoryview(bytes(min(size, 1 << 20))), 0
        while begin < size:
            begin += os.pwrite(fd, zeros[: size - begin], begin)


def populate(address: int, size: int) -> None:
    """Fault mapped pages in at once, huge ones where the system has them; best effort."""
    if sys.platform == "linux" and not PORTABLE:
        place, length = ctypes.c_void_p(address), ctypes.c_size_t(size)
        if size >= _HUGE_PAGE:
            _libc().madvise(place, length, _MADV_HUGEPAGE)
        # ctypes releases the GIL while pages are cleared.
        _libc().madvise(place, length, _MADV_POPULATE_WRITE)


_HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def seal(fd: int, *, against_writing: bool = False) -> None:
    """Let nobody change the size of an unnamed file any more, or write to it; where possible."""
    if can_seal() and sys.platform == "linux":
        import fcntl

        fcntl.fcntl(fd, _F_ADD_SEALS, _seals(against_writing))


def is_sealed(fd: int, *, against_writing: bool = False) -> bool:
    """Whether nobody can change the size of a file, or write to it."""
    if sys.platform == "linux":
        import fcntl

        seals = _seals(against_writing)
        with contextlib.suppress(OSError):
            return fcntl.fcntl(fd, _F_GET_SEALS) & seals == seals
    return False


@functools.cache
def can_seal() -> bool:
    """Whether unnamed files can be sealed."""
    try:
        os.close(_memory_file())
    except (OSError, AttributeError) as error:
        # Refused for lack of a descriptor: there are such files.
        return getattr(error, "errno", None) in _NO_DESCRIPTOR
    return True


def _seals(against_writing: bool) -> int:
    return _SEALS | (_SEAL_WRITE if against_writing else 0)


_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_SEAL_WRITE = 0x0008
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034


def keep_freed_memory() -> None:
    """Let freed memory be used again, unless the user has settings of their own."""
    # The portable way does without calls of the kernel; the allocator is the same.
    if sys.platform == "linux" and not _has_malloc_settings():
        mallopt = getattr(_libc(), "mallopt", None)
        if mallopt is not None:
            # No block has pages of its own, which would go with it, however large it is.
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE)


def _has_malloc_settings() -> bool:
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )


# An item that was just sent leaves warm memory behind, which is to become the next item. By
# default much of it goes back to the system, and comes again as pages that have to be cleared one
# by one. (tests/benchmarks/w3.py measures it.)
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4

#: How much that is free may stay with the process.
_KEPT_FREE = 128 << 20


@dataclass(frozen=True)
class FileMapping:
    """A part of this process's memory that is mapped from a file, from ``offset`` on."""

    begin: int
    end: int
    offset: int
    is_writable: bool
    is_shared: bool
    path: str


def file_mappings() -> list[FileMapping]:
    """Return the memory that is mapped from files which still have their names."""
    try:
        lines = (PROC / "self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [found for found in map(_file_mapping, lines) if found is not None]


def _file_mapping(line: str) -> FileMapping | None:
    # Of a deleted file the kernel says so behind its name; an odd one is written in octal.
    addresses, flags, offset, _, inode, *path = line.split(maxsplit=5)
    if inode == "0" or not path or path[0].endswith(" (deleted)") or "\\" in path[0]:
        return None
    begin, end = (int(each, 16) for each in addresses.split("-"))
    return FileMapping(begin, end, int(offset, 16), flags[1] == "w", flags[3] == "s", path[0])


def may_be_changed(address: int, nbytes: int) -> bool:
    """Whether memory that is mapped from a file, for this process alone, may differ from it."""
    if sys.platform == "win32":
        return True
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = address // page, (address + nbytes - 1) // page
    try:
        with open(PROC / "self/pagemap", "rb", buffering=0) as file:
            file.seek(8 * first)
            pages = file.read(8 * (last - first + 1))
    except OSError:
        return True
    is_whole = len(pages) == 8 * (last - first + 1)
    return not is_whole or not _OF_THE_FILE.issuperset(pages[7::8])


#: The highest byte of what the kernel says of a page: it is not there, or it is one of a file.
_OF_THE_FILE = {high for high in range(256) if not high & 0x40 and (not high & 0x80 or high & 0x20)}


# Life and death -------------------------------------------------------------------------


def in_forked_child(call: Callable[[], None]) -> Callable[[], None]:
    """Have a function called in every process that is forked from this one."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=call)
    return call


def unless_exiting(release: Callable[[T], None]) -> Callable[[T], None]:
    """Make a ``__del__`` that does nothing while the interpreter takes its modules apart.

    What it would call is gone then, one by one. What was open has been closed at exit, or goes with
    the process.
    """
    # In the function's own cells, which are there to the last.
    is_exiting = sys.is_finalizing

    def release_unless_exiting(owner: T) -> None:
        if not is_exiting():
            release(owner)

    return release_unless_exiting


def is_readable(fd: int, timeout: float = 0.0) -> bool:
    """Whether a descriptor is readable, or at its end, within ``timeout`` seconds."""
    return is_any_readable([fd], timeout)


def is_readable_or_hung_up(fd: int, sock: int) -> bool:
    """Whether a descriptor is readable, or nobody has the other end of a socket any more."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if sock >= 0:
        poll.register(sock, 0)
    return bool([at for at, found in poll.poll(0) if at == fd or found & select.POLLHUP])


def is_any_readable(fds: Iterable[int], timeout: float) -> bool:
    """Whether one of the descriptors is readable within ``timeout`` seconds."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def ready_of(
    reading: Sequence[int], writing: Iterable[int], timeout: float | None
) -> Sequence[int]:
    """Wait until some of these descriptors can be read, or some can be written; return which."""
    if sys.platform == "win32":
        # Only of sockets, of which it takes hundreds.
        readable, writable, _ = select.select(reading, list(writing), [], timeout)
        return list({*readable, *writable})
    poll = select.poll()
    for fd in reading:
        poll.register(fd, select.POLLIN)
    for fd in writing:
        poll.register(fd, select.POLLIN | select.POLLOUT)
    return [fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)]


def lifeline() -> int:
    """Return a descriptor that is readable when this process is gone; the caller closes it.

    It is the end of a pipe that nobody writes to. The other end is closed when this process ends
    or executes another program, and in each forked child of it.
    """
    global _life, _life_identity
    with _life_lock:
        if _life is None or identity(_life[0]) != _life_identity:
            _life = os.pipe()
            _life_identity = identity(_life[0])
        return os.dup(_life[0])


def identity(fd: int) -> tuple[int, int] | None:
    """Return what tells the file of a descriptor from others; None if it is closed.

    A program that becomes a daemon closes descriptors that are not its own, and opens others.
    """
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_life: tuple[int, int] | None = None
_life_identity: tuple[int, int] | None = None
_life_lock = threading.Lock()


@in_forked_child
def _have_another_life() -> None:
    global _life, _life_lock
    _life_lock = threading.Lock()
    if _life is not None and identity(_life[0]) == _life_identity:
        for fd in _life:
            os.close(fd)
    _life = None


def watch_death(pid: int, told: int) -> int:
    """Return a descriptor that is readable when a process is dead; the caller closes it.

    ``told`` is one that whoever reaps the process makes readable then, soon if it was reaped
    already. Linux knows by itself, even while that one is stopped.
    """
    # Some sandboxes refuse a pidfd, too, and there is none of a process that was reaped.
    with contextlib.suppress(OSError):
        return _open_pidfd(pid)
    return os.dup(told)


def send_signal(pid: int, death_fd: int, number: int) -> None:
    """Send a signal to a process that ``watch_death`` watches; a dead one is left in peace."""
    if is_readable(death_fd):
        return
    if sys.platform == "linux" and not PORTABLE:
        with contextlib.suppress(OSError):
            return _send_by_pidfd(death_fd, number)
    with contextlib.suppress(OSError):
        # Its number may be given to another process as soon as it is reaped. But numbers are
        # given in turn, and whoever reaps it makes the descriptor readable at once.
        os.kill(pid, number)


def reap_orphan(pid: int, death_fd: int) -> None:
    """Reap a dead process if it came to this one, as in a container of which this is the first."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux" and not PORTABLE:
            os.waitid(os.P_PIDFD, death_fd, os.WEXITED | os.WNOHANG)
        elif sys.platform != "win32":
            os.waitpid(pid, os.WNOHANG)


# The same on every architecture that Linux numbers by the common table.
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434


def _open_pidfd(pid: int) -> int:
    if sys.platform == "linux" and not PORTABLE:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        return _syscall(_SYS_PIDFD_OPEN, pid, 0)
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _send_by_pidfd(pidfd: int, number: int) -> None:
    if sys.platform == "linux":
        if hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0)


def _syscall(number: int, *arguments: int) -> int:
    # Interpreters built against old kernel headers lack the functions of os and signal.
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def die_with_parent() -> None:
    """Be SIGKILLed when the thread that created this process ends, where the system does that.

    It reaches a process that is stopped or keeps the GIL. Elsewhere the lifeline has to do.
    """
    if sys.platform == "linux" and not PORTABLE:
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_NAME_BYTES = 15


def exitcode_of_unreaped(pid: int) -> int | None:
    """Return the exit code of a dead process, whose parent may be another; None if unknown.

    The pid is its own as long as nobody has reaped it.
    """
    if sys.platform == "linux" and not PORTABLE:
        with contextlib.suppress(OSError, ValueError):
            # Behind the name, which may hold anything: the state, and last of all the status.
            found = Path(f"/proc/{pid}/stat").read_bytes()
            state, *_, status = found.rpartition(b")")[2].split()
            if state == b"Z":
                return os.waitstatus_to_exitcode(int(status))
    return None


# The kernel counts such kills in the control group of this process and of its children. It cannot
# say who was killed, so that is a hint and no more.
_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def oom_kills(groups: Path = _GROUPS, root: Path = _ROOT) -> int:
    """Return how many processes of this control group were killed for lack of memory.

    0 where nobody counts.
    """
    return max((_count_in(file) for file in _counters(groups, root)), default=0)


def _counters(groups: Path, root: Path) -> Iterator[Path]:
    try:
        lines = os.fsdecode(groups.read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In a container the path may be that of the world outside, and the root the group's own.
        for folder in (path.lstrip("/"), ""):
            if not controllers:
                yield root / folder / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "memory" / folder / "memory.oom_control"


def _count_in(file: Path) -> int:
    try:
        words = file.read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0


# Last words -----------------------------------------------------------------------------
#
# Upon a signal a process writes where its threads stand to a file in memory, and ends. The
# interpreter's fault handler does that without the GIL, so a call into C that keeps it does not
# stand in the way; only a process that is stopped, or stuck in the kernel, cannot answer.

_WORDS = "asyncloader hang dump"


def have_last_words() -> None:
    """Let this process leave last words when it is asked; to be called in its main thread."""
    if sys.platform == "linux" and not PORTABLE:
        number = _last_words_signal()
        # A forked process may have inherited somebody's use of the signal.
        faulthandler.unregister(number)
        signal.signal(number, signal.SIG_DFL)
        # Where there is no such file there is no answer.
        with contextlib.suppress(OSError):
            fd = _memory_file(_WORDS)
            # The signal is passed on to its default, which ends the process: so the one who asked
            # knows when all has been written.
            faulthandler.register(number, file=fd, all_threads=True, chain=True)


def open_last_words(pid: int) -> int | None:
    """Return the file of a living process for its last words; None where it has none."""
    return _file_of(pid, _WORDS, os.O_RDONLY)


def _file_of(pid: int, name: str, access: int) -> int | None:
    """Open a file in memory of a living process, by its name; None where there is none."""
    if sys.platform == "linux" and not PORTABLE:
        folder = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):
            for fd in os.listdir(folder):
                # One may be closed meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if name in os.readlink(f"{folder}/{fd}"):
                        return os.open(f"{folder}/{fd}", access | os.O_CLOEXEC)
    return None


def ask_for_last_words(pid: int, death_fd: int) -> None:
    """Ask a process that has a file for its last words to write them and to end."""
    if sys.platform == "linux":
        send_signal(pid, death_fd, _last_words_signal())


def _last_words_signal() -> int:
    return _real_time_signal(9)


def _real_time_signal(number: int) -> int:
    """One of the real-time signals, which nobody uses by accident."""
    if sys.platform == "linux":
        return signal.SIGRTMIN + number
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


# Questions ------------------------------------------------------------------------------
#
# Upon another signal a process says what it is doing, and goes on. A thread of it answers, which
# the arrival of the signal wakes whatever the main thread does; only a process that keeps the GIL
# or is stopped does not. Then the fault handler may still show where its threads stand.

_ANSWERS = "asyncloader answers"
_STACKS = "asyncloader stacks"


def be_asked() -> tuple[int, int] | None:
    """Let this process be asked; to be called in its main thread.

    Returns a descriptor that is readable when it is asked, and that of a file for the answer; None
    where there is no such way.
    """
    if sys.platform == "linux" and not PORTABLE:
        with contextlib.suppress(OSError):
            answers, stacks = _memory_file(_ANSWERS), _memory_file(_STACKS)
            asked, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            # The descriptor tells of it, so a function does that has no effect, and no frame.
            signal.signal(_question_signal(), operator.is_)
            # What the main thread waits for in the kernel goes on.
            signal.siginterrupt(_question_signal(), False)
            signal.set_wakeup_fd(told, warn_on_full_buffer=False)
            faulthandler.register(_stacks_signal(), file=stacks, all_threads=True, chain=False)
            return asked, answers
    return None


def heard(asked: int) -> None:
    """Forget the signals that have made a descriptor readable."""
    with contextlib.suppress(BlockingIOError):
        while os.read(asked, 512):
            pass


def answer_with(answers: int, answer: bytes) -> None:
    """Put an answer into the file for it; it has no line breaks."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.pwrite(answers, answer + b"\n", 0)


def can_be_asked(pid: int) -> bool:
    """Whether a living process has said where it answers."""
    file = _file_of(pid, _ANSWERS, os.O_RDONLY)
    if file is not None:
        os.close(file)
    return file is not None


def answer_of(pid: int, death_fd: int, seconds: float) -> bytes:
    """Ask a process what it is doing; return its answer, or nothing if none comes in time."""
    return _asked(pid, death_fd, _ANSWERS, _question_signal, seconds)


def stacks_of(pid: int, death_fd: int, seconds: float) -> bytes:
    """Have a process show where its threads stand; return that, or nothing."""
    return _asked(pid, death_fd, _STACKS, _stacks_signal, seconds)


def _asked(pid: int, death_fd: int, name: str, number: Callable[[], int], seconds: float) -> bytes:
    """Send a signal to a process, and return what it writes into its file of that name."""
    file = _file_of(pid, name, os.O_RDWR)
    if file is None:
        return b""
    try:
        os.ftruncate(file, 0)
        send_signal(pid, death_fd, number())
        end, before = time.monotonic() + seconds, 0
        # Nothing tells of a write to such a file. Its death is the only event to wait for.
        while time.monotonic() < end and not is_readable(death_fd, _TICK_SECONDS):
            size = os.fstat(file).st_size
            if size and size == before:
                return _beginning_of(file, size).lstrip(b"\0")
            before = size
        return b""
    finally:
        os.close(file)


def _beginning_of(file: int, size: int) -> bytes:
    """Return the first bytes of a file, wherever it was read or written."""
    if sys.platform != "win32":
        return os.pread(file, size, 0)
    return b""


_TICK_SECONDS = 0.01


def _question_signal() -> int:
    return _real_time_signal(8)


def _stacks_signal() -> int:
    return _real_time_signal(7)


def state_of(pid: int) -> str:
    """Return the letter of the state of a process, as ps shows it; "" where that is unknown."""
    if sys.platform == "linux" and not PORTABLE:
        with contextlib.suppress(OSError, IndexError):
            found = Path(f"/proc/{pid}/stat").read_bytes()
            return found.rpartition(b")")[2].split()[0].decode()
    return ""


# The address of a page ------------------------------------------------------------------
#
# Whoever may look into this process, which is its own user, finds it by the number of the process.

_PAGE = "asyncloader page"


def publish_page(url: str) -> Callable[[], None]:
    """Let others find a page by the number of this process; return what takes that back."""
    with contextlib.suppress(OSError):
        file = _memory_file(_PAGE)
        os.write(file, url.encode())
        return partial(os.close, file)
    return _publish_nothing


def _publish_nothing() -> None:
    """Take nothing back: there are no such files here."""


def finds_pages() -> bool:
    """Whether the page of another process can be found here at all."""
    return not PORTABLE


def page_of(pid: int) -> str:
    """Return the address of the page of a process; "" if it has none, or nobody may know it."""
    file = _file_of(pid, _PAGE, os.O_RDONLY)
    if file is None:
        return ""
    try:
        return _beginning_of(file, _MOST_ADDRESS_BYTES).decode()
    finally:
        os.close(file)


_MOST_ADDRESS_BYTES = 1 << 10


def exists(pid: int) -> bool:
    """Whether there is a process of this number, as far as that can be known."""
    if sys.platform == "win32":
        # There the same call would end it.
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


# What a process is and has --------------------------------------------------------------


def show_name(name: str) -> None:
    """Let top, ps and py-spy show the name, where they can; the kernel keeps 15 bytes of it.

    ``asyncloader worker 12`` is shown as ``asyncloader w12``.
    """
    if sys.platform == "linux" and not PORTABLE:
        shown = name.replace(" worker ", " w").encode()[:_NAME_BYTES]
        _libc().prctl(_PR_SET_NAME, shown, 0, 0, 0)


def umask() -> int | None:
    """Return the permissions that new files of this process lack; None if that is unknown.

    os.umask would change them for a moment, and for all threads.
    """
    if sys.platform == "linux" and not PORTABLE:
        return _umask_of_proc()
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory("-asyncloader") as folder:
        fd = os.open(f"{folder}/new", os.O_CREAT | os.O_WRONLY, 0o777)
        try:
            return 0o777 & ~os.fstat(fd).st_mode
        finally:
            os.close(fd)
    return None


def _umask_of_proc() -> int | None:
    # Bytes, since the kernel cuts the name of the process, which is in there too, in the middle
    # of a character.
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return None


def removed_folder() -> str | None:
    """Return what the working directory, which was removed, was called; None if unknown."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
    return None


def open_fds() -> Iterator[int]:
    """Yield the descriptors that this process has open."""
    for fd in _fds_to_look_at():
        # The descriptor that listed the folder is among the names and closed by now.
        with contextlib.suppress(OSError):
            os.fstat(fd)
            yield fd


def _fds_to_look_at() -> Iterable[int]:
    if sys.platform == "win32":
        return ()
    try:
        return list(map(int, os.listdir("/dev/fd")))
    except OSError:
        # Where Linux has no /proc. The limit may be a billion, and the lowest are taken first.
        return range(min(os.sysconf("SC_OPEN_MAX"), _MOST_FDS))


_MOST_FDS = 1 << 16


def allowed_cpus() -> frozenset[int]:
    """Return the CPUs that this process may use; none where the system has no such sets."""
    if sys.platform == "linux" and not PORTABLE:
        # Of the process and its main thread, where threads have sets of their own.
        return frozenset(os.sched_getaffinity(os.getpid()))
    return frozenset()


def allow_cpus(cpus: Collection[int]) -> None:
    """Let this thread use no other CPUs than these; OSError if it may not."""
    if cpus and sys.platform == "linux" and not PORTABLE:
        os.sched_setaffinity(0, cpus)


Limits = dict[int, tuple[int, int]]


def limits() -> Limits:
    """Return the limits of this process, by their numbers."""
    if sys.platform == "win32":
        return {}
    import resource

    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {number: resource.getrlimit(number) for number in numbers}


def set_limits(wanted: Limits) -> None:
    """Set limits of this process, as far as it may."""
    if sys.platform != "win32":
        import resource

        for number, limit in wanted.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, limit)


def set_process_limit(wanted: Limits) -> None:
    """Set the limit of processes and threads, of those in ``wanted``."""
    if sys.platform != "win32":
        import resource

        set_limits({resource.RLIMIT_NPROC: wanted[resource.RLIMIT_NPROC]})


def descriptor_limits() -> tuple[int, int] | None:
    """Return how many descriptors this process may have, and how many if it asks for more."""
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)


def process_limit() -> int | None:
    """Return how many processes and threads this user may have; None if that is not limited."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return None if limit == resource.RLIM_INFINITY else limit


# Files, sockets and libraries -----------------------------------------------------------

#: How descriptors are received: no program that is executed meanwhile gets them. Elsewhere than on
#: Linux that is true a moment later. A plain number, as it is used for every read.
RECEIVING: Final = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0)) if not PORTABLE else 0

#: How data is sent or received that need not be waited for.
AT_ONCE: Final = RECEIVING | int(getattr(socket, "MSG_DONTWAIT", 0))


def room_for_fds(count: int) -> int:
    """Return how many bytes so many descriptors take beside the data they come with."""
    if sys.platform == "win32":
        return 0
    return socket.CMSG_SPACE(count * array.array("i").itemsize)


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a channel, which holds some hundred KiB that are on their way."""
    pair = socket.socketpair()
    if PORTABLE:
        # macOS begins with 8 KiB; who allows less than this keeps what it has.
        for end in pair:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BYTES)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHANNEL_BYTES)
    return pair


#: What Linux gives a pair by default.
_CHANNEL_BYTES = 208 << 10


def lock_file(fd: int, *, wait: bool) -> None:
    """Lock an open file; BlockingIOError if it is locked and ``wait`` is False."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "caches on disk need POSIX file locks; on Windows use WSL")
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def unlock_file(fd: int) -> None:
    """Unlock a file that was locked here."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)


def open_file(path: str, flags: int) -> int:
    """Open a file: never what a link of that name leads to, nor anything one would wait for."""
    plain = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags | plain, 0o666)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    except OSError as error:
        if error.errno == errno.ENOENT or not os.path.islink(path):
            raise
    raise PermissionError(errno.EPERM, "this is no plain file; remove it", path)


def user_number() -> int:
    """Return the number of the user whose rights this process has."""
    if sys.platform == "win32":
        return 0
    return os.geteuid()


def open_library(path: Path) -> None:
    """Load a shared library, if there is such a file, without the GIL; ``path`` has no suffix."""
    if sys.platform != "win32":
        # ctypes calls a C function without the GIL.
        dlopen: Any = ctypes.CDLL(None).dlopen
        dlopen.restype, dlopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
        file = path.with_suffix(".dylib" if sys.platform == "darwin" else ".so")
        if file.exists():
            dlopen(bytes(file), os.RTLD_NOW | os.RTLD_LOCAL)


def may_use_uvloop() -> bool:
    """Whether uvloop can make a loop. On Linux it needs a call that some sandboxes refuse."""
    if sys.platform == "linux" and hasattr(os, "eventfd"):
        try:
            os.close(os.eventfd(0))
        except OSError as error:
            return error.errno != errno.ENOSYS and error.errno != errno.EPERM
    return True
