"""read_from_http, from a real server that misbehaves."""

from __future__ import annotations

import asyncio
import email.utils
import functools
import gzip
import importlib.util
import io
import random
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import HttpReader, IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.datapipes.web import http_client
from asyncloader.datapipes.web.http_client import seconds_of, with_headers
from asyncloader.errors import HttpError, HttpUnavailable, ResourceExhausted, TooManyErrors
from tests.collecting import drain_with_cancels
from tests.http_server import body, http_server
from tests.leaks import leaves_nothing

pytestmark = pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="needs aiohttp")

read = functools.partial(HttpReader, as_bytes=True, backoff=0.001)


async def drained(pipe):
    return [item async for item in pipe]


async def bodies(server, *paths, **settings):
    """Read paths of the server and return their bodies."""
    pipe = read(IterableWrapper([server.url(path) for path in paths]), **settings)
    return [content for _, content in await drained(pipe)]


async def test_bodies_come_in_order_with_their_urls_over_kept_connections():
    async with http_server() as server:
        urls = [server.url(f"/body/{number}?size={1 << 16}") for number in range(200)]
        items = await drained(read(IterableWrapper(urls), concurrency=8))
        assert items == [(url, body(str(n), 1 << 16)) for n, url in enumerate(urls)]
        assert server.most_open <= 8
        assert server.connections <= 8
        await server.all_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_connections_are_kept_from_one_entry_of_a_cache_to_the_next(stream, tmp_path):
    async with http_server() as server:
        begun = IterableWrapper(map(str, range(20))).on_disk_cache(tmp_path.joinpath)
        read = begun.map(lambda name: server.url(f"/body/{name}")).read_from_http(stream=stream)
        pairs = read.map(lambda pair: (pair[0].rpartition("/")[2], pair[1]))
        cached = pairs.end_caching(same_filepath_fn=True, concurrency=2)
        async with DataLoader2(cached) as loader:
            paths = await drained(loader)
        assert [path.read_bytes() for path in map(Path, paths)] == [
            body(str(number), 10) for number in range(20)
        ]
        assert server.connections <= 2


async def test_a_body_is_a_stream_unless_bytes_are_asked_for():
    async with http_server() as server:
        urls = IterableWrapper([server.url("/body/a")])
        ((url, stream),) = await drained(urls.read_from_http())
        assert url == server.url("/body/a")
        assert isinstance(stream, io.BytesIO)
        assert stream.read() == body("a", 10)


@pytest.mark.parametrize("workers", [0, 2])
async def test_urls_are_read_wherever_the_graph_runs_and_nothing_is_left(workers):
    # The first loader of a process starts what the later ones use too.
    await read_through_a_loader(workers)
    with leaves_nothing():
        await read_through_a_loader(workers)


async def read_through_a_loader(workers):
    async with http_server() as server:
        urls = [server.url(f"/body/{number}") for number in range(40)]
        graph = IterableWrapper(urls).sharding_filter().read_from_http(as_bytes=True)
        loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(workers))
        expected = [(url, body(str(n), 10)) for n, url in enumerate(urls)]
        async with loader:
            assert await drained(loader) == expected
            assert await asyncio.to_thread(list, loader) == expected
        await server.all_closed()


@pytest.mark.parametrize(
    "path", ["/fail/503/2/x", "/fail/429/2/x", "/fail/500/3/x", "/cut/3/x", "/reset/2/x"]
)
async def test_what_may_pass_is_tried_again(path):
    async with http_server() as server:
        assert await bodies(server, path) == [body("x", 1000)]
        assert server.asked[path] == int(path.split("/")[-2]) + 1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/fail/503/9/x", "the server answered 503"),
        ("/cut/9/x", "ClientPayloadError"),
        ("/reset/9/x", "ServerDisconnectedError"),
    ],
)
async def test_what_does_not_pass_is_given_up_and_says_after_how_many_times(path, says):
    async with http_server() as server:
        with pytest.raises(HttpUnavailable, match=says) as caught:
            await bodies(server, path, retries=2)
        assert caught.value.url == server.url(path)
        assert caught.value.__notes__[0] == "it was tried 3 times"
        assert server.asked[path] >= 3


