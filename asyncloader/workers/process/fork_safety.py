"""Whether the program can be forked without harm.

This file is about ``why_not_fork``, which says why the workers of a loader are not forked from the
program, and ``Program``, what it has to know for that. torch's ``DataLoader`` forks in any case;
here a fork that nobody asked for has to do no harm at all, since there is another way.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import stat
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from asyncloader import system
from asyncloader.machine import anonymous_memory
from asyncloader.transport.code import modules_being_imported
from asyncloader.workers.process.multiprocessing_start import frames_of_others, is_known_harmless
from asyncloader.workers.process.native_threads import (
    NativeThread,
    mapped_files,
    native_threads,
)

#: Libraries that say themselves that they do not work in a forked process.
UNSAFE_LIBRARIES = (
    "jax",
    "jaxlib",
    "tensorflow",
    "torch_xla",
    "grpc",
    "ray",
    "mpi4py",
    "horovod",
    "lmdb",
    "polars",
    "gevent",
    "eventlet",
)

#: Libraries whose threads compute what another thread asks for. They are made again where it is
#: asked in a forked process; those of OpenMP are made for each thread of Python that computes, and
#: the one that forks has none. While all of Python stands still they only look for work.
_COMPUTING = ("libopenblas", "libscipy_openblas", "libgomp", "libiomp5", "libomp", "libmkl")

#: One of Python's own that has not begun yet, or is at its end, or the watchdog of faulthandler.
#: Those that run Python code are looked at as such.
_PYTHON = ("python", "libpython")

#: Libraries whose threads are as harmless while they wait.
_WAITING_FOR_WORK = ("libarrow", "libjemalloc")

#: A program that has more memory than this beside the data in the graph is not forked: what it
#: changes later would be in memory twice, as long as the workers live.
MOST_MEMORY = 1 << 30


@dataclass(frozen=True)
class Program:
    """What matters of a program that may be forked."""

    #: Whether a process may be forked on this system after libraries were imported.
    may_fork: bool = True
    modules: Collection[str] = ()
    #: Modules in the middle of their import, which would stay so in a forked process.
    imports: Sequence[str] = ()
    #: The device of an accelerator that is in use, if any.
    accelerator: str = ""
    #: Threads that may hold locks: by their names, and by the libraries that have made them.
    threads: Sequence[str] = ()
    native_threads: Sequence[str] = ()
    #: Open files whose positions or locks would be shared, and connections that would be cut.
    files: Sequence[str] = ()
    connections: Sequence[str] = ()
    #: Random generators of modules, which would yield the same in each worker.
    generators: Sequence[str] = ()
    #: How many bytes it has beside files, and how many of them are data in the graph.
    memory: int = 0
    data: int = 0


def why_not_fork(program: Program) -> str:
    """Return in words why a program cannot be forked without harm; "" if it can."""
    unsafe = [name for name in UNSAFE_LIBRARIES if name in program.modules]
    if not program.may_fork:
        return "libraries do not survive a fork on this system"
    if program.accelerator:
        return f"the program uses {program.accelerator}"
    if unsafe:
        return f"{unsafe[0]} does not survive a fork"
    if program.imports:
        return f"modules are being imported: {', '.join(program.imports)}"
    if program.threads:
        return f"other threads run, which may hold locks: {', '.join(program.threads)}"
    if program.native_threads:
        return f"threads of libraries run: {', '.join(program.native_threads)}"
    if program.connections:
        return f"the program has connections: {', '.join(program.connections)}"
    if program.files:
        return f"files are open that workers would share: {', '.join(program.files)}"
    if program.generators:
        return (
            "random generators would yield the same in each worker:"
            f" {', '.join(program.generators)}"
        )
    if program.memory - program.data > max(MOST_MEMORY, program.data):
        return f"the program has {program.memory >> 20:,} MiB of memory"
    return ""


def program_now(codes: Sequence[Any] = ()) -> Program:
    """Look at this program, all but Python's threads; the workers are to run ``codes``."""
    if not system.MAY_FORK_AFTER_IMPORTS:
        return Program(may_fork=False)
    try:
        devices, connections, files = _descriptors()
        native = _native_threads()
    except OSError as error:
        return Program(native_threads=[f"nothing shows which ({error})"])
    memory = anonymous_memory() or 0
    return Program(
        modules=frozenset(sys.modules),
        imports=[module.__name__ for module in modules_being_imported()],
        accelerator=next(iter(devices), "") or _torch_device(),
        native_threads=native,
        files=files,
        connections=connections,
        generators=list(_generators()),
        memory=memory,
        # To weigh it takes time, and does not matter where there is little.
        data=min(memory, _weight_of(codes)) if memory > MOST_MEMORY else 0,
    )


