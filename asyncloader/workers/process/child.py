"""The first and the last moments of a child process.

This file is about what a child does around its main function, however it was started: it forgets
what it inherited, binds its life to the loader's, calls its main, and turns what that did into an
exit code.

Two ties bind it. Where the system has it, a signal upon the death of the parent reaches a process
that is stopped or keeps the GIL, but it only knows the parent. The lifeline thread knows the loader
too, whoever the parent is, but it needs the GIL to act.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any, NoReturn

from asyncloader.errors import ResourceExhausted
from asyncloader.runtime import start_thread
from asyncloader.system import (
    ONLY_OCCUPIED,
    answer_with,
    be_asked,
    die_with_parent,
    have_last_words,
    heard,
    is_any_readable,
    open_fds,
    show_name,
)

STDIO = (0, 1, 2)


def settle(name: str, *, parent: int) -> None:
    """Become a child of ``parent`` that ends with it and ignores Ctrl-C."""
    forget_signals()
    have_last_words()
    global _questions
    _questions = be_asked()
    _show_crashes()
    show_name(name)
    tie_to(parent)
    _read_nothing()
    _print_by_lines()
    gc.enable()


def run_main(
    main: str, sock: socket.socket, args: tuple[Any, ...], *, lifelines: Collection[int]
) -> None:
    """Import ``"package.module:function"`` and call it with the socket, which is closed then.

    Of a process that cannot be tied to the loader the module's ``refuse`` tells the loader why.
    """
    module, _, function = main.partition(":")
    refusal = None
    try:
        end_with(lifelines)
    except ResourceExhausted as error:
        refusal = error
    with sock:
        found = importlib.import_module(module)
        if refusal is None:
            getattr(found, function)(sock, *args)
        else:
            found.refuse(sock, refusal)


def exitcode_of(run: Callable[[], None]) -> int:
    """The exit code of a Python process whose program is ``run``, having ended like one.

    What goes wrong is printed to stderr; exit functions have run and the standard
    streams are flushed.
    """
    code = 0
    try:
        run()
    except SystemExit as leave:
        code = _code_of(leave)
    except BaseException:  # noqa: BLE001  user code ran: whatever it raised ends the process
        traceback.print_exc()
        code = 1
    # A process forked by hand ends in os._exit, which runs none of these. The user's own
    # process pools, for one, are ended by them.
    atexit._run_exitfuncs()
    _flush()
    return code


def forget_signals() -> None:
    """Take every signal as a fresh process would, except that SIGINT is ignored."""
    # The loader's event loop listens at the other end of an inherited wakeup fd.
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    # Ignored by the loader, they would be ignored after an exec, too; and who ignores
    # SIGCHLD is not told how a child ended.
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    # Ctrl-C reaches the whole process group; the loader decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def let_go_of_inherited(keep: Collection[int]) -> None:
    """Give up every inherited descriptor but the standard ones, those to keep, and files.

    A sibling's socket that stays open here would hide its end of file from the loader. Files are
    what inherited objects read: a data set that holds one open, or has memory mapped from it.
    """
    null = os.open(os.devnull, ONLY_OCCUPIED)
    for fd in open_fds():
        if fd not in keep and fd not in STDIO and fd != null and not _is_file(fd):
            # Objects in the inherited heap still own these numbers. Occupied, they cannot
            # become something of ours that such an object would then close, read or write.
            try:
                os.dup2(null, fd, inheritable=False)
            except OSError:
                # Beyond a limit that was lowered since, where nothing new is opened either.
                os.close(fd)
    os.close(null)


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _show_crashes() -> None:
    """Print where Python stands when native code crashes, to stderr; it costs nothing before."""
    if not faulthandler.is_enabled():
        # sys.stderr of a forked notebook is no file.
        with contextlib.suppress(OSError, ValueError):
            faulthandler.enable(2, all_threads=False)


def _read_nothing() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _print_by_lines() -> None:
    """Let a process that is killed later have printed every whole line it wrote."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _code_of(leave: SystemExit) -> int:
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    print(leave.code, file=sys.stderr)  # noqa: T201  as the interpreter does
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


def tie_to(parent: int) -> None:
    """End with the parent, as far as the system sees to that; at once if it has gone already."""
    die_with_parent()
    # A parent that died before the call above sends nothing any more.
    if os.getppid() != parent:
        end_now()


def end_with(lifelines: Collection[int]) -> None:
    """End this process, from a thread, when one of the processes of the lifelines is gone."""
    for fd in lifelines:
        os.set_inheritable(fd, False)
    thread = threading.Thread(
        target=_outlive_nobody, args=(lifelines,), name="asyncloader lifeline", daemon=True
    )
    start_thread(thread)


def end_now() -> NoReturn:
    """End without running, flushing or waiting for anything."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


#: Where this process is asked what it is doing, and where it answers.
_questions: tuple[int, int] | None = None


def _outlive_nobody(lifelines: Collection[int]) -> None:
    questions = [] if _questions is None else [_questions[0]]
    while True:
        is_any_readable([*lifelines, *questions], timeout=3600.0)
        if is_any_readable(lifelines, timeout=0.0):
            end_now()
        if _questions is not None and is_any_readable(questions, timeout=0.0):
            _answer(*_questions)


def _answer(asked: int, answers: int) -> None:
    """Say what holds up this process."""
    heard(asked)
    # Imported late: most processes are never asked.
    from asyncloader.datapipes.running.waits import held_up_here

    try:
        found = held_up_here()
    except Exception:  # noqa: BLE001 - the graph is in use; its stacks tell more than nothing
        return
    answer_with(answers, json.dumps([asdict(each) for each in found]).encode())
