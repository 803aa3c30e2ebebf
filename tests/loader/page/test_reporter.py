"""Loaders of several processes on one page, and pages that the environment asks for."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.loader.page import server
from asyncloader.loader.page.panels import Panel, Panels
from asyncloader.loader.page.reporter import Reporter
from asyncloader.loader.page.server import PageServer, report, report_of
from tests.loader.page.viewing import SECONDS, viewing
from tests.processes.scripts import ROOT, run_script

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(server, "TICK_SECONDS", 0.1)


@pytest.fixture
def page() -> Iterator[PageServer]:
    """A page of a program that has no loaders itself."""
    found = PageServer(Panels())
    yield found
    found.close()


PANEL = Panel("a-1", "rank 1 · loader 1", "39/s", "<p>html</p>", "text")


def test_a_report_is_read_as_it_was_written():
    assert report_of(report("a", [PANEL])) == ("a", [PANEL])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        json.dumps({"source": "a", "panels": [{"key": "k"}]}).encode(),
        json.dumps({"source": "a", "panels": 7}).encode(),
        json.dumps({"source": 1, "panels": []}).encode(),
        report("a b", []),
        report("a", [Panel('x" onclick="y', "", "", "", "")]),
        b"[" * 100_000,
    ],
)
async def test_what_is_no_report_is_refused(body, page):
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{page.url}report", data=body) as answer,
    ):
        assert answer.status == 400


async def test_a_report_without_an_end_is_refused(page, monkeypatch):
    monkeypatch.setattr(server, "_MOST_REPORT_BYTES", 1000)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{page.url}report", data=b"x" * 10_000) as answer,
    ):
        assert answer.status == 413


async def test_processes_are_shown_side_by_side_and_in_order(page):
    loader = DataLoader2(IterableWrapper(range(4)))
    reporters = [Reporter(page.url, f"rank {rank}") for rank in (10, 9, 0)]
    for reporter in reporters:
        reporter.panels.add(loader)
    wanted = [f"rank {rank} · loader 1" for rank in (0, 9, 10)]
    async with viewing(page.url) as viewer, asyncio.timeout(SECONDS):
        while await viewer.titles() != wanted:
            pass
        await asyncio.to_thread(reporters[0].close)
        while await viewer.titles() != wanted[:2]:
            pass
    for reporter in reporters[1:]:
        await asyncio.to_thread(reporter.close)


async def test_a_process_that_ends_while_nobody_looks_is_not_shown_later(page):
    loader = DataLoader2(IterableWrapper(range(4)))
    reporter = Reporter(page.url, "rank 1")
    reporter.panels.add(loader)
    async with viewing(page.url) as viewer, asyncio.timeout(SECONDS):
        while await viewer.titles() != ["rank 1 · loader 1"]:
            pass
    await asyncio.to_thread(reporter.close)
    async with viewing(page.url) as viewer, asyncio.timeout(SECONDS):
        while await viewer.titles():
            pass


async def test_a_reporter_waits_for_a_page_that_is_not_there(page, monkeypatch):
    monkeypatch.setattr("asyncloader.loader.page.reporter._FIRST_PAUSE_SECONDS", 0.01)
    gone = PageServer(Panels())
    await asyncio.to_thread(gone.close)
    reporter = Reporter(gone.url, "rank 1")
    await asyncio.to_thread(reporter.close)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/t/", "http://", "http://host:x/"])
def test_an_address_that_is_none_is_refused(url, monkeypatch):
    monkeypatch.setenv("ASYNCLOADER_WATCH", url)
    loader = DataLoader2(IterableWrapper(range(4)))
    with pytest.raises(ValueError, match="ASYNCLOADER_WATCH must be 1, or the address of a page"):
        iter(loader)


# The environment ------------------------------------------------------------------------

LOADING = """
import sys
from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

with DataLoader2(IterableWrapper(range(100)).map(str)) as loader:
    assert len(list(loader)) == 100
    sys.stdin.readline()
"""


@asynccontextmanager
async def program(**variables: str) -> AsyncIterator[Any]:
    """Run a program with a loader, until the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", LOADING, cwd=ROOT, env=os.environ | variables,
        stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
        _, errors = await asyncio.wait_for(process.communicate(b"\n"), SECONDS)
        assert (process.returncode, errors) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_variable_lets_any_program_serve_its_picture():
    async with asyncio.timeout(SECONDS), program(ASYNCLOADER_WATCH="1") as process:
        line = (await process.stderr.readline()).decode().strip()
        assert line.startswith("asyncloader: watch the program at http://127.0.0.1:")
        async with viewing(line.rpartition(" ")[2]) as viewer:
            assert (await viewer.until("epoch 1: 100 items"))["title"] == "loader 1"


async def test_a_program_with_a_pages_address_reports_to_it(page):
    async with (
        asyncio.timeout(SECONDS),
        program(ASYNCLOADER_WATCH=page.url, RANK="3"),
        viewing(page.url) as viewer,
    ):
        assert (await viewer.until("epoch 1: 100 items"))["title"] == "rank 3 · loader 1"


@pytest.mark.parametrize("value", ["", "0"])
def test_without_the_variable_there_is_no_page(value, tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCLOADER_WATCH", value)
    done = run_script(
        tmp_path,
        """
        import sys
        from asyncloader import DataLoader2
        from asyncloader.datapipes.iter import IterableWrapper

        with DataLoader2(IterableWrapper(range(4))) as loader:
            print(list(loader))
        print("starlette" in sys.modules, "asyncloader.loader.page.server" in sys.modules)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\nFalse False\n", "")
