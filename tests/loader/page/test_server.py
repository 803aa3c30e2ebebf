"""The page over real HTTP: who may look, what is seen, and what is left when it is closed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.loader.page import server
from tests.cpu_time import share_of_a_core
from tests.leaks import descendants
from tests.loader.page.viewing import SECONDS, Viewer, listening, viewing
from tests.processes.scripts import run_script

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def numbers(count: int = 10**9) -> Any:
    return IterableWrapper(range(count), deepcopy=False).sharding_filter()


def double(number: int) -> int:
    return 2 * number


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Look ten times a second, so that a test need not take long."""
    monkeypatch.setattr(server, "TICK_SECONDS", 0.1)


@pytest.fixture
def loader() -> Iterator[DataLoader2[int]]:
    with DataLoader2(numbers(100).map(double)) as loader:
        yield loader


async def status(url: str, method: str = "GET", **request: Any) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, allow_redirects=False, **request) as answer,
    ):
        found: int = answer.status
        return found


# Who may look ---------------------------------------------------------------------------


async def test_the_page_and_all_it_needs_come_from_one_address(loader):
    with loader.watch() as watch:
        async with aiohttp.ClientSession() as session:
            for name in ("", "page.js", "page.css", "style.css"):
                async with session.get(watch.url + name) as answer:
                    assert answer.status == 200
                    text = await answer.text()
                    assert "http://" not in text
                    assert "https://" not in text
            async with session.get(watch.url.rstrip("/")) as answer:
                assert str(answer.url) == watch.url


@pytest.mark.parametrize("path", ["", "wrong/", "wrong/events", "events", "page.js", "é/"])
async def test_a_wrong_token_is_refused(path, loader):
    with loader.watch() as watch:
        place = urlsplit(watch.url)
        assert await status(f"http://{place.netloc}/{path}") == 403
        assert await status(f"http://{place.netloc}/wrong/report", "POST", data=b"{}") == 403
        almost = watch.url[:-2] + ("a" if watch.url[-2] != "a" else "b") + "/"
        assert await status(almost) == 403


async def test_a_page_is_closed_while_the_event_loop_goes_on(loader):
    async with loader.watch() as watch, aiohttp.ClientSession() as session:
        # Somebody who looks is sent away first.
        answer = await session.get(watch.url + "events")
        assert answer.status == 200
        closing = asyncio.ensure_future(watch.aclose())
        assert not closing.done()
        while await answer.content.readany():
            pass
        await closing
        with pytest.raises(aiohttp.ClientConnectionError):
            await status(watch.url)
        await watch.aclose()


def test_each_page_has_a_token_of_its_own(loader):
    urls = []
    for _ in range(3):
        with loader.watch() as watch:
            urls.append(watch.url)
    tokens = {urlsplit(url).path.strip("/") for url in urls}
    assert len(tokens) == 3
    assert all(len(token) >= 32 for token in tokens)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:1", ""]
)
async def test_a_page_of_another_name_is_refused(host, loader):
    with loader.watch() as watch:
        assert await status(watch.url, headers={"Host": host}) == 403
        assert await status(watch.url + "events", headers={"Host": host}) == 403
        # As through a tunnel, whose port is another.
        assert await status(watch.url, headers={"Host": "localhost:8080"}) == 200


@pytest.mark.parametrize("name", ["", "no-such-thing", "page.js"])
async def test_every_answer_says_what_a_browser_may_do_with_it(name, loader):
    with loader.watch() as watch:
        async with (
            aiohttp.ClientSession() as session,
            session.get(watch.url + name, headers={"Origin": "http://evil.example"}) as answer,
        ):
            headers = answer.headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in headers if name.lower().startswith("access-control-")]


@ON_LINUX
def test_it_listens_on_this_machines_own_address_only_and_only_when_asked_for(loader):
    assert list(loader) == [double(number) for number in range(100)]
    before = listening()
    with loader.watch() as watch:
        port = urlsplit(watch.url).port
        assert sorted({*listening()} - {*before}) == [f"0100007F:{port:04X}"]
    assert listening() == before


async def test_no_more_than_so_many_may_look_at_once(loader, monkeypatch):
    monkeypatch.setattr(server, "_MOST_VIEWERS", 1)
    with loader.watch() as watch:
        async with viewing(watch.url):
            assert await status(watch.url + "events") == 503
        async with asyncio.timeout(SECONDS):
            while await status(watch.url + "events") == 503:
                pass