async def test_what_will_not_pass_is_asked_for_once():
    async with http_server() as server:
        with pytest.raises(HttpError, match="the server answered 404") as caught:
            await bodies(server, "/nowhere")
        assert caught.value.status == 404
        assert not isinstance(caught.value, HttpUnavailable)
        assert server.asked["/nowhere"] == 1


async def test_a_server_says_when_to_come_back():
    async with http_server() as server:
        server.extra_head = "Retry-After: 1\r\n"
        begun = time.monotonic()
        assert await bodies(server, "/fail/503/1/x") == [body("x", 1000)]
        assert time.monotonic() - begun >= 1


@pytest.fixture(params=["UTC", "Asia/Kathmandu", "America/Lima"])
def time_zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("time_zone")
def test_a_time_to_come_back_may_be_a_date():
    assert seconds_of("120") == 120
    assert 50 < seconds_of(email.utils.formatdate(time.time() + 60)) <= 60
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert seconds_of("") is None
    assert seconds_of("soon") is None
    assert seconds_of("Mon, 23 Nov 2026 03:08:99999999999999999999 GMT") is None


@pytest.mark.parametrize("path", ["/silent", "/stall"])
async def test_a_server_that_takes_too_long_is_a_timeout(path):
    async with http_server() as server:
        with pytest.raises(TimeoutError, match=r"timeout=0\.05") as caught:
            await bodies(server, path, timeout=0.05, retries=1)
        # On a machine that stands still for so long, the server may not have heard of it.
        assert caught.value.__notes__[0] == "it was tried 2 times"


@pytest.mark.parametrize("path", ["/silent", "/stall"])
async def test_a_server_that_is_silent_for_too_long_is_given_up(path, monkeypatch):
    monkeypatch.setattr(http_client, "SILENCE_SECONDS", 0.05)
    async with http_server() as server:
        says = rf"{path}: the server sent nothing for 0\.05 s"
        with pytest.raises(TimeoutError, match=says) as caught:
            await bodies(server, path, retries=1)
        assert caught.value.__notes__[0] == "it was tried 2 times"
        await server.all_closed()


async def test_redirects_are_followed_so_far_and_no_further():
    async with http_server() as server:
        assert await bodies(server, "/redirect/3") == [body("0", 1000)]
        with pytest.raises(HttpError, match="redirected too often"):
            await bodies(server, "/redirect/forever", max_redirects=4)
        assert server.asked["/redirect/forever"] <= 5


async def test_as_many_redirects_are_followed_as_is_said():
    async with http_server() as server:
        assert await bodies(server, "/redirect/3", max_redirects=3) == [body("0", 1000)]
        assert await bodies(server, "/redirect/0", max_redirects=0) == [body("0", 1000)]
        for most in (0, 2):
            with pytest.raises(HttpError, match=f"too often .more than max_redirects={most}."):
                await bodies(server, "/redirect/3", max_redirects=most)


_SIGNED = "/target/a%2Fb%7e/?sig=a%2Fb%3D%2b+c&at=12:00"


@pytest.mark.parametrize(
    ("target", "came"),
    [
        (_SIGNED, _SIGNED),
        (f"{_SIGNED}#part", _SIGNED),
        ("/target/a b?c=ä", "/target/a%20b?c=%C3%A4"),
        ("/target/100%?c=[]", "/target/100%25?c=%5B%5D"),
        ("/target/./a", "/target/a"),
    ],
)
async def test_a_url_is_asked_for_to_the_letter_unless_it_has_to_be_escaped(target, came):
    async with http_server() as server:
        assert await bodies(server, target) == [came.encode()]
        # What a server redirects to is asked for so too.
        for location in (target, server.url(target)):
            server.location = location
            assert await bodies(server, "/away") == [came.encode()]
        url = server.url("/away").replace("//", "//us%2Fer:word@")
        pipe = read(IterableWrapper([url]), stream=True, as_bytes=False)
        assert await drained(pipe.map(lambda pair: pair[1].read())) == [came.encode()]


