"""The loader's hold on its template processes.

This file is about starting template processes and asking them for children.
There is one per set of modules to preload: a loader that imports torch later on
gets a second template, since one that is busy importing could neither fork nor
tell of deaths. A pool whose processes are to inherit what is in memory has one of its own, a
``Heritage``. All of this runs in the spawner's thread, except ``end_templates``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol

from asyncloader import system
from asyncloader.datapipes.running.traits import is_module_of_package
from asyncloader.errors import WorkerStartupError
from asyncloader.system import in_forked_child, is_readable
from asyncloader.transport.code import modules_being_imported, number_classes_of
from asyncloader.transport.parcel import Parcel, without_imports_of
from asyncloader.workers.process.fork_safety import (
    Program,
    may_come_to_use_an_accelerator,
    program_now,
    threads_in_the_way,
    why_not_fork,
)
from asyncloader.workers.process.inherited import Environment, Heirloom, import_path
from asyncloader.workers.process.multiprocessing_start import (
    OUR_THREADS,
    authkey,
    fork_template,
    refuse_unsafe_fork,
    sigint_held,
    tracker_fd,
)
from asyncloader.workers.process.process import ProcessPlan, StartedProcess
from asyncloader.workers.process.template_process import (
    EXITCODE,
    PROGRAM,
    REPLY,
    ForkRequest,
)

logger = logging.getLogger("asyncloader")

# A loader that gives up privileges gets children without them from a new template.
Kind = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]
_templates: dict[Kind, Template] = {}

_END_SECONDS = 1.0

# What data sets and samples are often made of, and takes about a second: each worker of each
# loader would import it again. Only what starts no thread, as a template forks.
_LIBRARIES = ("torch", "torchvision")

# One that has forked before may have living children, which would die with it: it is not given
# up because a caller was in a hurry.
_PATIENCE_SECONDS = 2.0

# How long the threads of another loader that starts at the same moment may be in the way.
_OURS_SECONDS = 0.5


def fork_from_template(plan: ProcessPlan, sock: socket.socket, deadline: float) -> StartedProcess:
    """Fork a child from a template, which is started or replaced where necessary."""
    preload = _preloaded(plan)
    request = _request(plan)
    with contextlib.suppress(TemplateGone):
        return _template(preload).fork(request, sock, deadline)
    # It may have been killed since it was last used. Its children died with it.
    try:
        return _template(preload).fork(request, sock, deadline)
    except TemplateGone as error:
        raise WorkerStartupError(f"{plan.name} was not started: {error}") from error


def expect_fork(plan: ProcessPlan, caller: threading.Thread) -> None:
    """Start the template for a child now, if it will be needed and has to import what takes long.

    ``caller`` is the thread that has made a loader.
    """
    preload = _preloaded(plan)
    if "torch" in preload and _will_be_needed(caller):
        # What is wrong is said when the child is started.
        with contextlib.suppress(Exception):
            _template(preload)


def _will_be_needed(caller: threading.Thread) -> bool:
    """Whether the program cannot be forked, as far as that is known before a loader starts."""
    if CarefulHeritage.has_begun:
        # It takes milliseconds to look, and the next start will.
        return False
    now = program_now()
    # The loader's loop, which starts at this moment, imports what it is made of.
    threads = [each for each in threads_in_the_way(caller) if not each.startswith(OUR_THREADS)]
    files = [each for each in now.files if not each.endswith(_OF_MODULES)]
    program = replace(now, threads=threads, files=files, imports=())
    return may_come_to_use_an_accelerator() or bool(why_not_fork(program))


#: A file of these is open for as long as a module is imported.
_OF_MODULES = (".py", ".pyc", ".so")


def end_templates() -> None:
    """Kill and reap every template process; their children die with them."""
    for template in list(_running):
        template.end()
    _templates.clear()


class TemplateGone(Exception):
    """The template process has ended, and why as far as that is known."""


class Template:
    """A running template process."""

    def __init__(self, launch: Callable[[int], Launched]) -> None:
        self._ended = False
        self._owner = os.getpid()
        self._patience = 0.001
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = launch(theirs.fileno())
        except BaseException:
            # A template that was launched ends by itself with this socket.
            self._control.close()
            raise
        self._identity = system.identity(self._control.fileno())
        _running.add(self)

    def is_running(self) -> bool:
        """Whether it may be asked; one that has ended is reaped and released by this."""
        if not self._ended and (self._is_cut_off() or self._process.poll() is not None):
            self.end()
        return not self._ended

    def _is_cut_off(self) -> bool:
        """Whether the program has closed the socket, as one does that becomes a daemon."""
        return system.identity(self._control.fileno()) != self._identity

    def fork(self, request: ForkRequest, sock: socket.socket, deadline: float) -> StartedProcess:
        """Fork a child, or raise TemplateGone, or WorkerStartupError if that cannot help."""
        status_fd, told_fd = os.pipe()
        try:
            pid = self._ask(request, sock, told_fd, deadline)
            death_fd = system.watch_death(pid, status_fd)
        except BaseException:
            os.close(status_fd)
            raise
        finally:
            os.close(told_fd)
        os.set_blocking(status_fd, False)
        # Whoever holds the process keeps both descriptors open.
        find_exitcode = partial(_told_exitcode, self, status_fd, pid, death_fd)
        return StartedProcess(pid, death_fd, status_fd, find_exitcode, partial(os.close, status_fd))

    def end(self) -> None:
        """Kill and reap the template process, unless it is another's; idempotent."""
        if self._ended or self._owner != os.getpid():
            return
        self._ended = True
        self._process.kill()
        if self._is_cut_off():
            self._process.wait()
            self._control.detach()
        # Its end of the socket is closed with it.
        elif is_readable(self._control.fileno(), _END_SECONDS):
            self._process.wait()
        self._control.close()
        _running.discard(self)

    def disown(self) -> None:
        """In a forked child of the loader: let go of the parent's template."""
        if self._ended:
            return
        self._ended = True
        if self._is_cut_off():
            self._control.detach()
        self._control.close()
        self._process.returncode = 0

    def _ask(self, request: ForkRequest, sock: socket.socket, told_fd: int, deadline: float) -> int:
        self._control.settimeout(max(self._patience, deadline - time.monotonic()))
        try:
            with _output(1) as stdout, _output(2) as stderr:
                given = (sock.fileno(), stdout, stderr, tracker_fd(), told_fd)
                request.send(self._control, given)
            reply = self._control.recv(REPLY.size, socket.MSG_WAITALL)
            if not reply:
                raise EOFError
        except TimeoutError as error:
            self.end()
            raise WorkerStartupError(
                f"{request.name} was not started: the template process did not answer in time"
            ) from error
        except (EOFError, ConnectionError) as error:
            self.end()
            raise TemplateGone(
                f"the template process ended with code {self._process.returncode}; "
                "its own message is on stderr"
            ) from error
        self._patience = _PATIENCE_SECONDS
        (answer,) = REPLY.unpack(reply)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return int(answer)


