from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from asyncloader import system
from asyncloader.workers.process import fork_safety
from asyncloader.workers.process.fork_safety import (
    MOST_MEMORY,
    Program,
    program_now,
    threads_in_the_way,
    why_not_fork,
)
from asyncloader.workers.process.native_threads import AddressSpace, NativeThread
from tests.eyes import Seen, alive_after
from tests.processes.scripts import ROOT, run_script, running_script
from tests.processes.stage import run_forked

pytestmark = pytest.mark.skipif(
    not system.MAY_FORK_AFTER_IMPORTS, reason="here no program is forked by default"
)

SCENES = "tests.workers.process.fork_scenes"
STAGE = ("asyncloader.datapipes.iter", SCENES)
LIMIT = 120.0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (Program(), ""),
        (Program(may_fork=False), "on this system"),
        (Program(accelerator="/dev/nvidia0"), "the program uses /dev/nvidia0"),
        (Program(modules={"torch", "jax"}), "jax does not survive a fork"),
        (Program(modules={"torch", "numpy"}), ""),
        (Program(imports=["a.b"]), "modules are being imported: a.b"),
        (Program(threads=["Thread-1"]), "other threads run, which may hold locks: Thread-1"),
        (Program(native_threads=["libzmq.so"]), "threads of libraries run: libzmq.so"),
        (Program(connections=["::1:80"]), "the program has connections: ::1:80"),
        (Program(files=["/data"]), "files are open that workers would share: /data"),
        (Program(generators=["a.rng"]), "the same in each worker: a.rng"),
        (Program(memory=MOST_MEMORY), ""),
        (Program(memory=MOST_MEMORY + (1 << 20)), "the program has 1,025 MiB of memory"),
        (Program(memory=2 * MOST_MEMORY, data=MOST_MEMORY), ""),
        (Program(memory=9 * MOST_MEMORY, data=5 * MOST_MEMORY), ""),
        (Program(memory=9 * MOST_MEMORY, data=3 * MOST_MEMORY), "9,216 MiB of memory"),
    ],
)
def test_why_a_program_is_not_forked(program: Program, why: str) -> None:
    found = why_not_fork(program)
    assert found.endswith(why)
    assert bool(found) == bool(why)


def play(folder: Path, scene: str, *args: str) -> list[str]:
    with contextlib.chdir(folder):
        done = run_forked(folder, f"{SCENES}:{scene}", *args, limit=LIMIT, imported=STAGE)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


FORKED, OTHER = "forked", "another interpreter"


@pytest.mark.parametrize("scene", ["nothing", "a_log", "a_server"])
def test_workers_are_forked_from_a_program_where_that_is_safe(tmp_path: Path, scene: str) -> None:
    assert play(tmp_path, "scene", scene) == [FORKED, FORKED]


@pytest.mark.parametrize(
    "scene",
    [
        "a_thread",
        "a_file_that_is_read",
        "a_lock",
        "a_connection",
        "a_named_pipe",
        "a_generator",
        "a_large_program",
        "an_unsafe_library",
        "a_device",
    ],
)
def test_workers_come_from_another_interpreter_where_a_fork_is_not_safe(
    tmp_path: Path, scene: str
) -> None:
    assert play(tmp_path, "scene", scene) == [OTHER, OTHER]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("scene", "found"),
    [
        ("a_large_graph", [FORKED]),
        ("a_start_in_a_thread", [OTHER]),
        ("a_running_loop", [FORKED, FORKED]),
        ("descriptors_are_let_go", [FORKED, FORKED]),
        ("a_pipe_of_the_program_is_not_open_in_workers", [FORKED]),
        ("a_worker_is_replaced", [FORKED, FORKED]),
        ("the_template_is_killed", [FORKED, FORKED, OTHER]),
        ("draws_are_the_same", []),
        ("a_worker_computes_as_the_program_has", [FORKED]),
    ],
)
def test_forked_workers_do_what_others_do(tmp_path: Path, scene: str, found: list[str]) -> None:
    if "computes" in scene:
        pytest.importorskip("torch")
    assert play(tmp_path, scene) == found