class Caller:
    """A connection of somebody who may know the token, or not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, url: str, sent: bytes = b"") -> Caller:
        place = urlsplit(url)
        caller = cls(*await asyncio.open_connection(place.hostname, place.port))
        caller.writer.write(sent)
        return caller

    async def received(self) -> bytes:
        """Return all that comes until the page closes the connection."""
        async with asyncio.timeout(SECONDS):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""
            finally:
                self.writer.close()


async def test_n29_strangers_have_few_connections_and_who_knows_the_token_is_answered(loader):
    with loader.watch() as watch:
        silent = [await Caller.at(watch.url) for _ in range(100)]
        assert await status(watch.url) == 200
        async with viewing(watch.url) as viewer:
            ends = [asyncio.create_task(caller.received()) for caller in silent]
            while sum(end.done() for end in ends) < 84:
                await viewer.panels()
            # Meanwhile none has come who could take the place of the others.
            assert sum(end.done() for end in ends) <= 85
            for caller in silent:
                caller.writer.close()
            await asyncio.wait(ends)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
        b"POST /wrong/report HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 9\r\n\r\nx",
    ],
)
async def test_n29_who_has_not_shown_the_token_for_a_while_is_sent_away(sent, loader, monkeypatch):
    monkeypatch.setattr(server, "STRANGE_SECONDS", 0.3)
    with loader.watch() as watch:
        async with viewing(watch.url) as viewer:
            stranger = await Caller.at(watch.url, sent)
            assert (await stranger.received()).startswith(b"HTTP/1.1 403" if sent[10:] else b"")
            for _ in range(6):
                # Who looks stays, for longer than a stranger may.
                await viewer.panels()


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"\0" * 100 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a:1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a:1\r\n\r\ngarbage\r\n\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a:1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000,
]


async def test_n29_what_strangers_send_gets_into_no_log(loader, caplog, monkeypatch):
    monkeypatch.setattr(server, "STRANGE_SECONDS", 1.0)
    caplog.set_level(logging.INFO)
    with loader.watch() as watch:
        for garbage in GARBAGE:
            found = await (await Caller.at(watch.url, garbage)).received()
            assert found[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 403")
        assert await status(watch.url) == 200
    assert caplog.records == []


async def test_the_token_gets_into_no_log(loader, caplog):
    caplog.set_level(logging.DEBUG)
    with loader.watch() as watch:
        assert await status(watch.url) == 200
        assert await status(watch.url + "no-such-thing") == 404
        async with viewing(watch.url) as viewer:
            await viewer.panels()
    assert urlsplit(watch.url).path.strip("/") not in caplog.text


def test_without_the_extra_an_error_says_what_to_install(loader, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"pip install 'asyncloader\[watch\]'"):
        loader.watch()


# What is seen ---------------------------------------------------------------------------


async def test_the_picture_follows_a_loader_over_the_ends_of_epochs():
    async with DataLoader2(numbers(3000).map(double).batch(10)) as loader:
        with loader.watch("training") as watch:
            async with viewing(watch.url) as viewer, asyncio.timeout(SECONDS):
                assert (await viewer.until("no epoch was begun yet"))["title"] == "training"
                for epoch in (1, 2):
                    assert len([batch async for batch in loader]) == 300
                    over = await viewer.until(f"epoch {epoch}: 300 items")
                    assert "map(double)" in over["html"]
                    await viewer.until("no epoch runs now")


async def test_all_loaders_of_a_program_share_one_page(loader):
    other = DataLoader2(numbers(10))
    with loader.watch("training") as watch:
        with other.watch("validation") as second:
            assert second.url == watch.url
            async with viewing(watch.url) as viewer:
                assert await viewer.titles() == ["training", "validation"]
        async with viewing(watch.url) as viewer:
            assert await viewer.titles() == ["training"]
    with pytest.raises(aiohttp.ClientConnectionError):
        await status(watch.url)


async def test_a_loader_that_is_watched_twice_stays_until_both_are_closed(loader):
    first, second = loader.watch(), loader.watch()
    first.close()
    first.close()
    async with viewing(second.url) as viewer:
        assert await viewer.titles() == ["loader 1"]
    second.close()
    with pytest.raises(aiohttp.ClientConnectionError):
        await status(second.url)


async def test_the_picture_survives_the_death_of_a_worker():
    service = MultiProcessingReadingService(2, on_worker_death="restart")
    async with DataLoader2(numbers().map(double), reading_service=service) as loader:
        with loader.watch() as watch:
            async with viewing(watch.url) as viewer, asyncio.timeout(SECONDS):
                consuming = asyncio.create_task(consume(loader))
                panel = await viewer.until('<th scope="row">worker 1</th>')
                pid = loader.stats().workers[1].pid
                await viewer.until(f"<td>{pid}</td>")
                os.kill(pid, signal.SIGKILL)
                panel = await viewer.until("1 restarts")
                while f"<td>{pid}</td>" in panel["html"]:
                    panel = await viewer.until("worker 1")
                consuming.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await consuming


async def consume(loader: DataLoader2[int]) -> None:
    async for _ in loader:
        pass


def test_a_watch_says_where_to_look(loader):
    with loader.watch("training") as watch:
        assert repr(watch) == f"<Watch of training at {watch.url}>"
        assert f'<a href="{watch.url}"' in watch._repr_html_()


# What it costs, and what is left --------------------------------------------------------


@ON_LINUX
async def test_nothing_is_done_while_nobody_looks(loader):
    async with DataLoader2(numbers().map(double)) as loader:
        with loader.watch() as watch:
            items = aiter(loader)
            await anext(items)
            async with viewing(watch.url) as viewer:
                await viewer.panels()
            assert await asyncio.to_thread(share_of_a_core, enough=0.005) < 0.005


#: It takes 2 ms on most machines, once a second; a crowded machine makes that a little more.
LOOK_SECONDS = 0.01


@pytest.mark.soak
@ON_LINUX
async def test_a_look_takes_less_than_a_hundredth_of_a_second_of_a_processor():
    graph = numbers().shuffle().map(double).map(double).batch(4).prefetch(2)
    async with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        with loader.watch() as watch:
            async with viewing(watch.url) as viewer, asyncio.timeout(SECONDS):
                consuming = asyncio.create_task(consume(loader))
                await viewer.until("worker 1")
                least = min([await seconds_of_five_looks(viewer) for _ in range(4)])
                consuming.cancel()
                await asyncio.wait([consuming])
    assert least / 5 < LOOK_SECONDS


async def seconds_of_five_looks(viewer: Viewer) -> float:
    """Return how long a processor worked for the page's thread during five looks."""
    before = processor_seconds()
    for _ in range(5):
        await viewer.panels()
    return processor_seconds() - before


