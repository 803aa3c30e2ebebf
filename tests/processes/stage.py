"""Processes that need not import again what others like them have imported.

This file is about ``run_forked``, one call in a process of its own, and ``start_forked``, one that
is talked with. Both are forked from an interpreter that runs under ``-W error`` and does nothing
else. To start an interpreter and to import the package there takes longer than most calls do, and
torch takes several times as long. Where a fresh interpreter is the subject, run a script.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from tests.processes.scripts import ROOT
from tests.processes.spare import keep_a_template

#: What is imported there before the first fork, unless something else is asked for.
MODULES = ("pytest", "uvloop", "asyncloader.datapipes.iter", "tests.faults.child")
_MOST_BYTES = 1 << 17


def run_forked(
    folder: Path, call: str, *args: Any, limit: float, imported: tuple[str, ...] = MODULES
) -> subprocess.CompletedProcess[str]:
    """Call ``"package.module:function"`` with plain data in a process; return how that ended.

    One that reaches its limit ends with the stacks of its threads. Its whole group is killed
    in the end.
    """
    output = folder / "stdout"
    stage = _stage(imported)
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as stderr:
        with open(output, "wb") as stdout, open(writing, "wb") as theirs, open(os.devnull) as null:
            pid = stage.fork(call, args, (null, stdout, theirs), os.environ, limit)
        try:
            # Until all that hold it are gone.
            said = _read(stderr.fileno(), limit + 5).decode()
            code = stage.wait_for(pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    return subprocess.CompletedProcess(call, code, output.read_text(), said)


def run_script_forked(
    folder: Path, script: Path, *, limit: float, imported: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run a script from the root of the repository, where some modules were imported before."""
    call = f"{run_script.__module__}:{run_script.__name__}"
    with contextlib.chdir(ROOT):
        return run_forked(folder, call, str(script), limit=limit, imported=imported)


def start_forked(
    call: str,
    *args: Any,
    stderr: IO[str],
    imported: tuple[str, ...],
    environ: Mapping[str, str],
) -> ForkedProcess:
    """Call a function in a process that is told something by its stdin, and answers by stdout."""
    stage = _stage(imported)
    stdin, told = os.pipe()
    answered, stdout = os.pipe()
    with open(stdin) as theirs, open(stdout, "w") as answers:
        pid = stage.fork(call, args, (theirs, answers, stderr), os.environ | environ)
    return ForkedProcess(stage, pid, open(told, "w"), open(answered))


class ForkedProcess:
    """What ``subprocess.Popen`` is for a process that a stage has forked."""

    def __init__(self, stage: Stage, pid: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._stage = stage

    def end(self) -> int:
        """Kill it, if it lives, and return how it ended."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            with self.stdout, contextlib.suppress(BrokenPipeError):
                self.stdin.close()
            self.returncode = self._stage.wait_for(self.pid)
        return self.returncode

    def wait(self) -> int:
        """Return how it ended, once all that hold its stdout are gone."""
        if self.returncode is None:
            self.stdout.read()
        return self.end()


_stages: dict[tuple[str, ...], Stage] = {}
_choosing = threading.Lock()


def _stage(imported: tuple[str, ...]) -> Stage:
    with _choosing:
        if imported not in _stages:
            _stages[imported] = Stage(imported)
        return _stages[imported]


class Stage:
    """The interpreter from which processes are forked."""

    def __init__(self, imported: tuple[str, ...]) -> None:
        self._imported = imported
        self._asking = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _PROGRAM, str(theirs.fileno()), *imported],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    def fork(
        self,
        call: str,
        args: tuple[Any, ...],
        files: Sequence[IO[Any]],
        environ: Mapping[str, str],
        limit: float | None = None,
    ) -> int:
        """Fork a process that has the files as its first three; return its pid."""
        request = (call, args, limit, os.getcwd(), dict(environ))
        return self._answer(repr(request), [file.fileno() for file in files])

    def wait_for(self, pid: int) -> int:
        """Return how a process ended. Until it does, nobody else is answered."""
        return self._answer(str(pid))

    def _answer(self, request: str, fds: Sequence[int] = ()) -> int:
        try:
            with self._asking:
                socket.send_fds(self._control, [request.encode()], fds)
                return int(self._control.recv(_MOST_BYTES))
        except BaseException:
            # Nobody knows what it would answer next.
            self.end()
            raise

    def end(self) -> None:
        """End the interpreter; idempotent."""
        if _stages.get(self._imported) is self:
            del _stages[self._imported]
        self._control.close()
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
            request, fds, *_ = socket.recv_fds(control, _MOST_BYTES, 3)
            if not request:
                return
            if not fds:
                _, status = os.waitpid(int(request), 0)
                control.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            pid = os.fork()
            if pid == 0:
                break
            for fd in fds:
                os.close(fd)
            control.send(str(pid).encode())
    _become(fds, *ast.literal_eval(request.decode()))


def _become(
    fds: list[int],
    call: str,
    args: tuple[Any, ...],
    limit: float | None,
    cwd: str,
    environ: dict[str, str],
) -> None:
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ | {"PYTHONPATH": str(ROOT)})
    for name, fd in enumerate(fds):
        os.dup2(fd, name)
        os.close(fd)
    keep_a_template()
    if limit is not None:
        faulthandler.dump_traceback_later(limit, exit=True)
    module, _, function = call.partition(":")
    getattr(importlib.import_module(module), function)(*args)


def run_script(path: str) -> None:
    """Do what an interpreter does that is started with a script."""
    faulthandler.enable()
    del os.environ["PYTHONPATH"]
    known = [folder for folder in sys.path if folder not in ("", str(ROOT))]
    sys.path[:] = [str(Path(path).parent), *known]
    sys.argv[:] = [path]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(compile(Path(path).read_text(), path, "exec"), main.__dict__)
