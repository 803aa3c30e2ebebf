"""``python -m asyncloader why``: a program that runs says what its loaders wait for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.system import page_of
from asyncloader.tools.command import main
from tests.loader.test_long_waits import played, reports
from tests.needs import needs_last_words

needs_uvicorn = pytest.mark.skipif(
    find_spec("uvicorn") is None, reason="the live picture needs uvicorn"
)


@needs_last_words
@needs_uvicorn
def test_a_program_with_a_live_picture_is_asked_by_its_number(capsys):
    with played("a_call_that_never_ends", ASYNCLOADER_WATCH="1") as process:
        next(reports(process))
        assert main(["why", str(process.pid)]) == 0
    said = capsys.readouterr().out
    pattern = r"loader 1: the consumer has waited .* for item 5 .*async_map.*: item 5, .*in ask"
    assert re.search(pattern, said, re.DOTALL)


@needs_last_words
@needs_uvicorn
def test_a_page_is_asked_by_its_address(capsys):
    with DataLoader2(IterableWrapper(range(3))) as loader:
        with loader.watch("training") as watch:
            list(loader)
            assert main(["why", watch.url]) == 0
            assert page_of(os.getpid()) == watch.url
        assert page_of(os.getpid()) == ""
    assert capsys.readouterr().out == "training: its consumer does not wait\n"


def test_a_program_without_a_live_picture_is_told_how_to_have_one(capsys):
    with played("a_call_that_never_ends", ASYNCLOADER_WATCH="0") as process:
        next(reports(process))
        assert main(["why", str(process.pid)]) == 2
    assert "ASYNCLOADER_WATCH=1" in capsys.readouterr().err


def test_where_nobody_is_found_by_number_an_address_is_asked_for():
    asked = subprocess.run(
        [sys.executable, "-m", "asyncloader", "why", str(os.getpid())],
        env={**os.environ, "ASYNCLOADER_PORTABLE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert asked.returncode == 2
    assert "give the address of its live picture" in asked.stderr


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("0x7f", "give the number of a process"),
        (str(2**22 + 1), "there is no process"),
        (str(2**70), "there is no process"),
    ],
)
def test_what_is_no_program_is_refused(target, error, capsys):
    assert main(["why", target]) == 2
    assert error in capsys.readouterr().err