# Threads --------------------------------------------------------------------------------


def threads_in_the_way(stands_still: threading.Thread) -> list[str]:
    """Return the names of Python's threads that may hold what somebody in a fork waits for.

    ``stands_still`` holds nothing, nor does the one that calls this.
    """
    frames = frames_of_others()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    found = []
    for ident, frame in frames.items():
        thread = threads.get(ident)
        if ident == stands_still.ident or _waits_for_us(frame):
            continue
        if thread is None or not is_known_harmless(thread, frame):
            found.append(thread.name if thread else "one that threading does not know")
    return sorted(found)


def _waits_for_us(frame: FrameType | None) -> bool:
    """Whether a thread waits in a function of ours, or runs one."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        root = name.partition(".")[0]
        if root == "asyncloader":
            return True
        if root not in _WAITING_IN:
            return False
        frame = frame.f_back
    return False


#: Where Python's own waiting is.
_WAITING_IN = frozenset({"threading", "concurrent", "asyncio", "selectors", "queue"})


def _native_threads() -> list[str]:
    """Return of which libraries the threads are that may be in the way."""
    waited: list[NativeThread] = []
    for _ in range(_LOOKS):
        found = list(filter(_is_harmful, native_threads()))
        unknown = [each for each in found if not each.libraries]
        # One that is at its end shows nothing, and is gone when it is looked at again. One that
        # waits where it did before shows no more the next time.
        stay = unknown == waited and not any(each.works for each in unknown)
        if stay or not unknown:
            break
        waited = unknown
    return sorted(", ".join(sorted(each.libraries)) or "not known" for each in found)


_LOOKS = 25


def _is_harmful(thread: NativeThread) -> bool:
    harmless = _COMPUTING + _PYTHON + (() if thread.works else _WAITING_FOR_WORK)
    return not thread.libraries or not all(name.startswith(harmless) for name in thread.libraries)


# Descriptors ----------------------------------------------------------------------------


def _descriptors() -> tuple[list[str], list[str], list[str]]:
    """Return the accelerators that are in use, the connections, and the files to be left alone."""
    devices, connections, files = [], [], []
    mapped: set[str] | None = None
    output = [system.identity(fd) for fd in (0, 1, 2)]
    for fd in system.open_fds():
        with contextlib.suppress(OSError):
            mode, path = os.fstat(fd).st_mode, os.readlink(system.PROC / f"self/fd/{fd}")
            if stat.S_ISSOCK(mode):
                connections += _peer(fd)
            elif stat.S_ISFIFO(mode) and path.startswith(os.sep):
                # In a worker it would not be open, where a function has kept its number.
                connections.append(path)
            elif stat.S_ISCHR(mode) and path.startswith(_ACCELERATORS):
                devices.append(path)
            elif stat.S_ISREG(mode) and system.identity(fd) not in output:
                mapped = mapped_files() if mapped is None else mapped
                if _is_shared(fd, path, mapped):
                    files.append(path)
    return devices, sorted(connections), sorted(files)


_ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/davinci", "/dev/hl")


def _peer(fd: int) -> list[str]:
    """Return to whom a socket is connected, if that is somebody outside of this program."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        try:
            peer = sock.getpeername()
        except OSError:
            return []
        if sock.family == socket.AF_UNIX:
            # Both ends of a pair have no name.
            name = peer or sock.getsockname()
            return [os.fsdecode(name)] if name else []
        return [":".join(map(str, peer[:2])) if isinstance(peer, tuple) else repr(peer)]


