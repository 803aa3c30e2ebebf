"""Cases run in fresh processes, take turns, and are left out with a reason where they fail."""

import os
import select
import subprocess
import sys
from subprocess import PIPE

import pytest

from tests.benchmarks.cases import LIMIT, Case, CaseFailed
from tests.benchmarks.comparison import Comparison
from tests.benchmarks.cost import Rate, cpu_seconds
from tests.benchmarks.environments import Environment, earlier
from tests.benchmarks.rounds import measure, turns


def process_number(*_):
    return os.getpid()


def double(number):
    return 2 * number


def fail():
    raise ValueError("no such thing")


def wait_for_ever():
    os.read(os.pipe()[0], 1)
    return 1.0


def leave_a_process():
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid


def test_a_case_is_measured_in_a_process_of_its_own():
    case = Case("process", process_number)
    numbers = {case.measure(LIMIT), case.measure(LIMIT), float(os.getpid())}
    assert len(numbers) == 3


def test_a_rate_comes_with_its_cost():
    found = Case("rate", a_rate).measure(LIMIT)
    assert isinstance(found, Rate)
    assert (found, found.cpu) == (3.0, 0.5)


def a_rate():
    return Rate(3.0, 0.5)


def test_cpu_time_is_that_of_children_too_while_they_run_and_after():
    before = cpu_seconds()
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", busy], stdin=PIPE, stdout=PIPE)
    child.stdout.readline()
    assert cpu_seconds() - before > 0.29
    child.communicate(b"\n")
    assert cpu_seconds() - before > 0.29


def test_arguments_may_be_functions():
    assert Case("double", apply, args=(double, 21)).measure(LIMIT) == 42


def apply(function, argument):
    return function(argument)


def test_a_case_is_possible_if_what_it_needs_is_there():
    assert Case("with json", process_number, needs=("json",)).is_possible()
    case = Case("with nothing", process_number, needs=("no_such_module.part",))
    assert case.missing() == ["no_such_module.part"]


def test_a_case_is_left_out_if_its_own_environment_was_not_made():
    nowhere = Environment("never-made", ("no-such-package==1.0",))
    assert "no-such-package==1.0" in Case("x", process_number, environment=nowhere).missing()[0]


def test_a_case_that_raises_says_what():
    with pytest.raises(CaseFailed, match=r"exit code 1: ValueError: no such thing"):
        Case("fails", fail).measure(LIMIT)


def test_a_case_that_hangs_is_ended():
    with pytest.raises(CaseFailed, match=r"no end within 1 s"):
        Case("hangs", wait_for_ever).measure(limit=1)


def test_what_a_case_leaves_running_is_ended_before_the_next_one():
    pid = int(Case("leaves", leave_a_process).measure(LIMIT))
    assert is_gone(pid, within=5)


def is_gone(pid, within):
    """Return whether a process ends; its parent has ended, so that nobody here can wait for it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return descriptor in select.select([descriptor], [], [], within)[0]
    finally:
        os.close(descriptor)


def test_cases_take_turns_and_every_second_round_goes_backwards():
    cases = [Case(name, process_number) for name in "abc"]
    order = [(number, case.name) for number, case in turns(cases, 3)]
    assert order == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a"),
                     (2, "a"), (2, "b"), (2, "c")]  # fmt: skip


def test_a_failing_case_is_left_out_and_the_others_are_measured():
    cases = [
        Case("fails", fail),
        Case("works", double, args=(4,)),
        Case("lacks", double, needs=("no_such_module",)),
        Case("another", double, args=(5,)),
    ]
    shown = []
    outcome = measure(Comparison("numbers", "items/s", cases), 2, "", shown.append)
    assert outcome.results == {"works": [8.0, 8.0], "another": [10.0, 10.0]}
    assert outcome.without["lacks"] == "left out, needs no_such_module"
    assert "no such thing" in outcome.without["fails"]
    assert shown.count("numbers, round 1 of 2: fails") == 1


def test_only_chosen_cases_are_measured():
    cases = [Case("one", double, args=(1,)), Case("two", double, args=(2,))]
    outcome = measure(Comparison("numbers", "items/s", cases), 1, "two", [].append)
    assert outcome.results == {"two": [4.0]}


def test_an_earlier_version_is_measured_from_its_own_folder(tmp_path, monkeypatch):
    folder = tmp_path / "asyncloader-old" / "asyncloader"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("answer = 42")
    monkeypatch.setattr("tests.benchmarks.environments.FOLDER", tmp_path)
    assert Case("old", answer_of_asyncloader, environment=earlier("old")).measure(LIMIT) == 42


def answer_of_asyncloader():
    import asyncloader

    return asyncloader.answer
