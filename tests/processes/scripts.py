"""Programs that are run in a process of their own, with a hard limit.

This file is about child scripts: what they print is what they found, and a script
that reaches its limit fails with the stacks of its threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.eyes import PROC, facts_of, name_of

ROOT = Path(__file__).parents[2]


def start_script(folder: Path, source: str, *arguments: str, limit: float) -> subprocess.Popen[str]:
    """Run ``source`` as ``__main__``, unguarded, in a process group of its own."""
    script = folder / "script.py"
    watch = f"import faulthandler; faulthandler.dump_traceback_later({limit}, exit=True)"
    # A process that imports the script again has no thread to spare for it.
    watchdog = f"if __name__ == '__main__': {watch}\n"
    script.write_text(watchdog + textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SCRIPT": str(script)},
        start_new_session=True,
    )


@contextlib.contextmanager
def running_script(
    folder: Path, source: str, *arguments: str, limit: float = 240.0
) -> Iterator[subprocess.Popen[str]]:
    """Run a script for the length of the block; its whole group is killed at the end."""
    process = start_script(folder, source, *arguments, limit=limit)
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run_script(
    folder: Path, source: str, *arguments: str, limit: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    with running_script(folder, source, *arguments, limit=limit) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit - 1)
        except subprocess.TimeoutExpired:
            states = let_others_say_where(process.pid)
            stdout, stderr = process.communicate(timeout=limit)
            said = f"not at its end after {limit} s:\n{states}\n{stderr}"
            raise AssertionError(said) from None
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def let_others_say_where(session: int) -> str:
    """Let each process but the first of a session print its stack, and die; return their states."""
    states = []
    for name in filter(str.isdigit, os.listdir(PROC)):
        pid = int(name)
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                where = Path(PROC, name, "wchan").read_text()
                states.append(f"{pid} {name_of(pid)}: {facts_of(pid)[0]} in {where}")
                if pid != session:
                    os.kill(pid, signal.SIGABRT)
    return "\n".join(states)