PROGRAM = f"""
    from {SCENES} import loader_of, show
    import random

    with loader_of() as loader:
        show(list(loader))

    class Drawn:
        def __call__(self, number):
            return number, offset + number == 5 + number

    offset = 4
    offset += 1
    with loader_of(Drawn()) as loader:
        show(list(loader))
"""


def test_a_script_without_a_guard_is_forked(tmp_path: Path) -> None:
    done = run_script(tmp_path, PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [FORKED, FORKED]


def test_a_program_on_the_command_line_is_forked() -> None:
    program = f"from {SCENES} import *; scene('nothing')"
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [FORKED, FORKED]


def test_nothing_is_left_of_a_program_that_is_killed(tmp_path: Path) -> None:
    program = f"from {SCENES} import wait_for_the_end; wait_for_the_end()"
    with running_script(tmp_path, program) as process:
        assert process.stdout is not None
        pids = list(map(int, process.stdout.readline().split()))
        family = {Seen.of(pid): str(pid) for pid in pids}
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(family) >= 3
        assert alive_after(family, 30.0) == []


def test_a_thread_that_python_does_not_list_is_in_the_way() -> None:
    import _thread

    end, ended = threading.Event(), threading.Event()

    def run() -> None:
        end.wait()
        ended.set()

    before = threads_in_the_way(threading.main_thread())
    _thread.start_new_thread(run, ())
    try:
        while len(threads_in_the_way(threading.main_thread())) == len(before):
            time.sleep(0.001)
        found = threads_in_the_way(threading.main_thread())
        assert "one that threading does not know" in found
    finally:
        end.set()
        ended.wait()


def test_threads_of_libraries_are_known_by_their_code() -> None:
    pytest.importorskip("numpy")
    program = """
import numpy
from asyncloader.workers.process.native_threads import native_threads
names = {name for each in native_threads() for name in each.libraries}
print(*sorted(name.split("-")[0].split(".")[0] for name in names))
"""
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT, env=environ
    )
    assert done.stdout.strip() in ("", "libscipy_openblas64_"), "numpy may have another library"


WAITING = NativeThread(frozenset(), works=False, task=7, stack=4096)
ENDING = NativeThread(frozenset(), works=True, task=8)


@pytest.mark.parametrize(
    ("looks", "taken", "named"),
    [
        ([[]], 1, []),
        ([[WAITING], [WAITING]], 2, ["not known"]),
        ([[WAITING], [replace(WAITING, stack=8192)], []], 3, []),
        ([[ENDING], [ENDING], []], 3, []),
        ([[WAITING, ENDING], [WAITING, ENDING], [WAITING], [WAITING]], 4, ["not known"]),
    ],
    ids=["none", "it waits", "it went on and ended", "it ends", "another ends"],
)
def test_a_thread_that_shows_nothing_is_looked_at_until_it_is_gone_or_waits(
    looks: list[list[NativeThread]],
    taken: int,
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = list(looks)
    monkeypatch.setattr(fork_safety, "native_threads", lambda: left.pop(0))
    assert program_now().native_threads == named
    assert len(looks) - len(left) == taken


def test_an_address_is_of_the_library_whose_code_it_is() -> None:
    space = AddressSpace(((10, 20, "/lib/a.so"), (30, 40, "/lib/b.so")), ((50, 60, ""),))
    found = [[*space.libraries_at([at])] for at in (9, 10, 19, 20, 35, 40)]
    assert found == [[], ["a.so"], ["a.so"], [], ["b.so"], []]
    assert space.libraries_at(range(60)) == {"a.so", "b.so"}
    assert space.end_of_memory(55) == 60
    with pytest.raises(ValueError, match="no memory at 0x3c"):
        space.end_of_memory(60)


def test_looking_at_the_program_changes_nothing() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    program_now()
    assert sorted(os.listdir("/proc/self/fd")) == before
