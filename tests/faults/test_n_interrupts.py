"""Row N12: Ctrl-C again and again, also while the interpreter exits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from asyncloader.system import may_use_uvloop
from tests.faults.interrupts import ROOT, is_one_keyboard_interrupt, without_the_interpreters
from tests.faults.interrupts import run as interrupt_programs
from tests.processes.scripts import run_script

#: Some that the command draws, with two programs at a time.
COUNT, SEED = 14, 20
TORN = "Exception ignored in atexit callback"

PROGRAM = """
import atexit, os, signal, sys

def interrupt():
    # As a terminal does it: to the whole group.
    os.killpg(os.getpid(), signal.SIGINT)

{before}
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

graph = IterableWrapper(range(1000)).sharding_filter()
loader = DataLoader2(graph, None, MultiProcessingReadingService(2))
items = iter(loader)
print(next(items))
{after}
"""

#: The template process is killed at exit, which an audit hook hears of.
IN_THE_MIDST = """
def hear(event, args):
    if event == "os.kill":
        interrupt()

sys.addaudithook(hear)
"""

#: One from which workers are forked otherwise is killed when its loader is closed.
NOT_FORKED = (
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
)

#: At exit we ask first who handles it.
AT_ITS_BEGINNING = """
def hear(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "getsignal":
        sys.setprofile(None)
        interrupt()

atexit.register(sys.setprofile, hear)
"""


def run(folder: Path, before: str = "", after: str = "") -> tuple[int, str, str]:
    source = PROGRAM.format(before=before, after=after)
    done = run_script(folder, "import sys; sys.warnoptions.clear()\n" + source)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("leaves", ["loader.shutdown()", ""], ids=["closed", "left open"])
def test_n12_ctrl_c_in_the_midst_of_our_end_disturbs_nothing(leaves, tmp_path):
    code, stdout, stderr = run(tmp_path, NOT_FORKED, IN_THE_MIDST + leaves)
    assert (code, stdout) == (0, "0\n"), stderr
    assert TORN not in stderr
    assert "KeyboardInterrupt" not in stderr


def test_n12_ctrl_c_as_our_end_begins_disturbs_nothing(tmp_path):
    # What is registered last is called first.
    code, stdout, stderr = run(tmp_path, after=AT_ITS_BEGINNING + "loader.shutdown()")
    assert (code, stdout, stderr) == (0, "0\n", "")


def test_n12_ctrl_c_after_our_end_ends_the_process_at_once_with_all_it_has_printed(tmp_path):
    code, stdout, stderr = run(tmp_path, "atexit.register(interrupt)", "loader.shutdown()")
    assert (code, stdout, stderr) == (-signal.SIGINT, "0\n", "")


def test_n12_a_programs_own_handler_is_left_alone(tmp_path):
    before = """
def heard(number, frame):
    print("heard", flush=True)

signal.signal(signal.SIGINT, heard)
atexit.register(interrupt)
"""
    code, stdout, stderr = run(tmp_path, before, IN_THE_MIDST + "loader.shutdown()")
    # Two that come at once are one.
    assert (code, stdout.count("heard") > 0, stderr) == (0, True, ""), stdout


@pytest.mark.soak
def test_n12_programs_that_are_interrupted_at_random_end_with_one_keyboard_interrupt(capsys):
    assert interrupt_programs(COUNT, SEED, jobs=2) == 0, capsys.readouterr().out


def test_n12_what_counts_as_one_keyboard_interrupt():
    one = 'Traceback (most recent call last):\n  File "a", line 1\nKeyboardInterrupt\n'
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert is_one_keyboard_interrupt(one)
    assert is_one_keyboard_interrupt(one + link + one)
    lost = "object type name: KeyboardInterrupt\nobject repr     : KeyboardInterrupt()\n"
    head = "object address  : 0x1\nobject refcount : 2\nobject type     : 0x2\n"
    cut = one.replace("KeyboardInterrupt\n", head + lost + "lost sys.stderr\n")
    assert is_one_keyboard_interrupt(cut)
    assert not is_one_keyboard_interrupt(cut + one)
    assert not is_one_keyboard_interrupt("")
    assert not is_one_keyboard_interrupt(one + one)
    assert not is_one_keyboard_interrupt(one + f"{TORN}: <function>\n" + one)
    assert not is_one_keyboard_interrupt(one + "Task was destroyed but it is pending!\n")
    assert not is_one_keyboard_interrupt(one.replace("KeyboardInterrupt", "ValueError: 1"))


def test_n12_what_is_cut_off_by_another_ctrl_c_is_one_keyboard_interrupt():
    cut = (
        "object address  : 0x1\nobject refcount : 2\nobject type     : 0x2\nobject type name:"
        " KeyboardInterrupt\nobject repr     : KeyboardInterrupt()\nlost sys.stderr\n"
    )
    begin = 'Traceback (most recent call last):\n  File "a", line 1\n'
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    for before in (begin, begin + "    a^^^", begin + "KeyboardInterrupt\n" + link):
        assert is_one_keyboard_interrupt(before + cut)
        assert not is_one_keyboard_interrupt(before)
    assert not is_one_keyboard_interrupt(begin + "ValueError: 1\n" + link + cut)


def test_n12_what_is_torn_in_its_midst_by_another_ctrl_c_may_raise_what_it_likes():
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"

    def text(error: str, *files: str) -> str:
        frames = [f'  File "{file}", line 1, in wait\n    with self._cond:\n' for file in files]
        return "".join(["Traceback (most recent call last):\n", *frames, f"{error}\n"])

    loader, lock = f"{ROOT}/asyncloader/runtime.py", "/usr/lib/threading.py"
    ctrl_c, torn = text("KeyboardInterrupt", lock), "RuntimeError: release unlocked lock"
    assert is_one_keyboard_interrupt(ctrl_c + link + text(torn, loader, lock), again=True)
    assert is_one_keyboard_interrupt(text(torn, lock) + link + ctrl_c, again=True)
    assert not is_one_keyboard_interrupt(ctrl_c + link + text(torn, loader, lock))
    assert not is_one_keyboard_interrupt(ctrl_c + link + text(torn, lock, loader), again=True)
    assert not is_one_keyboard_interrupt(text(torn, lock), again=True)
    task = "Task was destroyed but it is pending!\ntask: <Task coro=<main() at a.py:4>>\n"
    ours = task.replace("a.py", f"{ROOT}/asyncloader/waiting.py")
    assert without_the_interpreters(ctrl_c + task, again=True) == ctrl_c
    assert without_the_interpreters(ctrl_c + ours, again=True) == ctrl_c + ours
    assert without_the_interpreters(ctrl_c + task) == ctrl_c + task


#: Programs without a loader, in which Ctrl-C comes as the interpreter calls a function.
CALLED = """
import sys

def hear(frame, event, arg):
    if event == "call" and frame.f_code.co_name == {function!r}:
        sys.setprofile(None)
        raise KeyboardInterrupt
"""


def test_n12_what_is_printed_of_any_program_that_is_interrupted_at_its_end_is_not_ours(tmp_path):
    bare = CALLED.format(function="_python_exit") + (
        "import concurrent.futures.thread\nsys.setprofile(hear)\nraise KeyboardInterrupt\n"
    )
    stderr = run_script(tmp_path, bare).stderr
    assert "Exception ignored" in stderr
    assert is_one_keyboard_interrupt(without_the_interpreters(stderr))
    assert not is_one_keyboard_interrupt(stderr)
    ours = stderr.replace(
        "_python_exit", f'f\n  File "{ROOT}/asyncloader/runtime.py", line 1, in f'
    )
    assert without_the_interpreters(ours) == ours


@pytest.mark.skipif(not may_use_uvloop(), reason="there is no uvloop here")
def test_n12_what_is_printed_of_any_program_with_uvloop_that_begins_to_run_is_not_ours(tmp_path):
    bare = CALLED.format(function="socketpair") + (
        "import uvloop\nasync def main():\n    sys.setprofile(hear)\nuvloop.run(main())\n"
    )
    stderr = run_script(tmp_path, bare).stderr
    assert is_one_keyboard_interrupt(without_the_interpreters(stderr))
    # A later uvloop may have mended it.
    assert is_one_keyboard_interrupt(stderr) != ("Cannot close a running event loop" in stderr)
