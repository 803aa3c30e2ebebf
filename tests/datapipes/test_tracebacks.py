"""Tracebacks show the user's code, with its lines, and not what lies between two pieces of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import asyncloader
from asyncloader import DataLoader2, Feed, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.tracebacks import trim_tracebacks
from asyncloader.errors import LoaderError
from asyncloader.workers.remote_errors import pack_error, unpack_error
from tests.processes.scripts import run_script

PACKAGE = str(Path(asyncloader.__file__).parent) + os.sep


def divide(number: int) -> float:
    return 1 / (number - 3)


def parse(number: int) -> float:
    return divide(number)


async def aparse(number: int) -> float:
    return divide(number)


class Refused(Exception):
    """It cannot be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("never")


def refuse(number: int) -> float:
    try:
        return parse(number)
    except ZeroDivisionError as error:
        raise Refused("no number") from error


def group(number: int) -> float:
    try:
        return parse(number)
    except ZeroDivisionError as error:
        raise ExceptionGroup("one of two", [error, ValueError("two")]) from None


def numbers() -> IterableWrapper[int]:
    return IterableWrapper(range(8)).sharding_filter()


GRAPHS = {
    "map": lambda: numbers().map(parse),
    "async_map": lambda: numbers().async_map(aparse),
    "thread_map": lambda: numbers().thread_map(parse),
    "prefetch": lambda: numbers().map(parse).prefetch(2),
    "batch": lambda: numbers().map(parse).batch(2),
}


async def error_of(graph, workers: int, by: str) -> Exception:
    """Return what a loader raises, having been iterated by a `for` or an `async for`."""
    service = MultiProcessingReadingService(workers)
    async with DataLoader2(graph, reading_service=service) as loader:
        try:
            if by == "async for":
                async for _ in loader:
                    pass
            else:
                with pytest.warns(RuntimeWarning, match="event loop"):
                    for _ in loader:
                        pass
        except Exception as error:  # noqa: BLE001 - it is looked at
            return error
    raise AssertionError("nothing was raised")


def frames(error: BaseException) -> list[str]:
    """Return the names of the functions in a traceback, without those of Python's own files."""
    entries = traceback.extract_tb(error.__traceback__)
    return [each.name for each in entries if each.filename == __file__ or PACKAGE in each.filename]


@pytest.mark.parametrize("by", ["for", "async for"])
@pytest.mark.parametrize("kind", GRAPHS)
async def test_without_workers_the_users_frames_are_all_that_is_shown(kind, by):
    error = await error_of(GRAPHS[kind](), 0, by)
    function = "aparse" if kind == "async_map" else "parse"
    assert frames(error) == ["error_of", function, "divide"]