@pytest.mark.parametrize(
    ("path", "settings"), [("/moved", {}), ("/redirect/3", {"allow_redirects": False})]
)
async def test_a_page_that_says_it_has_moved_is_no_body(path, settings):
    async with http_server() as server:
        for how in ({}, {"stream": True, "as_bytes": False}):
            with pytest.raises(HttpError, match=f"{path}: the server answered 302") as caught:
                await bodies(server, path, **settings, **how)
            assert caught.value.status == 302


@pytest.mark.parametrize("path", ["/body/a?size=1001", "/squeezed"])
async def test_a_body_that_is_too_large_is_refused(path):
    async with http_server() as server:
        with pytest.raises(ResourceExhausted, match="more than max_bytes=1000"):
            await bodies(server, path, max_bytes=1000)


@pytest.mark.parametrize("form", ["gzip", "twice", "deflate", "raw"])
async def test_what_is_cut_short_within_its_compression_is_tried_again(form):
    async with http_server() as server:
        path = f"/packed/{form}/2/x"
        assert await bodies(server, path) == [body("x", 1 << 19)]
        assert server.asked[path] == 3
        with pytest.raises(HttpUnavailable, match=f"/packed/{form}/9/x: its .* was cut short"):
            await bodies(server, f"/packed/{form}/9/x", retries=0)


async def test_what_follows_a_compressed_body_is_of_no_meaning():
    async with http_server() as server:
        assert await bodies(server, "/packed/padded/0/x") == [body("x", 1 << 19)]


@pytest.mark.parametrize(
    ("form", "says"), [("damaged", "its gzip is damaged"), ("br", "the server sent br, not gzip")]
)
async def test_what_cannot_be_unpacked_is_an_error(form, says):
    async with http_server() as server:
        with pytest.raises(HttpError, match=says):
            await bodies(server, f"/packed/{form}/0/x", retries=1)


async def test_unpacking_may_be_left_to_aiohttp_or_to_others():
    content, path = body("x", 1 << 19), "/packed/gzip/0/x"
    async with http_server() as server:
        (packed,) = await bodies(server, path, auto_decompress=False)
        assert gzip.decompress(packed) == content
        for settings in (
            {"auto_decompress": True},
            {"headers": [("accept-encoding", "gzip")]},
            {"skip_auto_headers": ["Accept-Encoding"]},
        ):
            assert await bodies(server, path, **settings) == [content]


def test_headers_are_added_unless_they_are_given():
    given = {"headers": [("a", "1"), ("A", "2")], "ssl": False}
    more = with_headers(with_headers(given, {"B": "3", "a": "4"}), {"b": "5"})
    assert more == {"headers": [("B", "3"), ("a", "1"), ("A", "2")], "ssl": False}
    assert with_headers({"headers": None}, {"B": "3"}) == {"headers": [("B", "3")]}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("example.org/x", "example.org/x: this is no URL of HTTP: it must begin with http"),
        ("user:secret@example.org/x", "example.org/x: this is no URL of HTTP"),
        ("http://", "a URL without a server: this is no URL of HTTP"),
        ("ftp://example.org/a@b", "ftp://example.org/a@b: this is no URL of HTTP"),
    ],
)
def test_what_is_no_url_is_said_to_be_none(url, said):
    with pytest.raises(HttpError) as caught:
        list(IterableWrapper([url]).read_from_http())
    assert str(caught.value).startswith(said)
    assert "secret" not in str(caught.value)


async def test_nothing_secret_of_a_url_is_in_an_error():
    async with http_server() as server:
        url = f"http://user:word@{server.address}/nowhere?signature=abc"
        with pytest.raises(HttpError) as caught:
            await drained(read(IterableWrapper([url])))
        text = str(caught.value)
        assert server.url("/nowhere") in text
        assert "word" not in text
        assert "abc" not in text


