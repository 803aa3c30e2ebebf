"""What W5 waits for, for those who wait in a thread and for those who wait in a loop."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SECONDS = 0.02


async def wait(number: int) -> int:
    await asyncio.sleep(SECONDS)
    return number


def wait_in_thread(number: int) -> int:
    time.sleep(SECONDS)
    return number


async def get(url: str, session: Any) -> int:
    async with session.get(url) as response:
        return len(await response.read())


def new_session(at_once: int) -> Any:
    """Return an aiohttp session that opens as many connections as are asked for at once."""
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once))


@dataclass(frozen=True)
class GetInThread:
    """Gets a body over a connection that each thread keeps."""

    url: str

    def __call__(self, _: int) -> int:
        connection = _connection(urlsplit(self.url).netloc)
        connection.request("GET", "/body")
        return len(connection.getresponse().read())


_mine = threading.local()


def _connection(server: str) -> http.client.HTTPConnection:
    if not hasattr(_mine, "connection"):
        _mine.connection = http.client.HTTPConnection(server)
    connection: http.client.HTTPConnection = _mine.connection
    return connection


@dataclass(frozen=True)
class Together:
    """A torch dataset that is asked for a batch at once, and waits for all of it in a loop.

    It is what torch offers for such work: ``__getitems__``, in workers.
    """

    count: int
    call: Callable[[list[int]], Any]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return asyncio.run(self.call(numbers))


async def wait_for_all(numbers: list[int]) -> list[int]:
    return await asyncio.gather(*map(wait, numbers))


@dataclass(frozen=True)
class GetAll:
    """Gets as many bodies as there are numbers."""

    url: str

    async def __call__(self, numbers: list[int]) -> list[int]:
        async with new_session(len(numbers)) as session:
            return await asyncio.gather(*[get(self.url, session) for _ in numbers])