@pytest.mark.parametrize("by", ["for", pytest.param("async for", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("kind", GRAPHS)
async def test_with_workers_the_users_frames_are_all_that_is_shown_and_come_last(kind, by):
    error = await error_of(GRAPHS[kind](), 1, by)
    function = "aparse" if kind == "async_map" else "parse"
    assert frames(error) == ["error_of"]
    printed = "".join(traceback.format_exception(error))
    assert PACKAGE not in printed
    lines = [line.strip() for line in printed.splitlines() if "^" not in line]
    assert lines[-4:] == [
        f'File "{__file__}", line {divide.__code__.co_firstlineno + 1}, in divide',
        "return 1 / (number - 3)",
        "ZeroDivisionError: division by zero",
        f"raised in {kind if kind.endswith('map') else 'map'}({function})",
    ]


async def test_causes_and_groups_are_shown_in_the_same_way():
    for function in (refuse, group):
        error = await error_of(numbers().map(function), 1, "async for")
        printed = "".join(traceback.format_exception(error))
        assert PACKAGE not in printed
        assert "return 1 / (number - 3)" in printed


@pytest.mark.parametrize("workers", [0, 1])
async def test_an_answer_of_a_feed_shows_the_users_frames_alone(workers):
    feed = Feed()
    service = MultiProcessingReadingService(workers)
    async with feed.serve(DataLoader2(feed.map(parse), reading_service=service)):
        with pytest.raises(ZeroDivisionError) as raised:
            await feed.ask(3)
    printed = "".join(traceback.format_exception(raised.value))
    assert PACKAGE not in printed
    assert "return 1 / (number - 3)" in printed


async def test_debug_mode_shows_all_frames(monkeypatch):
    monkeypatch.setenv("ASYNCLOADER_DEBUG", "1")
    for workers in (0, 1):
        error = await error_of(numbers().map(parse), workers, "async for")
        printed = "".join(traceback.format_exception(error))
        # Those of the process that raised it, and those of the one where it came out.
        assert f"{PACKAGE}datapipes" in printed
        assert f"{PACKAGE}loader" in printed


async def test_frames_that_are_left_show_their_own_variables():
    error = await error_of(numbers().map(parse), 0, "async for")
    found = [frame.f_locals.get("number") for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert found[-2:] == [3, 3]


def from_asyncloader(error: Exception) -> Exception:
    """Return the error as raised in a function of asyncloader, which the user's code called."""
    code = compile("def fail(error):\n    raise error", f"{PACKAGE}pipe.py", "exec")
    space: dict = {}
    exec(code, space)
    try:
        space["fail"](error)
    except Exception as raised:  # noqa: BLE001 - it is looked at
        trim_tracebacks(raised)
        return raised
    raise AssertionError


def test_a_mistake_of_ours_keeps_the_frames_that_lead_to_it():
    assert frames(from_asyncloader(AttributeError("fn"))) == ["from_asyncloader", "fail"]


def test_our_own_errors_and_those_with_a_note_say_enough():
    noted = ValueError("odd")
    noted.add_note("raised in map(int)")
    for error in (LoaderError("why"), noted):
        assert frames(from_asyncloader(error)) == ["from_asyncloader"]


def test_an_error_without_frames_and_one_in_a_circle_are_left_as_they_are():
    first, second = ValueError("first"), ValueError("second")
    BaseException.__setattr__(first, "__cause__", second)
    BaseException.__setattr__(second, "__cause__", first)
    trim_tracebacks(first)
    assert (first.__traceback__, second.__traceback__) == (None, None)


def test_a_worker_says_nothing_twice():
    error = ValueError("odd")
    note = unpack_error(pack_error(error, "in worker 0 of 1")).__notes__[-1]
    assert note == "in worker 0 of 1:\nValueError: odd"


SCRIPT = '''
import functools, json, linecache, sys, traceback
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

def in_script(number):
    return 1 / (number - 1)

nested = lambda number: [in_script(each) for each in [number]]

class Callable:
    def __call__(self, number):
        return nested(number)

CELL = """
def in_cell(number):
    # a comment
    return 1 / (number - 1)
"""
# As IPython keeps the source of a cell, which is in no file.
linecache.cache["/tmp/cell.py"] = len(CELL), None, CELL.splitlines(True), "/tmp/cell.py"
exec(compile(CELL, "/tmp/cell.py", "exec"))
exec(compile(CELL.replace("in_cell", "in_nothing"), "<nowhere>", "exec"))

def told(error):
    """The last frames and lines that are printed, of this process or in the note of a worker."""
    lines = [each.strip() for each in traceback.format_exception(error)]
    lines = [each for each in "\\n".join(lines).splitlines() if "^" not in each]
    last = len(lines) - lines[::-1].index("ZeroDivisionError: division by zero") - 1
    first = len(lines) - lines[::-1].index("Traceback (most recent call last):")
    return [each.strip() for each in lines[first:last]]

def errors(function):
    for workers in (0, 1, 3):
        graph = IterableWrapper([0, 1, 2]).sharding_filter().map(function)
        with DataLoader2(graph, reading_service=MultiProcessingReadingService(workers)) as loader:
            try:
                list(loader)
            except ZeroDivisionError as error:
                yield told(error)

for function in (in_script, nested, Callable(), in_cell, in_nothing, functools.partial(in_script)):
    here, *there = errors(function)
    print(json.dumps([here, there]))
'''


def test_lines_of_scripts_and_cells_are_those_that_are_shown_without_workers(tmp_path):
    script = run_script(tmp_path, SCRIPT)
    assert script.stderr == ""
    told = [json.loads(line) for line in script.stdout.splitlines()]
    assert len(told) == 6
    for here, there in told:
        # Without workers the frames of the script that iterates come first.
        for each in there:
            assert each == here[-len(each) :]
            assert each[-2 if "<nowhere>" not in each[-1] else -1].startswith("File ")
    assert told[0][1][0][-1] == "return 1 / (number - 1)"
    assert told[3][1][0] == ['File "/tmp/cell.py", line 4, in in_cell', "return 1 / (number - 1)"]
    assert told[4][1][0] == ['File "<nowhere>", line 4, in in_nothing']


def test_code_of_a_program_without_a_file_keeps_its_name(tmp_path):
    program = (
        "from asyncloader import DataLoader2, MultiProcessingReadingService\n"
        "from asyncloader.datapipes.iter import IterableWrapper\n"
        "def fail(number): return 1 / number\n"
        "graph = IterableWrapper([0]).sharding_filter().map(fail)\n"
        "with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:\n"
        "    list(loader)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert 'File "<string>", line 3, in fail' in ended.stderr
    assert "dynamic" not in ended.stderr