@pytest.mark.parametrize(
    "url",
    [
        "http://user:pa55@{}/redirect/forever?signature=abc",
        "http://user:pa55@{}/garbage?signature=abc",
        "http://user:pa55@{}/garbage",
        "http://user:pa55@{}9999999/?signature=abc",
        "http://user:pa55@{}9999999/?signature=abc%2F",
        "http://user:pa55@[::1/?signature=abc",
        "gopher://user:pa55@{}/?signature=abc",
    ],
)
async def test_nothing_secret_is_in_what_an_error_shows_with_its_causes(url):
    async with http_server() as server:
        with pytest.raises(HttpError) as caught:
            await drained(read(IterableWrapper([url.format(server.address)]), retries=0))
    shown = "".join(traceback.format_exception(caught.value))
    assert "HttpError" in shown
    assert "pa55" not in shown
    assert "abc" not in shown
    assert "n0ne" not in shown, "nor of what came"
    assert ("too often" in str(caught.value)) == ("forever" in url)


async def test_what_a_server_sets_for_one_url_is_not_sent_with_another():
    async with http_server() as server:
        assert await bodies(server, "/cookie", "/cookie", concurrency=1) == [b"none"] * 2


async def test_settings_go_to_the_request():
    async with http_server() as server:
        answers = await bodies(server, "/auth", auth=("user", "word"))
        assert answers == [b"Basic dXNlcjp3b3Jk"]
        assert await bodies(server, "/auth", headers={"Authorization": "x"}) == [b"x"]


async def test_credentials_of_aiohttps_own_kind_are_sent_as_they_say():
    import aiohttp

    async with http_server() as server:
        with warnings.catch_warnings():
            # Later versions would rather have a header.
            warnings.simplefilter("ignore", DeprecationWarning)
            auth = aiohttp.BasicAuth("user", "w\xf6rd", encoding="latin1")
        assert await bodies(server, "/auth", auth=auth) == [auth.encode().encode()]