class Launched(Protocol):
    """The process of a template."""

    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self) -> int | None: ...
    def kill(self) -> None: ...


#: Those that were not ended yet.
_running: set[Template] = set()


class Heritage:
    """What the processes of a pool inherit when they are forked, and who forks them.

    That is a template process: forked from this one with the first of them, it forks all, so that
    one that is replaced later inherits the same.
    """

    def __init__(self, refuse: Callable[[threading.Thread], None] = refuse_unsafe_fork) -> None:
        self._refuse = refuse
        self._heirlooms: list[Any] = []
        self._template: Template | None = None

    def add(self, value: Any) -> Parcel:
        """Let the processes inherit a value; return what they unpack it from."""
        self._heirlooms.append(value)
        heirloom = Heirloom(len(self._heirlooms) - 1)
        # A process that inherits a half imported module would wait for ever for the other half.
        modules = modules_being_imported()
        number_classes_of(modules)
        halted = [module.__name__ for module in modules]
        return Parcel(pickle.dumps(without_imports_of(halted, heirloom)), ())

    def fork(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: ProcessPlan,
        sock: socket.socket,
        deadline: float,
    ) -> StartedProcess:
        """Fork a child that has inherited the values."""
        try:
            template = self.begin(loop, deadline)
            return template.fork(_request(plan), sock, deadline)
        except TemplateGone as error:
            raise WorkerStartupError(f"{plan.name} was not started: {error}") from error

    def begin(self, loop: asyncio.AbstractEventLoop, deadline: float) -> Template:
        """Fork the template process, unless it runs; what is added later is not inherited."""
        if self._template is None or not self._template.is_running():
            launch = partial(fork_template, loop, self._heirlooms, deadline, self._refuse)
            self._template = Template(launch)
            # A pool that was dropped ends nothing itself.
            weakref.finalize(self, self._template.end).atexit = False
        return self._template

    def end(self) -> None:
        """End the template process, when no process is needed any more; idempotent."""
        template, self._template = self._template, None
        if template is not None:
            template.end()


