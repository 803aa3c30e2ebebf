"""Objects of S3, of a server that speaks it on this machine.

It is moto's, which is too much to install for a few tests: ``pip install moto flask
flask-cors py-partiql-parser s3fs`` brings it.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import FSSpecFileLister, IterableWrapper

NEEDED = ["moto", "flask", "flask_cors", "boto3", "obstore"]
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(bool(MISSING), reason=f"needs a server of S3: {', '.join(MISSING)}"),
    # botocore, s3fs and flask warn of themselves.
    pytest.mark.filterwarnings("ignore"),
]
by_s3fs = pytest.mark.skipif(importlib.util.find_spec("s3fs") is None, reason="needs s3fs")

KEYS = [f"folder/{number:02d}.txt" for number in range(20)]
CONTENTS = {key: b"content of " + key.encode() for key in KEYS}


@dataclass
class Bucket:
    """A bucket of a server, and how it is reached."""

    address: str
    client: Any

    name = "samples"

    @property
    def for_obstore(self) -> dict[str, Any]:
        return {
            "endpoint": self.address,
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "us-east-1",
            "client_options": {"allow_http": True},
        }

    @property
    def for_fsspec(self) -> dict[str, Any]:
        where = {"endpoint_url": self.address, "region_name": "us-east-1"}
        return {"key": "key", "secret": "secret", "client_kwargs": where}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=Bucket.name)
    for key, content in CONTENTS.items():
        client.put_object(Bucket=Bucket.name, Key=key, Body=content)
    yield Bucket(address, client)
    server.stop()


async def drained(pipe: Any) -> list[Any]:
    return [item async for item in pipe]


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
async def test_objects_come_in_order(bucket: Bucket, workers: int) -> None:
    graph = (
        IterableWrapper(KEYS)
        .sharding_filter()
        .read_from_object_store("s3://samples", as_bytes=True, **bucket.for_obstore)
    )
    service = MultiProcessingReadingService(workers)
    async with DataLoader2(graph, reading_service=service) as loader:
        assert await drained(loader) == list(CONTENTS.items())
        # Another epoch, in another colour, has a store of its own.
        assert await drained(loader) == list(CONTENTS.items())


async def test_an_object_that_is_not_there_may_be_left_out(bucket: Bucket) -> None:
    some = IterableWrapper([KEYS[0], "nowhere", KEYS[1]])
    with pytest.raises(FileNotFoundError):
        await drained(some.read_from_object_store("s3://samples", **bucket.for_obstore))
    pipe = some.read_from_object_store(
        "s3://samples", as_bytes=True, on_error="skip", **bucket.for_obstore
    )
    assert await drained(pipe) == list(CONTENTS.items())[:2]


async def test_a_tar_of_an_object_is_read(bucket: Bucket) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for key, content in CONTENTS.items():
            info = tarfile.TarInfo(key)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    bucket.client.put_object(Bucket=Bucket.name, Key="all.tar", Body=packed.getvalue())
    tars = IterableWrapper(["all.tar"]).read_from_object_store("s3://samples", **bucket.for_obstore)
    files = tars.load_from_tar().map(lambda item: (item[0], item[1].read()))
    assert await drained(files) == [(f"all.tar/{key}", CONTENTS[key]) for key in KEYS]


@by_s3fs
@pytest.mark.parametrize("workers", [0, 2])
async def test_fsspec_lists_and_opens(bucket: Bucket, workers: int) -> None:
    urls = FSSpecFileLister("s3://samples/folder", **bucket.for_fsspec)
    files = urls.sharding_filter().open_files_by_fsspec("rb", **bucket.for_fsspec)
    graph = files.map(lambda item: (item[0], item[1].read()))
    service = MultiProcessingReadingService(workers)
    async with DataLoader2(graph, reading_service=service) as loader:
        items = await drained(loader)
    assert items == [(f"s3://samples/{key}", content) for key, content in CONTENTS.items()]


@by_s3fs
def test_fsspec_saves(bucket: Bucket) -> None:
    url = "s3://samples/saved/x.txt"
    saved = IterableWrapper([(url, b"content")]).save_by_fsspec("wb", **bucket.for_fsspec)
    assert list(saved) == [url]
    found = bucket.client.get_object(Bucket=Bucket.name, Key="saved/x.txt")
    assert found["Body"].read() == b"content"