async def test_settings_may_be_left_to_aiohttp_or_say_all_it_takes():
    settings = {"headers": None, "auth": None, "proxy": None, "ssl": None}
    many = {
        "headers": [("Authorization", "x")],
        "params": {"a": 1, "b": ["2", 3.5]},
        "ssl": False,
        "allow_redirects": True,
        "skip_auto_headers": ["User-Agent"],
        "read_bufsize": 1 << 16,
    }
    async with http_server() as server:
        assert await bodies(server, "/auth", **settings) == [b"none"]
        assert await bodies(server, "/auth", **many) == [b"x"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"header": {}}, "a request has no setting 'header'; it has allow_redirects, auth"),
        ({"url": "http://a"}, "a request has no setting 'url'"),
        ({"headers": "Accept: secret"}, "headers must be a dict or pairs .*, got str"),
        ({"headers": {"Accept": 1}}, r"headers\['Accept'\] must be text, got int"),
        ({"headers": {1: "secret"}}, "headers must be named by text, got int"),
        ({"headers": {"Cookie": "secret\nHost: b"}}, r"headers\['Cookie'\] must be one line"),
        ({"headers": {"A\r": "secret"}}, "must be one line"),
        ({"auth": ("secret:", "word")}, "auth must have no colon in the user"),
        ({"params": {"a": True}}, r"params\['a'\] must be text or a finite number, got bool"),
        ({"params": [("a", ["secret"])]}, r"params\['a'\] must be text or a .*, got list"),
        ({"params": 5}, "params must be a dict or pairs .*, got int"),
        ({"auth": "secret"}, "auth must be a tuple of user and password, .*, got str"),
        ({"auth": ("user", "secret", "more")}, "auth must be a tuple of user and password"),
        ({"proxy": 5}, "proxy must be a URL, got int"),
        ({"proxy": "socks5://user:secret@host"}, "proxy must be the URL of an http or https"),
        ({"ssl": "no"}, "ssl must be True, False, an ssl.SSLContext .*, got str"),
        ({"allow_redirects": 1}, "allow_redirects must be True or False, got int"),
        ({"skip_auto_headers": "Accept"}, "skip_auto_headers must be a list of names, got str"),
        ({"server_hostname": b"a"}, "server_hostname must be text, got bytes"),
        ({"read_bufsize": 0}, "read_bufsize must be at least 1, got 0"),
    ],
)
def test_what_a_request_cannot_be_told_is_refused_at_once(setting, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        HttpReader([], **setting)
    assert "secret" not in str(caught.value)


async def test_bad_urls_are_skipped_and_counted():
    async with http_server() as server:
        urls = [server.url(path) for path in ("/body/1", "/nowhere", "/body/2")]
        urls.append("gopher://127.0.0.1/")
        pipe = read(IterableWrapper(urls), skip_on_error=True)
        RunTree([pipe])
        assert [content for _, content in await drained(pipe)] == [body("1", 10), body("2", 10)]
        assert latest_pass(pipe).errors == 2
        with pytest.raises(TooManyErrors) as caught:
            await drained(read(IterableWrapper(urls), on_error="skip", max_errors=1))
        assert isinstance(caught.value.__cause__, HttpError)


async def test_an_error_comes_out_of_a_worker_as_it_is():
    async with http_server() as server:
        graph = IterableWrapper([server.url("/nowhere")]).sharding_filter().read_from_http()
        service = MultiProcessingReadingService(1)
        async with DataLoader2(graph, reading_service=service) as loader:
            with pytest.raises(HttpError) as caught:
                await drained(loader)
        assert caught.value.status == 404


async def test_leaving_early_closes_the_connections_of_requests_under_way():
    with leaves_nothing():
        async with http_server() as server:
            urls = [server.url("/body/0"), *[server.url("/silent")] * 20]
            stream = aiter(read(IterableWrapper(urls)))
            await anext(stream)
            await stream.aclose()
            await server.all_closed()


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
async def test_of_ten_thousand_bodies_of_which_many_fail_none_is_lost_and_none_comes_twice(workers):
    # A loop that notes where each of thousands of tasks was made takes its time.
    asyncio.get_running_loop().set_debug(False)
    chance = random.Random(4)
    kinds = ["/body/{}"] * 12 + ["/fail/503/1/{}", "/reset/1/{}", "/cut/1/{}", "/nowhere/{}"]
    paths = [chance.choice(kinds).format(number) for number in range(10_000)]
    # All at once, so that they are waited for once. A busy machine may make others late too.
    paths[5000:5060] = [f"/late/1/{number}" for number in range(60)]
    await read_through_a_loader(workers)
    with leaves_nothing():
        async with http_server() as server:
            urls = IterableWrapper([server.url(path) for path in paths]).sharding_filter()
            how = {"timeout": 2, "retries": 8, "on_error": "skip", "ordered": False}
            pipe = read(urls, concurrency=128, **how)
            service = MultiProcessingReadingService(workers)
            async with DataLoader2(pipe, reading_service=service) as loader:
                items = [url for url, _ in await drain_with_cancels(loader, chance)]
            del loader
            await server.all_closed()
    assert sorted(items) == sorted(server.url(path) for path in paths if "nowhere" not in path)


def test_what_is_wrong_is_said_when_the_pipe_is_made():
    urls = IterableWrapper([])
    with pytest.raises(ValueError, match="give one of the two"):
        urls.read_from_http(skip_on_error=True, on_error="skip")
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        urls.read_from_http(0)


async def test_an_item_that_is_no_url_is_said_so():
    with pytest.raises(TypeError, match="reads URLs, got int"):
        await drained(IterableWrapper([3]).read_from_http())


def test_aiohttp_is_imported_when_it_is_needed():
    code = "import asyncloader.datapipes.iter, sys; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False"]
