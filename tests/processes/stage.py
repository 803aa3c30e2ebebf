"""Processes that need not import again what others like them have imported.

This file is about ``run_forked``: one call in a process of its own, forked from an interpreter
that runs under ``-W error`` and does nothing else. To start an interpreter and to import the
package there takes longer than most calls do. Where a fresh interpreter is the subject, run a
script.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.processes.scripts import ROOT
from tests.processes.spare import keep_a_template

#: What is imported there before the first fork, unless something else is asked for.
_MODULES = ("pytest", "uvloop", "asyncloader.datapipes.iter", "tests.faults.child")
_MOST_BYTES = 1 << 17


def run_forked(
    folder: Path, call: str, *args: Any, limit: float, imported: tuple[str, ...] = _MODULES
) -> subprocess.CompletedProcess[str]:
    """Call ``"package.module:function"`` with plain data in a process; return how that ended.

    One that reaches its limit ends with the stacks of its threads. Its whole group is killed
    in the end.
    """
    output = folder / "stdout"
    request = (call, args, limit, str(output), os.getcwd(), dict(os.environ))
    stage = _stage(imported)
    try:
        pid, stderr = stage.run(repr(request).encode(), limit + 5)
        code = int(stage.control.recv(_MOST_BYTES))
    except BaseException:
        # Nobody knows what they would answer next.
        _end_stages()
        raise
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return subprocess.CompletedProcess(call, code, output.read_text(), stderr)


def run_script_forked(
    folder: Path, script: Path, *, limit: float, imported: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run a script from the root of the repository, where some modules were imported before."""
    call = f"{_run_script.__module__}:{_run_script.__name__}"
    with contextlib.chdir(ROOT):
        return run_forked(folder, call, str(script), limit=limit, imported=imported)


_stages: dict[tuple[str, ...], Stage] = {}


def _stage(imported: tuple[str, ...]) -> Stage:
    if imported not in _stages:
        _stages[imported] = Stage(imported)
    return _stages[imported]


def _end_stages() -> None:
    while _stages:
        _stages.popitem()[1].end()


class Stage:
    """The interpreter from which processes are forked, one at a time."""

    def __init__(self, imported: tuple[str, ...]) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _PROGRAM, str(theirs.fileno()), *imported],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    def run(self, request: bytes, limit: float) -> tuple[int, str]:
        """Fork a process; return its pid and, once all that hold it are gone, its stderr."""
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as stderr:
            try:
                socket.send_fds(self.control, [request], [writing])
            finally:
                os.close(writing)
            pid = int(self.control.recv(_MOST_BYTES))
            try:
                return pid, _read(stderr.fileno(), limit).decode()
            except BaseException:
                os.killpg(pid, signal.SIGKILL)
                raise

    def end(self) -> None:
        """End the interpreter; idempotent."""
        self.control.close()
        self._process.kill()
        self._process.wait()


def _read(fd: int, limit: float) -> bytes:
    """Read to the end, TimeoutError where that does not come in time."""
    end, data = time.monotonic() + limit, b""
    while select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(fd, _MOST_BYTES)
        if not part:
            return data
        data += part
    raise TimeoutError(f"the process did not end within {limit} s; it said {data.decode()}")


# In that interpreter --------------------------------------------------------------------

_PROGRAM = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]), sys.argv[2:])"


def serve(control_fd: int, imported: list[str]) -> None:
    """Fork a process for each request; in such a process, return when it is to end."""
    for module in imported:
        importlib.import_module(module)
    assert threading.active_count() == 1, "only an interpreter without threads can be forked"
    # What was imported stays: the processes need not look for garbage in it.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=control_fd) as control:
        while True:
            request, fds, *_ = socket.recv_fds(control, _MOST_BYTES, 1)
            if not request:
                return
            (stderr,) = fds
            pid = os.fork()
            if pid == 0:
                break
            os.close(stderr)
            control.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
    _become(stderr, *ast.literal_eval(request.decode()))


def _become(
    stderr: int,
    call: str,
    args: tuple[Any, ...],
    limit: float,
    output: str,
    cwd: str,
    environ: dict[str, str],
) -> None:
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ | {"PYTHONPATH": str(ROOT)})
    stdout = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for fd, name in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, name)
        os.close(fd)
    keep_a_template()
    faulthandler.dump_traceback_later(limit, exit=True)
    module, _, function = call.partition(":")
    getattr(importlib.import_module(module), function)(*args)


def _run_script(path: str) -> None:
    """Do what an interpreter does that is started with a script."""
    faulthandler.enable()
    del os.environ["PYTHONPATH"]
    known = [folder for folder in sys.path if folder not in ("", str(ROOT))]
    sys.path[:] = [str(Path(path).parent), *known]
    sys.argv[:] = [path]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(compile(Path(path).read_text(), path, "exec"), main.__dict__)
