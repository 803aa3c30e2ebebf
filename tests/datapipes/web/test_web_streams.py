"""read_from_http(stream=True), from a real server that loses connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import io
import random
import tarfile
import threading
import time

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.attempts import Attempts
from asyncloader.datapipes.iter import HttpReader, IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.datapipes.web.http_client import opened_client
from asyncloader.datapipes.web.http_stream import wired
from asyncloader.errors import HttpError, HttpUnavailable, ResourceExhausted
from tests.http_server import body, http_server
from tests.leaks import leaves_nothing

pytestmark = pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="needs aiohttp")

read = functools.partial(HttpReader, stream=True, backoff=0.001)

BIG = random.Random(5).randbytes(3 << 20)


async def drained(pipe):
    return [item async for item in pipe]


async def opened(server, path, **settings):
    """Return the stream of one path."""
    ((_, stream),) = await drained(read(IterableWrapper([server.url(path)]), **settings))
    return stream


async def all_of(stream):
    return await asyncio.to_thread(stream.read)


def tar_of(count, size):
    """Return a tar of samples of two files, the larger of so many bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(count):
            for name, content in (("cls", b"%d" % number), ("bin", BIG[number:][:size])):
                info = tarfile.TarInfo(f"{number}.{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def read_all(sample):
    return {key: value if key == "__key__" else value.read() for key, value in sample.items()}


async def test_a_stream_is_read_bit_by_bit_and_after_the_pass_was_over():
    async with http_server() as server:
        server.files["big"] = BIG
        stream = await opened(server, "/file/0/big")
        first = await asyncio.to_thread(stream.read, 10)
        assert first + await all_of(stream) == BIG
        assert await all_of(stream) == b""
        assert stream.name == server.url("/file/0/big")
        stream.close()
        assert server.connections == 1


async def test_what_is_not_read_is_not_sent():
    async with http_server() as server:
        stream = await opened(server, "/endless")
        assert await asyncio.to_thread(stream.read, 10) == bytes(10)
        await server.waited.wait()
        # As long as nobody reads on, this is all that the kernel and the stream hold.
        assert server.sent < 64 << 20
        sent = server.sent
        assert len(await asyncio.to_thread(stream.read, sent)) == sent
        stream.close()
        await ended("asyncloader streams")


async def ended(name):
    """Wait until no thread of that name is there any more."""
    for thread in threading.enumerate():
        turns = 300 if thread.name == name else 0
        while turns and thread.is_alive():
            # What a cancellation leaves in a circle holds its streams until it is found.
            gc.collect()
            # Not in another thread, which would have to end as well.
            thread.join(0.1)
            await asyncio.sleep(0)
            turns -= 1
        assert thread.name != name or not thread.is_alive()


STRONG, WEAK = '"1"', 'W/"1"'
LONG_AGO, JUST_NOW = 3600, 5


@pytest.mark.parametrize(
    ("tag", "age"), [(STRONG, None), (STRONG, JUST_NOW), (STRONG, LONG_AGO), ("", LONG_AGO)]
)
async def test_a_lost_connection_is_made_again_from_where_it_broke_off(tag, age):
    async with http_server() as server:
        server.files["big"] = BIG
        server.tags["big"] = tag
        if age is not None:
            server.ages["big"] = age
        assert await all_of(await opened(server, "/file/3/big")) == BIG
        assert len(server.begun_at) == 4
        assert server.begun_at == sorted(server.begun_at)
        assert server.begun_at[-1] > 0


UNSURE = [("", None), (WEAK, None), (WEAK, LONG_AGO), ("", JUST_NOW)]


@pytest.mark.parametrize(("tag", "age"), UNSURE)
async def test_a_body_that_nothing_tells_from_others_is_read_again_and_compared(tag, age):
    async with http_server() as server:
        server.files["big"] = BIG
        server.tags["big"] = tag
        if age is not None:
            server.ages["big"] = age
        assert await all_of(await opened(server, "/file/3/big")) == BIG
        assert server.begun_at == [0, 0, 0, 0]


@pytest.mark.parametrize("length", [len(BIG), len(BIG) + 1, len(BIG) - 1])
@pytest.mark.parametrize(("tag", "age"), UNSURE)
async def test_n28_a_body_that_changed_is_not_put_together_whatever_the_server_says(
    tag, age, length
):
    async with http_server() as server:
        server.files["big"] = BIG
        server.tags["big"] = tag
        if age is not None:
            server.ages["big"] = age
        stream = await opened(server, "/file/1/big")
        server.files["big"] = (BIG[::-1] + b"x")[:length]
        with pytest.raises(HttpError, match=r"lost after \d+ bytes, and .* begins in another way"):
            await all_of(stream)
        assert stream.closed


async def test_n28_a_body_that_is_shorter_now_than_what_was_read_is_an_error():
    async with http_server() as server:
        server.files["big"] = BIG
        stream = await opened(server, "/file/1/big")
        server.files["big"] = BIG[:1000]
        with pytest.raises(HttpError, match="it is shorter now"):
            await all_of(stream)


async def test_a_body_that_has_grown_meanwhile_comes_as_it_is_now():
    async with http_server() as server:
        server.files["big"] = BIG[:-1000]
        stream = await opened(server, "/file/1/big")
        server.files["big"] = BIG
        assert await all_of(stream) == BIG


async def test_n28_a_tag_of_another_place_says_nothing():
    async with http_server() as server:
        server.files["old"], server.files["new"] = BIG, BIG[::-1]
        server.tags["old"] = server.tags["new"] = STRONG
        server.location = server.url("/file/1/old?signature=1")
        stream = await opened(server, "/away/x")
        server.location = server.url("/file/0/new?signature=2")
        with pytest.raises(HttpError, match="the server did not send the rest"):
            await all_of(stream)
        server.location = server.url("/file/2/old?signature=1")
        stream = await opened(server, "/away/x")
        server.location = server.url("/file/2/old?signature=2")
        assert await all_of(stream) == BIG
        assert server.begun_at[-1] > 0, "only a signature has changed"


async def test_n28_a_date_is_not_asked_for_where_there_is_a_tag():
    # A client may not: RFC 9110, 13.1.5.
    async with http_server() as server:
        server.files["big"], server.tags["big"], server.ages["big"] = BIG, WEAK, LONG_AGO
        assert await all_of(await opened(server, "/file/1/big")) == BIG
        assert server.begun_at == [0, 0]


async def test_what_began_in_chunks_goes_on_as_well():
    async with http_server() as server:
        server.files["big"], server.tags["big"], server.in_chunks = BIG, '"1"', True
        assert await all_of(await opened(server, "/file/2/big")) == BIG
        assert server.begun_at[0] < server.begun_at[1] < server.begun_at[2]


async def test_a_body_that_changed_meanwhile_is_not_put_together_with_the_old():
    async with http_server() as server:
        server.files["big"], server.tags["big"] = BIG, '"1"'
        stream = await opened(server, "/file/1/big")
        server.files["big"], server.tags["big"] = BIG[::-1], '"2"'
        with pytest.raises(HttpError, match="the server did not send the rest") as caught:
            await all_of(stream)
        assert isinstance(caught.value.__cause__, HttpUnavailable)
        assert stream.closed


@pytest.mark.parametrize("tag", ["", STRONG, WEAK])
async def test_a_body_cut_short_by_a_server_that_sends_no_parts_is_read_again(tag):
    async with http_server() as server:
        server.files["big"], server.tags["big"], server.gives_parts = BIG, tag, False
        assert await all_of(await opened(server, "/file/2/big")) == BIG
        assert server.begun_at == [0, 0, 0]


@pytest.mark.parametrize("form", ["gzip", "twice", "deflate", "raw"])
async def test_what_was_compressed_unasked_comes_whole_also_when_it_was_cut_short(form):
    async with http_server() as server:
        content = body("x", 1 << 19)
        for times in (0, 1, 2):
            assert await all_of(await opened(server, f"/packed/{form}/{times}/x")) == content


async def test_a_compression_that_is_not_known_here_is_an_error_and_keeps_nothing_open():
    async with http_server() as server:
        with pytest.raises(HttpError, match="the server sent br, not gzip"):
            await opened(server, "/packed/br/0/x")


async def test_what_unpacks_to_very_much_is_not_held():
    async with http_server() as server:
        stream = await opened(server, "/squeezed", max_bytes=1 << 19)
        with pytest.raises(ResourceExhausted, match="more than max_bytes"):
            await all_of(stream)


async def test_a_body_of_which_nothing_was_read_is_asked_for_as_a_whole():
    async with http_server() as server:
        server.files["big"], server.gives_parts, server.share = BIG, False, 0
        assert await all_of(await opened(server, "/file/3/big")) == BIG
        assert server.begun_at == [0] * 4


async def test_a_server_that_cuts_every_answer_is_given_up():
    async with http_server() as server:
        server.files["x"], server.tags["x"] = body("x", 1000), STRONG
        with pytest.raises(HttpUnavailable, match=r"after 9\d\d bytes") as caught:
            await all_of(await opened(server, "/file/99/x", retries=2))
        assert "it was tried 3 times" in caught.value.__notes__


async def test_a_server_that_cuts_what_is_read_again_at_the_same_byte_is_given_up():
    async with http_server() as server:
        server.files["big"] = BIG
        with pytest.raises(HttpError, match="and again before anything new came"):
            await all_of(await opened(server, "/file/99/big", retries=2))
        # Some of what had come may have been lost with a connection.
        assert 3 <= len(server.begun_at) <= 6
        assert not any(server.begun_at)


async def test_a_server_that_falls_silent_is_a_timeout_of_the_read():
    async with http_server() as server:
        stream = None
        while stream is None:
            # On a machine that stands still now and then, it may be one of opening, too.
            with contextlib.suppress(TimeoutError):
                stream = await opened(server, "/stall", timeout=0.5, retries=0)
        with pytest.raises(TimeoutError, match=r"timeout=0\.5"):
            await all_of(stream)


async def test_what_cannot_be_opened_is_tried_again_or_left_out():
    async with http_server() as server:
        server.files["big"] = BIG
        paths = ["/fail/503/2/x", "/nowhere", "/file/0/big"]
        pipe = read(IterableWrapper(list(map(server.url, paths))), on_error="skip")
        RunTree([pipe])
        streams = [stream for _, stream in await drained(pipe)]
        assert [await all_of(stream) for stream in streams] == [body("x", 1000), BIG]
        assert latest_pass(pipe).errors == 1


async def test_a_limit_of_bytes_may_be_set():
    async with http_server() as server:
        stream = await opened(server, "/endless", max_bytes=1 << 20)
        with pytest.raises(ResourceExhausted, match="more than max_bytes=1048576"):
            await all_of(stream)


@pytest.mark.parametrize("workers", [0, 2])
async def test_the_samples_of_tars_come_over_connections_that_are_lost(workers):
    async with http_server() as server:
        paths = [f"/file/1/{number}.tar" for number in range(4)]
        server.files = {f"{number}.tar": tar_of(3, 1 << 19) for number in range(4)}
        urls = IterableWrapper([server.url(path) for path in paths]).sharding_filter()
        samples = read(urls).load_from_tar().webdataset().map(read_all)
        service = MultiProcessingReadingService(workers)
        async with DataLoader2(samples, reading_service=service) as loader:
            for items in (await drained(loader), await asyncio.to_thread(list, loader)):
                assert len(items) == 12
                found = {(item["__key__"], item[".cls"], item[".bin"]) for item in items}
                assert found == {
                    (f"{server.url(path)}/{n}", b"%d" % n, BIG[n:][: 1 << 19])
                    for path in paths
                    for n in range(3)
                }
        assert all(server.asked[path] == 3 for path in paths)


async def test_leaving_early_closes_the_connections_that_are_read():
    async with http_server() as server:
        server.files["a.tar"] = tar_of(3, 1 << 20)
        urls = [server.url("/file/0/a.tar"), *[server.url("/endless")] * 9]
        for _ in range(2):
            stream = aiter(read(IterableWrapper(urls)).load_from_tar())
            assert (await anext(stream))[0].endswith("a.tar/0.cls")
            await stream.aclose()
            await ended("asyncloader streams")
            await server.all_closed()


async def test_a_stream_that_is_given_up_before_it_is_asked_for_keeps_nothing_open():
    async with http_server() as server:
        endless = server.url("/endless"), Attempts(), float("inf")
        entered, leave = threading.Event(), threading.Event()
        async with wired(functools.partial(opened_client, {}, 0)) as wire:
            loop = wire._thread.loop
            loop.call_soon_threadsafe(lambda: (entered.set(), leave.wait(30)))
            await asyncio.to_thread(entered.wait, 30)
            opening = asyncio.create_task(wire.opened(*endless))
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            leave.set()
            (await wire.opened(*endless)).close()
        await ended("asyncloader streams")


async def test_leaving_early_ends_a_read_that_waits():
    async with http_server() as server:
        urls = IterableWrapper([server.url("/stall")] * 3)
        waits = asyncio.Event()
        noticed = functools.partial(notice, asyncio.get_running_loop(), waits)
        async with DataLoader2(read(urls).map(noticed)) as loader:
            task = asyncio.ensure_future(anext(aiter(loader)))
            await waits.wait()
            begun = time.monotonic()
            task.cancel()
        # The server would be silent for a minute.
        assert time.monotonic() - begun < 30
        await ended("asyncloader streams")


def notice(loop, waits, item):
    """Read on after half of a body, of which the rest never comes."""
    _, stream = item
    assert stream.read(100) == body("stall", 100)
    loop.call_soon_threadsafe(waits.set)
    return stream.read()


async def test_a_loader_of_streams_leaves_nothing():
    async with http_server() as server:
        server.files["a.tar"] = tar_of(3, 1 << 16)
        urls = IterableWrapper([server.url("/file/0/a.tar")] * 4)
        with leaves_nothing():
            async with DataLoader2(read(urls).load_from_tar().map(read_one)) as loader:
                assert len(await drained(loader)) == 24
            await ended("asyncloader streams")
            await server.all_closed()
            del loader


def read_one(item):
    return len(item[1].read())


async def test_a_stream_that_is_dropped_closes_its_connection():
    async with http_server() as server:
        stream = await opened(server, "/endless")
        await asyncio.to_thread(stream.read, 10)
        del stream
        await server.all_closed()
        await ended("asyncloader streams")


async def test_streams_may_be_read_in_a_thread_map():
    async with http_server() as server:
        server.files["big"] = BIG
        urls = IterableWrapper([server.url("/file/0/big")] * 6)
        pipe = read(urls).thread_map(lambda pair: pair[1].read() == BIG, concurrency=3)
        assert await drained(pipe) == [True] * 6


def test_a_stream_and_bytes_are_two_forms():
    with pytest.raises(ValueError, match="give one of the two"):
        IterableWrapper([]).read_from_http(stream=True, as_bytes=True)
