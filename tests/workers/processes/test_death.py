"""The exit code of a process that nobody has reaped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from asyncloader.workers.processes.death import exitcode_of_unreaped
from asyncloader.workers.processes.pidfd import is_readable, open_pidfd

SOON = 60.0


@contextmanager
def unreaped(command: list[str]) -> Iterator[int]:
    """The pid of a process that has ended and is not reaped within the block."""
    process = subprocess.Popen(command)
    pidfd = open_pidfd(process.pid)
    try:
        assert is_readable(pidfd, SOON)
        yield process.pid
    finally:
        os.close(pidfd)
        process.wait()


@pytest.mark.parametrize(("how", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", -9)])
def test_how_it_ended_is_known(how, code):
    with unreaped(["/bin/sh", "-c", how]) as pid:
        assert exitcode_of_unreaped(pid) == code
    assert exitcode_of_unreaped(pid) is None, "it was reaped"


@pytest.mark.parametrize("name", ["a) Z 1 (b", "cut inside theé"])
def test_its_name_may_look_like_anything(name, tmp_path):
    shell = shutil.copy(os.path.realpath("/bin/sh"), tmp_path / name)
    with unreaped([shell, "-c", "exit 3"]) as pid:
        assert exitcode_of_unreaped(pid) == 3


def test_of_one_that_runs_nothing_is_known():
    assert exitcode_of_unreaped(os.getpid()) is None
