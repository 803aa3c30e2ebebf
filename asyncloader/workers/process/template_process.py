"""The template process: a small program that forks workers on request.

This file is about the program and the requests it takes. It is exec'd once by a
loader process, imports what it was told to, and from then on only forks; it has
one thread, so that its forks are safe. Its socket carries, from the loader, a
request with the descriptors of the new child, and back its pid. Each child has a
pipe of its own on which its exit code is told. Once nobody has asked for a child for
a while it imports what children may want as well, so that later ones need not. The
template ends, and its children with it, when the loader closes the socket or dies.

It may also be forked from the loader (``serve_heirs``): then its children have inherited what the
loader had in memory at that moment, however often one of them is replaced.
"""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from time import monotonic
from types import ModuleType
from typing import Any, NoReturn

from asyncloader import system
from asyncloader.workers.process.child import (
    exitcode_of,
    forget_signals,
    run_main,
    settle,
    tie_to,
)
from asyncloader.workers.process.inherited import Environment, inherit
from asyncloader.workers.process.native_threads import compute_alone
from asyncloader.workers.process.setup import when_imported

# What the exec'd interpreter runs. The module path is set before the first import that
# could be answered differently by it.
PROGRAM = (
    "import sys, json; control, loader, parent, path, preload = map(json.loads, sys.argv[1:]); "
    "sys.path[:] = path; from asyncloader.workers.process.template_process import serve; "
    "serve(control, loader, parent, preload)"
)

REPLY = struct.Struct("<i")
EXITCODE = struct.Struct("<i")
_LENGTH = struct.Struct("<Q")

# Rings that are heard at once.
_MOST_RINGS = 1 << 12

# For how long after a request nothing is imported: the children's first items come first.
_BUSY_SECONDS = 0.3


@dataclass(frozen=True)
class ForkRequest:
    """A child to fork, and the loader's environment, which are to be the child's."""

    name: str
    main: str
    args: bytes
    environment: Environment
    #: Of the program's own ``multiprocessing``, by which its managers know their clients.
    authkey: bytes
    #: Modules that the template may import for later children.
    wanted: list[str]

    def send(self, control: socket.socket, fds: Sequence[int]) -> None:
        """Send the request with the descriptors in the order of ``ChildFds``."""
        payload = pickle.dumps(self)
        socket.send_fds(control, [_LENGTH.pack(len(payload))], fds)
        control.sendall(payload)


@dataclass(frozen=True)
class ChildFds:
    """The descriptors of a child: its socket, its output, the pipe to the program's resource
    tracker, and where its exit code is told."""

    sock: int
    stdout: int
    stderr: int
    tracker: int
    status: int

    def close_all(self) -> None:
        for fd in (self.sock, self.stdout, self.stderr, self.tracker, self.status):
            os.close(fd)


def serve(control_fd: int, loader_fd: int, parent: int, preload: list[str]) -> NoReturn:
    """Be the template process until the loader is gone."""
    forget_signals()
    system.show_name("asyncloader template")
    tie_to(parent)
    # The children get the loader's filters; a warning must not end the template.
    warnings.simplefilter("ignore")
    for module in preload:
        _import(module)
    gc.collect()
    _hand_down()
    _Template(control_fd, loader_fd, Environment.apply, importlib.invalidate_caches).run()


def serve_heirs(control_fd: int, loader_fd: int, parent: int, heirlooms: list[Any]) -> NoReturn:
    """Be a template process that was forked from the loader, until the loader is gone."""
    forget_signals()
    system.show_name("asyncloader template")
    tie_to(parent)
    compute_alone()
    inherit(heirlooms)
    # Not collected before: that would copy the memory of all objects.
    _hand_down()
    _Template(control_fd, loader_fd, _take_allowance, lambda: None).run()


def _take_allowance(environment: Environment) -> None:
    """Take of the loader's present environment what is no copy of its memory."""
    environment.allowance.apply()


