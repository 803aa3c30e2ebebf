"""What the system tells of how a process ended."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncloader.system import exitcode_of_unreaped, oom_kills
from tests.eyes import Seen
from tests.needs import needs_deaths_told

SOON = 60.0


@contextmanager
def unreaped(command: list[str]) -> Iterator[int]:
    """The pid of a process that has ended and is not reaped within the block."""
    process = subprocess.Popen(command)
    try:
        assert Seen.of(process.pid).dies_within(SOON)
        yield process.pid
    finally:
        process.wait()


@needs_deaths_told
@pytest.mark.parametrize(("how", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", -9)])
def test_how_it_ended_is_known(how, code):
    with unreaped(["/bin/sh", "-c", how]) as pid:
        assert exitcode_of_unreaped(pid) == code
    assert exitcode_of_unreaped(pid) is None, "it was reaped"


@needs_deaths_told
@pytest.mark.parametrize("name", ["a) Z 1 (b", "cut inside theé"])
def test_its_name_may_look_like_anything(name, tmp_path):
    shell = shutil.copy(os.path.realpath("/bin/sh"), tmp_path / name)
    with unreaped([shell, "-c", "exit 3"]) as pid:
        assert exitcode_of_unreaped(pid) == 3


def test_of_one_that_runs_nothing_is_known():
    assert exitcode_of_unreaped(os.getpid()) is None


V2 = ("0::/job/step\n", "job/step/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 9\n")
V1 = (
    "11:cpu,cpuacct:/x\n7:memory:/job\n",
    "memory/job/memory.oom_control",
    "under_oom 0\noom_kill 3\n",
)
IN_A_CONTAINER = ("0::/outside/of/it\n", "memory.events", "oom 4\noom_kill 3\n")


@pytest.mark.parametrize(("groups", "file", "content"), [V2, V1, IN_A_CONTAINER])
def test_the_count_is_found(groups, file, content, tmp_path):
    (tmp_path / "groups").write_text(groups)
    counter = tmp_path / "root" / file
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text(content)
    assert oom_kills(tmp_path / "groups", tmp_path / "root") == 3


@pytest.mark.parametrize("content", ["", "oom_kill", "oom_kill many"])
def test_what_cannot_be_read_counts_as_nothing(content, tmp_path):
    (tmp_path / "groups").write_text("0::/\n")
    (tmp_path / "memory.events").write_text(content)
    assert oom_kills(tmp_path / "groups", tmp_path) == 0
    assert oom_kills(tmp_path / "missing", tmp_path) == 0


def test_the_name_of_a_control_group_may_be_any_bytes(tmp_path):
    counter = os.fsencode(tmp_path) + b"/root/\xff/memory.events"
    os.makedirs(os.path.dirname(counter))
    Path(os.fsdecode(counter)).write_text("oom_kill 3\n")
    (tmp_path / "groups").write_bytes(b"0::/\xff\n")
    assert oom_kills(tmp_path / "groups", tmp_path / "root") == 3


def test_here_it_is_a_number():
    assert oom_kills() >= 0