class CarefulHeritage(Heritage):
    """One of a pool for which nobody asked for a fork.

    The program is forked only where that does no harm; where it may, the processes are forked from
    a template that inherits nothing.
    """

    #: Whether one of this program has begun, as those of its next loaders will, then.
    has_begun: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__(_refuse_any_harm)
        #: Why the program is not forked, if that was tried in vain.
        self.why_not = ""

    def fork(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: ProcessPlan,
        sock: socket.socket,
        deadline: float,
    ) -> StartedProcess:
        self.try_to_begin(loop, deadline)
        if self.why_not:
            return fork_from_template(plan, sock, deadline)
        return super().fork(loop, plan, sock, deadline)

    def try_to_begin(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Fork the template process, or set ``why_not``, which stays."""
        if self.why_not or (self._template is not None and self._template.is_running()):
            return
        self.why_not = why_not_fork(program_now(self._heirlooms))
        end = time.monotonic() + _OURS_SECONDS
        while not self.why_not:
            try:
                self.begin(loop, deadline)
                CarefulHeritage.has_begun = True
                return
            except _OursWork as error:
                self.why_not = str(error) if time.monotonic() > end else ""
                error.threads[0].join(max(0.0, end - time.monotonic()))
            except Exception as error:  # noqa: BLE001 - there is another way
                self.why_not = str(error) or repr(error)
        logger.debug("workers are not forked from the program: %s", self.why_not)


def _refuse_any_harm(loops_own: threading.Thread) -> None:
    """Raise WorkerStartupError if another thread of Python runs; they are looked at last."""
    names = threads_in_the_way(loops_own)
    if names:
        why = why_not_fork(Program(threads=names))
        threads = [thread for thread in threading.enumerate() if thread.name in names]
        if threads and all(name.startswith(OUR_THREADS) for name in names):
            raise _OursWork(why, threads)
        raise WorkerStartupError(why)


class _OursWork(Exception):
    """Threads of another loader work, such as one that starts at the same moment."""

    def __init__(self, why: str, threads: list[threading.Thread]) -> None:
        super().__init__(why)
        self.threads = threads


def _told_exitcode(template: Template, fd: int, pid: int, death_fd: int) -> int | None:
    """Return the exit code that the template process writes into a pipe, if it is there."""
    try:
        return int(EXITCODE.unpack(os.read(fd, EXITCODE.size))[0])
    except BlockingIOError:
        return None
    except struct.error:
        # Nobody is left to write: the template was killed, and this process with it. Its orphans
        # come to another only when the last of its threads has ended.
        template.end()
        system.reap_orphan(pid, death_fd)
        return -9


def _template(preload: tuple[str, ...]) -> Template:
    kind = (preload, (os.getuid(), os.geteuid()), (os.getgid(), os.getegid()))
    known = _templates.get(kind)
    if known is None or not known.is_running():
        _templates[kind] = Template(partial(_launch, preload=preload))
    return _templates[kind]


def _launch(control_fd: int, preload: tuple[str, ...]) -> subprocess.Popen[bytes]:
    with _lifeline() as loader_fd, _output(2) as stderr, sigint_held():
        return subprocess.Popen(
            _command(control_fd, loader_fd, preload),
            pass_fds=(control_fd, loader_fd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            # OpenBLAS starts its threads on import; a template must have no threads.
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )


def _command(control_fd: int, loader_fd: int, preload: tuple[str, ...]) -> list[str]:
    if not sys.executable:
        raise WorkerStartupError(
            "worker processes need the path of a Python interpreter, and sys.executable is empty"
        )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    given = (control_fd, loader_fd, os.getpid(), import_path(), preload)
    # -P keeps the current folder out of the path for the imports before the path is set.
    return [sys.executable, *flags, "-P", "-c", PROGRAM, *map(json.dumps, given)]


def _preloaded(plan: ProcessPlan) -> tuple[str, ...]:
    """What a template imports before it forks; of libraries only where that is safe."""
    if not system.MAY_FORK_AFTER_IMPORTS:
        return tuple(name for name in plan.preload if is_module_of_package(name))
    return (*plan.preload, *(name for name in _LIBRARIES if name in sys.modules))


def _wanted_modules() -> list[str]:
    """What is imported here of this library, and of what it uses: a child will want it too."""
    if not system.MAY_FORK_AFTER_IMPORTS:
        return []
    wanted = ("asyncloader.", "uvloop", "cloudpickle")
    return sorted(name for name in sys.modules if name.startswith(wanted))


def _request(plan: ProcessPlan) -> ForkRequest:
    return ForkRequest(
        name=plan.name,
        main=plan.main,
        args=pickle.dumps(plan.args),
        environment=Environment.current(),
        authkey=authkey(),
        wanted=_wanted_modules(),
    )


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    fd = system.lifeline()
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _output(fd: int) -> Iterator[int]:
    """The process' current stdout or stderr, or /dev/null where it has closed that."""
    try:
        copy = os.dup(fd)
    except OSError:
        copy = os.open(os.devnull, os.O_WRONLY)
    try:
        yield copy
    finally:
        os.close(copy)


@in_forked_child
def _forget() -> None:
    _templates.clear()
    while _running:
        _running.pop().disown()