class _Template:
    def __init__(
        self,
        control_fd: int,
        loader_fd: int,
        settle_in: Callable[[Environment], None],
        look_again: Callable[[], None],
    ) -> None:
        #: What a child does with the loader's environment.
        self._settle_in = settle_in
        #: Lets modules be found that were written since a loader was here, which an heir knows.
        self._look_again = look_again
        for fd in (control_fd, loader_fd):
            os.set_inheritable(fd, False)
        self._control = socket.socket(fileno=control_fd)
        #: Of the loader, and of this process.
        self._lifelines = loader_fd, system.lifeline()
        #: By its pid, the descriptor where the exit code of each child is told.
        self._children: dict[int, int] = {}
        self._wanted: list[str] = []
        self._import_at = 0.0
        # One that a forked child can close on every system.
        self._selector = selectors.PollSelector()
        self._selector.register(control_fd, selectors.EVENT_READ, self._take_request)
        self._selector.register(loader_fd, selectors.EVENT_READ, self._end)
        self._bell, self._rung = _bell_of(signal.SIGCHLD)
        self._selector.register(self._bell, selectors.EVENT_READ, self._reap)

    def run(self) -> NoReturn:
        while True:
            left = self._import_at - monotonic() if self._wanted else None
            events = self._selector.select(left)
            for key, _ in events:
                key.data(key.fd)
            if not events:
                self._import_wanted()

    def _import_wanted(self) -> None:
        """Import what children may want, until there is something else to do."""
        while self._wanted and not self._selector.select(0):
            _import(self._wanted.pop())
        gc.collect()
        _hand_down()

    def _take_request(self, _: int) -> None:
        try:
            request, fds = _receive(self._control)
        except (EOFError, ConnectionError):
            self._end(0)
        if not self._wanted:
            self._import_at = monotonic() + _BUSY_SECONDS
        self._wanted = [module for module in request.wanted if module not in sys.modules]
        try:
            self._reply(self._fork(request, fds))
        except OSError as error:
            self._reply(-(error.errno or errno.EAGAIN))
        finally:
            fds.close_all()

    def _fork(self, request: ForkRequest, fds: ChildFds) -> int:
        template = os.getpid()
        # The loader's limit may have changed, and here is where it counts.
        request.environment.allowance.apply_process_limit()
        # In the child this would copy the memory of each entry.
        self._look_again()
        status = os.dup(fds.status)
        try:
            pid = os.fork()
        except OSError:
            os.close(status)
            raise
        if pid == 0:
            os.close(status)
            self._become(request, fds, template)
        self._children[pid] = status
        return pid

    def _reap(self, bell: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(bell, _MOST_RINGS)
        # One signal may stand for the deaths of several.
        for pid, status in list(self._children.items()):
            # The pid is the child's until it is reaped, and only this thread does that.
            reaped, ended = os.waitpid(pid, os.WNOHANG)
            if reaped:
                self._tell(status, os.waitstatus_to_exitcode(ended))
                del self._children[pid]

    def _tell(self, status: int, code: int) -> None:
        # The loader may have lost interest.
        with contextlib.suppress(OSError):
            os.write(status, EXITCODE.pack(code))
        os.close(status)

    def _reply(self, answer: int) -> None:
        try:
            self._control.sendall(REPLY.pack(answer))
        except OSError:
            self._end(0)

    def _end(self, _: int) -> NoReturn:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _become(self, request: ForkRequest, fds: ChildFds, template: int) -> NoReturn:
        code = 1
        try:
            self._let_go()
            code = exitcode_of(lambda: self._live(request, fds, template))
        finally:
            os._exit(code)

    def _live(self, request: ForkRequest, fds: ChildFds, template: int) -> None:
        os.dup2(fds.stdout, 1)
        os.dup2(fds.stderr, 2)
        for fd in (fds.stdout, fds.stderr, fds.status):
            os.close(fd)
        settle(request.name, parent=template)
        self._settle_in(request.environment)
        _join_program(request.authkey, fds.tracker)
        sock, args = socket.socket(fileno=fds.sock), pickle.loads(request.args)
        run_main(request.main, sock, args, lifelines=self._lifelines)

    def _let_go(self) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._control.close()
        for fd in (self._bell, self._rung, *self._children.values()):
            os.close(fd)


def _bell_of(number: signal.Signals) -> tuple[int, int]:
    """Return a pipe that is readable after a signal; its other end belongs to it."""
    bell, rung = os.pipe()
    for fd in (bell, rung):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(rung, warn_on_full_buffer=False)
    # Only a signal with a handler of Python's rings.
    signal.signal(number, lambda *_: None)
    return bell, rung


def _join_program(authkey: bytes, tracker_fd: int) -> None:
    """Let ``multiprocessing`` take this process for one of the program's, if it is used here."""

    def share_tracker(module: ModuleType) -> None:
        module._resource_tracker._fd = tracker_fd

    def share_key(module: ModuleType) -> None:
        module.current_process().authkey = authkey

    when_imported("multiprocessing.resource_tracker", share_tracker)
    when_imported("multiprocessing.process", share_key)


def _receive(control: socket.socket) -> tuple[ForkRequest, ChildFds]:
    head, fds = receive_with_fds(control, _LENGTH.size, len(fields(ChildFds)))
    (length,) = _LENGTH.unpack(head)
    payload = bytearray()
    while len(payload) < length:
        part = control.recv(min(length - len(payload), 1 << 20))
        if not part:
            raise EOFError
        payload += part
    return pickle.loads(payload), ChildFds(*fds)


def receive_with_fds(control: socket.socket, size: int, count: int) -> tuple[bytes, list[int]]:
    """Receive ``size`` bytes and up to ``count`` close-on-exec descriptors, or raise EOFError.

    As many bytes as one ``send_fds`` sent arrive together, there being so few.
    """
    room = system.room_for_fds(count)
    data, ancillary, flags, _ = control.recvmsg(size, room, system.RECEIVING)
    if len(data) < size or flags & socket.MSG_CTRUNC:
        raise EOFError
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, list(fds)


def _hand_down() -> None:
    """Let children have what was imported, and leave its end to this process."""
    # It is the same in every child: no collection need look at it again.
    gc.freeze()
    # Each child would remove what belongs to all, and take long about it: torch has hundreds.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def _import(module: str) -> None:
    # The child that needs the module will say what is wrong with it.
    with contextlib.suppress(Exception):
        importlib.import_module(module)
