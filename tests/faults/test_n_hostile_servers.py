"""Rows N17, N20 and N25: what a server on the web may do to those who read from it."""

from __future__ import annotations

import asyncio
import inspect
import math

import pytest

from asyncloader.datapipes.iter import HttpReader, IterableWrapper
from asyncloader.errors import HttpError, ResourceExhausted
from tests.datapipes.files.test_hostile_archives import no_more_than
from tests.http_server import HttpServer, body, http_server

pytest.importorskip("aiohttp")

in_both_forms = pytest.mark.parametrize("stream", [False, True])


async def content_of(server: HttpServer, path: str, **settings):
    """Read a path of the server, in a task that may wait for a minute."""
    pipe = HttpReader(IterableWrapper([server.url(path)]), retries=0, **settings)
    async with asyncio.timeout(60):
        ((_, stream),) = [item async for item in pipe]
        return await asyncio.to_thread(stream.read)


# N17 ------------------------------------------------------------------------------------


@in_both_forms
@pytest.mark.parametrize("status", [100, 102, 103, 199])
async def test_n17_interim_answers_without_end_are_an_error(status, stream):
    async with http_server() as server:
        # What is imported for the first request is not looked at.
        await content_of(server, "/body/x", stream=stream)
        with no_more_than(20), pytest.raises(HttpError) as caught:
            await content_of(server, f"/interim/{status}/forever", stream=stream)
        assert server.url(f"/interim/{status}/forever") in str(caught.value)
        assert "more than 100 interim answers" in str(caught.value)


@in_both_forms
async def test_n17_some_interim_answers_before_the_answer_are_no_fault(stream):
    async with http_server() as server:
        for count in (1, 100, 100):
            path = f"/interim/103/{count}"
            assert await content_of(server, path, stream=stream) == body("x", 1000)
        with pytest.raises(HttpError, match="more than 100 interim answers"):
            await content_of(server, "/interim/103/101", stream=stream)


async def test_n17_each_request_of_a_kept_connection_may_have_interim_answers():
    async with http_server() as server:
        urls = [server.url(f"/interim/103/60?{number}") for number in range(5)]
        pipe = HttpReader(IterableWrapper(urls), concurrency=1, as_bytes=True)
        assert [content async for _, content in pipe] == [body("x", 1000)] * 5
        assert server.connections == 1


@in_both_forms
async def test_n17_another_protocol_is_no_answer(stream):
    async with http_server() as server:
        with pytest.raises(HttpError, match="the server answered 101"):
            await content_of(server, "/upgrade", stream=stream)


# N20 ------------------------------------------------------------------------------------

BODY = body("x", 1 << 19)

#: Who decodes: we, or aiohttp as the settings say.
who_decodes = pytest.mark.parametrize(
    "settings", [{}, {"headers": {"Accept-Encoding": "gzip"}}, {"auto_decompress": True}]
)


@in_both_forms
@who_decodes
@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ("compress", "compress"),
        ("unheard-of", "unheard-of"),
        ("gzip-of-gzip", "gzip of gzip"),
        ("gzip-in-two-lines", "gzip of gzip"),
        ("gzip-of-deflate", "gzip of deflate"),
    ],
)
async def test_n20_what_is_not_decoded_is_an_error(form, sent, settings, stream):
    async with http_server() as server:
        with pytest.raises(HttpError, match=f"/packed/{form}/0/x: the server sent {sent}, not gz"):
            await content_of(server, f"/packed/{form}/0/x", stream=stream, **settings)


@in_both_forms
@who_decodes
@pytest.mark.parametrize(
    "form", ["gzip", "twice", "gzip-and-no-more", "nothing", "gzip-on-the-way"]
)
async def test_n20_other_names_of_one_compression_or_none_are_decoded(form, settings, stream):
    async with http_server() as server:
        path = f"/packed/{form}/0/x"
        assert await content_of(server, path, stream=stream, **settings) == BODY


@in_both_forms
async def test_n20_bodies_as_they_are_sent_are_there_when_asked_for(stream):
    async with http_server() as server:
        for form in ("compress", "unheard-of", "br"):
            content = await content_of(
                server, f"/packed/{form}/0/x", stream=stream, auto_decompress=False
            )
            assert content.endswith(b"whatever")


# N25 ------------------------------------------------------------------------------------


def test_n25_bodies_and_streams_have_a_bound_unless_none_is_asked_for():
    bound = inspect.signature(HttpReader).parameters["max_bytes"]
    assert (bound.kind, bound.default) == (bound.KEYWORD_ONLY, "auto")
    urls = IterableWrapper(["http://127.0.0.1:9/none"])
    assert HttpReader(urls).max_bytes == 1 << 30
    assert HttpReader(urls, stream=True).max_bytes == 1 << 40
    for stream in (False, True):
        assert HttpReader(urls, stream=stream, max_bytes=None).max_bytes == math.inf
        assert HttpReader(urls, stream=stream, max_bytes=7).max_bytes == 7
    with pytest.raises(TypeError, match="max_bytes must be an integer, got str"):
        HttpReader(urls, max_bytes="many")


@in_both_forms
async def test_n25_a_body_without_an_end_is_an_error(stream):
    async with http_server() as server:
        with pytest.raises(ResourceExhausted, match="more than max_bytes=1000000 bytes; pass a la"):
            await content_of(server, "/endless", stream=stream, max_bytes=1_000_000)


@in_both_forms
async def test_n25_none_is_no_bound(stream):
    async with http_server() as server:
        content = await content_of(server, "/body/x?size=100000", stream=stream, max_bytes=None)
        assert content == body("x", 100_000)


async def test_n25_a_line_without_an_end_of_a_stream_is_an_error():
    async with http_server() as server:
        urls = IterableWrapper([server.url("/endless")])
        lines = urls.read_from_http(stream=True).readlines(max_line_bytes=1_000_000)
        with pytest.raises(ResourceExhausted, match=r"/endless, line 1: .*_bytes=1000000"):
            async for _ in lines:
                pass