def _is_shared(fd: int, path: str, mapped: Collection[str]) -> bool:
    """Whether a worker that uses a file as well would disturb the program, or another worker."""
    if path.startswith("/memfd:"):
        return False
    info = (system.PROC / f"self/fdinfo/{fd}").read_text()
    if "\nlock:" in info:
        # It would be held until the last copy is closed.
        return True
    flags = next(line.split()[1] for line in info.splitlines() if line.startswith("flags:"))
    # A log is only written. What is mapped is not read at a position.
    return int(flags, 8) & os.O_ACCMODE != os.O_WRONLY and path not in mapped


# Libraries and what they hold -----------------------------------------------------------


def _torch_device() -> str:
    torch: Any = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        is_initialized = getattr(getattr(torch, name, None), "is_initialized", None)
        if is_initialized is not None and is_initialized():
            return f"torch.{name}"
    return ""


def may_come_to_use_an_accelerator() -> bool:
    """Whether the program has torch for an accelerator, and the machine has one."""
    torch: Any = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    is_for_one = any(getattr(version, name, None) for name in ("cuda", "hip", "xpu"))
    return is_for_one and any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dri")))


def _generators() -> Iterator[str]:
    """Yield the names of random generators that modules of the user's have for themselves."""
    kinds = set(_kinds_of_generators())
    for name, module in list(sys.modules.items()):
        # The script's own are sent to each worker as they are, too.
        if name == "__main__" or _is_of_library(name, getattr(module, "__file__", None)):
            continue
        values = list(getattr(module, "__dict__", {}).items())
        if not kinds.isdisjoint({type(value) for _, value in values}):
            yield from (f"{name}.{each}" for each, value in values if type(value) in kinds)


def _kinds_of_generators() -> Iterator[type]:
    yield random.Random
    for module, names in (
        ("numpy.random", ("Generator", "RandomState")),
        ("torch", ("Generator",)),
    ):
        found = sys.modules.get(module)
        yield from (getattr(found, name) for name in names if hasattr(found, name))


def _is_of_library(name: str, file: object) -> bool:
    """Whether a module was installed; those who make libraries know that torch forks."""
    is_installed = isinstance(file, str) and any(each in file for each in _INSTALLED)
    return is_installed or name.partition(".")[0] in sys.stdlib_module_names


_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


# Weight ---------------------------------------------------------------------------------

#: Of a container with more elements than twice as many, so many are weighed.
_WEIGHED = 100
#: Of how many objects there are at most looked at.
_MOST_OBJECTS = 100_000


def _weight_of(values: Sequence[Any]) -> int:
    """Return about how many bytes these have in memory, with all that belongs to them."""
    weight = 0.0
    seen: set[int] = set()
    #: Each for as many as it stands.
    found: list[tuple[Any, float]] = [(value, 1.0) for value in values]
    while found and len(seen) < _MOST_OBJECTS:
        value, count = found.pop()
        if id(value) not in seen and not isinstance(value, type | ModuleType):
            seen.add(id(value))
            size, parts, share = _looked_at(value)
            weight += count * size
            found += [(part, count * share) for part in parts]
    return int(weight)


def _looked_at(value: Any) -> tuple[int, Sequence[Any], float]:
    """Return the size of an object, some of its parts, and for how many each of them stands."""
    try:
        nbytes = getattr(value, "nbytes", None)
        if isinstance(nbytes, int):
            return nbytes, (), 1.0
        size = sys.getsizeof(value)
    except Exception:  # noqa: BLE001 - code of the value's class ran
        return 0, (), 1.0
    if isinstance(value, dict | list | tuple | set | frozenset):
        step = max(1, len(value) // _WEIGHED)
        few = list(itertools.islice(value, 0, None, step))
        parts = [*few, *map(value.get, few)] if isinstance(value, dict) else few
        return size, parts, len(value) / max(1, len(few))
    fields = getattr(value, "__dict__", None)
    return size, [fields] if isinstance(fields, dict) else (), 1.0