def processor_seconds() -> float:
    (thread,) = [each for each in threading.enumerate() if each.name == "asyncloader watch"]
    text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
    return int(text.split()[0]) / 1e9


@pytest.mark.sweep
@pytest.mark.soak
@ON_LINUX
@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
async def test_workers_do_not_hold_the_port_nor_who_is_connected(method):
    service = MultiProcessingReadingService(1, method)
    async with DataLoader2(numbers().map(double), reading_service=service) as loader:
        with loader.watch() as watch:
            async with viewing(watch.url) as viewer, asyncio.timeout(SECONDS):
                await viewer.panels()
                assert await anext(aiter(loader)) == 0
                assert [listening(pid) for pid in descendants() if listening(pid)] == []
                await asyncio.to_thread(watch.close)
                await viewer.until_closed()
        with pytest.raises(aiohttp.ClientConnectionError):
            await status(watch.url)


async def test_closing_ends_what_viewers_receive_and_the_thread(loader):
    threads = {each.name for each in threading.enumerate()}
    assert "asyncloader watch" not in threads
    watch = loader.watch()
    async with viewing(watch.url) as viewer, asyncio.timeout(SECONDS):
        await viewer.panels()
        began = time.monotonic()
        await asyncio.to_thread(watch.close)
        assert time.monotonic() - began < 20
        await viewer.until_closed()
    assert "asyncloader watch" not in {each.name for each in threading.enumerate()}


FORKING = """
import os, urllib.request
from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from tests.loader.page.viewing import listening

loader = DataLoader2(IterableWrapper(range(4)))
watch = loader.watch()
answer = urllib.request.urlopen(watch.url + "events")
answer.readline()
child = os.fork()
if not child:
    assert listening() == []
    watch.close()
    other = loader.watch()
    assert other.url != watch.url
    assert urllib.request.urlopen(other.url).status == 200
    other.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert answer.readline()
assert urllib.request.urlopen(watch.url).status == 200
answer.close()
print("ended")
"""


@ON_LINUX
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_no_part_in_the_page_and_may_have_its_own(tmp_path):
    source = FORKING.replace("child = os.fork()", "import warnings\n"
        "warnings.simplefilter('ignore')\nchild = os.fork()")  # fmt: skip
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


LEAVING = """
import sys, urllib.request
from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

loader = DataLoader2(IterableWrapper(range(4)))
watch = loader.watch()
answer = urllib.request.urlopen(watch.url + "events")
answer.readline()
print(list(loader))
loader.shutdown()
"""


def test_a_program_ends_with_its_page_open_and_looked_at(tmp_path):
    done = run_script(tmp_path, LEAVING)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, 3]\n"
    assert "Traceback" not in done.stderr
