"""read_from_object_store: from directories, memory, and a server that speaks like S3."""

from __future__ import annotations

import asyncio
import importlib.util
import io

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.errors import ResourceExhausted
from tests.http_server import body, http_server

pytestmark = pytest.mark.skipif(importlib.util.find_spec("obstore") is None, reason="needs obstore")


@pytest.fixture
def folder(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_bytes(b"content of %d" % number)
    return tmp_path


def paths(count=20):
    return IterableWrapper([f"{number}.txt" for number in range(count)])


async def drained(pipe):
    return [item async for item in pipe]


EXPECTED = [(f"{number}.txt", b"content of %d" % number) for number in range(20)]


@pytest.mark.parametrize("workers", [0, 2])
async def test_objects_come_in_order_from_the_url_of_a_store(folder, workers):
    graph = paths().sharding_filter().read_from_object_store(folder.as_uri(), as_bytes=True)
    service = MultiProcessingReadingService(workers)
    async with DataLoader2(graph, reading_service=service) as loader:
        assert await drained(loader) == EXPECTED


def test_objects_are_read_in_a_for(folder):
    assert list(paths().read_from_object_store(folder.as_uri(), as_bytes=True)) == EXPECTED


async def test_an_object_is_a_stream_unless_bytes_are_asked_for(folder):
    ((path, stream),) = await drained(paths(1).read_from_object_store(folder.as_uri()))
    assert path == "0.txt"
    assert isinstance(stream, io.BytesIO)
    assert stream.read() == b"content of 0"


async def test_a_store_or_a_function_that_makes_one_may_be_given(folder):
    from obstore.store import LocalStore

    store = LocalStore(folder)
    for given in (store, lambda: store):
        assert await drained(paths().read_from_object_store(given, as_bytes=True)) == EXPECTED


async def test_what_is_not_there_is_file_not_found_and_may_be_left_out(folder):
    some = IterableWrapper(["1.txt", "none.txt", "2.txt"])
    with pytest.raises(FileNotFoundError):
        await drained(some.read_from_object_store(folder.as_uri()))
    pipe = some.read_from_object_store(folder.as_uri(), as_bytes=True, on_error="skip")
    RunTree([pipe])
    assert await drained(pipe) == EXPECTED[1:3]
    assert latest_pass(pipe).errors == 1


async def test_an_object_that_is_too_large_is_refused(folder):
    with pytest.raises(ResourceExhausted, match="more than max_bytes=5"):
        await drained(paths().read_from_object_store(folder.as_uri(), max_bytes=5))


async def test_an_s3_store_is_read_over_http_and_tries_again():
    async with http_server() as server:
        keys = ["body/a", "fail/503/2/b"]
        pipe = IterableWrapper(keys).read_from_object_store(
            "s3://bucket",
            as_bytes=True,
            endpoint=f"http://{server.address}",
            access_key_id="key",
            secret_access_key="secret",
            region="us-east-1",
            client_options={"allow_http": True},
            virtual_hosted_style_request=True,
        )
        async with asyncio.timeout(30):
            items = await drained(pipe)
        assert items == [("body/a", body("a", 10)), ("fail/503/2/b", body("b", 1000))]
        assert server.asked["/fail/503/2/b"] == 3


def test_settings_without_a_url_are_refused():
    with pytest.raises(
        TypeError, match="region: settings can only be given with the URL of a store"
    ):
        paths().read_from_object_store(object(), region="x")


async def test_an_item_that_is_no_path_is_said_so(folder):
    with pytest.raises(TypeError, match="reads paths, got int"):
        await drained(IterableWrapper([3]).read_from_object_store(folder.as_uri()))
