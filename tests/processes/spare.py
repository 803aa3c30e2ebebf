"""A template process that is forked, and need not import again what was imported here.

This file is about ``keep_a_template``: workers are forked from a template, which a loader's process
starts as a fresh interpreter. In a process that is itself forked and makes one loader, that takes
longer than all the rest. Where the template's own start is the subject, run a script.
"""

from __future__ import annotations

import ast
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from asyncloader import system
from asyncloader.workers.process import template
from asyncloader.workers.process.inherited import import_path
from asyncloader.workers.process.multiprocessing_start import sigint_held
from asyncloader.workers.process.template_process import serve

_MOST_BYTES = 1 << 17


def keep_a_template() -> None:
    """Fork what will be the first template of this process, which has one thread as yet."""
    if system.PORTABLE:
        return  # there tests tell templates by their command (tests/eyes.py)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with sigint_held():
        pid = os.fork()
        if pid == 0:
            ours.close()
            _become_a_template(theirs)
    theirs.close()
    # Where it is not needed, the end of this process closes its end of the socket, in silence.
    spare = [(ours.detach(), Forked(pid))]
    template._launch = partial(_launch, template._launch, spare)


class Forked:
    """What ``subprocess.Popen`` is for a process that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reaped(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reaped(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _launch(
    launch: Callable[..., Any],
    spare: list[tuple[int, Forked]],
    control_fd: int,
    preload: tuple[str, ...],
) -> Any:
    """Let the spare process be a template; those after it are launched as ever."""
    if not spare:
        return launch(control_fd, preload)
    fd, process = spare.pop()
    told = (os.getpid(), os.getcwd(), dict(os.environ), import_path(), preload)
    control = socket.socket(fileno=fd)
    with control, template._lifeline() as lifeline, template._output(2) as stderr:
        socket.send_fds(control, [repr(told).encode()], [control_fd, lifeline, stderr])
    return process


def _become_a_template(control: socket.socket) -> NoReturn:
    try:
        request, fds, *_ = socket.recv_fds(control, _MOST_BYTES, 3)
        control.close()
        if not request:
            os._exit(0)  # it was not needed
        control_fd, lifeline, stderr = fds
        parent, cwd, environ, path, preload = ast.literal_eval(request.decode())
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ | {"OPENBLAS_NUM_THREADS": "1"})
        null = os.open(os.devnull, os.O_RDWR)
        for fd, name in ((null, 0), (null, 1), (stderr, 2)):
            os.dup2(fd, name)
        os.close(null)
        os.close(stderr)
        sys.path[:] = path
        serve(control_fd, lifeline, parent, list(preload))
    finally:
        os._exit(1)
